//! `cargo xtask machines`: the command for other processors is built, linked and tried.
//!
//! Debian's cross compilers link it for aarch64 and powerpc64le; qemu's user emulation runs the
//! tests that execute kernels, and then the command itself: everything that must work there, and
//! features of x86-64 that must be refused with a reason. Times under the emulator mean nothing, so
//! only the output is checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::run::{cargo, note, on_path, program, root, say, shown, stdout_of, succeed};

/// The profile in which everything is built, which compiles quickly.
const PROFILE: &str = "emulated";

/// Arguments of `machines`.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// A kind of machine that can be emulated.
struct Machine {
    target: &'static str,
    /// Prefix of Debian's cross tools, and name of the directory of its libraries.
    triple: &'static str,
    emulator: &'static str,
    timer: &'static str,
    kernels: Kernels,
}

/// Kind of the kernels that measure there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    Emitted,
    Portable,
}

const MACHINES: [Machine; 2] = [
    Machine {
        target: "aarch64-unknown-linux-gnu",
        triple: "aarch64-linux-gnu",
        emulator: "qemu-aarch64",
        timer: "cntvct",
        kernels: Kernels::Emitted,
    },
    Machine {
        target: "powerpc64le-unknown-linux-gnu",
        triple: "powerpc64le-linux-gnu",
        emulator: "qemu-ppc64le",
        timer: "timebase",
        kernels: Kernels::Portable,
    },
];

/// Debian packages with the tools for all machines.
pub(crate) const PACKAGES: &[&str] = &[
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "gcc-powerpc64le-linux-gnu",
    "libc6-dev-ppc64el-cross",
    "qemu-user",
];

/// Whether the tools of [`PACKAGES`] are installed.
pub(crate) fn present() -> bool {
    MACHINES.iter().all(|machine| machine.missing().is_none())
}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    check()?;
    Ok(ExitCode::SUCCESS)
}

/// Builds for every machine whose tools are installed, and tries the binaries.
pub(crate) fn check() -> Result<()> {
    let mut here = Vec::new();
    for machine in &MACHINES {
        match machine
            .missing()
            .or_else(|| without_standard_library(machine.target))
        {
            Some(reason) => say(format_args!("skipped: {}: {reason}", machine.target)),
            None => here.push(machine),
        }
    }
    if here.is_empty() {
        return Ok(());
    }
    let targets = here.iter().map(|it| format!("--target={}", it.target));
    let targets: Vec<String> = targets.collect();
    let with_tools = |mut command: Command| {
        here.iter()
            .for_each(|machine| machine.name_tools(&mut command));
        command
    };
    let build = cargo([
        "build",
        "--locked",
        "--package=membound",
        "--profile",
        PROFILE,
    ]);
    succeed(with_tools(build).args(&targets))?;
    // The tests that execute emitted code or read the processor's counter.
    let test = cargo([
        "test",
        "--locked",
        "--package=membound-jit",
        "--package=membound-measure",
        "--lib",
        "--profile",
        PROFILE,
    ]);
    let tests = ["--", "buffer::", "arch::", "clock::tests::every"];
    succeed(with_tools(test).args(&targets).args(tests))?;
    try_all(&here)
}

/// Tries the command on all machines at once: each emulator keeps one processor busy, and no check
/// depends on time.
fn try_all(machines: &[&Machine]) -> Result<()> {
    let attempt = |machine: &Machine| {
        let done = Trial::new(machine).and_then(|trial| trial.everything());
        let name = format!("{} under {}", machine.target, machine.emulator);
        match &done {
            Ok(()) => note(format_args!("── {name}: ok")),
            Err(error) => note(format_args!("── {name}: {error:#}")),
        }
        done.context(name)
    };
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (machines.iter())
            .map(|machine| scope.spawn(move || attempt(machine)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a trial returns its errors"))
            .collect()
    });
    outcomes.into_iter().collect()
}

/// Tries a binary that was built elsewhere for one of the emulated machines, with the directory
/// `place` for its files.
pub(crate) fn try_binary(emulator: &str, binary: &Path, place: &Path) -> Result<()> {
    let machine = MACHINES.iter().find(|it| it.emulator == emulator);
    let trial = Trial {
        machine: machine.with_context(|| format!("no machine is emulated by {emulator}"))?,
        binary: binary.to_owned(),
        place: place.to_owned(),
    };
    trial.everything()
}

