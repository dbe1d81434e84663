//! Topologies: what makes one sound, and how sizes and terms are put into it.
//!
//! Fitting is left to others; here a topology is only accepted or refused, so that whoever
//! gets one need not look again. Sizes are in bytes.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{LevelKind, PageTableTerm, SizeMeaning, TlbTerm, Topology, TopologyLevel};

use crate::declared::bytes;

/// The page-table term of the paper (equation 7) begins at 2²⁸ bytes …
const PAPER_START_BYTES: u64 = 1 << 28;
/// … with logarithms related to 2²⁶.
const PAPER_REFERENCE_BYTES: u64 = 1 << 26;

/// What is wrong with a topology, in one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Any of the others, with its place in a file.
    #[error("{file}:{line}:{column}: {what}")]
    InFile {
        /// The file, as the caller named it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there.
        what: Box<TopologyError>,
    },
    /// The text is no TOML, or not of this form.
    #[error("{0}")]
    Syntax(String),
    /// Nothing that could take time.
    #[error("no components: describe each piece of hardware in a [[component]]")]
    NoComponents,
    /// Nothing that data could lie in.
    #[error("no levels: describe each in a [[level]], innermost first")]
    NoLevels,
    /// A name without a visible character, or with one that breaks a line.
    #[error("{what} has the name `{name}`: use a word or two in one line")]
    Name {
        /// Which part of the topology.
        what: String,
        /// The name, control characters escaped.
        name: String,
    },
    /// A symbol that could not be told from other text.
    #[error("{what} has the symbol `{symbol}`: use letters, digits and _, and no digit first")]
    Symbol {
        /// Which part of the topology.
        what: String,
        /// The symbol, control characters escaped.
        symbol: String,
    },
    /// Two things with one symbol.
    #[error("symbol `{symbol}` stands for {first} and for {second}: rename one")]
    SymbolTwice {
        /// The symbol.
        symbol: String,
        /// What has it.
        first: String,
        /// What has it, too.
        second: String,
    },
    /// Two levels with one name.
    #[error("levels {first} and {second} are both named `{name}`: rename one")]
    LevelTwice {
        /// The name.
        name: String,
        /// Number of the first, from 1.
        first: usize,
        /// Number of the second.
        second: usize,
    },
    /// A level that costs nothing.
    #[error("level {level} `{name}` has an empty path: name the components on the way to it")]
    EmptyPath {
        /// Number, from 1.
        level: usize,
        /// Name.
        name: String,
    },
    /// A path over something that is not described.
    #[error("path of level `{level}` names `{symbol}`, which is no component: there are {known}")]
    UnknownComponent {
        /// Name of the level.
        level: String,
        /// The unknown symbol.
        symbol: String,
        /// Symbols that there are.
        known: String,
    },
    /// A path's term that is neither a symbol nor a count and a symbol.
    #[error(
        "`{term}` in the path of level `{level}` is no term: \
         write a symbol, or a count before it as in `2 t_r`"
    )]
    PathTerm {
        /// Name of the level.
        level: String,
        /// The term.
        term: String,
    },
    /// A path with two terms for one component.
    #[error("path of level `{level}` names `{symbol}` twice: write a count, as in `2 {symbol}`")]
    PathTwice {
        /// Name of the level.
        level: String,
        /// The symbol.
        symbol: String,
    },
    /// A level that holds less than the one before it.
    #[error("{0}")]
    Smaller(SmallerLevel),
    /// Sizes whose sum no machine can address.
    #[error("levels 1 to {level} hold 2^64 bytes or more together: check the size of `{name}`")]
    TooLarge {
        /// Number of the level with which they do, from 1.
        level: usize,
        /// Its name.
        name: String,
    },
    /// A number outside its range.
    #[error("{what} is {value}: it has to be {need}")]
    Number {
        /// What it is.
        what: String,
        /// The number.
        value: String,
        /// The range.
        need: &'static str,
    },
    /// Text where a size should stand.
    #[error("`{text}` is no size: use bytes, or K, M, G, as in 16K or 1.5M")]
    Size {
        /// The text, control characters escaped.
        text: String,
    },
    /// A component to be held at a value that is not given.
    #[error(
        "component `{symbol}` is fixed but has no value: give per_line_ns, constant_ns or both"
    )]
    FixedAtNothing {
        /// Its symbol.
        symbol: String,
    },
    /// Sizes given, and not as many as there are places for them.
    #[error("{given} given, but topology `{name}` takes {counts}")]
    SizeCount {
        /// How many.
        given: String,
        /// Name of the topology.
        name: String,
        /// Counts that are possible, and which levels they are for.
        counts: String,
    },
    /// Half a TLB given to a topology without one.
    #[error("topology `{name}` has no TLB term: give its entries and its page size, not only one")]
    HalfTlb {
        /// Name of the topology.
        name: String,
    },
}

/// A level that holds less than one before it, or with [`SizeMeaning::Reach`] does not
/// reach further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallerLevel {
    /// Number of the level, from 1.
    pub level: usize,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Number of the level before.
    pub before: usize,
    /// Its name.
    pub before_name: String,
    /// Its size.
    pub before_bytes: u64,
}

