//! Draws curves in braille: over sizes or numbers, with the ends of levels below and the curves' names at
//! their ends.

use textwrap::core::display_width;

use super::braille::{Ink, Plot};
use super::clean::clean;
use super::out::Out;
use crate::units;

const ROWS: usize = 10;
const MARGIN: usize = 8;
const MAX_COLUMNS: usize = 110;
/// Fewest columns of a picture beside the names of its curves.
const MIN_COLUMNS: usize = 24;
/// Fewest values of a curve for a picture.
const MIN_POINTS: usize = 4;

/// Horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Across {
    /// Bytes, on a logarithmic axis.
    Sizes,
    /// Numbers, on a linear axis from the smallest to the largest.
    Numbers,
}

/// Scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Up {
    /// Logarithmic scale.
    Logarithmic,
    /// Linear, from zero on.
    FromZero,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// As a line through its points.
    Line,
    /// As one dot per point.
    Dots,
}

/// One curve.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// Name at the end of the curve; may be empty.
    pub(super) name: String,
    /// Points (place, value), by rising place.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) look: Look,
    /// Index of the colour; curves that belong together share one.
    pub(super) ink: usize,
}

impl Curve {
    /// A line through `points`, which come in any order.
    pub(super) fn line(name: String, mut points: Vec<(f64, f64)>, ink: usize) -> Self {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self {
            name,
            points,
            look: Look::Line,
            ink,
        }
    }
}

/// Content of a picture. Values that an axis cannot show are left out.
pub(super) struct Picture<'a> {
    /// Unit of the values.
    pub(super) unit: &'a str,
    /// Description of the picture.
    pub(super) remark: &'a str,
    pub(super) across: Across,
    pub(super) up: Up,
    pub(super) curves: &'a [Curve],
    /// Values marked by a dotted line.
    pub(super) rules: &'a [f64],
    /// Ends of levels in bytes, with their names.
    pub(super) ends: &'a [(u64, &'a str)],
}

/// Writes the picture; nothing, and false, if there are too few values, or all at one place.
pub(super) fn write(out: &mut Out, picture: &Picture<'_>) -> bool {
    let curves: Vec<Vec<(f64, f64)>> = picture
        .curves
        .iter()
        .map(|curve| on_axes(picture, &curve.points))
        .collect();
    let all = || curves.iter().flatten();
    let Some((first, last)) = extent(all().map(|point| point.0)) else {
        return false;
    };
    let rules: Vec<f64> = picture
        .rules
        .iter()
        .filter_map(|value| on_axes(picture, &[(1.0, *value)]).first().map(|it| it.1))
        .collect();
    let Some((low, high)) = extent(all().map(|point| point.1).chain(rules.iter().copied())) else {
        return false;
    };
    if !has_enough_points(curves.iter().map(Vec::len)) || last <= first {
        return false;
    }
    let (low, high) = match picture.up {
        Up::FromZero => (0.0, high * 1.02),
        Up::Logarithmic if high - low < 0.1 => (low - 0.1, high + 0.1),
        Up::Logarithmic => (low, high),
    };
    let names = names_width(picture, out.width());
    let columns = (out.width() - MARGIN - 2 - names).min(MAX_COLUMNS);
    let place = |p: &(f64, f64)| ((p.0 - first) / (last - first), (p.1 - low) / (high - low));
    let mut plot = Plot::new(columns, ROWS);
    for rule in &rules {
        plot.dotted((rule - low) / (high - low));
    }
    for (curve, points) in picture.curves.iter().zip(&curves) {
        let places: Vec<(f64, f64)> = points.iter().map(place).collect();
        draw(&mut plot, curve, &places);
    }
    let ends: Vec<Option<f64>> = curves
        .iter()
        .map(|points| points.last().map(|point| place(point).1))
        .collect();
    let names_by_row = if names > 0 {
        name_of_each_row(picture.curves, &ends)
    } else {
        Default::default()
    };
    let mut lines = vec![heading(picture, out.width())];
    let labels = match picture.up {
        Up::Logarithmic => logarithmic_labels(low, high),
        Up::FromZero => std::array::from_fn(|row| even_value(high, row)),
    };
    let rows = plot.lines(out.color());
    for ((row, (line, columns_used)), label) in rows.into_iter().enumerate().zip(labels) {
        let name = names_by_row[row]
            .as_ref()
            .map_or_else(String::new, |(name, ink)| {
                let gap = " ".repeat(columns - columns_used + 1);
                let painted = if out.color() {
                    ink.paint(name)
                } else {
                    name.clone()
                };
                format!("{gap}{painted}")
            });
        lines.push(format!("{label:>MARGIN$} │{line}{name}"));
    }
    lines.extend(axis_lines(picture, (first, last), columns));
    out.verbatim(&lines);
    true
}

