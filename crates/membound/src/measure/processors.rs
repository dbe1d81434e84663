//! `measure --cpu 0,1`: measures the same parts on several CPUs, one after another.
//!
//! Cores of one machine may differ in kind, in distance to memory and caches, and in what else runs beside
//! them. The document holds the profile of each CPU as it would be alone; text and page compare the CPUs with
//! the first one.

use std::process::ExitCode;

use anyhow::Context;
use membound_model::compare::{NamedProfile, compare};
use membound_platform::{Root, affinity};
use membound_report::text::{self, Shown};
use membound_types::{CpuId, Kind, MachineProfile, Processors, SCHEMA_VERSION};

use super::one_cpu::measure;
use super::pools;
use crate::args::{Format, MeasureArgs, Part};
use crate::output::{self, Target, Usage};

/// Label that distinguishes the profiles.
const LABEL: &str = "cpu";

/// Measures on every CPU of `args`, shows the results side by side and writes them.
pub(super) fn run(
    args: &MeasureArgs,
    parts: &[Part],
    left_out: &[String],
    mut json: Option<Target>,
    mut html: Option<Target>,
) -> anyhow::Result<ExitCode> {
    let root = Root::system();
    for (index, cpu) in args.cpu.iter().enumerate() {
        affinity::check(&root, *cpu)?;
        if args.cpu[..index].contains(cpu) {
            return Err(Usage(format!("cpu {cpu} is named twice")).into());
        }
    }
    let mut profiles = Vec::new();
    let (mut failure, mut interrupted) = (None, false);
    for cpu in &args.cpu {
        let mut measured = measure(&arguments_for_cpu(args, *cpu), parts)?;
        pools::note(left_out, &mut measured.profile);
        // The profile of the first CPU is kept as the machine's own for later commands.
        if let Some(store) = measured.store.as_ref().filter(|_| profiles.is_empty()) {
            store.finish(&measured.profile);
        }
        profiles.push(measured.profile);
        failure = failure.or(measured.failure);
        interrupted = measured.interrupted;
        if interrupted {
            break;
        }
    }
    let document = Processors {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Processors,
        incomplete: interrupted || profiles.iter().any(|profile| profile.incomplete),
        profiles,
    };
    let written = write(&document, args, json.as_mut(), html.as_mut());
    if interrupted {
        output::complain("interrupted: what was measured is marked incomplete");
        return Ok(ExitCode::FAILURE);
    }
    written?;
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// The arguments for one of the CPUs.
fn arguments_for_cpu(args: &MeasureArgs, cpu: CpuId) -> MeasureArgs {
    let mut one = args.clone();
    one.cpu = vec![cpu];
    one.cond.push((LABEL.to_owned(), cpu.to_string()));
    one
}

fn write(
    document: &Processors,
    args: &MeasureArgs,
    json: Option<&mut Target>,
    html: Option<&mut Target>,
) -> anyhow::Result<()> {
    let named = document
        .profiles
        .iter()
        .map(named_profile)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let comparison = compare(&named, None);
    let to_stdout = json.as_ref().is_some_and(|target| target.is_stdout());
    let json = json.map_or(Ok(()), |target| {
        output::json(document).and_then(|text| target.write(&text))
    });
    let html = html.map_or(Ok(()), |target| {
        target.write(&membound_report::page::comparison(&comparison))
    });
    if !to_stdout {
        output::print(&match args.format {
            Some(Format::Json) => output::json(document)?,
            _ => text::comparison(&comparison, Shown::Everything, output::style()),
        });
    }
    json.and(html)
}

/// A profile in the form that a comparison reads from a file.
fn named_profile(profile: &MachineProfile) -> anyhow::Result<NamedProfile> {
    let view = serde_json::to_value(profile)
        .and_then(serde_json::from_value)
        .context("cannot compare a profile")?;
    Ok(NamedProfile {
        file: String::new(),
        view,
    })
}
