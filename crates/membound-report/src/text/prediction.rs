//! `model predict` on a terminal: predicted times with their intervals.

use membound_types::{ExpectedHits, Outcome, Prediction};

use super::out::Out;
use super::table::{Align, Table};
use crate::facts::model as facts;
use crate::units;

/// Smallest share of a level that is listed.
const MIN_SHARE: f64 = 0.005;
/// Most cautions that are written; the rest is counted. Each caution names its subject, so the points need
/// not be listed beside it.
const MAX_CAUTIONS: usize = 6;
const STRIDES: &str = "at strides other than a cache line, brackets also hold what differs \
                       between ways that caches may place and replace lines";
/// Most points that are named beside a reason; the rest is counted.
const MAX_NAMED: usize = 4;

pub(super) fn write(out: &mut Out, prediction: &Prediction) {
    let source = facts::source_words(&prediction.source);
    if !source.is_empty() {
        out.line(&source.join(" · "));
    }
    out.heading(
        "prediction",
        &format!(
            "{}, topology {}; brackets hold 95 % of measurements",
            units::plural(prediction.points.len(), "point"),
            prediction.topology
        ),
    );
    let mut table = Table::new()
        .figures("window")
        .figures("area")
        .figures("stride")
        .figures("ns")
        .column("interval", Align::Right, 1)
        .column("served by", Align::Left, 2);
    let marked = prediction.points.iter().any(|p| p.caution.is_some());
    let mut missing: Vec<(String, Vec<String>)> = Vec::new();
    for point in &prediction.points {
        let area = units::bytes(point.area_bytes);
        let mark = match (marked, &point.caution) {
            (false, _) => "",
            (true, Some(_)) => "!",
            (true, None) => " ",
        };
        let (ns, interval) = match &point.ns {
            Outcome::Known(figure) => (
                units::number(figure.value),
                units::interval(figure.low, figure.high),
            ),
            Outcome::Missing { not_measured } => {
                let reason = match &not_measured.remedy {
                    Some(remedy) => format!("{} ({remedy})", not_measured.reason),
                    None => not_measured.reason.clone(),
                };
                gather(&mut missing, reason, area.clone());
                ("–".to_owned(), String::new())
            }
        };
        table.row([
            point.window_bytes.map(units::bytes).unwrap_or_default(),
            area,
            point.stride_bytes.map(units::bytes).unwrap_or_default(),
            format!("{ns}{mark}"),
            interval,
            served_by(&point.expected),
        ]);
    }
    if table.is_empty() {
        out.warning("nothing was asked for: name sizes, strides or windows");
        return;
    }
    out.table(&table);
    warn(out, prediction);
    if prediction.points.iter().any(|p| p.stride_bytes.is_some()) {
        out.note(STRIDES);
    }
    for (reason, areas) in &missing {
        out.note(&format!("– {}: {reason}", named_places(areas)));
    }
}

/// Writes each caution of the points once.
fn warn(out: &mut Out, prediction: &Prediction) {
    let mut cautions: Vec<&str> = Vec::new();
    let all = prediction.points.iter().filter_map(|p| p.caution.as_ref());
    for part in all.flat_map(|caution| caution.split("; ")) {
        if !cautions.contains(&part) {
            cautions.push(part);
        }
    }
    for caution in cautions.iter().take(MAX_CAUTIONS) {
        out.warning(caution);
    }
    if let Some(rest @ 1..) = cautions.len().checked_sub(MAX_CAUTIONS) {
        out.warning(&format!("and {rest} more of the kind: see the JSON"));
    }
}

/// Levels by share: `L2 12 %, L3 88 %`, without negligible ones.
fn served_by(expected: &[ExpectedHits]) -> String {
    let words: Vec<String> = expected
        .iter()
        .filter(|hits| hits.share >= MIN_SHARE)
        .map(|hits| format!("{} {}", hits.level, units::percent(hits.share)))
        .collect();
    words.join(", ")
}

fn gather<T: PartialEq>(found: &mut Vec<(T, Vec<String>)>, text: T, place: String) {
    match found.iter_mut().find(|(known, _)| *known == text) {
        Some((_, places)) if places.contains(&place) => {}
        Some((_, places)) => places.push(place),
        None => found.push((text, vec![place])),
    }
}

fn named_places(places: &[String]) -> String {
    let mut words: Vec<&str> = places.iter().take(MAX_NAMED).map(String::as_str).collect();
    let rest = places.len().saturating_sub(MAX_NAMED);
    let more = format!("{rest} more");
    if rest > 0 {
        words.push(&more);
    }
    words.join(", ")
}
