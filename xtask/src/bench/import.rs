//! Time and memory of importing a perf recording, with and without the summary that the command
//! shows.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use membound_types::Doctor;
use serde_json::json;

use super::common::{document, median, verdict};
use super::quick::wait_with_peak;
use crate::results::Kept;
use crate::run::{program, say, shown};

/// Target in seconds for [`PER_BYTES`] of a recording, with the summary.
const TARGET_S: f64 = 5.0;
/// Bytes of a recording to which the target applies.
const PER_BYTES: f64 = 1e8;

/// Arguments of `bench import`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often it is imported each way.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The recording: about 100 MB, as `perf record -a -g` makes it of a machine that is at work.
    recording: PathBuf,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(args.runs > 0, "no run was asked for");
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let place = || format!("cannot read {}", args.recording.display());
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    let bytes = std::fs::metadata(&args.recording)
        .with_context(place)?
        .len() as f64;
    let home = tempfile::tempdir().context("cannot create a temporary directory")?;
    let import = |options: &[&str]| -> Result<(f64, u64)> {
        let mut command = program(membound);
        command.arg("import").arg(&args.recording).args(options);
        command.arg("-o").arg(home.path().join("imported.run"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let (status, peak_bytes) = wait_with_peak(command.spawn()?)?;
        ensure!(
            status == 0,
            "`{}` ended with wait status {status}",
            shown(&command)
        );
        Ok((began.elapsed().as_secs_f64(), peak_bytes))
    };
    let (mut with, mut without, mut most_bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..args.runs {
        without.push(import(&["--quiet"])?.0);
        let (wall_s, peak_bytes) = import(&[])?;
        with.push(wall_s);
        most_bytes = most_bytes.max(peak_bytes);
    }
    let middle = |seconds: &[f64]| median(seconds).unwrap_or_default();
    let (whole_s, run_s) = (middle(&with), middle(&without));
    let scaled_s = whole_s * PER_BYTES / bytes;
    say(format_args!(
        "{:.0} MB: the run is written in {run_s:.2} s; with the summary {whole_s:.2} s, {scaled_s:.2} s for 100 MB \
         (target {TARGET_S} s {}); at most {} MB of memory",
        bytes / 1e6,
        verdict(scaled_s <= TARGET_S),
        most_bytes / 1_000_000,
    ));
    Ok(Kept {
        bench: "import",
        machine: doctor.machine,
        summary: json!({
            "recording_bytes": bytes, "run_s": run_s, "with_summary_s": whole_s,
            "with_summary_of_100_mb_s": scaled_s, "target_s": TARGET_S, "peak_bytes": most_bytes,
        }),
        raw: json!({ "run_s": without, "with_summary_s": with }),
    })
}
