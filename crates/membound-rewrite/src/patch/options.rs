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
    /// bodies those will do that ask for no operand.
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
    /// They are not: for inspection and tests.
    LeaveOut,
}

/// What a plan is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is put before each instruction.
    pub body: Body,
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
}

impl Options {
    /// `body` before every load and store, on this machine.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self {
            body,
            tables: code::Tables::Resolve,
            sites: Sites::All,
            accesses: Accesses::All,
            vectors: VectorLevel::detect(),
            hooks: Hooks::Plant,
            wrapped: Vec::new(),
        }
    }

    /// Bytes that are equal exactly for equal options; for caches.
    #[must_use]
    pub fn key(&self) -> Vec<u8> {
        let body = match self.body {
            Body::Displace => 0,
            Body::Count { exact: false } => 1,
            Body::Count { exact: true } => 2,
            Body::Rubbish => 3,
            Body::Sample => 4,
            Body::Record => 5,
            Body::PrefetchYield => 6,
            Body::CountByStack => 7,
            Body::Yield(Yield::Primary) => 8,
            Body::Yield(Yield::Miss { .. }) => 9,
            Body::Yield(Yield::Bound { .. }) => 10,
            Body::Yield(Yield::Base) => 11,
        };
        let cost = match self.body {
            Body::Yield(Yield::Miss { cost } | Yield::Bound { cost }) => cost,
            _ => 0,
        };
        let [cost_low, cost_high] = cost.to_le_bytes();
        let mut key = vec![
            body,
            cost_low,
            cost_high,
            self.tables as u8,
            self.accesses as u8,
            self.vectors as u8,
            self.hooks as u8,
        ];
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
