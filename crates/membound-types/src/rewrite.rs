//! What can be patched in a binary (`rewrite plan`), and what a program did with
//! everything patched (`rewrite check`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Kind, Outcome};

named! {
    /// What a patch does before the instruction that it stands at.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum PatchBody {
        /// Nothing: the instruction runs in a trampoline, no more.
        Displace = "displace",
        /// Counts executions.
        #[default]
        Count = "count",
        /// Writes rubbish into every register and flag that is held to be dead.
        Rubbish = "rubbish",
        /// Counts, and now and then times the load and records it.
        Sample = "sample",
        /// Records address and site while a burst is on.
        Record = "record",
        /// Prefetches the operand and calls the agent's yield.
        Yield = "yield",
    }
}

named! {
    /// What a memory access does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum AccessKind {
        /// Reads memory.
        Load = "load",
        /// Writes memory.
        Store = "store",
        /// Reads and writes the same operand.
        Both = "both",
    }
}

/// Memory accesses and what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PatchCounts {
    /// Instructions that access memory by an operand: `patched` and all `refused` together.
    pub accesses: u64,
    /// Those that read.
    pub loads: u64,
    /// Those that write. One that does both stands in both.
    pub stores: u64,
    /// Those that get a patch.
    pub patched: u64,
    /// Those that get none, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// `membound rewrite check --json F -- CMD`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewriteCheck {
    /// Version of this schema.
    pub schema_version: u32,
    /// [`Kind::RewriteCheck`].
    pub kind: Kind,
    /// The program was not seen to its end, or parts of it could not be observed.
    pub incomplete: bool,
    /// What was not seen to its end, and why; left out when nothing is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<String>,
    /// Version of the writer.
    pub membound_version: String,
    /// The command line that ran.
    pub command: Vec<String>,
    /// What the patches did.
    pub body: PatchBody,
    /// Whether increments were locked, so that threads lose none.
    pub exact: bool,
    /// The program's exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it, when one did.
    pub signal: Option<i32>,
    /// Whether the program itself ran with patches.
    pub patched: bool,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was recorded, with a body that records; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<CheckedRecords>,
    /// Executables and libraries, those that executed most first.
    pub modules: Vec<CheckedModule>,
    /// Every program that ran, in the order of their starts: an exec begins a new one.
    pub processes: Vec<CheckedProcess>,
    /// Wall time from the start of the command to its end, in seconds.
    pub elapsed_s: f64,
}

/// One file whose code ran, over all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedModule {
    /// The file.
    pub path: String,
    /// Accesses in it, and what became of them.
    #[serde(flatten)]
    pub counts: PatchCounts,
    /// Times that patched accesses were executed, or why they were not counted.
    pub executions: Outcome<u64>,
    /// Its recorded accesses, with a body that records; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<CheckedSamples>,
    /// Distinct lines of 64 bytes among the recorded accesses, those of different programs
    /// apart; left out like `samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<Outcome<u64>>,
    /// Why nothing of it was patched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpatched: Option<String>,
    /// Address spaces in which it was patched.
    pub placements: u64,
    /// The accesses of the functions asked for, by address; left out when none were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<CheckedSite>,
}

/// One patched access.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedSite {
    /// Address in the file.
    pub address: u64,
    /// Function that it belongs to.
    pub function: String,
    /// What it does.
    pub access: AccessKind,
    /// Times it was executed, or why that is not known.
    pub executions: Outcome<u64>,
    /// Its recorded accesses, with a body that records; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<CheckedSamples>,
}

/// Recorded accesses of one file or one instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedSamples {
    /// Accesses that were timed.
    pub timed: u64,
    /// Accesses recorded without a time.
    pub untimed: u64,
    /// Those among both that store.
    pub stores: u64,
    /// Median of the timed ones in ticks of the time stamp counter, fences and reading the
    /// counter included.
    pub median_ticks: Outcome<u32>,
    /// What nine in ten of the timed ones did not exceed, in the same ticks.
    pub p90_ticks: Outcome<u32>,
}

/// Records of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedRecords {
    /// Mean executions of an access from one sample to the next, where it samples.
    pub period: Option<u32>,
    /// Length of a burst in milliseconds, where it records in bursts.
    pub burst_ms: Option<f64>,
    /// From the start of one burst to that of the next, in milliseconds.
    pub burst_every_ms: Option<f64>,
    /// Accesses that were collected.
    pub recorded: u64,
    /// Accesses that were to be recorded and found no room: a thread fills its room faster than
    /// it is emptied, or there are too many threads.
    pub lost: u64,
    /// Collected accesses by code that is not known any more.
    pub unattributed: u64,
}

/// One program of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedProcess {
    /// Process number.
    pub pid: u32,
    /// Its executable.
    pub path: String,
    /// Whether it ran with patches.
    pub patched: bool,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `membound rewrite plan BINARY --json F`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewritePlan {
    /// Version of this schema.
    pub schema_version: u32,
    /// [`Kind::RewritePlan`].
    pub kind: Kind,
    /// Version of the writer.
    pub membound_version: String,
    /// The file.
    pub path: String,
    /// What the plan is kept by: `build-id:…` or `sha256:…` in hexadecimal.
    pub identity: String,
    /// What the patches would do.
    pub body: PatchBody,
    /// Whether jump tables were resolved.
    pub tables_resolved: bool,
    /// Functions found.
    pub functions_found: u64,
    /// Basic blocks found.
    pub blocks: u64,
    /// Functions not every branch of which is known.
    pub unresolved: u64,
    /// Accesses in all functions.
    #[serde(flatten)]
    pub counts: PatchCounts,
    /// Every function that accesses memory, those with most refusals first; with
    /// `--function`, those asked for.
    pub functions: Vec<PlannedFunction>,
}

/// One function of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedFunction {
    /// Its first address in the file.
    pub address: u64,
    /// Its name, demangled; its address where it has none.
    pub name: String,
    /// Its extent.
    pub size_bytes: u64,
    /// Basic blocks in it.
    pub blocks: u64,
    /// Its accesses.
    #[serde(flatten)]
    pub counts: PatchCounts,
    /// Why not every branch into it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<String>,
    /// Its instructions, with `--function`; left out otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instructions: Vec<PlannedInstruction>,
}

/// One instruction of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedInstruction {
    /// Its address in the file.
    pub address: u64,
    /// Its bytes in hexadecimal.
    pub bytes: String,
    /// It, disassembled.
    pub text: String,
    /// Number of its block within the function.
    pub block: u32,
    /// What is alive before it.
    pub live: String,
    /// What is dead before it: all that is not in `live`.
    pub dead: String,
    /// What it does to memory by an operand, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessKind>,
    /// First address of the displaced group that it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// Whether it gets a patch of its own.
    pub patched: bool,
    /// Why it gets none although it accesses memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
