//! A readable report of what a plan does to each function.

use std::ops::Range;

use iced_x86::{Formatter, IntelFormatter};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::assembly::origin_of;
use super::function;
use super::planner::{ModuleKnowledge, bytes_of};
use super::subject::Subject;
use super::trampoline::Chunk;
use super::{Options, Plan, Refusal};
use crate::RegisterSet;
use crate::code::{Function, Unresolved};
use crate::flow::{Analyst, Direction, Liveness};
use crate::image::{FunctionBounds, Image};

/// The report on one function.
#[derive(Clone, Debug)]
pub struct FunctionReport {
    /// The function's extent and name.
    pub bounds: FunctionBounds,
    /// Number of basic blocks.
    pub blocks: usize,
    /// Number of instructions.
    pub instructions: usize,
    /// Why not all branches into the function are known; `None` if they are.
    pub unresolved: Option<Unresolved>,
    /// True if the function may use the red zone below its stack pointer.
    pub red_zone: bool,
    /// True if its stack pointer is known to point to a stack.
    pub stack_usable: bool,
    /// Accesses to memory that were to be patched, sorted by address.
    pub accesses: Vec<AccessReport>,
    /// Groups of instructions that move together, sorted by address.
    pub groups: Vec<GroupReport>,
    /// Every instruction, with [`Detail::Listing`]; empty otherwise.
    pub listing: Vec<InstructionReport>,
}

/// How detailed a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Accesses and groups only.
    Accesses,
    /// Also every instruction as text, which takes longer.
    Listing,
}

/// One instruction of a listing.
#[derive(Clone, Debug)]
pub struct InstructionReport {
    /// Address in the file.
    pub address: u64,
    /// The instruction's bytes.
    pub bytes: Vec<u8>,
    /// The instruction in Intel syntax.
    pub text: String,
    /// Number of the instruction's block in the function.
    pub block: u32,
    /// State that is alive before the instruction.
    pub live: RegisterSet,
}

/// An instruction that accesses memory.
#[derive(Clone, Debug)]
pub struct AccessReport {
    /// Address in the file.
    pub address: u64,
    /// Whether the instruction loads, stores or both.
    pub direction: Direction,
    /// Why the instruction is not patched; `None` if it is.
    pub refused: Option<Refusal>,
}

/// Instructions that move into one trampoline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// From the first instruction's start to the last instruction's end, in the file.
    pub range: Range<u64>,
    /// Bytes that the jump overwrites; fewer than five for a punned jump.
    pub overwritten: u8,
}

/// Reports on the functions of `image` that `is_selected` accepts. `plan` must have been made by
/// [`Plan::make`] from the same image and options.
#[must_use]
pub fn describe(
    image: &Image<'_>,
    options: &Options,
    plan: &Plan,
    is_selected: impl Fn(&FunctionBounds) -> bool + Sync,
    detail: Detail,
) -> Vec<FunctionReport> {
    let module = ModuleKnowledge::of(image, options);
    let conventions = module.conventions(image);
    let refused: FxHashMap<u64, Refusal> = plan
        .sites()
        .filter_map(|site| Some((site.address, site.number.err()?)))
        .collect();
    (0..image.functions().len())
        .into_par_iter()
        .filter(|index| is_selected(&image.functions()[*index]))
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
