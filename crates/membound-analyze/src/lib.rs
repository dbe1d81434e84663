//! What a recorded run says.
//!
//! A run goes in, views come out: stalls by code and object, sharing, nodes, traffic,
//! other machines, before and after. Pure: no clock, no process, no file; source texts
//! come through [`Sources`].

#![forbid(unsafe_code)]

mod alloc_frames;
mod code;
mod compare;
mod consumption;
mod context;
mod decoding;
mod detail;
mod executions;
mod figures;
mod findings;
mod gate;
mod groups;
mod hardware;
mod info;
mod levels;
mod listing;
mod machine;
mod missing;
mod names;
mod numa;
mod object_names;
mod objects;
mod options;
mod pairs;
mod parts;
mod periods;
mod places;
mod rows;
mod selection;
mod sharing;
mod sites;
mod spread;
mod tally;
mod thresholds;
mod time;
mod touches;
mod traffic;
mod unseen;
mod views;
mod work;

pub use compare::{compare, compare_sides, put_together};
pub use figures::{AccessFigures, Figures, ServedFigures, figures};
pub use gate::{Expression, GateError, judge};
pub use options::{Extent, NoSources, Options, OtherMachine, Sources};
pub use periods::periods;
pub use selection::Selection;
pub use thresholds::Thresholds;
pub use views::{Views, analyze};
