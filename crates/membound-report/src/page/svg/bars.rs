//! Grouped bars with their intervals.

use maud::{Markup, html};

use super::axis::Axis;
use super::coordinate::coordinate;
use super::data_table::DataTable;
use super::extent::Extent;
use super::vertical_axis::{labels_left, lines_across};
use crate::units;

/// One bar.
#[derive(Clone, Debug, Default)]
pub(in crate::page) struct Bar {
    /// Index into [`Bars::kinds`].
    pub(in crate::page) kind: usize,
    pub(in crate::page) value: f64,
    pub(in crate::page) interval: Option<(f64, f64)>,
    pub(in crate::page) tip: String,
    pub(in crate::page) hollow: bool,
}

/// Bars that are drawn together.
#[derive(Clone, Debug, Default)]
pub(in crate::page) struct BarGroup {
    pub(in crate::page) label: String,
    /// Second line of the label; hidden on a narrow screen.
    pub(in crate::page) detail: String,
    pub(in crate::page) bars: Vec<Bar>,
}

/// A chart of grouped bars.
#[derive(Clone, Debug, Default)]
pub(in crate::page) struct Bars {
    pub(in crate::page) id: String,
    pub(in crate::page) title: String,
    pub(in crate::page) reading: String,
    pub(in crate::page) extent: Extent,
    pub(in crate::page) y: Axis,
    pub(in crate::page) kinds: Vec<String>,
    pub(in crate::page) groups: Vec<BarGroup>,
    pub(in crate::page) table: DataTable,
}

impl Bars {
    /// The figure; empty if there is no bar to draw.
    pub(in crate::page) fn markup(&self) -> Markup {
        let Some(drawing) = self.drawing() else {
            return html! {};
        };
        html! {
            figure class=(self.extent.class()) id=(self.id) {
                figcaption { b { (self.title) } " " span { (self.reading) } }
                (drawing)
                div.legend {
                    @for (index, kind) in self.kinds.iter().enumerate() {
                        button class=(format!("key fill c{}", index % 8)) type="button" data-k=(index) aria-pressed="true" {
                            svg viewBox="0 0 12 10" aria-hidden="true" { g.p { rect x="1" y="0" width="10" height="10" {} } }
                            (kind)
                        }
                    }
                }
                (self.table.markup())
            }
        }
    }

    fn drawing(&self) -> Option<Markup> {
        let (width, height) = self.extent.size();
        let (left, right, top, bottom) = (62.0, width - 14.0, 34.0, height - 50.0);
        let all = || self.groups.iter().flat_map(|group| &group.bars);
        let y = self.y.ruler(all().map(|bar| bar.value), bottom, top)?;
        let zero = y.inside(0.0)?;
        let slot = (right - left) / self.groups.len().max(1) as f64;
        let bar_width = (slot * 0.86 / self.kinds.len().max(1) as f64).min(46.0);
        let group_start = |group: usize| {
            left + slot * (group as f64 + 0.5) - bar_width * self.kinds.len() as f64 / 2.0
        };
        let labelled = bar_width >= 16.0;
        let label = format!("{}. {}", self.title, self.reading);
        Some(html! {
            svg.chart viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) tabindex="0" {
                g.grid { (lines_across(&y.ticks(34.0), left, right)) }
                (labels_left(&self.y, &y.ticks(34.0), left))
                @for kind in 0..self.kinds.len() {
                    g class=(format!("s c{}", kind % 8)) data-k=(kind) data-n=(self.kinds[kind]) {
                        g.p {
                            @for (index, group) in self.groups.iter().enumerate() {
                                @for bar in group.bars.iter().filter(|bar| bar.kind == kind) {
                                    @if let Some(at) = y.at(bar.value) {
                                        rect class=[bar.hollow.then_some("h")]
                                            x=(coordinate(group_start(index) + bar_width * kind as f64 + 1.0))
                                            y=(coordinate(at.min(zero)))
                                            width=(coordinate((bar_width - 2.0).max(1.0)))
                                            height=(coordinate((zero - at).abs().max(0.5))) {
                                            title { (bar.tip) }
                                        }
                                    }
                                }
                            }
                        }
                        g.whiskers {
                            @for (index, group) in self.groups.iter().enumerate() {
                                @for bar in group.bars.iter().filter(|bar| bar.kind == kind) {
                                    @let middle = group_start(index) + bar_width * (kind as f64 + 0.5);
                                    @if let Some((low, high)) = bar.interval.and_then(|(low, high)| Some((y.inside(low)?, y.inside(high)?))) {
                                        path d=(format!("M{} {}V{}", coordinate(middle), coordinate(low), coordinate(high))) {}
                                    }
                                    @if labelled {
                                        @if let Some(at) = y.at(bar.value) {
                                            text.w x=(coordinate(middle)) y=(coordinate(at - 4.0)) { (short(bar.value)) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
                path.axis d=(format!("M{} {}H{}", coordinate(left), coordinate(zero), coordinate(right))) {}
                g.xt {
                    @for (index, group) in self.groups.iter().enumerate() {
                        @let middle = coordinate(left + slot * (index as f64 + 0.5));
                        text x=(middle) y=(coordinate(bottom + 20.0)) { (group.label) }
                        text.w.detail x=(middle) y=(coordinate(bottom + 36.0)) { (group.detail) }
                    }
                }
            }
        })
    }
}

/// Value above a bar, with only as many digits as fit.
fn short(value: f64) -> String {
    if (9.95..1e10).contains(&value.abs()) {
        format!("{value:.0}")
    } else {
        units::compact(value)
    }
}
