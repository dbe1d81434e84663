//! `latency` on a terminal: the main curve as a picture, all curves as a table.

use std::collections::BTreeSet;

use membound_types::{Latency, Level, MachineInfo};

use super::detail::Detail;
use super::out::Out;
use super::plot::{self, Across, Look, Picture, Up};
use super::table::Table;
use crate::facts::{self, Curve, SettingFamily};
use crate::units;

/// Most curves side by side in the table.
const COLUMNS: usize = 5;
/// Most rows of a table.
const MAX_ROWS: usize = 26;
const DEFAULT_LINE: u64 = 64;

pub(super) fn write(
    out: &mut Out,
    latency: &Latency,
    _machine: &MachineInfo,
    levels: &[Level],
    detail: Detail,
) {
    let line = levels
        .iter()
        .find_map(|level| level.line_bytes)
        .map_or(DEFAULT_LINE, u64::from);
    let curves = facts::latency_curves(latency, line);
    let disturbed = latency
        .points
        .iter()
        .filter(|p| p.batches.disturbed.unresolved())
        .count();
    out.heading(
        "latency",
        &format!(
            "{} in {}, {} disturbed",
            units::plural(latency.points.len(), "point"),
            units::seconds(latency.elapsed_s),
            disturbed
        ),
    );
    if let Some(main) = curves.first() {
        plot(out, main, levels);
    }
    if detail == Detail::Full {
        table(out, &curves);
        strides(out, latency);
        for family in facts::setting_families(latency) {
            settings(out, &family);
        }
        if latency.points.iter().any(|p| p.prefetch_taint.is_some()) {
            taint(out, latency);
        }
    }
    for crowd in &latency.crowding {
        out.note(&format!(
            "{} copies at once: {}",
            crowd.threads, crowd.meaning
        ));
    }
    if detail == Detail::Full {
        skipped(out, &latency.skipped);
    }
}

/// Lists what a part could not measure.
pub(super) fn skipped(out: &mut Out, texts: &[String]) {
    for text in texts {
        out.warning(&format!("not measured: {text}"));
    }
}

fn plot(out: &mut Out, curve: &Curve<'_>, levels: &[Level]) {
    let drawn = plot::Curve {
        name: String::new(),
        points: curve
            .points
            .iter()
            .map(|p| (p.size_bytes as f64, p.ns))
            .collect(),
        look: Look::Line,
        ink: 0,
    };
    plot::write(
        out,
        &Picture {
            unit: "ns",
            remark: &curve.label,
            across: Across::Sizes,
            up: Up::Logarithmic,
            curves: &[drawn],
            rules: &[],
            ends: &levels
                .iter()
                .filter_map(|level| Some((level.size_bytes?, level.name.as_str())))
                .collect::<Vec<_>>(),
        },
    );
}

