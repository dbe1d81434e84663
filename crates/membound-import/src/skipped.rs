//! Counts parts of a file that are left out, by kind.

use std::collections::BTreeMap;

/// Parts of a file of one kind that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The kind in the plural, to follow the number in a message: `records of unknown type 99`.
    pub what: String,
    /// Number of parts of this kind.
    pub count: u64,
}

/// Counts of parts that were left out, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(BTreeMap<String, u64>);

impl Tally {
    pub(crate) fn add(&mut self, what: impl Into<String>, count: u64) {
        if count > 0 {
            *self.0.entry(what.into()).or_default() += count;
        }
    }

    /// The kinds in alphabetical order.
    pub(crate) fn list(&self) -> Vec<Skipped> {
        let all = self.0.iter();
        all.map(|(what, count)| Skipped {
            what: what.clone(),
            count: *count,
        })
        .collect()
    }
}
