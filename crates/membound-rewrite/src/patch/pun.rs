//! Jumps that share their last bytes with the code that follows (punned jumps).
//!
//! If fewer than five bytes may be overwritten, the displacement of the jump ends in bytes that stay as they
//! are. The upper bytes of its target are then fixed: the jump can reach a window of 16 MB, 64 KB or 256
//! bytes, and an **island** in that window holds a jump to the trampoline. Redundant prefixes before the jump
//! shift its displacement over other bytes and so give other windows. (The technique is from Duck, Gao and
//! Roychoudhury, "Binary rewriting without control flow recovery", PLDI 2020.)
//!
//! Edits are processed from the highest address down. The bytes after a jump are then final, whether they are
//! original bytes or another jump.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use membound_wire::fingerprint;

use super::EDIT;
use super::edit::Edit;

/// Bytes of a page.
const PAGE_BYTES: i64 = 4096;
/// A segment prefix, which has no effect on a jump.
const SEGMENT_PREFIX: u8 = 0x2e;
/// Bytes of an island's jump.
const JUMP_BYTES: usize = 5;
/// Most pages of islands of a plan: each page is a mapping of its own.
const MAX_ISLAND_PAGES: usize = 4096;
/// Most pages that are tried in order to find those that serve the most jumps.
const MAX_CANDIDATE_PAGES: usize = 1 << 16;
/// Largest displacement of a punned jump, which leaves room for the jump from the island to the trampoline.
const MAX_DISPLACEMENT_BYTES: i64 = 0x7e00_0000;

/// A punned jump whose island has been chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pun {
    /// Index of the jump's edit.
    pub edit: u32,
    /// Bytes that the edit writes.
    pub new: [u8; 8],
    /// Address of its island, relative to the module's origin.
    pub island: i64,
    /// The edit whose bytes are the last bytes of this jump's displacement, if they are not original bytes.
    pub depends_on: Option<u32>,
}

/// Where islands may lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct IslandRange {
    /// Start and end, relative to the origin, of the range that the module and its trampolines occupy or may
    /// occupy.
    pub occupied: (i64, i64),
    /// Lowest address of an island, relative to the origin.
    pub floor: i64,
}

/// Pages of islands, with the bytes that are used in each.
#[derive(Debug, Default)]
struct Pages {
    by_number: BTreeMap<i64, Page>,
    /// If set, only these pages may be used: the first attempt needed more than a plan may have.
    chosen: Option<BTreeSet<i64>>,
}

#[derive(Debug)]
struct Page {
    used: [u64; 64],
    /// No free place for a jump begins below this offset.
    free_from: usize,
    jumps: u32,
}

impl Page {
    fn is_free(&self, at: usize) -> bool {
        (at..at + JUMP_BYTES).all(|byte| self.used[byte / 64] >> (byte % 64) & 1 == 0)
    }

    fn take(&mut self, window: Range<usize>) -> Option<usize> {
        let first = window.start.max(self.free_from);
        let end = window.end.min(PAGE_BYTES as usize - JUMP_BYTES + 1);
        let at = (first..end).find(|at| self.is_free(*at))?;
        for byte in at..at + JUMP_BYTES {
            self.used[byte / 64] |= 1 << (byte % 64);
        }
        self.jumps += 1;
        if window.start <= self.free_from {
            self.free_from = at + JUMP_BYTES;
        }
        Some(at)
    }
}

/// The numbers of the pages that a window overlaps.
fn pages_of(window: &Range<i64>) -> Range<i64> {
    window.start.div_euclid(PAGE_BYTES)..(window.end - 1).div_euclid(PAGE_BYTES) + 1
}

/// The part of a window that lies in a page, as offsets within the page.
fn part_in(window: &Range<i64>, page: i64) -> Range<usize> {
    let start = (window.start - page * PAGE_BYTES).clamp(0, PAGE_BYTES) as usize;
    let end = (window.end - page * PAGE_BYTES).clamp(0, PAGE_BYTES) as usize;
    start..end
}

impl Pages {
    /// Takes a place for a jump that begins in `window`, in an existing page.
    fn take(&mut self, window: &Range<i64>) -> Option<i64> {
        for (&number, page) in self.by_number.range_mut(pages_of(window)) {
            if page.free_from + JUMP_BYTES > PAGE_BYTES as usize {
                continue;
            }
            if let Some(at) = page.take(part_in(window, number)) {
                return Some(number * PAGE_BYTES + at as i64);
            }
        }
        None
    }

