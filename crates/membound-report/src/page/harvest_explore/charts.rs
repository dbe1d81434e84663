//! Plots of a harvest exploration: curves over numeric settings, bars over named ones.

use maud::{Markup, html};
use membound_types::{ExploreFigure, ExploreRow, ExploreSweep, ExploredSweep, HarvestExplore};

use crate::facts::harvest_explore as facts;
use crate::page::svg::{
    Axis, Bar, BarGroup, Bars, Chart, DataTable, Extent, Look, Point, Rule, Scale, Series,
};
use crate::units;

/// Figure of rows that is plotted.
#[derive(Clone, Copy)]
struct Drawn {
    title: &'static str,
    label: &'static str,
    of: fn(&ExploreRow) -> Option<ExploreFigure>,
    /// Factor from the figure to the unit of the axis.
    factor: f64,
    format: fn(f64) -> String,
}

impl Drawn {
    /// The label as part of an element identifier.
    fn slug(&self) -> String {
        self.label.replace(' ', "-").replace(['\'', '%'], "")
    }
}

const PERCENT: f64 = 100.0;
const SLOWDOWN: Drawn = Drawn {
    title: "Primary's time",
    label: "primary's time",
    of: |row| row.slowdown,
    factor: PERCENT,
    format: facts::change,
};
const P95: Drawn = Drawn {
    title: "Latency of its requests",
    label: "p95 of its requests",
    of: |row| row.p95_change,
    factor: PERCENT,
    format: facts::change,
};
const WORK: Drawn = Drawn {
    title: "Scavengers' work",
    label: "scavengers' work",
    of: |row| row.work,
    factor: PERCENT,
    format: units::percent,
};
const SPEEDUP: Drawn = Drawn {
    title: "All programs together",
    label: "all programs",
    of: |row| row.speedup,
    factor: 1.0,
    format: facts::times,
};
const TURN: Drawn = Drawn {
    title: "How long time slices were",
    label: "half of the slices",
    of: |row| row.turn_p50_ns,
    factor: 1.0,
    format: units::duration_ns,
};
const TURN_90: Drawn = Drawn {
    title: "How long time slices were",
    label: "90 % of the slices",
    of: |row| row.turn_p90_ns,
    factor: 1.0,
    format: units::duration_ns,
};
const LOADS: Drawn = Drawn {
    title: "Loads that yield",
    label: "loads of the primary",
    of: |row| row.loads,
    factor: 1.0,
    format: units::compact,
};
const SAME_LOADS: Drawn = Drawn {
    title: "Loads that yield",
    label: "loads in common",
    of: |row| row.same_loads,
    factor: PERCENT,
    format: units::percent,
};
const ALL: Drawn = Drawn {
    title: "Until all are done",
    label: "at once",
    of: |row| row.all_s.or(row.primary_s),
    factor: 1.0,
    format: units::seconds,
};

const P95_NS: Drawn = Drawn {
    title: "Latency of its requests",
    label: "p95",
    of: |row| row.p95_ns,
    factor: 1.0,
    format: units::duration_ns,
};
const PRIMARY: Drawn = Drawn {
    title: "Primary's time",
    label: "seconds",
    of: |row| row.primary_s,
    factor: 1.0,
    format: units::seconds,
};

/// All plots of a table.
pub(super) fn all(explore: &HarvestExplore, sweep: &ExploredSweep) -> Markup {
    let slowdown = if explore.options.requests.is_some() {
        P95
    } else {
        SLOWDOWN
    };
    if sweep.sweep == ExploreSweep::Parts {
        // With this table's many bars, a chart needs the full width of the page.
        return html! {
            (bars(sweep, SPEEDUP, "times as fast as one after another", Extent::Full))
            (bars(sweep, slowdown, "% longer than by itself", Extent::Full))
        };
    }
    if sweep.sweep == ExploreSweep::PartsByDistance {
        return parts_by_distance(sweep, slowdown);
    }
    html! { div.pair { (pairs(explore, sweep, slowdown)) } }
}

