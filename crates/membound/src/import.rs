//! `membound import`: turns another profiler's recording into a run.

pub(crate) mod args;

use std::io::Read;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail};
use membound_import::{Format, PerfData, Script};
use membound_platform::output_file::replace_with;
use membound_record::import::{self, ImportOptions, Imported};

use self::args::ImportArgs;
use crate::output::{self, Target, Usage};
use crate::profile::machine;
use crate::{report, version};

/// Reads a recording and writes a run.
pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let target = Target::open(&args.output)?;
    if !target.is_file() {
        let why = "a run is a database and goes into a regular file: name one with -o";
        return Err(Usage(why.to_owned()).into());
    }
    let machine = args.machine.as_deref().map(machine::read).transpose()?;
    let (bytes, date) = read(&args.file)?;
    let place = || format!("cannot import {}", args.file.display());
    let (rows, known) = channel();
    let summary = (!args.quiet).then(|| {
        let style = output::error_style();
        thread::spawn(move || Some(report::summary_of(known.recv().ok()?, style)))
    });
    let rows = summary.is_some().then_some(rows);
    let mut imported = None;
    // The output file appears only when the whole run is written.
    replace_with(&args.output, |path| -> anyhow::Result<()> {
        let options = ImportOptions {
            output: path.to_owned(),
            membound_version: version::BUILD.to_owned(),
            date,
            machine,
            rows,
            ends_soon: true,
        };
        imported = Some(import(&bytes, options).with_context(place)?);
        Ok(())
    })?;
    let imported = imported.context("nothing was imported")?;
    if let Some(summary) = summary {
        let summary = summary.join().unwrap_or_else(|why| resume_unwind(why));
        print_result(args, &imported, summary.as_deref());
    }
    Ok(ExitCode::SUCCESS)
}

fn import(bytes: &[u8], options: ImportOptions) -> anyhow::Result<Imported> {
    Ok(match Format::of(bytes)? {
        Format::PerfData => import::perf_data(&PerfData::read(bytes)?, options)?,
        Format::Script => import::script(&Script::read(bytes)?, options)?,
    })
}

/// The bytes of a file, and the time of its last change.
fn read(path: &Path) -> anyhow::Result<(Vec<u8>, String)> {
    let place = || format!("cannot read {}", path.display());
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.context("cannot read stdin")?;
        return Ok((bytes, membound_platform::date::now_utc()));
    }
    let found = std::fs::metadata(path).with_context(place)?;
    if found.is_dir() {
        bail!(
            "cannot import {}: it is a directory (a recording with `--threads` is one): record again without \
             `--threads`, or import what `perf script` prints",
            path.display()
        );
    }
    let bytes = std::fs::read(path).with_context(place)?;
    let written = found.modified().ok();
    let seconds = written.and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    let date = seconds.map(|since| membound_platform::date::utc(since.as_secs()));
    Ok((bytes, date.unwrap_or_default()))
}

fn print_result(args: &ImportArgs, imported: &Imported, summary: Option<&str>) {
    if let Some(summary) = summary {
        output::write_stderr(summary);
    }
    output::complain(&format!(
        "{} samples and {} accesses of {} are in {}",
        imported.samples,
        imported.accesses,
        args.file.display(),
        args.output.display()
    ));
}
