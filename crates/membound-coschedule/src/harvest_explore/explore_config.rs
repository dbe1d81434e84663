//! What an exploration is asked to do.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use membound_launch::RequestsBy;
use membound_types::{CpuId, ExploreSweep, IdlePolicy};

use super::load::Load;

/// What an exploration is asked to do.
#[derive(Clone, Debug, Default)]
pub struct ExploreConfig {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Programs to run while the command waits for memory, each as a shell command line; none: the command itself.
    pub scavenger: Vec<String>,
    /// Number of copies of each scavenger.
    pub copies: u32,
    /// What to vary; empty: all that apply.
    pub sweep: Vec<ExploreSweep>,
    /// Bounds and distances; empty: the usual ones.
    pub bounds: Vec<BoundNs>,
    /// Loads. Each replaces `{load}` in the command's arguments in its own runs.
    pub loads: Vec<Load>,
    /// Maximum costs of yields, as shares of the CPU time; empty: the usual ones.
    pub overheads: Vec<f64>,
    /// Number of rounds.
    pub pairs: u32,
    /// CPU that all programs share; `None`: the last permitted CPU.
    pub cpu: Option<CpuId>,
    /// Paths of plans of the command and of scavengers.
    pub plan: Vec<PathBuf>,
    /// Maximum time for profiling a program without a plan.
    pub profile_time: Duration,
    /// What a request of the command is.
    pub requests: Option<RequestsBy>,
    /// What scavengers do when no thread has room for them.
    pub idle: IdlePolicy,
    /// Whether only errors are shown.
    pub quiet: bool,
}

/// A bound in nanoseconds; `None`: no bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundNs(pub Option<f64>);

impl FromStr for BoundNs {
    type Err = String;

    /// Parses a positive number, or `none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "none" {
            return Ok(Self(None));
        }
        match text.parse::<f64>() {
            Ok(ns) if ns.is_finite() && ns > 0.0 => Ok(Self(Some(ns))),
            _ => Err(format!("`{text}` is no number of nanoseconds, nor `none`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_number_or_none() {
        assert_eq!("200".parse(), Ok(BoundNs(Some(200.0))));
        assert_eq!(" none".parse(), Ok(BoundNs(None)));
        for text in ["", "0", "-1", "all", "nan"] {
            assert!(text.parse::<BoundNs>().is_err(), "{text}");
        }
    }
}
