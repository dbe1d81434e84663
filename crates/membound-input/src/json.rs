//! Reads membound's own documents: machine profiles, latency, windows, fitted models.
//!
//! A document is parsed twice: first only its head, so that another version or kind is reported
//! before any other flaw, then as a whole. The parts are deserialised directly and not through the
//! flattened envelope, which would lose line numbers and paths.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::RawValue;

use membound_types::{Figure, Kind, Level, MachineInfo, MachineProfile, Model};
use membound_types::{NotMeasured, Outcome, SCHEMA_VERSION};

use crate::content::Content;
use crate::error::Fault;
use crate::fields::{Loads, Windows};
use crate::mess;
use crate::points;
use crate::text::{shortened, shown};

/// Most characters of a parser's message in an error.
const MESSAGE: usize = 240;

/// The first fields of all documents, with values of any type.
#[derive(Deserialize)]
struct Head {
    schema_version: Option<Value>,
    kind: Option<Value>,
    #[serde(default)]
    incomplete: Option<Value>,
}

/// True if `text` is a JSON list; tables of TOML begin with the same character.
pub(crate) fn is_list(text: &str) -> bool {
    text.trim_start().starts_with('[') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Reads a JSON document.
///
/// # Errors
/// A fault with line and column, or with the path of the field that cannot be used.
pub(crate) fn read(text: &str) -> Result<Content, Fault> {
    if is_list(text) {
        return Err(Fault::File(
            "a JSON list; membound's documents are objects, one in a file".to_owned(),
        ));
    }
    if let Some(curves) = mess::read_json(text) {
        return curves.map(Content::Loaded);
    }
    let head: Head = parse(text)?;
    version(head.schema_version.as_ref())?;
    let kind = kind(head.kind.as_ref())?;
    let incomplete = head.incomplete == Some(Value::Bool(true));
    match kind {
        Kind::Latency => {
            let loads: Loads = parse(text)?;
            points::of_loads(&loads, incomplete).map(Content::Curves)
        }
        Kind::Window => {
            let windows: Windows = parse(text)?;
            points::of_windows(&windows, incomplete).map(Content::Curves)
        }
        Kind::Machine => {
            let profile = profile(text)?;
            points::verify(&profile)?;
            Ok(Content::Profile(Box::new(profile)))
        }
        Kind::Model => {
            let model: Model = parse(text)?;
            consistent(&model)?;
            Ok(Content::Model(Box::new(model)))
        }
        other => Err(Fault::Field {
            path: "kind".to_owned(),
            what: format!("`{other}` holds nothing to fit; {ACCEPTED}"),
        }),
    }
}

const ACCEPTED: &str = "accepted are `machine`, `latency`, `window` and `model`";

fn version(version: Option<&Value>) -> Result<(), Fault> {
    let wrong = |what: String| Fault::Field {
        path: "schema_version".to_owned(),
        what,
    };
    let Some(version) = version else {
        return Err(wrong(format!(
            "is missing: no document of membound, which writes {SCHEMA_VERSION}"
        )));
    };
    let Some(number) = version.as_u64() else {
        return Err(wrong(format!(
            "{} is no version; this membound reads {SCHEMA_VERSION}",
            shown(&version.to_string())
        )));
    };
    if number > u64::from(SCHEMA_VERSION) {
        return Err(wrong(format!(
            "{number} was written by a newer membound; this one reads {SCHEMA_VERSION}: update it, \
             or measure again with this one"
        )));
    }
    if number < u64::from(SCHEMA_VERSION) {
        return Err(wrong(format!(
            "{number} was written by an older membound; this one reads {SCHEMA_VERSION}: measure \
             again"
        )));
    }
    Ok(())
}

fn kind(kind: Option<&Value>) -> Result<Kind, Fault> {
    let wrong = |what: String| Fault::Field {
        path: "kind".to_owned(),
        what,
    };
    let Some(kind) = kind else {
        return Err(wrong(format!("is missing; {ACCEPTED}")));
    };
    let Some(name) = kind.as_str() else {
        return Err(wrong(format!(
            "{} is no kind; {ACCEPTED}",
            shown(&kind.to_string())
        )));
    };
    name.parse()
        .map_err(|_| wrong(format!("{} is not known here; {ACCEPTED}", shown(name))))
}

/// Deserialises `text`. Only on failure it is deserialised again to record the path of the error,
/// which takes twice as long.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| {
        let mut again = serde_json::Deserializer::from_str(text);
        let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(error) => error.path().to_string(),
            // The error is about text after the document, so it has no path.
            Ok(_) => ".".to_owned(),
        };
        fault(&error, &path)
    })
}

fn fault(error: &serde_json::Error, path: &str) -> Fault {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    let message = plainly(message);
    let column = error.column();
    let what = match error.classify() {
        Category::Eof => {
            format!("column {column}: the JSON ends in the middle: the file looks cut off")
        }
        Category::Syntax if message == "trailing characters" => {
            format!(
                "column {column}: more text after the end of the document; one file, one document"
            )
        }
        Category::Syntax | Category::Io => format!("column {column}: {message}"),
        Category::Data if path == "." => format!("column {column}: {message}"),
        Category::Data => format!("{}: {message}", shortened(path, MESSAGE)),
    };
    Fault::line(error.line(), what)
}

/// A parser's message in one short line, in terms of the format.
fn plainly(message: &str) -> String {
    if message.contains("untagged enum Outcome") {
        return "neither a value of the right form nor `not_measured` with a reason".to_owned();
    }
    if message.contains("untagged enum NodePolicy") {
        return "expected `local`, `interleave` or a node's number".to_owned();
    }
    shortened(message, MESSAGE)
}

