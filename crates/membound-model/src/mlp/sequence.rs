//! Loads in sequence: fits T(n) = n·M + C, and tests whether the times lie on a line.
//!
//! Document 000, chapter 3.2, assumes the line and calculates C from two times. Here
//! the line is tested: if a line with one bend ([`crate::bend`]) is better by more than chance,
//! the straight line does not hold, and the slope of each part is reported. Times are core clock
//! cycles.

use membound_types::{Figure, Outcome, SequentialBend, SequentialLine, SequentialPart};

use super::around;
use crate::bend::{self, Bend};
use crate::stats::{median, robust_line, student_95};

/// Fits T(n) = n·M + C to (n, cycles) of sequential loads (chapter 3.2 of the document).
///
/// Ordinary least squares without outliers ([`robust_line`]); intervals are Student's for the
/// remaining times. If the times do not lie on a line, [`SequentialLine::bend`] has the bend.
/// Missing with fewer than three different n: two give M and C, which are in the reason, but no
/// error.
#[must_use]
pub fn sequential_fit(series: &[(u32, f64)]) -> Outcome<SequentialLine> {
    const REMEDY: &str = "measure n = 1…12";
    let points: Vec<(f64, f64)> = series
        .iter()
        .filter(|(_, cycles)| cycles.is_finite())
        .map(|(loads, cycles)| (f64::from(*loads), *cycles))
        .collect();
    let mut lengths: Vec<u32> = series
        .iter()
        .filter(|(_, cycles)| cycles.is_finite())
        .map(|(loads, _)| *loads)
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    let line = if lengths.len() < 3 {
        None
    } else {
        robust_line(&points)
    };
    let Some(line) = line else {
        let reason = match two_point_line(series) {
            Some((load, overhead)) if lengths.len() == 2 => format!(
                "two lengths of sequential loads give M = {load:.0} and C = {overhead:.0} cycles, but no error"
            ),
            _ => "a line with errors needs at least three lengths of sequential loads".to_owned(),
        };
        return Outcome::missing_with(reason, REMEDY);
    };
    let freedom = line.points.saturating_sub(2);
    let bend = bend::find(&points);
    Outcome::Known(SequentialLine {
        load_cycles: figure(line.slope, line.slope_error, freedom),
        load_error: line.slope_error,
        overhead_cycles: figure(line.intercept, line.intercept_error, freedom),
        overhead_error: line.intercept_error,
        scatter_cycles: line.scatter,
        points: count(line.points),
        left_out: count(points.len() - line.points),
        bend_p_value: bend.map(|bend| bend.p_value),
        bend: bend.filter(is_bent).map(|bend| parts(&bend, &lengths)),
    })
}

/// True if a bend is more than chance, and large enough to matter.
fn is_bent(bend: &Bend) -> bool {
    let (before, after) = (bend.before.slope, bend.after.slope);
    bend.p_value < SequentialLine::MAX_BENT_P_VALUE
        && (after - before).abs()
            > SequentialLine::MAX_UNREPORTED_SLOPE_CHANGE * before.abs().max(after.abs())
}

/// Both parts of a bent line through the times of `lengths` loads, which ascend.
fn parts(bend: &Bend, lengths: &[u32]) -> SequentialBend {
    let freedom = bend.points.saturating_sub(3);
    let part = |part: &bend::Part, (from_loads, to_loads)| SequentialPart {
        from_loads,
        to_loads,
        load_cycles: figure(part.slope, part.slope_error, freedom),
        overhead_cycles: figure(part.intercept, part.intercept_error, freedom),
    };
    // The bend lies at a number of loads that was measured.
    let at_loads = bend.at as u32;
    let (first, last) = (
        lengths.first().copied().unwrap_or(at_loads),
        lengths.last().copied().unwrap_or(at_loads),
    );
    SequentialBend {
        at_loads,
        before: part(&bend.before, (first, at_loads)),
        after: part(&bend.after, (at_loads, last)),
        scatter_cycles: bend.scatter,
        left_out: count(bend.left_out),
    }
}

