//! Searches text for references to addresses inside functions, without decoding it.
//!
//! A direct jump or call, and an instruction that computes an address, hold the distance to their target in
//! the last four bytes. Four bytes that equal a distance by chance only cause a function to be examined in
//! vain, so every byte of text may begin such a distance.

use std::ops::Range;

use rayon::prelude::*;

use crate::between;
use crate::image::Image;

/// Bytes of text that one worker searches at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Places that are compared at once.
const BLOCK_BYTES: usize = 64;
/// Bytes of a distance, and of an absolute address in position-dependent code.
const FIELD_BYTES: usize = 4;
/// Bytes before a field that tell what it may be.
const MAX_BYTES_BEFORE: usize = 7;
/// How far a short jump reaches from its end, and the bytes that it may have.
const SHORT_JUMP_BYTES: u64 = 128 + 16;

/// Where text refers to the insides of functions: other functions' text, or text of no function.
#[derive(Debug)]
pub(super) struct References {
    /// What is referred to, and the address of the reference; sorted.
    found: Vec<(u64, u64)>,
}

/// The references to some functions.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Indices of functions that may refer to them, in no order, some more than once.
    pub(super) from: Vec<usize>,
    /// Addresses in them that text outside of all functions may refer to.
    pub(super) elsewhere: Vec<u64>,
}

