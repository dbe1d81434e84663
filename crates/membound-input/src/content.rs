//! The values read from a file.

use membound_types::{Cache, FitData, MachineProfile, Model, Observation, PageKind};

use crate::traffic::LoadedCurve;

/// The contents of a file, by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Curves to fit, from CSV, another tool, or one part of `measure`.
    Curves(Vec<Curve>),
    /// Latency under traffic, one curve per mix, from another tool.
    Loaded(Vec<LoadedCurve>),
    /// A complete machine profile.
    Profile(Box<MachineProfile>),
    /// A model fitted by membound.
    Model(Box<Model>),
}

/// Values measured under the same conditions: one kernel, one page kind, one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Conditions that distinguish it from the file's other curves, for readers; may be empty.
    pub series: String,
    /// Whether the values are windows or loads.
    pub data: FitData,
    /// Distance between elements in bytes, if the file states it (latency curves).
    pub stride_bytes: Option<u64>,
    /// Page kind, if the file states it.
    pub page: Option<PageKind>,
    /// Caches that the file declares for the machine; empty for a file of another tool, and for a machine
    /// profile, which has them itself.
    pub caches: Vec<Cache>,
    /// The values, sorted by area, then window.
    pub observations: Vec<Observation>,
    /// Notes on omissions and assumptions, one sentence each.
    pub notes: Vec<String>,
}
