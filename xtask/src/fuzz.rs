//! `cargo xtask fuzz`: coverage-guided fuzzing of the parsers, with the stable compiler.
//!
//! The fuzzers under `fuzz/` are linked with LLVM's libFuzzer, which is C++. LLVM's own pass emits
//! the coverage instrumentation that it needs, requested by code generation options instead of the
//! unstable `-Zsanitizer`. Without a sanitizer only panics, failed assertions, hangs and excessive
//! memory are found, which is all that safe code can do wrong. Every run begins with the inputs of
//! `fuzz/kept`, which is part of the repository. Failing inputs are written to `fuzz/artifacts`, and
//! inputs that reached new code to `fuzz/corpus`.

mod kept;
mod runs;
mod seeds;
mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use self::runs::Job;
use self::target::Target;
use crate::run::{cargo, on_path, program, root, succeed};

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The parser to fuzz; all of them without.
    target: Option<Target>,
    /// Time for each target.
    #[arg(long, default_value_t = CI_SECONDS)]
    seconds: u32,
    /// Fuzzers that run at the same time.
    #[arg(long, default_value_t = CI_JOBS)]
    jobs: usize,
    /// Instead of fuzzing, choose inputs of fuzz/corpus for fuzz/kept.
    #[arg(long, conflicts_with_all = ["seconds", "jobs"])]
    keep: bool,
}

/// Time for each target in continuous integration, in seconds.
const CI_SECONDS: u32 = 60;
/// Fuzzers that run at the same time there: eight targets take four minutes.
const CI_JOBS: usize = 2;

/// Instrumentation that guides libFuzzer: a counter at every edge, and the operands of comparisons.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Longest time for one input, in seconds.
const TIMEOUT_S: u32 = 10;

/// Maximum memory, in MiB.
const MEMORY_MIB: u32 = 2048;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let targets = args
        .target
        .map_or_else(|| Target::ALL.to_vec(), |target| vec![target]);
    let built = build()?;
    if args.keep {
        for target in targets {
            kept::write(target, &built)?;
        }
    } else {
        fuzz(&targets, &built, args.seconds, args.jobs)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Step of `cargo xtask ci --fuzz`.
pub(crate) fn check() -> Result<()> {
    fuzz(&Target::ALL, &build()?, CI_SECONDS, CI_JOBS)
}

/// Builds all fuzzers into `target/fuzz` and returns their directory.
fn build() -> Result<PathBuf> {
    if !["c++", "g++", "clang++"]
        .iter()
        .any(|compiler| on_path(compiler).is_some())
    {
        bail!(
            "no C++ compiler on PATH, which libFuzzer is built with; install g++ (Debian's \
             package of that name) or clang"
        );
    }
    let triple = host()?;
    let directory = root().join("target/fuzz");
    let mut flags = INSTRUMENTATION.map(str::to_owned).to_vec();
    flags.push("--cfg=fuzzing".to_owned());
    // With an explicit target, the flags do not apply to build scripts and procedural macros, which
    // could not be linked with them.
    let mut command = cargo(["build", "--release", "--bins", "--manifest-path"]);
    command
        .arg(root().join("fuzz/Cargo.toml"))
        .args(["--target", &triple, "--target-dir"])
        .arg(&directory)
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    succeed(&mut command)?;
    Ok(directory.join(triple).join("release"))
}

/// The triple of this machine, as the compiler names it.
fn host() -> Result<String> {
    let version = crate::run::stdout_of(program("rustc").arg("-vV"))?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("`rustc -vV` names no host")
}

/// Runs the fuzzers of these targets.
///
/// # Errors
/// One of them found something.
fn fuzz(targets: &[Target], built: &Path, seconds: u32, jobs: usize) -> Result<()> {
    // Before the fuzzers run: targets share seeds.
    let prepared: Result<Vec<Job>> = targets
        .iter()
        .map(|target| job(*target, built, seconds))
        .collect();
    let failed = runs::run_all(prepared?, jobs)?;
    if failed.is_empty() {
        return Ok(());
    }
    bail!(
        "fuzzers of {} failed; the inputs are in fuzz/artifacts",
        failed.join(", ")
    )
}

fn job(target: Target, built: &Path, seconds: u32) -> Result<Job> {
    let name = target.name();
    let corpus = target.corpus();
    let kept = kept::directory(target);
    let artifacts = root().join("fuzz/artifacts").join(name);
    for directory in [&corpus, &kept, &artifacts] {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let mut command = program(built.join(name));
    // New inputs go to the first directory; the others are only read.
    command.args([&corpus, &kept, &target.seeds()?]);
    command
        .arg(format!("-dict={}", target.dictionary().display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={}", target.longest()))
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1");
    Ok(Job {
        name,
        command,
        log: root().join(format!("target/fuzz/{name}.log")),
    })
}
