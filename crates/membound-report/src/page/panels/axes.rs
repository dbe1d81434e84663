//! Axes of sizes and of plain numbers, for the charts of panels.

use crate::page::svg::{Axis, Scale};
use crate::units;

pub(super) fn size_axis(title: &str) -> Axis {
    Axis {
        title: title.to_owned(),
        scale: Scale::Log2,
        format: size_text,
    }
}

pub(super) fn number_axis(title: &str, scale: Scale) -> Axis {
    Axis {
        title: title.to_owned(),
        scale,
        format: units::compact,
    }
}

fn size_text(value: f64) -> String {
    units::bytes(value.max(0.0).round() as u64)
}
