//! Reads files into the form that `compare` uses, or into one line that says what is wrong and where:
//! documents of membound, and results of other programs.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::anyhow;
use membound_input::{Content, Curve, LoadedCurve};
use membound_model::compare::{
    ForeignChase, LoadedPointView, MachineView, NamedProfile, ProfileView,
};
use membound_types::{FitData, Kind, OverlayPoint, SCHEMA_VERSION};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// The fields that all documents have, and the machine of a part's document.
#[derive(Deserialize)]
struct Envelope {
    schema_version: Option<u32>,
    kind: Option<String>,
    #[serde(default)]
    incomplete: bool,
    machine: Option<MachineView>,
}

/// Reads a file that the user named: a machine profile, a document of one part, the profiles of several CPUs,
/// or the result of another program.
pub(super) fn file(path: &Path) -> anyhow::Result<Vec<NamedProfile>> {
    let mut bytes = Vec::new();
    let name = path.display().to_string();
    load(path, &mut bytes).map_err(|reason| anyhow!("{name}: {reason}"))?;
    let views = if bytes.trim_ascii_start().starts_with(b"{") {
        documents(&bytes)
            .and_then(|views| views.into_iter().map(sound).collect::<Result<Vec<_>, _>>())
            // Other programs write JSON too.
            .or_else(|reason| match membound_input::read(&name, &bytes) {
                Ok(Content::Loaded(curves)) => Ok(vec![loaded_view(curves)]),
                _ => Err(anyhow!("{name}: {reason}")),
            })?
    } else {
        vec![foreign(&name, &bytes)?]
    };
    let named = views.into_iter().map(|view| NamedProfile {
        file: name.clone(),
        view,
    });
    Ok(named.collect())
}

/// Reads the result of another program.
fn foreign(name: &str, bytes: &[u8]) -> anyhow::Result<ProfileView> {
    match membound_input::read(name, bytes)? {
        Content::Loaded(curves) => Ok(loaded_view(curves)),
        Content::Curves(curves) if curves.iter().all(|curve| curve.data == FitData::Latency) => {
            Ok(over_sizes(curves))
        }
        Content::Curves(_) => Err(anyhow!(
            "{name}: windows in a table have no figures to compare (`membound model fit` takes \
             them)"
        )),
        // Content that begins with a brace was handled before, so this document has a byte order mark in
        // front of it.
        Content::Profile(_) | Content::Model(_) => Err(anyhow!(
            "{name}: a byte order mark before the document; save the file without it"
        )),
    }
}

fn loaded_view(curves: Vec<LoadedCurve>) -> ProfileView {
    let mut view = ProfileView::default();
    for curve in curves {
        note(&mut view, curve.notes);
        let points = curve.points.iter().map(|point| LoadedPointView {
            mix: curve.mix.clone(),
            gb_s: point.gb_s,
            ns: point.ns,
            ns_low: point.ns,
            ns_high: point.ns,
        });
        view.loaded.points.extend(points);
    }
    view
}

fn over_sizes(curves: Vec<Curve>) -> ProfileView {
    let mut view = ProfileView::default();
    for curve in curves {
        note(&mut view, curve.notes);
        let points = curve.observations.iter().map(|it| OverlayPoint {
            x: it.area_bytes as f64,
            y: it.ns,
            low: it.ns_low,
            high: it.ns_high,
        });
        view.chases.push(ForeignChase {
            series: curve.series,
            points: points.collect(),
        });
    }
    view
}

/// Adds `notes`, without those that another curve of the file added already.
fn note(view: &mut ProfileView, notes: Vec<String>) {
    for note in notes {
        if !view.notes.contains(&note) {
            view.notes.push(note);
        }
    }
}

/// The profiles of several CPUs, else the one document that the file holds.
fn documents(bytes: &[u8]) -> Result<Vec<ProfileView>, String> {
    #[derive(Deserialize)]
    struct Several {
        kind: Kind,
        profiles: Vec<ProfileView>,
    }
    match serde_json::from_slice::<Several>(bytes) {
        Ok(several) if several.kind == Kind::Processors => Ok(several.profiles),
        _ => document(bytes).map(|view| vec![view]),
    }
}

/// Reads a machine profile of a fleet, into the buffer `bytes`, which is used again for each file.
pub(super) fn profile_into(path: &Path, bytes: &mut Vec<u8>) -> Result<ProfileView, String> {
    load(path, bytes)?;
    let view = document(bytes).and_then(sound)?;
    match view.kind {
        Some(Kind::Machine) => Ok(view),
        other => Err(format!(
            "a document of kind `{}`, no machine profile",
            other.map_or("?", Kind::name)
        )),
    }
}

fn load(path: &Path, bytes: &mut Vec<u8>) -> Result<(), String> {
    bytes.clear();
    File::open(path)
        .and_then(|mut file| file.read_to_end(bytes))
        .map(drop)
        .map_err(|error| format!("cannot be read: {error}"))
}

