//! Loops whose hot line is known, and a triad that counts its own bytes.

use membound_types::Basis;

use membound_testkit::in_two_of_three;

use crate::suite::{alone, fixture, line_of, profile, reaches_memory};

fn hot_line(mode: &str, mark: &str) {
    let Some(program) = fixture("kernels.c", "-O2") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&[], &program, [mode, "2500"]);
        let hottest = run
            .profile
            .lines
            .first()
            .unwrap_or_else(|| panic!("{}", run.show()));
        let told = format!("{hottest:?}\n{}", run.show());
        assert_eq!(hottest.function, mode, "{told}");
        assert!(
            hottest
                .file
                .as_deref()
                .is_some_and(|file| file.ends_with("kernels.c")),
            "{told}"
        );
        assert_eq!(hottest.line, Some(line_of("kernels.c", mark)), "{told}");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn the_line_of_a_gather_is_right() {
    hot_line("gather", "/* GATHER */");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn the_line_of_a_chase_is_right() {
    hot_line("chase", "/* CHASE */");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn the_line_of_a_stencil_is_right() {
    hot_line("stencil", "/* STENCIL */");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn a_triad_moves_what_it_counts() {
    let Some(program) = fixture("kernels.c", "-O2") else {
        return;
    };
    let _alone = alone();
    if !reaches_memory() {
        return;
    }
    in_two_of_three(|| {
        let run = profile(&[], &program, ["triad", "3000"]);
        let counted = run.told("bytes") / run.told("wall_ns");
        let domain = run
            .profile
            .bandwidth
            .iter()
            .find(|it| it.domain.starts_with("DRAM"));
        let domain = domain.unwrap_or_else(|| panic!("{}", run.show()));
        assert!(matches!(domain.basis, Basis::Modelled | Basis::Measured));
        // The end of the run is the loop alone: the arrays are filled before.
        let moments = &domain.timeline;
        let last = &moments[moments.len() / 2..moments.len() - moments.len() / 10];
        let sum: f64 = last.iter().map(|it| it.read_gb_s + it.write_gb_s).sum();
        let reported = sum / last.len() as f64;
        assert!(
            (reported / counted - 1.0).abs() <= 0.15,
            "{reported:.1} GB/s, by the program's own count {counted:.1}\n{}",
            run.show()
        );
        assert!(
            domain
                .machine_max_gb_s
                .known()
                .is_some_and(|most| *most > counted * 0.7)
        );
        let line = line_of("kernels.c", "/* TRIAD */");
        assert!(
            domain.lines[0].name.ends_with(&format!("kernels.c:{line}")),
            "{:?}",
            domain.lines
        );
    });
}
