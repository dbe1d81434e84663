//! Converts points of membound's own documents to observations.

use membound_types::{FitData, MachineProfile, Observation, Outcome};

use crate::check;
use crate::collect::{Collector, Conditions, Mark};
use crate::content::Curve;
use crate::error::Fault;
use crate::fields::{Batches, Drawn, Load, Loads, Windows};
use crate::text::plural;

/// Note on curves from a document that says `incomplete`.
const INCOMPLETE: &str = "the run was cut short or a part of it failed: there is less here than \
                          was asked for";

/// The latency curves of a profile, then its window curves; empty if neither was measured.
///
/// A latency curve has one pattern, access, page kind, node, CPU, number of threads, state of the
/// prefetchers and stride; a window curve has one kernel, page kind, node and pair of CPUs.
/// Implausible points are excluded and counted in the notes; a profile
/// from [`read`](crate::read) contains none.
#[must_use]
pub fn curves_of_profile(profile: &MachineProfile) -> Vec<Curve> {
    let mut curves = Vec::new();
    if let Outcome::Known(latency) = &profile.latency {
        curves.extend(possible(
            FitData::Latency,
            &latency.points,
            profile.incomplete,
            |collector, point| push_load(collector, &Load::from(point)).map_err(drop),
        ));
    }
    if let Outcome::Known(window) = &profile.window {
        curves.extend(possible(
            FitData::Window,
            &window.points,
            profile.incomplete,
            |collector, point| push_window(collector, &Drawn::from(point)).map_err(drop),
        ));
    }
    curves
}

fn possible<P>(
    data: FitData,
    points: &[P],
    incomplete: bool,
    push: impl Fn(&mut Collector, &P) -> Result<(), ()>,
) -> Vec<Curve> {
    let mut collector = Collector::new(data);
    let refused = points
        .iter()
        .filter(|point| push(&mut collector, point).is_err())
        .count();
    let mut notes = notes_of(incomplete);
    if refused > 0 {
        notes.push(format!(
            "{} that no machine can have measured were left out",
            plural(refused, "point")
        ));
    }
    collector.curves(&notes)
}

fn notes_of(incomplete: bool) -> Vec<String> {
    incomplete
        .then(|| INCOMPLETE.to_owned())
        .into_iter()
        .collect()
}

/// The curves of a latency document.
///
/// # Errors
/// A fault with the path of the first implausible value, or if there are too few points.
pub(crate) fn of_loads(loads: &Loads, incomplete: bool) -> Result<Vec<Curve>, Fault> {
    let mut collector = Collector::new(FitData::Latency);
    for (index, point) in loads.points.iter().enumerate() {
        push_load(&mut collector, point).map_err(|wrong| wrong.at("", index))?;
    }
    finish(collector, &loads.skipped, incomplete)
}

/// The curves of a window document.
///
/// # Errors
/// A fault with the path of the first implausible value, or if there are too few points.
pub(crate) fn of_windows(windows: &Windows, incomplete: bool) -> Result<Vec<Curve>, Fault> {
    let mut collector = Collector::new(FitData::Window);
    for (index, point) in windows.points.iter().enumerate() {
        push_window(&mut collector, point).map_err(|wrong| wrong.at("", index))?;
    }
    let mut curves = finish(collector, &windows.skipped, incomplete)?;
    for curve in &mut curves {
        curve.caches.clone_from(&windows.machine.caches);
    }
    Ok(curves)
}

/// Checks that every point of a profile's curves is plausible.
///
/// # Errors
/// A fault with the path of the first implausible value.
pub(crate) fn verify(profile: &MachineProfile) -> Result<(), Fault> {
    if let Outcome::Known(latency) = &profile.latency {
        let mut collector = Collector::new(FitData::Latency);
        for (index, point) in latency.points.iter().enumerate() {
            push_load(&mut collector, &Load::from(point))
                .map_err(|wrong| wrong.at("latency.", index))?;
        }
    }
    if let Outcome::Known(window) = &profile.window {
        let mut collector = Collector::new(FitData::Window);
        for (index, point) in window.points.iter().enumerate() {
            push_window(&mut collector, &Drawn::from(point))
                .map_err(|wrong| wrong.at("window.", index))?;
        }
    }
    Ok(())
}

fn finish(collector: Collector, skipped: &[String], incomplete: bool) -> Result<Vec<Curve>, Fault> {
    collector
        .finish(&notes_of(incomplete))
        .map_err(|fault| match (fault, skipped.first()) {
            (Fault::File(what), Some(reason)) => Fault::File(format!(
                "{what}; skipped was {}",
                crate::text::shortened(reason, 200)
            )),
            (fault, _) => fault,
        })
}

