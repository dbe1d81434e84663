//! The processors for which packages are made, and the name that each tool has for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::machines::without_standard_library;
use crate::needs::{debian_suite, install_packages};
use crate::run::{on_path, program, root, stdout_of};

/// Version of everything in the workspace.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A processor of the machines that packages are for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Processor {
    /// All of membound.
    #[value(name = "x86_64")]
    X86_64,
    /// Measuring and analysis, samples of programs; nothing that patches programs.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Processor {
    /// The name in Rust's targets, RPM packages, wheels and names of files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name in Debian packages.
    pub(super) const fn debian_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The name of the tarball without its ending, and of the directory in it.
    pub(super) fn stem(self) -> String {
        format!("membound-{VERSION}-{}-linux", self.name())
    }

    /// Rust's name for static programs.
    pub(super) fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// Command that starts `binary`: under an emulator if this machine has another processor.
    pub(super) fn start(self, binary: &Path) -> Command {
        if self.is_here() {
            return program(binary);
        }
        let mut command = program(self.emulator());
        command.arg(binary);
        command
    }

    /// The emulator of qemu that runs a program for this processor.
    pub(super) fn emulator(self) -> String {
        format!("qemu-{}", self.name())
    }

    /// Whether this machine has this processor.
    pub(super) fn is_here(self) -> bool {
        self.name() == std::env::consts::ARCH
    }

    /// One of GNU's binary utilities that reads this processor's files.
    pub(super) fn tool(self, name: &str) -> String {
        if self.is_here() {
            return name.to_owned();
        }
        format!("{}-linux-gnu-{name}", self.name())
    }

    /// Makes `command`, which is cargo, build for this processor: brings the C compiler, musl's
    /// headers and Rust's standard library, and names them.
    pub(super) fn provide_tools(self, command: &mut Command) -> Result<()> {
        let target = self.target();
        if let Some(reason) = without_standard_library(&target) {
            bail!("{target}: {reason}");
        }
        let variable = target.replace('-', "_");
        let compiler = if self.is_here() {
            provide(&["musl-gcc"], &["musl-tools"])?;
            "musl-gcc".to_owned()
        } else {
            let compiler = self.tool("gcc");
            let cross = format!("gcc-{}-linux-gnu", self.name().replace('_', "-"));
            provide(&[&compiler, &self.emulator()], &[&cross, "qemu-user"])?;
            command.env(format!("CFLAGS_{variable}"), self.c_flags(&compiler)?);
            let key = variable.to_uppercase();
            command.env(format!("CARGO_TARGET_{key}_LINKER"), &compiler);
            compiler
        };
        command.env(format!("CC_{variable}"), compiler);
        command.args(["--target", &target]);
        Ok(())
    }

    /// Flags with which a cross compiler for glibc uses musl's headers, as musl-gcc does.
    fn c_flags(self, compiler: &str) -> Result<String> {
        let own = stdout_of(program(compiler).arg("-print-file-name=include"))?;
        let musl = self.musl_headers()?;
        let atomics = match self {
            Self::X86_64 => "",
            // Otherwise atomics are calls into the compiler's own library, which asks glibc for the
            // processor's features.
            Self::Aarch64 => " -mno-outline-atomics",
        };
        let [musl, own] = [musl.display().to_string(), own.trim().to_owned()];
        Ok(format!("-nostdinc -isystem {musl} -isystem {own}{atomics}"))
    }

    /// The directory of musl's headers for this processor, unpacked from a Debian package beside
    /// the system and not into it.
    fn musl_headers(self) -> Result<PathBuf> {
        let directory = root().join("target/musl");
        let name = format!("{}-linux-musl", self.name());
        let headers = directory.join(&name);
        if headers.join("stdio.h").is_file() {
            return Ok(headers);
        }
        provide(&["mmdebstrap"], &["mmdebstrap"])?;
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let mut unpack = program("mmdebstrap");
        unpack.args(["--quiet", "--variant=extract", "--include=musl-dev"]);
        unpack.arg(format!("--architectures={}", self.debian_name()));
        let copy = format!("cp -r \"$1/usr/include/{name}\" {}", directory.display());
        unpack.args(["--format=null", &format!("--extract-hook={copy}")]);
        stdout_of(unpack.args([&debian_suite(), "/dev/null"]))?;
        Ok(headers)
    }
}

/// Installs `packages` if one of `tools` is missing.
fn provide(tools: &[&str], packages: &[&str]) -> Result<()> {
    if tools.iter().all(|tool| on_path(tool).is_some()) {
        return Ok(());
    }
    install_packages(packages)
}
