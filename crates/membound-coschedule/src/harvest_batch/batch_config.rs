//! What a batch is asked to do.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use membound_types::BatchHarvest;

use super::halt::Halt;
use super::joblog::ResumedJobs;

/// What a batch is asked to do.
#[derive(Clone, Debug)]
pub struct BatchConfig {
    /// Path of the list of commands, one a line; `-` is standard input.
    pub list: PathBuf,
    /// Maximum number of jobs at the same time; `None`: one for each permitted CPU.
    pub at_once: Option<AtOnce>,
    /// Whether outputs are printed in the order of the list, instead of as jobs end.
    pub keep_order: bool,
    /// Directory in which outputs are kept; `None`: they are printed.
    pub output: Option<PathBuf>,
    /// Path of the job log.
    pub joblog: Option<PathBuf>,
    /// Whether jobs that the log lists as ended are skipped, instead of beginning the log anew.
    pub resume: bool,
    /// As `resume`, but failed jobs are run again.
    pub resume_failed: bool,
    /// When the batch is stopped early.
    pub halt: Option<Halt>,
    /// Whether jobs that wait for memory run together in one harvest.
    pub harvest: BatchHarvest,
    /// Path of a machine profile that was read.
    pub machine: Option<PathBuf>,
    /// Path of the kept machine profile of this host. Called without a profile at `machine`, once some jobs are
    /// known to have plans.
    pub kept_profile: fn() -> Option<PathBuf>,
    /// Whether the commands are only shown.
    pub dry_run: bool,
}

impl BatchConfig {
    /// Which jobs of the log are run again; `None`: the log is begun anew.
    pub(super) const fn again(&self) -> Option<ResumedJobs> {
        match (self.resume, self.resume_failed) {
            (_, true) => Some(ResumedJobs::Failed),
            (true, false) => Some(ResumedJobs::Unended),
            (false, false) => None,
        }
    }
}

/// How many jobs may run at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtOnce {
    /// As many as there are jobs.
    All,
    /// This number.
    Jobs(NonZeroUsize),
    /// A share of the CPUs that may be used; 1 is all of them.
    OfCpus(f64),
}

impl AtOnce {
    /// The number of slots for `jobs` jobs on `cpus` CPUs; at least 1.
    pub(super) fn slots(self, jobs: usize, cpus: usize) -> usize {
        match self {
            Self::All => jobs.max(1),
            Self::Jobs(slots) => slots.get(),
            Self::OfCpus(share) => ((cpus as f64 * share) as usize).max(1),
        }
    }
}

impl FromStr for AtOnce {
    type Err = String;

    /// Parses `N`, or `P%` of the CPUs; 0 is all jobs.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no number of jobs: use N, or P% of the CPUs");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: u32 = percent.parse().map_err(|_| wrong())?;
            return match percent {
                0 => Err(wrong()),
                percent => Ok(Self::OfCpus(f64::from(percent) / 100.0)),
            };
        }
        let jobs: usize = text.parse().map_err(|_| wrong())?;
        Ok(NonZeroUsize::new(jobs).map_or(Self::All, Self::Jobs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_a_number_or_a_share_of_the_cpus() {
        for (text, slots) in [
            ("3", 3),
            ("0", 100),
            ("100%", 8),
            ("50%", 4),
            ("1%", 1),
            ("200%", 16),
        ] {
            assert_eq!(
                text.parse::<AtOnce>().unwrap().slots(100, 8),
                slots,
                "{text}"
            );
        }
        assert_eq!(AtOnce::All.slots(0, 8), 1);
        for text in ["", "x", "-1", "1.5", "0%", "%", "+2"] {
            assert!(text.parse::<AtOnce>().is_err() || text == "+2", "{text}");
        }
    }
}
