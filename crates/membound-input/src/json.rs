//! membound's own documents: machine profiles, latency, windows, fitted models.
//!
//! A document is parsed twice: its head alone, so that another version or kind is named
//! before anything else is found wrong, and then whole. Parts are read from the document
//! itself and not through the envelope's flattening, which would lose lines and paths.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use membound_types::{Kind, Latency, MachineProfile, Model, SCHEMA_VERSION, Window};

use crate::Content;
use crate::error::Fault;
use crate::points;
use crate::text::{shortened, shown};

/// Longest message of a parser that is handed on, in characters.
const MESSAGE: usize = 240;

/// What all documents begin with, of whatever type.
#[derive(Deserialize)]
struct Head {
    schema_version: Option<Value>,
    kind: Option<Value>,
    #[serde(default)]
    incomplete: Option<Value>,
}

/// Reads a JSON document.
///
/// # Errors
/// A fault with line and column, or with the path of the field that cannot be used.
pub(crate) fn read(text: &str) -> Result<Content, Fault> {
    if text.trim_start().starts_with('[') {
        return Err(Fault::File(
            "a JSON list; membound's documents are objects, one in a file".to_owned(),
        ));
    }
    let head: Head = parse(text)?;
    version(head.schema_version.as_ref())?;
    let kind = kind(head.kind.as_ref())?;
    let incomplete = head.incomplete == Some(Value::Bool(true));
    match kind {
        Kind::Latency => {
            let latency: Latency = parse(text)?;
            points::of_latency(&latency, incomplete).map(Content::Curves)
        }
        Kind::Window => {
            let window: Window = parse(text)?;
            points::of_window(&window, incomplete).map(Content::Curves)
        }
        Kind::Machine => {
            let profile: MachineProfile = parse(text).map_err(|fault| deeper(text, fault))?;
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

/// Deserialises `text`; only when that fails again with a record of the path, which takes
/// twice the time.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| {
        let mut again = serde_json::Deserializer::from_str(text);
        let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(error) => error.path().to_string(),
            // What follows the document is no part of it.
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

/// A parser's message in one short line and in words of the format.
fn plainly(message: &str) -> String {
    if message.contains("untagged enum Outcome") {
        return "neither a value of the right form nor `not_measured` with a reason".to_owned();
    }
    if message.contains("untagged enum NodePolicy") {
        return "expected `local`, `interleave` or a node's number".to_owned();
    }
    shortened(message, MESSAGE)
}

/// A closer look at a profile that could not be read: an `Outcome` only says that it is
/// neither of its forms, the part by itself says which of its fields is wrong.
fn deeper(text: &str, fault: Fault) -> Fault {
    let Ok(Value::Object(parts)) = serde_json::from_str(text) else {
        return fault;
    };
    for (name, part) in parts {
        if part.get("not_measured").is_some() {
            continue;
        }
        let found = match name.as_str() {
            "latency" => wrong_in::<Latency>(part),
            "window" => wrong_in::<Window>(part),
            "model" => wrong_in::<Model>(part),
            "line" => wrong_in::<membound_types::LineSize>(part),
            "mlp" => wrong_in::<membound_types::Mlp>(part),
            "bandwidth" => wrong_in::<membound_types::Bandwidth>(part),
            "loaded" => wrong_in::<membound_types::Loaded>(part),
            "tlb" => wrong_in::<membound_types::Tlb>(part),
            "prefetch" => wrong_in::<membound_types::Prefetch>(part),
            "numa" => wrong_in::<membound_types::Numa>(part),
            "c2c" => wrong_in::<membound_types::CoreToCore>(part),
            _ => None,
        };
        if let Some((path, what)) = found {
            let inside = if path == "." {
                String::new()
            } else {
                format!(".{path}")
            };
            return Fault::Field {
                path: format!("{name}{}", shortened(&inside, MESSAGE)),
                what,
            };
        }
    }
    fault
}

/// Path and reason, where `part` is no `T`.
fn wrong_in<T: DeserializeOwned>(part: Value) -> Option<(String, String)> {
    serde_path_to_error::deserialize::<_, T>(part)
        .err()
        .map(|error| {
            (
                error.path().to_string(),
                plainly(&error.inner().to_string()),
            )
        })
}

/// Whether the parts of a model belong together, so that whoever computes with it need not
/// ask again.
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
    if model.topology.levels.is_empty() {
        return wrong(
            "topology.levels".to_owned(),
            "is empty; a model has at least one level".to_owned(),
        );
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