    /// Takes a place for a jump that begins in `window`, in a new page.
    fn open(&mut self, window: &Range<i64>, island_range: &IslandRange) -> Option<i64> {
        if self.by_number.len() >= MAX_CANDIDATE_PAGES {
            return None;
        }
        let within = |page: i64| part_in(window, page);
        // The lowest page that fits: edits at lower addresses, which come next, have lower windows.
        let number = pages_of(window).take(4096).find(|number| {
            let (start, end) = (number * PAGE_BYTES, (number + 1) * PAGE_BYTES);
            start >= island_range.floor
                && (end <= island_range.occupied.0 || start >= island_range.occupied.1)
                && !self.by_number.contains_key(number)
                && self
                    .chosen
                    .as_ref()
                    .is_none_or(|chosen| chosen.contains(number))
                && !within(*number).is_empty()
                && within(*number).start <= PAGE_BYTES as usize - JUMP_BYTES
        })?;
        let mut page = Page {
            used: [0; 64],
            free_from: 0,
            jumps: 0,
        };
        let at = page.take(within(number))?;
        self.by_number.insert(number, page);
        Some(number * PAGE_BYTES + at as i64)
    }
}

impl Pages {
    /// The pages with the most jumps, as many as a plan may have.
    fn fullest(&self) -> BTreeSet<i64> {
        let mut pages: Vec<(u32, i64)> = self
            .by_number
            .iter()
            .map(|(number, page)| (page.jumps, *number))
            .collect();
        pages.sort_unstable_by_key(|(jumps, number)| (Reverse(*jumps), *number));
        pages.truncate(MAX_ISLAND_PAGES);
        pages.into_iter().map(|(_, number)| number).collect()
    }
}

/// Finds islands for those of `edits` (sorted by address) that need one. Returns the punned jumps and the
/// indices of the edits without an island, which must not be made.
///
/// The fingerprint of an edit is extended over all bytes that its jump contains or depends on; `text` returns
/// the original bytes of a range.
pub(super) fn find<'a>(
    edits: &mut [Edit],
    island_range: &IslandRange,
    text: impl Fn(u32, usize) -> Option<&'a [u8]>,
) -> (Vec<Pun>, Vec<u32>) {
    let mut pages = Pages::default();
    let mut grown = edits.to_vec();
    let found = settle(&mut grown, island_range, &text, &mut pages);
    if pages.by_number.len() <= MAX_ISLAND_PAGES {
        edits.copy_from_slice(&grown);
        return found;
    }
    let mut pages = Pages {
        by_number: BTreeMap::new(),
        chosen: Some(pages.fullest()),
    };
    settle(edits, island_range, &text, &mut pages)
}

/// One attempt of [`find`].
fn settle<'a>(
    edits: &mut [Edit],
    island_range: &IslandRange,
    text: &impl Fn(u32, usize) -> Option<&'a [u8]>,
    pages: &mut Pages,
) -> (Vec<Pun>, Vec<u32>) {
    let mut puns: Vec<Pun> = Vec::new();
    let mut without_island = Vec::new();
    // The edits after the present one that are final, nearest last.
    let mut behind: Vec<(u32, [Option<u8>; EDIT], usize)> = Vec::new();
    for index in (0..edits.len()).rev() {
        let edit = edits[index];
        let number = u32::try_from(index).expect("fewer edits than bytes of code");
        let length = usize::from(edit.length);
        if length >= EDIT {
            let bytes = [Some(0xe9), None, None, None, None];
            behind.push((number, bytes, EDIT));
        } else if let Some(pun) = one(&edit, number, edits, &behind, pages, island_range) {
            if let Some(other) = pun.depends_on {
                let other = &edits[other as usize];
                let end = other.text + u32::from(other.group);
                let needed_bytes = usize::from(edit.group).max((end - edit.text) as usize);
                grow(&mut edits[index], needed_bytes, text);
            }
            let end = usize::from(edit.length) + JUMP_BYTES;
            let needed_bytes =
                usize::from(edits[index].group).max(end.min(usize::from(edit.limit)));
            grow(&mut edits[index], needed_bytes, text);
            let mut bytes = [None; EDIT];
            for (byte, new) in bytes.iter_mut().zip(&pun.new[..length]) {
                *byte = Some(*new);
            }
            behind.push((number, bytes, length));
            puns.push(pun);
        } else {
            without_island.push(number);
        }
        if behind.len() > 8 {
            behind.remove(0);
        }
    }
    puns.reverse();
    (puns, without_island)
}

fn grow<'a>(edit: &mut Edit, bytes: usize, text: &impl Fn(u32, usize) -> Option<&'a [u8]>) {
    let Ok(group) = u16::try_from(bytes) else {
        return;
    };
    if let Some(bytes) = text(edit.text, bytes) {
        edit.group = group;
        edit.fingerprint = fingerprint(bytes);
    }
}

