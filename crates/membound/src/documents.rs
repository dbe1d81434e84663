//! Reads documents of one kind back from files.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use membound_types::{Kind, SCHEMA_VERSION};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// What a file holds instead of the wanted document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// A document of another kind, or one without a kind.
    Kind(Option<Kind>),
    /// A document of another version of the schema, or one without a version.
    Version(Option<u32>),
}

impl fmt::Display for Other {
    /// Continues a sentence that begins with the name of the file.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => {
                let name = kind.map_or("?", Kind::name);
                write!(out, "is a document of kind `{name}`")
            }
            Self::Version(version) => {
                let version = version.map_or_else(|| "none".to_owned(), |it| it.to_string());
                write!(
                    out,
                    "has schema version {version}, this membound reads {SCHEMA_VERSION}"
                )
            }
        }
    }
}

/// Reads the document of this `kind` from the file at `path`; `what` names the kind in errors. Returns
/// [`Other`] for a document of another kind or version.
///
/// # Errors
/// If the file cannot be read, or holds no document.
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    kind: Kind,
    what: &str,
) -> anyhow::Result<Result<T, Other>> {
    #[derive(Deserialize)]
    struct Envelope {
        schema_version: Option<u32>,
        kind: Option<Kind>,
    }
    let place = || format!("{} is no {what}", path.display());
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let envelope: Envelope = serde_json::from_slice(&bytes).with_context(place)?;
    if envelope.kind != Some(kind) {
        return Ok(Err(Other::Kind(envelope.kind)));
    }
    if envelope.schema_version != Some(SCHEMA_VERSION) {
        return Ok(Err(Other::Version(envelope.schema_version)));
    }
    serde_json::from_slice(&bytes).with_context(place).map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_kind_of_document_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("document.json");
        for (text, expected) in [
            (
                r#"{"schema_version":1,"kind":"machine"}"#,
                "is a document of kind `machine`",
            ),
            ("{}", "is a document of kind `?`"),
            (
                r#"{"schema_version":7,"kind":"plan"}"#,
                "has schema version 7, this membound reads 1",
            ),
            (
                r#"{"kind":"plan"}"#,
                "has schema version none, this membound reads 1",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = read::<serde_json::Value>(&path, Kind::HarvestPlan, "plan").unwrap();
            assert_eq!(found.unwrap_err().to_string(), expected);
        }
        std::fs::write(&path, "{").unwrap();
        let error = read::<serde_json::Value>(&path, Kind::HarvestPlan, "plan").unwrap_err();
        assert!(error.to_string().ends_with("document.json is no plan"));
    }
}
