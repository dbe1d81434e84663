//! Levels as marks, for the charts of panels.

use membound_types::Level;

use crate::page::svg::{Mark, MarkKind};
use crate::units;

/// Levels as marks on an axis of sizes; with `declared`, also their declared sizes.
pub(super) fn level_marks(levels: &[Level], declared: bool) -> Vec<Mark> {
    let mut marks: Vec<Mark> = levels
        .iter()
        .filter_map(|level| {
            let size = level.size_bytes?;
            Some(Mark {
                kind: MarkKind::Found,
                x: size as f64,
                interval: level
                    .size_low_bytes
                    .zip(level.size_high_bytes)
                    .map(|(low, high)| (low as f64, high as f64)),
                name: level.name.clone(),
                detail: units::bytes(size),
            })
        })
        .collect();
    if declared {
        marks.extend(levels.iter().filter_map(|level| {
            let size = level.declared_bytes?;
            Some(Mark {
                kind: MarkKind::Declared,
                x: size as f64,
                interval: None,
                name: String::new(),
                detail: format!("{} declared {}", level.name, units::bytes(size)),
            })
        }));
    }
    marks
}
