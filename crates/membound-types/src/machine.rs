//! The machine as it declares itself, the conditions of a run, and the machine profile.

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
    /// Host name.
    pub host: String,
    /// When the run began, RFC 3339 in UTC.
    pub date: String,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// The processor.
    pub cpu: Cpu,
    /// Caches as sysfs or CPUID declare them, innermost first.
    pub caches: Vec<Cache>,
    /// Usable memory in bytes.
    pub memory_bytes: u64,
    /// The clock that everything was timed with.
    pub timer: Timer,
    /// What else can change a figure.
    pub conditions: Conditions,
}

/// The processor as it declares itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cpu {
    /// `x86_64`, `aarch64`, `powerpc64`.
    pub architecture: String,
    /// Vendor string, such as `AuthenticAMD`.
    pub vendor: String,
    /// Marketing name, as far as it is shown.
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
    /// Microarchitecture where family and model name one, such as `Zen 5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microarchitecture: Option<String>,
    /// Reorder buffer entries as published for that microarchitecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_rob: Option<u32>,
    /// Logical CPUs online.
    pub online: Vec<CpuId>,
    /// Logical CPUs that this process may run on.
    pub allowed: Vec<CpuId>,
    /// Groups of logical CPUs that share a core; empty where there is no SMT.
    pub smt_siblings: Vec<Vec<CpuId>>,
}

named! {
    /// What a cache holds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CacheKind {
        /// Data only.
        Data = "data",
        /// Instructions only.
        Instruction = "instruction",
        /// Both.
        Unified = "unified",
    }
}

/// A cache as declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// 1, 2, 3, …
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Declared capacity in bytes.
    pub size_bytes: u64,
    /// Declared line size in bytes, when declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bytes: Option<u32>,
    /// Declared associativity, when declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// CPUs that share it.
    pub shared_by: Vec<CpuId>,
    /// `sysfs` or `cpuid`.
    pub source: String,
}

/// The clock used for timing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timer {
    /// `tsc`, `cntvct`, `timebase` or `clock_monotonic_raw`.
    pub name: String,
    /// Ticks a second.
    pub rate_hz: f64,
    /// Smallest step between two readings that differ, in ticks.
    pub quantum_ticks: u64,
    /// Cost of two readings in a row, in nanoseconds.
    pub overhead_ns: f64,
    /// Whether the rate is declared constant over frequency and sleep states.
    pub invariant: bool,
    /// Core clock while measuring, by a chain of dependent adds, in hertz.
    pub core_clock_hz: f64,
}

/// What can change a figure without the machine being another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conditions {
    /// Transparent huge pages.
    pub thp: Outcome<ThpState>,
    /// Frequency governor of the measuring CPU.
    pub governor: Outcome<String>,
    /// Whether the clock may rise above its nominal rate.
    pub turbo: Outcome<bool>,
    /// Hypervisor's name; `null` on bare metal.
    pub hypervisor: Option<String>,
    /// Prefetcher name → on, where the state can be read.
    pub prefetchers: Outcome<BTreeMap<String, bool>>,
    /// Kernel release.
    pub kernel: String,
    /// `--cond NAME=VALUE` labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

named! {
    /// The kernel's setting for transparent huge pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ThpState {
        /// Every mapping that is large enough.
        Always = "always",
        /// Mappings that ask with `madvise`.
        Madvise = "madvise",
        /// None.
        Never = "never",
    }
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Self::missing("not looked at")
    }
}

named! {
    /// Cache or memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum LevelKind {
        /// A cache.
        Cache = "cache",
        /// Main memory: the outermost level.
        Memory = "memory",
    }
}

/// A level of the hierarchy, found from the latency curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// `L1`, `L2`, `L3`, …, `DRAM`.
    pub name: String,
    /// Cache or memory.
    pub kind: LevelKind,
    /// Effective size in bytes: where the curve leaves the plateau; `null` for memory.
    pub size_bytes: Option<u64>,
    /// Lower end of the size's interval.
    pub size_low_bytes: Option<u64>,
    /// Upper end of the size's interval.
    pub size_high_bytes: Option<u64>,
    /// Load-to-use latency on the plateau.
    pub latency_ns: f64,
    /// Lower end of the range that holds nine tenths of the plateau's points (a plateau may
    /// be tilted), or of their intervals where that is wider.
    pub latency_low_ns: f64,
    /// Upper end of that range.
    pub latency_high_ns: f64,
    /// The same in core clock cycles.
    pub latency_cycles: f64,
    /// Line size found from stride curves, else as declared; see [`Level::line_basis`].
    pub line_bytes: Option<u32>,
    /// How `line_bytes` was got.
    pub line_basis: Option<crate::Basis>,
    /// What sysfs or CPUID declare for this level.
    pub declared_bytes: Option<u64>,
    /// A sentence where effective and declared size differ, or the level is private and
    /// spills into a neighbour's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The line size found from stride curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineSize {
    /// Bytes.
    pub bytes: u32,
    /// Bytes that come in together when a neighbour is fetched along with the line
    /// (adjacent-line prefetch); equal to `bytes` where it is not.
    pub sector_bytes: u32,
    /// How it was got.
    pub basis: crate::Basis,
}

/// A machine profile: everything that `measure` found, and the levels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineProfile {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Machine`].
    pub kind: Kind,
    /// Cut short, or a part failed.
    #[serde(default)]
    pub incomplete: bool,
    /// Host, CPU, declared caches, timer and conditions.
    #[serde(flatten)]
    pub machine: MachineInfo,
    /// Levels found from the latency curve, innermost first.
    pub levels: Vec<Level>,
    /// Line size found from stride curves.
    pub line: Outcome<LineSize>,
    /// The hierarchy model fitted to the windows, or to the latency curve without windows.
    #[serde(default)]
    pub model: Outcome<Model>,
    /// Latency that the levels were found from.
    pub latency: Outcome<Latency>,
    /// Memory-level parallelism and windows.
    pub mlp: Outcome<Mlp>,
    /// Seidl's windows.
    pub window: Outcome<Window>,
    /// Bandwidth.
    pub bandwidth: Outcome<Bandwidth>,
    /// Latency under load.
    pub loaded: Outcome<Loaded>,
    /// Address translation.
    pub tlb: Outcome<Tlb>,
    /// Hardware prefetchers.
    pub prefetch: Outcome<Prefetch>,
    /// Node by node.
    pub numa: Outcome<Numa>,
    /// Core to core.
    pub c2c: Outcome<CoreToCore>,
    /// What the latency sampler's patch shows of loads served from known levels.
    #[serde(default)]
    pub calibration: Outcome<Calibration>,
    /// Wall time of the run in seconds.
    pub elapsed_s: f64,
    /// Core clock over the run, in hertz.
    pub core_clock_hz: Option<Figure>,
}

/// What several CPUs of a machine measured, one after the other, in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Processors {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Processors`].
    pub kind: Kind,
    /// Cut short, or a part failed on one of them.
    #[serde(default)]
    pub incomplete: bool,
    /// A profile for each, in the order in which they were asked for; its label `cpu` says
    /// which one measured.
    pub profiles: Vec<MachineProfile>,
}

impl MachineProfile {
    /// One of this machine in which no part was asked for.
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
