//! The machine profile: all results of `measure`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Bandwidth, Calibration, CoreToCore, Figure, Kind, Latency, Level, LineSize, Loaded,
    MachineInfo, Mlp, Model, NotMeasured, Numa, Outcome, Prefetch, SCHEMA_VERSION, Tlb, Window,
};

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