/// A value with Student's 95 % interval for `freedom` degrees of freedom.
fn figure(value: f64, error: f64, freedom: usize) -> Figure {
    around(value, student_95(freedom) * error)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// M and C through the median times of the smallest and the largest n, as the document
/// calculates them from one and two loads: C = 2·T(1) − T(2). `None` with a single n.
#[must_use]
pub fn two_point_line(series: &[(u32, f64)]) -> Option<(f64, f64)> {
    let finite = || series.iter().filter(|(_, cycles)| cycles.is_finite());
    let fewest = finite().map(|(loads, _)| *loads).min()?;
    let most = finite().map(|(loads, _)| *loads).max()?;
    if fewest == most {
        return None;
    }
    let time = |n: u32| {
        let times: Vec<f64> = finite()
            .filter(|(loads, _)| *loads == n)
            .map(|(_, cycles)| *cycles)
            .collect();
        median(&times)
    };
    let (first, last) = (time(fewest)?, time(most)?);
    let load = (last - first) / f64::from(most - fewest);
    Some((load, first - load * f64::from(fewest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn sequential_loads_give_one_load_and_the_overhead() {
        let series: Vec<(u32, f64)> = (1..=12)
            .map(|n| {
                (
                    n,
                    45.0 + 290.0 * f64::from(n) + if n % 3 == 0 { 2.0 } else { -1.0 },
                )
            })
            .collect();
        let fit = sequential_fit(&series);
        let fit = fit.known().unwrap();
        assert!(
            (fit.load_cycles.value - 290.0).abs() < 3.0 * fit.load_error,
            "{fit:?}"
        );
        assert!(
            (fit.overhead_cycles.value - 45.0).abs() < 3.0 * fit.overhead_error,
            "{fit:?}"
        );
        assert!(
            fit.overhead_error > 0.1 && fit.overhead_error < 3.0,
            "{fit:?}"
        );
        assert_eq!((fit.points, fit.left_out), (12, 0));
        // Ten degrees of freedom.
        let half = fit.load_cycles.high - fit.load_cycles.value;
        assert!(
            (half / fit.load_error - 2.228_138_85).abs() < 1e-7,
            "{fit:?}"
        );

        let two = sequential_fit(&[(1, 330.0), (2, 600.0), (2, 602.0), (2, 598.0)]);
        let reason = &two.why_missing().unwrap().reason;
        assert!(reason.contains("M = 270 and C = 60"), "{reason}");
        assert!(two.why_missing().unwrap().remedy.is_some());
        assert!(sequential_fit(&[(3, 900.0)]).known().is_none());
        assert!(sequential_fit(&[]).known().is_none());
    }

    #[test]
    fn the_intervals_of_the_line_hold_the_truth_nineteen_times_in_twenty() {
        let mut random = Random::new(5);
        let (mut load, mut overhead) = (0, 0);
        for _ in 0..1000 {
            let series: Vec<(u32, f64)> = (1..=12)
                .map(|n| (n, 45.0 + 290.0 * f64::from(n) + 8.0 * random.normal()))
                .collect();
            let fit = sequential_fit(&series);
            let fit = fit.known().unwrap();
            load += u32::from((fit.load_cycles.low..=fit.load_cycles.high).contains(&290.0));
            overhead +=
                u32::from((fit.overhead_cycles.low..=fit.overhead_cycles.high).contains(&45.0));
        }
        assert!(load >= 930 && overhead >= 930, "{load} {overhead}");
    }

    #[test]
    fn a_disturbed_length_is_left_out_and_counted() {
        let mut series: Vec<(u32, f64)> = (1..=12)
            .map(|n| (n, 45.0 + 290.0 * f64::from(n) + f64::from(n * 5 % 7)))
            .collect();
        series[8].1 += 700.0;
        let fit = sequential_fit(&series);
        let fit = fit.known().unwrap();
        assert_eq!((fit.points, fit.left_out), (11, 1));
        assert!((fit.load_cycles.value - 290.0).abs() < 1.0, "{fit:?}");
    }

    #[test]
    fn times_that_leave_the_line_are_fitted_in_parts() {
        let mut random = Random::new(6);
        // As on one machine: C = −500 by the line, and T(12) ÷ 12 above T(1).
        let series: Vec<(u32, f64)> = (1..=12)
            .map(|n| {
                let n_f = f64::from(n);
                let cycles = 45.0 + 560.0 * n_f.min(4.0) + 700.0 * (n_f - 4.0).max(0.0);
                (n, cycles + 8.0 * random.normal())
            })
            .collect();
        let fit = sequential_fit(&series);
        let fit = fit.known().unwrap();
        assert!(fit.overhead_cycles.value < -200.0, "{fit:?}");
        assert!(fit.bend_p_value.unwrap() < 1e-4, "{fit:?}");
        let bend = fit.bend.unwrap();
        assert_eq!(bend.at_loads, 4);
        let (before, after) = (bend.before, bend.after);
        assert_eq!((before.from_loads, before.to_loads), (1, 4));
        assert_eq!((after.from_loads, after.to_loads), (4, 12));
        let holds = |figure: &Figure, truth: f64| figure.low <= truth && truth <= figure.high;
        assert!(holds(&before.load_cycles, 560.0), "{bend:?}");
        assert!(holds(&before.overhead_cycles, 45.0), "{bend:?}");
        assert!(holds(&after.load_cycles, 700.0), "{bend:?}");
        // Both parts meet where the line bends.
        let at = |part: &SequentialPart| part.load_cycles.value * 4.0 + part.overhead_cycles.value;
        assert!((at(&before) - at(&after)).abs() < 1e-6, "{bend:?}");
    }

    #[test]
    fn a_line_that_holds_has_no_parts() {
        let mut random = Random::new(7);
        let bent = (0..1000)
            .filter(|_| {
                let series: Vec<(u32, f64)> = (1..=12)
                    .map(|n| (n, 45.0 + 290.0 * f64::from(n) + 8.0 * random.normal()))
                    .collect();
                sequential_fit(&series).known().unwrap().bend.is_some()
            })
            .count();
        assert!(bent <= 30, "{bent} of 1000");
    }
}
