//! Files in, curves out: what `model fit` and `compare` read.
//!
//! Nothing here opens a file; bytes and the name to be used in messages come from the
//! caller, and nothing here judges a curve beyond what its format says.

#![forbid(unsafe_code)]

use membound_types::{FitData, MachineProfile, Model, Observation};

/// What a file turned out to hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Curves to fit, from CSV, another tool, or one part of `measure`.
    Curves(Vec<Curve>),
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
    /// The values, by area and then window.
    pub observations: Vec<Observation>,
    /// What was left out or assumed, a sentence each.
    pub notes: Vec<String>,
}

/// Why a file cannot be used; names file, place and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Not a format known here, or broken.
    #[error("{name}: {what}")]
    Broken {
        /// File as it was named.
        name: String,
        /// Place and reason.
        what: String,
    },
}

/// Reads a file's bytes, whatever known format they are in.
///
/// # Errors
///
/// [`InputError`] with file, line or field, and what would be right.
pub fn read(name: &str, bytes: &[u8]) -> Result<Content, InputError> {
    let _ = bytes;
    Err(InputError::Broken {
        name: name.to_owned(),
        what: "not a format that is known here".to_owned(),
    })
}
