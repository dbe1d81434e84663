//! One command of a campaign, run unpatched and patched.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use membound_types::{PatchBody, RewriteCheck};
use serde_json::{Value, json};

use super::outcome::{Comparison, Ending, Outcome, first_difference};

/// A directory for one program's tasks.
pub(crate) struct Scratch {
    directory: tempfile::TempDir,
    patience: Duration,
}

impl Scratch {
    pub(crate) fn new(patience: Duration) -> Result<Self> {
        Ok(Self {
            directory: tempfile::tempdir().context("cannot create a temporary directory")?,
            patience,
        })
    }

    /// Directory in which tasks run. Both runs of a task have the same one, so that paths in
    /// outputs are the same.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file there and returns its path.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path().join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot create {}", parent.display()))?;
        }
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// A command, and how its outcomes are compared.
pub(crate) struct Task {
    /// Name within its program.
    pub(crate) name: String,
    program: PathBuf,
    args: Vec<OsString>,
    stdin: Option<PathBuf>,
    environment: Vec<(&'static str, OsString)>,
    /// Files that the command makes, in the scratch directory; they are removed before it runs.
    makes: Vec<&'static str>,
    comparison: Comparison,
    /// Beginnings of the file names of modules that must have been patched.
    modules: Vec<String>,
}

impl Task {
    /// `program` without arguments; every byte of its output is compared.
    pub(crate) fn new(name: &str, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            program: program.into(),
            args: Vec::new(),
            stdin: None,
            environment: Vec::new(),
            makes: Vec::new(),
            comparison: Comparison::Bytes,
            modules: Vec::new(),
        }
    }

