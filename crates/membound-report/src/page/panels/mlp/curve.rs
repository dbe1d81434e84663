//! Curves of measured cells, for the charts of parallel and of sequential loads.

use membound_types::{Mlp, MlpCell, Outcome};

use crate::page::svg::{Look, Point, Series};
use crate::{facts, units};

pub(super) fn cell_point(x: u32, place: &str, cell: &MlpCell) -> Point {
    Point {
        x: f64::from(x),
        y: cell.cycles,
        tip: format!(
            "{place}: {} ± {}{}",
            units::cycles(cell.cycles),
            units::number(cell.spread),
            cell_misses(cell)
        ),
        ..Point::default()
    }
}

fn cell_misses(cell: &MlpCell) -> String {
    let Outcome::Known(misses) = &cell.misses else {
        return String::new();
    };
    let known: Vec<String> = [
        ("L1", &misses.l1),
        ("L2", &misses.l2),
        ("L3", &misses.l3),
        ("TLB", &misses.tlb),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!("{name} {}", units::number(*value.known()?))))
    .collect();
    if known.is_empty() {
        String::new()
    } else {
        format!("; misses: {}", known.join(", "))
    }
}

/// Curve of one run among several.
pub(super) fn curve_of(index: usize, run: &Mlp, points: Vec<Point>) -> Series {
    Series {
        label: facts::mlp_title(run),
        look: Look::category(index),
        shown: true,
        points,
    }
}
