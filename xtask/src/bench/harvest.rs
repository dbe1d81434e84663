//! What a harvest gains and costs: chases against their limit and against hand-written switches, a
//! store under load, and the kernel's scheduling of the same programs.
//!
//! The command is used from outside; `bench/harvest/README.md` describes the programs. Everything
//! runs on one processor. Compared cases run in turn, and a figure is the median of the rounds. A
//! part that fails reports why, and the others go on.

mod args;
mod arithmetic;
mod bed;
mod chase;
mod empty;
mod failure;
mod kernel;
mod kv;
mod progress;
mod stable;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use membound_types::{CpuId, Doctor, MachineProfile};
use serde_json::{Value, json};

pub(crate) use self::args::Args;
use self::args::Part;
use self::bed::Bed;
use self::failure::failed;
use super::common::{document, machine_profile};
use super::harvest_programs;
use crate::results::Kept;
use crate::run::{note, program, say};

impl Part {
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
}
