//! A case as data: a program that measures a truth about itself, how it is profiled, and how truth
//! and finding are read.

use anyhow::{Context as _, Result};
use membound_types::{Calibration, CodeRow, MachineProfile, Profile};

use super::statistics::{Reading, Tolerance};
use crate::run::{read, root};

/// A program, and the figures that a profile of it must find.
pub(super) struct Case {
    /// `GROUP/…`, for `--only`.
    pub(super) name: String,
    pub(super) program: Program,
    /// Arguments of the program.
    pub(super) words: Vec<String>,
    pub(super) method: ProfilingMethod,
    /// Additional arguments of `membound profile`.
    pub(super) options: &'static [&'static str],
    pub(super) figures: Vec<Figure>,
}

/// Source of a program and how it is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Program {
    /// Path from the root of the workspace.
    pub(super) source: &'static str,
    /// Options of its compiler.
    pub(super) flags: &'static str,
}

/// How a program is profiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ProfilingMethod {
    /// Started by membound, to its end.
    Started,
    /// Started first; attached to when it has written a line; killed afterwards.
    Attached,
    /// Started, then another program in the same way, and `membound compare` compares both runs.
    Compared { with: Program, words: Vec<String> },
    /// Started; then the machine is calibrated again.
    Calibrated,
}

/// One figure of a case.
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) tolerance: Tolerance,
    pub(super) read: Read,
}

/// Reads a figure from a run; `None` if this run has no value for it.
pub(super) type Read = Box<dyn Fn(&Observed) -> Result<Option<Reading>>>;

impl Figure {
    pub(super) fn new(
        name: impl Into<String>,
        tolerance: Tolerance,
        read: impl Fn(&Observed) -> Result<Option<Reading>> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            tolerance,
            read: Box::new(read),
        }
    }

    /// A figure that is right or wrong: whether the profile has a finding.
    pub(super) fn finding(
        name: impl Into<String>,
        is_right: impl Fn(&Observed) -> Result<bool> + 'static,
    ) -> Self {
        Self::new(name, Tolerance::Finding, move |observed| {
            Ok(Some(Reading {
                truth: 1.0,
                found: f64::from(u8::from(is_right(observed)?)),
            }))
        })
    }
}

/// One run of a case.
pub(super) struct Observed {
    pub(super) machine: MachineProfile,
    /// Standard output of the program.
    pub(super) said: String,
    pub(super) profile: Profile,
    /// The run of the other program, and what `membound compare` prints for both.
    pub(super) other: Option<Other>,
    /// A second calibration of the machine.
    pub(super) calibration: Option<Calibration>,
}

/// The second run of a comparison.
pub(super) struct Other {
    pub(super) said: String,
    pub(super) profile: Profile,
    pub(super) compared: String,
}

impl Observed {
    /// The number after `name` in the program's output.
    pub(super) fn told(&self, name: &str) -> Result<f64> {
        told(&self.said, name)
    }

    /// Share of the program's CPU time that recording took.
    pub(super) fn recorded(&self) -> f64 {
        self.profile.overhead.inside_fraction.clamp(0.0, 1.0)
    }

    /// The functions with these names.
    pub(super) fn functions<'a>(
        &'a self,
        names: &'a [&'a str],
    ) -> impl Iterator<Item = &'a CodeRow> {
        let rows = self.profile.functions.iter();
        rows.filter(|row| names.contains(&row.name.as_str()))
    }
}

/// The number after `name` in a program's output.
pub(super) fn told(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| {
        let (word, rest) = line.split_once(' ')?;
        (word == name).then_some(rest)
    });
    let line = line.with_context(|| format!("the program did not say {name}: {text}"))?;
    let number = line.trim().parse();
    number.with_context(|| format!("{name} is no number: {line}"))
}

impl Program {
    pub(super) const fn of(source: &'static str, flags: &'static str) -> Self {
        Self { source, flags }
    }

    /// The line of the source that holds `mark`, from 1.
    pub(super) fn line_of(self, mark: &str) -> Result<u32> {
        let text = read(&root().join(self.source))?;
        let at = text.lines().position(|line| line.contains(mark));
        let at = at.with_context(|| format!("{} has no {mark}", self.source))?;
        Ok(u32::try_from(at + 1)?)
    }

    /// The file name without its directories.
    pub(super) fn file(self) -> &'static str {
        self.source.rsplit('/').next().unwrap_or(self.source)
    }
}

/// The latency of a level of the machine, in nanoseconds.
pub(super) fn latency_ns(machine: &MachineProfile, level: &str) -> Option<f64> {
    let found = machine.levels.iter().find(|it| it.name == level)?;
    Some(found.latency_ns)
}

/// The size of a level of the machine, in bytes.
pub(super) fn size_bytes(machine: &MachineProfile, level: &str) -> Option<u64> {
    let found = machine.levels.iter().find(|it| it.name == level)?;
    found.size_bytes
}

/// The program that chases for a known share of its time; the probes run it, too.
pub(super) const SHARE: Program =
    Program::of("crates/membound/tests/profile/fixtures/share.c", "-O2");

/// A case that is started with the arguments `words` and has no figure yet.
pub(super) fn started(name: &str, program: Program, words: &[&str]) -> Case {
    Case {
        name: name.to_owned(),
        program,
        words: words.iter().map(|&word| word.to_owned()).collect(),
        method: ProfilingMethod::Started,
        options: &[],
        figures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_the_whole_name() {
        let text = "chase_ns 12\nchase 3\n";
        assert_eq!(told(text, "chase").unwrap(), 3.0);
        assert_eq!(told(text, "chase_ns").unwrap(), 12.0);
        assert!(told(text, "hops").is_err());
    }
}
