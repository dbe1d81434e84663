//! What an analysis is told beside the run.

use std::fmt;

use membound_types::MachineProfile;

use crate::{Selection, Thresholds};

/// Text of source files, by the path that debug information names.
///
/// The analysis opens no file itself: the caller decides what may be read.
pub trait Sources: Sync {
    /// The text of the file at `path`; `None` where there is none.
    fn text(&self, path: &str) -> Option<String>;
}

/// No source at all: listings show assembly alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSources;

impl Sources for NoSources {
    fn text(&self, _path: &str) -> Option<String> {
        None
    }
}

/// A machine that a program is to be imagined on.
#[derive(Clone, Copy, Debug)]
pub struct OtherMachine<'a> {
    /// What to call it: its file, or its host.
    pub name: &'a str,
    /// What it was measured to be.
    pub profile: &'a MachineProfile,
}

/// Which views are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All of them.
    #[default]
    Everything,
    /// What a summary shows. Single samples, instructions, listings, and objects by function are left out.
    Summary,
}

/// What an analysis is told beside the run.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Machine profile to take levels and latencies from instead of the run's own.
    pub machine: Option<&'a MachineProfile>,
    /// Machines for which [`membound_types::Profile::elsewhere`] is asked.
    pub elsewhere: &'a [OtherMachine<'a>],
    /// The part of the run that is asked for; `None`: all of it.
    pub selection: Option<&'a Selection>,
    /// From where on something is worth a look.
    pub thresholds: Thresholds,
    /// Source texts for the listings.
    pub sources: &'a dyn Sources,
    /// Which views are made.
    pub extent: Extent,
    /// Most functions that are listed with source and assembly.
    pub listings: usize,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            machine: None,
            elsewhere: &[],
            selection: None,
            thresholds: Thresholds::default(),
            sources: &NoSources,
            extent: Extent::Everything,
            listings: 20,
        }
    }
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("machine", &self.machine.is_some())
            .field("elsewhere", &self.elsewhere)
            .field("selection", &self.selection)
            .field("thresholds", &self.thresholds)
            .field("extent", &self.extent)
            .field("listings", &self.listings)
            .finish_non_exhaustive()
    }
}