/// A profile whose parts are not yet deserialised.
///
/// An `Outcome` has two forms, so serde would buffer a whole part before it knows which,
/// which takes several times as long and loses the position of an error in it.
#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(default)]
    incomplete: bool,
    levels: Vec<Level>,
    #[serde(borrow)]
    line: &'a RawValue,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    latency: &'a RawValue,
    #[serde(borrow)]
    mlp: &'a RawValue,
    #[serde(borrow)]
    window: &'a RawValue,
    #[serde(borrow)]
    bandwidth: &'a RawValue,
    #[serde(borrow)]
    loaded: &'a RawValue,
    #[serde(borrow)]
    tlb: &'a RawValue,
    #[serde(borrow)]
    prefetch: &'a RawValue,
    #[serde(borrow)]
    numa: &'a RawValue,
    #[serde(borrow)]
    c2c: &'a RawValue,
    #[serde(borrow, default)]
    calibration: Option<&'a RawValue>,
    elapsed_s: f64,
    core_clock_hz: Option<Figure>,
}

/// The form of an `Outcome` without a value.
#[derive(Deserialize)]
struct Missing {
    not_measured: Option<NotMeasured>,
}

/// Reads a machine profile, part by part.
fn profile(text: &str) -> Result<MachineProfile, Fault> {
    let machine: MachineInfo = parse(text)?;
    let parts: Parts<'_> = serde_json::from_str(text).map_err(|error| {
        let mut again = serde_json::Deserializer::from_str(text);
        let path = match serde_path_to_error::deserialize::<_, Parts<'_>>(&mut again) {
            Err(error) => error.path().to_string(),
            Ok(_) => ".".to_owned(),
        };
        fault(&error, &path)
    })?;
    let place = |raw: &RawValue| {
        // A borrowed raw value points into the text that it was parsed from.
        let offset = (raw.get().as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
        let before = text.as_bytes().get(..offset).unwrap_or_default();
        before.iter().filter(|&&byte| byte == b'\n').count()
    };
    Ok(MachineProfile {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Machine,
        incomplete: parts.incomplete,
        machine,
        levels: parts.levels,
        line: part("line", parts.line, place)?,
        model: match parts.model {
            Some(model) => part("model", model, place)?,
            None => Outcome::default(),
        },
        latency: part("latency", parts.latency, place)?,
        mlp: part("mlp", parts.mlp, place)?,
        window: part("window", parts.window, place)?,
        bandwidth: part("bandwidth", parts.bandwidth, place)?,
        loaded: part("loaded", parts.loaded, place)?,
        tlb: part("tlb", parts.tlb, place)?,
        prefetch: part("prefetch", parts.prefetch, place)?,
        numa: part("numa", parts.numa, place)?,
        c2c: part("c2c", parts.c2c, place)?,
        calibration: match parts.calibration {
            Some(calibration) => part("calibration", calibration, place)?,
            None => Outcome::default(),
        },
        elapsed_s: parts.elapsed_s,
        core_clock_hz: parts.core_clock_hz,
    })
}

/// One part of a profile, or the reason why it is missing. `lines_before` returns the number of
/// lines in the document before a piece of it.
fn part<T: DeserializeOwned>(
    name: &str,
    raw: &RawValue,
    lines_before: impl Fn(&RawValue) -> usize,
) -> Result<Outcome<T>, Fault> {
    let text = raw.get();
    if let Ok(Missing {
        not_measured: Some(not_measured),
    }) = serde_json::from_str(text)
    {
        return Ok(Outcome::Missing { not_measured });
    }
    match serde_json::from_str(text) {
        Ok(value) => Ok(Outcome::Known(value)),
        Err(error) => {
            let mut again = serde_json::Deserializer::from_str(text);
            let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
                Err(error) if error.path().to_string() != "." => format!("{name}.{}", error.path()),
                _ => name.to_owned(),
            };
            Err(match fault(&error, &path) {
                Fault::Line { line, what } => Fault::line(lines_before(raw) + line, what),
                other => other,
            })
        }
    }
}

/// Checks that the parts of a model agree, so that computations need not check again. A model
/// without levels is valid: it belongs to a curve that shows none.
fn consistent(model: &Model) -> Result<(), Fault> {
    let wrong = |path: String, what: String| Err(Fault::Field { path, what });
    let parameters = model.parameters.len();
    if model.covariance.len() != parameters {
        return wrong(
            "covariance".to_owned(),
            format!(
                "has {} rows, but there are {parameters} parameters",
                model.covariance.len()
            ),
        );
    }
    for (index, row) in model.covariance.iter().enumerate() {
        if row.len() != parameters {
            return wrong(
                format!("covariance[{index}]"),
                format!(
                    "has {} columns, but there are {parameters} parameters",
                    row.len()
                ),
            );
        }
    }
    for (index, combination) in model.combinations.iter().enumerate() {
        if combination.symbols.len() != combination.coefficients.len() {
            return wrong(
                format!("combinations[{index}].coefficients"),
                format!(
                    "there are {}, but {} symbols",
                    combination.coefficients.len(),
                    combination.symbols.len()
                ),
            );
        }
    }
    for (index, level) in model.topology.levels.iter().enumerate() {
        for symbol in level.path.keys() {
            let known = |component: &membound_types::Component| component.symbol == *symbol;
            if !model.topology.components.iter().any(known) {
                return wrong(
                    format!("topology.levels[{index}].path"),
                    format!("names the component {}, which is none", shown(symbol)),
                );
            }
        }
    }
    Ok(())
}
