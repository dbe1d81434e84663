//! cargo-deny: bans, licences and sources. The advisories need a database from elsewhere
//! that changes under a commit's feet, so they are no part of the checks.

use std::path::PathBuf;

use anyhow::Result;

use crate::run::{cargo, note, on_path, program, root, succeed};

/// The version that is built where there is none.
const VERSION: &str = "0.20.2";

/// Runs cargo-deny, and builds it first (two minutes on two cores) where it is missing.
pub(crate) fn check() -> Result<()> {
    succeed(program(tool()?).args([
        "--locked",
        "--all-features",
        "check",
        "--show-stats",
        "bans",
        "licenses",
        "sources",
    ]))
}

/// cargo-deny from an earlier run, from `PATH`, or newly built into `target/tools`.
fn tool() -> Result<PathBuf> {
    let tools = root().join("target/tools");
    let own = tools.join("bin/cargo-deny");
    if own.is_file() {
        return Ok(own);
    }
    if let Some(installed) = on_path("cargo-deny") {
        return Ok(installed);
    }
    note(format_args!(
        "building cargo-deny {VERSION} into {}",
        tools.display()
    ));
    let mut install = cargo(["install", "--quiet", "--locked", "cargo-deny", "--version"]);
    install.arg(VERSION).arg("--root").arg(&tools);
    // Flags meant for the workspace would only slow the tool's build or break it.
    install.env_remove("RUSTFLAGS");
    succeed(&mut install)?;
    Ok(own)
}
