//! Tools that checks need and that are rarely installed: cargo builds each once, into
//! `target/tools`.

use std::path::PathBuf;

use anyhow::Result;

use crate::run::{cargo, note, on_path, root, succeed};

/// A crate with one binary of the same name.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The version that is built if none is installed.
    pub(crate) version: &'static str,
    /// Further arguments of `cargo install`.
    pub(crate) options: &'static [&'static str],
}

impl Tool {
    /// The tool from an earlier run, from `PATH`, or newly built.
    ///
    /// # Errors
    /// When it cannot be built.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let tools = root().join("target/tools");
        let own = tools.join("bin").join(self.name);
        if own.is_file() {
            return Ok(own);
        }
        if let Some(installed) = on_path(self.name) {
            return Ok(installed);
        }
        note(format_args!(
            "building {} {} into {}",
            self.name,
            self.version,
            tools.display()
        ));
        let mut install = cargo(["install", "--quiet", "--locked", self.name, "--version"]);
        install.arg(self.version).arg("--root").arg(&tools);
        install.args(self.options);
        // Compiling without optimization takes half as long, and the tools have little to do.
        install
            .arg("--debug")
            .env("CARGO_PROFILE_DEV_DEBUG", "none");
        // Flags meant for the workspace would only slow the tool's build or break it.
        install.env_remove("RUSTFLAGS");
        succeed(&mut install)?;
        Ok(own)
    }
}
