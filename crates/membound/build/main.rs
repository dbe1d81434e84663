//! Passes the commit and the profile of the build to the command.
//!
//! The commit is asked from git, and again only when sources or the checked-out commit change. A source tree
//! without git gets an unknown commit.

#![expect(clippy::print_stdout, reason = "this is how cargo is told")]

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

mod commit;

use commit::Commit;

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let watched = sources(&here)?.into_iter().chain(commit::watched(&here));
    for path in watched {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let found = Commit::of(&here);
    let commit = found
        .as_ref()
        .map_or_else(|| "unknown commit".to_owned(), Commit::to_string);
    let version = env::var("CARGO_PKG_VERSION")?;
    let profile = env::var("PROFILE")?;
    println!("cargo::rustc-env=MEMBOUND_BUILD={version} ({commit}, {profile})");
    let date = found.map_or_else(String::new, |commit| commit.date);
    println!("cargo::rustc-env=MEMBOUND_DATE={date}");
    Ok(())
}

/// The inputs of the command: a change may make the tree dirty, or clean again. Paths that do not exist are
/// left out, since cargo would run this script in every build because of them.
fn sources(here: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut paths = vec![here.join("../../Cargo.toml"), here.join("../../Cargo.lock")];
    paths.push(here.join("build"));
    for entry in fs::read_dir(here.join(".."))? {
        let package = entry?.path();
        paths.extend([package.join("src"), package.join("Cargo.toml")]);
    }
    paths.retain(|path| path.exists());
    paths.sort();
    Ok(paths)
}
