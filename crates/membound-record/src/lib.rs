//! Records where programs wait for memory, into a run.
//!
//! Timer samples come from perf events where the kernel permits them and from the agent's
//! timers where it does not; hot sites are patched live to get executions, addresses and
//! latencies; allocations, pages' nodes and hardware watchpoints name what was accessed.
//! Interpreting the run is left to `membound-analyze`.

mod allocation_sums;
mod budget;
mod bursts;
pub mod calibrate;
mod chooser;
mod clock;
mod cpu_time;
mod cut_off;
mod dilation;
mod driver;
mod error;
mod file;
mod finish;
mod gaps;
mod groups;
mod heap;
mod holding;
pub mod import;
mod inbox;
mod intern;
mod iterations;
mod live;
mod modules;
mod names;
pub mod nodes;
mod objects;
mod options;
mod others;
mod pages;
mod patcher;
pub mod perf;
mod rate;
mod recorder;
mod replays;
mod residency;
mod rows;
mod sample_period;
mod sampler;
mod sampling;
mod sites;
mod space;
mod threads;
mod traffic;
mod waited;
pub mod watch;
mod watching;
mod windows;
mod world;

pub use cut_off::CutOff;
pub use error::Error;
pub use options::{
    Blocks, Bursts, DEFAULT_OBJECT_BYTES, DEFAULT_OVERHEAD, Latencies, Options, TimerChoice, Watch,
};
pub use recorder::{Ended, Over, Recorder, Stopper, Summary, can_sample};

/// Locks `mutex`, also after a thread panicked while holding it: what is recorded so far stays usable.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
