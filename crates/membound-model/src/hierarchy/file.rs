//! Reads topologies written in TOML; an error is one line with the position of the flaw.
//!
//! `docs/formats/topology.md` describes the format. The caller reads the file and passes its name
//! and its text.

use std::collections::BTreeMap;
use std::ops::Range;

use membound_types::{
    Component, LevelKind, PageTableTerm, SizeMeaning, TlbTerm, Topology, TopologyLevel,
};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::error::TopologyError;
use super::topology::{ErrorLocation, Flaw, Part, check, is_symbol, number, one_line};
use crate::declared::bytes;

/// Names of the topologies included in the program.
pub const BUNDLED: [&str; 2] = ["origin2000", "generic"];

/// Default of `bytes_per_operation`: a double, as in the paper's Table 2.
const DOUBLE_BYTES: u32 = 8;

/// The included topology called `name`; `None` if `name` is not in [`BUNDLED`].
///
/// `origin2000` is document 002's machine with its Table 1; `generic` is a machine with
/// three caches, memory and another node's memory, without any size.
#[must_use]
pub fn bundled(name: &str) -> Option<Topology> {
    let text = match name {
        "origin2000" => include_str!("../../topologies/origin2000.toml"),
        "generic" => include_str!("../../topologies/generic.toml"),
        _ => return None,
    };
    parse_topology(name, text).ok()
}

/// Parses a topology from TOML and checks it.
///
/// `file_name` appears in error messages, and its stem is the name of a topology without `name`.
/// The warnings of [`super::validate`] are not returned: call it to get them.
///
/// # Errors
/// [`TopologyError::InFile`] with line and column of the first flaw: text that is not TOML
/// or has unknown keys, and the errors of [`super::validate`].
pub fn parse_topology(file_name: &str, text: &str) -> Result<Topology, TopologyError> {
    let in_file = |start: usize, what: TopologyError| {
        let (line, column) = position(text, start);
        TopologyError::InFile {
            file: one_line(file_name),
            line,
            column,
            what: Box::new(what),
        }
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        in_file(start, TopologyError::Syntax(one_line(error.message())))
    })?;
    let mut spans = Spans::default();
    let checked = file
        .into_topology(stem(file_name), &mut spans)
        .and_then(|topology| check(&topology).map(|_| topology));
    checked.map_err(|(place, error)| in_file(spans.start(&place), error))
}

/// Byte ranges of a topology's parts in the text.
#[derive(Default)]
struct Spans(BTreeMap<ErrorLocation, Range<usize>>);

impl Spans {
    /// Unwraps a value and records its span under `place`.
    fn take<T>(&mut self, place: ErrorLocation, spanned: Spanned<T>) -> T {
        self.0.insert(place, spanned.span());
        spanned.into_inner()
    }

    /// [`Self::take`] for an optional key.
    fn maybe<T>(&mut self, place: ErrorLocation, spanned: Option<Spanned<T>>) -> Option<T> {
        spanned.map(|spanned| self.take(place, spanned))
    }

