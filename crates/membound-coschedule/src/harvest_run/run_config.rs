//! What a run with scavengers is asked to do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use membound_launch::RequestsBy;
use membound_types::{CpuId, HarvestPart, IdlePolicy, SmtPolicy};

/// What a run with scavengers is asked to do. Shares are of 1, times named `_ns` in nanoseconds.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The command and its arguments; empty without a command.
    pub command: Vec<OsString>,
    /// Whether only the scavengers run, in each other's stalls.
    pub no_primary: bool,
    /// Programs to run while the command waits for memory, each as a shell command line.
    pub scavenger: Vec<String>,
    /// Number of copies of each scavenger.
    pub copies: u32,
    /// Maximum number of scavengers in one thread's run queue; `None`: derived from their number.
    pub per_thread: Option<u32>,
    /// Paths of plans of the command and of scavengers.
    pub plan: Vec<PathBuf>,
    /// Whether programs without a plan run once beforehand.
    pub rehearse: bool,
    /// Maximum time for profiling a program without a plan.
    pub profile_time: Duration,
    /// Longest time from a yield of the command until it runs again.
    pub bound_ns: Option<f64>,
    /// Maximum share of CPU time that yields may cost where their loads hit.
    pub max_overhead: f64,
    /// Maximum slowdown of the command.
    pub max_slowdown: Option<f64>,
    /// What a request of the command is.
    pub requests: Option<RequestsBy>,
    /// Objective for the 95th percentile of the request latency.
    pub slo_p95_ns: Option<f64>,
    /// What scavengers do when no thread has room for them.
    pub idle: IdlePolicy,
    /// Whether scavengers may run on the other hardware threads of the command's cores.
    pub smt: SmtPolicy,
    /// Hardware threads that share a core, if the kernel does not know.
    pub siblings: Vec<Core>,
    /// Maximum memory of all scavengers together; `None`: half of the available memory.
    pub memory_bytes: Option<u64>,
    /// Parts of the method that are left out.
    pub without: Vec<HarvestPart>,
    /// Whether unfinished scavengers go on after the command has ended.
    pub finish: bool,
    /// Directory for the scavengers' output; `None`: it is discarded.
    pub output: Option<PathBuf>,
    /// Path of the machine profile, if the user named one.
    pub machine_path: Option<PathBuf>,
    /// Path of a file for what the controller observes and does, for replay tests.
    pub control_trace: Option<PathBuf>,
    /// Whether only errors are shown.
    pub quiet: bool,
}

/// CPUs that share a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core(pub Vec<CpuId>);

impl FromStr for Core {
    type Err = String;

    /// Parses `CPU,CPU`.
    fn from_str(text: &str) -> Result<Self, String> {
        let cpus = text.split(',').map(|cpu| cpu.trim().parse().map(CpuId));
        match cpus.collect::<Result<Vec<_>, _>>() {
            Ok(cpus) if cpus.len() > 1 => Ok(Self(cpus)),
            Ok(_) => Err(format!(
                "`{text}` is one CPU: a core is shared by two or more"
            )),
            Err(_) => Err(format!("`{text}` is no list of CPU numbers: use CPU,CPU")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_two_hardware_threads_or_more() {
        assert_eq!("0, 4".parse(), Ok(Core(vec![CpuId(0), CpuId(4)])));
        for text in ["", "0", "0,", "a,b", "0-1", "-1,0", "0;1"] {
            assert!(text.parse::<Core>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_book_lists_every_part_that_can_be_left_out() {
        let book = include_str!("../../../../docs/book/harvest.md");
        let listed: Vec<&str> = book
            .lines()
            .skip_while(|line| !line.starts_with("| `--without` |"))
            .skip(2)
            .map_while(|line| line.strip_prefix("| `"))
            .filter_map(|row| row.split('`').next())
            .collect();
        assert_eq!(listed, HarvestPart::ALL.map(HarvestPart::name));
    }
}
