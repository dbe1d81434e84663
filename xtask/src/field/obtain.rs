//! Installs the programs of the field: packages of Debian into the system where that is permitted,
//! everything else into `target/field`.

use std::path::Path;

use anyhow::Result;

use super::entry::Entry;
use super::place::EntryPaths;
use crate::needs::install_packages;
use crate::run::{cargo, note, on_path, program, succeed};

/// The first program that the entry needs and this machine lacks.
pub(crate) fn missing(entry: &Entry, place: &EntryPaths) -> Option<String> {
    entry.needs.iter().find_map(|name| {
        let name = place.filled(name);
        let present = if name.contains('/') {
            Path::new(&name).exists()
        } else {
            on_path(&name).is_some()
        };
        (!present).then_some(name)
    })
}

/// Installs what the entry needs, and reports failures.
pub(crate) fn install(entry: &Entry, place: &EntryPaths) {
    if missing(entry, place).is_none() {
        return;
    }
    note(format_args!("{}: installing", entry.name));
    if let Err(error) = tried(entry, place) {
        note(format_args!("{}: not installed: {error:#}", entry.name));
    }
}

fn tried(entry: &Entry, place: &EntryPaths) -> Result<()> {
    let obtain = &entry.obtain;
    let target = &place.target;
    if !obtain.debian.is_empty() {
        let packages: Vec<&str> = obtain.debian.iter().map(String::as_str).collect();
        install_packages(&packages)?;
    }
    if !obtain.pip.is_empty() {
        let venv = target.join("venv");
        if !venv.exists() {
            // A python3 of pyenv is a script, and its processes would be profiled instead.
            let system = Path::new("/usr/bin/python3");
            let python = if system.exists() {
                system
            } else {
                Path::new("python3")
            };
            succeed(program(python).args(["-m", "venv"]).arg(&venv))?;
        }
        succeed(
            program(venv.join("bin/pip"))
                .args(["install", "--quiet"])
                .args(&obtain.pip),
        )?;
    }
    if !obtain.npm.is_empty() {
        let mut npm = program("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--prefix"]);
        succeed(npm.arg(target.join("npm")).args(&obtain.npm))?;
    }
    for module in &obtain.go {
        succeed(
            program("go")
                .args(["install", module])
                .env("GOBIN", target.join("bin")),
        )?;
    }
    for name in &obtain.cargo {
        let mut install = cargo(["install", "--quiet", "--locked", "--root"]);
        succeed(install.arg(target).arg(name))?;
    }
    for artifact in &obtain.maven {
        succeed(
            program("mvn")
                .args(["-q", "dependency:copy"])
                .arg(format!("-Dartifact={artifact}"))
                .arg(format!(
                    "-DoutputDirectory={}",
                    target.join("maven").display()
                )),
        )?;
    }
    Ok(())
}
