//! Kinds of machine, decided by facts that are determined before any test runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Error, bail};
use membound_platform::{Root, affinity, counters, cpu};
use membound_rewrite::patch::VectorLevel;
use membound_types::Timer;

use crate::run::{on_path, root};

/// What a machine lacks or is, as `expected-skips.toml` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A property without an argument.
    Fact(Fact),
    /// `no-program NAME`: the program is not on the path.
    NoProgram(String),
    /// `no-file PATH`: the file does not exist; relative to the root of the workspace.
    NoFile(String),
}

/// A property of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Amd,
    Intel,
    NotX86,
    Virtual,
    NoPmu,
    NoPerf,
    NoWatchpoints,
    OneCpu,
    /// Cores with several hardware threads.
    Smt,
    /// No cores with several hardware threads.
    NoSmt,
    NotRoot,
    /// membound knows no published reorder buffer of the processor.
    NoPublishedWindow,
    /// The kernel's pool has huge pages.
    HugePool,
    /// The kernel has no transparent huge pages.
    NoHugePages,
    /// The processor has no 512-bit vectors.
    NoAvx512,
}

const FACTS: [(&str, Fact); 15] = [
    ("amd", Fact::Amd),
    ("intel", Fact::Intel),
    ("not-x86", Fact::NotX86),
    ("virtual", Fact::Virtual),
    ("no-pmu", Fact::NoPmu),
    ("no-perf", Fact::NoPerf),
    ("no-watchpoints", Fact::NoWatchpoints),
    ("one-cpu", Fact::OneCpu),
    ("smt", Fact::Smt),
    ("no-smt", Fact::NoSmt),
    ("not-root", Fact::NotRoot),
    ("no-published-window", Fact::NoPublishedWindow),
    ("huge-pool", Fact::HugePool),
    ("no-huge-pages", Fact::NoHugePages),
    ("no-avx512", Fact::NoAvx512),
];

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(name) = text.strip_prefix("no-program ") {
            return Ok(Self::NoProgram(name.to_owned()));
        }
        if let Some(path) = text.strip_prefix("no-file ") {
            return Ok(Self::NoFile(path.to_owned()));
        }
        match FACTS.iter().find(|(name, _)| *name == text) {
            Some((_, fact)) => Ok(Self::Fact(*fact)),
            None => bail!(
                "no kind of machine is called `{text}`; there are {}, no-program NAME and no-file PATH",
                FACTS.map(|(name, _)| name).join(", ")
            ),
        }
    }
}

/// The machine that the tests run on.
pub(super) struct Machine {
    facts: Vec<Fact>,
}

impl Machine {
    /// Determines the facts of this machine.
    pub(super) fn here() -> Self {
        let system = Root::system();
        let cpu = cpu::read(&system);
        let allowed = affinity::allowed().map_or(1, |cpus| cpus.len());
        let conditions =
            membound_platform::machine_info(&system, Timer::default(), BTreeMap::new()).conditions;
        let is = |vendor: &str| cpu.vendor.to_ascii_lowercase().contains(vendor);
        let pool = system
            .read("proc/sys/vm/nr_hugepages")
            .is_ok_and(|text| text.trim() != "0");
        let facts = [
            (Fact::Amd, is("amd")),
            (Fact::Intel, is("intel")),
            (Fact::NotX86, cfg!(not(target_arch = "x86_64"))),
            (Fact::Virtual, conditions.hypervisor.is_some()),
            (Fact::NoPmu, counters::hardware_cycles().is_err()),
            (Fact::NoPerf, counters::software_clock().is_err()),
            (Fact::NoWatchpoints, counters::breakpoints().is_err()),
            (Fact::OneCpu, allowed < 2),
            (Fact::Smt, !cpu.smt_siblings.is_empty()),
            (Fact::NoSmt, cpu.smt_siblings.is_empty()),
            (Fact::NotRoot, !crate::needs::is_root()),
            (Fact::NoPublishedWindow, cpu.published_rob.is_none()),
            (Fact::HugePool, pool),
            (Fact::NoHugePages, conditions.thp.known().is_none()),
            (Fact::NoAvx512, VectorLevel::detect() != VectorLevel::Avx512),
        ];
        let holding = facts.into_iter().filter(|(_, holds)| *holds);
        Self {
            facts: holding.map(|(fact, _)| fact).collect(),
        }
    }

    /// Whether it is of this kind.
    pub(super) fn is(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Fact(fact) => self.facts.contains(fact),
            Kind::NoProgram(name) => on_path(name).is_none(),
            Kind::NoFile(path) => !root().join(Path::new(path)).exists(),
        }
    }

    /// The properties that it has, for the log.
    pub(super) fn told(&self) -> String {
        let names = FACTS.iter().filter(|(_, fact)| self.facts.contains(fact));
        names.map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
    }

    #[cfg(test)]
    pub(super) fn with(facts: &[Fact]) -> Self {
        Self {
            facts: facts.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_an_unknown_one_names_those_that_there_are() {
        assert_eq!("one-cpu".parse::<Kind>().unwrap(), Kind::Fact(Fact::OneCpu));
        assert_eq!(
            "no-program gdb".parse::<Kind>().unwrap(),
            Kind::NoProgram("gdb".to_owned())
        );
        let error = "slow".parse::<Kind>().unwrap_err().to_string();
        assert!(
            error.contains("`slow`") && error.contains("not-root"),
            "{error}"
        );
    }

    #[test]
    fn programs_and_files_are_looked_for() {
        let machine = Machine::with(&[]);
        assert!(!machine.is(&Kind::NoProgram("sh".to_owned())));
        assert!(machine.is(&Kind::NoProgram("no-such-program".to_owned())));
        assert!(!machine.is(&Kind::NoFile("Cargo.toml".to_owned())));
        assert!(machine.is(&Kind::NoFile("no/such/file".to_owned())));
    }

    #[test]
    fn this_machine_has_threads_or_not() {
        let machine = Machine::here();
        let (smt, no_smt) = (Kind::Fact(Fact::Smt), Kind::Fact(Fact::NoSmt));
        assert_ne!(machine.is(&smt), machine.is(&no_smt), "{}", machine.told());
    }
}
