//! Options of a plan: which instructions are patched, and with which bodies.

use crate::code;
use crate::flow::Direction;

use super::{Body, Yield};

/// Vector registers that the processor has. Bodies may use all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VectorLevel {
    /// xmm0–15.
    Sse,
    /// ymm0–15.
    Avx,
    /// zmm0–31 and mask registers.
    Avx512,
}

impl VectorLevel {
    /// The vector level that this processor and its operating system support.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if std::arch::is_x86_feature_detected!("avx") {
                return Self::Avx;
            }
        }
        Self::Sse
    }
}

/// The instructions to be patched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sites {
    /// Every instruction that accesses memory.
    All,
    /// Instructions that access memory, at these addresses of the file; sorted.
    At(Vec<u64>),
    /// One instruction in each of the basic blocks that begin at these addresses of the file; sorted. Any
    /// instruction of a block runs as often as the block. The site's address is the block's. Only bodies that
    /// need no operand are allowed.
    Blocks(Vec<u64>),
    /// The instructions at these addresses of the file, sorted, whether they access memory or not. Allowed
    /// are bodies that need no operand, and yields, which prefetch if the instruction has an operand.
    Instructions(Vec<u64>),
}

impl Sites {
    /// The addresses in this selection; `None` for all.
    pub(super) fn addresses(&self) -> Option<&[u64]> {
        match self {
            Self::All => None,
            Self::At(addresses) | Self::Blocks(addresses) | Self::Instructions(addresses) => {
                Some(addresses)
            }
        }
    }

    /// True if the instruction at this address is selected. Always false for [`Self::Blocks`].
    pub(super) fn contain(&self, address: u64) -> bool {
        match self {
            Self::All => true,
            Self::At(addresses) | Self::Instructions(addresses) => {
                addresses.binary_search(&address).is_ok()
            }
            Self::Blocks(_) => false,
        }
    }
}

/// Kinds of access to patch. An instruction that loads and stores counts as both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accesses {
    /// Instructions that read memory.
    Loads,
    /// Instructions that write memory.
    Stores,
    /// Both.
    All,
}

impl Accesses {
    pub(super) fn contain(self, direction: Direction) -> bool {
        match self {
            Self::Loads => direction.loads(),
            Self::Stores => direction.stores(),
            Self::All => true,
        }
    }
}

/// Which system calls are patched so that the agent sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hooks {
    /// The system calls that the agent must see to remain in control of the process, its threads and signals.
    /// The plan also lists system calls to restart if a signal of the agent interrupts them.
    Plant,
    /// As [`Self::Plant`], for an agent with timers: also the system call that ends the process.
    Timed,
    /// As [`Self::Timed`], and the system calls that may wait: while the agent asks for it, the thread yields
    /// instead ([`membound_wire::Entry::Wait`]).
    Waiting,
    /// None: for inspection and tests.
    LeaveOut,
}

/// Parts of a yield that make it cheap or useful. Each can be left out to measure its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum YieldPart {
    /// Save only live state; without this part a yield saves everything that a body may save.
    Liveness,
    /// Do not save vector registers that the module never uses.
    UnusedVectors,
    /// Prefetch the operand before the yield.
    Prefetch,
    /// Prefetch other lines of the same object that the following code accesses (adjacent-line prefetch).
    Companions,
    /// Prefetch lines that leave the caches before they are read again without placing them in the outer
    /// caches.
    NonTemporal,
    /// Recent-miss filter: no yield for a line that was yielded for recently, where that separates hits from
    /// misses.
    Recency,
    /// Save state that a loop does not change once around the loop, where the loop lies in one trampoline.
    LoopSaves,
    /// Prefetch the stack of the context after the next one.
    NextContext,
    /// Pass control to another context; without this part everything is saved and restored and the same
    /// context continues.
    Passing,
}

/// Where a prefetched line is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefetch {
    /// In all caches: `prefetcht0`.
    Everywhere,
    /// In the innermost one: `prefetchnta`.
    NonTemporal,
}

/// A function to be wrapped in every module that defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    /// The function's name in symbol tables.
    pub name: String,
    /// The number by which the agent identifies the function.
    pub number: u32,
}

