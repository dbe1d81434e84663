//! Tries the packages: each in a Debian that has nothing but what installs it, the image without
//! root, and the binary for another processor under an emulator.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::image;
use super::made::Made;
use super::stage::{make, read, write};
use crate::bench::verdict;
use crate::machines;
use crate::needs::{debian_suite, install_packages};
use crate::run::{note, on_path, program, say, shown, stdout_of, succeed};

/// Script of a user's first steps with an installed command.
const TRY: &str = include_str!("try.sh");
/// Script that installs a package in an empty root and tries it there.
const INSTALL: &str = include_str!("install.sh");
/// Maximum time from the beginning of the installation in an empty root to the end of the first
/// report.
const MAX_FIRST_REPORT: Duration = Duration::from_secs(60);
/// Maximum time of `membound --help`.
const MAX_HELP: Duration = Duration::from_millis(10);
const HELP_STARTS: usize = 51;

/// Tries everything that was made for a processor.
pub(super) fn run(made: &Made) -> Result<()> {
    let place = tempfile::tempdir().context("there is no room for a directory")?;
    let place = place.path();
    let script = place.join("try.sh");
    write(&script, TRY)?;
    let mut unpack = program("tar");
    unpack.arg("--directory").arg(place).arg("-xzf");
    succeed(unpack.arg(&made.tarball))?;
    let binary = place.join(made.processor.stem()).join("membound");
    if !made.processor.is_here() {
        return emulated(made, &script, &binary, place);
    }
    figure("membound --help", help(&binary)?, MAX_HELP);
    for package in packages(made) {
        in_debian(&package, &script, place)?;
    }
    image::check(made)
}

/// A package, and how it is installed in a Debian: everything is a command of sh without single
/// quotes.
struct Package<'a> {
    file: &'a Path,
    /// Debian packages that its installation needs.
    with: &'static [&'static str],
    /// Command that installs the file of this name in the current directory.
    install: String,
    /// Command that starts the installed membound.
    command: String,
    remove: &'static str,
}

fn packages(made: &Made) -> [Package<'_>; 4] {
    let stem = made.processor.stem();
    [
        Package {
            file: &made.deb,
            with: &[],
            install: "dpkg --install *.deb".to_owned(),
            command: "membound".to_owned(),
            remove: "dpkg --purge membound",
        },
        Package {
            file: &made.rpm,
            with: &["rpm"],
            // Debian's rpm refuses without the option: dpkg would not know of the files.
            install: "rpm --install --force-debian *.rpm".to_owned(),
            command: "membound".to_owned(),
            remove: "rpm --erase --force-debian membound",
        },
        Package {
            file: &made.tarball,
            with: &[],
            install: "tar -xzf *.tar.gz --directory /opt".to_owned(),
            command: format!("/opt/{stem}/membound"),
            remove: "rm -r /opt/membound-*",
        },
        Package {
            file: &made.wheel,
            with: &["python3-venv"],
            install: "python3 -m venv /venv && /venv/bin/pip install --quiet --no-index *.whl"
                .to_owned(),
            command: "/venv/bin/python -m membound".to_owned(),
            remove: "/venv/bin/pip uninstall --quiet --yes membound",
        },
    ]
}

/// mmdebstrap makes a root with what Debian calls essential and what the installation needs,
/// mounts the kernel's file systems in it, runs the hooks, and leaves nothing behind.
fn in_debian(package: &Package<'_>, script: &Path, place: &Path) -> Result<()> {
    if on_path("mmdebstrap").is_none() {
        install_packages(&["mmdebstrap"])?;
    }
    let name = package.file.file_name().unwrap_or_default().display();
    note(format_args!("── {name} in an empty Debian"));
    let install = place.join("install.sh");
    write(&install, INSTALL)?;
    let milliseconds = place.join("milliseconds");
    let mut make = program("mmdebstrap");
    make.args(["--quiet", "--variant=essential", "--format=null"]);
    for name in package.with {
        make.arg(format!("--include={name}"));
    }
    make.arg("--customize-hook=mkdir \"$1/trial\"");
    // mmdebstrap mounts it read only, which keeps programs from being patched.
    make.arg("--customize-hook=mount -o remount,rw \"$1/proc\"");
    for from in [package.file, script, &install] {
        let from = from.display();
        make.arg(format!("--customize-hook=copy-in {from} /trial"));
    }
    let words = [&package.install, &package.command, package.remove].map(|it| format!("'{it}'"));
    let inside = format!("chroot \"$1\" sh /trial/install.sh {}", words.join(" "));
    make.arg(format!("--customize-hook={inside}"));
    let to = milliseconds.display();
    make.arg(format!(
        "--customize-hook=download /trial/milliseconds {to}"
    ));
    succeed(make.args([&debian_suite(), "/dev/null"]))?;
    let text = String::from_utf8(read(&milliseconds)?)?;
    let taken = Duration::from_millis(text.trim().parse().context("install.sh tells no time")?);
    figure(
        &format!("{name} to the first report"),
        taken,
        MAX_FIRST_REPORT,
    );
    Ok(())
}

/// Tries the binary of the tarball, which is also that of the packages.
fn emulated(made: &Made, script: &Path, binary: &Path, place: &Path) -> Result<()> {
    let emulator = made.processor.emulator();
    note(format_args!(
        "── {} under {emulator}",
        made.processor.stem()
    ));
    let command = shown(&made.processor.start(binary));
    succeed(
        program("sh")
            .arg(script)
            .args([&command, "without-patches"]),
    )?;
    let trial = place.join("trial");
    make(&trial)?;
    machines::try_binary(&emulator, binary, &trial)
}

/// The median time of `membound --help`.
fn help(binary: &Path) -> Result<Duration> {
    let mut taken = Vec::new();
    for _ in 0..HELP_STARTS {
        let begin = Instant::now();
        stdout_of(program(binary).arg("--help"))?;
        taken.push(begin.elapsed());
    }
    taken.sort();
    Ok(taken[HELP_STARTS / 2])
}

/// Prints a figure and its target. A missed target is no failure: the machine may be busy.
fn figure(what: &str, taken: Duration, most: Duration) {
    let verdict = verdict(taken <= most);
    say(format_args!(
        "{what}: {taken:.3?} (at most {most:?}): {verdict}"
    ));
}
