//! Matrices as heat maps; large ones are drawn in blocks.

use maud::{Markup, html};

use super::coordinate::coordinate;
use super::data_table::DataTable;
use crate::units;

/// Most rows and columns that are drawn; a larger matrix is drawn in blocks.
const MAX_CELLS_PER_SIDE: usize = 48;
/// Most rows and columns for which each cell shows its value.
const MAX_SIDE_WITH_VALUES: usize = 16;

/// A cell of a matrix.
#[derive(Clone, Debug)]
pub(in crate::page) struct Cell {
    pub(in crate::page) row: usize,
    pub(in crate::page) column: usize,
    pub(in crate::page) value: f64,
    pub(in crate::page) tip: String,
}

/// A matrix with names for its rows and columns.
#[derive(Clone, Debug)]
pub(in crate::page) struct HeatMap {
    pub(in crate::page) id: String,
    pub(in crate::page) title: String,
    pub(in crate::page) reading: String,
    pub(in crate::page) rows: Vec<String>,
    pub(in crate::page) columns: Vec<String>,
    pub(in crate::page) row_title: String,
    pub(in crate::page) column_title: String,
    pub(in crate::page) cells: Vec<Cell>,
    /// Formats a value with its unit.
    pub(in crate::page) format: fn(f64) -> String,
}

impl HeatMap {
    /// The figure; empty if no cell has a value.
    pub(in crate::page) fn markup(&self) -> Markup {
        let finite = || {
            self.cells
                .iter()
                .map(|cell| cell.value)
                .filter(|v| v.is_finite())
        };
        let low = finite().fold(f64::INFINITY, f64::min);
        let high = finite().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return html! {};
        }
        let block = self
            .rows
            .len()
            .max(self.columns.len())
            .div_ceil(MAX_CELLS_PER_SIDE)
            .max(1);
        let blocks = self.in_blocks(block);
        html! {
            figure.half id=(self.id) {
                figcaption {
                    b { (self.title) } " " span { (self.reading) }
                    @if block > 1 { span { " Each square is the mean of " (block) " × " (block) " cells." } }
                }
                (blocks.drawing(low, high))
                @if high > low {
                    div.scalebar aria-hidden="true" {
                        span { ((self.format)(low)) }
                        @for step in 0..9 { i class=(format!("h{step}")) {} }
                        span { ((self.format)(high)) }
                    }
                }
                (blocks.table().markup())
            }
        }
    }

    /// The matrix with `block` rows and columns merged.
    fn in_blocks(&self, block: usize) -> Self {
        if block <= 1 {
            return self.clone();
        }
        let names = |names: &[String]| -> Vec<String> {
            names
                .chunks(block)
                .map(|chunk| match chunk {
                    [only] => only.clone(),
                    [first, .., last] => format!("{first}–{last}"),
                    [] => String::new(),
                })
                .collect()
        };
        let (rows, columns) = (names(&self.rows), names(&self.columns));
        let mut sums = vec![(0.0, 0_u32); rows.len() * columns.len()];
        for cell in self.cells.iter().filter(|cell| cell.value.is_finite()) {
            let index = cell.row / block * columns.len() + cell.column / block;
            if let Some((sum, count)) = sums.get_mut(index) {
                *sum += cell.value;
                *count += 1;
            }
        }
        let cells = sums
            .into_iter()
            .enumerate()
            .filter(|(_, (_, count))| *count > 0)
            .map(|(index, (sum, count))| {
                let (row, column) = (index / columns.len(), index % columns.len());
                let value = sum / f64::from(count);
                Cell {
                    row,
                    column,
                    value,
                    tip: format!(
                        "{} {}, {} {}: mean {}",
                        self.row_title,
                        rows[row],
                        self.column_title,
                        columns[column],
                        (self.format)(value)
                    ),
                }
            })
            .collect();
        Self {
            rows,
            columns,
            cells,
            ..self.clone()
        }
    }

    fn drawing(&self, low: f64, high: f64) -> Markup {
        let (width, left, top) = (530.0, 76.0, 44.0);
        let side = ((width - left - 16.0) / self.columns.len().max(1) as f64).min(84.0);
        let height = top + side.min(60.0) * self.rows.len() as f64 + 10.0;
        let tall = side.min(60.0);
        let written = self.rows.len().max(self.columns.len()) <= MAX_SIDE_WITH_VALUES;
        let every = (26.0 / side).ceil().max(1.0) as usize;
        let every_row = (14.0 / tall).ceil().max(1.0) as usize;
        let label = format!("{}. {}", self.title, self.reading);
        let tone = |value: f64| {
            if high > low {
                // Logarithmic colours, because latencies between near and far cores differ by factors.
                let share = if low > 0.0 {
                    (value / low).ln() / (high / low).ln()
                } else {
                    (value - low) / (high - low)
                };
                (share.clamp(0.0, 1.0) * 8.0).round() as u8
            } else {
                2
            }
        };
        html! {
            svg.chart.heat viewBox=(format!("0 0 {width} {}", coordinate(height))) role="img" aria-label=(label) tabindex="0" {
                text.title x="4" y="14" { (self.row_title) " ↓  " (self.column_title) " →" }
                g.xt {
                    @for (index, name) in self.columns.iter().enumerate().step_by(every) {
                        text x=(coordinate(left + side * (index as f64 + 0.5))) y=(coordinate(top - 8.0)) { (name) }
                    }
                }
                g.yt {
                    @for (index, name) in self.rows.iter().enumerate().step_by(every_row) {
                        text x=(coordinate(left - 8.0)) y=(coordinate(top + tall * (index as f64 + 0.5) + 4.0)) { (name) }
                    }
                }
                g.s data-n="" {
                    g.p {
                        @for cell in self.cells.iter().filter(|cell| cell.value.is_finite()) {
                            rect class=(format!("h{}", tone(cell.value)))
                                x=(coordinate(left + side * cell.column as f64 + 0.5))
                                y=(coordinate(top + tall * cell.row as f64 + 0.5))
                                width=(coordinate((side - 1.0).max(1.0)))
                                height=(coordinate((tall - 1.0).max(1.0))) { title { (cell.tip) } }
                        }
                    }
                }
                @if written {
                    g.values {
                        @for cell in self.cells.iter().filter(|cell| cell.value.is_finite()) {
                            text class=(format!("t{}", tone(cell.value)))
                                x=(coordinate(left + side * (cell.column as f64 + 0.5)))
                                y=(coordinate(top + tall * (cell.row as f64 + 0.5) + 4.0)) { (units::number(cell.value)) }
                        }
                    }
                }
            }
        }
    }

    fn table(&self) -> DataTable {
        let mut rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|name| {
                let mut row = vec![String::new(); self.columns.len() + 1];
                row[0] = name.clone();
                row
            })
            .collect();
        for cell in &self.cells {
            if let Some(slot) = rows
                .get_mut(cell.row)
                .and_then(|row| row.get_mut(cell.column + 1))
            {
                *slot = units::number(cell.value);
            }
        }
        DataTable {
            head: std::iter::once(self.row_title.clone())
                .chain(self.columns.iter().cloned())
                .collect(),
            rows,
        }
    }
}