/// Why there is no standard library for `target`, even after an attempt to install it.
pub(crate) fn without_standard_library(target: &str) -> Option<String> {
    let is_there = || {
        let find = ["--print", "target-libdir", "--target", target];
        let found = stdout_of(program("rustc").args(find)).ok();
        found.is_some_and(|directory| Path::new(directory.trim()).is_dir())
    };
    if is_there() {
        return None;
    }
    let added = succeed(program("rustup").args(["target", "add", target]));
    match added {
        Ok(()) if is_there() => None,
        Ok(()) => Some("rustup added a target that rustc does not find".to_owned()),
        Err(error) => Some(format!("no standard library: {error:#}")),
    }
}

impl Machine {
    /// The first missing tool or library.
    fn missing(&self) -> Option<String> {
        let tools = [format!("{}-gcc", self.triple), self.emulator.to_owned()];
        let absent = tools.into_iter().find(|tool| on_path(tool).is_none());
        let absent = absent.or_else(|| {
            let library = self.libraries().join("lib/libc.so.6");
            (!library.exists()).then(|| library.display().to_string())
        })?;
        Some(format!(
            "no {absent} (Debian packages {})",
            PACKAGES.join(", ")
        ))
    }

    fn libraries(&self) -> PathBuf {
        Path::new("/usr").join(self.triple)
    }

    /// Sets the tools of this machine for cargo and for the build scripts that compile C.
    fn name_tools(&self, command: &mut Command) {
        let compiler = format!("{}-gcc", self.triple);
        let name = self.target.replace('-', "_");
        let key = name.to_uppercase();
        command
            .env(format!("CC_{name}"), &compiler)
            .env(format!("CARGO_TARGET_{key}_LINKER"), &compiler)
            .env(
                format!("CARGO_TARGET_{key}_RUNNER"),
                format!("{} -L {}", self.emulator, self.libraries().display()),
            );
    }
}

/// The command on an emulated machine.
struct Trial<'a> {
    machine: &'a Machine,
    binary: PathBuf,
    /// Directory for its files.
    place: PathBuf,
}

impl<'a> Trial<'a> {
    fn new(machine: &'a Machine) -> Result<Self> {
        let built = root().join("target").join(machine.target).join(PROFILE);
        let place = built.join("trial");
        // Files of an earlier run.
        drop(fs::remove_dir_all(&place));
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(Self {
            machine,
            binary: built.join("membound"),
            place,
        })
    }

    fn everything(&self) -> Result<()> {
        self.doctor()?;
        self.latency()?;
        self.mlp()?;
        self.bandwidth()?;
        self.model_and_comparison()?;
        self.refusals()
    }

    fn doctor(&self) -> Result<()> {
        let found = self.document(&["doctor"])?;
        let timer = &found["timer"]["name"];
        ensure!(timer == self.machine.timer, "the timer is {timer}");
        let expected = match self.machine.kernels {
            Kernels::Emitted => "full",
            Kernels::Portable => "reduced",
        };
        let all = found["capabilities"].as_array();
        let latency = all.into_iter().flatten().find(|it| it["what"] == "latency");
        let state = latency.map(|it| &it["state"]);
        ensure!(
            state.is_some_and(|state| state == expected),
            "latency is measured {state:?}, not {expected}"
        );
        Ok(())
    }

    /// Chains of dependent loads: the chase, its patterns, and lat_mem_rd's columns.
    fn latency(&self) -> Result<()> {
        let small = "measure latency --quick --page=4k --sizes=16K,256K --strides=64";
        let all = format!("{small} --pattern=random,stride --access=clean,dirty");
        let found = self.document(&words(&all))?;
        let points = found["points"].as_array().context("there are no points")?;
        ensure!(points.len() == 8, "{} points instead of 8", points.len());
        for point in points {
            let ns = point["ns"].as_f64().unwrap_or_default();
            ensure!(ns > 0.0, "a load takes no time: {point}");
        }
        let told = &found["machine"]["conditions"]["labels"]["kernels"];
        ensure!(
            told.is_string() == (self.machine.kernels == Kernels::Portable),
            "the kernels are {told}"
        );
        let text = self.output(&words(&format!("{small} --format=lat_mem_rd")))?;
        ensure!(
            text.starts_with("\"stride=64\n0.01562 "),
            "lat_mem_rd's columns are\n{text}"
        );
        let text = self.output(&words("lat_mem_rd -N 1 --page=4k 1 128"))?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        ensure!(
            lines.first() == Some(&"\"stride=128")
                && lines.last().is_some_and(|it| it.starts_with("1.00000 ")),
            "the command lat_mem_rd printed\n{text}"
        );
        for line in lines.iter().skip(1) {
            let columns: Vec<f64> = line.split(' ').filter_map(|it| it.parse().ok()).collect();
            ensure!(columns.len() == 2, "a line of lat_mem_rd is `{line}`");
        }
        Ok(())
    }

