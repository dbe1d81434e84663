//! Buffers, timers, kernels, sweeps and statistics that measure a memory hierarchy.
//!
//! Every part of `membound measure` is a function here that takes a [`Session`] and a
//! config and returns the part's document type from `membound-types`. What the curves mean
//! (levels, rules) is left to `membound-model`, text and pages to `membound-report`. Inside,
//! times are ticks of [`Clock`]; in documents, they are nanoseconds or core cycles.

pub mod arch;
mod chain;
mod chase;
mod clock;
mod error;
mod gate;
mod hint;
mod ones;
mod random;
mod region;
mod room;
mod sampling;
mod session;
pub mod stats;
mod threads;
mod watch;

pub mod bandwidth;
pub mod c2c;
pub mod calibration;
pub mod latency;
pub mod loaded;
pub mod mlp;
pub mod numa;
pub mod prefetch;
pub mod replay;
pub mod tlb;
pub mod window;

pub use chase::{Chase, ChaseConfig};
pub use clock::{Clock, CoreClock};
pub use error::Error;
pub use region::{Region, RegionConfig, remedy_of};
pub use session::{Effort, Progress, Session, Silent, Spread};
