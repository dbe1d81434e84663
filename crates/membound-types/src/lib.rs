//! Types that the crates of membound exchange, and the schemas of its documents.
//!
//! Newtypes for values that must not be mixed up, the [`Figure`] with its interval and basis, and the
//! schemas of every document that the command writes. There is no logic here: `membound-measure` measures,
//! `membound-model` finds levels, `membound-report` formats text and pages.
//!
//! Units are part of a field's name: `_ns`, `_bytes`, `_cycles` (core clock cycles, not timer ticks),
//! `_gb_s` (10⁹ bytes per second), `_hz`.

#![forbid(unsafe_code)]

mod bandwidth;
mod c2c;
mod calibration;
mod comparison;
mod doctor;
mod document;
mod figure;
mod gate;
mod hardware;
mod harvest;
mod harvest_batch;
mod harvest_explore;
mod harvest_run;
mod latency;
mod level;
mod loaded;
mod machine;
mod machine_info;
mod mlp;
mod model;
mod names;
mod numa;
mod prefetch;
mod profile;
mod rewrite;
mod run_comparison;
mod sample;
mod tlb;
mod units;
mod window;

pub use bandwidth::{Bandwidth, BandwidthKernel, BandwidthPoint, VectorWidth};
pub use c2c::{CorePair, CoreToCore};
pub use calibration::{CalibratedLevel, Calibration, TickCount};
pub use comparison::*;
pub use doctor::*;
pub use document::{Document, Kind, SCHEMA_VERSION};
pub use figure::{Basis, Figure, NotMeasured, Outcome};
pub use gate::{Gate, GateLimit, GateSubject, GateVerdict, RunSide};
pub use hardware::*;
pub use harvest::*;
pub use harvest_batch::*;
pub use harvest_explore::*;
pub use harvest_run::*;
pub use latency::{
    Access, CoreDifference, Dscr, Latency, LatencyPoint, Pattern, PrefetchState, PrefetchTaint,
};
pub use level::{Level, LevelKind, LineSize};
pub use loaded::{Loaded, LoadedPoint, TrafficMix};
pub use machine::{MachineProfile, Processors};
pub use machine_info::{Cache, CacheKind, Conditions, Cpu, MachineInfo, ThpState, Timer};
pub use mlp::{
    AreaPoint, ExpectedHits, Fence, Filler, FillerCliff, LevelHits, Misses, Mlp, MlpCell, MlpMode,
    PageWalks, PlacementOutlier, PlacementPoint, Placements, ReorderEvidence, RuleBracket,
    RuleTime, SequentialBend, SequentialLine, SequentialPart, ThroughputPoint, WindowLimit,
};
pub use model::*;
pub use numa::{Numa, NumaPair};
pub use prefetch::{Prefetch, PrefetchPattern, PrefetchPoint};
pub use profile::*;
pub use rewrite::*;
pub use run_comparison::*;
pub use sample::{Disturbance, Samples, Stopped};
pub use tlb::{Tlb, TlbLevel, TlbOverlap, TlbPoint, TlbReach};
pub use units::{CpuId, NamedPolicy, NodeId, NodePolicy, PageKind};
pub use window::{Window, WindowKernel, WindowPoint};
