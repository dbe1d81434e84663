//! Whether every crate can be packaged: its metadata is complete, and cargo packs it.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::run::{cargo, stdout_of, succeed};

/// Required metadata of a crate besides name and version. There is no `repository` as long as the
/// project has no public address.
const FIELDS: [&str; 6] = [
    "description",
    "license",
    "readme",
    "documentation",
    "keywords",
    "categories",
];
/// Maximum number of keywords, and of categories, that crates.io accepts for a crate.
const MAX_ENTRIES: usize = 5;
/// Maximum letters of a keyword.
const KEYWORD_LETTERS: usize = 20;

/// Step of `cargo xtask ci`. The packages are not built: `launch` builds the agent from the crate
/// beside it.
pub(crate) fn check() -> Result<()> {
    let metadata = stdout_of(&mut cargo(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata = serde_json::from_str(&metadata)?;
    let mut wrong = missing(&metadata);
    wrong.extend(refused(&metadata));
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
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

/// Fields that crates lack; xtask is not packaged.
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

/// Metadata that `cargo package` accepts and crates.io refuses.
fn refused(metadata: &Value) -> Vec<String> {
    let mut refused = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        for field in ["keywords", "categories"] {
            let count = package[field].as_array().map_or(0, Vec::len);
            if count > MAX_ENTRIES {
                refused.push(format!(
                    "crate {name} has {count} {field}; crates.io takes {MAX_ENTRIES}"
                ));
            }
        }
        for keyword in package["keywords"].as_array().into_iter().flatten() {
            let keyword = keyword.as_str().unwrap_or_default();
            let is_word = keyword.starts_with(|first: char| first.is_ascii_alphanumeric())
                && keyword
                    .chars()
                    .all(|it| it.is_ascii_alphanumeric() || "_-+".contains(it));
            if !is_word || keyword.len() > KEYWORD_LETTERS {
                refused.push(format!(
                    "crate {name}: crates.io refuses the keyword `{keyword}`"
                ));
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_crate_does_not_say_is_named() {
        let whole = json!({ "name": "a", "description": "x", "license": "x", "readme": "x", "documentation": "x",
            "keywords": ["x"], "categories": ["x"] });
        let mut part = whole.clone();
        part["name"] = "b".into();
        part["readme"] = Value::Null;
        part["keywords"] = json!([]);
        let found = missing(&json!({ "packages": [whole, part] }));
        assert_eq!(found, ["crate b has no readme", "crate b has no keywords"]);
    }

    #[test]
    fn what_crates_io_refuses_is_named() {
        let crate_with = |keywords: &[&str]| {
            let package = json!({ "name": "a", "keywords": keywords, "categories": ["x"] });
            refused(&json!({ "packages": [package] }))
        };
        assert!(crate_with(&["memory", "c-2_x+"]).is_empty());
        let long = "a".repeat(KEYWORD_LETTERS + 1);
        for bad in ["", "two words", "-a", &long] {
            let found = crate_with(&[bad]);
            let named = format!("crate a: crates.io refuses the keyword `{bad}`");
            assert_eq!(found, [named]);
        }
        let found = crate_with(&["a", "b", "c", "d", "e", "f"]);
        assert_eq!(found, ["crate a has 6 keywords; crates.io takes 5"]);
    }
}
