//! The values that a file holds.

use membound_types::{FitData, MachineProfile, Model, Observation, PageKind};

use crate::traffic::LoadedCurve;

/// What a file turned out to hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Curves to fit, from CSV, another tool, or one part of `measure`.
    Curves(Vec<Curve>),
    /// Latency beside traffic of each mix, from another tool.
    Loaded(Vec<LoadedCurve>),
    /// A machine profile with everything in it.
    Profile(Box<MachineProfile>),
    /// A fitted model.
    Model(Box<Model>),
}

/// Values that belong together: one kernel, one page kind, one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What distinguishes it from the file's other curves, for people; may be empty.
    pub series: String,
    /// Windows or loads.
    pub data: FitData,
    /// Distance between the elements in bytes, where the file says (latency curves).
    pub stride_bytes: Option<u64>,
    /// Pages behind the values, where the file says.
    pub page: Option<PageKind>,
    /// The values, by area and then window.
    pub observations: Vec<Observation>,
    /// What was left out or assumed, a sentence each.
    pub notes: Vec<String>,
}