/// One encoding of an edit's jump.
struct PunEncoding {
    /// Redundant prefix bytes before the jump.
    prefixes: usize,
    /// Range in which the island may begin.
    window: Range<i64>,
    depends_on: Option<u32>,
}

fn one(
    edit: &Edit,
    number: u32,
    edits: &[Edit],
    behind: &[(u32, [Option<u8>; EDIT], usize)],
    pages: &mut Pages,
    island_range: &IslandRange,
) -> Option<Pun> {
    // Open a new page only if no existing one fits: their number is limited.
    let found = encodings(edit, edits, behind)
        .find_map(|encoding| Some((pages.take(&encoding.window)?, encoding)))
        .or_else(|| {
            encodings(edit, edits, behind)
                .find_map(|encoding| Some((pages.open(&encoding.window, island_range)?, encoding)))
        });
    let (island, encoding) = found?;
    let end = encoding.prefixes + JUMP_BYTES;
    let next = i64::from(edit.text) + end as i64;
    let displacement = i32::try_from(island - next).ok()?.to_le_bytes();
    let mut new = [0; 8];
    new[..encoding.prefixes].fill(SEGMENT_PREFIX);
    new[encoding.prefixes] = 0xe9;
    new[encoding.prefixes + 1..end].copy_from_slice(&displacement);
    Some(Pun {
        edit: number,
        new,
        island,
        depends_on: encoding.depends_on,
    })
}

/// The possible encodings of an edit's jump, that with the widest window first.
fn encodings<'a>(
    edit: &'a Edit,
    edits: &'a [Edit],
    behind: &'a [(u32, [Option<u8>; EDIT], usize)],
) -> impl Iterator<Item = PunEncoding> + 'a {
    let length = usize::from(edit.length);
    let most = usize::from(edit.limit).min(edit.old.len());
    // At least one byte of the displacement must be one that the edit overwrites.
    (0..length.saturating_sub(1))
        .take_while(move |prefixes| prefixes + JUMP_BYTES <= most)
        .filter_map(move |prefixes| encoding(edit, prefixes, edits, behind))
}

