//! CSV tables for other programs: one header line, then one line per point.
//!
//! The first columns are those that `membound model fit` reads (`size_bytes,ns` and
//! `window_bytes,area_bytes,seconds_per_window`); the conditions of a point follow. Numbers are written
//! with full precision, and fields are quoted according to RFC 4180.

use std::collections::BTreeSet;
use std::fmt::Display;

use membound_types::{FitData, Latency, Mlp, Model, Outcome, Prediction, Window};

use crate::facts;
use crate::facts::model::deviation;

/// Table of all latency points: `size_bytes,ns,ns_low,ns_high,cycles,…`.
#[must_use]
pub fn latency(latency: &Latency) -> String {
    let mut out = String::from(
        "size_bytes,ns,ns_low,ns_high,cycles,stride_bytes,pattern,access,page,node,cpu,threads,\
         prefetch,samples,disturbed\n",
    );
    for point in &latency.points {
        row(
            &mut out,
            &[
                &point.size_bytes,
                &number(point.ns),
                &number(point.ns_low),
                &number(point.ns_high),
                &number(point.cycles),
                &point.stride_bytes,
                &point.pattern,
                &point.access,
                &point.page,
                &point.node,
                &point.cpu,
                &point.threads,
                &point.prefetch,
                &point.samples,
                &point.batches.disturbed.any(),
            ],
        );
    }
    out
}

/// Table of all cells of the N × K planes and of the loads in sequence, of all conditions:
/// `mode,loads,fillers,filler,cycles,spread,…`.
#[must_use]
pub fn mlp(mlp: &Mlp) -> String {
    let mut out = String::from("mode,loads,fillers,filler,cycles,spread,area_bytes,page,node\n");
    for cell in facts::runs(mlp).flat_map(|run| &run.cells) {
        row(
            &mut out,
            &[
                &cell.mode,
                &cell.loads,
                &cell.fillers,
                &cell.filler,
                &number(cell.cycles),
                &number(cell.spread),
                &cell.area_bytes,
                &cell.page,
                &cell.node,
            ],
        );
    }
    out
}

/// Table of all window points: `window_bytes,area_bytes,seconds_per_window,…`.
#[must_use]
pub fn window(window: &Window) -> String {
    let mut out = String::from(
        "window_bytes,area_bytes,seconds_per_window,seconds_low,seconds_high,kernel,page,node,\
         cpu,init_cpu,disturbed,mflops\n",
    );
    for point in &window.points {
        let init_cpu = point
            .init_cpu
            .map(|cpu| cpu.to_string())
            .unwrap_or_default();
        row(
            &mut out,
            &[
                &point.window_bytes,
                &point.area_bytes,
                &number(point.seconds_per_window),
                &number(point.seconds_low),
                &number(point.seconds_high),
                &point.kernel,
                &point.page,
                &point.node,
                &point.cpu,
                &init_cpu,
                &point.batches.disturbed.any(),
                &number(facts::windows::mflops(point)),
            ],
        );
    }
    out
}

/// Table of all points of a fit with the model's value: `window_bytes,area_bytes,seconds_per_window,…` if
/// windows were fitted, `size_bytes,ns,…` if loads were. `deviation` is model ÷ measured − 1.
#[must_use]
pub fn fitted(model: &Model) -> String {
    let windows = model.method.data == FitData::Window;
    let mut out = String::from(if windows {
        "window_bytes,area_bytes,seconds_per_window,seconds_low,seconds_high,model_seconds,\
         deviation\n"
    } else {
        "size_bytes,ns,ns_low,ns_high,model_ns,deviation\n"
    });
    for point in &model.points {
        let measured = &point.measured;
        let time = |ns: f64| number(if windows { ns * 1e-9 } else { ns });
        let end = |ns: Option<f64>| ns.map(time).unwrap_or_default();
        let area = measured.area_bytes.to_string();
        let mut fields = vec![area];
        if windows {
            fields.insert(0, optional(measured.window_bytes));
        }
        fields.extend([
            time(measured.ns),
            end(measured.ns_low),
            end(measured.ns_high),
            time(point.model_ns),
            deviation(point).map(number).unwrap_or_default(),
        ]);
        strings(&mut out, &fields);
    }
    out
}

/// Table of all predicted points.
///
/// The header is `window_bytes,area_bytes,stride_bytes,ns,ns_low,ns_high,caution,missing`, then a column
/// `share NAME` for each level. A field that does not apply is empty; `missing` says why there is no time.
#[must_use]
pub fn prediction(prediction: &Prediction) -> String {
    let mut names = BTreeSet::new();
    let levels: Vec<&str> = prediction
        .points
        .iter()
        .flat_map(|point| &point.expected)
        .map(|hits| hits.level.as_str())
        .filter(|level| names.insert(*level))
        .collect();
    let mut out =
        String::from("window_bytes,area_bytes,stride_bytes,ns,ns_low,ns_high,caution,missing");
    for level in &levels {
        out.push(',');
        out.push_str(&quoted(format!("share {level}")));
    }
    out.push('\n');
    for point in &prediction.points {
        let (times, missing) = match &point.ns {
            Outcome::Known(ns) => ([ns.value, ns.low, ns.high].map(number), ""),
            Outcome::Missing { not_measured } => (Default::default(), not_measured.reason.as_str()),
        };
        let mut fields = vec![
            optional(point.window_bytes),
            point.area_bytes.to_string(),
            optional(point.stride_bytes),
        ];
        fields.extend(times);
        fields.push(point.caution.clone().unwrap_or_default());
        fields.push(missing.to_owned());
        fields.extend(levels.iter().map(|level| {
            let hits = point.expected.iter().find(|hits| hits.level == *level);
            hits.map(|hits| number(hits.share)).unwrap_or_default()
        }));
        strings(&mut out, &fields);
    }
    out
}

fn optional(value: Option<u64>) -> String {
    value.map(|bytes| bytes.to_string()).unwrap_or_default()
}

/// Writes one line of `fields`, each quoted if necessary.
pub(crate) fn strings(out: &mut String, fields: &[String]) {
    let fields: Vec<&dyn Display> = fields.iter().map(|field| field as &dyn Display).collect();
    row(out, &fields);
}

fn row(out: &mut String, fields: &[&dyn Display]) {
    for (index, field) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&quoted(field.to_string()));
    }
    out.push('\n');
}

/// Full-precision text of a number; empty for NaN and infinities, which readers must not take for numbers.
pub(crate) fn number(value: f64) -> String {
    if value.is_finite() {
        value.to_string()
    } else {
        String::new()
    }
}

fn quoted(field: String) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_separators_are_quoted() {
        assert_eq!(quoted("plain".into()), "plain");
        assert_eq!(quoted("a,\"b\"".into()), "\"a,\"\"b\"\"\"");
        assert_eq!(number(f64::NAN), "");
        assert_eq!(number(1.4e-6), "0.0000014");
    }

    #[test]
    fn an_empty_part_is_a_header() {
        assert!(latency(&Latency::default()).starts_with("size_bytes,ns,"));
        assert_eq!(latency(&Latency::default()).lines().count(), 1);
        assert!(
            window(&Window::default()).starts_with("window_bytes,area_bytes,seconds_per_window,")
        );
    }
}