fn document(bytes: &[u8]) -> Result<ProfileView, String> {
    // A profile is parsed in one pass, since fleets hold thousands of them.
    let whole = serde_json::from_slice::<ProfileView>(bytes);
    if let Ok(view) = &whole
        && view.kind == Some(Kind::Machine)
        && view.schema_version == Some(SCHEMA_VERSION)
    {
        return whole.map_err(|error| place(&error));
    }
    let envelope: Envelope = parse(bytes)?;
    let (Some(version), Some(kind)) = (envelope.schema_version, &envelope.kind) else {
        return Err(
            "no document of membound: it has no schema_version and kind (`membound measure \
             --json FILE` writes one)"
                .to_owned(),
        );
    };
    if version != SCHEMA_VERSION {
        return Err(format!(
            "schema version {version}, this membound reads {SCHEMA_VERSION} (measure again, or \
             compare with the membound that wrote it)"
        ));
    }
    let Ok(kind) = kind.parse::<Kind>() else {
        return Err(format!(
            "a document of kind `{kind}`, which this membound does not know"
        ));
    };
    let mut view = ProfileView {
        schema_version: Some(version),
        kind: Some(kind),
        incomplete: envelope.incomplete,
        machine: envelope.machine,
        ..ProfileView::default()
    };
    match kind {
        Kind::Machine => return whole.map_err(|error| place(&error)),
        Kind::Latency => view.latency = parse(bytes)?,
        Kind::Mlp => view.mlp = parse(bytes)?,
        Kind::Window => view.window = parse(bytes)?,
        Kind::Bandwidth => view.bandwidth = parse(bytes)?,
        Kind::Loaded => view.loaded = parse(bytes)?,
        Kind::Tlb => view.tlb = parse(bytes)?,
        Kind::Prefetch => view.prefetch = parse(bytes)?,
        Kind::Numa => view.numa = parse(bytes)?,
        Kind::C2c => view.c2c = parse(bytes)?,
        Kind::Model => view.model = parse(bytes)?,
        _ => {
            return Err(format!(
                "a document of kind `{kind}`, which has no figures to compare"
            ));
        }
    }
    Ok(view)
}

/// Returns the view unless a time, size or rate in it is no positive number: the comparison would take it for
/// a change of the machine.
fn sound(view: ProfileView) -> Result<ProfileView, String> {
    let levels = view.levels.iter().map(|it| it.latency_ns);
    let latency = view.latency.points.iter().map(|it| it.ns);
    let window = view.window.points.iter().map(|it| it.seconds_per_window);
    let bandwidth = view.bandwidth.points.iter().map(|it| it.gb_s);
    let loaded = view.loaded.points.iter().map(|it| it.ns);
    let c2c = view.c2c.pairs.iter().map(|it| it.one_way_ns);
    let wrong = first_wrong("levels", "latency_ns", levels)
        .or_else(|| first_wrong("latency.points", "ns", latency))
        .or_else(|| first_wrong("window.points", "seconds_per_window", window))
        .or_else(|| first_wrong("bandwidth.points", "gb_s", bandwidth))
        .or_else(|| first_wrong("loaded.points", "ns", loaded))
        .or_else(|| first_wrong("c2c.pairs", "one_way_ns", c2c));
    wrong.map_or(Ok(view), Err)
}

fn first_wrong(list: &str, field: &str, values: impl Iterator<Item = f64>) -> Option<String> {
    let usable = |value: f64| value > 0.0 && value.is_finite();
    let (index, value) = values.enumerate().find(|(_, value)| !usable(*value))?;
    Some(format!(
        "{list}[{index}].{field} is {value}, which is no positive number (measure again)"
    ))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| place(&error))
}

/// What is wrong with JSON and where, as a fragment.
fn place(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Eof => format!(
            "ends in the middle of the document, at line {} column {} (copy or measure it again)",
            error.line(),
            error.column()
        ),
        Category::Syntax => format!("no JSON: {error}"),
        Category::Data | Category::Io => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, parts: &[&str]) {
        let error = document(text.as_bytes()).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    }

    #[test]
    fn incomparable_files_are_refused_with_reason_and_path() {
        check("", &["ends in the middle", "line 1 column 0"]);
        check(
            "{\"schema_version\": 1, \"ki",
            &["ends in the middle", "line 1"],
        );
        check("size,ns\n1,2\n", &["no JSON", "line 1 column 1"]);
        check("{}", &["no schema_version"]);
        check("[1]", &["line 1"]);
        check(
            r#"{"schema_version": 9, "kind": "machine"}"#,
            &["schema version 9", "reads 1"],
        );
        check(r#"{"schema_version": 1, "kind": "zigzag"}"#, &["`zigzag`"]);
        check(
            r#"{"schema_version": 1, "kind": "doctor"}"#,
            &["`doctor`", "no figures"],
        );
        check(
            r#"{"schema_version": 1, "kind": "machine", "levels": [{"name": 5}]}"#,
            &["expected a string", "line 1 column 6"],
        );
    }

    #[test]
    fn documents_of_one_part_are_read_with_their_machine() {
        let text = r#"{"schema_version": 1, "kind": "tlb", "machine": {"host": "a"},
            "levels": [{"page": "4k", "level": 1,
                "entries": {"value": 96.0, "low": 90.0, "high": 100.0, "basis": "estimated"},
                "reach_bytes": 393216,
                "miss_cycles": {"value": 7.0, "low": 6.0, "high": 8.0, "basis": "estimated"}}]}"#;
        let view = document(text.as_bytes()).unwrap();
        assert_eq!(view.host(), "a");
        assert_eq!(view.tlb.levels.len(), 1);
    }
}
