//! What the tests need from the system, and its installation.
//!
//! Debian packages are installed where that is permitted: as root, with apt-get. The guest's kernel
//! is only downloaded and unpacked under `target/guest/` and does not touch the running system.
//! Missing needs are named, and the tests that need them report themselves as skipped.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::machines;
use crate::run::{note, on_path, program, root, stdout_of, succeed};

/// Something that tests need, and the Debian packages that bring it.
struct Need {
    what: &'static str,
    packages: &'static [&'static str],
    present: fn() -> bool,
}

const NEEDS: [Need; 10] = [
    Need {
        what: "a C compiler and its headers (fixtures)",
        packages: &["gcc", "libc6-dev"],
        present: || on_path("cc").is_some() && Path::new("/usr/include/stdio.h").is_file(),
    },
    Need {
        what: "a C++ compiler (programs to be patched)",
        packages: &["g++"],
        present: || on_path("g++").is_some(),
    },
    Need {
        what: "another C compiler (its forms of code)",
        packages: &["clang"],
        present: || on_path("clang").is_some(),
    },
    Need {
        what: "perf (its recordings are imported)",
        packages: &["linux-perf"],
        present: || on_path("perf").is_some(),
    },
    Need {
        what: "another C library (musl programs to be patched)",
        packages: &["musl-tools"],
        present: || on_path("musl-gcc").is_some(),
    },
    Need {
        what: "a debugger (attached to patched programs)",
        packages: &["gdb"],
        present: || on_path("gdb").is_some(),
    },
    Need {
        what: "other allocators (their blocks are followed)",
        packages: &["libjemalloc2", "libmimalloc2.0", "libtcmalloc-minimal4"],
        // Only programs of this architecture are followed.
        present: || {
            cfg!(not(target_arch = "x86_64"))
                || [
                    "libjemalloc.so.2",
                    "libmimalloc.so.2.0",
                    "libtcmalloc_minimal.so.4",
                ]
                .iter()
                .all(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name).exists())
        },
    },
    Need {
        what: "a browser (the page is opened in it)",
        packages: &["chromium"],
        present: || on_path("chromium").is_some(),
    },
    Need {
        what: "cross compilers and emulators (the command for other processors)",
        packages: machines::PACKAGES,
        present: machines::present,
    },
    Need {
        what: "an emulator (the two-node guest)",
        packages: &["qemu-system-x86"],
        present: || on_path("qemu-system-x86_64").is_some(),
    },
];

/// Options of apt that give up on a dead network.
const APT_NETWORK: [&str; 2] = ["-oAcquire::Retries=2", "-oAcquire::http::Timeout=30"];

/// The Debian package that depends on the newest cloud kernel.
const KERNEL: &str = "linux-image-cloud-amd64";

/// The Debian release that is unpacked if this system is not Debian.
const USUAL_SUITE: &str = "stable";

/// Directory in which the guest's kernel is unpacked.
pub(crate) fn guest_directory() -> PathBuf {
    root().join("target/guest")
}

/// Installs what is missing if `install` is set and it is permitted; names the rest.
pub(crate) fn provide(install: bool) {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.present)()).collect();
    let kernel_missing = cfg!(target_arch = "x86_64") && !has_kernel(&guest_directory());
    if missing.is_empty() && !kernel_missing {
        return;
    }
    let has_apt = on_path("apt-get").is_some();
    if install && has_apt {
        if is_root() {
            // Package lists of a fresh container are empty. If this fails, the next step reports
            // it.
            report("package lists not refreshed", apt(&["update", "-qq"]));
            let packages: Vec<&str> = missing
                .iter()
                .flat_map(|need| need.packages)
                .copied()
                .collect();
            if !packages.is_empty() {
                note(format_args!("installing {}", packages.join(" ")));
                report("packages not installed", install_packages(&packages));
            }
        }
        if kernel_missing {
            report("guest's kernel not unpacked", unpack_kernel());
        }
    }
    for need in missing.iter().filter(|need| !(need.present)()) {
        note(format_args!(
            "missing: {}; Debian packages: {}",
            need.what,
            need.packages.join(" ")
        ));
    }
    if kernel_missing && !has_kernel(&guest_directory()) {
        note(format_args!(
            "missing: a kernel for the two-node guest; unpack Debian's {KERNEL} under {}",
            guest_directory().display()
        ));
    }
}