    /// Byte offset of `place`; of the part that contains it when `place` is not in the text, else 0.
    fn start(&self, place: &ErrorLocation) -> usize {
        let around = match place {
            ErrorLocation::Whole(_) => ErrorLocation::Whole(Part::All),
            ErrorLocation::Component(index, _) => ErrorLocation::Component(*index, Part::All),
            ErrorLocation::Level(index, _) => ErrorLocation::Level(*index, Part::All),
            ErrorLocation::PathTerm(index, _) => ErrorLocation::Level(*index, Part::Path),
            ErrorLocation::Tlb(index, _) => ErrorLocation::Tlb(*index, Part::All),
            ErrorLocation::PageTable(_) => ErrorLocation::PageTable(Part::All),
        };
        let span = self.0.get(place).or_else(|| self.0.get(&around));
        span.map_or(0, |span| span.start)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<Spanned<String>>,
    description: Option<String>,
    #[serde(default)]
    sizes: SizeMeaning,
    bytes_per_operation: Option<Spanned<Size>>,
    #[serde(default)]
    component: Vec<Spanned<ComponentTable>>,
    #[serde(default)]
    level: Vec<Spanned<LevelTable>>,
    #[serde(default)]
    tlb: Vec<Spanned<TlbTable>>,
    page_table: Option<Spanned<PageTableTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ComponentTable {
    symbol: Spanned<String>,
    name: Spanned<String>,
    line: Spanned<Size>,
    #[serde(default)]
    application: bool,
    per_line_ns: Option<Spanned<f64>>,
    constant_ns: Option<Spanned<f64>>,
    fixed: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelTable {
    name: Spanned<String>,
    kind: LevelKind,
    size: Option<Spanned<Size>>,
    path: Spanned<Vec<Spanned<String>>>,
    steepness: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TlbTable {
    symbol: Spanned<String>,
    entries: Spanned<u64>,
    page: Spanned<Size>,
    miss_ns: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageTableTable {
    symbol: Spanned<String>,
    start: Spanned<Size>,
    reference: Spanned<Size>,
    factor_ns: Option<Spanned<f64>>,
}

impl File {
    fn into_topology(self, default_name: &str, spans: &mut Spans) -> Result<Topology, Flaw> {
        let whole = ErrorLocation::Whole;
        let operation = spans.maybe(whole(Part::Operation), self.bytes_per_operation);
        let bytes_per_operation = operation.map_or(Ok(DOUBLE_BYTES), |size| {
            small(size, "bytes_per_operation").map_err(|error| (whole(Part::Operation), error))
        })?;
        let name = spans.maybe(whole(Part::Name), self.name);
        let mut components = Vec::new();
        for (index, table) in self.component.into_iter().enumerate() {
            let place = ErrorLocation::Component(index, Part::All);
            components.push(spans.take(place, table).into_component(index, spans)?);
        }
        let mut levels = Vec::new();
        for (index, table) in self.level.into_iter().enumerate() {
            let place = ErrorLocation::Level(index, Part::All);
            levels.push(spans.take(place, table).into_level(index, spans)?);
        }
        let mut tlb = Vec::new();
        for (index, table) in self.tlb.into_iter().enumerate() {
            let place = ErrorLocation::Tlb(index, Part::All);
            tlb.push(spans.take(place, table).into_term(index, spans));
        }
        let page_table = spans.maybe(ErrorLocation::PageTable(Part::All), self.page_table);
        Ok(Topology {
            name: name.unwrap_or_else(|| default_name.to_owned()),
            description: self.description,
            sizes: self.sizes,
            components,
            levels,
            tlb,
            page_table: page_table.map(|table| table.into_term(spans)),
            bytes_per_operation,
        })
    }
}

impl ComponentTable {
    fn into_component(self, index: usize, spans: &mut Spans) -> Result<Component, Flaw> {
        let at = |part| ErrorLocation::Component(index, part);
        let symbol = spans.take(at(Part::Symbol), self.symbol);
        let line = spans.take(at(Part::Line), self.line);
        let line_bytes = small(line, &format!("the line of component {}", index + 1))
            .map_err(|error| (at(Part::Line), error))?;
        Ok(Component {
            symbol,
            name: spans.take(at(Part::Name), self.name),
            line_bytes,
            application: self.application,
            per_line_ns: spans.maybe(at(Part::PerLine), self.per_line_ns),
            constant_ns: spans.maybe(at(Part::Constant), self.constant_ns),
            fixed: spans.maybe(at(Part::Fixed), self.fixed).unwrap_or(false),
        })
    }
}

impl LevelTable {
    fn into_level(self, index: usize, spans: &mut Spans) -> Result<TopologyLevel, Flaw> {
        let at = |part| ErrorLocation::Level(index, part);
        let name = spans.take(at(Part::Name), self.name);
        let mut path = BTreeMap::new();
        for term in spans.take(at(Part::Path), self.path) {
            let start = term.span();
            let (symbol, times) = path_term(term.get_ref()).ok_or_else(|| {
                let error = TopologyError::PathTerm {
                    level: one_line(&name),
                    term: one_line(term.get_ref()),
                };
                let place = ErrorLocation::PathTerm(index, term.get_ref().clone());
                spans.0.insert(place.clone(), start.clone());
                (place, error)
            })?;
            let place = ErrorLocation::PathTerm(index, symbol.to_owned());
            spans.0.insert(place.clone(), start);
            if path.insert(symbol.to_owned(), times).is_some() {
                let error = TopologyError::PathTwice {
                    level: one_line(&name),
                    symbol: symbol.to_owned(),
                };
                return Err((place, error));
            }
        }
        Ok(TopologyLevel {
            name,
            kind: self.kind,
            size_bytes: spans.maybe(at(Part::Size), self.size).map(|size| size.0),
            path,
            steepness: spans
                .maybe(at(Part::Steepness), self.steepness)
                .unwrap_or(1.0),
        })
    }
}

impl TlbTable {
    fn into_term(self, index: usize, spans: &mut Spans) -> TlbTerm {
        let at = |part| ErrorLocation::Tlb(index, part);
        TlbTerm {
            symbol: spans.take(at(Part::Symbol), self.symbol),
            entries: spans.take(at(Part::Entries), self.entries),
            page_bytes: spans.take(at(Part::Page), self.page).0,
            miss_ns: spans.maybe(at(Part::Miss), self.miss_ns),
        }
    }
}

impl PageTableTable {
    fn into_term(self, spans: &mut Spans) -> PageTableTerm {
        let at = ErrorLocation::PageTable;
        PageTableTerm {
            symbol: spans.take(at(Part::Symbol), self.symbol),
            start_bytes: spans.take(at(Part::Start), self.start).0,
            reference_bytes: spans.take(at(Part::Reference), self.reference).0,
            factor_ns: spans.maybe(at(Part::Factor), self.factor_ns),
        }
    }
}

/// Symbol and count of a path term such as `t_r` or `2 t_r`; `None` for any other text.
fn path_term(term: &str) -> Option<(&str, u32)> {
    let mut words = term.split_whitespace();
    let (first, second) = (words.next()?, words.next());
    if words.next().is_some() {
        return None;
    }
    let (symbol, times) = match second {
        None => (first, 1),
        Some(symbol) => (symbol, first.parse().ok()?),
    };
    is_symbol(symbol).then_some((symbol, times))
}

/// A size in bytes: an integer, or text as in `32K`, `1.5M` or `128`.
#[derive(Clone, Copy)]
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a size: whole bytes, or with K, M, G, T as in \"16K\"")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Size, E> {
        let bytes = u64::try_from(value);
        bytes
            .map(Size)
            .map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Size, E> {
        Ok(Size(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        let bytes = size_of(text);
        bytes
            .map(Size)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Bytes of `128`, `32K`, `1.5MiB`, …, with powers of 1024; `None` for any other text.
fn size_of(text: &str) -> Option<u64> {
    let upper = text.trim().to_ascii_uppercase();
    let plain = upper
        .strip_suffix("IB")
        .or_else(|| upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (number, shift) = match plain.char_indices().last()? {
        (at, 'K') => (&plain[..at], 10_u32),
        (at, 'M') => (&plain[..at], 20),
        (at, 'G') => (&plain[..at], 30),
        (at, 'T') => (&plain[..at], 40),
        _ => (plain, 0),
    };
    let number = number.trim_end();
    if !number.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * f64::from(shift).exp2();
    (bytes.fract() == 0.0 && bytes < 63_f64.exp2()).then_some(bytes as u64)
}

/// A size as 32 bits; an error about `what` from 4 GiB.
fn small(size: Size, what: &str) -> Result<u32, TopologyError> {
    u32::try_from(size.0).map_err(|_| number(what, bytes(size.0), "below 4 GiB"))
}

/// Line and column, both from 1 and in characters, of a byte offset.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let column = 1 + String::from_utf8_lossy(&before[line_start..])
        .chars()
        .count();
    (line, column)
}

/// A file's name without folders and `.toml`.
fn stem(file_name: &str) -> &str {
    let last = file_name.rsplit(['/', '\\']).next().unwrap_or(file_name);
    last.strip_suffix(".toml").unwrap_or(last)
}
