//! Texts about loads in sequence: T(n) = n·M + C, and where it does not hold.

use membound_types::{Figure, Mlp, SequentialLine};

use super::mlp_title;
use crate::units;

/// Whether T(n) is a line, in words, with a caution if it is not.
pub(crate) fn line_verdict(line: &SequentialLine) -> String {
    let p_value = units::p_value;
    match (&line.bend, line.bend_p_value) {
        (Some(bend), Some(p)) => format!("bends at n = {} ({})", bend.at_loads, p_value(p)),
        (Some(bend), None) => format!("bends at n = {}", bend.at_loads),
        (None, Some(p)) if p < SequentialLine::MAX_BENT_P_VALUE => format!(
            "holds: slopes differ by less than {} % ({})",
            units::compact(100.0 * SequentialLine::MAX_UNREPORTED_SLOPE_CHANGE),
            p_value(p)
        ),
        (None, Some(p)) => format!(
            "holds ({}, limit {})",
            p_value(p),
            SequentialLine::MAX_BENT_P_VALUE
        ),
        (None, None) => "not tested: too few n".to_owned(),
    }
}

/// Line through a run's loads in sequence, with the range of n.
pub(crate) struct SequenceRow<'a> {
    /// `n = 1…4`; empty if the line holds for all n.
    pub(crate) range: String,
    pub(crate) load: &'a Figure,
    pub(crate) overhead: &'a Figure,
}

/// The line, or both of its parts if it bends.
pub(crate) fn sequence_rows(line: &SequentialLine) -> Vec<SequenceRow<'_>> {
    match &line.bend {
        Some(bend) => [&bend.before, &bend.after]
            .into_iter()
            .map(|part| SequenceRow {
                range: format!("n = {}…{}", part.from_loads, part.to_loads),
                load: &part.load_cycles,
                overhead: &part.overhead_cycles,
            })
            .collect(),
        None => vec![SequenceRow {
            range: String::new(),
            load: &line.load_cycles,
            overhead: &line.overhead_cycles,
        }],
    }
}

/// Explains what is unexpected about a run's line, a sentence each.
pub(crate) fn sequence_readings(run: &Mlp, line: &SequentialLine) -> Vec<String> {
    let title = mlp_title(run);
    let mut readings = first_load_readings(&title, run, line);
    if let Some(bend) = bend_reading(&title, line) {
        readings.insert(0, bend);
    }
    readings
}

/// Explains a bend in a sentence; `None` without a bend.
fn bend_reading(run: &str, line: &SequentialLine) -> Option<String> {
    let bend = line.bend?;
    let [before, after] = [bend.before, bend.after].map(|part| part.load_cycles.value);
    Some(format!(
        "{run}: T(n) = n·M + C does not hold for all n: up to n = {} one more load takes {} \
         cycles, from there on {}. M and C are those of each part; the C of the second is no \
         cost of an execution",
        bend.at_loads,
        units::number(before),
        units::number(after),
    ))
}

/// The line through the fewest loads: the part before a bend, or the line without one.
fn first_part(line: &SequentialLine) -> (Figure, Figure) {
    match &line.bend {
        Some(bend) => (bend.before.load_cycles, bend.before.overhead_cycles),
        None => (line.load_cycles, line.overhead_cycles),
    }
}