/// Plots that are placed in pairs.
fn pairs(explore: &HarvestExplore, sweep: &ExploredSweep, slowdown: Drawn) -> Markup {
    match sweep.sweep {
        ExploreSweep::Bound => over_time(sweep, slowdown, "bound"),
        ExploreSweep::Distance => over_time(sweep, slowdown, "distance"),
        ExploreSweep::Overhead => over_share(sweep, slowdown),
        ExploreSweep::Slo => over_time(sweep, slowdown, "objective"),
        ExploreSweep::Parts | ExploreSweep::PartsByDistance => html! {},
        ExploreSweep::Load => over_load(explore, sweep),
        ExploreSweep::Kernel => html! {
            (bars(sweep, SPEEDUP, "times as fast as one after another", Extent::Half))
            (bars(sweep, slowdown, "% longer than by itself", Extent::Half))
            (bars(sweep, WORK, WORK_AXIS, Extent::Half))
            (work_against_slowdown(sweep, slowdown).markup())
        },
        ExploreSweep::Periods => {
            let axis = axis("time between two samples, ms", Scale::Log10, units::compact);
            let slower = lines(
                sweep,
                &[SLOWDOWN],
                axis.clone(),
                "% longer than without a profiler",
            );
            let same = lines(sweep, &[SAME_LOADS], axis, "% of the loads that yield");
            html! { (slower.markup()) (same.markup()) }
        }
        ExploreSweep::Chases => at_once(explore, sweep),
    }
}

/// Effect on the primary, work of scavengers, and time slices, over a setting that is a time.
fn over_time(sweep: &ExploredSweep, slowdown: Drawn, noun: &'static str) -> Markup {
    let x = || axis(noun, Scale::Log10, units::short_duration_ns);
    let longer = lines(sweep, &[slowdown], x(), "% longer than by itself");
    let work = lines(sweep, &[WORK], x(), WORK_AXIS);
    let fast = lines(sweep, &[SPEEDUP], x(), "times as fast as one after another");
    let mut slices = lines(sweep, &[TURN, TURN_90], x(), "length of a slice");
    slices.y.format = units::short_duration_ns;
    html! { (longer.markup()) (work.markup()) (fast.markup()) (slices.markup()) }
}

/// Effect on the primary, work of scavengers, and the share of yielding loads, over a share of the CPU
/// time.
fn over_share(sweep: &ExploredSweep, slowdown: Drawn) -> Markup {
    let x = || axis("overhead of yields", Scale::Log10, units::percent);
    let longer = lines(sweep, &[slowdown], x(), "% longer than by itself");
    let work = lines(sweep, &[WORK], x(), WORK_AXIS);
    let fast = lines(sweep, &[SPEEDUP], x(), "times as fast as one after another");
    let loads = lines(sweep, &[LOADS], x(), "loads of the primary");
    html! { (longer.markup()) (work.markup()) (fast.markup()) (loads.markup()) }
}

/// Latency and work of scavengers over the load, a curve for each scheduler.
fn over_load(explore: &HarvestExplore, sweep: &ExploredSweep) -> Markup {
    let x = || axis("load", Scale::Linear, units::compact);
    let takes = match explore.options.requests {
        Some(_) => {
            let mut takes = crossed(sweep, P95_NS, x(), "95th percentile", Extent::Half);
            takes.y.format = units::short_duration_ns;
            takes
        }
        None => crossed(sweep, PRIMARY, x(), "seconds", Extent::Half),
    };
    let work = crossed(sweep, WORK, x(), WORK_AXIS, Extent::Half);
    html! { (takes.markup()) (work.markup()) }
}

/// Effect on the primary and work of scavengers over the distance, a curve for each part left out. Curves
/// that do not differ from the harvest with all parts are hidden at first.
fn parts_by_distance(sweep: &ExploredSweep, slowdown: Drawn) -> Markup {
    let x = || axis("distance", Scale::Log10, units::short_duration_ns);
    let chart = |drawn: Drawn, y: &str| {
        let mut chart = crossed(sweep, drawn, x(), y, Extent::Full);
        for curve in &mut chart.series {
            curve.shown = is_compared(&curve.label) || differs(sweep, drawn, &curve.label);
        }
        chart.markup()
    };
    html! {
        (chart(slowdown, "% longer than by itself"))
        (chart(WORK, WORK_AXIS))
    }
}

/// True for the curves that all others are compared with.
fn is_compared(series: &str) -> bool {
    ["nothing", "yield costs"].contains(&series)
}

