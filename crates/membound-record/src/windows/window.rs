//! A window: what it is for, the moments of its beginning and end, its phases, and what came of it.

use membound_launch::{Choice, Pace};
use membound_rewrite::stall::CodeBlock;
use membound_run::{Executions, ModuleId, SiteId};

use crate::budget::Work;
use crate::groups::Threads;
use crate::patcher::Counts;

/// The present moment, as far as windows need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Since the run began.
    pub(crate) t_ns: u64,
    /// CPU time that all programs have taken.
    pub(crate) cpu_ns: u64,
    /// Whether threads of one process run at the same time, so that plain counts lose some.
    pub(crate) threads: Threads,
}

/// What came of a window.
#[derive(Clone, Debug)]
pub(crate) struct Closed {
    pub(crate) work: Work,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// CPU time that all threads took meanwhile, patches included.
    pub(crate) cpu_ns: u64,
    /// What patches are taken to have cost of that: a guess on the high side.
    pub(crate) cost_ns: f64,
    /// Sites that were counted.
    pub(crate) executions: Vec<Executions>,
    /// Blocks that were counted: their modules, they, and how often.
    pub(crate) blocks: Vec<(ModuleId, CodeBlock, u64)>,
    /// Sites that were patched.
    pub(crate) sites: Vec<SiteId>,
}

/// What is going on.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing is patched.
    Closed { until_ns: u64 },
    /// The text is to stay as it is for a while ([`super::Windows::lend`]).
    Lent,
    /// Programs exchange their patches.
    Opening { exchange: u64, window: Window },
    /// Patches are there.
    Open {
        from: Now,
        /// CPU time of all programs that ends it.
        until_cpu_ns: u64,
        /// The same in time, for programs that wait.
        until_ns: u64,
        before: Vec<Counts>,
        window: Window,
    },
}

/// Which groups are patched, for what and since when.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) work: Work,
    /// Groups with what is patched for them.
    pub(super) parts: Vec<Part>,
    pub(super) since_ns: u64,
    /// CPU time of all programs at that time.
    pub(super) since_cpu_ns: u64,
    /// CPU time that it is open for.
    pub(super) length_ns: u64,
}

/// A group with what is patched for it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) group: usize,
    pub(super) choice: Choice,
    /// How its sites are sampled.
    pub(super) paces: Vec<(u64, Pace)>,
}
