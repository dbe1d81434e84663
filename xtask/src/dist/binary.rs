//! The static binary, and its debugging information apart.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::processor::Processor;
use crate::run::{cargo, program, root, stdout_of, succeed};

/// Crates that are built to be small, because none of their functions runs for long: arguments,
/// documents and what is shown.
const SMALL: [&str; 4] = [
    "clap_builder",
    "membound",
    "membound-report",
    "membound-types",
];
/// Maximum size of the binary without its debugging information and symbols, in bytes.
const LARGEST_BYTES: u64 = 25_000_000;

/// Builds the command as `tree`/membound; returns the file with its debugging information, which is
/// in `directory`.
pub(super) fn make(processor: Processor, tree: &Path, directory: &Path) -> Result<PathBuf> {
    let built = build(processor)?;
    fs::create_dir_all(tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let debug = directory.join(format!("{}.debug", processor.stem()));
    let binary = tree.join("membound");
    for (option, to) in [("--only-keep-debug", &debug), ("--strip-all", &binary)] {
        let mut objcopy = program(processor.tool("objcopy"));
        succeed(objcopy.arg(option).arg(&built).arg(to))?;
    }
    // Only the file's name and its check sum go into the binary.
    let link = format!("--add-gnu-debuglink={}", debug.display());
    succeed(program(processor.tool("objcopy")).arg(link).arg(&binary))?;
    check(processor, &binary)?;
    Ok(debug)
}

fn build(processor: Processor) -> Result<PathBuf> {
    let mut build = cargo(["build", "--locked", "--release", "--package=membound"]);
    processor.provide_tools(&mut build)?;
    // The binary is copied to many machines, so a longer build is worth a fifth less size.
    build.env("CARGO_PROFILE_RELEASE_LTO", "fat");
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    for name in SMALL {
        build.arg(format!(
            "--config=profile.release.package.{name}.opt-level=\"s\""
        ));
    }
    succeed(&mut build)?;
    let directory =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(directory.join(processor.target()).join("release/membound"))
}

/// Checks that the binary is not too large and needs no loader, which machines may lack.
fn check(processor: Processor, binary: &Path) -> Result<()> {
    let bytes = fs::metadata(binary)
        .with_context(|| format!("cannot read {}", binary.display()))?
        .len();
    ensure!(
        bytes <= LARGEST_BYTES,
        "{} has {bytes} bytes: more than {LARGEST_BYTES}",
        binary.display()
    );
    let segments = stdout_of(program(processor.tool("readelf")).arg("-lW").arg(binary))?;
    ensure!(
        !segments.contains("INTERP"),
        "{} is not static",
        binary.display()
    );
    Ok(())
}
