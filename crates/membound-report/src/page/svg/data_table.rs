//! The table of values under a chart.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::axis::Axis;
use super::series::Series;

/// Most cells of the table under a chart; larger tables are thinned.
const MAX_CELLS: usize = 6000;

/// Values of a chart as a table that the reader can unfold.
#[derive(Clone, Debug, Default)]
pub(in crate::page) struct DataTable {
    pub(in crate::page) head: Vec<String>,
    pub(in crate::page) rows: Vec<Vec<String>>,
}

impl DataTable {
    pub(super) fn markup(&self) -> Markup {
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
pub(super) fn pivot(axis: &Axis, series: &[Series], value: fn(f64) -> String) -> DataTable {
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
