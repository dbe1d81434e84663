//! Curves over two axes, with marks for levels and horizontal lines for reference values.

use maud::{Markup, html};

use super::axis::{Axis, Ruler};
use super::coordinate::coordinate;
use super::data_table::pivot;
use super::extent::Extent;
use super::labels::{lanes, text_width, with_room};
use super::series::{Look, Point, Series};
use super::steps;
use super::vertical_axis::{labels_left, lines_across};
use crate::units;

/// Most points with markers in one chart. Beyond this, curves that are not shown at first keep only the
/// markers of every nth unperturbed point; their lines and the table keep all points.
const MAX_MARKERS: usize = 4500;
/// Number of curves beyond which markers are small, so that they do not cover the lines.
const MAX_CURVES_WITH_LARGE_MARKERS: usize = 16;
/// Number of curves up to which all intervals are drawn; more would hide each other.
const MAX_CURVES_WITH_INTERVALS: usize = 4;
/// Most curves that are hidden at first and still listed without unfolding.
const MAX_LISTED_HIDDEN_CURVES: usize = 6;
/// Most keys in the legend of ordered curves.
const MAX_KEYS: usize = 14;
/// Height of a line of labels above the plot.
const LANE: f64 = 17.0;

/// Kind of a vertical mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page) enum MarkKind {
    /// Measured value: a line, with its interval as a band.
    Found,
    /// Declared value: a dashed line.
    Declared,
    /// Limit: a dashed line whose label remains on a narrow screen.
    Limit,
}

impl MarkKind {
    const fn class(self) -> &'static str {
        match self {
            Self::Found => "mark",
            Self::Declared => "mark declared",
            Self::Limit => "mark limit",
        }
    }
}

/// A vertical mark at an x.
#[derive(Clone, Debug)]
pub(in crate::page) struct Mark {
    pub(in crate::page) kind: MarkKind,
    pub(in crate::page) x: f64,
    pub(in crate::page) interval: Option<(f64, f64)>,
    /// Label that remains on a narrow screen.
    pub(in crate::page) name: String,
    /// Addition to the label; hidden on a narrow screen.
    pub(in crate::page) detail: String,
}

/// Horizontal line at a y.
#[derive(Clone, Debug)]
pub(in crate::page) struct Rule {
    pub(in crate::page) y: f64,
    pub(in crate::page) label: String,
}

/// Rectangle within the axes, in units of the view box.
#[derive(Clone, Copy, Debug)]
struct PlotArea {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// A chart of curves.
#[derive(Clone, Debug, Default)]
pub(in crate::page) struct Chart {
    pub(in crate::page) id: String,
    pub(in crate::page) title: String,
    /// One sentence that explains how to read the chart.
    pub(in crate::page) reading: String,
    pub(in crate::page) extent: Extent,
    pub(in crate::page) x: Axis,
    pub(in crate::page) y: Axis,
    pub(in crate::page) series: Vec<Series>,
    pub(in crate::page) marks: Vec<Mark>,
    pub(in crate::page) rules: Vec<Rule>,
    /// True to write labels also at the ends of curves, where they do not collide.
    pub(in crate::page) end_labels: bool,
}

impl Chart {
    /// The figure: title, reading aid, drawing, legend and data; empty if no point can be drawn.
    pub(in crate::page) fn markup(&self) -> Markup {
        let Some(drawing) = self.drawing() else {
            return html! {};
        };
        html! {
            figure class=(self.extent.class()) id=(self.id) {
                figcaption { b { (self.title) } " " span { (self.reading) } }
                (drawing)
                (self.legend())
                (pivot(&self.x, &self.series, self.y.format).markup())
            }
        }
    }

