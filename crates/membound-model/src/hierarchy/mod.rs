//! The hierarchy model of document 002: topology, fit, identifiability, rates, prediction.
//!
//! Sizes are in bytes, times in nanoseconds.

mod adjust;
mod answer;
mod derive;
mod design;
mod error;
mod file;
mod fit;
mod free;
mod identify;
mod level_names;
mod linear;
mod measured;
mod misfit;
mod notes;
mod options;
mod predict;
mod problem;
mod rates;
mod robust;
mod solve;
mod stride;
mod thin;
mod topology;
mod vanish;
mod window_levels;

pub use adjust::{PageTableChoice, with_page_table, with_sizes, with_tlb};
pub use derive::from_levels;
pub use error::{SmallerLevel, TopologyError};
pub use file::{BUNDLED, bundled, parse_topology};
pub use fit::fit;
pub use measured::{Known, fit_measured, fit_profile, tlb_terms};
pub use options::{FitError, FitOptions, KeepPoints, LeftOut, Start, Steepness};
pub use predict::{predict, predict_stride};
pub use rates::{model_levels, published};
pub use topology::{missing_sizes, validate};
