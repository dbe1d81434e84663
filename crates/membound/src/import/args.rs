//! Arguments of `import`.

use std::path::PathBuf;

use clap::Args;

use crate::profile::args::USUAL_RUN;

/// Arguments of `import`.
#[derive(Args, Debug)]
#[command(
    after_help = "Function names and source lines come from the program's files, if they are on this machine \
                  and their build-ids are those in the recording (`perf record -B -N` records none)."
)]
pub(crate) struct ImportArgs {
    /// perf.data (of `perf record`, `perf mem record`, `perf c2c record`) or what `perf script` prints; `-`: stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Run file to write; an existing one is replaced.
    #[arg(short, long, value_name = "RUN", default_value = USUAL_RUN)]
    pub(crate) output: PathBuf,
    /// Profile of the machine on which perf recorded [default: none: the run has no levels].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Print no summary at the end.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
