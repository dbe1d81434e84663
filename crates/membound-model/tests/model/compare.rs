//! Comparisons with known truth: curves that are shifted, scaled or bent, profiles of another run
//! of the same machine, document 000's table, and fleets with one bad host.

mod conditions;
mod fleet;
mod machine;
mod relations;

use membound_model::compare::{compare, guard};
use membound_types::{CurveVerdict, FigureVerdict};

use machine::{Machine, USUAL};
use membound_testkit::Random;

#[test]
fn runs_of_the_same_machine_differ_by_noise_only() {
    let mut random = Random::new(3);
    let (mut figures, mut curves, mut alarms) = (0, 0, 0);
    let trials = 100;
    for _ in 0..trials {
        let pair = [
            USUAL.profile("a", &mut random),
            USUAL.profile("b", &mut random),
        ];
        let found = compare(&pair, None);
        let different = found.figures.iter().any(|figure| {
            figure.differences[1].is_some_and(|it| it.verdict == FigureVerdict::Different)
        });
        figures += usize::from(different);
        let same = |verdict| verdict == Some(CurveVerdict::Same);
        curves += usize::from(found.curves.iter().any(|curve| !same(curve.verdict)));
        alarms += usize::from(guard::judge(&found, 0.0).exceeded);
    }
    // If no figure differs, the false discovery rate is the probability of any difference.
    assert!(figures <= trials / 20, "{figures}");
    assert!(curves <= trials / 20, "{curves}");
    assert_eq!(alarms, figures.min(alarms));
}

#[test]
fn a_slower_memory_is_found_and_guarded_against() {
    let mut random = Random::new(9);
    let slow = Machine {
        memory_ns: 130.0,
        memory_gb_s: 38.0,
        ..USUAL
    };
    for _ in 0..20 {
        let pair = [
            USUAL.profile("a", &mut random),
            slow.profile("b", &mut random),
        ];
        let found = compare(&pair, None);
        let verdict = |name: &str| {
            let figure = found.figures.iter().find(|it| it.name == name).unwrap();
            let difference = figure.differences[1].unwrap();
            (difference.verdict, difference.worse)
        };
        let worse = (FigureVerdict::Different, true);
        assert_eq!(verdict("levels.DRAM.latency_ns"), worse);
        assert_eq!(verdict("latency.thp.256MiB_ns"), worse);
        assert_eq!(verdict("bandwidth.DRAM.read.1.gb_s"), worse);
        assert_eq!(verdict("levels.L1.latency_ns").0, FigureVerdict::Same);
        let judged = guard::judge(&found, 5.0);
        assert!(judged.exceeded);
        let worst = &judged.worst[0];
        assert!(worst.relative.abs() > 0.15, "{worst:?}");
        assert!(!guard::judge(&found, 60.0).exceeded);
        // Faster memory must not make the guard fail.
        let better = [pair[1].clone(), pair[0].clone()];
        assert!(!guard::judge(&compare(&better, None), 5.0).exceeded);
        // Only memory changes, so the curve has another shape.
        let curve = found
            .curves
            .iter()
            .find(|curve| curve.name.starts_with("latency.random.thp"))
            .unwrap();
        assert_eq!(curve.verdict, Some(CurveVerdict::Other));
        assert!(
            curve.differs_from.unwrap() > 33e6,
            "{:?}",
            curve.differs_from
        );
    }
}

#[test]
fn figures_that_one_profile_lacks_are_missing_and_not_zero() {
    let mut random = Random::new(2);
    let first = USUAL.profile("a", &mut random);
    let mut later = first.clone();
    later.view.bandwidth.points.clear();
    later.view.cpu.model_name = "another".to_owned();
    let found = compare(&[first, later], None);
    let figure = found
        .figures
        .iter()
        .find(|it| it.name == "bandwidth.DRAM.read.1.gb_s")
        .unwrap();
    assert!(figure.values[0].is_some() && figure.values[1].is_none());
    assert_eq!(figure.differences[1], None);
    assert_eq!(found.summaries[0].missing, 5);
    assert_eq!(found.summaries[0].same, found.summaries[0].compared);
    assert!(
        found.notes[0].contains("another processor"),
        "{:?}",
        found.notes
    );
}
