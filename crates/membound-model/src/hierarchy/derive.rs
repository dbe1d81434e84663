//! Builds a topology from the levels of a latency curve, for a machine without a description.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{Component, FitData, Level, SizeMeaning, TlbTerm, Topology, TopologyLevel};

use super::error::TopologyError;
use super::topology::{constant_symbol, fresh_symbol, validate};

/// Line size where none was found; nearly every machine today has it.
const LINE_BYTES: u32 = 64;
/// Size of a double: the line of the window kernel's program part, and the operation of the rates.
const DOUBLE_BYTES: u32 = 8;

/// A topology from a profile's `levels`, innermost first, and its `tlb` terms.
///
/// Sizes are the reach of each level in bytes; the last level has no end. Each level's path is that
/// of the level inside plus one component, so that all components can be determined. For windows
/// the first component is the program, which includes a hit in the innermost cache because the data
/// cannot separate the two; for a latency curve it is a load from that cache.
///
/// # Errors
/// [`TopologyError::NothingFound`] without levels, and the errors of [`validate`]: sizes that
/// do not grow, two levels of one name, an invalid TLB term.
pub fn from_levels(
    levels: &[Level],
    tlb: &[TlbTerm],
    data: FitData,
) -> Result<Topology, TopologyError> {
    let Some(outermost) = levels.len().checked_sub(1) else {
        return Err(TopologyError::NothingFound);
    };
    let mut used_symbols: BTreeSet<String> = tlb.iter().map(|term| term.symbol.clone()).collect();
    let mut topology = Topology {
        name: "measured".to_owned(),
        description: Some("levels as the latency curve shows them".to_owned()),
        sizes: SizeMeaning::Reach,
        tlb: tlb.to_vec(),
        bytes_per_operation: DOUBLE_BYTES,
        ..Topology::default()
    };
    let mut path = BTreeMap::new();
    for (index, level) in levels.iter().enumerate() {
        let inside = index.checked_sub(1).map(|at| &*levels[at].name);
        let component = component(level, inside, data, &used_symbols);
        used_symbols.insert(constant_symbol(&component.symbol));
        used_symbols.insert(component.symbol.clone());
        path.insert(component.symbol.clone(), 1);
        topology.components.push(component);
        topology.levels.push(TopologyLevel {
            name: level.name.clone(),
            kind: level.kind,
            size_bytes: level.size_bytes.filter(|_| index < outermost),
            path: path.clone(),
            steepness: 1.0,
        });
    }
    validate(&topology)?;
    Ok(topology)
}

/// The component that `level` adds to the path; `inside` is the name of the next inner level.
fn component(
    level: &Level,
    inside: Option<&str>,
    data: FitData,
    used_symbols: &BTreeSet<String>,
) -> Component {
    let program = inside.is_none() && data == FitData::Window;
    let (wanted, name) = match inside {
        Some(inside) => (symbol(&level.name), format!("{inside} to {}", level.name)),
        None if program => (
            "t_o".to_owned(),
            format!("program, {} included", level.name),
        ),
        None => (symbol(&level.name), format!("load from {}", level.name)),
    };
    let line_bytes = match level.line_bytes {
        _ if program => DOUBLE_BYTES,
        None | Some(0) => LINE_BYTES,
        Some(found) => found,
    };
    Component {
        symbol: fresh_symbol(used_symbols, &wanted),
        name,
        line_bytes,
        application: program,
        per_line_ns: None,
        constant_ns: None,
        fixed: false,
    }
}

/// The symbol for a level name: `t_dram` for `DRAM`.
fn symbol(name: &str) -> String {
    let letters = name.chars().map(|letter| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_lowercase()
        } else {
            '_'
        }
    });
    "t_".chars().chain(letters).collect()
}
