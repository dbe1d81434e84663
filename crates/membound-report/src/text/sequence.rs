//! Loads in sequence on a terminal: T(n) = n·M + C, and where it does not hold.

use membound_types::{Mlp, Outcome};

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
        readings.extend(facts::sequence_readings(run, line));
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
