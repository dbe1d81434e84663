//! What a plan does to each function, for people.

use std::collections::HashMap;
use std::ops::Range;

use iced_x86::{Formatter, IntelFormatter};
use rayon::prelude::*;

use super::function::{self, Subject};
use super::planner::{Module, bytes_of, origin_of};
use super::trampoline::Chunk;
use super::{Options, Plan, Refusal};
use crate::RegisterSet;
use crate::code::{Function, Unresolved};
use crate::flow::{Analyst, Direction, Liveness};
use crate::image::{FunctionBounds, Image};

/// One function.
#[derive(Clone, Debug)]
pub struct FunctionReport {
    /// Its extent and name.
    pub bounds: FunctionBounds,
    /// Basic blocks.
    pub blocks: usize,
    /// Instructions.
    pub instructions: usize,
    /// Why not every branch into it is known.
    pub unresolved: Option<Unresolved>,
    /// Whether the bytes below its stack pointer may hold something.
    pub red_zone: bool,
    /// Whether its stack pointer is known to point to a stack.
    pub stack_usable: bool,
    /// Its accesses to memory that were to be patched, sorted by address.
    pub accesses: Vec<AccessReport>,
    /// Instructions that move together, sorted by address.
    pub groups: Vec<GroupReport>,
}

/// One instruction that accesses memory.
#[derive(Clone, Debug)]
pub struct AccessReport {
    /// Its address in the file.
    pub address: u64,
    /// It, in words.
    pub instruction: String,
    /// What it does to memory.
    pub direction: Direction,
    /// What may be read after it came here, before it is written.
    pub live: RegisterSet,
    /// Why it is not patched.
    pub refused: Option<Refusal>,
}

/// Instructions that move into one trampoline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// From the first byte of the first to the last of the last.
    pub range: Range<u64>,
    /// Bytes that the jump overwrites; below five it is a punned one.
    pub overwritten: u8,
}

/// Reports of the functions of `image` that `wanted` picks. `plan` must be
/// [`Plan::make`]'s of the same image and options.
#[must_use]
pub fn describe(
    image: &Image<'_>,
    options: &Options,
    plan: &Plan,
    wanted: impl Fn(&FunctionBounds) -> bool + Sync,
) -> Vec<FunctionReport> {
    let module = Module::of(image, options);
    let conventions = module.conventions(image);
    let refused: HashMap<u64, Refusal> = plan
        .sites()
        .filter_map(|site| Some((site.address, site.number.err()?)))
        .collect();
    (0..image.functions().len())
        .into_par_iter()
        .filter(|index| wanted(&image.functions()[*index]))
        .map_init(Analyst::new, |analyst, index| {
            let function = Function::decode(image, &module.knowledge, index);
            let liveness = Liveness::of(&function, &conventions, analyst);
            let subject = Subject {
                function: &function,
                bytes: bytes_of(image, index),
                liveness: &liveness,
            };
            let mut chunk = Chunk::new(origin_of(image));
            let found = function::plan(&subject, options, analyst, &mut chunk);
            let mut formatter = IntelFormatter::new();
            let accesses = found
                .sites
                .iter()
                .map(|site| {
                    let mut instruction = String::new();
                    let at = &function.instructions[site.instruction];
                    formatter.format(at, &mut instruction);
                    AccessReport {
                        address: site.address,
                        instruction,
                        direction: site.direction,
                        live: liveness.before(site.instruction),
                        refused: refused.get(&site.address).copied(),
                    }
                })
                .collect();
            let groups = found
                .groups
                .iter()
                .map(|group| {
                    let first = function.instructions[group.first].ip();
                    let end = function.instructions[group.end - 1].next_ip();
                    GroupReport {
                        range: first..end,
                        overwritten: group.room,
                    }
                })
                .collect();
            FunctionReport {
                blocks: function.blocks.len(),
                instructions: function.instructions.len(),
                unresolved: function.unresolved,
                red_zone: liveness.red_zone(),
                stack_usable: liveness.stack_usable(),
                accesses,
                groups,
                bounds: function.bounds,
            }
        })
        .collect()
}
