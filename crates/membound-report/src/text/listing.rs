//! Source and assembly with the stall of each line, on a terminal.

use membound_types::{Detail, ListedInstruction, Listing};

use super::Style;
use super::clean::clean;
use super::out::Out;
use crate::units;

/// Columns of the figures before the text.
const MARGIN: usize = 24;
/// Lines without figures that are shown before and after one with figures; the others are left out.
const AROUND: u32 = 4;
const TAB: &str = "    ";

/// Formats source and assembly of the hot functions whose name contains `function`, or of all; `None` if there
/// is none.
#[must_use]
pub fn listing(detail: &Detail, function: Option<&str>, style: Style) -> Option<String> {
    let mut out = Out::new(style);
    let mut found = false;
    for listing in &detail.listings {
        if function.is_none_or(|wanted| listing.function.contains(wanted)) {
            found = true;
            write(&mut out, listing);
        }
    }
    found.then(|| out.finish())
}

fn write(out: &mut Out, listing: &Listing) {
    out.blank();
    out.heading(
        &listing.function,
        listing.file.as_deref().unwrap_or(&listing.module),
    );
    if listing.source.is_empty() {
        out.note("no source: the module has no line numbers, or the file could not be read");
    } else {
        out.head(&format!("{:>8} {:>8} {:>5}", "stalled", "time", "line"));
        let hot: Vec<u32> = listing
            .source
            .iter()
            .filter(|line| line.time_fraction > 0.0 || line.stall_fraction > 0.0)
            .map(|line| line.line)
            .collect();
        let mut gap = false;
        for line in &listing.source {
            let near = hot.is_empty() || hot.iter().any(|hot| hot.abs_diff(line.line) <= AROUND);
            if near {
                text(
                    out,
                    [line.stall_fraction, line.time_fraction],
                    &line.line.to_string(),
                    &line.text,
                );
            } else if !gap {
                out.verbatim(&[format!("{:>MARGIN$}", "…")]);
            }
            gap = !near;
        }
    }
    if !listing.assembly.is_empty() {
        out.blank();
        out.head(&format!("{:>8} {:>8} {:>5}", "stalled", "time", "at"));
        assembly(out, &listing.assembly);
    }
}

fn assembly(out: &mut Out, instructions: &[ListedInstruction]) {
    for instruction in instructions {
        let line = instruction
            .line
            .map_or_else(String::new, |line| format!("  ; line {line}"));
        let count = instruction.executions.map_or_else(String::new, |count| {
            let ends = (instruction.executions_low, instruction.executions_high);
            format!(", {} times", units::brief_count(count, ends.0, ends.1))
        });
        let remark = if line.is_empty() {
            count.trim_start_matches(", ").to_owned()
        } else {
            format!("{line}{count}")
        };
        text(
            out,
            [instruction.stall_fraction, instruction.time_fraction],
            &format!("{:x}", instruction.address),
            &format!("{}{remark}", instruction.text),
        );
    }
}

/// Writes a line with its figures, cut at the terminal's edge because wrapped code is hard to read.
fn text(out: &mut Out, [stall, time]: [f64; 2], place: &str, text: &str) {
    let share = |value: f64| {
        if value > 0.0 {
            units::percent(value)
        } else {
            String::new()
        }
    };
    let text = clean(&text.replace('\t', TAB));
    out.cut_line(&format!(
        "{:>8} {:>8} {place:>5} {text}",
        share(stall),
        share(time)
    ));
}
