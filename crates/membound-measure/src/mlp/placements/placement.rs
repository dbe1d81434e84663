//! The times of one placement, and what perturbed the thread meanwhile.

use membound_types::MlpMode;

/// Times of one placement, one per point: mode, loads, cycles, and spread in cycles.
pub(super) type Times = Vec<(MlpMode, u32, f64, f64)>;

/// One placement: its times and what perturbed the thread meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Placement {
    pub(super) times: Times,
    pub(super) perturbation: Perturbation,
}

/// What perturbed the thread while a placement was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Perturbation {
    pub(super) steal_ms: f64,
    pub(super) involuntary_switches: u32,
}
