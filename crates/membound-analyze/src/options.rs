//! Inputs of an analysis besides the run: selection, thresholds, sources, other machines.

use std::fmt;

use membound_types::MachineProfile;

use crate::{Selection, Thresholds};

/// Texts of source files, by the path in the debug information.
///
/// The analysis opens no file itself: the caller decides what may be read.
pub trait Sources: Sync {
    /// Text of the file at `path`; `None` if it is not available.
    fn text(&self, path: &str) -> Option<String>;
}

/// No source texts: listings show only assembly.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSources;

impl Sources for NoSources {
    fn text(&self, _path: &str) -> Option<String> {
        None
    }
}

/// Machine for which the program's behaviour is predicted.
#[derive(Clone, Copy, Debug)]
pub struct OtherMachine<'a> {
    /// Name in the report: its file, or its host.
    pub name: &'a str,
    /// Its machine profile.
    pub profile: &'a MachineProfile,
}

/// Which views are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// All views.
    #[default]
    Everything,
    /// Only the views that a summary shows: no single samples, instructions, listings or objects by
    /// function.
    Summary,
}

/// Inputs of an analysis besides the run.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Machine profile that replaces the run's own for levels and latencies.
    pub machine: Option<&'a MachineProfile>,
    /// Machines for which [`membound_types::Profile::elsewhere`] is computed.
    pub elsewhere: &'a [OtherMachine<'a>],
    /// Part of the run to analyse; `None` for all of it.
    pub selection: Option<&'a Selection>,
    /// Limits from which on figures are flagged and findings reported.
    pub thresholds: Thresholds,
    /// Source texts for listings.
    pub sources: &'a dyn Sources,
    /// Which views are computed.
    pub extent: Extent,
    /// Most functions with a listing of source and assembly.
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