impl References {
    /// Searches all text of `image`.
    pub(super) fn of(image: &Image<'_>) -> Self {
        let text = image.text();
        let hull = match (text.first(), text.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        };
        let search = Search {
            hull,
            is_absolute: image.position_dependent(),
            counts: |target, at| is_inside_another(image, target, at),
        };
        let chunks: Vec<(u64, &[u8])> = text
            .iter()
            .filter_map(|range| Some((range.start, image.bytes(range.clone())?)))
            .flat_map(|(start, bytes)| search_chunks(start, bytes))
            .collect();
        let mut found: Vec<(u64, u64)> = chunks
            .into_par_iter()
            .flat_map_iter(|(start, bytes)| {
                between::pass();
                search.chunk(start, bytes)
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        Self { found }
    }

    /// Those to the functions with these indices.
    pub(super) fn to(&self, image: &Image<'_>, selected: &[usize]) -> Found {
        let mut to = Found::default();
        for index in selected {
            let range = &image.functions()[*index].range;
            let first = self
                .found
                .partition_point(|(target, _)| *target <= range.start);
            let after = self.found[first..].iter();
            for (target, at) in after.take_while(|(target, _)| *target < range.end) {
                match image.function_at(*at) {
                    Some(from) => to.from.push(from),
                    None => to.elsewhere.push(*target),
                }
            }
            to.from.extend(near(image, *index));
        }
        to
    }
}

/// Pieces of text with their addresses; each also has the bytes around it that a reference may need.
fn search_chunks(start: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (0..bytes.len()).step_by(CHUNK_BYTES).map(move |at| {
        let first = at.saturating_sub(MAX_BYTES_BEFORE);
        let end = (at + CHUNK_BYTES + FIELD_BYTES).min(bytes.len());
        (start + first as u64, &bytes[first..end])
    })
}

/// Indices of the functions from which a short jump reaches into the function with this index.
fn near(image: &Image<'_>, index: usize) -> Vec<usize> {
    let functions = image.functions();
    let range = &functions[index].range;
    let reach = range.start.saturating_sub(SHORT_JUMP_BYTES)..range.end + SHORT_JUMP_BYTES;
    let below = functions[..index].iter().rev();
    let below = below.take_while(|it| it.range.end > reach.start).count();
    let above = functions[index + 1..].iter();
    let above = above.take_while(|it| it.range.start < reach.end).count();
    (index - below..=index + above).collect()
}

struct Search<F> {
    /// Addresses from the first text to the last.
    hull: Range<u64>,
    /// True if code may hold whole addresses.
    is_absolute: bool,
    /// Whether a target counts, if this address refers to it.
    counts: F,
}

impl<F: Fn(u64, u64) -> bool> Search<F> {
    /// References in the text at `start`: what they refer to, and where they are.
    fn chunk(&self, start: u64, bytes: &[u8]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let places = (bytes.len() + 1).saturating_sub(FIELD_BYTES);
        let mut at = MAX_BYTES_BEFORE;
        for early in 0..at.min(places) {
            self.field(start, bytes, early, &mut found);
        }
        while at + BLOCK_BYTES <= places {
            for (word, plausible) in self.plausible(bytes, at).chunks_exact(8).enumerate() {
                let mut plausible = plausible.try_into().map_or(0, u64::from_le_bytes);
                while plausible != 0 {
                    let byte = plausible.trailing_zeros() as usize / 8;
                    self.field(start, bytes, at + 8 * word + byte, &mut found);
                    plausible &= plausible - 1;
                }
            }
            at += BLOCK_BYTES;
        }
        for late in at..places {
            self.field(start, bytes, late, &mut found);
        }
        found
    }

    /// Which of the fields at the [`BLOCK_BYTES`] places from `at` on may be references: 1 or 0 for each. Written
    /// for the compiler to compare many bytes at once, since this is done for all text.
    fn plausible(&self, bytes: &[u8], at: usize) -> [u8; BLOCK_BYTES] {
        let mut plausible = [0; BLOCK_BYTES];
        let [before, last, highest] =
            [at - 2, at - 1, at + FIELD_BYTES - 1].map(|first| &bytes[first..first + BLOCK_BYTES]);
        for (index, is_plausible) in plausible.iter_mut().enumerate() {
            *is_plausible = u8::from(ends_like_a_reference(before[index], last[index]));
        }
        if self.is_absolute {
            let mut precedes = [0; BLOCK_BYTES];
            for distance in 1..=MAX_BYTES_BEFORE {
                let bytes = &bytes[at - distance..][..BLOCK_BYTES];
                for (precedes, byte) in precedes.iter_mut().zip(bytes) {
                    *precedes |= u8::from((*byte == 0xc7) | (*byte == 0x81));
                }
            }
            let [low, high] = [self.hull.start, self.hull.end].map(|it| (it >> 24) as u8);
            for (index, is_plausible) in plausible.iter_mut().enumerate() {
                let precedes = precedes[index] | u8::from(ends_before_a_number(last[index]));
                *is_plausible |= precedes & u8::from((low..=high).contains(&highest[index]));
            }
        }
        plausible
    }

    /// Notes what the field at `at` refers to.
    fn field(&self, start: u64, bytes: &[u8], at: usize, found: &mut Vec<(u64, u64)>) {
        let Some(field) = bytes.get(at..at + FIELD_BYTES) else {
            return;
        };
        let Ok(field) = field.try_into().map(i32::from_le_bytes) else {
            return;
        };
        let mut note = |target: u64| {
            let at = start + at as u64;
            if (self.counts)(target, at) {
                found.push((target, at));
            }
        };
        let is_relative = match bytes[..at] {
            [] => false,
            [last] => ends_like_a_reference(0, last),
            [.., before, last] => ends_like_a_reference(before, last),
        };
        let end = start + (at + FIELD_BYTES) as u64;
        let target = end.wrapping_add_signed(field.into());
        if is_relative && self.hull.contains(&target) {
            note(target);
        }
        let target = u64::from(field.cast_unsigned());
        if self.is_absolute && self.hull.contains(&target) && may_precede_a_number(&bytes[..at]) {
            note(target);
        }
    }
}

/// True if `target` lies in a function, not at its start, and `at` is not in that function.
fn is_inside_another(image: &Image<'_>, target: u64, at: u64) -> bool {
    let Some(index) = image.function_at(target) else {
        return false;
    };
    let range = &image.functions()[index].range;
    target != range.start && !range.contains(&at)
}

/// True if a distance to code may follow these two bytes: opcodes of `call`, `jmp`, `jcc` and `xbegin`, and of a
/// memory operand relative to rip.
#[inline]
const fn ends_like_a_reference(before: u8, last: u8) -> bool {
    (last & 0xfe == 0xe8)
        | (last & 0xf0 == 0x80) & (before == 0x0f)
        | (last & 0xc7 == 0x05)
        | (last == 0xf8) & (before == 0xc7)
}

/// True if a whole address may follow these bytes: opcodes of `mov`, `push`, arithmetic and `lea` with a number of
/// four bytes, or the operands of a `mov` or of arithmetic to memory.
fn may_precede_a_number(bytes: &[u8]) -> bool {
    let first = bytes.len().saturating_sub(MAX_BYTES_BEFORE);
    bytes.last().is_none_or(|last| ends_before_a_number(*last))
        || bytes[first..].iter().any(|it| matches!(it, 0xc7 | 0x81))
}

#[inline]
const fn ends_before_a_number(last: u8) -> bool {
    (last >= 0xb8) | (last == 0x68) | (last & 7 == 5)
}

#[cfg(test)]
mod tests {
    use super::super::{EntryCertainty, ImageFacts, Outline, Tables};
    use super::*;

    #[test]
    fn every_form_of_a_reference_is_found_wherever_chunks_end() {
        let target = 0x40_2010_u64;
        let start = 0x40_0000_u64;
        let forms: [&[u8]; 6] = [
            &[0xe8],
            &[0xe9],
            &[0x0f, 0x84],
            &[0x48, 0x8d, 0x05],
            &[0x4c, 0x8d, 0x3d],
            &[0xc7, 0xf8],
        ];
        let search = Search {
            hull: start..start + 0x1_0000,
            is_absolute: false,
            counts: |it, _| it == target,
        };
        for form in forms {
            for at in [
                0,
                CHUNK_BYTES - 5,
                CHUNK_BYTES - 3,
                CHUNK_BYTES - 1,
                CHUNK_BYTES,
            ] {
                let mut bytes = vec![0x90; 2 * CHUNK_BYTES];
                let field = at + form.len();
                let end = start + (field + FIELD_BYTES) as u64;
                let distance = target.wrapping_sub(end) as u32;
                bytes[at..field].copy_from_slice(form);
                bytes[field..field + FIELD_BYTES].copy_from_slice(&distance.to_le_bytes());
                let mut found: Vec<(u64, u64)> = search_chunks(start, &bytes)
                    .flat_map(|(start, bytes)| search.chunk(start, bytes))
                    .collect();
                found.dedup();
                assert_eq!(found, [(target, start + field as u64)], "{form:x?} at {at}");
            }
        }
    }

    /// In this program and in the C library.
    #[test]
    fn whatever_enters_a_function_is_found_without_examining_all_others() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|it| {
            it.find('/')
                .map(|at| &it[at..])
                .filter(|it| it.contains("libc.so"))
        });
        let files = std::iter::once("/proc/self/exe").chain(libc);
        let mut entries = 0;
        for path in files {
            let bytes = std::fs::read(path).unwrap();
            let image = Image::parse(&bytes).unwrap();
            let outline = Outline::of(&image);
            // Tables are read in few functions: see `gather_for`.
            let whole = ImageFacts::gather(&image, Tables::Ignore);
            for index in (0..image.functions().len()).step_by(53) {
                let range = &image.functions()[index].range;
                let local = ImageFacts::gather_for(&image, &outline, Tables::Ignore, &[index]);
                let known = local.entries(range);
                for entry in whole.entries(range) {
                    assert!(known.contains(entry), "{path}: {entry:x?} of {range:x?}");
                    entries += 1;
                }
                let others = known.iter().filter(|it| !whole.entries(range).contains(it));
                let mut certainties = others.map(|(_, certainty)| *certainty);
                assert!(
                    certainties.all(|it| it == EntryCertainty::Guessed),
                    "{range:x?}"
                );
                assert_eq!(local.untouchable(range), whole.untouchable(range));
            }
        }
        assert!(entries > 20, "{entries}");
    }
}