    pub(crate) fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn stdin(mut self, path: PathBuf) -> Self {
        self.stdin = Some(path);
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub(crate) fn makes(mut self, name: &'static str) -> Self {
        self.makes.push(name);
        self
    }

    pub(crate) fn compares(mut self, comparison: Comparison) -> Self {
        self.comparison = comparison;
        self
    }

    /// Requires that a module whose file name begins with `module` is patched.
    pub(crate) fn patches(mut self, module: &str) -> Self {
        self.modules.push(module.to_owned());
        self
    }

    /// Runs the command unpatched.
    pub(crate) fn plain(&self, scratch: &Scratch) -> Result<Outcome> {
        self.finish(Command::new(&self.program), scratch)
    }

    /// Runs the command patched, and compares the outcome with the unpatched one.
    pub(crate) fn patched(
        &self,
        scratch: &Scratch,
        membound: &Path,
        body: PatchBody,
        plain: &Outcome,
    ) -> Result<Compared> {
        let report = scratch.path().join(".report.json");
        if report.exists() {
            std::fs::remove_file(&report)?;
        }
        let mut command = Command::new(membound);
        command
            .args(["rewrite", "check", "--body", body.name(), "--json"])
            .arg(&report)
            .arg("--")
            .arg(&self.program);
        let outcome = self.finish(command, scratch)?;
        let report: Option<RewriteCheck> = std::fs::read_to_string(&report)
            .ok()
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .context("the report is of another form")?;
        Ok(self.compare(plain, outcome, report))
    }

    fn finish(&self, mut command: Command, scratch: &Scratch) -> Result<Outcome> {
        for name in &self.makes {
            let path = scratch.path().join(name);
            if path.exists() {
                std::fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        let out = scratch.path().join(".stdout");
        let err = scratch.path().join(".stderr");
        command
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("LC_ALL", "C")
            .current_dir(scratch.path())
            .stdin(match &self.stdin {
                Some(path) => File::open(path)?.into(),
                None => Stdio::null(),
            })
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .process_group(0);
        let begun = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let ending = wait(&mut child, scratch.patience)?;
        let elapsed_s = begun.elapsed().as_secs_f64();
        Ok(Outcome {
            ending,
            stdout: std::fs::read(&out)?,
            stderr: std::fs::read(&err)?,
            files: self
                .makes
                .iter()
                .map(|name| std::fs::read(scratch.path().join(name)).ok())
                .collect(),
            elapsed_s,
        })
    }

    fn compare(&self, plain: &Outcome, outcome: Outcome, report: Option<RewriteCheck>) -> Compared {
        let mut differences = Vec::new();
        if outcome.ending != plain.ending {
            differences.push(format!(
                "it ended with {}, unpatched with {}",
                outcome.ending, plain.ending
            ));
        }
        for (stream, before, after) in [
            ("stdout", plain.stdout.clone(), outcome.stdout.clone()),
            ("stderr", plain.stderr.clone(), own_lines(&outcome.stderr)),
        ] {
            let before = self.comparison.kept(&before);
            let after = self.comparison.kept(&after);
            if let Some(difference) = first_difference(&before, &after) {
                differences.push(format!("{stream}, {difference}"));
            }
        }
        for ((name, before), after) in self.makes.iter().zip(&plain.files).zip(&outcome.files) {
            if before != after {
                differences.push(format!("the file {name} differs"));
            }
        }
        if let Some(report) = &report {
            for name in &self.modules {
                if !was_patched(report, name) {
                    differences.push(format!("{name} was not patched"));
                }
            }
        } else {
            differences.push("there is no report".to_owned());
        }
        let mut modules = report.map(|report| report.modules).unwrap_or_default();
        for module in &mut modules {
            // Results do not contain paths of this machine.
            if let Some(file) = Path::new(&module.path).file_name() {
                module.path = file.to_string_lossy().into_owned();
            }
        }
        Compared {
            differences,
            ending: outcome.ending,
            sites: modules.iter().map(|module| module.counts.patched).sum(),
            executions: modules
                .iter()
                .filter_map(|module| module.executions.known())
                .sum(),
            unpatched_s: plain.elapsed_s,
            patched_s: outcome.elapsed_s,
            modules: json!(modules),
            outcome,
        }
    }
}

/// Whether a module whose file name begins with `name` has patches.
fn was_patched(report: &RewriteCheck, name: &str) -> bool {
    report.modules.iter().any(|module| {
        Path::new(&module.path)
            .file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(name))
            && module.counts.patched > 0
    })
}

/// `text` without membound's own output: lines that begin with its name, and the table at the end.
fn own_lines(text: &[u8]) -> Vec<u8> {
    text.split_inclusive(|&byte| byte == b'\n')
        .take_while(|line| !line.starts_with(b"membound: body "))
        .filter(|line| !line.starts_with(b"membound: "))
        .flatten()
        .copied()
        .collect()
}

/// Waits for `child`, and ends its group after `patience`.
fn wait(child: &mut Child, patience: Duration) -> Result<Ending> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.into());
        }
        if begun.elapsed() > patience {
            let group = i32::try_from(child.id()).expect("process numbers fit");
            // SAFETY: the child leads this group and has not been waited for.
            unsafe { libc::kill(-group, libc::SIGKILL) };
            child.wait()?;
            return Ok(Ending::Hung);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Comparison of a patched run with the unpatched one.
pub(crate) struct Compared {
    /// The differences, one each; empty if there are none.
    pub(crate) differences: Vec<String>,
    pub(crate) ending: Ending,
    pub(crate) sites: u64,
    pub(crate) executions: u64,
    pub(crate) unpatched_s: f64,
    pub(crate) patched_s: f64,
    modules: Value,
    pub(crate) outcome: Outcome,
}

impl Compared {
    /// Everything except the outputs.
    pub(crate) fn raw(&self, name: &str, body: PatchBody) -> Value {
        json!({
            "program": name,
            "body": body.name(),
            "same": self.differences.is_empty(),
            "differences": self.differences,
            "ending": self.ending.to_string(),
            "sites": self.sites,
            "executions": self.executions,
            "unpatched_s": self.unpatched_s,
            "patched_s": self.patched_s,
            "modules": self.modules,
        })
    }
}
