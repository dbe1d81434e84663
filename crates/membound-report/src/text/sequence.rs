//! Loads in sequence on a terminal: T(n) = n·M + C, and where it does not hold.

use membound_types::{Figure, Mlp, Outcome, SequentialLine};

use super::out::Out;
use super::table::{Align, Table};
use crate::{facts, units};

pub(super) fn write(out: &mut Out, mlp: &Mlp) {
    out.heading(
        "loads in sequence: T(n) = n·M + C",
        "cycles, with 95 % intervals",
    );
    let mut table = Table::new()
        .words("condition")
        .figures("M")
        .figures("interval")
        .figures("C")
        .figures("interval")
        .column("times", Align::Right, 1);
    let mut verdicts = Vec::new();
    let mut readings = Vec::new();
    for run in facts::runs(mlp) {
        let title = facts::mlp_title(run);
        let line = match &run.sequential_line {
            Outcome::Known(line) => line,
            Outcome::Missing { not_measured } => {
                out.warning(&format!("{title}: {}", facts::missing_text(not_measured)));
                continue;
            }
        };
        verdicts.push(format!("{title} {}", facts::line_verdict(line)));
        readings.extend(facts::bend_reading(&title, line));
        readings.extend(first_load_readings(&title, run, line));
        let left_out = line.bend.map_or(line.left_out, |bend| bend.left_out);
        let times = line.points + line.left_out;
        let times = match left_out {
            0 => times.to_string(),
            left_out => format!("{} of {times}", times - left_out),
        };
        for (index, row) in facts::sequence_rows(line).into_iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let range = if row.range.is_empty() {
                String::new()
            } else {
                format!(", {}", row.range)
            };
            table.row([
                format!("{title}{range}"),
                units::number(row.load.value),
                units::interval(row.load.low, row.load.high),
                units::number(row.overhead.value),
                units::interval(row.overhead.low, row.overhead.high),
                first(times.clone()),
            ]);
        }
    }
    if !table.is_empty() {
        out.table(&table);
    }
    if !verdicts.is_empty() {
        out.note(&format!("the line: {}", verdicts.join("; ")));
    }
    for reading in readings {
        out.warning(&reading);
    }
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
    use membound_types::{Basis, SequentialBend, SequentialPart};

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
