//! The part `window` on a terminal: time per window over areas, and the rate of sign changes.

use std::collections::BTreeSet;

use membound_types::{Window, WindowKernel, WindowPoint};

use super::detail::Detail;
use super::latency::skipped;
use super::out::Out;
use super::plot;
use super::table::{Align, Table};
use crate::facts::windows::{self, Series};
use crate::units;

const ROWS: usize = 24;
const BRIEF_ROWS: usize = 5;
/// Most curves in a picture: more would hide each other.
const MAX_CURVES: usize = 6;

pub(super) fn write(out: &mut Out, window: &Window, detail: Detail) {
    out.heading(
        "windows",
        &format!(
            "{} in {}; time per window",
            units::plural(window.points.len(), "point"),
            units::seconds(window.elapsed_s)
        ),
    );
    let series = windows::series(window);
    for one in &series {
        if detail == Detail::Brief
            && (one.kernel() != WindowKernel::Scalar || !one.is_plain(&series[0]))
        {
            continue;
        }
        table(out, one, &series, detail);
    }
    if detail == Detail::Full {
        if !series.is_empty() {
            out.note(
                "MFLOPS: 10^6 sign changes of doubles a second, of which a window has one for \
                 every 8 bytes",
            );
        }
        skipped(out, &window.skipped);
    }
}

/// Picture and table of one series: in the table one row per area; for each window size the time and the rate.
fn table(out: &mut Out, series: &Series<'_>, all: &[Series<'_>], detail: Detail) {
    if detail == Detail::Full {
        out.blank();
        out.line(&series.title(all));
    }
    let sizes: BTreeSet<u64> = series.points.iter().map(|p| p.window_bytes).collect();
    if detail == Detail::Full && picture(out, series, &sizes) {
        out.blank();
    }
    let rows = series.by_area();
    let most = if detail == Detail::Full {
        ROWS
    } else {
        BRIEF_ROWS
    };
    let mut table = Table::new().figures("area");
    for size in &sizes {
        table = table.figures(&units::bytes(*size));
    }
    if detail == Detail::Full {
        for (rank, size) in (1..).zip(&sizes) {
            let title = match sizes.len() {
                1 => "MFLOPS".to_owned(),
                _ => format!("MFLOPS {}", units::bytes(*size)),
            };
            table = table.column(&title, Align::Right, rank);
        }
    }
    let step = rows.len().div_ceil(most).max(1);
    for row in rows.iter().rev().step_by(step).rev() {
        let of_size = |size: &u64| row.points.iter().find(|p| p.window_bytes == *size);
        let cells = |text: fn(&WindowPoint) -> String| -> Vec<String> {
            sizes
                .iter()
                .map(|size| of_size(size).map(|p| text(p)).unwrap_or_default())
                .collect()
        };
        let mut line = vec![units::bytes(row.area_bytes)];
        line.extend(cells(|p| units::seconds(p.seconds_per_window)));
        if detail == Detail::Full {
            line.extend(cells(|p| units::number(windows::mflops(p))));
        }
        table.row(line);
    }
    out.table(&table);
    if step > 1 && detail == Detail::Full {
        out.note(&format!("one area in {step} is shown; --json has all"));
    }
}

/// Draws the measured times over the areas, one curve for each window size. False if there are too few
/// points for a picture.
fn picture(out: &mut Out, series: &Series<'_>, sizes: &BTreeSet<u64>) -> bool {
    // Of many window sizes show the smallest, and others at even steps.
    let step = sizes.len().div_ceil(MAX_CURVES).max(1);
    let drawn: Vec<plot::Curve> = sizes
        .iter()
        .step_by(step)
        .enumerate()
        .map(|(ink, size)| {
            let points = series
                .points
                .iter()
                .filter(|point| point.window_bytes == *size)
                .map(|point| (point.area_bytes as f64, point.seconds_per_window * 1e9))
                .collect();
            plot::Curve::line(units::bytes(*size), points, ink)
        })
        .collect();
    let remark = "per window of a size, over the area; as measured";
    plot::over_sizes(out, "ns", remark, &drawn, &[])
}