impl std::fmt::Display for SmallerLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut size, mut before) = (bytes(self.size_bytes), bytes(self.before_bytes));
        if size == before && self.size_bytes != self.before_bytes {
            size = format!("{} bytes", self.size_bytes);
            before = format!("{} bytes", self.before_bytes);
        }
        let relation = if self.size_bytes < self.before_bytes {
            "is smaller than"
        } else {
            "reaches no further than"
        };
        write!(
            f,
            "level {} `{}` ({size}) {relation} level {} `{}` before it ({before})",
            self.level, self.name, self.before, self.before_name
        )
    }
}

/// Which part of a topology an error is about, so that a file's reader can point there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Whole,
    Component(usize, Part),
    Level(usize, Part),
    PathTerm(usize, String),
    Tlb(usize, Part),
    PageTable(Part),
}

/// A key of a part.
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

/// An error with its place.
pub(super) type Flaw = (Place, TopologyError);

/// Whether a topology is sound; the answer holds warnings.
///
/// # Errors
/// The first flaw: a missing, unknown or ambiguous part, a number out of its range, or
/// sizes that do not grow. Which sizes have to grow depends on what they count. When they
/// are a level's reach, every one exceeds the one before. When they are a level's own bytes,
/// a cache holds at least as much as the level before it, and memory at least as much as
/// the last cache; sections of memory may have any size, and a smaller one is a warning.
pub fn validate(topology: &Topology) -> Result<Vec<String>, TopologyError> {
    check(topology).map_err(|(_, error)| error)
}

/// [`validate`], with the place of the flaw.
pub(super) fn check(topology: &Topology) -> Result<Vec<String>, Flaw> {
    if topology.components.is_empty() {
        return Err((Place::Whole, TopologyError::NoComponents));
    }
    if topology.levels.is_empty() {
        return Err((Place::Whole, TopologyError::NoLevels));
    }
    name("the topology", &topology.name).map_err(|error| (Place::Whole, error))?;
    if topology.bytes_per_operation == 0 {
        return Err((Place::Whole, number("bytes_per_operation", 0, "at least 1")));
    }
    check_symbols(topology)?;
    check_components(topology)?;
    check_paths(topology)?;
    check_terms(topology)?;
    let mut warnings = check_sizes(topology)?;
    warnings.extend(idle_parts(topology));
    Ok(warnings)
}

/// Levels that need a size before a fit, as indices: all without one but the outermost,
/// which may be without end.
#[must_use]
pub fn missing_sizes(topology: &Topology) -> Vec<usize> {
    let inner = topology.levels.len().saturating_sub(1);
    (0..inner)
        .filter(|&index| topology.levels[index].size_bytes.is_none())
        .collect()
}

/// Bytes that each level and those inside it hold together; `None` from the first level on
/// whose size is not known, and for one without end.
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

/// A topology with `sizes` put in, in bytes, and the warnings of [`validate`].
///
/// There may be as many as levels without a size, or one fewer when the outermost is among
/// them and stays without end; or as many as levels, or one fewer, which replaces what the
/// topology says.
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
    let warnings = validate(&sized)?;
    Ok((sized, warnings))
}

/// How [`with_page_table`] sets the page-table term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageTableChoice {
    /// None.
    Off,
    /// As the paper has it: from 2²⁸ bytes with reference 2²⁶, hence with a jump.
    Paper,
    /// With constants of one's own. When the two are equal the term begins without a jump.
    At {
        /// Area from which it counts.
        start_bytes: u64,
        /// Reference of the logarithms.
        reference_bytes: u64,
    },
}

/// A topology with its page-table term (equation 7) set by `choice`. A term that is there
/// keeps its symbol and its known factor; a new one is `t_pt`. Constants that make no sense
/// are found by [`validate`].
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
            symbol: fresh_symbol(&taken_symbols(topology), "t_pt"),
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

/// A topology whose innermost TLB has other entries or pages; what is `None` stays. A
/// topology without a TLB gets one, `t_tlb`, when both are given.
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
            symbol: fresh_symbol(&taken_symbols(topology), "t_tlb"),
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

/// Symbol of the constant part of a component whose per-line part is `symbol`.
pub(super) fn constant_symbol(symbol: &str) -> String {
    format!("{symbol}0")
}

/// Every symbol that a topology gives to a parameter.
pub(super) fn taken_symbols(topology: &Topology) -> BTreeSet<String> {
    let components = topology
        .components
        .iter()
        .flat_map(|component| [component.symbol.clone(), constant_symbol(&component.symbol)]);
    let tlb = topology.tlb.iter().map(|term| term.symbol.clone());
    let page_table = topology.page_table.iter().map(|term| term.symbol.clone());
    components.chain(tlb).chain(page_table).collect()
}

