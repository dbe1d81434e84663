//! Result of a batch: a list of commands, run several at a time, some of them together in one harvest
//! (`harvest batch`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::names::named;

named! {
    /// When jobs of a batch are run together in a harvest.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BatchHarvest {
        /// If an earlier run of the same programs gained by it, and rarely as a trial.
        #[default]
        Auto = "auto",
        /// Whenever stored plans promise a gain.
        On = "on",
        /// Jobs are never run together in a harvest.
        Off = "off",
    }
}

named! {
    /// Order in which jobs are started.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BatchOrder {
        /// In the order of the list.
        #[default]
        Given = "given",
        /// The job with the longest expected time first.
        LongestFirst = "longest-first",
        /// Longest first, with memory-bound jobs beside compute-bound ones.
        Spread = "spread",
    }
}

named! {
    /// Reason why jobs were run together in a harvest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BatchSetReason {
        /// Earlier runs of the same programs gained by it.
        Measured = "measured",
        /// Their plans promise a gain that has not been measured yet.
        Trial = "trial",
        /// The user requested it.
        Asked = "asked",
    }
}

/// Document of `membound harvest batch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestBatch {
    /// Version of this schema.
    pub schema_version: u32,
    /// Always [`Kind::HarvestBatch`].
    pub kind: Kind,
    /// True if jobs were not started, or were ended by the batch.
    pub incomplete: bool,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// Start of the batch, RFC 3339 in UTC.
    pub date: String,
    /// Host name.
    pub host: String,
    /// Model name of the host's processor.
    pub cpu: String,
    /// File with the list of commands; `-` is standard input.
    pub list: String,
    /// Options of the batch.
    pub options: BatchOptions,
    /// The order in which jobs were started.
    pub order: BatchOrder,
    /// Time from the first start to the last end, in seconds.
    pub wall_s: f64,
    /// CPU time of all jobs and of the harvests that they ran in, in seconds.
    pub cpu_s: f64,
    /// Jobs that ended by themselves, per second; `None` if none did.
    pub jobs_per_s: Option<f64>,
    /// Numbers of jobs by result.
    pub jobs: BatchCounts,
    /// Sets of jobs that ran together in a harvest, in the order of their starts.
    pub sets: Vec<BatchSet>,
    /// All started jobs, in the order of their ends.
    pub results: Vec<BatchJob>,
    /// Problems other than failures of jobs.
    pub notes: Vec<String>,
}

/// Options of a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchOptions {
    /// Most jobs that run at the same time.
    pub at_once: u64,
    /// When jobs run together in a harvest.
    pub harvest: BatchHarvest,
    /// Condition for stopping the batch early, as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<String>,
}

/// Numbers of jobs by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchCounts {
    /// Commands in the list.
    pub listed: u64,
    /// Commands that an earlier batch had already run (`--resume`).
    pub skipped: u64,
    /// Jobs with exit code 0.
    pub succeeded: u64,
    /// Jobs with another exit code, or ended by a signal that the batch did not send.
    pub failed: u64,
    /// Jobs that the batch ended when it was stopped.
    pub ended: u64,
    /// Commands that were not started because the batch was stopped.
    pub not_started: u64,
}

/// Jobs that ran together in one harvest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchSet {
    /// Numbers of the jobs.
    pub jobs: Vec<u64>,
    /// Reason for running them together.
    pub why: BatchSetReason,
    /// Wall time of the harvest, in seconds.
    pub wall_s: f64,
    /// CPU time of the harvest, in seconds.
    pub cpu_s: f64,
    /// Wall time in seconds that ordinary runs of the same programs take one after another, from recorded
    /// runs; `None` if one of the programs has no record.
    pub alone_wall_s: Option<f64>,
    /// CPU time of these ordinary runs, in seconds.
    pub alone_cpu_s: Option<f64>,
    /// The smaller of the ratios of ordinary to harvested wall and CPU time: above 1 the harvest gained.
    /// `None` if no ordinary runs are known, or not all jobs succeeded.
    pub gain: Option<f64>,
}

/// A job that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchJob {
    /// Number of the job: 1 is the first command of the list.
    pub number: u64,
    /// The command as listed.
    pub command: String,
    /// Exit code, if the job ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended the job, if one did.
    pub signal: Option<i32>,
    /// True if the batch ended the job.
    pub ended: bool,
    /// When it was started, in seconds since 1970.
    pub started_unix_s: f64,
    /// Time from start to end in seconds; for a job in a set, of the whole set.
    pub wall_s: f64,
    /// CPU time of the job and of the children that it waited for, in seconds. For a job in a set, the
    /// harvest's estimate; `None` if it could not be estimated.
    pub cpu_s: Option<f64>,
    /// Position in `sets`, from 0; absent for an ordinary process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<u64>,
}
