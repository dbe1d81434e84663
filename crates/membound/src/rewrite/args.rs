//! Arguments of `rewrite`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use membound_types::PatchBody;

/// What to do with code.
#[derive(Debug, Subcommand)]
pub(crate) enum RewriteCommand {
    /// Show what can be patched in a binary, and why the rest cannot.
    Plan(PlanArgs),
    /// Run a program with every load and store patched, and report how often each ran.
    Check(CheckArgs),
    /// Print a gdb script that shows the original code of a patched program.
    #[command(after_help = "Use it as: membound rewrite gdb-script > membound.py; \
                      gdb -x membound.py -p PID")]
    GdbScript,
}

/// What both make plans with.
#[derive(Args, Debug)]
pub(crate) struct PlanOptionArgs {
    /// What each patch does: displace, count, rubbish, sample, record, yield [default: count].
    #[arg(long, value_name = "BODY", default_value_t, hide_default_value = true)]
    pub(crate) body: PatchBody,
    /// Count with locked increments, so that no count is lost between threads (for count).
    #[arg(long)]
    pub(crate) exact: bool,
    /// Treat every jump table as unknown, to show how much finding them gains.
    #[arg(long)]
    pub(crate) no_tables: bool,
    /// Neither use kept plans nor keep new ones.
    #[arg(long)]
    pub(crate) no_cache: bool,
}

/// Arguments of `rewrite plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Executable or shared object.
    #[arg(value_name = "BINARY")]
    pub(crate) binary: PathBuf,
    /// List the instructions of F: a name, mangled or not, or an address (0x…).
    #[arg(long, value_name = "F")]
    pub(crate) function: Option<String>,
    #[command(flatten)]
    pub(crate) options: PlanOptionArgs,
    /// Write the document to FILE (`-` or nothing: stdout, instead of text).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `rewrite check`.
#[derive(Args, Debug)]
#[command(
    after_help = "The program keeps stdin, stdout, its exit code and the signal that ends it; \
                  counts go to stderr and FILE. Code that cannot be patched runs unchanged, and the \
                  reason is printed. Exit codes of membound itself: 127 if the command does not \
                  exist, 126 if it cannot be run."
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) options: PlanOptionArgs,
    /// Write the document to FILE (`-`: stdout, after the program's own output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Add each access of function F to the document. May be repeated.
    #[arg(long, value_name = "F", requires = "json")]
    pub(crate) function: Vec<String>,
    /// Name the trampolines for perf in /tmp/perf-PID.map, for every process. The files are kept,
    /// because perf report reads them.
    #[arg(long)]
    pub(crate) perf_map: bool,
    /// Take all patches out and put them in again every MS milliseconds while it runs.
    #[arg(long, value_name = "MS", value_parser = milliseconds, hide = true)]
    pub(crate) churn: Option<Duration>,
    /// The command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("`{text}` is no number of milliseconds")),
        Ok(number) => Ok(Duration::from_millis(number)),
    }
}
