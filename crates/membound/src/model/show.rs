//! `membound model show`: shows a model's components and attainable rates.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use membound_input::Content;
use membound_model::hierarchy::published;
use membound_report::text;
use membound_types::{Kind, Model, Outcome, SCHEMA_VERSION, Topology, TopologyDocument};

use super::args::ShowArgs;
use super::data::Loaded;
use super::fit::topology;
use crate::output::{self, Target, Usage};

/// Shows components and attainable rates.
pub(super) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let (topology, (parameters, levels)) = if is_document(&args.model) {
        if !args.sizes.is_empty() {
            let why = "--sizes goes with a topology, not with a fitted model";
            return Err(Usage(why.to_owned()).into());
        }
        let model = fitted(&args.model)?;
        (model.topology, (model.parameters, model.levels))
    } else {
        let (topology, warnings) = topology_or_hint(&args.model, &args.sizes)?;
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
        Some(target) => target.write(&output::json(&document)?)?,
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

/// Whether the file begins like JSON; false if it cannot be read.
fn is_document(name: &str) -> bool {
    fs::read(name).is_ok_and(|bytes| bytes.trim_ascii_start().starts_with(b"{"))
}

/// The model in a document of `model fit` or in a machine profile.
fn fitted(name: &str) -> anyhow::Result<Model> {
    let file = Loaded::read(Path::new(name))?;
    match (file.model(), file.profile().map(|profile| &profile.model)) {
        (Some(model), _) | (None, Some(Outcome::Known(model))) => Ok(model.clone()),
        (None, Some(Outcome::Missing { not_measured })) => {
            bail!(
                "{name}: no model in this profile: {}: `membound model fit {name}` makes one",
                not_measured.reason
            )
        }
        (None, None) => bail!(no_model(name)),
    }
}

/// A topology; if the file holds values instead, the error says so.
fn topology_or_hint(name: &str, sizes: &[u64]) -> anyhow::Result<(Topology, Vec<String>)> {
    topology(name, sizes).map_err(|error| {
        let is_values = fs::read(name).is_ok_and(|bytes| {
            matches!(membound_input::read(name, &bytes), Ok(Content::Curves(_)))
        });
        if is_values {
            anyhow!(no_model(name))
        } else {
            error
        }
    })
}

fn no_model(name: &str) -> String {
    format!("{name}: values, but no model: `membound model fit {name}` makes one")
}
