//! Whether every crate can be packaged: it says what it is, and cargo packs it.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::run::{cargo, stdout_of, succeed};

/// What a crate says of itself beside name, version and licence.
const FIELDS: [&str; 5] = [
    "description",
    "readme",
    "documentation",
    "keywords",
    "categories",
];

/// The step of `cargo xtask ci`. The packages are not built: `launch` builds the agent from the crate beside it.
pub(crate) fn check() -> Result<()> {
    let metadata = stdout_of(&mut cargo(["metadata", "--no-deps", "--format-version=1"]))?;
    let missing = missing(&serde_json::from_str(&metadata)?);
    if !missing.is_empty() {
        bail!("{}", missing.join("\n"));
    }
    succeed(&mut cargo([
        "package",
        "--quiet",
        "--workspace",
        "--exclude=xtask",
        "--no-verify",
        "--allow-dirty",
        "--locked",
    ]))
}

/// Fields that crates lack; xtask is packaged by nobody.
fn missing(metadata: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        for field in FIELDS {
            let value = &package[field];
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if is_empty && name != "xtask" {
                missing.push(format!("crate {name} has no {field}"));
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_crate_does_not_say_is_named() {
        let whole = json!({ "name": "a", "description": "x", "readme": "x", "documentation": "x",
            "keywords": ["x"], "categories": ["x"] });
        let mut part = whole.clone();
        part["name"] = "b".into();
        part["readme"] = Value::Null;
        part["keywords"] = json!([]);
        let found = missing(&json!({ "packages": [whole, part] }));
        assert_eq!(found, ["crate b has no readme", "crate b has no keywords"]);
    }
}
