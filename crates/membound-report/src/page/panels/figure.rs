//! Figures in the text and tables of panels.

use maud::{Markup, html};
use membound_types::{Figure, Outcome};

use crate::{facts, units};

/// Text of a figure, or the reason why it is missing.
pub(super) fn figure_text(outcome: &Outcome<f64>, with_unit: fn(f64) -> String) -> String {
    match outcome {
        Outcome::Known(value) => with_unit(*value),
        Outcome::Missing { not_measured } => facts::missing_text(not_measured),
    }
}

/// A figure with its interval.
pub(super) fn value_interval(figure: &Figure) -> Markup {
    html! { b { (units::number(figure.value)) } " " small { (units::interval(figure.low, figure.high)) } }
}
