//! Yields of the command that are removed from its running text, or are to be.

use std::collections::{BTreeMap, BTreeSet};

use membound_rewrite::image::Identity;

/// Identifies a yield.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YieldPlace {
    /// Identity of its file.
    pub file: Identity,
    /// Its address in the file.
    pub address: u64,
}

/// Yields of the command: which should be removed, and which have been removed.
#[derive(Debug, Default)]
pub(crate) struct Withdrawn {
    pub(crate) wanted: Vec<YieldPlace>,
    /// The removed yields in the command's process, by the start of their trampolines.
    pub(crate) out: BTreeMap<u64, Vec<YieldPlace>>,
}

impl Withdrawn {
    /// The yields that are removed.
    pub(crate) fn places(&self) -> Vec<YieldPlace> {
        self.out.values().flatten().cloned().collect()
    }

    pub(crate) fn wanted_in(&self, file: &Identity) -> BTreeSet<u64> {
        let of_file = self.wanted.iter().filter(|place| place.file == *file);
        of_file.map(|place| place.address).collect()
    }
}
