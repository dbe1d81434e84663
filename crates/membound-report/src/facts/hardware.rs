//! Texts about accesses that the processor sampled.

use membound_types::{ChangedLineRow, HardwareView};

use crate::units;

/// Warning that shares of sampled accesses are no shares of time.
pub(crate) const READING: &str = "Shares are those of sampled accesses, not of time: a long latency may be hidden by other work.";

/// Numbers of accesses, and properties that they have in common.
pub(crate) fn about(view: &HardwareView) -> String {
    let mut words = vec![
        units::plural_of(view.accesses, "access", "accesses"),
        units::plural_of(view.loads, "load", "loads"),
        units::plural_of(view.stores, "store", "stores"),
    ];
    words.extend(
        view.latency_cycles
            .map(|cycles| format!("{} on average", units::cycles(cycles))),
    );
    words.extend(
        view.walked_fraction
            .map(|share| format!("{} walked the page table", units::percent(share))),
    );
    words.join(" · ")
}

/// Average latency in cycles; empty if it was not measured.
pub(crate) fn latency(cycles: Option<f64>) -> String {
    cycles.map(units::cycles).unwrap_or_default()
}

/// Describes how often another core had changed a line.
pub(crate) fn changed(row: &ChangedLineRow) -> String {
    format!(
        "line {:#x} of process {}: {} of {} found it changed by another core ({}, at {})",
        row.address,
        row.pid,
        row.changed,
        units::plural_of(row.accesses, "access", "accesses"),
        units::plural(row.threads as usize, "thread"),
        row.functions.join(", ")
    )
}
