//! `latency` on a terminal: the main curve as a picture, all curves as a table.

use std::collections::BTreeSet;

use membound_types::{Latency, Level, MachineInfo};

use super::Detail;
use super::braille::Plot;
use super::out::Out;
use super::table::Table;
use crate::facts::{self, Curve};
use crate::units;

/// Curves beside each other in the table.
const COLUMNS: usize = 5;
/// Rows that a table may have.
const ROWS: usize = 26;
const PLOT_ROWS: usize = 10;
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

/// What a part could not have.
pub(super) fn skipped(out: &mut Out, texts: &[String]) {
    for text in texts {
        out.warning(&format!("not measured: {text}"));
    }
}

fn plot(out: &mut Out, curve: &Curve<'_>, levels: &[Level]) {
    let points: Vec<(f64, f64)> = curve
        .points
        .iter()
        .filter(|p| p.ns.is_finite() && p.ns > 0.0 && p.size_bytes > 0)
        .map(|p| ((p.size_bytes as f64).log2(), p.ns.log10()))
        .collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return;
    };
    if points.len() < 4 || last.0 <= first.0 {
        return;
    }
    let low = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = if high - low < 0.1 {
        (low - 0.1, high + 0.1)
    } else {
        (low, high)
    };
    let margin = 8;
    let columns = (out.width() - margin - 2).min(70);
    let across = |x: f64| (x - first.0) / (last.0 - first.0);
    let mut plot = Plot::new(columns, PLOT_ROWS);
    plot.curve(
        &points
            .iter()
            .map(|p| (across(p.0), (p.1 - low) / (high - low)))
            .collect::<Vec<_>>(),
    );
    let mut lines = vec![format!("{:>margin$}  ({})", "ns", curve.label)];
    for (row, line) in plot.lines().into_iter().enumerate() {
        let label = round_value(low, high, row);
        lines.push(format!("{label:>margin$} │{line}"));
    }
    lines.push(format!("{:>margin$} └{}", "", "─".repeat(columns)));
    lines.push(format!(
        "{:>margin$}  {}",
        "",
        size_axis(first.0, last.0, columns)
    ));
    if let Some(marks) = level_marks(levels, columns, across) {
        lines.push(format!("{:>margin$}  {marks}", "ends"));
    }
    out.verbatim(&lines);
}

/// The 1, 2 or 5 times a power of ten that lies in a row of the plot, if one does; both
/// ends are decimal logarithms.
fn round_value(low: f64, high: f64, row: usize) -> String {
    let height = (high - low) / PLOT_ROWS as f64;
    let bottom = high - height * (row + 1) as f64;
    let factors: &[f64] = if height < 0.2 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0, 3.0]
    };
    (-3..=6)
        .flat_map(|decade| factors.iter().map(move |f| f * 10_f64.powi(decade)))
        .find(|value| (bottom..bottom + height).contains(&value.log10()))
        .map(units::compact)
        .unwrap_or_default()
}

fn size_axis(first: f64, last: f64, columns: usize) -> String {
    let mut axis = Labels::new(columns);
    let mut exponent = (first.ceil() as i32 + 1) / 2 * 2;
    while f64::from(exponent) <= last {
        let share = (f64::from(exponent) - first) / (last - first);
        let size = 2_f64.powi(exponent) as u64;
        axis.place(
            share,
            &units::bytes(size).replace(' ', "").replace("iB", ""),
        );
        exponent += 2;
    }
    axis.text()
}

fn level_marks(levels: &[Level], columns: usize, across: impl Fn(f64) -> f64) -> Option<String> {
    let mut marks = Labels::new(columns);
    for level in levels {
        if let Some(size) = level.size_bytes {
            let share = across((size as f64).log2());
            if (0.0..=1.0).contains(&share) {
                marks.place(share, &format!("▲{}", super::out::clean(&level.name)));
            }
        }
    }
    let text = marks.text();
    (!text.is_empty()).then_some(text)
}

/// Short texts on one line, each at its place unless another stands there already.
struct Labels {
    cells: Vec<char>,
}

impl Labels {
    fn new(columns: usize) -> Self {
        Self {
            cells: vec![' '; columns],
        }
    }

    fn place(&mut self, share: f64, text: &str) {
        let start = (share * (self.cells.len().saturating_sub(1)) as f64).round() as usize;
        let length = text.chars().count();
        let end = start + length;
        let free_from = start.saturating_sub(1);
        if end > self.cells.len() || self.cells[free_from..end].iter().any(|c| *c != ' ') {
            return;
        }
        for (cell, c) in self.cells[start..end].iter_mut().zip(text.chars()) {
            *cell = c;
        }
    }

    fn text(&self) -> String {
        self.cells.iter().collect::<String>().trim_end().to_owned()
    }
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
    let step = sizes.len().div_ceil(ROWS).max(1);
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
