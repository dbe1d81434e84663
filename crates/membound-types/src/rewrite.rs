//! Analysis of what can be patched in a binary (`rewrite plan`), and results of a fully patched program
//! (`rewrite check`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Kind, Outcome};

named! {
    /// Action of a patch before the instruction that it replaces.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum PatchBody {
        /// Nothing: the instruction only executes in a trampoline.
        Displace = "displace",
        /// Counts executions.
        #[default]
        Count = "count",
        /// Overwrites every register and flag that the analysis considers dead.
        Rubbish = "rubbish",
        /// Counts executions; sometimes times the access and records it.
        Sample = "sample",
        /// Records address and site during a burst.
        Record = "record",
        /// Prefetches the operand and calls the agent's yield.
        Yield = "yield",
    }
}

named! {
    /// Kind of a memory access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum AccessKind {
        /// The instruction reads memory.
        Load = "load",
        /// The instruction writes memory.
        Store = "store",
        /// The instruction reads and writes the same operand.
        Both = "both",
    }
}

/// Numbers of memory accesses by result of patching.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PatchCounts {
    /// Instructions with a memory operand: the sum of `patched` and all of `refused`.
    pub accesses: u64,
    /// Accesses that read.
    pub loads: u64,
    /// Accesses that write; one that reads and writes counts as both.
    pub stores: u64,
    /// Accesses that get a patch.
    pub patched: u64,
    /// Accesses without a patch, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Document of `membound rewrite check --json F -- CMD`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewriteCheck {
    /// Version of this schema.
    pub schema_version: u32,
    /// Always [`Kind::RewriteCheck`].
    pub kind: Kind,
    /// True if the program was not observed until its end, or parts of it could not be observed.
    pub incomplete: bool,
    /// Parts that were not observed until their end, with reasons; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<String>,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// Command line of the program.
    pub command: Vec<String>,
    /// Action of the patches.
    pub body: PatchBody,
    /// True if counters were incremented with locked instructions, so that no count is lost between
    /// threads.
    pub exact: bool,
    /// Exit code, if the program ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended the program, if one did.
    pub signal: Option<i32>,
    /// True if the program itself ran with patches.
    pub patched: bool,
    /// Why it ran without patches; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Recorded accesses; only with a body that records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<CheckedRecords>,
    /// Executables and libraries, sorted by number of executions, most first.
    pub modules: Vec<CheckedModule>,
    /// All programs that ran, in the order of their starts; an exec starts a new entry.
    pub processes: Vec<CheckedProcess>,
    /// Wall time from the start of the command to its end, in seconds.
    pub elapsed_s: f64,
}

/// Executed file, summed over all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedModule {
    /// Path of the file.
    pub path: String,
    /// Accesses in the file, by result of patching.
    #[serde(flatten)]
    pub counts: PatchCounts,
    /// Number of executions of patched accesses, or why they were not counted.
    pub executions: Outcome<u64>,
    /// Recorded accesses; only with a body that records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<CheckedSamples>,
    /// Number of distinct 64-byte lines among the recorded accesses; lines of different programs are
    /// distinct. Absent like `samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<Outcome<u64>>,
    /// Why nothing in the file was patched; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpatched: Option<String>,
    /// Number of address spaces in which the file was patched.
    pub placements: u64,
    /// Accesses of the requested functions, by address; absent if none were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<CheckedSite>,
}

/// A patched access.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedSite {
    /// Address of the instruction in the file.
    pub address: u64,
    /// Function that contains it.
    pub function: String,
    /// Kind of the access.
    pub access: AccessKind,
    /// Number of executions, or why it is unknown.
    pub executions: Outcome<u64>,
    /// Recorded accesses; only with a body that records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<CheckedSamples>,
}

/// Recorded accesses of one file or one instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedSamples {
    /// Number of timed accesses.
    pub timed: u64,
    /// Number of accesses recorded without a time.
    pub untimed: u64,
    /// Number of stores among both.
    pub stores: u64,
    /// Median of the timed accesses in ticks of the time stamp counter, including fences and the reading of
    /// the counter.
    pub median_ticks: Outcome<u32>,
    /// 90th percentile of the timed accesses, in the same ticks.
    pub p90_ticks: Outcome<u32>,
}

/// Recording settings of a run, and numbers of records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedRecords {
    /// Mean number of executions between two samples of an access, with a sampling body.
    pub period: Option<u32>,
    /// Length of a burst in milliseconds, with a body that records bursts.
    pub burst_ms: Option<f64>,
    /// Time from the start of one burst to the start of the next, in milliseconds.
    pub burst_every_ms: Option<f64>,
    /// Number of collected accesses.
    pub recorded: u64,
    /// Number of accesses that could not be recorded: a thread filled its buffer faster than it was
    /// emptied, or there were too many threads.
    pub lost: u64,
    /// Number of collected accesses whose code is no longer known.
    pub unattributed: u64,
}

/// One program of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedProcess {
    /// Process identifier.
    pub pid: u32,
    /// Path of its executable.
    pub path: String,
    /// True if it ran with patches.
    pub patched: bool,
    /// Why it ran without patches; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Document of `membound rewrite plan BINARY --json F`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewritePlan {
    /// Version of this schema.
    pub schema_version: u32,
    /// Always [`Kind::RewritePlan`].
    pub kind: Kind,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// Path of the file.
    pub path: String,
    /// Identity under which the plan is stored: `build-id:…` or `sha256:…` in hexadecimal.
    pub identity: String,
    /// Action of the planned patches.
    pub body: PatchBody,
    /// True if jump tables were resolved.
    pub tables_resolved: bool,
    /// Number of functions.
    pub functions_found: u64,
    /// Number of basic blocks.
    pub blocks: u64,
    /// Number of functions with branches that are not all known.
    pub unresolved: u64,
    /// Accesses in all functions, by result of patching.
    #[serde(flatten)]
    pub counts: PatchCounts,
    /// All functions that access memory, most refusals first; with `--function`, the requested functions.
    pub functions: Vec<PlannedFunction>,
}

/// A function of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedFunction {
    /// Address of its first byte in the file.
    pub address: u64,
    /// Demangled name; the address if it has no name.
    pub name: String,
    /// Size of the function in bytes.
    pub size_bytes: u64,
    /// Number of its basic blocks.
    pub blocks: u64,
    /// Accesses in the function, by result of patching.
    #[serde(flatten)]
    pub counts: PatchCounts,
    /// Why some branches into it are unknown; absent if all are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<String>,
    /// Instructions; only with `--function`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instructions: Vec<PlannedInstruction>,
}

/// An instruction of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedInstruction {
    /// Address in the file.
    pub address: u64,
    /// Machine code in hexadecimal.
    pub bytes: String,
    /// Disassembled text.
    pub text: String,
    /// Number of its basic block within the function.
    pub block: u32,
    /// Live registers and flags before the instruction.
    pub live: String,
    /// Dead registers and flags before the instruction: all that are not in `live`.
    pub dead: String,
    /// Kind of its memory access; absent if it has no memory operand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessKind>,
    /// First address of the displaced group that contains it; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// True if the instruction gets a patch of its own.
    pub patched: bool,
    /// Why it gets no patch although it accesses memory; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
