//! Checks ARCHITECTURE.md against the workspace: its layers and its table of crates are right, and
//! it stays short.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::run::{cargo, read, root, stdout_of};

const PAGE: &str = "ARCHITECTURE.md";
const MAX_LINES: usize = 250;
/// Placeholder in the table where a crate uses no other.
const NONE: &str = "–";

/// Each crate, and the crates that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Step of `cargo xtask ci`.
pub(crate) fn check() -> Result<()> {
    let page = read(&root().join(PAGE))?;
    let metadata = stdout_of(&mut cargo(["metadata", "--no-deps", "--format-version=1"]))?;
    let uses = uses(&serde_json::from_str(&metadata)?);
    let problems = problems(&page, &uses);
    if !problems.is_empty() {
        bail!("{PAGE}: {}", problems.join("\n"));
    }
    Ok(())
}

/// The crates that `cargo metadata` lists, without dependencies of tests and builds.
fn uses(metadata: &Value) -> Uses {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let own: BTreeSet<&str> = packages
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    let mut uses = Uses::new();
    for package in &packages {
        let used = list(&package["dependencies"])
            .iter()
            .filter(|it| it["kind"].is_null())
            .filter_map(|it| it["name"].as_str())
            .filter(|name| own.contains(name))
            .map(short)
            .collect();
        uses.insert(short(package["name"].as_str().unwrap_or_default()), used);
    }
    uses
}

/// A crate's name as the page writes it.
fn short(name: &str) -> String {
    name.strip_prefix("membound-").unwrap_or(name).to_owned()
}

fn problems(page: &str, uses: &Uses) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = page.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("{lines} lines; {MAX_LINES} are the limit"));
    }
    let written = table(page);
    let layers = layers(page);
    for (name, used) in uses {
        match written.get(name) {
            None => problems.push(format!("the table has no crate {name}")),
            Some(said) => {
                let missing = used
                    .difference(said)
                    .map(|other| format!("{name} uses {other}, which the table does not permit"));
                let stale = said.difference(used).map(|other| {
                    format!("the table says that {name} uses {other}, which it does not")
                });
                problems.extend(missing.chain(stale));
            }
        }
        // xtask is outside the layers.
        let Some(layer) = layers.get(name) else {
            if name != "xtask" {
                problems.push(format!("no layer has crate {name}"));
            }
            continue;
        };
        for other in used {
            if layers.get(other).is_some_and(|below| below >= layer) {
                problems.push(format!("{name} uses {other}, which is in no lower layer"));
            }
        }
    }
    let gone = written.keys().chain(layers.keys()).collect::<BTreeSet<_>>();
    let gone = gone.into_iter().filter(|name| !uses.contains_key(*name));
    problems.extend(gone.map(|name| format!("there is no crate {name}")));
    problems
}

/// Each crate of the table, and the crates in its second column.
fn table(page: &str) -> Uses {
    let mut rows = Uses::new();
    let mut is_table = false;
    for line in page.lines() {
        is_table = line.starts_with('|') && (is_table || line.starts_with("| crate | uses |"));
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if is_table
            && let [_, name, used, ..] = cells[..]
            && let Some(name) = name.strip_prefix('`').and_then(|it| it.strip_suffix('`'))
        {
            let used = used.split(", ").filter(|it| *it != NONE);
            rows.insert(short(name), used.map(str::to_owned).collect());
        }
    }
    rows
}

/// Layer of each crate: the number that begins a line of the first block of code.
fn layers(page: &str) -> BTreeMap<String, u32> {
    let block = page.split("```").nth(1).unwrap_or_default();
    let mut layers = BTreeMap::new();
    for line in block.lines() {
        let names = line.split('│').next().unwrap_or_default();
        let mut words = names.split_whitespace();
        if let Some(layer) = words.next().and_then(|word| word.parse().ok()) {
            layers.extend(words.map(|name| (name.to_owned(), layer)));
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Map\n\n```\n2  membound │ the command\n1  model\n0  types\n```\n\n\
                        | crate | uses | what |\n|---|---|---|\n| `membound` | model, types | x |\n\
                        | `membound-model` | types | x |\n| `membound-types` | – | x |\n";

    #[track_caller]
    fn check_page(page: &str, uses: &[(&str, &[&str])], expected: &[&str]) {
        let set = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        let uses = uses
            .iter()
            .map(|(name, used)| ((*name).to_owned(), set(used)))
            .collect();
        assert_eq!(problems(page, &uses), expected);
    }

    #[test]
    fn a_true_page_has_no_problem() {
        let uses: [(&str, &[&str]); 3] = [
            ("membound", &["model", "types"]),
            ("model", &["types"]),
            ("types", &[]),
        ];
        check_page(PAGE, &uses, &[]);
    }

    #[test]
    fn an_arrow_that_is_not_there_is_not_allowed_and_one_too_many_is_named() {
        let uses: [(&str, &[&str]); 3] = [
            ("membound", &["model"]),
            ("model", &["types"]),
            ("types", &["model"]),
        ];
        check_page(
            PAGE,
            &uses,
            &[
                "the table says that membound uses types, which it does not",
                "types uses model, which the table does not permit",
                "types uses model, which is in no lower layer",
            ],
        );
    }

    #[test]
    fn crates_that_came_or_went_are_named() {
        let uses: [(&str, &[&str]); 3] = [
            ("membound", &["model", "types"]),
            ("new", &[]),
            ("types", &[]),
        ];
        check_page(
            PAGE,
            &uses,
            &[
                "the table has no crate new",
                "no layer has crate new",
                "there is no crate model",
            ],
        );
    }

    #[test]
    fn a_long_page_is_named() {
        let long = format!("{PAGE}{}", "x\n".repeat(MAX_LINES));
        assert!(problems(&long, &Uses::new())[0].ends_with("250 are the limit"));
    }

    #[test]
    fn the_page_of_this_workspace_is_true() {
        check().unwrap();
    }
}
