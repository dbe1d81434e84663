//! A figure of a profile, its label and interval, and the list to which every part adds its figures.

use membound_types::Worse;

use crate::compare::noise::{Noise, Uncertain};
use crate::stats::Z95;
use crate::stats::{median, median_error};

/// A named figure of one profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileFigure {
    /// Stable name with dots, as in the module's description.
    pub name: String,
    /// Part of the profile that the figure is from.
    pub part: &'static str,
    /// Name for readers.
    pub title: String,
    /// `ns`, `cycles`, `bytes`, `GB/s` or `Hz`; empty for a number without unit.
    pub unit: &'static str,
    /// Direction of change that is worse.
    pub worse: Worse,
    /// Value, interval, and kind for the scatter between runs.
    pub uncertain: Uncertain,
}

/// Collects figures; values that are not finite are omitted.
pub(super) struct Figures(pub(super) Vec<ProfileFigure>);

/// Everything about a figure except its value.
pub(super) struct Label {
    pub(super) name: String,
    pub(super) part: &'static str,
    pub(super) title: String,
    pub(super) unit: &'static str,
    pub(super) noise: Noise,
}

impl Figures {
    pub(super) fn add(&mut self, label: Label, value: f64, interval: Option<(f64, f64)>) {
        if value.is_finite() {
            self.0.push(ProfileFigure {
                name: label.name,
                part: label.part,
                title: label.title,
                unit: label.unit,
                worse: label.noise.worse(label.unit),
                uncertain: Uncertain {
                    value,
                    interval: interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
                    noise: label.noise,
                },
            });
        }
    }
}

/// Relative standard error of the median of a few batches; `None` with fewer than two.
pub(super) fn relative_error(raw: &[f64]) -> Option<f64> {
    let middle = median(raw)?;
    let error = median_error(raw)?;
    (middle > 0.0).then_some(error / middle)
}

pub(super) fn around(value: f64, error: f64) -> (f64, f64) {
    (
        value * (1.0 - Z95 * error).max(0.0),
        value * (1.0 + Z95 * error),
    )
}
