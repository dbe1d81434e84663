//! What a plan does to each function, for people.

use std::ops::Range;

use iced_x86::{Formatter, IntelFormatter};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

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
    /// Every instruction, with [`Detail::Listing`]; empty otherwise.
    pub listing: Vec<InstructionReport>,
}

/// How much is said of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Accesses and groups.
    Accesses,
    /// Every instruction in words as well, which takes its time.
    Listing,
}

/// One instruction of a listing.
#[derive(Clone, Debug)]
pub struct InstructionReport {
    /// Its address in the file.
    pub address: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It, in words.
    pub text: String,
    /// Number of its block in the function.
    pub block: u32,
    /// What may be read after control came here, before it is written.
    pub live: RegisterSet,
}

/// One instruction that accesses memory.
#[derive(Clone, Debug)]
pub struct AccessReport {
    /// Its address in the file.
    pub address: u64,
    /// What it does to memory.
    pub direction: Direction,
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
    detail: Detail,
) -> Vec<FunctionReport> {
    let module = Module::of(image, options);
    let conventions = module.conventions(image);
    let refused: FxHashMap<u64, Refusal> = plan
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
                unused: conventions.unused_vectors(&function),
            };
            let mut chunk = Chunk::new(origin_of(image));
            let found = function::plan(&subject, options, analyst, &mut chunk);
            let accesses = found
                .sites
                .iter()
                .map(|site| AccessReport {
                    address: site.address,
                    direction: site.direction,
                    refused: refused.get(&site.address).copied(),
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
                listing: match detail {
                    Detail::Accesses => Vec::new(),
                    Detail::Listing => listing(&subject),
                },
                bounds: function.bounds,
            }
        })
        .collect()
}

fn listing(subject: &Subject<'_>) -> Vec<InstructionReport> {
    let function = subject.function;
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    formatter.options_mut().set_rip_relative_addresses(true);
    let start = function.bounds.range.start;
    let blocks = function.blocks.iter().zip(0_u32..);
    blocks
        .flat_map(|(block, number)| {
            let indices = block.first as usize..block.end as usize;
            indices.map(move |index| (index, number))
        })
        .map(|(index, block)| {
            let instruction = &function.instructions[index];
            let mut text = String::new();
            formatter.format(instruction, &mut text);
            let from = instruction.ip().saturating_sub(start) as usize;
            let bytes = subject.bytes.get(from..from + instruction.len());
            InstructionReport {
                address: instruction.ip(),
                bytes: bytes.unwrap_or_default().to_vec(),
                text,
                block,
                live: subject.liveness.before(index),
            }
        })
        .collect()
}