fn encoding(
    edit: &Edit,
    prefixes: usize,
    edits: &[Edit],
    behind: &[(u32, [Option<u8>; EDIT], usize)],
) -> Option<PunEncoding> {
    let length = usize::from(edit.length);
    let end = prefixes + JUMP_BYTES;
    let own = length - prefixes - 1;
    let mut depends_on = None;
    let mut high = 0_u32;
    for byte in length..end {
        let address = edit.text + byte as u32;
        let mut value = Some(edit.old[byte]);
        for (other, bytes, count) in behind.iter().rev() {
            let start = edits[*other as usize].text;
            if (start..start + *count as u32).contains(&address) {
                value = bytes[(address - start) as usize];
                // The nearest edit is enough: it depends on those after it itself.
                depends_on = depends_on.or(Some(*other));
            }
        }
        high |= u32::from(value?) << (8 * (byte - prefixes - 1));
    }
    let next = i64::from(edit.text) + end as i64;
    let lowest = i64::from(high.cast_signed());
    let width = 1_i64 << (8 * own);
    let reached = lowest >= -MAX_DISPLACEMENT_BYTES && lowest + width <= MAX_DISPLACEMENT_BYTES;
    reached.then_some(PunEncoding {
        prefixes,
        window: next + lowest..next + lowest + width,
        depends_on,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISLAND_RANGE: IslandRange = IslandRange {
        occupied: (-0x10_0000, 0x20_0000),
        floor: i64::MIN,
    };

    fn edit_at(text: u32, length: u8, code: &[u8]) -> Edit {
        let rest = &code[text as usize..];
        let mut old = [0; 8];
        let available = rest.len().min(8);
        old[..available].copy_from_slice(&rest[..available]);
        Edit {
            text,
            length,
            group: u16::from(length),
            limit: u8::try_from(rest.len()).unwrap_or(u8::MAX),
            old,
            ..Edit::default()
        }
    }

    /// Makes all edits in `code` and follows the punned jumps.
    fn check(code: &[u8], edits: &[(u32, u8)], without_island: &[u32]) {
        let mut edits: Vec<Edit> = edits
            .iter()
            .map(|(text, length)| edit_at(*text, *length, code))
            .collect();
        let (puns, without) = find(&mut edits, &ISLAND_RANGE, |at, length| {
            code.get(at as usize..at as usize + length)
        });
        assert_eq!(without, without_island);
        let mut patched = code.to_vec();
        for (index, edit) in edits.iter().enumerate() {
            if edit.length == 5 {
                patched[edit.text as usize..][..5].copy_from_slice(&[0xe9, 1, 2, 3, 4]);
            } else if let Some(pun) = puns.iter().find(|pun| pun.edit == index as u32) {
                let length = usize::from(edit.length);
                patched[edit.text as usize..][..length].copy_from_slice(&pun.new[..length]);
            }
        }
        let mut islands = Vec::new();
        for pun in &puns {
            let at = edits[pun.edit as usize].text as usize;
            let jump = iced_x86::Decoder::with_ip(
                64,
                &patched[at..],
                at as u64,
                iced_x86::DecoderOptions::NONE,
            )
            .decode();
            assert!(jump.is_jmp_short_or_near(), "{puns:x?} {patched:x?}");
            assert_eq!(jump.near_branch_target().cast_signed(), pun.island);
            assert!(
                pun.island + 5 <= ISLAND_RANGE.occupied.0 || pun.island >= ISLAND_RANGE.occupied.1
            );
            for other in &islands {
                assert!(pun.island.abs_diff(*other) >= 5, "{puns:x?}");
            }
            islands.push(pun.island);
        }
    }

    #[test]
    fn a_punned_jump_leads_to_its_island() {
        // mov rax,[rdi+8] before mov rcx,[rdi]
        check(
            &[0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x0f, 0xc3],
            &[(0, 4)],
            &[],
        );
        check(
            &[0x48, 0x8b, 0x07, 0x48, 0x8b, 0x0f, 0xc3, 0x90],
            &[(0, 3)],
            &[],
        );
    }

    #[test]
    fn jumps_lean_on_settled_jumps() {
        // Both of two neighbours, and one before a jump whose displacement is open.
        check(
            &[
                0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x4f, 0x10, 0x48, 0x01, 0xc8, 0xc3, 0x90,
            ],
            &[(0, 4), (4, 4)],
            &[],
        );
        let code = [
            0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x8f, 0, 1, 0, 0, 0xc3, 0x90,
        ];
        check(&code, &[(0, 4), (4, 5)], &[]);
        let code = [0x48, 0x8b, 0x07, 0x48, 0x8b, 0x8f, 0, 1, 0, 0, 0xc3, 0x90];
        check(&code, &[(0, 3), (3, 5)], &[0]);
    }

    #[test]
    fn a_jump_that_leans_on_another_covers_its_bytes() {
        let code = [
            0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x8f, 0, 1, 0, 0, 0xc3, 0x90,
        ];
        let mut edits = [edit_at(0, 4, &code), edit_at(4, 5, &code)];
        edits[1].group = 7;
        let (puns, _) = find(&mut edits, &ISLAND_RANGE, |at, length| {
            code.get(at as usize..at as usize + length)
        });
        assert_eq!(puns[0].depends_on, Some(1));
        assert_eq!(edits[0].group, 11);
        assert_eq!(edits[0].fingerprint, fingerprint(&code[..11]));
    }

    #[test]
    fn the_pages_that_serve_most_jumps_are_chosen() {
        // More windows of 64 KB than there may be pages, with two jumps each; and, first in search order
        // (last in the text), as many other windows with one jump each.
        let mut code = Vec::new();
        let mut edits = Vec::new();
        let mut place = |window: u16, code: &mut Vec<u8>| {
            edits.push((code.len() as u32, 3_u8));
            code.extend_from_slice(&[0x48, 0x8b, 0x07]);
            code.extend_from_slice(&window.to_le_bytes());
            code.resize(code.len().next_multiple_of(8), 0x90);
        };
        for jump in 0..2 * MAX_ISLAND_PAGES {
            place(0x100 + 2 * (jump / 2) as u16, &mut code);
        }
        for jump in 0..MAX_ISLAND_PAGES {
            place(0x4000 + 2 * jump as u16, &mut code);
        }
        let edits: Vec<Edit> = edits
            .into_iter()
            .map(|(text, length)| edit_at(text, length, &code))
            .collect();
        let (_, without_island) = find(&mut edits.clone(), &ISLAND_RANGE, |_, _| None);
        assert!(
            without_island.len() <= MAX_ISLAND_PAGES,
            "{}",
            without_island.len()
        );
        assert!(
            without_island
                .iter()
                .all(|index| *index as usize >= 2 * MAX_ISLAND_PAGES)
        );
    }

    #[test]
    fn windows_inside_used_ranges_are_skipped() {
        // The following byte is zero: within 16 MB above.
        let island_range = IslandRange {
            occupied: (-0x10_0000, 0x200_0000),
            floor: i64::MIN,
        };
        let code = [0x48, 0x8b, 0x47, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00];
        let mut edits = [edit_at(0, 4, &code)];
        let (puns, without_island) = find(&mut edits, &island_range, |_, _| None);
        assert!(puns.is_empty());
        assert_eq!(without_island, [0]);
    }
}
