//! `membound model predict`: predicts times that were not measured.

use std::process::ExitCode;

use anyhow::bail;
use membound_model::hierarchy::{predict, predict_stride};
use membound_report::csv;
use membound_report::text;
use membound_types::{FitData, Kind, Model, PredictedPoint, Prediction, SCHEMA_VERSION};

use super::args::{FitOptionArgs, ModelFormat, PredictArgs};
use super::data::{Choice, Loaded, choose};
use super::fit::{complain, fit};
use crate::output::{self, Target, Usage};

/// Predicts windows, loads or both.
pub(super) fn run(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let files = [Loaded::read(&args.file)?];
    let mut points = Vec::new();
    let mut used = None;
    for (data, wanted) in [
        (FitData::Window, !args.windows.is_empty()),
        (FitData::Latency, !args.sizes.is_empty()),
    ] {
        if wanted {
            let model = model(&files, data, args)?;
            points.extend(ask(&model, args));
            used = Some(model);
        }
    }
    let Some(model) = used else {
        // clap requires one of them, so this is not reached.
        let why = "nothing to predict: give --windows with --areas, or --sizes";
        return Err(Usage(why.to_owned()).into());
    };
    let prediction = Prediction {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Prediction,
        source: model.source,
        topology: model.topology.name,
        points,
    };
    let document = output::json(&prediction)?;
    if let Some(target) = &mut json {
        target.write(&document)?;
    }
    if !json.as_ref().is_some_and(Target::is_stdout) {
        output::print(&match args.format {
            ModelFormat::Text => text::prediction(&prediction, output::style()),
            ModelFormat::Json => document,
            ModelFormat::Csv => csv::prediction(&prediction),
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// The model for values of this kind: the file's own, or one that is fitted now.
fn model(files: &[Loaded; 1], data: FitData, args: &PredictArgs) -> anyhow::Result<Model> {
    let [file] = files;
    if let Some(model) = file.model() {
        if model.method.data != data {
            bail!(
                "{}: a model of {} values, which says nothing of {data} values",
                args.file.display(),
                model.method.data
            );
        }
        return Ok(model.clone());
    }
    let choice = Choice {
        data: Some(data),
        series: args.series.as_deref(),
    };
    let options = FitOptionArgs {
        topology: args.topology.clone(),
        sizes: args.level_sizes.clone(),
        ..FitOptionArgs::default()
    };
    let model = fit(choose(files, choice)?, &options)?;
    complain(&model);
    Ok(model)
}

/// Predicts every requested point of this kind of model.
fn ask(model: &Model, args: &PredictArgs) -> Vec<PredictedPoint> {
    match model.method.data {
        FitData::Window => args
            .windows
            .iter()
            .flat_map(|window| {
                let areas = args.areas.iter();
                areas.map(|area| predict(model, Some(*window), *area))
            })
            .collect(),
        FitData::Latency if args.strides.is_empty() => args
            .sizes
            .iter()
            .map(|size| predict(model, None, *size))
            .collect(),
        FitData::Latency => args
            .strides
            .iter()
            .flat_map(|stride| {
                let sizes = args.sizes.iter();
                sizes.map(|size| predict_stride(model, *size, *stride))
            })
            .collect(),
    }
}
