//! Files that accompany the binary: manual, scripts for shells, licences, README.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::licences;
use super::processor::Processor;
use crate::run::{root, stdout_of, succeed};

/// Scripts for shells, each with the name of its file.
pub(super) const SCRIPTS: [(&str, &str); 5] = [
    ("bash", "membound.bash"),
    ("zsh", "_membound"),
    ("fish", "membound.fish"),
    ("elvish", "membound.elv"),
    ("powershell", "membound.ps1"),
];

/// Files of the workspace that every package contains.
pub(super) const DOCUMENTS: [&str; 4] =
    ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"];

/// The licences of everything that is linked in.
pub(super) const NOTICES: &str = "THIRD-PARTY-LICENSES";

/// Adds the files to `tree`, which has the binary.
pub(super) fn fill(processor: Processor, tree: &Path) -> Result<()> {
    let binary = tree.join("membound");
    let [manual, scripts] = ["man/man1", "completions"].map(|name| tree.join(name));
    for directory in [&manual, &scripts] {
        make(directory)?;
    }
    succeed(processor.start(&binary).args(["man", "--all"]).arg(&manual))?;
    for (shell, name) in SCRIPTS {
        let script = stdout_of(processor.start(&binary).args(["completions", shell]))?;
        write(&scripts.join(name), script)?;
    }
    for name in DOCUMENTS {
        copy(&root().join(name), &tree.join(name))?;
    }
    write(&tree.join(NOTICES), licences::text(processor)?)
}

pub(super) fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
}

pub(super) fn write(path: &Path, data: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, data).with_context(|| format!("cannot write {}", path.display()))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
