//! The licence texts of the crates that are linked into the binary: most licences demand that their
//! text accompanies every copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::processor::Processor;
use crate::run::{cargo, stdout_of};

/// Licence files of libraries in C that crates carry and that have other authors: the crate, and the file in it.
const BUNDLED: [(&str, &str); 1] = [("libmimalloc-sys", "c_src/mimalloc/v2/LICENSE")];

/// One section per crate, sorted by name, with each licence file that the crate carries.
pub(super) fn text(processor: Processor) -> Result<String> {
    let metadata = metadata(processor)?;
    let linked = linked(&metadata)?;
    let mut sections = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let [id, name, version, manifest] =
            ["id", "name", "version", "manifest_path"].map(|key| word(&package[key]));
        // Crates of this workspace have no source.
        if linked.contains(id) && !package["source"].is_null() {
            let licence = word(&package["license"]);
            let title = format!("{name} {version} ({licence})");
            let directory = Path::new(manifest).parent().unwrap_or(Path::new("/"));
            let mut texts = files(directory)?;
            for (_, file) in BUNDLED.iter().filter(|(of, _)| *of == name) {
                let path = directory.join(file);
                let bundled = fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                texts = format!("{texts}\n{bundled}");
            }
            sections.insert(title, texts);
        }
    }
    let mut text = "The binary contains these libraries, and musl libc (MIT; \
                    Copyright © 2005-2020 Rich Felker, et al.).\n"
        .to_owned();
    for (title, licences) in sections {
        let line = "─".repeat(72);
        text += &format!("\n{line}\n{title}\n{line}\n{licences}");
    }
    Ok(text)
}

/// Cargo's metadata of the workspace and its dependencies on the binary's target.
pub(super) fn metadata(processor: Processor) -> Result<Value> {
    let mut metadata = cargo(["metadata", "--locked", "--format-version=1"]);
    metadata.args(["--filter-platform", &processor.target()]);
    Ok(serde_json::from_str(&stdout_of(&mut metadata)?)?)
}

/// Identities of the packages that are linked into the command: dependencies of
/// dependencies, without those of builds and tests.
pub(super) fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .map(|node| (word(&node["id"]), node))
        .collect();
    let command = list(&metadata["packages"]).find(|package| package["name"] == "membound");
    let mut found = BTreeSet::new();
    let mut open = vec![word(
        &command.context("there is no package membound")?["id"],
    )];
    while let Some(id) = open.pop() {
        if found.insert(id) {
            let node = nodes.get(id).context("a package is not resolved")?;
            let used = list(&node["deps"]).filter(|it| is_normal(it));
            open.extend(used.map(|it| word(&it["pkg"])));
        }
    }
    Ok(found)
}

fn is_normal(dependency: &Value) -> bool {
    list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null())
}

/// The licence files of a crate, one after the other.
fn files(directory: &Path) -> Result<String> {
    let place = || format!("cannot read {}", directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(place)? {
        let entry = entry.with_context(place)?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];
        if is_licence.iter().any(|begin| name.starts_with(begin)) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let texts = paths.iter().map(fs::read_to_string);
    let texts: std::io::Result<Vec<String>> = texts.collect();
    Ok(texts.with_context(place)?.join("\n"))
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_named_with_its_licence_and_what_only_builds_is_not() {
        let text = text(Processor::X86_64).expect("cargo describes the workspace");
        let has = |title: &str| text.lines().any(|line| line.starts_with(title));
        assert!(has("clap_mangen 0."), "{text:.2000}");
        assert!(has("rusqlite 0."));
        // The allocator that only the static binary has, by the crate's authors and by those of the library in it.
        assert!(has("libmimalloc-sys 0."));
        assert!(text.contains("Microsoft Corporation, Daan Leijen"));
        assert!(!has("insta "), "tests use it");
        assert!(!has("cc "), "only built with");
        assert!(text.contains("Permission is hereby granted"));
    }
}