fn draw(plot: &mut Plot, curve: &Curve, places: &[(f64, f64)]) {
    match curve.look {
        Look::Line => plot.curve(places, Ink(curve.ink)),
        Look::Dots => {
            for point in places {
                plot.curve(&[*point], Ink(curve.ink));
            }
        }
    }
}

/// The unit, and the remark if the line has room for it.
fn heading(picture: &Picture<'_>, width: usize) -> String {
    let unit = format!("{:>MARGIN$}", picture.unit);
    let head = format!("{unit}  ({})", clean(picture.remark));
    let fits = !picture.remark.is_empty() && display_width(&head) <= width;
    if fits { head } else { unit }
}

/// The axis below the curves, from `first` to `last`, with the ends of levels.
fn axis_lines(picture: &Picture<'_>, (first, last): (f64, f64), columns: usize) -> Vec<String> {
    let mut lines = vec![format!("{:>MARGIN$} └{}", "", "─".repeat(columns))];
    let axis = match picture.across {
        Across::Sizes => size_axis(first, last, columns),
        Across::Numbers => number_axis(first, last, columns),
    };
    lines.push(format!("{:>MARGIN$}  {axis}", ""));
    let across = |size: f64| (size.log2() - first) / (last - first);
    if picture.across == Across::Sizes
        && let Some(marks) = level_marks(picture.ends, columns, across)
    {
        lines.push(format!("{:>MARGIN$}  {marks}", "ends"));
    }
    lines
}

/// Writes a picture of `curves` over sizes in bytes, both axes logarithmic; `ends` are those of levels. False if
/// nothing is written, as in [`write`].
pub(super) fn over_sizes(
    out: &mut Out,
    unit: &str,
    remark: &str,
    curves: &[Curve],
    ends: &[(u64, &str)],
) -> bool {
    let picture = Picture {
        unit,
        remark,
        across: Across::Sizes,
        up: Up::Logarithmic,
        curves,
        rules: &[],
        ends,
    };
    write(out, &picture)
}

/// Most curves that can have a name beside the picture.
pub(super) const MAX_NAMES: usize = ROWS;

/// Names of curves beside a picture, and the lines that explain them.
pub(super) struct Legend {
    /// Name of each curve.
    pub(super) names: Vec<String>,
    /// `A: first title`, … if the names are letters; else empty.
    pub(super) lines: Vec<String>,
}

/// Names curves by their `titles` if these fit beside a picture `width` columns wide, else by capital letters,
/// which differ from the letters of tables.
pub(super) fn legend(titles: &[String], width: usize) -> Legend {
    const MAX_TITLE: usize = 20;
    let longest = titles.iter().map(|title| display_width(title)).max();
    let longest = longest.unwrap_or(0);
    if longest <= MAX_TITLE && longest + 1 + MARGIN + 2 + MIN_COLUMNS <= width {
        return Legend {
            names: titles.to_vec(),
            lines: Vec::new(),
        };
    }
    let names: Vec<String> = ('A'..='Z').map(String::from).take(titles.len()).collect();
    let lines = names.iter().zip(titles);
    let lines = lines.map(|(name, title)| format!("{name}: {title}"));
    Legend {
        lines: lines.collect(),
        names,
    }
}

/// True if a curve with one of these numbers of values makes a picture.
pub(super) fn has_enough_points(mut lengths: impl Iterator<Item = usize>) -> bool {
    lengths.any(|length| length >= MIN_POINTS)
}

