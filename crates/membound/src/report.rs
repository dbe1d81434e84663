//! `membound report`: shows a run in the requested form.

mod selection;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use membound_analyze::{Extent, Options, OtherMachine, Selection, Sources, Views};
use membound_report::export::{self, Weight};
use membound_report::text::Style;
use membound_report::{By, Grouping, Sort, page, text};
use membound_types::{Detail, MachineProfile, Profile};

use self::selection::Span;
use crate::machines::bundled;
use crate::output::{self, Target, Usage};
use crate::profile::args::USUAL_RUN;
use crate::profile::machine;

/// Error for a run that has nothing to show.
pub(crate) const NO_SAMPLES: &str =
    "no sample was taken: the program used too little CPU time while it was recorded";

/// How a run is shown on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Tables to read.
    #[default]
    Text,
    /// The whole document.
    Json,
    /// One grouping as comma-separated values.
    Csv,
    /// pprof, and tools that read its files.
    Pprof,
    /// For the Firefox Profiler.
    Firefox,
    /// For speedscope.
    Speedscope,
    /// For Perfetto's viewer and trace processor.
    Perfetto,
    /// OpenTelemetry profiles (protocol buffers).
    Otlp,
    /// Samples as rows, in Arrow's file format.
    Arrow,
    /// Samples as rows, in Parquet.
    Parquet,
    /// One line for each call chain, for flame graphs.
    Folded,
}

impl ReportFormat {
    /// Whether the format is binary, so that it must not go to a terminal.
    const fn is_binary(self) -> bool {
        matches!(
            self,
            Self::Pprof | Self::Perfetto | Self::Otlp | Self::Arrow | Self::Parquet
        )
    }
}

/// What call chains are weighed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightArg {
    /// CPU time.
    Time,
    /// CPU time stalled on memory.
    #[default]
    Stall,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Run file.
    #[arg(value_name = "RUN", default_value = USUAL_RUN)]
    run: PathBuf,
    /// Grouping: summary, function, object, line, instruction, thread, level, node, bandwidth-domain,
    /// memory, function,object (each function with its objects), object,function, callers (of each
    /// function), tree (call tree).
    #[arg(long, value_name = "G", default_value_t, hide_default_value = true)]
    by: By,
    /// Order of the rows, largest first: stall, time, latency, loads, stores, misses (of the last
    /// cache), size (of objects), name.
    #[arg(long, value_name = "KEY", default_value_t, hide_default_value = true)]
    sort: Sort,
    /// Show only this span of the run, for example 1.2s..3.4s.
    #[arg(long, value_name = "FROM..TO", allow_hyphen_values = true)]
    span: Option<Span>,
    /// Show only these threads, by number or name, separated by commas.
    #[arg(long, value_name = "T", value_delimiter = ',')]
    thread: Vec<String>,
    /// Show source and assembly of function F with the stall of each line.
    #[arg(long, value_name = "F", conflicts_with = "by")]
    source: Option<String>,
    /// Format on stdout.
    #[arg(long, value_enum, default_value_t)]
    format: ReportFormat,
    /// Weight of call chains (folded, callers, tree).
    #[arg(long, value_enum, default_value_t)]
    weight: WeightArg,
    /// Write a self-contained HTML page to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the document to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Estimate the stall on another machine: its profile, or one of amd-zen4-guest amd-zen5-guest
    /// intel-emerald-rapids-guest intel-knl-ddr intel-knl-mcdram sgi-origin2000. May be repeated.
    #[arg(long, value_name = "PROFILE")]
    machine: Vec<PathBuf>,
}

