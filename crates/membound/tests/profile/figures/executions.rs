//! Executions held to programs that count their own: within a tenth, or in an interval that holds
//! the truth.

use membound_types::Share;

use membound_testkit::in_two_of_three;

use crate::suite::{Profiled, alone, fixture, profile};

/// What a report says of executions: the figure and its ends.
fn counted(share: &Share) -> Option<[f64; 3]> {
    let loads = share.loads.zip(share.loads_low).zip(share.loads_high);
    let stores = share.stores.zip(share.stores_low).zip(share.stores_high);
    let ((value, low), high) = loads.or(stores)?;
    Some([value, low, high])
}

/// Checks that each instruction of `function` that was counted ran as often as the program
/// says, or may have; returns how many are within a tenth.
fn check(run: &Profiled, function: &str) -> usize {
    let truth = run.told(&format!("{function} "));
    let mut close = 0;
    let of_function = run.profile.instructions.iter();
    for row in of_function.filter(|row| row.function == function) {
        let Some([value, low, high]) = counted(&row.share) else {
            continue;
        };
        assert!(low <= value && value <= high, "{row:?}");
        let is_close = (value / truth - 1.0).abs() <= 0.1;
        assert!(
            is_close || (low <= truth && truth <= high),
            "{function} of {truth:e}: {value:e} [{low:e}, {high:e}]\n{}",
            run.show()
        );
        close += usize::from(is_close);
    }
    close
}

fn loops(mode: &str, functions: &[&str]) {
    let Some(program) = fixture("counts.c", "-O2") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&[], &program, [mode]);
        for function in functions {
            assert!(check(&run, function) > 0, "{function}: {}", run.show());
        }
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn tight_loops_run_as_often_as_they_say() {
    loops("tight", &["loads"]);
    loops("stores", &["stores"]);
    loops("adds", &["adds"]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn phases_stand_for_themselves_alone() {
    loops("phase", &["loads", "gather"]);
    loops("turns", &["loads", "gather"]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn initialisation_is_not_stretched_over_the_run() {
    let Some(program) = fixture("counts.c", "-O2") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&[], &program, ["first"]);
        // It may have been over before anything could be counted: then nothing is said of it.
        check(&run, "fill");
        assert!(check(&run, "gather") > 0, "{}", run.show());
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn executions_of_a_recursion_lie_in_their_interval() {
    let Some(program) = fixture("counts.c", "-O2 -fno-optimize-sibling-calls -fno-inline") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&[], &program, ["calls"]);
        let truth = run.told("calls ");
        // The counter's own access; others of the function run in a part of the calls, or twice.
        let intervals: Vec<[f64; 3]> = (run.profile.instructions.iter())
            .filter(|row| row.function == "calls")
            .filter_map(|row| counted(&row.share))
            .collect();
        assert!(
            intervals
                .iter()
                .any(|[_, low, high]| *low <= truth && truth <= *high),
            "{truth:e}: {intervals:?}\n{}",
            run.show()
        );
    });
}