/// An implausible value: its field, and the reason.
struct Wrong {
    field: &'static str,
    what: String,
}

impl Wrong {
    fn at(self, part: &str, index: usize) -> Fault {
        Fault::Field {
            path: format!("{part}points[{index}].{}", self.field),
            what: self.what,
        }
    }
}

fn in_field(field: &'static str) -> impl Fn(String) -> Wrong {
    move |what| Wrong { field, what }
}

fn push_load(collector: &mut Collector, point: &Load) -> Result<(), Wrong> {
    check::size(point.size_bytes).map_err(in_field("size_bytes"))?;
    check::load(point.ns).map_err(in_field("ns"))?;
    if point.stride_bytes == Some(0) {
        return Err(in_field("stride_bytes")(
            "0 is no stride; strides are above 0".to_owned(),
        ));
    }
    if point.threads == Some(0) {
        return Err(in_field("threads")(
            "0 threads measure nothing; expected is a number above 0".to_owned(),
        ));
    }
    let mut conditions = Conditions::default();
    let mut add = |column: &str, value: Option<String>| {
        if let Some(value) = value {
            conditions.add(column, &value);
        }
    };
    add("pattern", point.pattern.map(|it| it.name().to_owned()));
    add("access", point.access.map(|it| it.name().to_owned()));
    add("page", point.page.map(|it| it.name().to_owned()));
    add("node", point.node.map(|it| it.to_string()));
    add("cpu", point.cpu.map(|it| it.to_string()));
    add("threads", point.threads.map(|it| it.to_string()));
    add("prefetch", point.prefetch.as_ref().map(|it| it.to_string()));
    add("stride_bytes", point.stride_bytes.map(|it| it.to_string()));
    let mut marks = marks_of(&point.batches);
    if point.prefetch_taint.is_some() {
        marks.push(Mark::Tainted);
    }
    if point.page_share.is_some_and(|share| share < 1.0) {
        marks.push(Mark::PartlyPaged);
    }
    let interval = interval(point.ns, point.ns_low, point.ns_high, &mut marks);
    collector.push(
        &conditions,
        point.stride_bytes,
        Observation {
            window_bytes: None,
            area_bytes: point.size_bytes,
            ns: point.ns,
            ns_low: interval.map(|(low, _)| low),
            ns_high: interval.map(|(_, high)| high),
        },
        &marks,
    );
    Ok(())
}

fn push_window(collector: &mut Collector, point: &Drawn) -> Result<(), Wrong> {
    check::size(point.window_bytes).map_err(in_field("window_bytes"))?;
    check::size(point.area_bytes).map_err(in_field("area_bytes"))?;
    if point.window_bytes > point.area_bytes {
        return Err(in_field("window_bytes")(larger(
            point.window_bytes,
            point.area_bytes,
        )));
    }
    check::window(point.window_bytes, point.seconds_per_window)
        .map_err(in_field("seconds_per_window"))?;
    let mut conditions = Conditions::default();
    let mut add = |column: &str, value: Option<String>| {
        if let Some(value) = value {
            conditions.add(column, &value);
        }
    };
    add("kernel", point.kernel.map(|it| it.name().to_owned()));
    add("page", point.page.map(|it| it.name().to_owned()));
    add("node", point.node.map(|it| it.to_string()));
    add("cpu", point.cpu.map(|it| it.to_string()));
    add("init_cpu", point.init_cpu.map(|it| it.to_string()));
    let mut marks = marks_of(&point.batches);
    let interval = interval(
        point.seconds_per_window,
        point.seconds_low,
        point.seconds_high,
        &mut marks,
    );
    collector.push(
        &conditions,
        None,
        Observation {
            window_bytes: Some(point.window_bytes),
            area_bytes: point.area_bytes,
            ns: point.seconds_per_window * 1e9,
            ns_low: interval.map(|(low, _)| low * 1e9),
            ns_high: interval.map(|(_, high)| high * 1e9),
        },
        &marks,
    );
    Ok(())
}

/// Message about a window that does not fit into its area.
pub(crate) fn larger(window_bytes: u64, area_bytes: u64) -> String {
    format!("{window_bytes} bytes do not fit into an area of {area_bytes}")
}

fn marks_of(batches: &Batches) -> Vec<Mark> {
    batches
        .unresolved()
        .then_some(Mark::Unresolved)
        .into_iter()
        .collect()
}

/// The interval of a point. An invalid interval is removed and marked; the point stays.
fn interval(
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
    marks: &mut Vec<Mark>,
) -> Option<(f64, f64)> {
    match check::interval(value, low, high) {
        Ok(interval) => interval,
        Err(_) => {
            marks.push(Mark::NoInterval);
            None
        }
    }
}
