//! `cargo xtask schema`: the JSON Schemas of everything that the command writes, from the types
//! that write it. `--check` compares instead, so that a changed type cannot leave its page
//! outdated.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use membound_types::{
    Bandwidth, Calibration, Comparison, CoreToCore, Doctor, Document, HarvestBatch, HarvestExplore,
    HarvestPlan, HarvestRun, Latency, Loaded, MachineProfile, Mlp, Model, Numa, Prediction,
    Prefetch, Processors, Profile, RewriteCheck, RewritePlan, RunComparison, Tlb, TopologyDocument,
    Window,
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

/// Fails when a schema under `docs/formats/` differs from its type's, and names it.
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
        (
            "processors",
            schema::<Processors>("membound measure of several CPUs"),
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
        ("calibration", part::<Calibration>("calibration")),
        ("model", schema::<Model>("membound model fit")),
        (
            "model-show",
            schema::<TopologyDocument>("membound model show"),
        ),
        ("prediction", schema::<Prediction>("membound model predict")),
        ("comparison", schema::<Comparison>("membound compare")),
        (
            "rewrite-plan",
            schema::<RewritePlan>("membound rewrite plan"),
        ),
        (
            "rewrite-check",
            schema::<RewriteCheck>("membound rewrite check"),
        ),
        ("profile", schema::<Profile>("membound report")),
        (
            "run-comparison",
            schema::<RunComparison>("membound compare of runs"),
        ),
        (
            "harvest-plan",
            schema::<HarvestPlan>("membound harvest plan"),
        ),
        ("harvest-run", schema::<HarvestRun>("membound harvest run")),
        (
            "harvest-explore",
            schema::<HarvestExplore>("membound harvest explore"),
        ),
        (
            "harvest-batch",
            schema::<HarvestBatch>("membound harvest batch"),
        ),
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

/// The schema of `T` as serialised, which is what readers of the files see.
fn schema<T: JsonSchema>(title: &str) -> Schema {
    let mut schema = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema
}

#[cfg(test)]
mod tests {
    use membound_types::{
        BandwidthPoint, BatchJob, CalibratedLevel, Capability, CheckedModule, ComparedFigure,
        CorePair, ExploreRun, HarvestSite, LatencyPoint, Level, LoadedPoint, MlpCell, ModelLevel,
        NumaPair, ObjectRow, Outcome, Parameter, PlannedFunction, PredictedPoint, PrefetchPoint,
        RunChange, Scavenger, TlbLevel, WindowPoint,
    };
    use serde::{Serialize, de::DeserializeOwned};
    use serde_json::Value;

    use super::*;

    /// The first JSON block of a page under `docs/formats/`.
    fn example(page: &str) -> Value {
        let path = root().join("docs/formats").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        let block = text.split("```json\n").nth(1).unwrap();
        serde_json::from_str(block.split("```").next().unwrap()).unwrap()
    }

    /// Checks that the page's example is a `T` and has all fields of a `T`, under the same names.
    fn check<T: Serialize + DeserializeOwned>(page: &str) {
        let written = example(page);
        let read: T = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written, "{page}");
    }

    #[test]
    fn examples_in_the_pages_are_what_the_types_write() {
        check::<Outcome<f64>>("README.md");
        check::<Level>("machine.md");
        check::<Capability>("doctor.md");
        check::<LatencyPoint>("latency.md");
        check::<MlpCell>("mlp.md");
        check::<WindowPoint>("window.md");
        check::<BandwidthPoint>("bandwidth.md");
        check::<LoadedPoint>("loaded.md");
        check::<TlbLevel>("tlb.md");
        check::<PrefetchPoint>("prefetch.md");
        check::<NumaPair>("numa.md");
        check::<CorePair>("c2c.md");
        check::<CalibratedLevel>("calibration.md");
        check::<ComparedFigure>("comparison.md");
        check::<Parameter>("model.md");
        check::<ModelLevel>("model-show.md");
        check::<PredictedPoint>("prediction.md");
        check::<PlannedFunction>("rewrite-plan.md");
        check::<CheckedModule>("rewrite-check.md");
        check::<ObjectRow>("profile.md");
        check::<RunChange>("run-comparison.md");
        check::<HarvestSite>("harvest-plan.md");
        check::<Scavenger>("harvest-run.md");
        check::<ExploreRun>("harvest-explore.md");
        check::<BatchJob>("harvest-batch.md");
    }

    #[test]
    fn every_field_of_a_document_is_named_on_its_page() {
        let shared = std::fs::read_to_string(root().join("docs/formats/README.md")).unwrap();
        let mut missing = Vec::new();
        for (path, text) in all().unwrap() {
            let schema: Value = serde_json::from_str(&text).unwrap();
            let page = path.to_string_lossy().replace(".schema.json", ".md");
            let mut described = std::fs::read_to_string(&page).unwrap() + &shared;
            if page.ends_with("model-show.md") {
                described +=
                    &std::fs::read_to_string(root().join("docs/formats/model.md")).unwrap();
            }
            if page.ends_with("machine.md") || page.ends_with("processors.md") {
                // A profile's parts have pages of their own.
                for other in std::fs::read_dir(root().join("docs/formats")).unwrap() {
                    let other = other.unwrap().path();
                    if other.extension().is_some_and(|extension| extension == "md") {
                        described += &std::fs::read_to_string(other).unwrap();
                    }
                }
            }
            let definitions = schema["$defs"].as_object().unwrap().values();
            for object in definitions.chain([&schema]) {
                for field in object["properties"].as_object().into_iter().flatten() {
                    // In code, alone or at the end of a path, or in an example.
                    let name = field.0;
                    let forms = [
                        format!("`{name}`"),
                        format!(".{name}`"),
                        format!("\"{name}\""),
                    ];
                    if !forms.iter().any(|form| described.contains(form)) {
                        missing.push(format!("{name} in {page}"));
                    }
                }
            }
        }
        assert_eq!(missing, [""; 0]);
    }
}
