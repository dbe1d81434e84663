//! What became of a batch: a list of commands, run several at a time, some of them together in one
//! harvest (`harvest batch`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::names::named;

named! {
    /// Whether jobs of a batch are run together in a harvest.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BatchHarvest {
        /// Where an earlier run of the same programs gained by it, and rarely as a trial.
        #[default]
        Auto = "auto",
        /// Wherever kept plans promise a gain.
        On = "on",
        /// Never.
        Off = "off",
    }
}

named! {
    /// The order in which jobs are started.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BatchOrder {
        /// As they were listed.
        #[default]
        Given = "given",
        /// The job that is expected to take longest first.
        LongestFirst = "longest-first",
        /// Longest first, with memory-bound jobs beside compute-bound ones.
        Spread = "spread",
    }
}

named! {
    /// Why jobs were run together in a harvest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum BatchSetReason {
        /// Earlier runs of the same programs gained by it.
        Measured = "measured",
        /// Their plans promise a gain that was not measured yet.
        Trial = "trial",
        /// The user asked for it.
        Asked = "asked",
    }
}

/// `membound harvest batch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestBatch {
    /// Version of this schema.
    pub schema_version: u32,
    /// [`Kind::HarvestBatch`].
    pub kind: Kind,
    /// Jobs were not started, or were ended by the batch.
    pub incomplete: bool,
    /// Version of the writer.
    pub membound_version: String,
    /// When the batch began, RFC 3339 in UTC.
    pub date: String,
    /// The host's name.
    pub host: String,
    /// Its processor.
    pub cpu: String,
    /// File of the list of commands; `-` is standard input.
    pub list: String,
    /// What was asked for.
    pub options: BatchOptions,
    /// The order in which jobs were started.
    pub order: BatchOrder,
    /// From the first start to the last end, in seconds.
    pub wall_s: f64,
    /// CPU time of all jobs and of the harvests that they ran in, in seconds.
    pub cpu_s: f64,
    /// Jobs that ended by themselves, a second; `None` where none did.
    pub jobs_per_s: Option<f64>,
    /// How many jobs ended how.
    pub jobs: BatchCounts,
    /// Jobs that ran together in a harvest, in the order of their starts.
    pub sets: Vec<BatchSet>,
    /// Every job that was started, in the order of their ends.
    pub results: Vec<BatchJob>,
    /// What went wrong beside the jobs.
    pub notes: Vec<String>,
}

/// What was asked of a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchOptions {
    /// Jobs that may run at one time.
    pub at_once: u64,
    /// Whether jobs may run together in a harvest.
    pub harvest: BatchHarvest,
    /// When the batch is stopped early, as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<String>,
}

/// How many jobs ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchCounts {
    /// Commands in the list.
    pub listed: u64,
    /// Commands that an earlier batch had run already (`--resume`).
    pub skipped: u64,
    /// Exit code 0.
    pub succeeded: u64,
    /// Another exit code, or a signal that the batch did not send.
    pub failed: u64,
    /// Ended by the batch: it was stopped while they ran.
    pub ended: u64,
    /// Not started: the batch was stopped before.
    pub not_started: u64,
}

/// Jobs that ran together in one harvest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchSet {
    /// Their numbers.
    pub jobs: Vec<u64>,
    /// Why they did.
    pub why: BatchSetReason,
    /// Wall time of the harvest, in seconds.
    pub wall_s: f64,
    /// CPU time of the harvest, in seconds.
    pub cpu_s: f64,
    /// Wall time that ordinary runs of the same programs take one after another, in seconds, from the
    /// record; `None` where there is none of one of them.
    pub alone_wall_s: Option<f64>,
    /// CPU time of these, in seconds.
    pub alone_cpu_s: Option<f64>,
    /// The lesser of the two ratios of ordinary to harvested time: above 1 the harvest gained. `None` where
    /// no ordinary runs are known, or not all jobs succeeded.
    pub gain: Option<f64>,
}

/// A job that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchJob {
    /// Its number: 1 is the first command of the list.
    pub number: u64,
    /// The command as it was listed.
    pub command: String,
    /// Its exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it, when one did.
    pub signal: Option<i32>,
    /// Whether the batch ended it.
    pub ended: bool,
    /// When it was started, in seconds since 1970.
    pub started_unix_s: f64,
    /// From its start to its end, in seconds; of a job in a set: of the whole set.
    pub wall_s: f64,
    /// Its CPU time, that of children that it waited for included, in seconds. Of a job in a set estimated
    /// by the harvest; `None` where it could not be.
    pub cpu_s: Option<f64>,
    /// Which of the `sets` it was in, from 0; left out for an ordinary process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<u64>,
}
