//! `cargo xtask schema`: the JSON Schemas of everything that the command writes, from the
//! types that write it. `--check` compares instead, so that a changed type cannot leave
//! its page behind.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use membound_types::{
    Bandwidth, CoreToCore, Doctor, Document, Latency, Loaded, MachineProfile, Mlp, Numa, Prefetch,
    Tlb, Window,
};
use schemars::{JsonSchema, Schema, generate::SchemaSettings};

use crate::run::{root, say};

/// Arguments of `schema`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail when a file differs from its type.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.check {
        check()?;
    } else {
        for (path, text) in all()? {
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
            say(path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails when a schema under `docs/formats/` is not what its type says, and names it.
pub(crate) fn check() -> Result<()> {
    let mut stale = Vec::new();
    for (path, text) in all()? {
        if std::fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
            stale.push(path.display().to_string());
        }
    }
    if !stale.is_empty() {
        bail!(
            "out of date: {}; run `cargo xtask schema`",
            stale.join(", ")
        );
    }
    Ok(())
}

/// Path and text of every schema.
fn all() -> Result<Vec<(PathBuf, String)>> {
    let schemas = [
        (
            "machine",
            schema::<MachineProfile>("membound machine profile"),
        ),
        ("doctor", schema::<Doctor>("membound doctor")),
        ("latency", part::<Latency>("latency")),
        ("mlp", part::<Mlp>("mlp")),
        ("window", part::<Window>("window")),
        ("bandwidth", part::<Bandwidth>("bandwidth")),
        ("loaded", part::<Loaded>("loaded")),
        ("tlb", part::<Tlb>("tlb")),
        ("prefetch", part::<Prefetch>("prefetch")),
        ("numa", part::<Numa>("numa")),
        ("c2c", part::<CoreToCore>("c2c")),
    ];
    schemas
        .into_iter()
        .map(|(name, schema)| {
            let path = root().join(format!("docs/formats/{name}.schema.json"));
            let mut text = serde_json::to_string_pretty(&schema)
                .with_context(|| format!("cannot write the schema of {name}"))?;
            text.push('\n');
            Ok((path, text))
        })
        .collect()
}

fn part<P: JsonSchema>(name: &str) -> Schema {
    schema::<Document<P>>(&format!("membound measure {name}"))
}

/// The schema of `T` as it is written, which is what a reader of our files meets.
fn schema<T: JsonSchema>(title: &str) -> Schema {
    let mut schema = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema
}
