//! `cargo xtask dist`: what is installed where there is no toolchain, under `target/dist/`.
//!
//! One static binary for every x86-64 Linux, its debugging information and its bill of materials
//! beside it, and four ways to bring it to a machine: a tarball, a Debian package, an RPM package
//! and a Python wheel. With `--check` the Debian package and the wheel are installed in empty
//! surroundings and tried. `packaging/Containerfile` makes an image of the tarball.

mod binary;
mod check;
mod deb;
mod licences;
mod rpm;
mod sbom;
mod stage;
mod sums;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) use wheel::EXTRAS;

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
    let rpm = rpm::make_package(&tree, &stage, &directory, epoch)?;
    let wheel = wheel::make_wheel(&tree, &directory)?;
    let sbom = sbom::write_sbom(&directory)?;
    fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    let made = [tarball, package.clone(), rpm, wheel.clone(), sbom, debug];
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What else names the tarball or the directory in it has the present names.
    #[track_caller]
    fn check_names(file: &str, replaced: &[(&str, &str)], expected: &[String]) {
        let mut text = fs::read_to_string(root().join(file)).unwrap();
        for (from, to) in replaced {
            text = text.replace(from, to);
        }
        for name in expected {
            assert!(text.contains(name), "{file} lacks {name}");
        }
    }

    #[test]
    fn binstall_finds_the_tarball_and_the_binary_in_it() {
        let replaced = [
            ("{ version }", VERSION),
            ("{ bin }{ binary-ext }", "membound"),
        ];
        let names = [
            format!("/{}.tar.gz\"", name()),
            format!("{}/membound\"", name()),
        ];
        check_names("crates/membound/Cargo.toml", &replaced, &names);
    }

    #[test]
    fn the_image_has_the_binary_of_the_tarball() {
        let names = [
            format!("ADD {}.tar.gz /", name()),
            format!("[\"/{}/membound\"]", name()),
        ];
        check_names("packaging/Containerfile", &[], &names);
    }
}
