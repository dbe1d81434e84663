//! The parts `bandwidth` and `loaded` on a terminal.

use std::collections::BTreeSet;

use membound_types::{Bandwidth, BandwidthKernel, BandwidthPoint, Loaded, LoadedPoint};

use super::detail::Detail;
use super::latency::skipped;
use super::out::Out;
use super::table::{Align, Table};
use crate::{facts, units};

const LOADED_ROWS: usize = 16;

pub(super) fn write(out: &mut Out, bandwidth: &Bandwidth, detail: Detail) {
    out.heading(
        "bandwidth",
        &format!("GB/s, {}", units::seconds(bandwidth.elapsed_s)),
    );
    let mut table = Table::new()
        .words("level")
        .figures("each")
        .figures("threads");
    for kernel in BandwidthKernel::ALL {
        table = table.figures(kernel.name());
    }
    let groups: BTreeSet<(u64, u32)> = bandwidth
        .points
        .iter()
        .map(|p| (p.size_bytes, p.threads))
        .collect();
    for (size, threads) in groups {
        let of_group = || {
            bandwidth
                .points
                .iter()
                .filter(move |p| p.size_bytes == size && p.threads == threads)
        };
        let level = of_group().find_map(|p| p.level.clone()).unwrap_or_default();
        let mut row = vec![level, units::bytes(size), threads.to_string()];
        row.extend(BandwidthKernel::ALL.iter().map(|kernel| {
            best(of_group().filter(|p| p.kernel == *kernel)).map_or_else(String::new, units::number)
        }));
        table.row(row);
    }
    if table.is_empty() {
        out.note("no points");
    } else {
        out.table(&table);
    }
    if detail == Detail::Full {
        out.note(&bandwidth.counting);
        if bandwidth
            .points
            .iter()
            .any(|p| p.gb_s_with_allocate > p.gb_s * 1.01)
        {
            out.note("with the reads that stores cause (write-allocate): see gb_s_with_allocate in --json");
        }
        skipped(out, &bandwidth.skipped);
    }
}

fn best<'a>(points: impl Iterator<Item = &'a BandwidthPoint>) -> Option<f64> {
    points
        .map(|p| p.gb_s)
        .filter(|gb_s| gb_s.is_finite())
        .max_by(f64::total_cmp)
}

pub(super) fn write_loaded(out: &mut Out, loaded: &Loaded, detail: Detail) {
    out.heading(
        "loaded latency",
        &format!(
            "chase over {} on {} pages, {}",
            units::bytes(loaded.chase_bytes),
            loaded.page,
            units::seconds(loaded.elapsed_s)
        ),
    );
    let mixes: BTreeSet<(u32, u32)> = loaded
        .points
        .iter()
        .map(|p| (p.mix.writes, p.mix.reads))
        .collect();
    let mut table = Table::new()
        .words("traffic")
        .figures("GB/s")
        .figures("ns")
        .column("interval", Align::Right, 1)
        .figures("cycles");
    for (writes, reads) in mixes {
        let mut points: Vec<&LoadedPoint> = loaded
            .points
            .iter()
            .filter(|p| p.mix.writes == writes && p.mix.reads == reads)
            .collect();
        points.sort_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
        let most = if detail == Detail::Full {
            LOADED_ROWS
        } else {
            2
        };
        let last = points.len().saturating_sub(1);
        for (index, point) in points.iter().enumerate() {
            let ends = index == 0 || index == last;
            if !ends && (detail == Detail::Brief || index % points.len().div_ceil(most) != 0) {
                continue;
            }
            table.row([
                facts::mix_title(point.mix),
                units::number(point.gb_s),
                units::number(point.ns),
                units::interval(point.ns_low, point.ns_high),
                units::number(point.cycles),
            ]);
        }
    }
    if table.is_empty() {
        out.note("no points");
    } else {
        out.table(&table);
    }
    if detail == Detail::Full {
        skipped(out, &loaded.skipped);
    }
}
