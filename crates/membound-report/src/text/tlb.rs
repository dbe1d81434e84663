//! The parts `tlb` and `prefetch` on a terminal.

use std::collections::BTreeSet;

use membound_types::{Outcome, PageKind, Prefetch, Tlb};

use super::detail::Detail;
use super::latency::skipped;
use super::out::Out;
use super::table::{Align, Table};
use crate::{facts, units};

const ROWS: usize = 24;

pub(super) fn write(out: &mut Out, tlb: &Tlb, detail: Detail) {
    out.heading(
        "address translation",
        &format!(
            "{} in {}",
            units::plural(tlb.points.len(), "point"),
            units::seconds(tlb.elapsed_s)
        ),
    );
    let mut table = Table::new()
        .words("pages")
        .words("level")
        .figures("entries")
        .column("interval", Align::Right, 2)
        .figures("reach")
        .figures("miss, cycles")
        .column("interval", Align::Right, 1);
    for level in &tlb.levels {
        table.row([
            level.page.to_string(),
            format!("L{}", level.level),
            units::compact(level.entries.value),
            units::interval(level.entries.low, level.entries.high),
            units::bytes(level.reach_bytes),
            units::compact(level.miss_cycles.value),
            units::interval(level.miss_cycles.low, level.miss_cycles.high),
        ]);
    }
    if table.is_empty() {
        out.note("no level of the TLB was found in these points");
    } else {
        out.table(&table);
    }
    match &tlb.parallel_walks {
        Outcome::Known(walks) => {
            out.line(&format!(
                "page walks served at once, by independent chases: {}",
                units::compact(*walks)
            ));
        }
        Outcome::Missing { not_measured } => out.note(&format!(
            "page walks at once: {}",
            facts::missing_text(not_measured)
        )),
    }
    reach(out, tlb);
    if detail == Detail::Full {
        points(out, tlb);
        overlap(out, tlb);
        skipped(out, &tlb.skipped);
    }
}

/// Memory reached without a page walk, compared with the size of each cache.
fn reach(out: &mut Out, tlb: &Tlb) {
    let rows = facts::reach_rows(tlb);
    let Some((_, kinds)) = rows.first() else {
        return;
    };
    out.heading("reach and cache sizes", "without a page walk");
    let mut table = Table::new().words("cache").figures("size");
    for kind in kinds {
        table = table.figures(&format!("{} reach", kind.page));
    }
    for (cache, row) in &rows {
        let mut cells = vec![cache.level.clone(), facts::cache_size(cache)];
        cells.extend(row.iter().map(|reach| {
            let mark = match reach.covered {
                Some(true) => "",
                Some(false) => "less: ",
                None => "unknown: ",
            };
            format!("{mark}{}", facts::reach_text(reach))
        }));
        table.row(cells);
    }
    out.table(&table);
    for advice in tlb.reach.iter().filter_map(|reach| reach.advice.as_deref()) {
        out.warning(advice);
    }
}

fn points(out: &mut Out, tlb: &Tlb) {
    let kinds: BTreeSet<PageKind> = tlb.points.iter().map(|p| p.page).collect();
    let counts: BTreeSet<u64> = tlb.points.iter().map(|p| p.pages).collect();
    if counts.is_empty() {
        return;
    }
    out.heading("cycles of translation per load", "one line on each page");
    let mut table = Table::new().figures("pages");
    for kind in &kinds {
        table = table.figures(kind.name());
    }
    let counts: Vec<u64> = counts.into_iter().collect();
    let step = counts.len().div_ceil(ROWS).max(1);
    for count in counts.iter().rev().step_by(step).rev() {
        let mut row = vec![units::count(*count)];
        for kind in &kinds {
            row.push(
                tlb.points
                    .iter()
                    .find(|p| p.page == *kind && p.pages == *count)
                    .map(|p| units::number(p.translation_cycles))
                    .unwrap_or_default(),
            );
        }
        table.row(row);
    }
    out.table(&table);
}

fn overlap(out: &mut Out, tlb: &Tlb) {
    if tlb.overlap.is_empty() {
        return;
    }
    out.heading("overlap of misses", "1 is none");
    let mut table = Table::new()
        .words("pages")
        .figures("chains")
        .figures("cycles per load")
        .figures("overlap");
    for point in &tlb.overlap {
        table.row([
            point.page.to_string(),
            point.chains.to_string(),
            units::number(point.translation_cycles),
            units::number(point.overlap),
        ]);
    }
    out.table(&table);
}

pub(super) fn write_prefetch(out: &mut Out, prefetch: &Prefetch, detail: Detail) {
    out.heading(
        "prefetchers",
        &format!(
            "patterns over {}, {}",
            units::bytes(prefetch.area_bytes),
            units::seconds(prefetch.elapsed_s)
        ),
    );
    let mut table = Table::new()
        .words("pattern")
        .words("prefetched")
        .figures("ns")
        .figures("random ns")
        .figures("ratio")
        .column("prefetchers", Align::Left, 1);
    let switched = prefetch
        .points
        .iter()
        .any(|p| p.prefetch != membound_types::PrefetchState::Default);
    for point in &prefetch.points {
        table.row([
            facts::prefetch_pattern_title(point.pattern),
            if point.prefetched { "yes" } else { "no" }.to_owned(),
            units::number(point.ns),
            units::number(point.random_ns),
            units::number(point.ratio),
            if switched {
                facts::prefetch_state_title(&point.prefetch)
            } else {
                String::new()
            },
        ]);
    }
    if table.is_empty() {
        out.note("no points");
    } else {
        out.table(&table);
    }
    match &prefetch.controls {
        Outcome::Known(names) if !names.is_empty() => {
            out.note(&format!("can be switched: {}", names.join(", ")));
        }
        Outcome::Known(_) => out.note("none of the prefetchers can be switched here"),
        Outcome::Missing { not_measured } => out.note(&format!(
            "switching prefetchers off: {}",
            facts::missing_text(not_measured)
        )),
    }
    if detail == Detail::Full {
        skipped(out, &prefetch.skipped);
    }
}
