//! Checks topologies, and derives what needs no measurement.
//!
//! Every topology, read from a file or built by a caller, is accepted or refused here, so that the
//! fit need not check again. Sizes are in bytes.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{LevelKind, SizeMeaning, TlbTerm, Topology, TopologyLevel};

use super::error::{SmallerLevel, TopologyError};
use crate::declared::bytes;

/// Most components, levels and TLB terms of a topology, each: far beyond any machine,
/// and small enough that a file of nonsense is refused at once.
const MAX_PARTS: usize = 256;
/// Longest time in nanoseconds, a thousand seconds: sums of known times stay finite.
const MAX_TIME_NS: f64 = 1e12;

/// The part of a topology that an error is about, from which [`super::parse_topology`] finds the line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ErrorLocation {
    Whole(Part),
    Component(usize, Part),
    Level(usize, Part),
    PathTerm(usize, String),
    Tlb(usize, Part),
    PageTable(Part),
}

/// A key of a part; `All` is the part as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    All,
    Symbol,
    Name,
    Line,
    PerLine,
    Constant,
    Fixed,
    Size,
    Path,
    Steepness,
    Entries,
    Page,
    Miss,
    Start,
    Reference,
    Factor,
    Operation,
}

/// An error with the part of the topology that it is about.
pub(super) type Flaw = (ErrorLocation, TopologyError);

/// Checks a topology; the result holds warnings.
///
/// # Errors
/// The first flaw: a missing, unknown or ambiguous part, a number out of its range, or
/// sizes that do not grow. If sizes are a level's reach, each must exceed the one before. If they
/// are a level's own bytes, a cache must hold at least as much as the level before it, and memory
/// at least as much as the last cache; sections of memory may have any size, and one that is
/// smaller than the section before gives a warning.
pub fn validate(topology: &Topology) -> Result<Vec<String>, TopologyError> {
    check(topology).map_err(|(_, error)| error)
}

/// [`validate`], with the position of the flaw.
pub(super) fn check(topology: &Topology) -> Result<Vec<String>, Flaw> {
    if topology.components.is_empty() {
        return Err((ErrorLocation::Whole(Part::All), TopologyError::NoComponents));
    }
    if topology.levels.is_empty() {
        return Err((ErrorLocation::Whole(Part::All), TopologyError::NoLevels));
    }
    for (what, parts) in [
        ("components", topology.components.len()),
        ("levels", topology.levels.len()),
        ("TLB terms", topology.tlb.len()),
    ] {
        if parts > MAX_PARTS {
            let what = format!("the number of {what}");
            let error = number(&what, parts, "at most 256");
            return Err((ErrorLocation::Whole(Part::All), error));
        }
    }
    name("the topology", &topology.name)
        .map_err(|error| (ErrorLocation::Whole(Part::Name), error))?;
    if topology.bytes_per_operation == 0 {
        return Err((
            ErrorLocation::Whole(Part::Operation),
            number("bytes_per_operation", 0, "at least 1"),
        ));
    }
    check_symbols(topology)?;
    check_components(topology)?;
    check_paths(topology)?;
    check_terms(topology)?;
    let mut warnings = check_sizes(topology)?;
    warnings.extend(idle_parts(topology));
    Ok(warnings)
}

/// Indices of the levels that need a size before a fit: all without one except the outermost,
/// which may have no end.
#[must_use]
pub fn missing_sizes(topology: &Topology) -> Vec<usize> {
    let inner = topology.levels.len().saturating_sub(1);
    (0..inner)
        .filter(|&index| topology.levels[index].size_bytes.is_none())
        .collect()
}

/// Bytes that each level and the levels inside it hold together; `None` for a level without a size
/// and, if sizes are a level's own bytes, for all levels outside it.
pub(super) fn reaches(topology: &Topology) -> Vec<Option<u64>> {
    let mut inside = Some(0_u64);
    topology
        .levels
        .iter()
        .map(|level| match topology.sizes {
            SizeMeaning::Reach => level.size_bytes,
            SizeMeaning::Own => {
                inside = inside
                    .zip(level.size_bytes)
                    .and_then(|(inside, own)| inside.checked_add(own));
                inside
            }
        })
        .collect()
}

