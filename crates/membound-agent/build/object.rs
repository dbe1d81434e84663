//! Builds the agent as a shared object: for the build script that embeds it, and for the agent's own tests.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables of the surrounding build that must not reach this one.
const FOREIGN: [&str; 9] = [
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_MAKEFLAGS",
    "MAKEFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
    "CARGO_INCREMENTAL",
];

/// Frame pointers, since signal handlers unwind out of the agent by them. No start files, since their
/// functions expect a libc. First of all initialisers; never unloaded; no symbol left to bind when a signal
/// handler runs.
const CODEGEN: [&str; 3] = [
    "force-frame-pointers=yes",
    "link-arg=-nostartfiles",
    "link-arg=-Wl,-z,initfirst,-z,nodelete,-z,now,--hash-style=both",
];

/// Builds the agent, whose manifest is `manifest`, for `target` below `directory`, and returns the path of
/// the object.
pub(crate) fn build(
    manifest: &Path,
    directory: &Path,
    target: &str,
) -> Result<PathBuf, Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "rustc",
            "--lib",
            "--crate-type",
            "cdylib",
            "--profile",
            "agent",
        ])
        .args(["--target", target])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(directory)
        .arg("--");
    for argument in CODEGEN {
        cargo.args(["-C", argument]);
    }
    for variable in FOREIGN {
        cargo.env_remove(variable);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the agent could not be built:\n{words}").into());
    }
    Ok(directory.join(target).join("agent/libmembound_agent.so"))
}
