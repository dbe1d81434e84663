//! The fuzzers: their names, initial inputs and limits.

use std::path::PathBuf;

use anyhow::Result;

use super::seeds::{self, Form};
use crate::run::root;

/// A fuzzer under `fuzz/targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Target {
    /// Every file that `model fit` reads.
    Input,
    /// Topology files.
    Topology,
    /// Executables and shared objects, down to their blocks.
    Elf,
    /// Code, without a file around it.
    Decode,
    /// Plans for any code, and what is placed of them.
    Planner,
    /// The bytes of plans.
    Plan,
    /// Executables' names, lines and rules for unwinding.
    Symbols,
    /// Recordings of other profilers.
    Import,
}

impl Target {
    pub(super) const ALL: [Self; 8] = [
        Self::Input,
        Self::Topology,
        Self::Elf,
        Self::Decode,
        Self::Planner,
        Self::Plan,
        Self::Symbols,
        Self::Import,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Topology => "topology",
            Self::Elf => "elf",
            Self::Decode => "decode",
            Self::Planner => "planner",
            Self::Plan => "plan",
            Self::Symbols => "symbols",
            Self::Import => "import",
        }
    }

    /// Directory with the initial inputs of the fuzzer.
    pub(super) fn seeds(self) -> Result<PathBuf> {
        match self {
            Self::Input => Ok(root().join("crates/membound-input/tests/data")),
            Self::Topology => Ok(root().join("crates/membound-model/topologies")),
            Self::Elf => seeds::built(Form::Files),
            Self::Decode | Self::Planner => seeds::built(Form::Code),
            Self::Plan => seeds::built(Form::Plans),
            Self::Symbols => seeds::built(Form::Debug),
            Self::Import => seeds::recordings(),
        }
    }

    /// Dictionary of the format's words, which a fuzzer would take long to find.
    pub(super) fn dictionary(self) -> PathBuf {
        let name = match self {
            Self::Input => "input",
            Self::Topology => "topology",
            Self::Elf | Self::Symbols => "elf",
            // Most of a plan is code.
            Self::Decode | Self::Planner | Self::Plan => "code",
            Self::Import => "import",
        };
        root().join(format!("fuzz/{name}.dict"))
    }

    /// Longest input in bytes.
    pub(super) const fn longest(self) -> u32 {
        match self {
            Self::Input | Self::Import => 16_384,
            Self::Topology => 4_096,
            Self::Elf => 32_768,
            Self::Decode | Self::Planner => 1_024,
            Self::Plan | Self::Symbols => 65_536,
        }
    }

    /// Directory to which the fuzzer adds inputs.
    pub(super) fn corpus(self) -> PathBuf {
        root().join("fuzz/corpus").join(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_target_has_a_source_and_a_dictionary() {
        for target in Target::ALL {
            let source = root().join(format!("fuzz/targets/{}.rs", target.name()));
            assert!(source.is_file(), "{}", source.display());
            assert!(target.dictionary().is_file(), "{target:?}");
        }
    }

    #[test]
    fn the_text_formats_have_seeds() {
        for target in [Target::Input, Target::Topology] {
            let seeds = target.seeds().unwrap();
            assert!(fs::read_dir(&seeds).unwrap().count() > 0, "{target:?}");
        }
    }
}
