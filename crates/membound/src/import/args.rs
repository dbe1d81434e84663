//! Arguments of `import`.

use std::path::PathBuf;

use clap::Args;

use crate::profile::args::USUAL_RUN;

/// Arguments of `import`.
#[derive(Args, Debug)]
#[command(
    after_help = "Names and lines come from the program's files, where they are here and are those that were \
                  recorded. `perf record -B -N` keeps no build-ids, by which that is known."
)]
pub(crate) struct ImportArgs {
    /// perf.data (of `perf record`, `perf mem record`, `perf c2c record`) or what `perf script` prints; `-`: stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The run file; an earlier one is replaced.
    #[arg(short, long, value_name = "RUN", default_value = USUAL_RUN)]
    pub(crate) output: PathBuf,
    /// Profile of the machine that was recorded on [default: the run has none].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Show no summary at the end.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