/// Explains what is unexpected about the first loads: a C below zero, and a single load whose time is not
/// the line's at n = 1. Empty if neither is more than chance.
///
/// The same kernel times one load and n loads: before every load but the first stand the fillers that keep it
/// out of the window of the load before, and the time of the empty kernel is subtracted once.
fn first_load_readings(title: &str, run: &Mlp, line: &SequentialLine) -> Vec<String> {
    let (load, overhead) = first_part(line);
    let mut sentences = Vec::new();
    if overhead.high < 0.0 {
        sentences.push(format!(
            "{title}: C is below zero ({}), so it is no cost of an execution. Two things lower it: the \
             fillers before every load but the first, which are part of M, and the time of the empty \
             kernel, which is subtracted although part of it may pass while loads wait",
            units::interval(overhead.low, overhead.high)
        ));
    }
    if let Some(one) = run.one_load_cycles.known() {
        let at_one = load.value + overhead.value;
        let half_width = |figure: &Figure| (figure.high - figure.low) / 2.0;
        let allowed = half_width(&load).hypot(half_width(&overhead)) + half_width(one);
        let difference = one.value - at_one;
        if allowed.is_finite() && difference.abs() > allowed {
            let side = if difference > 0.0 { "above" } else { "below" };
            sentences.push(format!(
                "{title}: one load alone takes {} cycles, {side} the line's M + C = {}: both have the same \
                 kernel and fillers, but the line follows all n, and n = 1 does not lie on it",
                units::number(one.value),
                units::number(at_one)
            ));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use membound_types::{Basis, Outcome, SequentialBend, SequentialPart};

    use super::*;

    const fn figure(value: f64, half_width: f64) -> Figure {
        Figure {
            value,
            low: value - half_width,
            high: value + half_width,
            basis: Basis::Estimated,
        }
    }

    /// A line that bends at n = 9, after a first part with this C.
    fn bent(overhead: Figure) -> SequentialLine {
        let part = |from_loads, to_loads, load_cycles, overhead_cycles| SequentialPart {
            from_loads,
            to_loads,
            load_cycles,
            overhead_cycles,
        };
        SequentialLine {
            load_cycles: figure(690.0, 40.0),
            load_error: 18.0,
            overhead_cycles: figure(-414.0, 300.0),
            overhead_error: 130.0,
            scatter_cycles: 215.0,
            points: 12,
            left_out: 0,
            bend_p_value: Some(1e-6),
            bend: Some(SequentialBend {
                at_loads: 9,
                before: part(1, 9, figure(632.0, 9.0), overhead),
                after: part(9, 12, figure(915.0, 23.0), figure(-2763.0, 230.0)),
                scatter_cycles: 22.0,
                left_out: 0,
            }),
        }
    }

    #[test]
    fn a_verdict_on_a_line_states_its_limit() {
        let check = |p: f64, expected: &str| {
            let line = SequentialLine {
                bend: None,
                bend_p_value: Some(p),
                ..bent(figure(0.0, 1.0))
            };
            assert_eq!(line_verdict(&line), expected);
        };
        check(0.62, "holds (p = 0.62, limit 0.01)");
        check(0.04, "holds (p = 0.040, limit 0.01)");
        check(0.002, "holds: slopes differ by less than 2 % (p = 0.002)");
        let bent = bent(figure(0.0, 1.0));
        assert_eq!(line_verdict(&bent), "bends at n = 9 (p < 0.001)");
    }

    fn readings(one: f64, overhead: Figure) -> Vec<String> {
        let run = Mlp {
            one_load_cycles: Outcome::Known(figure(one, 31.0)),
            ..Mlp::default()
        };
        first_load_readings("thp", &run, &bent(overhead))
    }

    #[test]
    fn a_first_part_below_zero_and_a_single_load_off_the_line_are_explained() {
        let both = readings(551.0, figure(-216.0, 50.0));
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(
            both[0].starts_with("thp: C is below zero ([-266, -166])"),
            "{both:?}"
        );
        let alone = "thp: one load alone takes 551 cycles, above the line's M + C = 416";
        assert!(both[1].starts_with(alone), "{both:?}");
        // The line's own value at n = 1, within the intervals.
        let only_c = readings(450.0, figure(-216.0, 50.0));
        assert_eq!(only_c, both[..1]);
        // A C that may be zero, and a single load below the line.
        let only_one = readings(551.0, figure(50.0, 60.0));
        let alone = "thp: one load alone takes 551 cycles, below the line's M + C = 682";
        assert!(
            only_one.len() == 1 && only_one[0].starts_with(alone),
            "{only_one:?}"
        );
        assert!(readings(680.0, figure(50.0, 60.0)).is_empty());
    }
}