/// Reads a run and shows it.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    if args.format.is_binary() && std::io::stdout().is_terminal() {
        let name = args.format.to_possible_value();
        let name = name.as_ref().map_or("such", |value| value.get_name());
        let why = format!("{name} files are binary: send stdout into a file");
        return Err(Usage(why).into());
    }
    let grouping = Grouping {
        by: args.by,
        sort: args.sort,
        weight: match args.weight {
            WeightArg::Time => Weight::Time,
            WeightArg::Stall => Weight::Stall,
        },
    };
    if let Err(reason) = grouping.check() {
        output::complain(&reason);
        return Ok(ExitCode::from(2));
    }
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let mut html = args.html.as_deref().map(Target::page).transpose()?;
    ensure!(
        args.run.exists() || args.run != Path::new(USUAL_RUN),
        "there is no {USUAL_RUN} here: name a run (`membound profile -- CMD` records one)"
    );
    let elsewhere = args
        .machine
        .iter()
        .map(|path| other_machine(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let run = membound_run::RunData::open(&args.run)?;
    let selection = selection::selection(&run, args.span, &args.thread)?;
    let mut views = analyzed(&run, &elsewhere, selection.as_ref());
    if html.is_some() {
        add_periods(&run, selection.as_ref(), &mut views);
    }
    let written = write_files(&views, json.as_mut(), html.as_mut());
    if !json.as_ref().is_some_and(Target::is_stdout) {
        show(args, grouping, &views)?;
    }
    written?;
    if views.profile.run.samples == 0 && views.profile.hardware.is_none() {
        bail!("{}: {NO_SAMPLES}", args.run.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// A machine profile from its file, or one that comes with membound.
fn other_machine(path: &Path) -> anyhow::Result<(String, MachineProfile)> {
    if !path.exists()
        && let Some(name) = path.to_str().filter(|name| !name.contains(['/', '.']))
    {
        return bundled::bundled(name).unwrap_or_else(|| {
            bail!(
                "there is no file and no machine `{name}`; bundled are {}",
                bundled::names()
            )
        });
    }
    Ok((path.display().to_string(), machine::read(path)?))
}

/// The summary that a recording prints at its end.
pub(crate) fn summary(run: &Path, style: Style) -> anyhow::Result<String> {
    Ok(summary_of(membound_run::RunData::open(run)?, style))
}

/// The summary of a run in memory.
pub(crate) fn summary_of(run: membound_run::RunData, style: Style) -> String {
    let options = Options {
        extent: Extent::Summary,
        ..Options::default()
    };
    let views = membound_analyze::analyze(&run, &options);
    let text = text::profile(&views.profile, &views.detail, By::Summary, style);
    // The command ends after the summary. Freeing millions of rows one by one would take as long as reading
    // them; the kernel frees all of them at once.
    std::mem::forget((run, views));
    text
}

/// All views of the run in a file.
pub(crate) fn views(path: &Path, elsewhere: &[(String, MachineProfile)]) -> anyhow::Result<Views> {
    let run = membound_run::RunData::open(path)?;
    Ok(analyzed(&run, elsewhere, None))
}

/// All views of the run in a file, and the periods that a page needs.
pub(crate) fn page_views(path: &Path) -> anyhow::Result<Views> {
    let run = membound_run::RunData::open(path)?;
    let mut views = analyzed(&run, &[], None);
    add_periods(&run, None, &mut views);
    Ok(views)
}

/// Adds figures of rows for periods of the run, from which a page shows a selected span.
fn add_periods(run: &membound_run::RunData, selection: Option<&Selection>, views: &mut Views) {
    let options = Options {
        selection,
        ..Options::default()
    };
    views.detail.periods = membound_analyze::periods(run, &options, &views.profile);
}

fn analyzed(
    run: &membound_run::RunData,
    elsewhere: &[(String, MachineProfile)],
    selection: Option<&Selection>,
) -> Views {
    let elsewhere: Vec<OtherMachine<'_>> = elsewhere
        .iter()
        .map(|(name, profile)| OtherMachine { name, profile })
        .collect();
    let options = Options {
        elsewhere: &elsewhere,
        sources: &Files,
        selection,
        ..Options::default()
    };
    membound_analyze::analyze(run, &options)
}

/// Source texts from the files that debug information names.
struct Files;

impl Sources for Files {
    fn text(&self, path: &str) -> Option<String> {
        /// Larger files are not source texts: names in debug information may lead anywhere.
        const LARGEST_BYTES: u64 = 16 << 20;
        let found = std::fs::metadata(path).ok()?;
        if !found.is_file() || found.len() > LARGEST_BYTES {
            return None;
        }
        let bytes = std::fs::read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The views of a run that `compare` needs.
pub(crate) fn profile_of(path: &Path) -> anyhow::Result<Profile> {
    views(path, &[]).map(|views| views.profile)
}

fn write_files(
    views: &Views,
    json: Option<&mut Target>,
    html: Option<&mut Target>,
) -> anyhow::Result<()> {
    let json = json.map_or(Ok(()), |target| {
        output::json(&views.profile).and_then(|text| target.write(&text))
    });
    let html = html.map_or(Ok(()), |target| {
        target.write(&page::profile(&views.profile, &views.detail))
    });
    json.and(html)
}

fn show(args: &ReportArgs, grouping: Grouping, views: &Views) -> anyhow::Result<()> {
    let Views { profile, detail } = views;
    let style = output::style();
    let text = match args.format {
        ReportFormat::Text => match &args.source {
            Some(function) => {
                let found = text::listing(detail, Some(function), style);
                found.ok_or_else(|| not_listed(function, detail))?
            }
            None => text::profile(profile, detail, grouping, style),
        },
        ReportFormat::Json => output::json(profile)?,
        ReportFormat::Csv => export::csv(profile, detail, grouping),
        ReportFormat::Firefox => export::firefox(profile, detail),
        ReportFormat::Speedscope => export::speedscope(profile, detail),
        ReportFormat::Folded => export::folded(detail, grouping.weight),
        ReportFormat::Pprof => return write(&export::pprof(profile, detail)),
        ReportFormat::Perfetto => return write(&export::perfetto(profile, detail)),
        ReportFormat::Otlp => return write(&export::otlp(profile, detail)),
        ReportFormat::Arrow => return write(&export::arrow(profile, detail)?),
        ReportFormat::Parquet => return write(&export::parquet(profile, detail)?),
    };
    output::print(&text);
    Ok(())
}

/// Says that no function with code in the run has `wanted` in its name.
fn not_listed(wanted: &str, detail: &Detail) -> anyhow::Error {
    /// Maximum number of functions that the error lists.
    const NAMED: usize = 8;
    let functions = detail.listings.iter().map(|it| it.function.as_str());
    let names: Vec<&str> = functions.take(NAMED).collect();
    match detail.listings.len().saturating_sub(NAMED) {
        _ if names.is_empty() => anyhow!("the run holds no code"),
        0 => anyhow!(
            "no hot function has `{wanted}` in its name; there are {}",
            names.join(", ")
        ),
        more => anyhow!(
            "no hot function has `{wanted}` in its name; there are {} and {more} more",
            names.join(", ")
        ),
    }
}

/// Writes bytes to stdout.
fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}
