//! The Debian package, from a staged tree by dpkg-deb.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::processor::{Processor, VERSION};
use super::stage::{NOTICES, copy, make, read, write};
use crate::run::{program, succeed};

/// Copies of the tarball's files: from, to.
const FILES: [(&str, &str); 6] = [
    ("membound", "usr/bin/membound"),
    (
        "completions/membound.bash",
        "usr/share/bash-completion/completions/membound",
    ),
    (
        "completions/_membound",
        "usr/share/zsh/vendor-completions/_membound",
    ),
    (
        "completions/membound.fish",
        "usr/share/fish/vendor_completions.d/membound.fish",
    ),
    ("README.md", "usr/share/doc/membound/README.md"),
    ("CHANGELOG.md", "usr/share/doc/membound/changelog"),
];

/// Makes the package from `tree`; `stage` is a directory for a tree of its own.
pub(super) fn make_package(
    processor: Processor,
    tree: &Path,
    stage: &Path,
    into: &Path,
    epoch: u64,
) -> Result<PathBuf> {
    let place = stage.join("deb");
    for (from, to) in FILES {
        let to = place.join(to);
        make(to.parent().unwrap_or(&place))?;
        copy(&tree.join(from), &to)?;
    }
    let manual = place.join("usr/share/man/man1");
    make(&manual)?;
    for page in std::fs::read_dir(tree.join("man/man1"))? {
        let page = page?;
        copy(&page.path(), &manual.join(page.file_name()))?;
    }
    compress(&[&manual, &place.join("usr/share/doc/membound/changelog")])?;
    write(
        &place.join("usr/share/doc/membound/copyright"),
        copyright(tree)?,
    )?;
    make(&place.join("DEBIAN"))?;
    write(
        &place.join("DEBIAN/control"),
        control(processor, size_kib(&place)?),
    )?;
    let name = processor.debian_name();
    let package = into.join(format!("membound_{VERSION}_{name}.deb"));
    let mut dpkg = program("dpkg-deb");
    dpkg.args(["--root-owner-group", "-Zxz", "--build"]);
    dpkg.arg(&place).arg(&package);
    succeed(dpkg.env("SOURCE_DATE_EPOCH", epoch.to_string()))?;
    Ok(package)
}

/// Debian keeps pages and changelogs compressed.
fn compress(places: &[&Path]) -> Result<()> {
    succeed(program("gzip").args(["-9nr"]).args(places))
}

fn copyright(tree: &Path) -> Result<Vec<u8>> {
    let mut text =
        b"membound is under the MIT licence or the Apache licence 2.0, as you choose.\n\n".to_vec();
    for name in ["LICENSE-MIT", NOTICES] {
        text.extend(read(&tree.join(name))?);
        text.push(b'\n');
    }
    text.extend(b"\nThe Apache licence is in /usr/share/common-licenses/Apache-2.0.\n");
    Ok(text)
}

fn size_kib(place: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(place)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() {
            size_kib(&entry.path())? * 1024
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(bytes.div_ceil(1024))
}

/// The package depends on nothing: the binary is static.
fn control(processor: Processor, size_kib: u64) -> String {
    let name = processor.debian_name();
    format!(
        "Package: membound\n\
         Version: {VERSION}\n\
         Architecture: {name}\n\
         Maintainer: The developers of membound <membound@localhost>\n\
         Installed-Size: {size_kib}\n\
         Section: devel\n\
         Priority: optional\n\
         Description: measures the memory hierarchy and shows where programs wait for it\n \
         membound measures how fast the memory hierarchy of a machine is, and shows where a\n \
         program waits for it: in which line of code and on which object. It needs no\n \
         hardware counters, no root and no recompiling.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_control_file_is_a_field_or_goes_on_with_one() {
        let text = control(Processor::Aarch64, 7);
        assert!(text.contains("\nInstalled-Size: 7\n"), "{text}");
        assert!(text.contains("\nArchitecture: arm64\n"), "{text}");
        assert!(text.contains(&format!("\nVersion: {VERSION}\n")), "{text}");
        for line in text.lines() {
            let is_field = line
                .split_once(": ")
                .is_some_and(|(name, _)| !name.contains(' '));
            assert!(is_field || line.starts_with(' '), "{line}");
        }
    }
}
