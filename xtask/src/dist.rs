//! `cargo xtask dist`: packages for machines without a toolchain, under `target/dist/`.
//!
//! For each processor one static binary for every Linux, its debugging information and its bill of
//! materials beside it, and four forms in which to install it: a tarball, a Debian package, an RPM
//! package and a Python wheel. With `--check` each package is installed in an empty Debian and
//! tried there, the image of `packaging/Containerfile` is built and run, and binaries for other
//! processors are tried under an emulator.

mod binary;
mod check;
mod deb;
mod image;
mod licences;
mod made;
mod processor;
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
use clap::ValueEnum as _;

use crate::run::{program, root, say, stdout_of, succeed};
use made::Made;
use processor::Processor;

/// Arguments of `dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only for this processor, instead of all.
    #[arg(long)]
    only: Option<Processor>,
    /// Install each package in an empty Debian, build the image, and try all of them (needs root).
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let directory = root().join("target/dist");
    // Files of an earlier run.
    drop(fs::remove_dir_all(&directory));
    let all: Vec<Made> = Processor::value_variants()
        .iter()
        .filter(|processor| args.only.is_none_or(|only| only == **processor))
        .map(|processor| make(*processor, &directory))
        .collect::<Result<_>>()?;
    let files: Vec<&Path> = all.iter().flat_map(Made::files).collect();
    sums::write_sums(&directory, &files)?;
    for path in files {
        let bytes = fs::metadata(path).map_or(0, |found| found.len());
        let kilobytes = bytes.div_ceil(1000);
        say(format_args!("{kilobytes:>7} kB  {}", path.display()));
    }
    if args.check {
        all.iter().try_for_each(check::run)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes all files for a processor in `directory`.
fn make(processor: Processor, directory: &Path) -> Result<Made> {
    let stage = directory.join("stage");
    let tree = stage.join(processor.stem());
    stage::make(&tree)?;
    let epoch = epoch();
    let debug = binary::make(processor, &tree, directory)?;
    stage::fill(processor, &tree)?;
    let made = Made {
        processor,
        tarball: tarball(processor, &stage, directory, epoch)?,
        deb: deb::make_package(processor, &tree, &stage, directory, epoch)?,
        rpm: rpm::make_package(processor, &tree, &stage, directory, epoch)?,
        wheel: wheel::make_wheel(processor, &tree, directory)?,
        sbom: sbom::write_sbom(processor, directory)?,
        debug,
    };
    fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    Ok(made)
}

/// Time stamp of files in archives, so that one commit always makes the same archive: seconds from
/// 1970 to the commit, or 0 if git does not know it.
fn epoch() -> u64 {
    let told = stdout_of(program("git").args(["log", "-1", "--format=%ct"]));
    told.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

fn tarball(processor: Processor, stage: &Path, into: &Path, epoch: u64) -> Result<PathBuf> {
    let path = into.join(format!("{}.tar.gz", processor.stem()));
    let mut tar = program("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{epoch}"))
        .args(["--use-compress-program", "gzip -9n"])
        .arg("--directory")
        .arg(stage)
        .arg("--create")
        .arg("--file")
        .arg(&path)
        .arg(processor.stem());
    succeed(&mut tar)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::processor::VERSION;
    use super::*;

    /// Checks that other files name the tarball, or the directory in it, by the current names.
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
        for processor in Processor::value_variants() {
            let replaced = [
                ("{ version }", VERSION),
                ("{ target-arch }", processor.name()),
                ("{ bin }{ binary-ext }", "membound"),
            ];
            let stem = processor.stem();
            let names = [format!("/{stem}.tar.gz\""), format!("{stem}/membound\"")];
            check_names("crates/membound/Cargo.toml", &replaced, &names);
        }
    }

    #[test]
    fn the_image_has_the_binary_of_the_tarball() {
        let names = [format!("NAME={}\n", Processor::X86_64.stem())];
        check_names("packaging/Containerfile", &[], &names);
    }

    #[test]
    fn the_guide_to_installation_names_every_package() {
        let mut names = Vec::new();
        for processor in Processor::value_variants() {
            let [name, debian] = [processor.name(), processor.debian_name()];
            names.push(format!("membound_{VERSION}_{debian}.deb"));
            names.push(format!("membound-{VERSION}-1.{name}.rpm"));
            names.push(format!("{}.tar.gz", processor.stem()));
        }
        check_names("docs/book/install.md", &[], &names);
    }
}
