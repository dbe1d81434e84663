//! Data of a window: its purpose, its start and end, its phases, and its results.

use membound_launch::{Choice, Pace};
use membound_rewrite::stall::CodeBlock;
use membound_run::{Executions, ModuleId, SiteId};

use crate::budget::{Threads, Work};
use crate::patcher::Counts;

/// The present moment, as far as windows need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Nanoseconds since the run began.
    pub(crate) t_ns: u64,
    /// CPU time of all programs, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Number of running processes. An exchange of patches wakes all of them.
    pub(crate) processes: usize,
    /// Whether several threads of one process run concurrently, so that plain counters miss executions.
    pub(crate) threads: Threads,
}

/// The results of a window.
#[derive(Clone, Debug)]
pub(crate) struct Closed {
    pub(crate) work: Work,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// CPU time of all threads in the window, patches included.
    pub(crate) cpu_ns: u64,
    /// The patches' part of that: a guess on the high side.
    pub(crate) cost_ns: f64,
    /// Whether at most one thread of the programs ran at a time, so that CPU time cannot exceed wall time.
    pub(crate) is_one_thread: bool,
    /// Exact counts by site.
    pub(crate) executions: Vec<Executions>,
    /// Counts by basic block: module, block, executions.
    pub(crate) blocks: Vec<(ModuleId, CodeBlock, u64)>,
    /// Sites that were patched.
    pub(crate) sites: Vec<SiteId>,
}

/// The state of [`super::Windows`].
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing is patched; no window opens before `until_ns`.
    Closed { until_ns: u64 },
    /// The text stays without patches for a trial ([`super::Windows::lend`]).
    Lent,
    /// Programs are exchanging their patches.
    Opening { exchange: u64, window: Window },
    /// All programs have the patches.
    Open {
        from: Now,
        /// CPU time of all programs at which the window closes.
        until_cpu_ns: u64,
        /// Time at which it closes in any case, for programs that wait.
        until_ns: u64,
        before: Vec<Counts>,
        window: Window,
    },
}

/// What is patched, for what purpose and since when.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) work: Work,
    /// Groups with what is patched for them.
    pub(super) parts: Vec<Part>,
    pub(super) since_ns: u64,
    /// CPU time of all programs at `since_ns`.
    pub(super) since_cpu_ns: u64,
    /// CPU time for which it stays open.
    pub(super) length_ns: u64,
}

/// A group with what is patched for it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) group: usize,
    pub(super) choice: Choice,
    /// How the sites are sampled, by address.
    pub(super) paces: Vec<(u64, Pace)>,
}