/// Symbol of the constant part of a component whose per-line part is `symbol`.
pub(super) fn constant_symbol(symbol: &str) -> String {
    format!("{symbol}0")
}

/// Every symbol that a topology uses for a parameter.
pub(super) fn symbols_in_use(topology: &Topology) -> BTreeSet<String> {
    let components = topology
        .components
        .iter()
        .flat_map(|component| [component.symbol.clone(), constant_symbol(&component.symbol)]);
    let tlb = topology.tlb.iter().map(|term| term.symbol.clone());
    let page_table = topology.page_table.iter().map(|term| term.symbol.clone());
    components.chain(tlb).chain(page_table).collect()
}

/// `wanted`, with underscores appended until neither it nor its constant symbol is taken.
pub(super) fn fresh_symbol(used: &BTreeSet<String>, wanted: &str) -> String {
    let mut symbol = wanted.to_owned();
    while used.contains(&symbol) || used.contains(&constant_symbol(&symbol)) {
        symbol.push('_');
    }
    symbol
}

fn check_symbols(topology: &Topology) -> Result<(), Flaw> {
    let mut claimed: BTreeMap<String, String> = BTreeMap::new();
    for (index, component) in topology.components.iter().enumerate() {
        let what = format!("component {}", index + 1);
        let place = ErrorLocation::Component(index, Part::Symbol);
        claim(&mut claimed, place.clone(), &what, &component.symbol)?;
        let constant = format!("the constant part of component {}", index + 1);
        claim(
            &mut claimed,
            place,
            &constant,
            &constant_symbol(&component.symbol),
        )?;
    }
    for (index, term) in topology.tlb.iter().enumerate() {
        let what = format!("TLB term {}", index + 1);
        claim(
            &mut claimed,
            ErrorLocation::Tlb(index, Part::Symbol),
            &what,
            &term.symbol,
        )?;
    }
    if let Some(term) = &topology.page_table {
        let place = ErrorLocation::PageTable(Part::Symbol);
        claim(&mut claimed, place, "the page-table term", &term.symbol)?;
    }
    Ok(())
}

/// Records that `symbol` belongs to `what`; an error if it is no symbol or already used.
fn claim(
    claimed: &mut BTreeMap<String, String>,
    place: ErrorLocation,
    what: &str,
    symbol: &str,
) -> Result<(), Flaw> {
    if !is_symbol(symbol) {
        return Err((
            place,
            TopologyError::Symbol {
                what: what.to_owned(),
                symbol: one_line(symbol),
            },
        ));
    }
    match claimed.insert(symbol.to_owned(), what.to_owned()) {
        None => Ok(()),
        Some(first) => Err((
            place,
            TopologyError::SymbolTwice {
                symbol: symbol.to_owned(),
                first,
                second: what.to_owned(),
            },
        )),
    }
}

