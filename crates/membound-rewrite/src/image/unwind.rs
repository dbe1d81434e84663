//! Builds the compact unwind table of an image from its `.eh_frame`: see [`membound_wire::UnwindRule`].

use std::ops::Range;

use gimli::{
    CfaRule, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, Reader, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection as _, UnwindTableRow, X86_64,
};
use membound_wire::{CallersFrame, UnwindHeader, UnwindKind, UnwindRule};
use rayon::prelude::*;

use super::frames::FrameSection;

/// Number of entries that one worker reads at a time.
const ENTRIES_PER_TASK: usize = 512;
const BREG6: u8 = 0x76;
const DEREF: u8 = 0x06;

/// A frame description entry of the section.
#[derive(Clone, Debug)]
struct Entry {
    range: Range<u64>,
    offset: usize,
    signal: bool,
}

/// The rule that holds from `start` to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    start: u64,
    rule: UnwindRule,
}

type Slice<'data> = EndianSlice<'data, LittleEndian>;

/// The encoded table of a module, with addresses relative to `origin`; empty without unwind information.
pub(super) fn table(section: &FrameSection<'_>, text: &[Range<u64>], origin: u64) -> Vec<u8> {
    let entries = entries(section, text);
    let rows: Vec<Row> = entries
        .par_chunks(ENTRIES_PER_TASK)
        .flat_map_iter(|entries| {
            let mut rows = Vec::new();
            let mut context = UnwindContext::new();
            for entry in entries {
                push_rows(section, entry, &mut context, &mut rows);
            }
            rows
        })
        .collect();
    encode(&joined(rows, origin))
}

/// The entries whose ranges lie in `text`, sorted and disjoint.
fn entries(section: &FrameSection<'_>, text: &[Range<u64>]) -> Vec<Entry> {
    let mut found = Vec::new();
    section.each_entry(|range, offset, signal| {
        // A signal frame's entry begins one byte before the code to which handlers return.
        let start = range.start + u64::from(signal);
        let inside = text
            .iter()
            .any(|text| text.start <= start && range.end <= text.end);
        if inside && start < range.end {
            found.push(Entry {
                range: start..range.end,
                offset,
                signal,
            });
        }
    });
    found.sort_by_key(|entry| (entry.range.start, std::cmp::Reverse(entry.range.end)));
    let mut covered = 0;
    found.retain(|entry| {
        let open = entry.range.start >= covered;
        covered = covered.max(entry.range.end);
        open
    });
    found
}

fn push_rows(
    frame_section: &FrameSection<'_>,
    entry: &Entry,
    context: &mut UnwindContext<usize>,
    rows: &mut Vec<Row>,
) {
    let first = rows.len();
    if entry.signal {
        rows.push(Row {
            start: entry.range.start,
            rule: UnwindRule::SIGNAL,
        });
    } else if of_instructions(frame_section, entry, context, rows).is_none() {
        // If an entry cannot be read completely, none of its rows are trusted.
        rows.truncate(first);
    }
    rows.push(Row {
        start: entry.range.end,
        rule: UnwindRule::STOP,
    });
}

fn of_instructions(
    frame_section: &FrameSection<'_>,
    entry: &Entry,
    context: &mut UnwindContext<usize>,
    rows: &mut Vec<Row>,
) -> Option<()> {
    let section = EhFrame::new(frame_section.bytes, LittleEndian);
    let bases = frame_section.bases();
    let description = section
        .fde_from_offset(&bases, EhFrameOffset(entry.offset), |section, bases, at| {
            section.cie_from_offset(bases, at)
        })
        .ok()?;
    let mut table = description.rows(&section, &bases, context).ok()?;
    while let Some(row) = table.next_row().ok()? {
        let start = row.start_address().max(entry.range.start);
        let end = row.end_address().min(entry.range.end);
        if start >= end {
            continue;
        }
        match plt(row, &section) {
            Some(pushed_at) => push_plt(start..end, pushed_at, rows),
            None => rows.push(Row {
                start,
                rule: rule(row, &section),
            }),
        }
    }
    Some(())
}

fn rule(row: &UnwindTableRow<usize>, section: &EhFrame<Slice<'_>>) -> UnwindRule {
    let is_below_cfa = matches!(row.register(X86_64::RA), Some(RegisterRule::Offset(-8)));
    if !is_below_cfa {
        return UnwindRule::STOP;
    }
    let frame = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => CallersFrame::Same,
        Some(RegisterRule::Offset(offset)) => match u32::try_from(-offset) {
            Ok(below) => CallersFrame::Below(below),
            Err(_) => return UnwindRule::STOP,
        },
        Some(RegisterRule::Expression(place)) if at_frame(&place, section) => CallersFrame::AtFrame,
        _ => return UnwindRule::STOP,
    };
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match *register {
            X86_64::RSP => UnwindRule::new(UnwindKind::Stack, *offset, frame),
            X86_64::RBP => UnwindRule::new(UnwindKind::Frame, *offset, frame),
            _ => UnwindRule::STOP,
        },
        CfaRule::Expression(place) => match kept_at(place, section) {
            Some(offset) => UnwindRule::new(UnwindKind::Kept, offset, frame),
            None => UnwindRule::STOP,
        },
    }
}

fn bytes<'data>(
    expression: &UnwindExpression<usize>,
    section: &EhFrame<Slice<'data>>,
) -> Option<&'data [u8]> {
    expression.get(section).ok().map(|found| found.0.slice())
}

/// True if the expression is the address in rbp.
fn at_frame(expression: &UnwindExpression<usize>, section: &EhFrame<Slice<'_>>) -> bool {
    bytes(expression, section) == Some(&[BREG6, 0])
}

