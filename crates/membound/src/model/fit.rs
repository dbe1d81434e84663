//! `membound model fit`: fits a hierarchy model to measured values.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use membound_model::hierarchy::{
    self, FitOptions, bundled, fit_measured, parse_topology, with_page_table, with_sizes, with_tlb,
};
use membound_report::text;
use membound_report::{csv, page};
use membound_types::{Model, SizeMode, Topology};

use super::args::{FitArgs, FitOptionArgs, ModelFormat};
use super::data::{Choice, Data, Loaded, choose};
use crate::output::{self, Target, Usage};

/// Fits a model, shows it and writes it.
pub(super) fn run(args: &FitArgs) -> anyhow::Result<ExitCode> {
    if args.fit.topology.is_none() && !args.fit.sizes.is_empty() {
        let why = "--sizes means nothing without --topology (see `membound --help`)";
        return Err(Usage(why.to_owned()).into());
    }
    fixed(&args.fit)?;
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let mut html = args.html.as_deref().map(Target::open).transpose()?;
    let files = args
        .files
        .iter()
        .map(|path| Loaded::read(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let choice = Choice {
        data: args.fit.data,
        series: args.fit.series.as_deref(),
    };
    let model = fit(choose(&files, choice)?, &args.fit)?;
    let document = output::json(&model)?;
    if let Some(target) = &mut html {
        target.write(&page::model(&model))?;
    }
    if let Some(target) = &mut json {
        target.write(&document)?;
    }
    if !json.as_ref().is_some_and(Target::is_stdout)
        && !html.as_ref().is_some_and(Target::is_stdout)
    {
        output::print(&match args.format {
            ModelFormat::Text => text::model(&model, output::style()),
            ModelFormat::Json => document,
            ModelFormat::Csv => csv::fitted(&model),
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints notes that a reader of the document alone might miss.
pub(super) fn complain(model: &Model) {
    for note in &model.notes {
        output::complain(note);
    }
}

/// The parameters that `--fix` gives, each with one value.
fn fixed(args: &FitOptionArgs) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut fixed = BTreeMap::new();
    for (symbol, value) in args.fix.iter().flat_map(|fixes| &fixes.0) {
        let earlier = fixed.insert(symbol.clone(), *value);
        if let Some(earlier) = earlier.filter(|earlier| earlier != value) {
            let why = format!("--fix gives {symbol} two values, {earlier} and {value}");
            return Err(Usage(why).into());
        }
    }
    Ok(fixed)
}

/// Fits the chosen values as the options say.
pub(super) fn fit(chosen: Data, args: &FitOptionArgs) -> anyhow::Result<Model> {
    let mut options = FitOptions {
        weights: args.weights.unwrap_or_default(),
        ..FitOptions::default()
    };
    options.fixed = fixed(args)?;
    let place = || chosen.source.files.join(", ");
    let mut notes = chosen.notes.clone();
    let model = match &args.topology {
        Some(name) => {
            let (topology, warnings) = topology(name, &args.sizes)?;
            notes.extend(warnings);
            let topology = terms(topology, args)?;
            if args.free_sizes {
                options.sizes = SizeMode::Free;
            }
            hierarchy::fit(&topology, chosen.data, &chosen.observations, &options)
                .with_context(place)?
        }
        None => fit_measured::<anyhow::Error>(
            chosen.data,
            &chosen.observations,
            &chosen.known,
            |topology| terms(topology, args),
            &options,
        )
        .with_context(place)?,
    };
    notes.extend(model.notes);
    Ok(Model {
        source: chosen.source,
        notes,
        ..model
    })
}

/// A topology by name or from a file, with `sizes` for its open levels, and warnings about it.
pub(super) fn topology(name: &str, sizes: &[u64]) -> anyhow::Result<(Topology, Vec<String>)> {
    let topology = match bundled(name) {
        Some(topology) => topology,
        None => {
            let text = match fs::read_to_string(name) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound && is_plain(name) => bail!(
                    "{name}: neither a file nor a bundled topology ({})",
                    hierarchy::BUNDLED.join(", ")
                ),
                Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
            };
            parse_topology(name, &text)?
        }
    };
    if sizes.is_empty() {
        let warnings = hierarchy::validate(&topology)?;
        return Ok((topology, warnings));
    }
    with_sizes(&topology, sizes).with_context(|| format!("--sizes for {name}"))
}

/// Whether a name could be meant for a bundled topology rather than a path.
fn is_plain(name: &str) -> bool {
    Path::new(name).components().count() == 1 && !name.ends_with(".toml")
}

/// Adds or removes the terms that options name.
fn terms(mut topology: Topology, args: &FitOptionArgs) -> anyhow::Result<Topology> {
    if let Some(choice) = args.page_table {
        topology = with_page_table(&topology, choice);
    }
    match args.tlb_entries {
        Some(0) => topology.tlb.clear(),
        entries => topology = with_tlb(&topology, entries, args.page_size)?,
    }
    Ok(topology)
}
