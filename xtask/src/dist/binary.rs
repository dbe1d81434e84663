//! The static binary, and its debugging information apart.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::machines::without_standard_library;
use crate::needs::install_packages;
use crate::run::{cargo, on_path, program, root, stdout_of, succeed};

pub(super) const TARGET: &str = "x86_64-unknown-linux-musl";
/// Compiles the bundled SQLite.
const COMPILER: &str = "musl-gcc";
/// What the binary may have without its debugging information and symbols, in bytes.
const LARGEST_BYTES: u64 = 25_000_000;

/// Builds the command as `tree`/membound; gives the file with its debugging information,
/// which lies in `directory`.
pub(super) fn make(tree: &Path, directory: &Path) -> Result<PathBuf> {
    let built = build()?;
    fs::create_dir_all(tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let debug = directory.join(format!("{}.debug", super::name()));
    let binary = tree.join("membound");
    objcopy(&["--only-keep-debug"], &built, &debug)?;
    objcopy(&["--strip-all"], &built, &binary)?;
    // Only the file's name goes into the binary, and its check sum.
    let link = format!("--add-gnu-debuglink={}", debug.display());
    succeed(program("objcopy").arg(link).arg(&binary))?;
    check(&binary)?;
    Ok(debug)
}

fn build() -> Result<PathBuf> {
    if on_path(COMPILER).is_none() {
        install_packages(&["musl-tools"])?;
    }
    if let Some(reason) = without_standard_library(TARGET) {
        bail!("{TARGET}: {reason}");
    }
    let mut build = cargo(["build", "--locked", "--release", "--package=membound"]);
    build.args(["--target", TARGET]);
    build.env(format!("CC_{}", TARGET.replace('-', "_")), COMPILER);
    // What is copied to many machines may take longer to build: this is a fifth smaller.
    build.env("CARGO_PROFILE_RELEASE_LTO", "fat");
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    succeed(&mut build)?;
    let directory =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(directory.join(TARGET).join("release/membound"))
}

fn objcopy(options: &[&str], from: &Path, to: &Path) -> Result<()> {
    succeed(program("objcopy").args(options).arg(from).arg(to))
}

/// The binary is not too large and needs no loader, which it would look for on machines
/// that have none of that name.
fn check(binary: &Path) -> Result<()> {
    let bytes = fs::metadata(binary)
        .with_context(|| format!("cannot read {}", binary.display()))?
        .len();
    ensure!(
        bytes <= LARGEST_BYTES,
        "{} has {bytes} bytes: more than {LARGEST_BYTES}",
        binary.display()
    );
    let segments = stdout_of(program("readelf").arg("-lW").arg(binary))?;
    ensure!(
        !segments.contains("INTERP"),
        "{} is not static",
        binary.display()
    );
    Ok(())
}
