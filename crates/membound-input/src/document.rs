//! Documents of membound other than curves: their envelope, and their content as a type of `membound-types`.

use std::fmt;

use membound_types::{Kind, SCHEMA_VERSION};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// What bytes hold instead of the wanted document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherDocument {
    /// A document of another kind, or one without a kind.
    Kind(Option<Kind>),
    /// A document of another version of the schema, or one without a version.
    Version(Option<u32>),
}

impl fmt::Display for OtherDocument {
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

/// Parses the document of this `kind`. Returns [`OtherDocument`] for a document of another kind or version.
///
/// # Errors
/// If the bytes are no document, or lack fields of one.
pub fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    kind: Kind,
) -> Result<Result<T, OtherDocument>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Envelope {
        schema_version: Option<u32>,
        kind: Option<Kind>,
    }
    let envelope: Envelope = serde_json::from_slice(bytes)?;
    if envelope.kind != Some(kind) {
        return Ok(Err(OtherDocument::Kind(envelope.kind)));
    }
    if envelope.schema_version != Some(SCHEMA_VERSION) {
        return Ok(Err(OtherDocument::Version(envelope.schema_version)));
    }
    serde_json::from_slice(bytes).map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_another_document_is_named() {
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
            let found = parse::<serde_json::Value>(text.as_bytes(), Kind::HarvestPlan).unwrap();
            assert_eq!(found.unwrap_err().to_string(), expected);
        }
        assert!(parse::<serde_json::Value>(b"{", Kind::HarvestPlan).is_err());
    }
}
