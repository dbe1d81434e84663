//! The RPM package, from a staged tree by rpmbuild.
//!
//! The `rpm` crate would bring second versions of a dozen crates; rpmbuild is packaged everywhere.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::processor::{Processor, VERSION};
use super::stage::{make, write};
use crate::needs::install_packages;
use crate::run::{on_path, program, stdout_of, succeed};

/// Copies of the tarball's files: from, to (a directory where it ends in `/`), mode.
const FILES: [(&str, &str, &str); 6] = [
    ("membound", "%{_bindir}/", "0755"),
    (
        "completions/membound.bash",
        "%{_datadir}/bash-completion/completions/membound",
        "0644",
    ),
    (
        "completions/_membound",
        "%{_datadir}/zsh/site-functions/",
        "0644",
    ),
    (
        "completions/membound.fish",
        "%{_datadir}/fish/vendor_completions.d/",
        "0644",
    ),
    ("README.md", "%{_docdir}/membound/", "0644"),
    ("CHANGELOG.md", "%{_docdir}/membound/", "0644"),
];
const LICENCES: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", super::stage::NOTICES];

/// Makes the package from `tree`; `stage` is a directory for rpmbuild's own directories.
pub(super) fn make_package(
    processor: Processor,
    tree: &Path,
    stage: &Path,
    into: &Path,
    epoch: u64,
) -> Result<PathBuf> {
    if on_path("rpmbuild").is_none() {
        install_packages(&["rpm"])?;
    }
    let place = stage.join("rpm");
    make(&place)?;
    let spec = place.join("membound.spec");
    write(&spec, spec_file(tree))?;
    let mut build = program("rpmbuild");
    build.args(["-bb", "--quiet", "--target", processor.name()]);
    build
        .arg("--define")
        .arg(format!("_topdir {}", place.display()));
    build.arg(&spec);
    succeed(build.env("SOURCE_DATE_EPOCH", epoch.to_string()))?;
    let processor = processor.name();
    let name = format!("membound-{VERSION}-1.{processor}.rpm");
    let package = into.join(&name);
    let built = place.join("RPMS").join(processor).join(&name);
    std::fs::copy(&built, &package)
        .with_context(|| format!("rpmbuild made no {}", built.display()))?;
    check(&package)?;
    Ok(package)
}

/// Checks that the package has the command and requires nothing but rpm's own features.
fn check(package: &Path) -> Result<()> {
    let ask = |what: &str| stdout_of(program("rpm").args(["-qp", what]).arg(package));
    let files = ask("-l")?;
    ensure!(
        files.lines().any(|file| file == "/usr/bin/membound"),
        "{} lacks the command",
        package.display()
    );
    let needed = ask("--requires")?;
    let foreign = needed.lines().find(|line| !line.starts_with("rpmlib("));
    ensure!(foreign.is_none(), "the package needs {foreign:?}");
    Ok(())
}

/// The spec file: nothing is compiled, stripped or searched for dependencies.
fn spec_file(tree: &Path) -> String {
    let mut install = String::new();
    let mut files = String::new();
    for (from, to, mode) in FILES {
        let from = tree.join(from);
        install += &format!(
            "install -D -p -m {mode} {} -T %{{buildroot}}{}\n",
            from.display(),
            full(to, &from)
        );
        files += &format!("{}\n", full(to, &from));
    }
    let manual = tree.join("man/man1");
    install += &format!(
        "mkdir -p %{{buildroot}}%{{_mandir}}/man1\ncp -p {}/* %{{buildroot}}%{{_mandir}}/man1/\n",
        manual.display()
    );
    for name in LICENCES {
        let from = tree.join(name);
        let to = format!("%{{_datadir}}/licenses/membound/{name}");
        install += &format!(
            "install -D -p -m 0644 {} -T %{{buildroot}}{to}\n",
            from.display()
        );
        files += &format!("%license {to}\n");
    }
    format!(
        "%global debug_package %{{nil}}\n\
         %global __os_install_post %{{nil}}\n\
         %global _build_id_links none\n\
         %global use_source_date_epoch_as_buildtime 1\n\
         %global _buildhost localhost\n\
         Name: membound\n\
         Version: {VERSION}\n\
         Release: 1\n\
         Summary: Measures the memory hierarchy and shows where programs wait for it\n\
         License: MIT OR Apache-2.0\n\
         AutoReqProv: no\n\
         %description\n\
         membound measures how fast the memory hierarchy of a machine is, and shows where a\n\
         program waits for it: in which line of code and on which object. It needs no\n\
         hardware counters, no root and no recompiling.\n\
         %install\n{install}\
         %files\n{files}%{{_mandir}}/man1/*\n"
    )
}

/// Destination of a file: the directory `to` with the file's own name, or `to` itself.
fn full(to: &str, from: &Path) -> String {
    match (to.strip_suffix('/'), from.file_name()) {
        (Some(directory), Some(name)) => format!("{directory}/{}", name.to_string_lossy()),
        _ => to.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use membound_testkit::{is_there, skipped};

    use super::*;
    use crate::dist::stage::{DOCUMENTS, NOTICES};

    #[test]
    fn a_package_of_a_staged_tree_has_its_files_and_needs_nothing() {
        if !is_there("rpmbuild") {
            return skipped("no rpmbuild");
        }
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        for directory in ["man/man1", "completions"] {
            make(&tree.join(directory)).unwrap();
        }
        let names = FILES.map(|(from, ..)| from);
        for name in names
            .iter()
            .chain(&DOCUMENTS)
            .chain(&[NOTICES, "man/man1/membound.1"])
        {
            write(&tree.join(name), format!("{name}\n")).unwrap();
        }
        let package = make_package(Processor::Aarch64, &tree, place.path(), place.path(), 1);
        let package = package.unwrap();
        let listed = stdout_of(program("rpm").args(["-qp", "-l"]).arg(&package)).unwrap();
        for file in [
            "/usr/bin/membound",
            "/usr/share/man/man1/membound.1",
            "/usr/share/zsh/site-functions/_membound",
            "/usr/share/licenses/membound/LICENSE-MIT",
        ] {
            assert!(listed.lines().any(|line| line == file), "{file}: {listed}");
        }
    }
}
