//! The software bill of materials: the crates that are linked into the binary, as CycloneDX 1.6 JSON.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::licences::{linked, list, metadata, word};
use super::processor::{Processor, VERSION};
use super::stage::write;

/// Writes the document into the directory `into`.
pub(super) fn write_sbom(processor: Processor, into: &Path) -> Result<PathBuf> {
    let path = into.join(format!("{}.cdx.json", processor.stem()));
    let text = serde_json::to_string_pretty(&document(&metadata(processor)?)?)?;
    write(&path, text + "\n")?;
    Ok(path)
}

/// The document, in the order of names. It has no date and no serial number, so that one commit makes the
/// same document twice.
fn document(metadata: &Value) -> Result<Value> {
    let linked = linked(metadata)?;
    let mut packages: Vec<&Value> = list(&metadata["packages"])
        .filter(|package| linked.contains(word(&package["id"])))
        .collect();
    packages.sort_by_key(|package| (word(&package["name"]), word(&package["version"])));
    let own = |package: &&Value| package["name"] == "membound";
    let components: Vec<Value> = packages
        .iter()
        .filter(|package| !own(package))
        .map(|package| component(package))
        .collect();
    let nodes = list(&metadata["resolve"]["nodes"])
        .filter(|node| linked.contains(word(&node["id"])))
        .map(|node| {
            let used = list(&node["deps"]).map(|it| word(&it["pkg"]));
            let used: Vec<&str> = used.filter(|id| linked.contains(id)).collect();
            json!({ "ref": node["id"], "dependsOn": used })
        });
    let root = packages.iter().find(|package| own(package));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root.map(|package| &package["id"]),
                "name": "membound",
                "version": VERSION,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components,
        "dependencies": nodes.collect::<Vec<_>>(),
    }))
}

fn component(package: &Value) -> Value {
    let [name, version, licence] = ["name", "version", "license"].map(|key| word(&package[key]));
    let mut component = json!({
        "type": "library",
        "bom-ref": package["id"],
        "name": name,
        "version": version,
        // Old crates separate alternatives by a slash.
        "licenses": [{ "expression": licence.replace('/', " OR ") }],
    });
    // Crates of this workspace are in no registry.
    if !package["source"].is_null() {
        component["purl"] = format!("pkg:cargo/{name}@{version}").into();
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_a_component_once_and_its_dependencies_are_known() {
        let document = document(&metadata(Processor::X86_64).unwrap()).unwrap();
        let names: Vec<&str> = list(&document["components"])
            .map(|it| word(&it["name"]))
            .collect();
        for linked in ["clap", "rusqlite", "membound-types"] {
            let count = names.iter().filter(|name| **name == linked).count();
            assert_eq!(count, 1, "{linked}");
        }
        assert!(!names.contains(&"insta"), "tests use it");
        let known: Vec<&str> = list(&document["components"])
            .map(|it| word(&it["bom-ref"]))
            .collect();
        for node in list(&document["dependencies"]) {
            for used in list(&node["dependsOn"]) {
                assert!(known.contains(&word(used)), "{used}");
            }
        }
        let of = |name: &str| list(&document["components"]).find(|it| it["name"] == name);
        let purl = of("clap").map(|it| word(&it["purl"]));
        assert!(purl.is_some_and(|it| it.starts_with("pkg:cargo/clap@4")));
    }
}
