//! The doorbell: a page that all processes of a session share, on which their control threads wait.
//!
//! The first word counts all rings and is the futex. Each process also has a word of its own, which counts
//! the rings that are meant for it; some processes may share one. A control thread converses with the
//! launcher only if its own word has changed, so that a ring for one process does not make all others
//! converse.

/// Bytes of the page.
pub const DOORBELL_BYTES: usize = 4096;
/// Number of own words.
const OWN_WORDS: u32 = (DOORBELL_BYTES / 4 - 1) as u32;

/// Offset in the page of the own word of the process that has the number `pid` in its own namespace.
#[must_use]
pub const fn own_word(pid: u32) -> usize {
    4 * (1 + (pid % OWN_WORDS) as usize)
}

/// Bits of FUTEX_WAIT_BITSET with which that process waits for the first word.
#[must_use]
pub const fn waking_bits(pid: u32) -> u32 {
    1 << (pid % u32::BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_own_word_is_the_first_and_all_lie_in_the_page() {
        for pid in [
            1,
            2,
            OWN_WORDS - 1,
            OWN_WORDS,
            OWN_WORDS + 1,
            4_194_304,
            u32::MAX,
        ] {
            let at = own_word(pid);
            assert!(
                at.is_multiple_of(4) && at >= 4 && at + 4 <= DOORBELL_BYTES,
                "{pid}: {at}"
            );
            assert_eq!(waking_bits(pid).count_ones(), 1);
        }
        assert_ne!(own_word(7), own_word(8));
        assert_ne!(waking_bits(7), waking_bits(8));
    }
}
