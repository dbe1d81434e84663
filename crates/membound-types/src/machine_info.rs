//! The machine according to its own description, and the conditions of a run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, Outcome};

/// The host, its CPU and declared caches, the timer, and the conditions of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineInfo {
    /// Host name of the machine.
    pub host: String,
    /// Start of the run, RFC 3339 in UTC.
    pub date: String,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// The processor according to its own description.
    pub cpu: Cpu,
    /// Caches as declared by sysfs or CPUID, innermost first.
    pub caches: Vec<Cache>,
    /// Usable memory in bytes.
    pub memory_bytes: u64,
    /// Clock used for all timing.
    pub timer: Timer,
    /// Conditions that can change a figure.
    pub conditions: Conditions,
}

/// The processor according to its own description.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cpu {
    /// Instruction set: `x86_64`, `aarch64`, `powerpc64`.
    pub architecture: String,
    /// Vendor string, such as `AuthenticAMD`.
    pub vendor: String,
    /// Marketing name, as far as the machine reports it.
    pub model_name: String,
    /// CPUID display family (x86).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// CPUID display model (x86).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<u32>,
    /// CPUID stepping (x86).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepping: Option<u32>,
    /// Microarchitecture, if family and model identify one, such as `Zen 5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microarchitecture: Option<String>,
    /// Published number of reorder buffer entries of that microarchitecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_rob: Option<u32>,
    /// Logical CPUs that are online.
    pub online: Vec<CpuId>,
    /// Logical CPUs that this process may run on.
    pub allowed: Vec<CpuId>,
    /// Groups of logical CPUs that share a core; empty without SMT.
    pub smt_siblings: Vec<Vec<CpuId>>,
}

named! {
    /// Content of a cache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CacheKind {
        /// Data only.
        Data = "data",
        /// Instructions only.
        Instruction = "instruction",
        /// Data and instructions.
        Unified = "unified",
    }
}

/// A cache as declared by the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Level: 1, 2, 3, …
    pub level: u32,
    /// Content of the cache.
    pub kind: CacheKind,
    /// Declared capacity in bytes.
    pub size_bytes: u64,
    /// Declared line size in bytes; absent if not declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
    /// Declared associativity; absent if not declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// Logical CPUs that share the cache.
    pub shared_by: Vec<CpuId>,
    /// Source of the declaration: `sysfs` or `cpuid`.
    pub source: String,
}

/// Clock used for timing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timer {
    /// `tsc`, `cntvct`, `timebase` or `clock_monotonic_raw`.
    pub name: String,
    /// Ticks per second.
    pub rate_hz: f64,
    /// Smallest step between two different readings, in ticks.
    pub quantum_ticks: u64,
    /// Cost of two consecutive readings, in nanoseconds.
    pub overhead_ns: f64,
    /// True if the rate is declared constant over frequency and sleep states.
    pub invariant: bool,
    /// Core clock during the measurement in hertz, measured with a chain of dependent adds.
    pub core_clock_hz: f64,
}

/// Conditions that can change a figure on the same machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conditions {
    /// Setting for transparent huge pages.
    pub thp: Outcome<ThpState>,
    /// Frequency governor of the measuring CPU.
    pub governor: Outcome<String>,
    /// True if the clock may exceed its nominal rate.
    pub turbo: Outcome<bool>,
    /// Hypervisor's name; `null` on bare metal.
    pub hypervisor: Option<String>,
    /// State of each prefetcher by name (true is on), if it can be read.
    pub prefetchers: Outcome<BTreeMap<String, bool>>,
    /// Release of the kernel.
    pub kernel: String,
    /// Labels given with `--cond NAME=VALUE`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

named! {
    /// The kernel's setting for transparent huge pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ThpState {
        /// For every mapping that is large enough.
        Always = "always",
        /// For mappings that request them with `madvise`.
        Madvise = "madvise",
        /// For no mapping.
        Never = "never",
    }
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Self::missing("not looked at")
    }
}
