//! The part `calibration` on a terminal.

use membound_types::Calibration;

use super::detail::Detail;
use super::latency::skipped;
use super::out::Out;
use super::table::{Align, Table};
use crate::{facts, units};

pub(super) fn write(out: &mut Out, calibration: &Calibration, detail: Detail) {
    out.heading(
        "latency sampler",
        &format!(
            "ticks of timed loads by level, calibrated in {}",
            units::seconds(calibration.elapsed_s)
        ),
    );
    let mut table = Table::new()
        .words("level")
        .figures("area")
        .figures("latency")
        .figures("median ticks")
        .column("from 10 to 90 %", Align::Right, 1)
        .column("timed", Align::Right, 2);
    for level in &calibration.levels {
        let found = facts::deciles(level);
        table.row(vec![
            level.name.clone(),
            units::bytes(level.area_bytes),
            units::ns(level.latency_ns),
            found.map_or_else(String::new, |it| it.median.to_string()),
            found.map_or_else(String::new, |it| format!("{}–{}", it.tenth, it.nine_tenths)),
            units::count(level.count),
        ]);
    }
    out.table(&table);
    if detail == Detail::Full {
        out.note(&format!(
            "a tick is {}; the timing's own cost is in all of them; patch {}",
            units::ns(1e9 / calibration.tick_hz),
            calibration.patch
        ));
        skipped(out, &calibration.skipped);
    }
}
