//! Options of a plan, and the costs of yields.

use membound_types::HarvestRole;

use crate::distance::Limits;

/// Costs of the parts of a yield: context switch and counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time of a context switch, in nanoseconds: save, switch, restore.
    pub switch_ns: f64,
    /// Time of a counter that does not yield, in nanoseconds.
    pub counter_ns: f64,
    /// Whether both were measured on the machine of the plan.
    pub measured: bool,
}

impl Costs {
    /// Defaults until a machine was measured: the middle of the measurements of a software switch of all
    /// general registers on a Zen 5 core, and an increment in memory.
    pub const TYPICAL: Self = Self {
        switch_ns: 6.0,
        counter_ns: 1.0,
        measured: false,
    };

    /// Cost of a yield in nanoseconds: a switch away and a switch back.
    #[must_use]
    pub fn yield_ns(&self) -> f64 {
        2.0 * self.switch_ns
    }

    /// Cost of a yield at a hit of a primary's load that has the recent-miss filter (`passes_recent`), in
    /// nanoseconds: looking up the line, and a whole yield for lines that are not found. In a search tree
    /// three in four were found.
    #[must_use]
    pub fn hit_ns(&self) -> f64 {
        self.yield_ns() / 4.0
    }
}

/// Options of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Role of the program.
    pub role: HarvestRole,
    /// Maximum share of the CPU time that yields may cost where loads hit, 0 to 1.
    pub max_overhead: f64,
    /// Minimum share of the stall that a load must have to be considered, 0 to 1.
    pub min_stall_share: f64,
    /// Minimum share of a load's executions that must miss the last-level cache, 0 to 1.
    pub min_likelihood: f64,
    /// Bound on the time between yields; `None`: no bound.
    pub limits: Option<Limits>,
    /// Costs of yields on this machine.
    pub costs: Costs,
}

impl Options {
    /// The defaults: 5 % overhead; loads with 1 % of the stall; 30 % of the executions of a scavenger's load
    /// must miss the last-level cache, which is what the prototype of document 003's authors asks of
    /// primaries (p_L3miss > 0.4·T, T = 75 %). That is so much because each hit costs a switch there. Of a
    /// primary's load 10 % suffice, since few of its hits yield.
    #[must_use]
    pub const fn new(role: HarvestRole) -> Self {
        Self {
            role,
            max_overhead: 0.05,
            min_stall_share: 0.01,
            min_likelihood: match role {
                HarvestRole::Primary => 0.1,
                HarvestRole::Scavenger => 0.3,
            },
            limits: None,
            costs: Costs::TYPICAL,
        }
    }
}

/// Whether a load that misses with this likelihood has the recent-miss filter, in a program of this role: it
/// does not yield for lines that it yielded for lately. The lines of a load that nearly always misses are
/// taken to be in no cache any more, so it has none.
#[must_use]
pub(crate) fn passes_recent(role: HarvestRole, likelihood: f64) -> bool {
    role == HarvestRole::Primary && likelihood < LIKELY
}

/// Whether the values that a loop does not change are saved around it rather than at each of its bound
/// yields, decided by how long the loop runs per entry: one that outlasts a time slice or two is left more
/// often than it is entered.
#[must_use]
pub(crate) fn is_lasting(lasts_ns: f64) -> bool {
    const TURNS_NS: f64 = 1000.0;
    lasts_ns >= TURNS_NS
}

/// Share of misses from which on a load's lines are taken to be out of all caches whenever they are read
/// again.
pub(crate) const LIKELY: f64 = 0.9;