/// True if `text` can be the symbol of a parameter: `[A-Za-z_][A-Za-z0-9_]*`.
pub(super) fn is_symbol(text: &str) -> bool {
    let mut characters = text.chars();
    characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

fn check_components(topology: &Topology) -> Result<(), Flaw> {
    for (index, component) in topology.components.iter().enumerate() {
        let at = |part| ErrorLocation::Component(index, part);
        let symbol = &component.symbol;
        name(&format!("component `{symbol}`"), &component.name)
            .map_err(|error| (at(Part::Name), error))?;
        if component.line_bytes == 0 {
            let what = format!("the line of component `{symbol}`");
            return Err((at(Part::Line), number(&what, 0, "at least 1 byte")));
        }
        for (key, part, value) in [
            ("per_line_ns", Part::PerLine, component.per_line_ns),
            ("constant_ns", Part::Constant, component.constant_ns),
        ] {
            time(&format!("{key} of component `{symbol}`"), value)
                .map_err(|error| (at(part), error))?;
        }
        if component.fixed && component.per_line_ns.or(component.constant_ns).is_none() {
            return Err((
                at(Part::Fixed),
                TopologyError::FixedAtNothing {
                    symbol: symbol.clone(),
                },
            ));
        }
    }
    Ok(())
}

fn check_paths(topology: &Topology) -> Result<(), Flaw> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, level) in topology.levels.iter().enumerate() {
        name(&format!("level {}", index + 1), &level.name)
            .map_err(|error| (ErrorLocation::Level(index, Part::Name), error))?;
        if let Some(first) = numbers.insert(&level.name, index + 1) {
            return Err((
                ErrorLocation::Level(index, Part::Name),
                TopologyError::LevelTwice {
                    name: level.name.clone(),
                    first,
                    second: index + 1,
                },
            ));
        }
        if level.path.is_empty() {
            return Err((
                ErrorLocation::Level(index, Part::Path),
                TopologyError::EmptyPath {
                    level: index + 1,
                    name: level.name.clone(),
                },
            ));
        }
        for (symbol, &times) in &level.path {
            let place = || ErrorLocation::PathTerm(index, symbol.clone());
            let mut components = topology.components.iter();
            if !components.any(|component| component.symbol == *symbol) {
                return Err((
                    place(),
                    TopologyError::UnknownComponent {
                        level: level.name.clone(),
                        symbol: one_line(symbol),
                        known: listed(topology.components.iter().map(|known| &*known.symbol)),
                    },
                ));
            }
            if times == 0 {
                let what = format!(
                    "the count of `{symbol}` in the path of level `{}`",
                    level.name
                );
                return Err((place(), number(&what, 0, "at least 1")));
            }
        }
        if !(level.steepness.is_finite() && level.steepness > 0.0) {
            let what = format!("the steepness of level `{}`", level.name);
            return Err((
                ErrorLocation::Level(index, Part::Steepness),
                number(&what, level.steepness, "a number above 0"),
            ));
        }
    }
    Ok(())
}

fn check_terms(topology: &Topology) -> Result<(), Flaw> {
    for (index, term) in topology.tlb.iter().enumerate() {
        let at = |part| ErrorLocation::Tlb(index, part);
        let symbol = &term.symbol;
        if term.entries == 0 {
            let what = format!("the number of entries of TLB `{symbol}`");
            return Err((at(Part::Entries), number(&what, 0, "at least 1")));
        }
        if term.page_bytes == 0 {
            let what = format!("the page size of TLB `{symbol}`");
            return Err((at(Part::Page), number(&what, 0, "at least 1 byte")));
        }
        if term.entries.checked_mul(term.page_bytes).is_none() {
            let what = format!("the reach of TLB `{symbol}`");
            let value = format!("{} pages of {}", term.entries, bytes(term.page_bytes));
            return Err((at(Part::Page), number(&what, value, "below 2^64 bytes")));
        }
        time(&format!("miss_ns of TLB `{symbol}`"), term.miss_ns)
            .map_err(|error| (at(Part::Miss), error))?;
    }
    let Some(term) = &topology.page_table else {
        return Ok(());
    };
    if term.reference_bytes < 2 {
        return Err((
            ErrorLocation::PageTable(Part::Reference),
            number(
                "the reference of the page-table term",
                term.reference_bytes,
                "at least 2 bytes, since its logarithm divides",
            ),
        ));
    }
    if term.start_bytes < term.reference_bytes {
        return Err((
            ErrorLocation::PageTable(Part::Start),
            number(
                "the start of the page-table term",
                bytes(term.start_bytes),
                "at least its reference, or the term is negative",
            ),
        ));
    }
    time("factor_ns of the page-table term", term.factor_ns)
        .map_err(|error| (ErrorLocation::PageTable(Part::Factor), error))
}

