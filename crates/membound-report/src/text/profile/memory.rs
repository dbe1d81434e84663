//! Live bytes over time on a terminal.

use membound_types::{MemoryMoment, Outcome, Profile};

use crate::text::out::Out;
use crate::text::table::{Align, Table};
use crate::{facts, units};

/// Most rows of the table; the JSON has all.
const MAX_ROWS: usize = 30;
/// Width of a curve in columns.
const COLUMNS: usize = 24;
/// Characters for the heights of a curve.
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn write(out: &mut Out, profile: &Profile) {
    let memory = match &profile.memory {
        Outcome::Known(memory) => memory,
        Outcome::Missing { not_measured } => {
            out.line(&format!("memory: {}", facts::missing_text(not_measured)));
            return;
        }
    };
    out.heading(
        "Memory over time",
        &format!(
            "most at once {}, at {}",
            units::bytes(memory.peak_bytes),
            units::seconds(memory.peak_s)
        ),
    );
    let (from_s, to_s) = facts::run::span(profile);
    let curve = |timeline: &[MemoryMoment]| curve(timeline, from_s, to_s);
    let mut table = Table::new()
        .figures("most")
        .column("at", Align::Right, 3)
        .column("at the end", Align::Right, 2)
        .column("over time", Align::Left, 1)
        .name("object", 24);
    let end = |timeline: &[MemoryMoment]| {
        let last = timeline.last().map_or(0, |last| last.bytes);
        units::bytes(last)
    };
    table.row([
        units::bytes(memory.peak_bytes),
        units::seconds(memory.peak_s),
        end(&memory.timeline),
        curve(&memory.timeline),
        "all".to_owned(),
    ]);
    for row in memory.objects.iter().take(MAX_ROWS) {
        table.row([
            units::bytes(row.peak_bytes),
            units::seconds(row.peak_s),
            units::bytes(row.end_bytes),
            curve(&row.timeline),
            row.name.clone(),
        ]);
    }
    out.table(&table);
    if memory.objects.len() > MAX_ROWS {
        out.note(&format!(
            "{} more; --format json has all",
            memory.objects.len() - MAX_ROWS
        ));
    }
    out.note(
        "Bytes that were allocated and not freed yet, used or not. Each curve is as high as its own most.",
    );
}

/// Live bytes over time in a few columns, each showing the maximum of its time.
fn curve(timeline: &[MemoryMoment], from_s: f64, to_s: f64) -> String {
    let peak = timeline.iter().map(|moment| moment.bytes).max();
    let (Some(peak), true) = (peak.filter(|peak| *peak > 0), to_s > from_s) else {
        return String::new();
    };
    let mut most = [0_u64; COLUMNS];
    let column = |t_s: f64| {
        let share = ((t_s - from_s) / (to_s - from_s)).clamp(0.0, 1.0);
        share * COLUMNS as f64
    };
    for (index, moment) in timeline.iter().enumerate() {
        let until = timeline.get(index + 1).map_or(to_s, |next| next.t_s);
        let first = (column(moment.t_s) as usize).min(COLUMNS - 1);
        let behind = (column(until).ceil() as usize).clamp(first + 1, COLUMNS);
        for column in &mut most[first..behind] {
            *column = moment.bytes.max(*column);
        }
    }
    let height = |bytes: u64| {
        // A positive value is never drawn as blank.
        let share = bytes as f64 / peak as f64;
        let eighths = (share * 8.0).round() as usize;
        HEIGHTS[eighths.clamp(usize::from(bytes > 0), 8)]
    };
    most.map(height).iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_shows_what_was_live_when() {
        let moment = |t_s, bytes| MemoryMoment { t_s, bytes };
        let timeline = [
            moment(0.0, 0),
            moment(6.0, 100),
            moment(12.0, 50),
            moment(18.0, 1),
        ];
        assert_eq!(curve(&timeline, 0.0, 24.0), "      ██████▄▄▄▄▄▄▁▁▁▁▁▁");
        assert_eq!(curve(&timeline, 12.0, 12.0), "");
        assert_eq!(curve(&[], 0.0, 1.0), "");
        let spike = [moment(0.0, 1), moment(6.01, 100), moment(6.02, 1)];
        assert_eq!(curve(&spike, 0.0, 24.0).matches('█').count(), 1);
    }
}