/// `wanted`, or with underscores behind it what neither is taken nor has a taken constant.
pub(super) fn fresh_symbol(taken: &BTreeSet<String>, wanted: &str) -> String {
    let mut symbol = wanted.to_owned();
    while taken.contains(&symbol) || taken.contains(&constant_symbol(&symbol)) {
        symbol.push('_');
    }
    symbol
}

fn check_symbols(topology: &Topology) -> Result<(), Flaw> {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for (index, component) in topology.components.iter().enumerate() {
        let what = format!("component {}", index + 1);
        let place = Place::Component(index, Part::Symbol);
        claim(&mut seen, place.clone(), &what, &component.symbol)?;
        let constant = format!("the constant part of component {}", index + 1);
        claim(
            &mut seen,
            place,
            &constant,
            &constant_symbol(&component.symbol),
        )?;
    }
    for (index, term) in topology.tlb.iter().enumerate() {
        let what = format!("TLB term {}", index + 1);
        claim(
            &mut seen,
            Place::Tlb(index, Part::Symbol),
            &what,
            &term.symbol,
        )?;
    }
    if let Some(term) = &topology.page_table {
        let place = Place::PageTable(Part::Symbol);
        claim(&mut seen, place, "the page-table term", &term.symbol)?;
    }
    Ok(())
}

/// Gives `symbol` to `what`, once.
fn claim(
    seen: &mut BTreeMap<String, String>,
    place: Place,
    what: &str,
    symbol: &str,
) -> Result<(), Flaw> {
    if !is_symbol(symbol) {
        return Err((
            place,
            TopologyError::Symbol {
                what: what.to_owned(),
                symbol: symbol.escape_debug().to_string(),
            },
        ));
    }
    match seen.insert(symbol.to_owned(), what.to_owned()) {
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

/// Whether `text` can be the symbol of a parameter: `[A-Za-z_][A-Za-z0-9_]*`.
pub(super) fn is_symbol(text: &str) -> bool {
    let mut characters = text.chars();
    characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

fn check_components(topology: &Topology) -> Result<(), Flaw> {
    for (index, component) in topology.components.iter().enumerate() {
        let at = |part| Place::Component(index, part);
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
            .map_err(|error| (Place::Level(index, Part::Name), error))?;
        if let Some(first) = numbers.insert(&level.name, index + 1) {
            return Err((
                Place::Level(index, Part::Name),
                TopologyError::LevelTwice {
                    name: level.name.clone(),
                    first,
                    second: index + 1,
                },
            ));
        }
        if level.path.is_empty() {
            return Err((
                Place::Level(index, Part::Path),
                TopologyError::EmptyPath {
                    level: index + 1,
                    name: level.name.clone(),
                },
            ));
        }
        for (symbol, &times) in &level.path {
            let place = || Place::PathTerm(index, symbol.clone());
            let mut components = topology.components.iter();
            if !components.any(|component| component.symbol == *symbol) {
                return Err((
                    place(),
                    TopologyError::UnknownComponent {
                        level: level.name.clone(),
                        symbol: symbol.escape_debug().to_string(),
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
                Place::Level(index, Part::Steepness),
                number(&what, level.steepness, "a number above 0"),
            ));
        }
    }
    Ok(())
}

fn check_terms(topology: &Topology) -> Result<(), Flaw> {
    for (index, term) in topology.tlb.iter().enumerate() {
        let at = |part| Place::Tlb(index, part);
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
            Place::PageTable(Part::Reference),
            number(
                "the reference of the page-table term",
                term.reference_bytes,
                "at least 2 bytes, since its logarithm divides",
            ),
        ));
    }
    if term.start_bytes < term.reference_bytes {
        return Err((
            Place::PageTable(Part::Start),
            number(
                "the start of the page-table term",
                bytes(term.start_bytes),
                "at least its reference, or the term is negative",
            ),
        ));
    }
    time("factor_ns of the page-table term", term.factor_ns)
        .map_err(|error| (Place::PageTable(Part::Factor), error))
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
        let place = || Place::Level(index, Part::Size);
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
                        "{}; taken as it stands, since a section of memory may have any size",
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

/// Warnings about what is described and has no effect.
fn idle_parts(topology: &Topology) -> Vec<String> {
    let idle = topology.components.iter().filter(|component| {
        let mut levels = topology.levels.iter();
        !levels.any(|level| level.path.contains_key(&component.symbol))
    });
    let mut warnings: Vec<String> = idle
        .map(|component| {
            format!(
                "component `{}` lies on no level's path, so nothing can be said of it",
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
            name: name.escape_debug().to_string(),
        });
    }
    Ok(())
}

/// Whether a character would break the one line that a message is.
pub(super) fn breaks_line(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

fn time(what: &str, value: Option<f64>) -> Result<(), TopologyError> {
    match value {
        Some(value) if !(value.is_finite() && value >= 0.0) => {
            Err(number(what, value, "a number of nanoseconds from 0 on"))
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

/// `` `a`, `b` and `c` ``.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

/// The numbers of sizes that [`with_sizes`] takes, most specific first.
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
    let mut seen = BTreeSet::new();
    counts.retain(|&(count, _)| seen.insert(count));
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
