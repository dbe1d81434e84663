//! `membound model show`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use membound_model::hierarchy::published;
use membound_report::text;
use membound_types::{Kind, Model, Outcome, SCHEMA_VERSION, TopologyDocument};

use super::args::ShowArgs;
use super::data::Loaded;
use super::fit::{json_text, topology};
use crate::output::{self, Target};

/// Shows components and attainable rates.
pub(super) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let (topology, (parameters, levels)) = if is_document(&args.model) {
        if !args.sizes.is_empty() {
            output::complain("--sizes goes with a topology, not with a fitted model");
            return Ok(ExitCode::from(2));
        }
        let model = fitted(&args.model)?;
        (model.topology, (model.parameters, model.levels))
    } else {
        let (topology, warnings) = topology(&args.model, &args.sizes)?;
        for warning in warnings {
            output::complain(&warning);
        }
        let tables = published(&topology);
        (topology, tables)
    };
    let document = TopologyDocument {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Topology,
        topology,
        parameters,
        levels,
    };
    match &mut json {
        Some(target) => target.write(&json_text(&document)?)?,
        None => output::print(&text::model_show(
            &document.topology.name,
            &document.topology,
            &document.parameters,
            &document.levels,
            output::style(),
        )),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the file begins as JSON does; a name that is no file does not.
fn is_document(name: &str) -> bool {
    fs::read(name).is_ok_and(|bytes| bytes.trim_ascii_start().starts_with(b"{"))
}

/// The model in a document of `model fit` or in a machine profile.
fn fitted(name: &str) -> anyhow::Result<Model> {
    let file = Loaded::read(Path::new(name))?;
    match (file.model(), file.profile().map(|profile| &profile.model)) {
        (Some(model), _) | (None, Some(Outcome::Known(model))) => Ok(model.clone()),
        (None, Some(Outcome::Missing { not_measured })) => {
            bail!("{name}: no model in this profile: {}", not_measured.reason)
        }
        (None, None) => bail!("{name}: values, but no model: `membound model fit` makes one"),
    }
}