/// Installs Debian packages, as root only.
pub(crate) fn install_packages(packages: &[&str]) -> Result<()> {
    if !is_root() || on_path("apt-get").is_none() {
        bail!(
            "Debian packages {} are installed by root only",
            packages.join(" ")
        );
    }
    let mut words = vec!["install", "-qq", "--yes", "--no-install-recommends"];
    words.extend(packages);
    apt(&words)
}

/// Code name of this system's Debian release.
pub(crate) fn debian_suite() -> String {
    let told = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = told
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let is_debian = told.lines().any(|line| line == "ID=debian");
    let name = name.filter(|_| is_debian).unwrap_or(USUAL_SUITE);
    name.to_owned()
}

fn report(what: &str, outcome: Result<()>) {
    if let Err(error) = outcome {
        note(format_args!("{what}: {error:#}"));
    }
}

/// Whether this process runs as root, determined by the owner of its entry under /proc.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// Runs apt-get so that it never asks, never waits for long, gives up on a dead network, and prints
/// its output only when it fails.
fn apt(words: &[&str]) -> Result<()> {
    stdout_of(
        program("apt-get")
            .args(APT_NETWORK)
            .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"])
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
    .map(drop)
}

/// Whether a kernel image lies under `directory`.
fn has_kernel(directory: &Path) -> bool {
    std::fs::read_dir(directory.join("boot")).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"))
    })
}

/// Downloads Debian's cloud kernel and unpacks it; needs no root.
fn unpack_kernel() -> Result<()> {
    let depends = stdout_of(program("apt-cache").args(["depends", KERNEL]))?;
    let package = newest_image(&depends)
        .with_context(|| format!("apt-cache names no kernel behind {KERNEL}"))?;
    let directory = guest_directory();
    let download = directory.join("download");
    // Incomplete files of an earlier run.
    drop(std::fs::remove_dir_all(&download));
    std::fs::create_dir_all(&download)
        .with_context(|| format!("cannot create {}", download.display()))?;
    note(format_args!(
        "unpacking {package} under {}",
        directory.display()
    ));
    succeed(
        program("apt-get")
            .arg("-qq")
            .args(APT_NETWORK)
            // As root apt would warn that its own user cannot write here.
            .args(["-o", "APT::Sandbox::User=root"])
            .args(["download", package])
            .current_dir(&download),
    )?;
    let archive = std::fs::read_dir(&download)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let Some(archive) = archive else {
        bail!("apt-get downloaded no package to {}", download.display());
    };
    // Only a completely unpacked kernel is moved to its place; the guest loads no modules.
    let unpacked = download.join("unpacked");
    succeed(program("dpkg-deb").arg("-x").args([&archive, &unpacked]))?;
    let boot = directory.join("boot");
    std::fs::rename(unpacked.join("boot"), &boot)
        .with_context(|| format!("cannot move the kernel to {}", boot.display()))?;
    std::fs::remove_dir_all(&download)
        .with_context(|| format!("cannot remove {}", download.display()))
}

/// The kernel package in the output of `apt-cache depends`.
fn newest_image(depends: &str) -> Option<&str> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_package_is_the_image_that_the_meta_package_depends_on() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-50-cloud-amd64\n";
        assert_eq!(
            newest_image(depends),
            Some("linux-image-6.1.0-50-cloud-amd64")
        );
        assert_eq!(newest_image("linux-image-cloud-amd64\n"), None);
    }
}
