//! What functions as a whole do to state, and what that lets a caller assume.

use std::collections::HashMap;

use super::Analyst;
use crate::RegisterSet;
use crate::code::Function;
use crate::image::Convention;

/// What one function does to state by its own instructions, its callees not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What any of its instructions may write.
    pub writes: RegisterSet,
    /// What it writes and does not put back before it returns: `writes` without the
    /// registers that it pops.
    pub clobbers: RegisterSet,
    /// What it may read before it writes it, callees and continuations included.
    pub reads_before_write: RegisterSet,
}

impl Summary {
    /// True of any function: it may read and write everything, and nothing is certain.
    pub const UNKNOWN: Self = Self {
        writes: RegisterSet::ALL,
        clobbers: RegisterSet::EMPTY,
        reads_before_write: RegisterSet::ALL,
    };

    /// What `function` does.
    #[must_use]
    pub fn of(function: &Function, analyst: &mut Analyst) -> Self {
        let _ = (function, analyst);
        Self::UNKNOWN
    }
}

/// The summaries of a module's functions, by where they start.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    by_start: HashMap<u64, Summary>,
}

impl Summaries {
    /// What is known of the function that starts at `address`.
    #[must_use]
    pub fn get(&self, address: u64) -> Option<&Summary> {
        self.by_start.get(&address)
    }
}

impl FromIterator<(u64, Summary)> for Summaries {
    fn from_iter<I: IntoIterator<Item = (u64, Summary)>>(summaries: I) -> Self {
        Self {
            by_start: summaries.into_iter().collect(),
        }
    }
}

/// What may be assumed at calls and returns.
#[derive(Clone, Copy, Debug)]
pub struct Conventions<'a> {
    /// The module's convention.
    pub convention: Convention,
    /// Of all functions of the module; a call to one that is missing is a call to anything.
    pub summaries: &'a Summaries,
}
