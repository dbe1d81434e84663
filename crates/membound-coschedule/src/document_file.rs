//! Documents in files: their form when they are written, and how they are read back.

use std::path::Path;

use membound_input::OtherDocument;
use membound_platform::output_file::replace;
use membound_types::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{At as _, Error};

/// Writes a document as indented JSON, in one step.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write<T: Serialize>(path: &Path, document: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(document).at(|| "cannot write JSON".to_owned())?;
    Ok(replace(path, &(text + "\n"))?)
}

/// Reads the document of this `kind` from the file at `path`; `what` names the kind in errors. Returns
/// [`OtherDocument`] for a document of another kind or version.
///
/// # Errors
/// If the file cannot be read, or holds no document.
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    kind: Kind,
    what: &str,
) -> Result<Result<T, OtherDocument>, Error> {
    let bytes = std::fs::read(path).at(|| format!("cannot read {}", path.display()))?;
    membound_input::document(&bytes, kind).at(|| format!("{} is no {what}", path.display()))
}
