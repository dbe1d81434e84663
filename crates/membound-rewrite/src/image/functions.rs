//! Finds where functions begin and end.
//!
//! Sources in order of trust: unwind information (its extents come from the compiler); symbols with a size;
//! then starts without an end (symbols without a size, entry points, sections of stubs), which extend to the
//! next known start; last, text that nothing describes but that a jump, call or pointer leads to. A less
//! trusted source only fills what better ones have left open.

use std::ops::Range;

use super::elf::{Layout, range_holding};
use super::frames::FrameDescription;
use super::padding::leading_padding;
use super::relocations::Relocations;
use super::symbols::{Symbol, SymbolKind};

/// A function's extent in the file's addresses, with its name and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionBounds {
    /// Addresses of the function in the file.
    pub range: Range<u64>,
    /// Name, mangled as in the symbol table, if there is one.
    pub name: Option<Box<str>>,
    /// True if code outside the module may call it, because it has a dynamic symbol.
    pub exported: bool,
    /// True if it is hand-written assembly as far as known (no `STT_FUNC` type, or no unwind information): no
    /// convention is assumed.
    pub assembly: bool,
}

/// Whether to search for functions that neither symbols nor unwind information describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undescribed {
    Found,
    LeftOut,
}

/// Alignment that compilers give to functions, in bytes.
const FUNCTION_ALIGNMENT: u64 = 16;

/// The functions, sorted and disjoint, and the described addresses inside them other than their starts,
/// sorted.
pub(super) struct FoundFunctions {
    pub(super) functions: Vec<FunctionBounds>,
    pub(super) inner: Vec<u64>,
}

/// A range of text that one of the sources calls a function.
#[derive(Clone, Debug)]
struct Candidate {
    start: u64,
    /// `None` if it extends to the next known start.
    end: Option<u64>,
    assembly: bool,
}