    fn drawing(&self) -> Option<Markup> {
        let (width, height) = self.extent.size();
        let points = || self.series.iter().flat_map(|curve| &curve.points);
        let left = 62.0;
        let right = width - if self.end_labels { 54.0 } else { 18.0 };
        let x = self.x.ruler(points().map(|p| p.x), left, right)?;
        let spans: Vec<(f64, f64)> = self.marks.iter().map(|mark| mark.span(&x, right)).collect();
        let lanes = lanes(&spans);
        let lane_count = lanes.iter().map(|lane| lane + 1).max().unwrap_or(0);
        let frame = PlotArea {
            left,
            right,
            top: 30.0 + LANE * lane_count as f64,
            bottom: height - 58.0,
        };
        let values = || points().map(|p| p.y).filter(|y| y.is_finite());
        let highest = values().fold(0.0, f64::max);
        // Intervals extend the axis only as far as they do not squeeze the values.
        let ends = points()
            .filter_map(|p| Some(p.interval?.1))
            .filter(|end| *end <= 1.3 * highest);
        let heights = values()
            .chain(ends)
            .chain(self.rules.iter().map(|rule| rule.y));
        let y = self.y.ruler(heights, frame.bottom, frame.top)?;
        let count = |shown: bool| -> usize {
            let curves = self.series.iter().filter(|curve| curve.shown == shown);
            curves.map(|curve| curve.points.len()).sum()
        };
        let left_over = MAX_MARKERS.saturating_sub(count(true)).max(500);
        let drawing = Markers {
            thin: count(false).div_ceil(left_over).max(1),
            crowded: self.series.len() > MAX_CURVES_WITH_LARGE_MARKERS,
            banded: self.series.len() <= MAX_CURVES_WITH_INTERVALS,
        };
        let label = format!("{}. {}", self.title, self.reading);
        Some(html! {
            svg.chart viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) tabindex="0" {
                (self.grid(&frame, &x, &y, height))
                (self.marks_markup(&frame, &x, &spans, &lanes))
                @for rule in &self.rules { (rule.line(&frame, &y)) }
                @for (index, curve) in self.series.iter().enumerate() {
                    (curve.markup(index, &x, &y, drawing))
                }
                @for rule in &self.rules { (rule.label(&frame, &x, &y, points())) }
                @if self.end_labels { (self.ends(&frame, &x, &y)) }
            }
        })
    }

    fn grid(&self, frame: &PlotArea, x: &Ruler, y: &Ruler, height: f64) -> Markup {
        let (left, right) = (coordinate(frame.left), coordinate(frame.right));
        let (top, bottom) = (coordinate(frame.top), coordinate(frame.bottom));
        html! {
            g.grid {
                @for tick in x.ticks(64.0) {
                    path d=(format!("M{} {top}V{bottom}", coordinate(tick.at))) {}
                }
                (lines_across(&y.ticks(30.0), frame.left, frame.right))
            }
            path.axis d=(format!("M{left} {top}V{bottom}H{right}")) {}
            g.xt {
                @for tick in x.ticks(64.0) {
                    text class=[(!tick.sparse).then_some("w")]
                        x=(coordinate(tick.at)) y=(coordinate(frame.bottom + 20.0)) {
                        ((self.x.format)(tick.value))
                    }
                }
            }
            (labels_left(&self.y, &y.ticks(30.0), frame.left))
            text.title.xtitle x=(right) y=(coordinate(height - 10.0)) { (self.x.title) }
        }
    }

    fn marks_markup(
        &self,
        frame: &PlotArea,
        x: &Ruler,
        spans: &[(f64, f64)],
        lanes: &[usize],
    ) -> Markup {
        html! {
            @for (index, mark) in self.marks.iter().enumerate() {
                @if let Some(at) = x.at(mark.x).filter(|_| x.holds(mark.x)) {
                    @let top = frame.top - LANE * lanes[index] as f64;
                    g class=(mark.kind.class()) {
                        @if let Some((low, high)) = mark.interval.and_then(|(low, high)| Some((x.inside(low)?, x.inside(high)?))) {
                            rect x=(coordinate(low)) y=(coordinate(frame.top))
                                width=(coordinate((high - low).max(0.5))) height=(coordinate(frame.bottom - frame.top)) {}
                        }
                        path d=(format!("M{} {}V{}", coordinate(at), coordinate(top - 2.0), coordinate(frame.bottom))) {}
                    }
                }
            }
            // Labels come after all lines, so that no line crosses a label.
            @for (index, mark) in self.marks.iter().enumerate() {
                @if x.holds(mark.x) {
                    @let top = frame.top - LANE * lanes[index] as f64;
                    g class=(mark.kind.class()) {
                        text class=[(lanes[index] > 0).then_some("w")] x=(coordinate(spans[index].0 + 3.0)) y=(coordinate(top - 6.0)) {
                            (mark.name) @if !mark.detail.is_empty() { tspan.w { " " (mark.detail) } }
                        }
                    }
                }
            }
        }
    }

