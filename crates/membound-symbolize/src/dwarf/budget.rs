//! The limit of the work for one file: every repeated reading is charged to it.

/// Number of entries, rows and ranges that may still be read.
#[derive(Debug)]
pub(super) struct Budget(pub(super) u64);

impl Budget {
    /// For sections with this many bytes in all. Every item takes at least a byte, and real files are read
    /// about once.
    pub(super) const fn new(bytes: u64) -> Self {
        Self(bytes.saturating_mul(8).saturating_add(1 << 20))
    }

    /// Charges `amount`, or fails if not as much is left.
    pub(super) const fn spend(&mut self, amount: u64) -> Result<(), gimli::Error> {
        match self.0.checked_sub(amount) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => {
                self.0 = 0;
                Err(gimli::Error::TooManyIterations)
            }
        }
    }
}