/// Points in the coordinates of the picture's axes.
fn on_axes(picture: &Picture<'_>, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    points
        .iter()
        .filter(|(x, y)| x.is_finite() && y.is_finite() && *y > 0.0)
        .filter(|(x, _)| picture.across == Across::Numbers || *x > 0.0)
        .map(|(x, y)| {
            let x = match picture.across {
                Across::Numbers => *x,
                Across::Sizes => x.log2(),
            };
            let y = match picture.up {
                Up::FromZero => *y,
                Up::Logarithmic => y.log10(),
            };
            (x, y)
        })
        .collect()
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends: Option<(f64, f64)>, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Columns for the names beside the picture, with a gap; 0 if there is no room.
fn names_width(picture: &Picture<'_>, width: usize) -> usize {
    let longest = picture
        .curves
        .iter()
        .map(|curve| display_width(&clean(&curve.name)))
        .max()
        .unwrap_or(0);
    let fits = longest > 0 && longest + 1 + MARGIN + 2 + MIN_COLUMNS <= width;
    if fits { longest + 1 } else { 0 }
}

/// Name and colour beside each row: a curve's name is placed in the row where the curve ends, or in the
/// nearest free one. A curve without a free row has no name.
fn name_of_each_row(curves: &[Curve], ends: &[Option<f64>]) -> [Option<(String, Ink)>; ROWS] {
    let mut rows: [Option<(String, Ink)>; ROWS] = Default::default();
    let mut ended: Vec<(f64, &Curve)> = curves
        .iter()
        .zip(ends)
        .filter_map(|(curve, end)| Some(((*end)?, curve)))
        .filter(|(_, curve)| !curve.name.is_empty())
        .collect();
    ended.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (end, curve) in ended {
        let row = ((1.0 - end) * ROWS as f64)
            .floor()
            .clamp(0.0, (ROWS - 1) as f64) as usize;
        let nearest = (0..ROWS)
            .filter(|free| rows[*free].is_none())
            // On a tie use the lower row, so that names keep the order of their curves.
            .min_by_key(|free| (free.abs_diff(row), usize::from(*free < row)));
        if let Some(free) = nearest {
            rows[free] = Some((clean(&curve.name), Ink(curve.ink)));
        }
    }
    rows
}

/// Labels of a logarithmic axis by row; at least two have a text. Both ends are decimal logarithms.
fn logarithmic_labels(low: f64, high: f64) -> [String; ROWS] {
    const MIN_LABELS: usize = 2;
    let labels = std::array::from_fn(|row| round_value(low, high, row));
    if labels.iter().filter(|label| !label.is_empty()).count() >= MIN_LABELS {
        return labels;
    }
    // A range such as 2 to 3 holds too few round values, so the labels are multiples of one step.
    let step = round_step((10_f64.powf(high) - 10_f64.powf(low)) / 4.0);
    let height = (high - low) / ROWS as f64;
    std::array::from_fn(|row| {
        let bottom = high - height * (row + 1) as f64;
        let value = (10_f64.powf(bottom) / step).ceil() * step;
        if value > 0.0 && value.log10() < bottom + height {
            units::compact(value)
        } else {
            String::new()
        }
    })
}

/// Round value (1, 2 or 5 times a power of ten) that lies in a row of the plot, if there is one; both ends
/// are decimal logarithms.
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

/// Multiple of a round step that lies in a row of a plot from zero to `high`; empty if there is none.
fn even_value(high: f64, row: usize) -> String {
    let step = round_step(high / 4.0);
    let height = high / ROWS as f64;
    let bottom = high - height * (row + 1) as f64;
    let value = (bottom / step).ceil() * step;
    if value < bottom + height {
        units::compact(value.max(0.0))
    } else {
        String::new()
    }
}

/// Round step (1, 2 or 5 times a power of ten) that is at least about `wanted`.
fn round_step(wanted: f64) -> f64 {
    let decade = 10_f64.powf(wanted.max(f64::MIN_POSITIVE).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * decade)
        .find(|step| *step >= 0.8 * wanted)
        .unwrap_or(10.0 * decade)
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

fn number_axis(first: f64, last: f64, columns: usize) -> String {
    let mut axis = Labels::new(columns);
    let step = round_step((last - first) / 6.0);
    let mut value = (first / step).ceil() * step;
    while value <= last {
        axis.place((value - first) / (last - first), &units::compact(value));
        value += step;
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
        let share = across(*size as f64);
        if (0.0..=1.0).contains(&share) {
            marks.place(share, &format!("▲{}", clean(name)));
        }
    }
    let text = marks.text();
    (!text.is_empty()).then_some(text)
}

/// Short texts on one line; a text is left out where another is already.
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

#[cfg(test)]
mod tests {
    use super::super::Style;
    use super::*;

    fn curve(name: &str, points: &[(f64, f64)], ink: usize) -> Curve {
        Curve {
            name: name.to_owned(),
            points: points.to_vec(),
            look: Look::Line,
            ink,
        }
    }

    fn shown(picture: &Picture<'_>, style: Style) -> String {
        let mut out = Out::new(style);
        write(&mut out, picture);
        out.finish()
    }

    #[test]
    fn curves_over_numbers_have_their_names_where_they_end_and_a_dotted_rule() {
        let step = |low: f64, high: f64| -> Vec<(f64, f64)> {
            (0..=20)
                .map(|k| (f64::from(k) * 10.0, if k < 12 { low } else { high }))
                .collect()
        };
        let curves = [
            curve("N=2", &step(220.0, 420.0), 0),
            curve("N=10", &step(340.0, 760.0), 1),
        ];
        let picture = Picture {
            unit: "cycles",
            remark: "dotted: two in sequence",
            across: Across::Numbers,
            up: Up::FromZero,
            curves: &curves,
            rules: &[420.0],
            ends: &[],
        };
        let style = Style {
            color: false,
            width: 60,
        };
        insta::assert_snapshot!(shown(&picture, style));
    }

    #[test]
    fn too_few_values_make_no_picture() {
        let curves = [curve("", &[(1.0, 2.0), (2.0, 3.0), (f64::NAN, 1.0)], 0)];
        let picture = Picture {
            unit: "",
            remark: "",
            across: Across::Numbers,
            up: Up::FromZero,
            curves: &curves,
            rules: &[],
            ends: &[],
        };
        assert_eq!(shown(&picture, Style::default()), "\n");
    }

    #[test]
    fn every_picture_has_labels_beside_its_values() {
        for (low, high) in [
            (2.0, 3.0),
            (2.0, 5.0),
            (1.01, 1.02),
            (3.1, 4.9),
            (51.0, 99.0),
            (0.2, 900.0),
        ] {
            for up in [Up::Logarithmic, Up::FromZero] {
                let values = [(1.0, low), (2.0, low), (3.0, high), (4.0, high)];
                let curves = [curve("", &values, 0)];
                let picture = Picture {
                    unit: "ns",
                    remark: "",
                    across: Across::Numbers,
                    up,
                    curves: &curves,
                    rules: &[],
                    ends: &[],
                };
                let text = shown(&picture, Style::default());
                let mut labels: Vec<&str> = text
                    .lines()
                    .filter_map(|line| line.split_once('│'))
                    .map(|(label, _)| label.trim())
                    .filter(|label| !label.is_empty())
                    .collect();
                let found = labels.len();
                labels.dedup();
                assert!(
                    found >= 2 && labels.len() == found,
                    "{low} to {high}:\n{text}"
                );
            }
        }
    }

    #[test]
    fn long_titles_become_letters_with_a_line_each() {
        let titles = [
            "as found".to_owned(),
            "dscr=16 usual depth, stride-N".to_owned(),
        ];
        let long = legend(&titles, 80);
        assert_eq!(long.names, ["A", "B"]);
        assert_eq!(
            long.lines,
            ["A: as found", "B: dscr=16 usual depth, stride-N"]
        );
        let short = legend(&titles[..1], 80);
        assert_eq!(
            (short.names, short.lines),
            (vec!["as found".to_owned()], vec![])
        );
        // On a narrow terminal short titles do not fit either.
        assert_eq!(legend(&titles[..1], 40).names, ["A"]);
    }

    #[test]
    fn steps_are_round() {
        for (wanted, step) in [
            (0.9, 1.0),
            (1.0, 1.0),
            (1.3, 2.0),
            (210.0, 200.0),
            (7.0, 10.0),
        ] {
            assert!((round_step(wanted) - step).abs() < 1e-9, "{wanted}");
        }
    }
}
