//! The copies of scavengers, and their output files.

use anyhow::Context;
use membound_launch::{ScavengerCommand, environment};

use super::args::RunArgs;
use super::programs::{CopyRequest, Program, texts};
use crate::output::Target;

/// Limits of a scavenger's address space and stack, in bytes.
const MEMORY_BYTES: u64 = 1 << 40;
const STACK_BYTES: u64 = 8 << 20;

/// A copy of a scavenger with everything that its start needs, and the request for it.
pub(super) type Member = (ScavengerCommand, CopyRequest);

/// Creates the output directory, and checks that all output files of `scavengers` scavengers are writable.
pub(super) fn prepare_outputs(args: &RunArgs, scavengers: usize) -> anyhow::Result<()> {
    let Some(directory) = &args.output else {
        return Ok(());
    };
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    for number in 1..=scavengers {
        for copy in 0..args.copies {
            for ending in [OUT, ERR] {
                Target::open(&directory.join(output_name(number, copy, ending)))?;
            }
        }
    }
    Ok(())
}

/// File name extensions for a scavenger's stdout and stderr.
const OUT: &str = "out";
const ERR: &str = "err";

fn output_name(number: usize, copy: u32, ending: &str) -> String {
    format!("{number}-{copy}.{ending}")
}

/// All copies of a scavenger, each with the request for it.
pub(super) fn copies(args: &RunArgs, scavenger: &Program) -> anyhow::Result<Vec<Member>> {
    let directory = args
        .output
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let number = scavenger.number;
    let copy = |copy: u32| {
        let place = |ending: &str| {
            directory
                .as_ref()
                .map(|directory| directory.join(output_name(number, copy, ending)))
        };
        let output = place(OUT);
        let copy_request = CopyRequest {
            words: texts(&scavenger.words),
            copy,
            output: output.as_ref().map(|path| path.display().to_string()),
        };
        let scavenger = ScavengerCommand {
            path: scavenger.path.clone(),
            arguments: scavenger.words.clone(),
            environment: environment(),
            output,
            errors: place(ERR),
            memory_bytes: MEMORY_BYTES,
            stack_bytes: STACK_BYTES,
        };
        (scavenger, copy_request)
    };
    Ok((0..args.copies).map(copy).collect())
}
