//! The copies of scavengers, and their output files.

use membound_launch::{ScavengerCommand, environment};
use membound_platform::output_file::OutputFile;

use super::run_config::RunConfig;
use crate::error::{At as _, Error};
use crate::named_programs::{CopyRequest, Program, texts};

/// Limits of a scavenger's address space and stack, in bytes.
const MEMORY_BYTES: u64 = 1 << 40;
const STACK_BYTES: u64 = 8 << 20;

/// A copy of a scavenger with everything that its start needs, and the request for it.
pub(super) type Member = (ScavengerCommand, CopyRequest);

/// Creates the output directory, and checks that all output files of `scavengers` scavengers are writable.
pub(super) fn prepare_outputs(config: &RunConfig, scavengers: usize) -> Result<(), Error> {
    let Some(directory) = &config.output else {
        return Ok(());
    };
    std::fs::create_dir_all(directory)
        .at(|| format!("cannot make the directory {}", directory.display()))?;
    for number in 1..=scavengers {
        for copy in 0..config.copies {
            for ending in [OUT, ERR] {
                OutputFile::open(&directory.join(output_name(number, copy, ending)))?;
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
pub(super) fn copies(config: &RunConfig, scavenger: &Program) -> Result<Vec<Member>, Error> {
    let directory = config
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
    Ok((0..config.copies).map(copy).collect())
}
