//! `compare` of runs: what got better, and what is only noise.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use membound_report::{page, text};
use membound_types::Profile;

use super::{CompareArgs, CompareFormat};
use crate::output::{self, Target, Usage};
use crate::report;

/// What every database of SQLite begins with; whether it is a run is found out when it is read.
const RUN_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Whether `path` is a run file, by how it begins.
pub(super) fn is_run(path: &Path) -> bool {
    let mut start = [0; RUN_MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *RUN_MAGIC
}

/// Compares runs, the first of which is the reference.
pub(super) fn compare(
    args: &CompareArgs,
    json: Option<&mut Target>,
    html: Option<&mut Target>,
) -> anyhow::Result<ExitCode> {
    if let Some(other) = args.paths.iter().find(|path| !is_run(path)) {
        // What cannot be opened is told as that: it may well be a run.
        File::open(other).with_context(|| format!("cannot read {}", other.display()))?;
        bail!(
            "{} is not a run, but another file named is: runs are compared with runs only",
            other.display()
        );
    }
    if args.fail_on.is_some() {
        let why = "--fail-on guards machine profiles and means nothing to runs";
        return Err(Usage(why.to_owned()).into());
    }
    let runs = args
        .paths
        .iter()
        .map(|path| Ok((path.display().to_string(), report::profile_of(path)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let runs: Vec<(&str, &Profile)> = runs
        .iter()
        .map(|(file, profile)| (file.as_str(), profile))
        .collect();
    let comparison = membound_analyze::compare(&runs);
    let to_stdout = json.as_ref().is_some_and(|target| target.is_stdout());
    let written = json.map_or(Ok(()), |target| {
        output::json(&comparison).and_then(|text| target.write(&text))
    });
    let page = html.map_or(Ok(()), |target| {
        target.write(&page::run_comparison(&comparison))
    });
    if !to_stdout {
        output::print(&match args.format {
            CompareFormat::Text => text::run_comparison(&comparison, output::style()),
            CompareFormat::Json => output::json(&comparison)?,
        });
    }
    written.and(page)?;
    Ok(ExitCode::SUCCESS)
}