pub(super) fn find(
    layout: &Layout<'_>,
    text: &[Range<u64>],
    frames: &[FrameDescription],
    symbols: &[Symbol<'_>],
    relocations: &Relocations<'_>,
    undescribed: Undescribed,
) -> FoundFunctions {
    let mut inner = Vec::new();
    let mut functions = Vec::new();

    let described = frames.iter().map(|frame| Candidate {
        start: frame.range.start,
        end: Some(frame.range.end),
        assembly: false,
    });
    fill(&mut functions, described, text, &mut inner);

    let sized = symbols
        .iter()
        .filter(|symbol| symbol.size > 0)
        .map(|symbol| Candidate {
            start: symbol.address,
            end: symbol.address.checked_add(symbol.size),
            assembly: true,
        });
    fill(&mut functions, sized, text, &mut inner);

    let sections = layout
        .sections
        .iter()
        .filter(|section| section.executable && is_stubs(section.name))
        .map(|section| Candidate {
            start: section.range.start,
            end: Some(section.range.end),
            assembly: true,
        });
    let mut sections: Vec<_> = sections.collect();
    sections.sort_by_key(|candidate| candidate.start);
    fill(&mut functions, sections.into_iter(), text, &mut inner);

    let mut starts: Vec<u64> = symbols
        .iter()
        .filter(|symbol| symbol.size == 0)
        .map(|symbol| symbol.address)
        .chain([layout.entry, layout.dynamic.init, layout.dynamic.fini])
        .chain(relocations.resolvers.iter().copied())
        .filter(|start| *start != 0)
        .collect();
    starts.sort_unstable();
    starts.dedup();
    let open = starts.into_iter().map(|start| Candidate {
        start,
        end: None,
        assembly: true,
    });
    fill(&mut functions, open, text, &mut inner);

    if undescribed == Undescribed::Found {
        fill_gaps(layout, text, relocations, &mut functions);
    }
    name(&mut functions, symbols);
    inner.sort_unstable();
    inner.dedup();
    inner.retain(|address| {
        functions
            .binary_search_by(|function| function.range.start.cmp(address))
            .is_err()
    });
    FoundFunctions { functions, inner }
}

/// True for sections that contain stubs, or fragments that the linker puts together.
fn is_stubs(name: &[u8]) -> bool {
    name == b".init" || name == b".fini" || name.starts_with(b".plt")
}

/// Adds candidates (sorted by start) where `functions` leave room. Starts inside an existing function are
/// added to `inner`.
fn fill(
    functions: &mut Vec<FunctionBounds>,
    candidates: impl Iterator<Item = Candidate>,
    text: &[Range<u64>],
    inner: &mut Vec<u64>,
) {
    let existing = std::mem::take(functions);
    let mut existing = existing.into_iter().peekable();
    let mut candidates = candidates.peekable();
    while let Some(candidate) = candidates.next() {
        while let Some(function) =
            existing.next_if(|function| function.range.start <= candidate.start)
        {
            functions.push(function);
        }
        if let Some(last) = functions.last()
            && candidate.start < last.range.end
        {
            if candidate.start != last.range.start {
                inner.push(candidate.start);
            }
            continue;
        }
        let Some(text) = range_holding(text, candidate.start) else {
            continue;
        };
        let mut end = text.end;
        if let Some(next) = existing.peek() {
            end = end.min(next.range.start);
        }
        match candidate.end {
            Some(own) => end = end.min(own),
            None => {
                if let Some(next) = candidates.peek()
                    && next.start > candidate.start
                {
                    end = end.min(next.start);
                }
            }
        }
        if end > candidate.start {
            functions.push(FunctionBounds {
                range: candidate.start..end,
                name: None,
                exported: false,
                assembly: candidate.assembly,
            });
        }
    }
    functions.extend(existing);
}

/// Makes functions of text between functions, if it is not padding and a jump, call or pointer leads to it. If
/// tables are scattered in that text, only functions with unwind information are left.
fn fill_gaps(
    layout: &Layout<'_>,
    text: &[Range<u64>],
    relocations: &Relocations<'_>,
    functions: &mut Vec<FunctionBounds>,
) {
    let gaps = gaps(layout, text, functions);
    if has_tables(layout, &gaps) {
        // Symbols there end anywhere.
        functions.retain(|function| !function.assembly);
        return;
    }
    if gaps.is_empty() {
        return;
    }
    // An aligned address that data point to begins a function of its own.
    let mut pointed_to: Vec<u64> = relocations
        .pointers
        .iter()
        .map(|&(_, value)| value)
        .filter(|value| value % FUNCTION_ALIGNMENT == 0)
        .collect();
    pointed_to.sort_unstable();
    pointed_to.dedup();
    let mut candidates = Vec::new();
    let reached = reached(layout, text, relocations, &gaps);
    for (gap, _) in gaps.iter().zip(reached).filter(|(_, reached)| *reached) {
        let first = pointed_to.partition_point(|&start| start <= gap.start);
        let last = pointed_to.partition_point(|&start| start < gap.end);
        let starts = [gap.start]
            .into_iter()
            .chain(pointed_to[first..last].iter().copied());
        let ends = pointed_to[first..last].iter().copied().chain([gap.end]);
        candidates.extend(starts.zip(ends).map(|(start, end)| Candidate {
            start,
            end: Some(end),
            assembly: true,
        }));
    }
    fill(functions, candidates.into_iter(), text, &mut Vec::new());
}

/// For each gap, true if a jump, call or pointer leads to it.
fn reached(
    layout: &Layout<'_>,
    text: &[Range<u64>],
    relocations: &Relocations<'_>,
    gaps: &[Range<u64>],
) -> Vec<bool> {
    let mut reached = vec![false; gaps.len()];
    let pieces = Pieces::of(gaps);
    let mut reach = |target: u64| {
        if !pieces.contains(target) {
            return;
        }
        let after = gaps.partition_point(|gap| gap.start <= target);
        if after > 0 && target < gaps[after - 1].end {
            reached[after - 1] = true;
        }
    };
    for &(_, value) in &relocations.pointers {
        reach(value);
    }
    // With fixed addresses, no relocation shows which words are addresses.
    let data = layout.segments.iter().filter(|segment| !segment.executable);
    for segment in data.filter(|_| layout.position_dependent) {
        let bytes = layout.bytes(segment.backed.clone()).unwrap_or_default();
        let skip = usize::try_from(segment.backed.start.wrapping_neg() % 8).unwrap_or(0);
        for word in bytes.get(skip..).unwrap_or_default().chunks_exact(8) {
            reach(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
    }
    for range in text {
        let bytes = layout.bytes(range.clone()).unwrap_or_default();
        jump_targets(range, bytes).for_each(&mut reach);
    }
    reached
}

/// Targets, in the same range, of what may be calls, jumps and long conditional jumps. Bytes that only look like
/// one add at worst a function that never runs.
fn jump_targets(range: &Range<u64>, bytes: &[u8]) -> impl Iterator<Item = u64> {
    memchr::memchr3_iter(0xe8, 0xe9, 0x0f, bytes).filter_map(|index| {
        let displaced_at = match &bytes[index..] {
            [0x0f, 0x80..=0x8f, ..] => index + 2,
            [0x0f, ..] => return None,
            _ => index + 1,
        };
        let displacement = i32::from_le_bytes(*bytes.get(displaced_at..)?.first_chunk()?);
        let next = range.start + displaced_at as u64 + 4;
        let target = next.wrapping_add_signed(i64::from(displacement));
        range.contains(&target).then_some(target)
    })
}

/// True if tables of small numbers are scattered in these ranges, as GHC writes one before each function: then
/// nothing tells code from data. In code hardly any word looks like two small numbers.
fn has_tables(layout: &Layout<'_>, gaps: &[Range<u64>]) -> bool {
    const WORD: u64 = size_of::<u64>() as u64;
    const ONE_IN: usize = 64;
    const MIN_NUMBERS: usize = 32;
    const TWO_SMALL: u64 = 0xffff_ff00_ffff_ff00;
    let (mut words, mut numbers) = (0, 0);
    for gap in gaps {
        let start = gap.start.next_multiple_of(WORD);
        let bytes = layout.bytes(start..gap.end.max(start)).unwrap_or_default();
        for word in bytes.as_chunks().0 {
            words += 1;
            numbers += usize::from(u64::from_le_bytes(*word) & TWO_SMALL == 0);
        }
    }
    numbers >= MIN_NUMBERS && numbers * ONE_IN > words
}

/// A map of the pieces of text that contain part of a gap: most of the millions of jump targets lie in none.
struct Pieces {
    first: u64,
    /// One flag per piece; `None` if the text spans too much memory for a map.
    has_gap: Option<Vec<bool>>,
}

impl Pieces {
    const SHIFT: u32 = 6;
    const MAX_PIECES: u64 = 1 << 26;

    /// Builds the map from sorted gaps.
    fn of(gaps: &[Range<u64>]) -> Self {
        let first = gaps.first().map_or(0, |gap| gap.start >> Self::SHIFT);
        let end = gaps.last().map_or(0, |gap| (gap.end >> Self::SHIFT) + 1);
        if end - first > Self::MAX_PIECES {
            return Self {
                first,
                has_gap: None,
            };
        }
        let piece = |address: u64| usize::try_from((address >> Self::SHIFT) - first).unwrap_or(0);
        let mut has_gap = vec![false; usize::try_from(end - first).unwrap_or(0)];
        for gap in gaps.iter().filter(|gap| !gap.is_empty()) {
            has_gap[piece(gap.start)..=piece(gap.end - 1)].fill(true);
        }
        Self {
            first,
            has_gap: Some(has_gap),
        }
    }

    fn contains(&self, address: u64) -> bool {
        let piece = (address >> Self::SHIFT).wrapping_sub(self.first);
        let piece = usize::try_from(piece).unwrap_or(usize::MAX);
        let has_gap = self.has_gap.as_ref();
        has_gap.is_none_or(|has_gap| has_gap.get(piece).copied().unwrap_or(false))
    }
}

/// Text that belongs to no function, without the padding at its start.
fn gaps(layout: &Layout<'_>, text: &[Range<u64>], functions: &[FunctionBounds]) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut functions = functions.iter().peekable();
    for range in text {
        let mut at = range.start;
        loop {
            let next = functions.next_if(|function| function.range.start < range.end);
            let end = next.map_or(range.end, |function| function.range.start);
            if at < end {
                let bytes = layout.bytes(at..end).unwrap_or_default();
                let start = at + leading_padding(bytes) as u64;
                if start < end {
                    gaps.push(start..end);
                }
            }
            let Some(function) = next else { break };
            at = function.range.end;
        }
    }
    gaps
}

/// Sets the functions' names and other facts from symbols. Symbols are sorted by address, the most
/// informative first.
fn name(functions: &mut [FunctionBounds], symbols: &[Symbol<'_>]) {
    let mut symbols = symbols.iter().peekable();
    for function in functions {
        while symbols
            .next_if(|symbol| symbol.address < function.range.start)
            .is_some()
        {}
        let mut typed = None;
        while let Some(symbol) = symbols.next_if(|symbol| function.range.contains(&symbol.address))
        {
            function.exported |= symbol.exported;
            if symbol.address != function.range.start {
                continue;
            }
            if function.name.is_none() && !symbol.name.is_empty() {
                function.name = Some(String::from_utf8_lossy(symbol.name).into());
            }
            typed = Some(typed.unwrap_or(false) | (symbol.kind == SymbolKind::Function));
        }
        if typed == Some(false) {
            function.assembly = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FunctionBounds` as `start..end`, and the starts inside others.
    #[track_caller]
    fn check(layers: &[&[(u64, Option<u64>)]], functions: &[Range<u64>], inner: &[u64]) {
        let text = std::slice::from_ref(&(0x1000..0x2000));
        let mut found = Vec::new();
        let mut inside = Vec::new();
        for layer in layers {
            let candidates = layer.iter().map(|&(start, end)| Candidate {
                start,
                end,
                assembly: false,
            });
            fill(&mut found, candidates, text, &mut inside);
        }
        let found: Vec<_> = found.into_iter().map(|function| function.range).collect();
        assert_eq!(found, functions);
        assert_eq!(inside, inner);
    }

    #[test]
    fn pieces_hold_all_of_their_gaps() {
        let gaps = [0x1000..0x1001, 0x103f..0x1042, 0x2000..0x2100];
        let pieces = Pieces::of(&gaps);
        let all = gaps.iter().cloned().flatten();
        assert!(all.clone().all(|address| pieces.contains(address)));
        for address in [0, 0xfff, 0x1080, 0x1fff, 0x2100, u64::MAX] {
            assert!(!pieces.contains(address), "{address:x}");
        }
        assert!(!Pieces::of(&[]).contains(0));
        let apart = Pieces::of(&[0x40_0000..0x40_0001, 0x7fff_0000_0000..0x7fff_0000_0001]);
        assert!(apart.contains(0x7fff_0000_0000));
    }

    #[test]
    fn the_less_trusted_fill_what_is_open() {
        check(
            &[
                &[(0x1000, Some(0x1100)), (0x1200, Some(0x1300))],
                // An alias, a label inside a function, one in a gap, one with too large a size.
                &[
                    (0x1000, Some(0x1010)),
                    (0x1080, Some(0x1090)),
                    (0x1100, Some(0x1180)),
                    (0x1190, Some(0x1290)),
                ],
                &[(0x1300, None), (0x1400, None), (0x3000, None)],
            ],
            &[
                0x1000..0x1100,
                0x1100..0x1180,
                0x1190..0x1200,
                0x1200..0x1300,
                0x1300..0x1400,
                0x1400..0x2000,
            ],
            &[0x1080],
        );
    }

    #[test]
    fn overlapping_extents_are_cut() {
        check(
            &[&[
                (0x1000, Some(0x1100)),
                (0x1080, Some(0x1200)),
                (0x1100, Some(0x9000)),
            ]],
            &[0x1000..0x1100, 0x1100..0x2000],
            &[0x1080],
        );
    }
}