/// True if a figure of a series differs anywhere from the one with all parts.
fn differs(sweep: &ExploredSweep, drawn: Drawn, series: &str) -> bool {
    let of = |name: &str, at: Option<f64>| {
        let mut rows = sweep.rows.iter();
        let row = rows.find(|row| row.series.as_deref() == Some(name) && row.at == at);
        row.and_then(drawn.of)
    };
    sweep.rows.iter().any(|row| {
        let pair = of(series, row.at).zip(of("nothing", row.at));
        pair.is_some_and(|(without, all)| !facts::overlap(without, all))
    })
}

/// Rows that cross two settings, as a curve for each value of the second.
fn crossed(sweep: &ExploredSweep, drawn: Drawn, x: Axis, y: &str, extent: Extent) -> Chart {
    let curve = |(index, name): (usize, &str)| {
        let rows = sweep.rows.iter();
        let rows = rows.filter(|row| row.series.as_deref() == Some(name));
        Series {
            label: name.to_owned(),
            look: Look::category(index),
            shown: true,
            points: points(rows, &drawn, &x),
        }
    };
    let series = facts::series(sweep).into_iter().enumerate().map(curve);
    Chart {
        id: format!("{}-{}", sweep.sweep, drawn.slug()),
        title: format!("{}.", drawn.title),
        reading: READING.to_owned(),
        extent,
        series: series.filter(|curve| !curve.points.is_empty()).collect(),
        x,
        y: axis(y, Scale::Linear, units::compact),
        ..Chart::default()
    }
}

/// Schedulers as points: work of scavengers over the effect on the primary.
fn work_against_slowdown(sweep: &ExploredSweep, slowdown: Drawn) -> Chart {
    let x = axis("% longer than by itself", Scale::Linear, units::compact);
    let point = |row: &ExploreRow| {
        let (longer, work) = ((slowdown.of)(row)?, row.work?);
        Some(Point {
            x: longer.value * slowdown.factor,
            y: work.value * WORK.factor,
            interval: interval(work, WORK.factor),
            tip: format!(
                "{}: {} {}, {} {}",
                row.setting,
                slowdown.label,
                facts::with_interval(longer, slowdown.format),
                WORK.label,
                facts::with_interval(work, WORK.format)
            ),
            ..Point::default()
        })
    };
    // One after another, scavengers do nothing while the primary runs.
    let together = sweep
        .rows
        .iter()
        .filter(|row| row.setting != "one after another");
    let points = together.filter_map(|row| Some((row, point(row)?)));
    let series = points.enumerate().map(|(index, (row, point))| Series {
        label: row.setting.clone(),
        look: Look::category(index),
        shown: true,
        points: vec![point],
    });
    Chart {
        id: format!("{}-work-against-{}", sweep.sweep, slowdown.slug()),
        title: format!("{} against the scavengers' work.", slowdown.title),
        reading: "Further up and left is better.".to_owned(),
        x,
        y: axis(WORK_AXIS, Scale::Linear, units::compact),
        series: series.collect(),
        ..Chart::default()
    }
}

/// Title of axes for the work of scavengers.
const WORK_AXIS: &str = "% of their work by themselves";

/// How to read a chart of curves.
const READING: &str = "The band is what rounds differ by.";

fn axis(title: &str, scale: Scale, format: fn(f64) -> String) -> Axis {
    Axis {
        title: title.to_owned(),
        scale,
        format,
    }
}

/// Rows with a numeric setting as curves; a row without one becomes a horizontal line.
fn lines(sweep: &ExploredSweep, drawn: &[Drawn], x: Axis, y: &str) -> Chart {
    let series: Vec<Series> = drawn
        .iter()
        .enumerate()
        .map(|(index, drawn)| Series {
            label: drawn.label.to_owned(),
            look: Look::category(index),
            shown: true,
            points: points(sweep.rows.iter(), drawn, &x),
        })
        .collect();
    let without = sweep
        .rows
        .iter()
        .find(|row| row.at.is_none() && row.setting == "none");
    let rules = drawn
        .iter()
        .filter(|_| drawn.len() == 1)
        .filter_map(|drawn| {
            let figure = (drawn.of)(without?)?;
            Some(Rule {
                y: figure.value * drawn.factor,
                label: format!("no {}", x.title),
            })
        });
    Chart {
        id: format!("{}-{}", sweep.sweep, drawn[0].slug()),
        title: format!("{}.", drawn[0].title),
        reading: READING.to_owned(),
        rules: rules.collect(),
        x,
        y: axis(y, Scale::Linear, units::compact),
        series,
        ..Chart::default()
    }
}

