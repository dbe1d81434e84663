//! The hierarchy model of document 002: topology, fit, identifiability, rates, prediction.

mod derive;
mod file;
mod rates;
mod topology;

pub use derive::from_levels;
pub use file::{BUNDLED, bundled, parse_topology};
pub use rates::{model_levels, published};
pub use topology::{
    PageTableChoice, SmallerLevel, TopologyError, missing_sizes, validate, with_page_table,
    with_sizes, with_tlb,
};