    /// Labels at the curves' ends, as many as fit.
    fn ends(&self, frame: &PlotArea, x: &Ruler, y: &Ruler) -> Markup {
        let mut ends: Vec<(f64, &str)> = self
            .series
            .iter()
            .filter_map(|curve| {
                let last = curve
                    .points
                    .iter()
                    .filter(|p| x.at(p.x).is_some() && y.at(p.y).is_some())
                    .max_by(|a, b| a.x.total_cmp(&b.x))?;
                Some((y.at(last.y)?, curve.label.as_str()))
            })
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let keep = with_room(&ends.iter().map(|end| end.0).collect::<Vec<_>>(), 13.0);
        html! {
            g.ends {
                @for (index, (at, label)) in ends.iter().enumerate().filter(|(index, _)| keep[*index]) {
                    text class=[(index > 0 && index + 1 < ends.len()).then_some("w")] x=(coordinate(frame.right + 5.0)) y=(coordinate(at + 4.0)) { (label) }
                }
            }
        }
    }

    fn legend(&self) -> Markup {
        let hidden = self.series.iter().filter(|curve| !curve.shown).count();
        // Of many ordered curves, list the first, the last and some between.
        let ordered = self
            .series
            .iter()
            .all(|curve| matches!(curve.look, Look::Ordinal(_)));
        let step = if ordered {
            self.series.len().div_ceil(MAX_KEYS).max(1)
        } else {
            1
        };
        let last = self.series.len().saturating_sub(1);
        html! {
            @if !self.series.is_empty() {
                div.legend role="group" aria-label="curves" {
                    @for (index, curve) in self.series.iter().enumerate().filter(|(_, curve)| curve.shown) {
                        @if index % step == 0 || index == last { (curve.key(index)) }
                    }
                    @if hidden > 0 {
                        span.sets {
                            button.set type="button" data-set="main" { "main curves" }
                            button.set type="button" data-set="all" { "all" }
                        }
                        details.more open[hidden <= MAX_LISTED_HIDDEN_CURVES] {
                            summary { (units::plural(hidden, "more curve")) }
                            div.legend {
                                @for (index, curve) in self.series.iter().enumerate().filter(|(_, curve)| !curve.shown) {
                                    (curve.key(index))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Appearance of markers in a chart.
#[derive(Clone, Copy, Debug)]
struct Markers {
    /// For curves that are not shown at first: every nth unperturbed point has a marker.
    thin: usize,
    crowded: bool,
    /// True if intervals of all curves are drawn; otherwise only those of the first.
    banded: bool,
}

impl Series {
    fn markup(&self, index: usize, x: &Ruler, y: &Ruler, markers: Markers) -> Markup {
        if self.look.is_stepped() {
            return steps::markup(self, index, x, y);
        }
        let at = |p: &Point| Some((x.at(p.x)?, y.at(p.y)?));
        let mut line = String::new();
        for (px, py) in self.points.iter().filter_map(at) {
            let command = if line.is_empty() { 'M' } else { ' ' };
            line.push(command);
            line.push_str(&format!("{} {}", coordinate(px), coordinate(py)));
        }
        let shape = self.look.marker(markers.crowded);
        let thin = if self.shown { 1 } else { markers.thin };
        html! {
            g class=(self.class())
                data-k=(index) data-n=(self.label) {
                @if let Some(band) = self.band(x, y).filter(|_| markers.banded || index == 0) { path.band d=(band) {} }
                @if self.look.has_line() { path.l d=(line) {} }
                @if self.look.has_markers() { g.p {
                    @for (nth, point) in self.points.iter().enumerate() {
                        @if let Some((px, py)) = at(point).filter(|_| point.hollow || nth % thin == 0) {
                            use href=(shape) class=[point.hollow.then_some("h")]
                                x=(coordinate(px)) y=(coordinate(py)) { title { (point.tip) } }
                        }
                    }
                } }
            }
        }
    }

    /// Outline of the intervals; `None` if no interval is visible.
    fn band(&self, x: &Ruler, y: &Ruler) -> Option<String> {
        let edges: Vec<(f64, f64, f64)> = self
            .points
            .iter()
            .filter_map(|p| {
                let (low, high) = p.interval?;
                Some((x.at(p.x)?, y.inside(low)?, y.inside(high)?))
            })
            .collect();
        if edges.len() < 2 || edges.iter().all(|(_, low, high)| (low - high).abs() < 1.5) {
            return None;
        }
        let mut path = String::from("M");
        let upper = edges.iter().map(|(at, _, high)| (at, high));
        let lower = edges.iter().rev().map(|(at, low, _)| (at, low));
        for (at, height) in upper.chain(lower) {
            path.push_str(&format!("{} {} ", coordinate(*at), coordinate(*height)));
        }
        path.push('Z');
        Some(path)
    }

    fn key(&self, index: usize) -> Markup {
        html! {
            button class=(format!("key {}", self.look.class())) type="button" data-k=(index)
                aria-pressed=(if self.shown { "true" } else { "false" }) {
                svg viewBox="0 0 30 10" aria-hidden="true" {
                    @if self.look.has_line() { path.l d="M1 5H29" {} }
                    @if self.look.has_markers() {
                        g.p { use href=(format!("#m{}", self.look.shape())) x="15" y="5" {} }
                    }
                }
                (self.label)
            }
        }
    }
}

impl Mark {
    /// Horizontal extent of the label: centred on the mark, within the plot.
    fn span(&self, x: &Ruler, right: f64) -> (f64, f64) {
        let width = text_width(&self.name)
            + if self.detail.is_empty() {
                0.0
            } else {
                text_width(&self.detail)
            };
        let Some(at) = x.at(self.x).filter(|_| x.holds(self.x)) else {
            return (0.0, 0.0);
        };
        let start = (at - width / 2.0).clamp(0.0, (right - width).max(0.0));
        (start, start + width)
    }
}

impl Rule {
    fn line(&self, frame: &PlotArea, y: &Ruler) -> Markup {
        html! {
            @if let Some(at) = y.at(self.y) {
                path.rule d=(format!("M{} {}H{}", coordinate(frame.left), coordinate(at), coordinate(frame.right))) {}
            }
        }
    }

    /// Label above the line, at the end where it collides with fewer points.
    fn label<'a>(
        &self,
        frame: &PlotArea,
        x: &Ruler,
        y: &Ruler,
        points: impl Iterator<Item = &'a Point>,
    ) -> Markup {
        let width = text_width(&self.label);
        let Some(at) = y.at(self.y) else {
            return html! {};
        };
        let (mut left, mut right) = (0, 0);
        for (px, py) in points.filter_map(|p| Some((x.at(p.x)?, y.at(p.y)?))) {
            if (at - 20.0..at + 4.0).contains(&py) {
                left += usize::from(px < frame.left + width + 8.0);
                right += usize::from(px > frame.right - width - 8.0);
            }
        }
        let (class, start) = if left < right {
            ("rule start", frame.left + 6.0)
        } else {
            ("rule", frame.right - 4.0)
        };
        html! { text class=(class) x=(coordinate(start)) y=(coordinate(at - 6.0)) { (self.label) } }
    }
}
