//! Builds the agent and leaves it as `$OUT_DIR/agent.so` for `include_bytes!`.
//!
//! The agent is a package of its own with a profile of its own, which cargo cannot express as a dependency
//! on stable Rust. So this script runs cargo to build it, in a directory of its own, without the flags and
//! wrappers of the surrounding build, which are meant for the command. For machines other than x86-64 Linux
//! the file is empty, and the command reports that there is no agent.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

#[path = "../membound-agent/build/object.rs"]
mod object;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let crates = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    for source in [
        "membound-agent/src",
        "membound-agent/build",
        "membound-agent/Cargo.toml",
        "membound-sync/src",
        "membound-sync/Cargo.toml",
        "membound-wire/src",
        "membound-wire/Cargo.toml",
        "../Cargo.toml",
    ] {
        println!("cargo::rerun-if-changed={}", crates.join(source).display());
    }
    let embedded = out.join("agent.so");
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    let os = env::var("CARGO_CFG_TARGET_OS")?;
    if (arch.as_str(), os.as_str()) == ("x86_64", "linux") {
        let built = object::build(
            &crates.join("membound-agent/Cargo.toml"),
            &out.join("agent"),
            &target()?,
        )?;
        fs::copy(&built, &embedded)
            .map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    } else {
        fs::write(&embedded, [])?;
    }
    Ok(())
}

/// The target that the agent is built for: its object needs no libc, but only the glibc target produces one
/// that works in programs of every libc.
fn target() -> Result<String, env::VarError> {
    let target = env::var("TARGET")?;
    let host = env::var("HOST")?;
    let suits = |triple: &str| triple.starts_with("x86_64") && triple.ends_with("-linux-gnu");
    Ok(if !suits(&target) && suits(&host) {
        host
    } else {
        target
    })
}
