//! Topologies as people write them: TOML in, a sound topology or one line about it out.

use membound_types::Topology;

use super::topology::{TopologyError, validate};

/// Names of the topologies that come with the program.
pub const BUNDLED: [&str; 2] = ["origin2000", "generic"];

/// The bundled topology of that name.
#[must_use]
pub fn bundled(_name: &str) -> Option<Topology> {
    None
}

/// A topology from TOML.
///
/// # Errors
/// File, line and what is wrong there.
pub fn parse_topology(file_name: &str, _text: &str) -> Result<Topology, TopologyError> {
    let topology = Topology {
        name: file_name.to_owned(),
        ..Topology::default()
    };
    validate(&topology)?;
    Ok(topology)
}