/// Options of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The body before each selected instruction, unless [`Self::bodies`] has another.
    pub body: Body,
    /// Sites with a body other than [`Self::body`], by address: sorted, no address twice. They must be among
    /// [`Self::sites`].
    pub bodies: Vec<(u64, Body)>,
    /// Whether jump tables are resolved.
    pub tables: code::Tables,
    /// The instructions to be patched.
    pub sites: Sites,
    /// Addresses of instructions, sorted. A block of [`Sites::Blocks`] that contains one is patched there where possible.
    /// They are the instructions that another plan for the same text patches: patches of two plans must not cross.
    pub preferred: Vec<u64>,
    /// The kinds of access to be patched.
    pub accesses: Accesses,
    /// Vector registers of the processor.
    pub vectors: VectorLevel,
    /// Which system calls are patched for the agent.
    pub hooks: Hooks,
    /// Functions whose entries are patched to jump to the agent.
    pub wrapped: Vec<Wrapped>,
    /// Addresses of yields whose lines are evicted before they are read again; they prefetch non-temporally.
    /// Sorted.
    pub non_temporal: Vec<u64>,
    /// Addresses of yields of the primary with a recent-miss filter. Sorted.
    pub recalled: Vec<u64>,
    /// Addresses of bound yields in loops that run for long each time they are entered. Sorted.
    pub long_loops: Vec<u64>,
    /// Parts that yields leave out. Sorted.
    pub without: Vec<YieldPart>,
    /// True if a loop around sites is moved into their trampoline as a whole where possible. A thread may
    /// then stay in the trampoline for as long as the loop lasts, even if the patch has been removed
    /// meanwhile.
    pub closes_loops: bool,
}

impl Options {
    /// `body` before every load and store, for this machine.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self {
            body,
            bodies: Vec::new(),
            tables: code::Tables::Resolve,
            sites: Sites::All,
            preferred: Vec::new(),
            accesses: Accesses::All,
            vectors: VectorLevel::detect(),
            hooks: Hooks::Plant,
            wrapped: Vec::new(),
            non_temporal: Vec::new(),
            recalled: Vec::new(),
            long_loops: Vec::new(),
            without: Vec::new(),
            closes_loops: false,
        }
    }

    /// Only the agent's `hooks`, for this machine; sites may be added.
    #[must_use]
    pub fn bare(hooks: Hooks) -> Self {
        Self {
            sites: Sites::At(Vec::new()),
            hooks,
            ..Self::new(Body::Displace)
        }
    }

    /// The body before the site with this address.
    #[must_use]
    pub fn body_at(&self, address: u64) -> Body {
        let found = self.bodies.binary_search_by_key(&address, |it| it.0);
        found.map_or(self.body, |at| self.bodies[at].1)
    }

    /// The kind of prefetch for the yield at this address.
    pub(super) fn prefetch_of(&self, address: u64) -> Prefetch {
        let passes = self.non_temporal.binary_search(&address).is_ok();
        if passes && !self.without.contains(&YieldPart::NonTemporal) {
            Prefetch::NonTemporal
        } else {
            Prefetch::Everywhere
        }
    }

    /// True if the yield at this address has a recent-miss filter.
    pub(super) fn filters_recent_misses(&self, address: u64) -> bool {
        self.recalled.binary_search(&address).is_ok() && !self.without.contains(&YieldPart::Recency)
    }

    /// True if the yield at this address is in a loop that runs for long.
    pub(super) fn is_long_loop(&self, address: u64) -> bool {
        self.long_loops.binary_search(&address).is_ok()
    }

    /// All bodies that the plan may contain.
    pub(super) fn all_bodies(&self) -> impl Iterator<Item = Body> + '_ {
        let bodies = self.bodies.iter().map(|it| it.1);
        std::iter::once(self.body).chain(bodies)
    }

    /// Bytes that are equal exactly if the options are equal; a cache key.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        let mut key = body_key(self.body).to_vec();
        key.extend_from_slice(&(self.bodies.len() as u64).to_le_bytes());
        for (address, body) in &self.bodies {
            key.extend_from_slice(&address.to_le_bytes());
            key.extend_from_slice(&body_key(*body));
        }
        key.extend_from_slice(&[
            self.tables as u8,
            self.accesses as u8,
            self.vectors as u8,
            self.hooks as u8,
            u8::from(self.closes_loops),
        ]);
        let lists = [
            &self.preferred,
            &self.non_temporal,
            &self.recalled,
            &self.long_loops,
        ];
        for addresses in lists {
            key.extend_from_slice(&(addresses.len() as u64).to_le_bytes());
            for address in addresses {
                key.extend_from_slice(&address.to_le_bytes());
            }
        }
        key.push(self.without.len() as u8);
        key.extend(self.without.iter().map(|part| *part as u8));
        for wrapped in &self.wrapped {
            key.push(1);
            key.extend_from_slice(&wrapped.number.to_le_bytes());
            // No name has a zero byte.
            key.extend_from_slice(wrapped.name.as_bytes());
            key.push(0);
        }
        key.push(0);
        match &self.sites {
            Sites::All => key.push(0),
            Sites::At(addresses) | Sites::Blocks(addresses) | Sites::Instructions(addresses) => {
                key.push(match self.sites {
                    Sites::At(_) => 1,
                    Sites::Instructions(_) => 3,
                    Sites::All | Sites::Blocks(_) => 2,
                });
                for address in addresses {
                    key.extend_from_slice(&address.to_le_bytes());
                }
            }
        }
        key
    }
}

