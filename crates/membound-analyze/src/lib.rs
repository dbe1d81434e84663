//! Analysis of a recorded run.
//!
//! Turns a run into views: stalls by code and object, sharing, placement on nodes, memory traffic,
//! prediction for other machines, comparison of runs. Pure functions: no clock, no process, no file; the
//! caller supplies source texts through [`Sources`].

#![forbid(unsafe_code)]

mod alloc_frames;
mod allocation_chain;
mod code;
mod compare;
mod consumption;
mod context;
mod decoding;
mod detail;
mod entries;
mod executions;
mod figures;
mod findings;
mod gate;
mod groups;
mod hardware;
mod info;
mod levels;
mod listing;
mod lost_records;
mod machine;
mod names;
mod numa;
mod object_group;
mod object_names;
mod objects;
mod options;
mod pairs;
mod parts;
mod periods;
mod places;
mod program_lines;
mod recorded_accesses;
mod rows;
mod run_info;
mod selection;
mod served_share;
mod sharing;
mod sites;
mod span;
mod spread;
mod tally;
mod thresholds;
mod time;
mod traffic;
mod unattributed;
mod views;
mod work;

pub use compare::{compare, compare_sides, pool_runs};
pub use figures::{AccessFigures, Figures, ServedFigures, figures};
pub use gate::{Expression, GateError, judge};
pub use options::{Extent, NoSources, Options, OtherMachine, Sources};
pub use periods::periods;
pub use span::Selection;
pub use thresholds::Thresholds;
pub use views::{Views, analyze};
