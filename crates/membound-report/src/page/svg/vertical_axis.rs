//! Draws the lines, labels and title of a vertical axis, for charts and bars.

use maud::{Markup, html};

use super::axis::{Axis, Tick};
use super::coordinate::coordinate;

/// Horizontal lines across the plot at the ticks of a vertical axis.
pub(super) fn lines_across(ticks: &[Tick], left: f64, right: f64) -> Markup {
    html! {
        @for tick in ticks {
            path d=(format!("M{} {}H{}", coordinate(left), coordinate(tick.at), coordinate(right))) {}
        }
    }
}

/// Labels at the ticks of a vertical axis, left of the plot, and its title above.
pub(super) fn labels_left(axis: &Axis, ticks: &[Tick], left: f64) -> Markup {
    html! {
        g.yt {
            @for tick in ticks {
                text class=[(!tick.sparse).then_some("w")] x=(coordinate(left - 7.0)) y=(coordinate(tick.at + 4.0)) {
                    ((axis.format)(tick.value))
                }
            }
        }
        text.title x="4" y="16" { (axis.title) }
    }
}
