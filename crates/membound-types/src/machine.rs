//! The machine according to its own description, the conditions of a run, and the machine profile.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{
    Bandwidth, Calibration, CoreToCore, CpuId, Figure, Kind, Latency, Loaded, Mlp, Model,
    NotMeasured, Numa, Outcome, Prefetch, SCHEMA_VERSION, Tlb, Window,
};

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

named! {
    /// Kind of a level: cache or memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum LevelKind {
        /// A cache.
        Cache = "cache",
        /// Main memory: the outermost level.
        Memory = "memory",
    }
}

/// Level of the memory hierarchy, found from the latency curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// Name: `L1`, `L2`, `L3`, …, `DRAM`.
    pub name: String,
    /// Whether the level is a cache or memory.
    pub kind: LevelKind,
    /// Effective size in bytes: where the curve leaves the plateau; `null` for memory.
    pub size_bytes: Option<u64>,
    /// Lower end of the interval of `size_bytes`.
    pub size_low_bytes: Option<u64>,
    /// Upper end of the interval of `size_bytes`.
    pub size_high_bytes: Option<u64>,
    /// Load-to-use latency on the plateau, in nanoseconds.
    pub latency_ns: f64,
    /// Lower end of the range of nine tenths of the plateau's points (a plateau may be tilted), or of their
    /// intervals if that range is wider.
    pub latency_low_ns: f64,
    /// Upper end of that range.
    pub latency_high_ns: f64,
    /// `latency_ns` in core clock cycles.
    pub latency_cycles: f64,
    /// Line size from stride curves, else as declared; see [`Level::line_basis`].
    pub line_bytes: Option<u32>,
    /// Basis of `line_bytes`.
    pub line_basis: Option<crate::Basis>,
    /// Size declared by sysfs or CPUID for this level, in bytes.
    pub declared_bytes: Option<u64>,
    /// A sentence if effective and declared size differ, or if the level is private and evicts lines into a
    /// neighbour's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Line size found from stride curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineSize {
    /// Line size in bytes.
    pub bytes: u32,
    /// Bytes fetched together if a neighbouring line is fetched with a line (adjacent-line prefetch);
    /// otherwise equal to `bytes`.
    pub sector_bytes: u32,
    /// Basis of the line size.
    pub basis: crate::Basis,
}

/// Machine profile: all results of `measure`, and the levels found from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineProfile {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Machine`].
    pub kind: Kind,
    /// True if the run was cut short, or a part failed.
    #[serde(default)]
    pub incomplete: bool,
    /// Host, CPU, declared caches, timer and conditions.
    #[serde(flatten)]
    pub machine: MachineInfo,
    /// Levels found from the latency curve, innermost first.
    pub levels: Vec<Level>,
    /// Line size found from stride curves.
    pub line: Outcome<LineSize>,
    /// Hierarchy model fitted to the windows, or to the latency curve if there are no windows.
    #[serde(default)]
    pub model: Outcome<Model>,
    /// Result of `measure latency`, from which the levels were found.
    pub latency: Outcome<Latency>,
    /// Result of `measure mlp`: memory-level parallelism and windows of the core.
    pub mlp: Outcome<Mlp>,
    /// Result of `measure window`: Seidl's windows.
    pub window: Outcome<Window>,
    /// Result of `measure bandwidth`.
    pub bandwidth: Outcome<Bandwidth>,
    /// Result of `measure loaded`: latency under load.
    pub loaded: Outcome<Loaded>,
    /// Result of `measure tlb`: address translation.
    pub tlb: Outcome<Tlb>,
    /// Result of `measure prefetch`: hardware prefetchers.
    pub prefetch: Outcome<Prefetch>,
    /// Result of `measure numa`: nodes by nodes.
    pub numa: Outcome<Numa>,
    /// Result of `measure c2c`: cores by cores.
    pub c2c: Outcome<CoreToCore>,
    /// Histograms of the latency sampler's patch for loads of known levels.
    #[serde(default)]
    pub calibration: Outcome<Calibration>,
    /// Wall time of the run in seconds.
    pub elapsed_s: f64,
    /// Core clock over the run, in hertz.
    pub core_clock_hz: Option<Figure>,
}

/// Machine profiles measured on several CPUs, one after the other, in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Processors {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Processors`].
    pub kind: Kind,
    /// True if the run was cut short, or a part failed on one of the CPUs.
    #[serde(default)]
    pub incomplete: bool,
    /// One profile per CPU, in the requested order; its label `cpu` names the measuring CPU.
    pub profiles: Vec<MachineProfile>,
}

impl MachineProfile {
    /// Profile of this machine in which no part was requested.
    #[must_use]
    pub fn unmeasured(machine: MachineInfo) -> Self {
        fn not_asked<T>() -> Outcome<T> {
            Outcome::missing(NotMeasured::NOT_ASKED)
        }
        Self {
            schema_version: SCHEMA_VERSION,
            kind: Kind::Machine,
            incomplete: false,
            machine,
            levels: Vec::new(),
            line: not_asked(),
            model: not_asked(),
            latency: not_asked(),
            mlp: not_asked(),
            window: not_asked(),
            bandwidth: not_asked(),
            loaded: not_asked(),
            tlb: not_asked(),
            prefetch: not_asked(),
            numa: not_asked(),
            c2c: not_asked(),
            calibration: not_asked(),
            elapsed_s: 0.0,
            core_clock_hz: None,
        }
    }
}
