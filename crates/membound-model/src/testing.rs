//! What the unit tests of several modules build.

use membound_types::{Level, LevelKind};

/// A level of which only name and size matter; `DRAM` is memory, all others are caches.
pub(crate) fn level(name: &str, size_bytes: Option<u64>) -> Level {
    Level {
        name: name.to_owned(),
        kind: if name == "DRAM" {
            LevelKind::Memory
        } else {
            LevelKind::Cache
        },
        size_bytes,
        size_low_bytes: None,
        size_high_bytes: None,
        latency_ns: 1.0,
        latency_low_ns: 1.0,
        latency_high_ns: 1.0,
        latency_cycles: 4.0,
        line_bytes: None,
        line_basis: None,
        declared_bytes: None,
        note: None,
    }
}
