//! Changes a topology's sizes, TLB or page-table term to values that the caller gives. Sizes are
//! in bytes.

use std::collections::BTreeSet;

use membound_types::{PageTableTerm, TlbTerm, Topology};

use super::error::TopologyError;
use super::topology::{fresh_symbol, listed, symbols_in_use, validate};
use crate::declared::bytes;

/// Area in bytes from which the page-table term of the paper (equation 7) counts.
const PAPER_START_BYTES: u64 = 1 << 28;
/// Bytes whose logarithm is the reference of the paper's page-table term.
const PAPER_REFERENCE_BYTES: u64 = 1 << 26;

/// A copy of `topology` with `sizes` (bytes, innermost first), and the warnings of [`validate`].
///
/// `sizes` has one entry for each level without a size; the outermost such level may be omitted
/// when it is the last level, which then has no end. Or `sizes` has one entry for every level (the
/// last may be omitted), and replaces the sizes of the topology.
///
/// # Errors
/// [`TopologyError::SizeCount`] for another number of sizes, and what [`validate`] finds.
pub fn with_sizes(
    topology: &Topology,
    sizes: &[u64],
) -> Result<(Topology, Vec<String>), TopologyError> {
    let count = topology.levels.len();
    let open: Vec<usize> = (0..count)
        .filter(|&index| topology.levels[index].size_bytes.is_none())
        .collect();
    let open_end = open.last().is_some_and(|&last| last + 1 == count);
    let mut sized = topology.clone();
    let given = sizes.len();
    if given == open.len() || (open_end && given + 1 == open.len()) {
        for (&index, &size) in open.iter().zip(sizes) {
            sized.levels[index].size_bytes = Some(size);
        }
    } else if given == count || given + 1 == count {
        for (index, level) in sized.levels.iter_mut().enumerate() {
            level.size_bytes = sizes.get(index).copied();
        }
    } else {
        return Err(TopologyError::SizeCount {
            given: match given {
                0 => "no sizes".to_owned(),
                1 => "1 size".to_owned(),
                _ => format!("{given} sizes"),
            },
            name: topology.name.clone(),
            counts: size_counts(topology, &open, open_end),
        });
    }
    let mut warnings = validate(&sized)?;
    for (level, before) in sized.levels.iter().zip(&topology.levels) {
        if let (Some(size), Some(known)) = (level.size_bytes, before.size_bytes)
            && size != known
        {
            warnings.push(format!(
                "level `{}` is taken to hold {} instead of the topology's {}",
                level.name,
                bytes(size),
                bytes(known)
            ));
        }
    }
    Ok((sized, warnings))
}

/// How [`with_page_table`] sets the page-table term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageTableChoice {
    /// Removes the term.
    Off,
    /// The paper's constants: start 2²⁸ bytes, reference 2²⁶, hence a jump at the start.
    Paper,
    /// Other constants. When the two are equal the term starts at 0, without a jump.
    At {
        /// Area in bytes from which the term counts.
        start_bytes: u64,
        /// Bytes whose base-2 logarithm is the reference of the term.
        reference_bytes: u64,
    },
}

/// A copy of `topology` with its page-table term (equation 7) set by `choice`.
///
/// An existing term keeps its symbol and its known factor; a new one is named `t_pt`. The
/// constants are not checked here: [`validate`] does that.
#[must_use]
pub fn with_page_table(topology: &Topology, choice: PageTableChoice) -> Topology {
    let (start_bytes, reference_bytes) = match choice {
        PageTableChoice::Off => {
            return Topology {
                page_table: None,
                ..topology.clone()
            };
        }
        PageTableChoice::Paper => (PAPER_START_BYTES, PAPER_REFERENCE_BYTES),
        PageTableChoice::At {
            start_bytes,
            reference_bytes,
        } => (start_bytes, reference_bytes),
    };
    let page_table = match &topology.page_table {
        Some(term) => PageTableTerm {
            start_bytes,
            reference_bytes,
            ..term.clone()
        },
        None => PageTableTerm {
            symbol: fresh_symbol(&symbols_in_use(topology), "t_pt"),
            start_bytes,
            reference_bytes,
            factor_ns: None,
        },
    };
    Topology {
        page_table: Some(page_table),
        ..topology.clone()
    }
}

/// A copy of `topology` whose innermost TLB has these entries or pages; `None` keeps the value.
/// A topology without a TLB gets one, named `t_tlb`, when both are given.
///
/// # Errors
/// [`TopologyError::HalfTlb`] when there is no TLB and only one of the two is given, and
/// what [`validate`] finds.
pub fn with_tlb(
    topology: &Topology,
    entries: Option<u64>,
    page_bytes: Option<u64>,
) -> Result<Topology, TopologyError> {
    let mut changed = topology.clone();
    match (changed.tlb.first_mut(), entries, page_bytes) {
        (_, None, None) => return Ok(changed),
        (Some(term), _, _) => {
            term.entries = entries.unwrap_or(term.entries);
            term.page_bytes = page_bytes.unwrap_or(term.page_bytes);
        }
        (None, Some(entries), Some(page_bytes)) => changed.tlb.push(TlbTerm {
            symbol: fresh_symbol(&symbols_in_use(topology), "t_tlb"),
            entries,
            page_bytes,
            miss_ns: None,
        }),
        (None, _, _) => {
            return Err(TopologyError::HalfTlb {
                name: topology.name.clone(),
            });
        }
    }
    validate(&changed)?;
    Ok(changed)
}

/// The numbers of sizes that [`with_sizes`] accepts as text, most specific first.
fn size_counts(topology: &Topology, open: &[usize], open_end: bool) -> String {
    let count = topology.levels.len();
    let names = |indices: &[usize]| listed(indices.iter().map(|&at| &*topology.levels[at].name));
    let mut counts: Vec<(usize, String)> = Vec::new();
    if !open.is_empty() {
        counts.push((open.len(), format!("for {}", names(open))));
    }
    if open_end && open.len() > 1 {
        counts.push((open.len() - 1, "the last of these without end".to_owned()));
    }
    counts.push((count, "for every level".to_owned()));
    if count > 1 {
        counts.push((count - 1, "for every level but the last".to_owned()));
    }
    let mut listed = BTreeSet::new();
    counts.retain(|&(count, _)| listed.insert(count));
    let counts: Vec<String> = counts
        .iter()
        .map(|(count, what)| format!("{count} ({what})"))
        .collect();
    match counts.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}
