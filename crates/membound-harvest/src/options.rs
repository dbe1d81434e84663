//! What a plan is asked for, and what yields cost.

use membound_types::HarvestRole;

use crate::distance::Limits;

/// What yields cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time from one context to another, in nanoseconds: saving, switching, restoring.
    pub switch_ns: f64,
    /// Time that a counter takes which lets control pass, in nanoseconds.
    pub counter_ns: f64,
    /// Whether both were measured on the machine in question.
    pub measured: bool,
}

impl Costs {
    /// What stands in until a machine was measured: the middle of what a software switch of all
    /// general registers took on a Zen 5 core, and an increment in memory.
    pub const TYPICAL: Self = Self {
        switch_ns: 6.0,
        counter_ns: 1.0,
        measured: false,
    };

    /// A yield: away and back.
    #[must_use]
    pub fn yield_ns(&self) -> f64 {
        2.0 * self.switch_ns
    }

    /// A yield of a command's load that hits, where it passes lines that there was one for lately
    /// (`passes_recent`): to look for the line, and to be away for those that are not found. In a search
    /// tree three in four were.
    #[must_use]
    pub fn hit_ns(&self) -> f64 {
        self.yield_ns() / 4.0
    }
}

/// What a plan is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// What the program is to be.
    pub role: HarvestRole,
    /// Share of the CPU time that yields may cost where loads hit, 0 to 1.
    pub max_overhead: f64,
    /// Share of the stall from which on a load has a significant part of it.
    pub min_stall_share: f64,
    /// Share of a load's executions that must miss the last cache. Of those of a command's load that hit
    /// few yield.
    pub min_likelihood: f64,
    /// Bound on the time between yields; `None`: it is not bounded.
    pub limits: Option<Limits>,
    /// What yields cost.
    pub costs: Costs,
}

impl Options {
    /// The usual ones: 5 % overhead; loads with 1 % of the stall; of the executions of a scavenger's load
    /// 30 % misses of the last cache, which is what the prototype of document 003's authors asks
    /// of primaries (p_L3miss > 0.4·T, T = 75 %). That is so much because each hit costs a switch there; of
    /// a command's load 10 % do.
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

/// Whether a load that misses with this likelihood passes lines that there was a yield for lately, in a
/// program of this role. All lines of one that nearly always misses are taken to be in no cache any more.
#[must_use]
pub(crate) fn passes_recent(role: HarvestRole, likelihood: f64) -> bool {
    role == HarvestRole::Primary && likelihood < LIKELY
}

/// Whether what a loop does not change is saved around it rather than at each of its yields that bound the
/// time, by how long it runs: a turn or two take less, so that it is away more often than it is entered.
#[must_use]
pub(crate) fn is_lasting(lasts_ns: f64) -> bool {
    const TURNS_NS: f64 = 1000.0;
    lasts_ns >= TURNS_NS
}

/// Share of a load's executions that miss from which on its lines are taken to be lost whenever they are
/// read again.
pub(crate) const LIKELY: f64 = 0.9;
