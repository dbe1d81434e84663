//! `window` on a terminal: time per window over areas.

use std::collections::BTreeSet;

use membound_types::{Window, WindowKernel};

use super::Detail;
use super::latency::skipped;
use super::out::Out;
use super::table::Table;
use crate::units;

const ROWS: usize = 24;
const BRIEF_ROWS: usize = 5;

pub(super) fn write(out: &mut Out, window: &Window, detail: Detail) {
    out.heading(
        "windows",
        &format!(
            "{} in {}; time per window",
            units::plural(window.points.len(), "point"),
            units::seconds(window.elapsed_s)
        ),
    );
    for kernel in WindowKernel::ALL {
        for split in [false, true] {
            if detail == Detail::Brief && (kernel != WindowKernel::Scalar || split) {
                continue;
            }
            table(out, window, kernel, split, detail);
        }
    }
    if detail == Detail::Full {
        skipped(out, &window.skipped);
    }
}

/// One kernel: areas down, window sizes across. `split` chooses the points whose area
/// another CPU initialised.
fn table(out: &mut Out, window: &Window, kernel: WindowKernel, split: bool, detail: Detail) {
    let points: Vec<_> = window
        .points
        .iter()
        .filter(|p| p.kernel == kernel && p.init_cpu.is_some() == split)
        .collect();
    if points.is_empty() {
        return;
    }
    let sizes: BTreeSet<u64> = points.iter().map(|p| p.window_bytes).collect();
    let areas: BTreeSet<u64> = points.iter().map(|p| p.area_bytes).collect();
    if detail == Detail::Full {
        out.blank();
        let where_from = if split {
            ", initialised by another CPU"
        } else {
            ""
        };
        out.line(&format!("{kernel}{where_from}"));
    }
    let mut table = Table::new().figures("area");
    for size in &sizes {
        table = table.figures(&units::bytes(*size));
    }
    let rows = if detail == Detail::Full {
        ROWS
    } else {
        BRIEF_ROWS
    };
    // Areas are multiples of the window, so that not every size has every area.
    let has_all = |area: u64| {
        sizes.iter().all(|size| {
            points
                .iter()
                .any(|p| p.window_bytes == *size && p.area_bytes == area)
        })
    };
    let common: Vec<u64> = areas
        .iter()
        .copied()
        .filter(|area| has_all(*area))
        .collect();
    let areas: Vec<u64> = if common.len() * 2 >= areas.len() {
        common
    } else {
        areas.into_iter().collect()
    };
    let step = areas.len().div_ceil(rows).max(1);
    for area in areas.iter().rev().step_by(step).rev() {
        let mut row = vec![units::bytes(*area)];
        for size in &sizes {
            row.push(
                points
                    .iter()
                    .find(|p| p.window_bytes == *size && p.area_bytes == *area)
                    .map(|p| units::seconds(p.seconds_per_window))
                    .unwrap_or_default(),
            );
        }
        table.row(row);
    }
    out.table(&table);
    if step > 1 && detail == Detail::Full {
        out.note(&format!("one area in {step} is shown; --json has all"));
    }
}