fn table(out: &mut Out, curves: &[Curve<'_>]) {
    let shown = &curves[..curves.len().min(COLUMNS)];
    if shown.is_empty() {
        out.note("no points");
        return;
    }
    out.blank();
    let sizes: BTreeSet<u64> = shown
        .iter()
        .flat_map(|curve| curve.points.iter().map(|p| p.size_bytes))
        .collect();
    let sizes: Vec<u64> = sizes.into_iter().collect();
    let step = sizes.len().div_ceil(MAX_ROWS).max(1);
    let letters = ["a", "b", "c", "d", "e"];
    let mut table = Table::new().figures("size");
    for letter in &letters[..shown.len()] {
        table = table.figures(&format!("{letter}: ns"));
    }
    let last = sizes.len().saturating_sub(1);
    for (index, size) in sizes.iter().enumerate() {
        if index % step != 0 && index != last {
            continue;
        }
        let mut row = vec![units::bytes(*size)];
        for curve in shown {
            row.push(
                curve
                    .points
                    .iter()
                    .find(|p| p.size_bytes == *size)
                    .map(|p| {
                        let mark = if p.batches.disturbed.unresolved() {
                            "*"
                        } else {
                            " "
                        };
                        format!("{}{mark}", units::number(p.ns))
                    })
                    .unwrap_or_default(),
            );
        }
        table.row(row);
    }
    out.table(&table);
    for (letter, curve) in letters.iter().zip(shown) {
        out.note(&format!("{letter}: {}", curve.label));
    }
    if shown
        .iter()
        .any(|c| c.points.iter().any(|p| p.batches.disturbed.unresolved()))
    {
        out.note("* disturbed; --json says by what");
    }
    if step > 1 {
        out.note(&format!("one size in {step} is shown; --json has all"));
    }
    if curves.len() > COLUMNS {
        out.note(&format!(
            "{} more in --json and --html",
            units::plural(curves.len() - COLUMNS, "curve")
        ));
    }
}

fn strides(out: &mut Out, latency: &Latency) {
    let Some(family) = facts::stride_families(latency).into_iter().next() else {
        return;
    };
    let mut sizes: Option<BTreeSet<u64>> = None;
    for (_, points) in &family.strides {
        let own: BTreeSet<u64> = points.iter().map(|p| p.size_bytes).collect();
        sizes = Some(match sizes {
            None => own,
            Some(common) => common.intersection(&own).copied().collect(),
        });
    }
    let sizes: Vec<u64> = sizes.unwrap_or_default().into_iter().collect();
    if sizes.is_empty() {
        return;
    }
    let step = sizes.len().div_ceil(COLUMNS).max(1);
    let columns: Vec<u64> = sizes.iter().rev().step_by(step).rev().copied().collect();
    out.heading("ns by stride", &family.label);
    let mut table = Table::new().figures("stride");
    for size in &columns {
        table = table.figures(&units::bytes(*size));
    }
    for (stride, points) in &family.strides {
        let mut row = vec![units::bytes(*stride)];
        for size in &columns {
            row.push(
                points
                    .iter()
                    .find(|p| p.size_bytes == *size)
                    .map(|p| units::number(p.ns))
                    .unwrap_or_default(),
            );
        }
        table.row(row);
    }
    out.table(&table);
}

/// One row per prefetch setting, and a sentence about the differences.
fn settings(out: &mut Out, family: &SettingFamily<'_>) {
    let sizes = family.sizes();
    let step = sizes.len().div_ceil(COLUMNS - 1).max(1);
    let columns: Vec<u64> = sizes.iter().rev().step_by(step).rev().copied().collect();
    out.heading("ns by prefetch setting", &family.label);
    let mut table = Table::new().words("setting");
    for size in &columns {
        table = table.figures(&units::bytes(*size));
    }
    table = table.figures("last : first");
    let first = columns
        .last()
        .and_then(|size| Some(family.at(*size).first()?.1.ns));
    for (title, points) in &family.settings {
        let at = |size: &u64| points.iter().find(|point| point.size_bytes == *size);
        let mut row = vec![title.clone()];
        for size in &columns {
            row.push(at(size).map(|p| units::number(p.ns)).unwrap_or_default());
        }
        let last = columns.last().and_then(at).map(|point| point.ns);
        let part = last
            .zip(first)
            .map(|(last, first)| units::number(last / first));
        row.push(part.unwrap_or_default());
        table.row(row);
    }
    out.table(&table);
    out.note(&family.reading());
}

fn taint(out: &mut Out, latency: &Latency) {
    let tainted: Vec<_> = latency
        .points
        .iter()
        .filter_map(|p| p.prefetch_taint.as_ref().map(|taint| (p, taint)))
        .collect();
    let strongest = tainted
        .iter()
        .min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio));
    if let Some((point, taint)) = strongest {
        out.note(&format!(
            "{} shortened by prefetchers, most of all {} at {} ({} of {})",
            units::plural(tainted.len(), "point"),
            point.pattern,
            units::bytes(point.size_bytes),
            units::percent(taint.ratio),
            taint.against,
        ));
    }
}
