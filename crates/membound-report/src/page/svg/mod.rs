//! Charts as inline SVG: axes, curves, grouped bars and heat maps.
//!
//! Everything is drawn in units of a view box, and coloured by classes that the style sheet defines for
//! both colour schemes. A value that is not finite (or not positive on a logarithmic axis) is left out; no
//! coordinate is ever `NaN` or infinite.

mod axis;
mod bars;
mod chart;
mod heat;
mod labels;
mod steps;

use std::collections::BTreeMap;

use maud::{Markup, html};

use axis::Tick;

pub(super) use axis::{Axis, Scale};
pub(super) use bars::{Bar, BarGroup, Bars};
pub(super) use chart::{Chart, Look, Mark, MarkKind, Point, Rule, Series};
pub(super) use heat::{Cell, HeatMap};

/// Width of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Full width of the page.
    Full,
    /// Half width: two side by side if there is room.
    Half,
}

impl Extent {
    const fn class(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Half => "half",
        }
    }

    const fn size(self) -> (f64, f64) {
        match self {
            Self::Full => (860.0, 470.0),
            Self::Half => (530.0, 350.0),
        }
    }
}

/// Rectangle within the axes, in units of the view box.
#[derive(Clone, Copy, Debug)]
struct PlotArea {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Most cells of the table under a chart; larger tables are thinned.
const MAX_CELLS: usize = 6000;

/// Values of a chart as a table that the reader can unfold.
#[derive(Clone, Debug, Default)]
pub(super) struct DataTable {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl DataTable {
    fn markup(&self) -> Markup {
        let columns = self.head.len().max(1);
        let step = (self.rows.len() * columns).div_ceil(MAX_CELLS).max(1);
        html! {
            details.data {
                summary { "data" }
                @if step > 1 { p { "One row in " (step) " is shown; the JSON has all." } }
                div.scroll tabindex="0" role="group" aria-label="table" {
                    table {
                        thead { tr { @for cell in &self.head { th scope="col" { (cell) } } } }
                        tbody {
                            @for row in self.rows.iter().step_by(step) {
                                tr {
                                    @for (index, cell) in row.iter().enumerate() {
                                        @if index == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Table with a row per x and a column per curve.
fn pivot(axis: &Axis, series: &[Series], value: fn(f64) -> String) -> DataTable {
    let mut rows: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (column, curve) in series.iter().enumerate() {
        for point in curve
            .points
            .iter()
            .filter(|p| p.x.is_finite() && p.x >= 0.0)
        {
            // Bit patterns of finite, non-negative numbers have the order of the numbers.
            let row = rows
                .entry(point.x.to_bits())
                .or_insert_with(|| vec![String::new(); series.len()]);
            let mark = if point.hollow { "*" } else { "" };
            row[column] = format!("{}{mark}", value(point.y));
        }
    }
    DataTable {
        head: std::iter::once(axis.title.clone())
            .chain(series.iter().map(|curve| curve.label.clone()))
            .collect(),
        rows: rows
            .into_iter()
            .map(|(x, mut cells)| {
                cells.insert(0, (axis.format)(f64::from_bits(x)));
                cells
            })
            .collect(),
    }
}

/// Horizontal lines across the plot at the ticks of a vertical axis.
fn lines_across(ticks: &[Tick], left: f64, right: f64) -> Markup {
    html! {
        @for tick in ticks {
            path d=(format!("M{} {}H{}", coordinate(left), coordinate(tick.at), coordinate(right))) {}
        }
    }
}

/// Labels at the ticks of a vertical axis, left of the plot, and its title above.
fn labels_left(axis: &Axis, ticks: &[Tick], left: f64) -> Markup {
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

/// Formats a coordinate with one decimal, none if it is zero.
pub(super) fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Shapes of markers, once per page; charts refer to them.
pub(super) fn definitions() -> Markup {
    html! {
        svg.defs width="0" height="0" aria-hidden="true" {
            defs {
                circle id="m0" r="2.6" {}
                circle id="ms" r="1.1" {}
                path id="m1" d="M-2.4-2.4h4.8v4.8h-4.8z" {}
                path id="m2" d="M0-3.3L3 2.2H-3z" {}
                path id="m3" d="M0-3.4L3.4 0 0 3.4-3.4 0z" {}
            }
        }
    }
}
