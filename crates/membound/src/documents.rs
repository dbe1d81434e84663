//! Reads documents of one kind back from files.

use std::path::Path;

use anyhow::Context;
pub(crate) use membound_input::OtherDocument as Other;
use membound_types::Kind;
use serde::de::DeserializeOwned;

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
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    membound_input::document(&bytes, kind)
        .with_context(|| format!("{} is no {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_document_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("document.json");
        std::fs::write(&path, "{").unwrap();
        let error = read::<serde_json::Value>(&path, Kind::HarvestPlan, "plan").unwrap_err();
        assert!(error.to_string().ends_with("document.json is no plan"));
    }
}
