//! What a plan is to do.

use crate::code;
use crate::flow::Direction;

use super::{Body, Wrapped, Yield};

/// Vector registers that the processor has, and that bodies may therefore use.
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
    /// What this processor and its operating system offer.
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

/// Which instructions are to be patched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sites {
    /// All that access memory.
    All,
    /// Those that access memory at these addresses of the file, sorted.
    At(Vec<u64>),
    /// One of each of the basic blocks that begin at these addresses of the file, sorted: any
    /// of them runs as often as its block. The site's address is the block's. Of the bodies
    /// those will do that ask for no operand.
    Blocks(Vec<u64>),
    /// Those at these addresses of the file, sorted, whether they access memory or not. Of the
    /// bodies those will do that ask for no operand, and yields, which prefetch what they can.
    Instructions(Vec<u64>),
}

impl Sites {
    /// The addresses that they are given by.
    pub(super) fn addresses(&self) -> Option<&[u64]> {
        match self {
            Self::All => None,
            Self::At(addresses) | Self::Blocks(addresses) | Self::Instructions(addresses) => {
                Some(addresses)
            }
        }
    }

    /// Whether the instruction at this address is meant.
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

/// Which accesses are to be patched. One that does both counts as either.
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

/// Whether the system calls are patched that the agent must see to keep the process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hooks {
    /// They are. The numbers are kept of system calls that a signal of the agent's may
    /// interrupt.
    Plant,
    /// They are, and also those through which a program could see or block the signal of the
    /// agent's timers, and makes threads and processes that are to have timers too.
    Timed,
    /// As [`Self::Timed`], and those that may wait: while the agent says so the thread yields instead
    /// ([`membound_wire::Entry::Wait`]).
    Waiting,
    /// They are not: for inspection and tests.
    LeaveOut,
}

/// What a yield does to be cheap, and to be of use. Each can be left out, to see what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum YieldPart {
    /// Only what is alive is saved; without it all that a body may save.
    Liveness,
    /// Vector registers that the module has nothing to do with are not saved.
    UnusedVectors,
    /// What is about to be accessed is asked for before.
    Prefetch,
    /// What is asked for of an object is asked for with its other lines that the code behind accesses.
    Companions,
    /// What is not read again before caches have lost it is asked for without a place in the outer ones.
    NonTemporal,
    /// No yield for a line that there was one for lately, where that tells hits from misses.
    Recency,
    /// What a loop does not change is saved around it, where the loop lies in one trampoline.
    LoopSaves,
    /// What the context after the next one begins with is asked for.
    NextContext,
    /// Control goes on elsewhere; without it everything is saved and given back and the program
    /// goes on.
    Passing,
}

/// Where a line is put that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefetch {
    /// In all caches: `prefetcht0`.
    Everywhere,
    /// In the innermost one: `prefetchnta`.
    NonTemporal,
}

/// What a plan is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is put before each instruction.
    pub body: Body,
    /// Sites that have another body than that, by the address that they are known by: sorted, no
    /// address twice. They must be among [`Self::sites`].
    pub bodies: Vec<(u64, Body)>,
    /// Whether jump tables are read.
    pub tables: code::Tables,
    /// Which instructions.
    pub sites: Sites,
    /// Which kinds of access.
    pub accesses: Accesses,
    /// What the processor has.
    pub vectors: VectorLevel,
    /// Whether the agent's system calls are patched.
    pub hooks: Hooks,
    /// Functions whose entries lead to the agent.
    pub wrapped: Vec<Wrapped>,
    /// Yields of which the line is not found in a cache when it is read anew: sorted.
    pub non_temporal: Vec<u64>,
    /// Yields of the command that pass lines by which they were at lately: sorted.
    pub recalled: Vec<u64>,
    /// Yields that bound the time in loops that run for long each time they are entered: sorted.
    pub lasting: Vec<u64>,
    /// What yields do without, sorted.
    pub without: Vec<YieldPart>,
    /// Whether a loop around sites lies in their trampoline as a whole where it can. A thread then
    /// need not come out of it for as long as the loop lasts, whatever becomes of the text.
    pub closes_loops: bool,
}

impl Options {
    /// `body` before every load and store, on this machine.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self {
            body,
            bodies: Vec::new(),
            tables: code::Tables::Resolve,
            sites: Sites::All,
            accesses: Accesses::All,
            vectors: VectorLevel::detect(),
            hooks: Hooks::Plant,
            wrapped: Vec::new(),
            non_temporal: Vec::new(),
            recalled: Vec::new(),
            lasting: Vec::new(),
            without: Vec::new(),
            closes_loops: false,
        }
    }

    /// Nothing on this machine but the agent's `hooks`, to which sites may be added.
    #[must_use]
    pub fn bare(hooks: Hooks) -> Self {
        Self {
            sites: Sites::At(Vec::new()),
            hooks,
            ..Self::new(Body::Displace)
        }
    }

    /// What is put before the site that is known by this address.
    #[must_use]
    pub fn body_at(&self, address: u64) -> Body {
        let found = self.bodies.binary_search_by_key(&address, |it| it.0);
        found.map_or(self.body, |at| self.bodies[at].1)
    }

    /// What the yield at this address asks for its line with.
    pub(super) fn prefetch_of(&self, address: u64) -> Prefetch {
        let passes = self.non_temporal.binary_search(&address).is_ok();
        if passes && !self.without.contains(&YieldPart::NonTemporal) {
            Prefetch::NonTemporal
        } else {
            Prefetch::Everywhere
        }
    }

    /// Whether the yield at this address passes lines by that it was at lately.
    pub(super) fn recalls(&self, address: u64) -> bool {
        self.recalled.binary_search(&address).is_ok() && !self.without.contains(&YieldPart::Recency)
    }

    /// Whether the yield at this address is in a loop that runs for long.
    pub(super) fn lasts(&self, address: u64) -> bool {
        self.lasting.binary_search(&address).is_ok()
    }

    /// All bodies that there may be.
    pub(super) fn all_bodies(&self) -> impl Iterator<Item = Body> + '_ {
        let others = self.bodies.iter().map(|it| it.1);
        std::iter::once(self.body).chain(others)
    }

    /// Bytes that are equal exactly for equal options; for caches.
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
        for addresses in [&self.non_temporal, &self.recalled, &self.lasting] {
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

/// A body as bytes: which one, what a yield there costs or a mark says, whether it gives a base back.
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
        let lasting = Options {
            lasting: vec![8],
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
            lasting.key(),
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
