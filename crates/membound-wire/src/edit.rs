//! One replacement of text.

/// Most bytes that an edit replaces: a jump with a 32-bit displacement.
pub const EDIT_BYTES: usize = 5;

/// Replaces `length` bytes at `address`. Undoing it is the same edit with `old` and `new` exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TextEdit {
    /// Address in the process.
    pub address: u64,
    /// Where a thread goes on that is caught at `address`: the trampoline when a patch is installed,
    /// `address` itself when it is removed.
    pub target: u64,
    /// [`fingerprint`] of the `group` bytes at `address` before the edit.
    pub fingerprint: u32,
    /// Bytes of the displaced group (at least `length`), all of which must be as planned.
    pub group: u16,
    /// Bytes replaced, at most [`EDIT_BYTES`].
    pub length: u8,
    /// For live edits: bit n is set where an original instruction begins at `address + n`.
    pub starts: u8,
    /// Bytes at `address` before the edit.
    pub old: [u8; 8],
    /// Bytes at `address` after the edit.
    pub new: [u8; 8],
}

/// FNV-1a over `bytes`, 32 bits. Detects text that another program has changed; it is no protection against
/// intent.
#[must_use]
pub const fn fingerprint(bytes: &[u8]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_the_published_function() {
        // Test vectors of the FNV reference.
        assert_eq!(fingerprint(b""), 0x811c_9dc5);
        assert_eq!(fingerprint(b"a"), 0xe40c_292c);
        assert_eq!(fingerprint(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn an_edit_has_no_hidden_padding() {
        assert_eq!(size_of::<TextEdit>(), 8 + 8 + 4 + 2 + 1 + 1 + 8 + 8);
    }
}
