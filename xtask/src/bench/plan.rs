//! Time of planning a module, without and with the cache.
//!
//! Measured with the command, whose wall time includes everything, and with the library alone,
//! where the cached figure is the remaining work once a plan's bytes are in memory: checking and
//! placing them. The files are in the page cache, as they are when a program has just been started
//! from them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{Body, Options, Placement, Plan};
use membound_types::Doctor;
use serde_json::{Value, json};

use super::common::{document, median, verdict};
use crate::results::Kept;
use crate::run::{note, on_path, program, say, stdout_of, succeed};

const COLD_TARGET_MS: f64 = 2000.0;
const CACHED_TARGET_MS: f64 = 100.0;

/// Arguments of `bench plan`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Times of each.
    #[arg(long, default_value_t = 7)]
    runs: usize,
    /// Files to plan instead of cc1, libc, libstdc++ and python3.
    files: Vec<PathBuf>,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(
        !cfg!(debug_assertions),
        "this bench times its own code, which was built with checks: \
         use `cargo run --release --package xtask -- bench plan`"
    );
    ensure!(args.runs > 0, "no run was asked for");
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let files = if args.files.is_empty() {
        usual()?
    } else {
        args.files.clone()
    };
    let mut summary = Vec::new();
    let mut raw = Vec::new();
    say("                            command                     library");
    say("module           MiB      cold    cached      plan    accept     place");
    for file in &files {
        note(format_args!("{}", file.display()));
        let times = Times::of(membound, file, args.runs)?;
        let name = file.file_name().unwrap_or(file.as_os_str());
        // The targets apply to the compiler.
        let judged = name == "cc1";
        let [cold, cached, plan, accept, place] = times.medians()?;
        say(format_args!(
            "{:<15}{:>5.1}{cold:>7.0} ms{cached:>7.0} ms{plan:>7.0} ms{accept:>7.1} ms{place:>7.1} ms",
            name.to_string_lossy(),
            times.mib,
        ));
        if judged {
            say(format_args!(
                "  cold: {COLD_TARGET_MS} ms {}; cached: {CACHED_TARGET_MS} ms {}",
                verdict(cold <= COLD_TARGET_MS),
                verdict(accept + place <= CACHED_TARGET_MS),
            ));
        }
        summary.push(json!({
            "module": name.to_string_lossy(), "mib": times.mib, "command_cold_ms": cold,
            "command_cached_ms": cached, "plan_ms": plan, "accept_ms": accept,
            "place_ms": place, "plan_bytes": times.plan_bytes,
            "cold_target_ms": judged.then_some(COLD_TARGET_MS),
            "cached_target_ms": judged.then_some(CACHED_TARGET_MS),
        }));
        raw.push(times.raw(&name.to_string_lossy()));
    }
    Ok(Kept {
        bench: "plan",
        machine: doctor.machine,
        summary: summary.into(),
        raw: raw.into(),
    })
}

/// The compiler proper, and the libraries that most programs load.
fn usual() -> Result<Vec<PathBuf>> {
    let asked = |question: &str| -> Result<PathBuf> {
        let answer = stdout_of(program("gcc").arg(question))?;
        let path = PathBuf::from(answer.trim());
        let path = path.canonicalize();
        path.with_context(|| format!("`gcc {question}` names no file"))
    };
    let mut files = vec![asked("-print-prog-name=cc1")?];
    for library in ["libc.so.6", "libstdc++.so.6"] {
        files.push(asked(&format!("-print-file-name={library}"))?);
    }
    let system = PathBuf::from("/usr/bin/python3");
    let python = if system.is_file() {
        Some(system)
    } else {
        on_path("python3")
    };
    files.extend(python.map(|path| path.canonicalize()).transpose()?);
    Ok(files)
}

/// Milliseconds of every run.
struct Times {
    mib: f64,
    plan_bytes: usize,
    cold: Vec<f64>,
    cached: Vec<f64>,
    plan: Vec<f64>,
    accept: Vec<f64>,
    place: Vec<f64>,
}

impl Times {
    fn of(membound: &Path, file: &Path, runs: usize) -> Result<Self> {
        let data =
            std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let cache = tempfile::tempdir().context("cannot create a temporary directory")?;
        let command = |cold: bool| {
            let mut command = program(membound);
            command.args(["rewrite", "plan"]).arg(file);
            if cold {
                command.arg("--no-cache");
            }
            command
                .env("XDG_CACHE_HOME", cache.path())
                .stdout(std::process::Stdio::null());
            command
        };
        // Fills the cache.
        succeed(&mut command(false))?;
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let mib = data.len() as f64 / f64::from(1 << 20);
        let mut times = Self {
            mib,
            plan_bytes: 0,
            cold: Vec::new(),
            cached: Vec::new(),
            plan: Vec::new(),
            accept: Vec::new(),
            place: Vec::new(),
        };
        for _ in 0..runs {
            times.cold.push(timed(|| succeed(&mut command(true)))?.1);
            times.cached.push(timed(|| succeed(&mut command(false)))?.1);
            let (plan, ms) = timed(|| {
                let image = Image::parse(&data)?;
                Ok(Plan::make(
                    &image,
                    &Options::new(Body::Count { exact: false }),
                ))
            })?;
            times.plan.push(ms);
            let bytes = plan.as_bytes().to_vec();
            times.plan_bytes = bytes.len();
            let (accepted, ms) = timed(|| Ok(Plan::from_bytes(bytes)?))?;
            times.accept.push(ms);
            let placement = beside(&Image::parse(&data)?);
            let (_, ms) = timed(|| Ok(accepted.place(&placement)?))?;
            times.place.push(ms);
        }
        Ok(times)
    }

    fn medians(&self) -> Result<[f64; 5]> {
        let mut found = [0.0; 5];
        let all = [
            &self.cold,
            &self.cached,
            &self.plan,
            &self.accept,
            &self.place,
        ];
        for (middle, values) in found.iter_mut().zip(all) {
            *middle = median(values).context("no run was asked for")?;
        }
        Ok(found)
    }

    fn raw(&self, name: &str) -> Value {
        json!({
            "module": name, "command_cold_ms": self.cold, "command_cached_ms": self.cached,
            "plan_ms": self.plan, "accept_ms": self.accept, "place_ms": self.place,
        })
    }
}

/// A placement such as a launcher would choose: the module where libraries lie, followed by the
/// trampolines.
fn beside(image: &Image<'_>) -> Placement {
    const PAGE: u64 = 4096;
    const LIBRARIES: u64 = 0x7f00_0000_0000;
    let span = image.span();
    let bias = if span.start == 0 { LIBRARIES } else { 0 };
    Placement {
        bias,
        area: (bias + span.end).next_multiple_of(PAGE) + PAGE,
    }
}

/// The result and its milliseconds.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let began = Instant::now();
    let result = work()?;
    Ok((result, began.elapsed().as_secs_f64() * 1e3))
}
