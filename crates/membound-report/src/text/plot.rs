//! Values over sizes as a picture in braille, both axes logarithmic, with the ends of the
//! levels below.

use textwrap::core::display_width;

use super::braille::Plot;
use super::out::Out;
use crate::units;

const ROWS: usize = 10;
const MARGIN: usize = 8;
const MOST_COLUMNS: usize = 70;
/// Values of a curve below which there is no picture in it.
const FEWEST: usize = 4;

/// What is drawn. Values that are no positive finite numbers are left out.
pub(super) struct SizePlot<'a> {
    /// Unit of the values.
    pub(super) unit: &'a str,
    /// What the picture shows.
    pub(super) remark: &'a str,
    /// Curves as (bytes, value), each by rising bytes, drawn as lines.
    pub(super) joined: &'a [Vec<(f64, f64)>],
    /// Values as (bytes, value), each drawn as a dot.
    pub(super) single: &'a [(f64, f64)],
    /// Where levels end, in bytes, and their names.
    pub(super) ends: &'a [(u64, &'a str)],
}

/// Writes the picture; nothing where there are too few values, or all at one size.
pub(super) fn write(out: &mut Out, picture: &SizePlot<'_>) {
    let joined: Vec<Vec<(f64, f64)>> = picture.joined.iter().map(|c| logarithms(c)).collect();
    let single = logarithms(picture.single);
    let all = || joined.iter().flatten().chain(&single);
    let extent = |value: fn(&(f64, f64)) -> f64| {
        all().map(value).fold(None, |ends: Option<(f64, f64)>, v| {
            Some(ends.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        })
    };
    let (Some((first, last)), Some((low, high))) = (extent(|p| p.0), extent(|p| p.1)) else {
        return;
    };
    if joined.iter().all(|curve| curve.len() < FEWEST) || last <= first {
        return;
    }
    let (low, high) = if high - low < 0.1 {
        (low - 0.1, high + 0.1)
    } else {
        (low, high)
    };
    let columns = (out.width() - MARGIN - 2).min(MOST_COLUMNS);
    let across = |x: f64| (x - first) / (last - first);
    let place = |p: &(f64, f64)| (across(p.0), (p.1 - low) / (high - low));
    let mut plot = Plot::new(columns, ROWS);
    for curve in &joined {
        plot.curve(&curve.iter().map(place).collect::<Vec<_>>());
    }
    for point in &single {
        plot.curve(&[place(point)]);
    }
    let unit = format!("{:>MARGIN$}", picture.unit);
    let head = format!("{unit}  ({})", picture.remark);
    let fits = display_width(&head) <= out.width();
    let mut lines = vec![if fits { head } else { unit }];
    for (row, line) in plot.lines().into_iter().enumerate() {
        let label = round_value(low, high, row);
        lines.push(format!("{label:>MARGIN$} │{line}"));
    }
    lines.push(format!("{:>MARGIN$} └{}", "", "─".repeat(columns)));
    lines.push(format!(
        "{:>MARGIN$}  {}",
        "",
        size_axis(first, last, columns)
    ));
    if let Some(marks) = level_marks(picture.ends, columns, across) {
        lines.push(format!("{:>MARGIN$}  {marks}", "ends"));
    }
    out.verbatim(&lines);
}

fn logarithms(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    points
        .iter()
        .filter(|(x, y)| x.is_finite() && *x > 0.0 && y.is_finite() && *y > 0.0)
        .map(|(x, y)| (x.log2(), y.log10()))
        .collect()
}

/// The 1, 2 or 5 times a power of ten that lies in a row of the plot, if one does; both
/// ends are decimal logarithms.
fn round_value(low: f64, high: f64, row: usize) -> String {
    let height = (high - low) / ROWS as f64;
    let bottom = high - height * (row + 1) as f64;
    let factors: &[f64] = if height < 0.2 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0, 3.0]
    };
    (-3..=6)
        .flat_map(|decade| factors.iter().map(move |f| f * 10_f64.powi(decade)))
        .find(|value| (bottom..bottom + height).contains(&value.log10()))
        .map(units::compact)
        .unwrap_or_default()
}

fn size_axis(first: f64, last: f64, columns: usize) -> String {
    let mut axis = Labels::new(columns);
    let mut exponent = (first.ceil() as i32 + 1) / 2 * 2;
    while f64::from(exponent) <= last {
        let share = (f64::from(exponent) - first) / (last - first);
        let size = 2_f64.powi(exponent) as u64;
        axis.place(
            share,
            &units::bytes(size).replace(' ', "").replace("iB", ""),
        );
        exponent += 2;
    }
    axis.text()
}

fn level_marks(
    ends: &[(u64, &str)],
    columns: usize,
    across: impl Fn(f64) -> f64,
) -> Option<String> {
    let mut marks = Labels::new(columns);
    for (size, name) in ends {
        let share = across((*size as f64).log2());
        if (0.0..=1.0).contains(&share) {
            marks.place(share, &format!("▲{}", super::out::clean(name)));
        }
    }
    let text = marks.text();
    (!text.is_empty()).then_some(text)
}

/// Short texts on one line, each at its place unless another stands there already.
struct Labels {
    cells: Vec<char>,
}

impl Labels {
    fn new(columns: usize) -> Self {
        Self {
            cells: vec![' '; columns],
        }
    }

    fn place(&mut self, share: f64, text: &str) {
        let start = (share * (self.cells.len().saturating_sub(1)) as f64).round() as usize;
        let length = text.chars().count();
        let end = start + length;
        let free_from = start.saturating_sub(1);
        if end > self.cells.len() || self.cells[free_from..end].iter().any(|c| *c != ' ') {
            return;
        }
        for (cell, c) in self.cells[start..end].iter_mut().zip(text.chars()) {
            *cell = c;
        }
    }

    fn text(&self) -> String {
        self.cells.iter().collect::<String>().trim_end().to_owned()
    }
}