/// A body as bytes: its kind, the cost of a yield or the mark, and whether a yield restores the `fs` base.
fn body_key(body: Body) -> [u8; 4] {
    let (kind, cost, own_base) = match body {
        Body::Displace => (0, 0, false),
        Body::Count { exact: false } => (1, 0, false),
        Body::Count { exact: true } => (2, 0, false),
        Body::Rubbish => (3, 0, false),
        Body::Sample => (4, 0, false),
        Body::Record => (5, 0, false),
        Body::PrefetchYield => (6, 0, false),
        Body::CountByStack => (7, 0, false),
        Body::Yield(Yield::Primary) => (8, 0, false),
        Body::Yield(Yield::Miss { cost, own_base }) => (9, cost, own_base),
        Body::Yield(Yield::Bound { cost, own_base }) => (10, cost, own_base),
        Body::Yield(Yield::Base) => (11, 0, false),
        Body::Mark(mark) => (12, mark as u16, false),
    };
    let [low, high] = cost.to_le_bytes();
    [kind, low, high, u8::from(own_base)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_where_any_site_has_another_body() {
        let bound = |cost, own_base| Body::Yield(Yield::Bound { cost, own_base });
        let sites = Options {
            sites: Sites::Instructions(vec![8, 16]),
            ..Options::new(Body::Yield(Yield::Base))
        };
        let with = |bodies: &[(u64, Body)]| {
            let mut options = sites.clone();
            options.bodies = bodies.to_vec();
            options.key()
        };
        let non_temporal = Options {
            non_temporal: vec![8],
            ..sites.clone()
        };
        let recalled = Options {
            recalled: vec![8],
            ..sites.clone()
        };
        let long_loops = Options {
            long_loops: vec![8],
            ..sites.clone()
        };
        let keys = [
            with(&[]),
            with(&[(8, bound(1, false))]),
            with(&[(16, bound(1, false))]),
            with(&[(8, bound(256, false))]),
            with(&[(8, bound(1, true))]),
            with(&[(8, Body::Yield(Yield::Primary))]),
            with(&[(8, bound(1, false)), (16, bound(1, false))]),
            non_temporal.key(),
            recalled.key(),
            long_loops.key(),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[index + 1..].contains(key), "{index}");
        }
    }

    #[test]
    fn a_site_has_its_own_body_or_that_of_all() {
        let mut options = Options::new(Body::Yield(Yield::Base));
        let own = Body::Yield(Yield::Primary);
        options.bodies = vec![(8, own), (32, Body::Displace)];
        assert_eq!(options.body_at(8), own);
        assert_eq!(options.body_at(16), options.body);
        assert_eq!(options.body_at(32), Body::Displace);
    }
}
