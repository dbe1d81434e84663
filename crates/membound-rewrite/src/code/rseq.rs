//! Restartable sequences: critical sections that the kernel aborts, and their abort handlers.

use std::ops::Range;

use rustc_hash::FxHashSet;

use crate::image::Image;

/// The word before every abort handler; glibc and tcmalloc use this value on x86.
const SIGNATURE: [u8; 4] = 0x5305_3053_u32.to_le_bytes();
/// Bytes of `struct rseq_cs`: version, flags, start, length, abort address.
const DESCRIPTOR: u64 = 32;
/// Longest plausible sequence in bytes: it must run within a time slice of the kernel's scheduler, and real
/// ones have a few dozen bytes.
pub(super) const MAX_SEQUENCE_BYTES: u64 = 0x1_0000;

/// A sequence as its descriptor names it to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) range: Range<u64>,
    pub(super) abort: u64,
}

impl Sequence {
    /// The signature before the abort handler.
    pub(super) const fn signature(&self) -> Range<u64> {
        self.abort.saturating_sub(4)..self.abort
    }
}

/// All sequences described in the file's data: those in the section for descriptors, and every descriptor
/// whose abort address follows a signature in text.
pub(super) fn sequences(image: &Image<'_>) -> Vec<Sequence> {
    let mut found = Vec::new();
    if let Some(section) = image.section("__rseq_cs") {
        let mut at = section.start;
        while at + DESCRIPTOR <= section.end {
            found.extend(descriptor(image, at));
            at += DESCRIPTOR;
        }
    }
    let aborts = signatures(image);
    if aborts.is_empty() {
        return found;
    }
    let mut candidates: Vec<u64> = image
        .relative_relocations()
        .iter()
        .filter(|(_, value)| aborts.contains(value))
        .map(|(at, _)| *at)
        .collect();
    if image.position_dependent() {
        for (start, bytes) in image.data_segments() {
            let words = bytes.chunks_exact(8).enumerate();
            candidates.extend(words.filter_map(|(index, word)| {
                let value = u64::from_le_bytes(word.try_into().ok()?);
                aborts.contains(&value).then_some(start + 8 * index as u64)
            }));
        }
    }
    for at in candidates {
        // The abort address is the last word of a descriptor.
        if let Some(sequence) = at
            .checked_sub(DESCRIPTOR - 8)
            .and_then(|start| descriptor(image, start))
        {
            found.push(sequence);
        }
    }
    found.sort_by_key(|sequence| (sequence.range.start, sequence.range.end, sequence.abort));
    found.dedup();
    found
}

/// Addresses in text that directly follow a signature.
fn signatures(image: &Image<'_>) -> FxHashSet<u64> {
    let mut found = FxHashSet::default();
    for range in image.text() {
        let bytes = image.bytes(range.clone()).unwrap_or_default();
        for (index, window) in bytes.windows(4).enumerate() {
            if window == SIGNATURE {
                found.insert(range.start + index as u64 + 4);
            }
        }
    }
    found
}

fn descriptor(image: &Image<'_>, at: u64) -> Option<Sequence> {
    let bytes = image.bytes(at..at.checked_add(DESCRIPTOR)?)?;
    let word = |offset: usize| {
        let value = bytes.get(offset..offset + 8)?;
        Some(u64::from_le_bytes(value.try_into().ok()?))
    };
    let address = |offset: u64| {
        image
            .pointer_at(at + offset)
            .or_else(|| word(usize::try_from(offset).ok()?))
    };
    let start = address(8)?;
    let length = word(16)?;
    let abort = address(24)?;
    let plausible = word(0)? == 0
        && (1..MAX_SEQUENCE_BYTES).contains(&length)
        && image.is_text(start)
        && image.is_text(abort);
    plausible.then(|| Sequence {
        range: start..start + length,
        abort,
    })
}
