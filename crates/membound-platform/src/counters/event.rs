//! Events that can be counted, and the count of one.

use std::fmt;

use membound_types::Outcome;

/// An event to count, in user mode only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Demand loads that missed the L1 data cache.
    L1DataMiss,
    /// Demand loads that missed the L2 cache.
    L2Miss,
    /// Demand loads that missed all caches of this core complex.
    LastLevelMiss,
    /// Loads whose translation missed the first data TLB.
    DataTlbMiss,
    /// Cycles of the core clock.
    Cycles,
    /// Page faults. Counted by the kernel, so that no PMU is needed.
    PageFaults,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 6] = [
        Self::L1DataMiss,
        Self::L2Miss,
        Self::LastLevelMiss,
        Self::DataTlbMiss,
        Self::Cycles,
        Self::PageFaults,
    ];
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::L1DataMiss => "L1 data cache misses",
            Self::L2Miss => "L2 cache misses",
            Self::LastLevelMiss => "last-level cache misses",
            Self::DataTlbMiss => "data TLB misses",
            Self::Cycles => "cycles",
            Self::PageFaults => "page faults",
        })
    }
}

/// Count of one event.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The event that was counted.
    pub event: Event,
    /// Its count since the last reset, scaled up by the share of the time during which the kernel
    /// had it on a counter; missing if that share is zero.
    pub count: Outcome<f64>,
    /// Share of the time during which the event was on a counter, 0 to 1. Below 1 the count is an
    /// estimate.
    pub running_share: f64,
}
