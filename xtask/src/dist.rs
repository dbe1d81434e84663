//! `cargo xtask dist`: what is installed where there is no toolchain, under `target/dist/`.
//!
//! One static binary for every x86-64 Linux, its debugging information beside it, and three
//! ways to bring it to a machine: a tarball, a Debian package and a Python wheel. With
//! `--check` the last two are installed in empty surroundings and tried.

mod binary;
mod check;
mod deb;
mod licences;
mod stage;
mod sums;
mod wheel;
mod zip;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::run::{program, root, say, stdout_of, succeed};

/// Version of everything in the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Arguments of `dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install what was made in an empty Debian and in an empty Python environment, and try
    /// it there (needs root).
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let directory = root().join("target/dist");
    let stage = directory.join("stage");
    // What an earlier run left.
    drop(fs::remove_dir_all(&directory));
    fs::create_dir_all(&stage).with_context(|| format!("cannot make {}", stage.display()))?;
    let epoch = epoch();

    let tree = stage.join(name());
    let debug = binary::make(&tree, &directory)?;
    stage::fill(&tree)?;
    let tarball = tarball(&stage, &directory, epoch)?;
    let package = deb::make_package(&tree, &stage, &directory, epoch)?;
    let wheel = wheel::make_wheel(&tree, &directory)?;
    fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    let made = [tarball, package.clone(), wheel.clone(), debug];
    sums::write_sums(&directory, &made)?;
    for path in &made {
        let bytes = fs::metadata(path).map_or(0, |found| found.len());
        let kilobytes = bytes.div_ceil(1000);
        say(format_args!("{kilobytes:>7} kB  {}", path.display()));
    }
    if args.check {
        check::run(&package, &wheel)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Begins the names of files for this version and kind of machine.
fn name() -> String {
    format!("membound-{VERSION}-x86_64-linux")
}

/// The time that files in archives have, so that one commit makes the same archive twice:
/// seconds from 1970 to the commit, or 0 where git does not tell.
fn epoch() -> u64 {
    let told = stdout_of(program("git").args(["log", "-1", "--format=%ct"]));
    told.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

fn tarball(stage: &Path, into: &Path, epoch: u64) -> Result<PathBuf> {
    let path = into.join(format!("{}.tar.gz", name()));
    let mut tar = program("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{epoch}"))
        .args(["--use-compress-program", "gzip -9n"])
        .arg("--directory")
        .arg(stage)
        .arg("--create")
        .arg("--file")
        .arg(&path)
        .arg(name());
    succeed(&mut tar)?;
    Ok(path)
}