/// The offset from rbp of the word that holds the canonical frame address.
fn kept_at(expression: &UnwindExpression<usize>, section: &EhFrame<Slice<'_>>) -> Option<i64> {
    let mut rest = Slice::new(bytes(expression, section)?, LittleEndian);
    if rest.read_u8().ok()? != BREG6 {
        return None;
    }
    let offset = rest.read_sleb128().ok()?;
    (rest.slice() == [DEREF]).then_some(offset)
}

/// Recognizes how linkers describe a procedure linkage table. In each 16-byte stub, the instructions from the
/// returned offset on run after a push: the expression is `rsp + 8 + ((rip & 15) >= pushed_at) * 8`.
fn plt(row: &UnwindTableRow<usize>, section: &EhFrame<Slice<'_>>) -> Option<u64> {
    const LITERALS: Range<u8> = 0x30..0x40;
    let CfaRule::Expression(expression) = row.cfa() else {
        return None;
    };
    let [
        0x77,
        8,
        0x80,
        0,
        0x3f,
        0x1a,
        literal,
        0x2a,
        0x33,
        0x24,
        0x22,
    ] = bytes(expression, section)?
    else {
        return None;
    };
    LITERALS
        .contains(literal)
        .then(|| u64::from(literal - LITERALS.start))
}

fn push_plt(range: Range<u64>, pushed_at: u64, rows: &mut Vec<Row>) {
    let rule = |offset| UnwindRule::new(UnwindKind::Stack, offset, CallersFrame::Same);
    let mut at = range.start;
    while at < range.end {
        let stub = at & !15;
        let before = at - stub < pushed_at;
        rows.push(Row {
            start: at,
            rule: rule(if before { 8 } else { 16 }),
        });
        at = if before { stub + pushed_at } else { stub + 16 };
    }
}

/// Removes rows that repeat the rule of the row before, and makes addresses relative to `origin`.
fn joined(rows: Vec<Row>, origin: u64) -> Vec<(u32, UnwindRule)> {
    let mut out: Vec<(u32, UnwindRule)> = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(start) = row
            .start
            .checked_sub(origin)
            .and_then(|start| u32::try_from(start).ok())
        else {
            continue;
        };
        match out.last_mut() {
            // An entry that begins where the one before it ends replaces that one's final row.
            Some(last) if last.0 == start => last.1 = row.rule,
            Some(last) if last.1 == row.rule => continue,
            _ => out.push((start, row.rule)),
        }
        if let [.., (_, before), (_, last)] = out[..]
            && before == last
        {
            out.pop();
        }
    }
    out
}

fn encode(rows: &[(u32, UnwindRule)]) -> Vec<u8> {
    if rows.is_empty() {
        return Vec::new();
    }
    let mut out = Vec::with_capacity(size_of::<UnwindHeader>() + rows.len() * 8);
    let count = u32::try_from(rows.len()).expect("a row has an address of 32 bits of its own");
    out.extend(count.to_le_bytes());
    out.extend([0; 4]);
    for (start, _) in rows {
        out.extend(start.to_le_bytes());
    }
    for (_, rule) in rows {
        out.extend(rule.0.to_le_bytes());
    }
    out
}

/// The rule for the instruction at `offset` from the module's first page, found as the agent finds it; for
/// tests.
#[cfg(test)]
fn look_up(table: &[u8], offset: u32) -> UnwindRule {
    let word = |index: usize| {
        let field = table[8 + index * 4..][..4].try_into();
        u32::from_le_bytes(field.expect("four bytes"))
    };
    let count = word_count(table);
    let after = (0..count).filter(|row| word(*row) <= offset).count();
    match after.checked_sub(1) {
        Some(row) => UnwindRule(word(count + row)),
        None => UnwindRule::STOP,
    }
}

#[cfg(test)]
fn word_count(table: &[u8]) -> usize {
    u32::from_le_bytes(table[..4].try_into().expect("four bytes")) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_repeat_are_joined_and_the_last_of_one_place_holds() {
        let rule = |offset| UnwindRule::new(UnwindKind::Stack, offset, CallersFrame::Same);
        let row = |start, rule| Row { start, rule };
        let rows = vec![
            row(0x1000, rule(8)),
            row(0x1001, rule(16)),
            row(0x1010, UnwindRule::STOP),
            row(0x1010, rule(16)),
            row(0x1020, rule(8)),
            row(0x1030, UnwindRule::STOP),
        ];
        let joined = joined(rows, 0x1000);
        let expected = [
            (0, rule(8)),
            (1, rule(16)),
            (0x20, rule(8)),
            (0x30, UnwindRule::STOP),
        ];
        assert_eq!(joined, expected);
        let table = encode(&joined);
        for (offset, expected) in [(0, 8), (1, 16), (0x1f, 16), (0x20, 8), (0x2f, 8)] {
            assert_eq!(look_up(&table, offset), rule(expected), "{offset:x}");
        }
        assert_eq!(look_up(&table, 0x30), UnwindRule::STOP);
    }

    #[test]
    fn a_linkage_table_changes_within_each_entry() {
        let mut rows = Vec::new();
        push_plt(0x1020..0x1048, 11, &mut rows);
        let starts: Vec<(u64, i64)> = rows
            .iter()
            .map(|row| (row.start, row.rule.offset()))
            .collect();
        assert_eq!(
            starts,
            [
                (0x1020, 8),
                (0x102b, 16),
                (0x1030, 8),
                (0x103b, 16),
                (0x1040, 8)
            ]
        );
    }
}
