//! `latency` on a terminal: families of curves as pictures, all curves as a table.

use std::collections::BTreeSet;

use membound_types::{Latency, LatencyPoint, Level, MachineInfo};

use super::detail::Detail;
use super::out::Out;
use super::plot;
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
    pictures(out, &curves, levels, detail);
    if detail == Detail::Full {
        table(out, &curves);
        strides(out, latency, levels);
        for family in facts::setting_families(latency) {
            settings(out, &family, levels);
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

/// Draws the main curve with all curves that differ from it in one condition only, one picture for each
/// kind of difference. Strides and prefetch settings are drawn beside their tables.
fn pictures(out: &mut Out, curves: &[Curve<'_>], levels: &[Level], detail: Detail) {
    let Some(main) = curves.first() else {
        return;
    };
    let plain = |curve: &&Curve<'_>| curve.main && curve.key.prefetch == main.key.prefetch;
    let (alike, patterns): (Vec<&Curve<'_>>, Vec<&Curve<'_>>) = curves[1..]
        .iter()
        .filter(plain)
        .partition(|curve| curve.key.pattern == main.key.pattern);
    let drawn = |others: &[&Curve<'_>]| -> Vec<Drawn> {
        let all: Vec<&Curve<'_>> = std::iter::once(main)
            .chain(others.iter().copied())
            .collect();
        all.into_iter()
            .map(|curve| Drawn {
                title: curve.label.clone(),
                points: places(&curve.points),
            })
            .collect()
    };
    overlay(out, "", drawn(&alike), levels);
    if detail == Detail::Full && !patterns.is_empty() {
        out.blank();
        overlay(out, "", drawn(&patterns), levels);
    }
}

/// One curve of an overlay: its title, and nanoseconds over bytes.
struct Drawn {
    title: String,
    points: Vec<(f64, f64)>,
}

fn places(points: &[&LatencyPoint]) -> Vec<(f64, f64)> {
    points
        .iter()
        .map(|point| (point.size_bytes as f64, point.ns))
        .collect()
}

/// Draws curves over each other in one picture, with their names where they end; `remark` precedes the
/// conditions that all titles have in common. False if there are too few points for a picture.
fn overlay(out: &mut Out, remark: &str, mut curves: Vec<Drawn>, levels: &[Level]) -> bool {
    let left_out = curves.len().saturating_sub(plot::MAX_NAMES);
    curves.truncate(plot::MAX_NAMES);
    let (common, titles) = common_words(&curves);
    let remark: Vec<&str> = [remark, common.as_str()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let legend = plot::legend(&titles, out.width());
    let drawn: Vec<plot::Curve> = curves
        .into_iter()
        .zip(legend.names)
        .enumerate()
        .map(|(ink, (curve, name))| plot::Curve::line(name, curve.points, ink))
        .collect();
    let ends: Vec<(u64, &str)> = levels
        .iter()
        .filter_map(|level| Some((level.size_bytes?, level.name.as_str())))
        .collect();
    if !plot::over_sizes(out, "ns", &remark.join("; "), &drawn, &ends) {
        return false;
    }
    for line in legend.lines {
        out.note(&line);
    }
    if left_out > 0 {
        out.note(&format!(
            "{} more in --json and --html",
            units::plural(left_out, "curve")
        ));
    }
    true
}

/// The conditions that all titles have in common, and each title without them. A single title is
/// common as a whole.
fn common_words(curves: &[Drawn]) -> (String, Vec<String>) {
    let words =
        |curve: &Drawn| -> Vec<String> { curve.title.split(", ").map(str::to_owned).collect() };
    let all: Vec<Vec<String>> = curves.iter().map(words).collect();
    let is_common = |word: &String| all.iter().all(|words| words.contains(word));
    let common: Vec<String> = all
        .first()
        .map(|words| {
            words
                .iter()
                .filter(|word| is_common(word))
                .cloned()
                .collect()
        })
        .unwrap_or_default();
    let own = |words: &Vec<String>| -> String {
        let own: Vec<&str> = words
            .iter()
            .filter(|word| !common.contains(word))
            .map(String::as_str)
            .collect();
        own.join(", ")
    };
    (common.join(", "), all.iter().map(own).collect())
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

fn strides(out: &mut Out, latency: &Latency, levels: &[Level]) {
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
    let drawn = family.strides.iter().map(|(stride, points)| Drawn {
        title: units::bytes(*stride),
        points: places(points),
    });
    if overlay(out, "each curve a stride", drawn.collect(), levels) {
        out.blank();
    }
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

/// A picture and a table with one curve or row per prefetch setting, and a sentence about the differences.
fn settings(out: &mut Out, family: &SettingFamily<'_>, levels: &[Level]) {
    let sizes = family.sizes();
    let step = sizes.len().div_ceil(COLUMNS - 1).max(1);
    let columns: Vec<u64> = sizes.iter().rev().step_by(step).rev().copied().collect();
    out.heading("ns by prefetch setting", &family.label);
    let drawn = family.settings.iter().map(|(title, points)| Drawn {
        title: title.clone(),
        points: places(points),
    });
    if overlay(out, "each curve a setting", drawn.collect(), levels) {
        out.blank();
    }
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
