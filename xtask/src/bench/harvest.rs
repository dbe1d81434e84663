//! What a harvest gains and costs: chases against their limit and against hand-written switches, a
//! store under load, and the kernel's scheduling of the same programs.
//!
//! The command is used from outside; `bench/harvest/README.md` describes the programs. Everything
//! runs on one processor. Compared cases run in turn, and a figure is the median of the rounds. A
//! part that fails reports why, and the others go on.

mod arithmetic;
mod bed;
mod chase;
mod empty;
mod kernel;
mod kv;
mod progress;
mod stable;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use membound_types::{CpuId, Doctor, MachineProfile};
use serde_json::{Value, json};

use self::bed::Bed;
use super::common::{document, machine_profile, median};
use super::harvest_programs;
use crate::results::Kept;
use crate::run::{note, program, say};

/// Arguments of `bench harvest`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; everything without.
    parts: Vec<Part>,
    /// Rounds of everything that runs in turn.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// The processor that everything runs on.
    #[arg(long, default_value_t = 1)]
    cpu: u32,
    /// The other hardware thread of its core [default: what the kernel says].
    #[arg(long)]
    sibling: Option<u32>,
    /// What each chase goes through, in bytes: a power of two, with K, M or G.
    #[arg(long, default_value = "512M")]
    area: String,
    /// What the store's nodes take, in bytes, with K, M or G.
    #[arg(long, default_value = "1G")]
    nodes: String,
    /// Factor on the work of every run; less than 1 is for trying the bench.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// The machine profile, instead of a quick one that is made.
    #[arg(long)]
    machine: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Chases with 1, 3, 7 and 15 copies, against the limit and switches by hand.
    Chase,
    /// The time of a switch where every load hits.
    Switch,
    /// What the parts of a yield are worth.
    Parts,
    /// What yields cost without a scavenger, and a primary that only computes.
    Empty,
    /// A store under load: its requests' times, and what of its stalls becomes work.
    Kv,
    /// How often turns keep to the bound.
    Distance,
    /// The kernel's scheduling of the same two programs.
    Kernel,
    /// Whether plans choose the same loads whatever the period of sampling.
    Stable,
}

impl Part {
    const ALL: [Self; 8] = [
        Self::Chase,
        Self::Switch,
        Self::Parts,
        Self::Empty,
        Self::Kv,
        Self::Distance,
        Self::Kernel,
        Self::Stable,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Chase => "chase",
            Self::Switch => "switch",
            Self::Parts => "parts",
            Self::Empty => "empty",
            Self::Kv => "kv",
            Self::Distance => "distance",
            Self::Kernel => "kernel",
            Self::Stable => "stable",
        }
    }

    /// Measures the part, prints its tables and returns their rows.
    fn run(self, bed: &Bed<'_>) -> Result<Vec<Value>> {
        match self {
            Self::Chase => chase::interleaving(bed),
            Self::Switch => chase::switching(bed),
            Self::Parts => chase::parts(bed),
            Self::Empty => empty::run(bed),
            Self::Kv => kv::run(bed),
            Self::Distance => kv::distances(bed),
            Self::Kernel => kernel::run(bed),
            Self::Stable => stable::run(bed),
        }
    }
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(args.repeat > 0, "no run was asked for");
    ensure!(
        args.scale > 0.0 && args.scale.is_finite(),
        "--scale {} is no factor",
        args.scale
    );
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
    let programs = harvest_programs::build(scratch.path())?;
    let machine = match &args.machine {
        Some(path) => std::path::absolute(path)?,
        None => {
            let path = scratch.path().join("machine.json");
            note("measuring the machine");
            machine_profile(membound, &path)?;
            path
        }
    };
    let profile: MachineProfile = bed::read(&machine)?;
    let latency_ns = Bed::latency_of(&profile)?;
    let cores = &doctor.machine.cpu.smt_siblings;
    let bed = Bed {
        membound,
        sibling: args.sibling.or_else(|| sibling(args.cpu, cores)),
        scratch: scratch.path(),
        programs,
        machine: (machine, latency_ns),
        args,
        made: Default::default(),
        raw: Default::default(),
    };
    let parts = if args.parts.is_empty() {
        &Part::ALL[..]
    } else {
        &args.parts
    };
    let mut summary = Vec::new();
    let mut raw = Vec::new();
    for part in parts {
        say(format_args!("\n{}", part.name()));
        let found = part.run(&bed);
        let row = match found {
            Ok(rows) => json!({ "part": part.name(), "rows": rows }),
            Err(error) => {
                let why = failed(&error);
                json!({ "part": part.name(), "failed": why })
            }
        };
        summary.push(row);
        raw.push(json!({ "part": part.name(), "runs": bed.raw.take() }));
    }
    Ok(Kept {
        bench: "harvest",
        machine: doctor.machine,
        summary: json!({ "scale": args.scale, "repeat": args.repeat, "parts": summary }),
        raw: raw.into(),
    })
}

/// The first other hardware thread of a processor's core, if `cores` lists one.
fn sibling(cpu: u32, cores: &[Vec<CpuId>]) -> Option<u32> {
    let core = cores.iter().find(|core| core.contains(&CpuId(cpu)))?;
    core.iter().map(|it| it.0).find(|&it| it != cpu)
}

/// Prints why something could not be measured, in lines of 80 columns, and returns the reason.
fn failed(error: &anyhow::Error) -> String {
    let why = format!("{error:#}");
    for line in wrapped(&format!("failed: {why}"), 76) {
        say(format_args!("  {line}"));
    }
    why
}

/// `text` in lines of at most `columns` letters, broken between words; a longer word has its own
/// line.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The median of `of` over all runs.
fn middle<T>(runs: &[T], of: impl Fn(&T) -> f64) -> Result<f64> {
    median(&runs.iter().map(of).collect::<Vec<_>>()).context("no run was asked for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_not_its_own_sibling() {
        let cores = [vec![CpuId(0), CpuId(4)], vec![CpuId(1), CpuId(5)]];
        assert_eq!(
            [4, 1, 2].map(|cpu| sibling(cpu, &cores)),
            [Some(0), Some(5), None]
        );
    }

    #[test]
    fn the_page_about_the_documents_names_parts_that_there_are() {
        let page = include_str!("../../../docs/documents.md");
        let named: Vec<&str> = page
            .split("`cargo xtask bench harvest ")
            .skip(1)
            .filter_map(|rest| rest.split(['`', ' ']).next())
            .collect();
        assert!(named.len() >= 5, "{named:?}");
        for name in named {
            assert!(Part::ALL.iter().any(|part| part.name() == name), "{name}");
        }
    }

    #[test]
    fn reasons_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-long-word b", 4), ["a-long-word", "b"]);
        assert!(wrapped(" ", 4).is_empty());
    }
}