fn points<'a>(rows: impl Iterator<Item = &'a ExploreRow>, drawn: &Drawn, x: &Axis) -> Vec<Point> {
    let point = |row: &ExploreRow| {
        let (at, figure) = (row.at?, (drawn.of)(row)?);
        Some(Point {
            x: at,
            y: figure.value * drawn.factor,
            interval: interval(figure, drawn.factor),
            tip: format!(
                "{} {}: {}",
                x.title,
                row.setting,
                facts::with_interval(figure, drawn.format)
            ),
            hollow: false,
        })
    };
    let mut points: Vec<Point> = rows.filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// Ends of an interval; `None` if the figure has none.
fn interval(figure: ExploreFigure, factor: f64) -> Option<(f64, f64)> {
    (figure.low < figure.high).then_some((figure.low * factor, figure.high * factor))
}

/// Time in which all programs finish, compared with running them one after another.
fn at_once(explore: &HarvestExplore, sweep: &ExploredSweep) -> Markup {
    let x = || axis("programs", Scale::Linear, units::compact);
    let mut done = lines(sweep, &[ALL], x(), "seconds");
    if let Some(alone) = explore
        .alone
        .primary_s
        .filter(|_| explore.options.own_scavenger)
    {
        let point = |row: &ExploreRow| {
            let programs = row.at?;
            Some(Point {
                x: programs,
                y: programs * alone.value,
                tip: format!(
                    "{programs} one after another: {}",
                    units::seconds(programs * alone.value)
                ),
                ..Point::default()
            })
        };
        done.series.push(Series {
            label: "one after another".to_owned(),
            look: Look::category(1),
            shown: true,
            points: sweep.rows.iter().filter_map(point).collect(),
        });
    }
    let fast = lines(sweep, &[SPEEDUP], x(), "times as fast as one after another");
    html! { (done.markup()) (fast.markup()) }
}

/// One bar per row, labelled with the row's setting.
fn bars(sweep: &ExploredSweep, drawn: Drawn, y: &str, extent: Extent) -> Markup {
    let rows: Vec<(&ExploreRow, ExploreFigure)> = sweep
        .rows
        .iter()
        .filter_map(|row| Some((row, (drawn.of)(row)?)))
        .collect();
    let crowded = match extent {
        Extent::Full => rows.len() > 8,
        Extent::Half => rows.len() > 5,
    };
    let group = |(index, (row, figure)): (usize, &(&ExploreRow, ExploreFigure))| {
        let name = row.setting.clone();
        // Labels of many rows alternate between two lines, so that they do not overlap.
        let (label, detail) = if crowded && index % 2 == 1 {
            (String::new(), name)
        } else {
            (name, String::new())
        };
        BarGroup {
            label,
            detail,
            bars: vec![Bar {
                value: figure.value * drawn.factor,
                interval: interval(*figure, drawn.factor),
                tip: format!(
                    "{}: {}",
                    row.setting,
                    facts::with_interval(*figure, drawn.format)
                ),
                ..Bar::default()
            }],
        }
    };
    Bars {
        id: format!("{}-bars-{}", sweep.sweep, drawn.slug()),
        title: format!("{}.", drawn.title),
        reading: "The line over a bar is what rounds differ by.".to_owned(),
        extent,
        y: axis(y, Scale::Linear, units::compact),
        kinds: vec![drawn.label.to_owned()],
        groups: rows.iter().enumerate().map(group).collect(),
        table: DataTable {
            head: vec![facts::setting_title(sweep.sweep).to_owned(), y.to_owned()],
            rows: rows
                .iter()
                .map(|(row, figure)| {
                    let value = facts::with_interval(*figure, drawn.format);
                    vec![row.setting.clone(), value]
                })
                .collect(),
        },
    }
    .markup()
}