fn check_sizes(topology: &Topology) -> Result<Vec<String>, Flaw> {
    let mut warnings = Vec::new();
    let mut before: Option<(usize, &TopologyLevel, u64)> = None;
    let mut cache: Option<(usize, &TopologyLevel, u64)> = None;
    let mut total = 0_u64;
    for (index, level) in topology.levels.iter().enumerate() {
        let Some(size) = level.size_bytes else {
            continue;
        };
        let place = || ErrorLocation::Level(index, Part::Size);
        if size == 0 {
            let what = format!("the size of level {} `{}`", index + 1, level.name);
            return Err((place(), number(&what, 0, "at least 1 byte")));
        }
        let than = |(at, other, bytes): (usize, &TopologyLevel, u64)| SmallerLevel {
            level: index + 1,
            name: level.name.clone(),
            size_bytes: size,
            before: at + 1,
            before_name: other.name.clone(),
            before_bytes: bytes,
        };
        match topology.sizes {
            SizeMeaning::Reach => {
                if let Some(before) = before.filter(|&(_, _, bytes)| size <= bytes) {
                    return Err((place(), TopologyError::Smaller(than(before))));
                }
            }
            SizeMeaning::Own => {
                let binding = match level.kind {
                    LevelKind::Cache => before,
                    LevelKind::Memory => cache,
                };
                if let Some(before) = binding.filter(|&(_, _, bytes)| size < bytes) {
                    return Err((place(), TopologyError::Smaller(than(before))));
                }
                if let Some(before) = before.filter(|&(_, _, bytes)| size < bytes) {
                    warnings.push(format!(
                        "{}; used unchanged, since a section of memory may have any size",
                        than(before)
                    ));
                }
                total = total.checked_add(size).ok_or_else(|| {
                    (
                        place(),
                        TopologyError::TooLarge {
                            level: index + 1,
                            name: level.name.clone(),
                        },
                    )
                })?;
            }
        }
        before = Some((index, level, size));
        if level.kind == LevelKind::Cache {
            cache = before;
        }
    }
    Ok(warnings)
}

/// Warnings about parts of the description that have no effect.
fn idle_parts(topology: &Topology) -> Vec<String> {
    let idle = topology.components.iter().filter(|component| {
        let mut levels = topology.levels.iter();
        !levels.any(|level| level.path.contains_key(&component.symbol))
    });
    let mut warnings: Vec<String> = idle
        .map(|component| {
            format!(
                "component `{}` lies on no level's path, so it cannot be estimated",
                component.symbol
            )
        })
        .collect();
    for (index, pair) in topology.tlb.windows(2).enumerate() {
        let reach = |term: &TlbTerm| term.entries.saturating_mul(term.page_bytes);
        if reach(&pair[1]) <= reach(&pair[0]) {
            warnings.push(format!(
                "TLB term {} `{}` ({}) reaches no further than term {} `{}` before it ({})",
                index + 2,
                pair[1].symbol,
                bytes(reach(&pair[1])),
                index + 1,
                pair[0].symbol,
                bytes(reach(&pair[0]))
            ));
        }
    }
    warnings
}

fn name(what: &str, name: &str) -> Result<(), TopologyError> {
    if name.trim().is_empty() || name.chars().any(breaks_line) {
        return Err(TopologyError::Name {
            what: what.to_owned(),
            name: one_line(name),
        });
    }
    Ok(())
}

/// True for a character that would break a one-line message.
fn breaks_line(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

/// `text` with all characters escaped that would break a line.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if breaks_line(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

fn time(what: &str, value: Option<f64>) -> Result<(), TopologyError> {
    match value {
        Some(value) if !(0.0..=MAX_TIME_NS).contains(&value) => {
            Err(number(what, value, "from 0 to 1e12 nanoseconds"))
        }
        _ => Ok(()),
    }
}

pub(super) fn number(
    what: &str,
    value: impl std::fmt::Display,
    need: &'static str,
) -> TopologyError {
    TopologyError::Number {
        what: what.to_owned(),
        value: value.to_string(),
        need,
    }
}

/// Names as a list in words: `` `a`, `b` and `c` ``.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}