    /// Document 000's kernel, where it can be emitted.
    fn mlp(&self) -> Result<()> {
        let part = "measure mlp --quick --page=4k";
        if self.machine.kernels == Kernels::Portable {
            return self.refused(&words(part), "must be emitted instruction by instruction");
        }
        let small = format!("{part} --areas=1M --loads=1,2,20 --fillers=0,64");
        let found = self.document(&words(&small))?;
        let fence = &found["fence"];
        ensure!(fence == "isb", "the fence is {fence}");
        let cells = found["cells"].as_array().map_or(0, Vec::len);
        ensure!(cells >= 6, "{cells} cells instead of 6 or more");
        let other = format!("{part} --fence=lfence");
        self.refused(&words(&other), "lfence is no instruction of this processor")
    }

    fn bandwidth(&self) -> Result<()> {
        let part = "measure bandwidth --quick --page=4k --sizes=64K --threads=1";
        let (kernels, count) = match self.machine.kernels {
            Kernels::Emitted => ("read,write,nt-write,copy,triad", 5),
            Kernels::Portable => ("read,write,copy,triad", 4),
        };
        let found = self.document(&words(&format!("{part} --kernel={kernels}")))?;
        let points = found["points"].as_array().map_or(0, Vec::len);
        ensure!(points == count, "{points} kernels instead of {count}");
        if self.machine.kernels == Kernels::Portable {
            let refused = format!("{part} --kernel=nt-write");
            self.refused(&words(&refused), "no non-temporal stores")?;
        }
        Ok(())
    }

    fn model_and_comparison(&self) -> Result<()> {
        let window = self.place.join("window.json");
        let into = format!("--json={}", window.display());
        let part = "measure window --quick --page=4k --windows=256,1K --areas=16K,256K,1M";
        self.output(&[words(part), vec![into.as_str()]].concat())?;
        let window = window.display().to_string();
        let series = "--series=scalar, 4k";
        let fitted = self.document(&["model", "fit", &window, series])?;
        ensure!(fitted["kind"] == "model", "a fit is a {}", fitted["kind"]);
        let shown = self.output(&["model", "show", "origin2000"])?;
        ensure!(shown.contains("Origin2000"), "the model shown is\n{shown}");
        let compared = self.document(&["compare", &window, &window])?;
        ensure!(
            compared["kind"] == "comparison",
            "a comparison is a {}",
            compared["kind"]
        );
        Ok(())
    }

    /// Features that only x86-64 has, or that the emulator lacks.
    fn refusals(&self) -> Result<()> {
        let run = self.place.join("run").display().to_string();
        self.refused(
            &["profile", "-o", &run, "--", "/bin/true"],
            "cannot sample: ",
        )?;
        let harvest = ["harvest", "run", "--scavenger=/bin/true", "--", "/bin/true"];
        self.refused(&harvest, "programs are patched on x86-64 Linux only")?;
        let calibration = ["measure", "calibration", "--json", "-"];
        self.refused(&calibration, "programs are patched on x86-64 only")?;
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program(self.machine.emulator);
        command
            .arg("-L")
            .arg(self.machine.libraries())
            .arg(&self.binary)
            .args(words)
            // Profiles of the host must not be used for the emulated machine.
            .env("XDG_CACHE_HOME", self.place.join("cache"))
            .env("XDG_DATA_HOME", self.place.join("data"));
        command
    }

    fn output(&self, words: &[&str]) -> Result<String> {
        stdout_of(&mut self.command(words))
    }

    /// The document that a command writes with `--json -`.
    fn document(&self, words: &[&str]) -> Result<Value> {
        let words: Vec<&str> = words.iter().copied().chain(["--json", "-"]).collect();
        let text = self.output(&words)?;
        serde_json::from_str(&text)
            .with_context(|| format!("`{}` wrote no document", words.join(" ")))
    }

    /// Checks that the command fails with a line that contains `reason`.
    fn refused(&self, words: &[&str], reason: &str) -> Result<()> {
        let mut command = self.command(words);
        let name = shown(&command);
        let output = command
            .output()
            .with_context(|| format!("cannot start `{name}`"))?;
        let told = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !told.lines().any(|line| line.contains(reason)) {
            bail!("`{name}` says `{}` instead of `{reason}`", told.trim());
        }
        Ok(())
    }
}

/// The words of a command line in which no word contains a blank.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}
