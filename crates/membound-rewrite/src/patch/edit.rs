//! The jump that is installed in the text for one group, as a plan stores it.

/// A jump to be installed; addresses are relative to the module's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edit {
    /// Address of the jump.
    pub text: u32,
    /// The trampoline's entry, as an offset into the code.
    pub code: u32,
    /// FNV-1a hash of the group's bytes.
    pub fingerprint: u32,
    /// Number of bytes of the group.
    pub group: u16,
    /// Bytes that may be overwritten; fewer than five require a punned jump.
    pub length: u8,
    /// Bit n is set if an original instruction begins n bytes after `text`.
    pub starts: u8,
    /// Number of the first site in the group.
    pub first_site: u32,
    /// Number of sites in the group.
    pub sites: u16,
    /// Bytes from `text` to the end of the function and its padding, at most 255.
    pub limit: u8,
    /// True if neighbours could not be displaced because control may enter them.
    pub unresolved: bool,
    /// The original bytes at `text`.
    pub old: [u8; 8],
}
