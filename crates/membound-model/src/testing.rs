//! Helpers of the unit tests of several modules.

pub(crate) use membound_testkit::Random;
use membound_types::{Level, LevelKind};

/// A level with this name and size; `DRAM` is memory, all others are caches.
pub(crate) fn level(name: &str, size_bytes: Option<u64>) -> Level {
    Level {
        name: name.to_owned(),
        kind: if name == "DRAM" {
            LevelKind::Memory
        } else {
            LevelKind::Cache
        },
        size_bytes,
        latency_ns: 1.0,
        latency_low_ns: 1.0,
        latency_high_ns: 1.0,
        latency_cycles: 4.0,
        ..Level::default()
    }
}
