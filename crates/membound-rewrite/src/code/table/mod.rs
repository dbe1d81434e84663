//! Determines where indirect jumps lead.
//!
//! A jump's target is computed symbolically along every path that leads to the jump, as far back as necessary
//! to find the check of its index ([`path`]). If no check is found, a table is read for as long as its
//! entries could be targets in the function: too many targets only prevent some patches, while too few would
//! make patches incorrect.

mod constants;
mod path;
mod state;
mod value;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{Code, Instruction, OpKind};

use super::basic_block::BlockEnd;
use super::block_id::BlockId;
use super::blocks::Graph;
use super::descent::Descent;
use super::knowledge::{CodePointer, Tables};
use super::resolution::Resolution;
use super::stack::Stack;
use crate::image::Image;
use path::{Entry, PathResult, Table};

/// Most entries that a table may have; compilers do not come close.
const MAX_TABLE_ENTRIES: u64 = 1 << 16;

/// Most targets of all jumps of a function together: [`BASE_TARGET_LIMIT`], and [`TARGET_LIMIT_PER_BYTE`] for
/// each byte of the function.
const BASE_TARGET_LIMIT: u64 = 2048;
const TARGET_LIMIT_PER_BYTE: u64 = 16;

/// State of the search for the targets of one function's jumps.
pub(super) struct Resolver<'a, 'b, 'data> {
    descent: &'a Descent<'b, 'data>,
    graph: &'a Graph,
    paths: path::Context<'a, 'data>,
    stack: OnceCell<Stack>,
    /// Addresses of code in the function that occur in data outside known tables.
    labels: Vec<u64>,
    /// Indices of the functions that this one branches into.
    parts: BTreeSet<usize>,
    /// Start addresses of known tables.
    starts: BTreeSet<u64>,
    /// Number of targets that the jumps of the function may still have together.
    left: Cell<u64>,
}

impl<'a, 'b, 'data> Resolver<'a, 'b, 'data> {
    /// `tables` are the address ranges of the tables of other jumps in the function.
    pub(super) fn new(
        descent: &'a Descent<'b, 'data>,
        graph: &'a Graph,
        tables: &[Range<u64>],
    ) -> Self {
        let surroundings = descent.surroundings;
        let range = descent.start()..descent.end();
        let pointers: Vec<CodePointer> = surroundings
            .knowledge
            .code_pointers(&range)
            .iter()
            .filter(|pointer| !tables.iter().any(|table| table.contains(&pointer.at)))
            .filter(|pointer| descent.reads_like_code(pointer.value))
            .copied()
            .collect();
        // Without a relocation, a single word that looks like an address is taken for a number.
        let places: BTreeSet<u64> = pointers.iter().map(|pointer| pointer.at).collect();
        let guessed = surroundings.image.is_some_and(Image::position_dependent);
        let labels = pointers
            .into_iter()
            .filter(|pointer| {
                let near = [pointer.at.wrapping_sub(8), pointer.at.wrapping_add(8)];
                !guessed || near.iter().any(|at| places.contains(at))
            })
            .map(|pointer| pointer.value)
            .collect();
        let parts = surroundings.image.map_or_else(BTreeSet::new, |image| {
            let leaves = graph
                .blocks
                .iter()
                .filter_map(|block| match block.leaves_by {
                    BlockEnd::Leaves {
                        target,
                        conditional: true,
                    } => image.function_at(target),
                    _ => None,
                });
            leaves.collect()
        });
        Self {
            descent,
            graph,
            paths: path::Context::new(surroundings.image, graph),
            stack: OnceCell::new(),
            labels,
            parts,
            left: Cell::new(
                BASE_TARGET_LIMIT + (descent.end() - descent.start()) * TARGET_LIMIT_PER_BYTE,
            ),
            starts: tables.iter().map(|table| table.start).collect(),
        }
    }

    /// Determines where the jumps at the ends of these blocks lead.
    pub(super) fn resolve(&mut self, jumps: &[(BlockId, Instruction)]) -> Vec<Resolution> {
        let path_results: Vec<PathResult> = jumps
            .iter()
            .map(|(block, jump)| self.search(*block, jump))
            .collect();
        // A table ends where another begins, so identify all tables before any is read.
        for path_results in &path_results {
            if let PathResult::Known { tables, .. } = path_results {
                self.starts.extend(tables.iter().map(|table| table.address));
            }
        }
        jumps
            .iter()
            .zip(path_results)
            .map(|((block, _), path_results)| self.decide(*block, path_results))
            .collect()
    }

    fn search(&self, block: BlockId, jump: &Instruction) -> PathResult {
        let near = match jump.op0_kind() {
            // A jump through a word at a fixed address: a slot that the loader fills.
            OpKind::Memory if jump.is_ip_rel_memory_operand() => return PathResult::Slot,
            OpKind::Memory => jump.code() == Code::Jmp_rm64,
            OpKind::Register => true,
            _ => false,
        };
        if !near {
            return PathResult::Far;
        }
        path::search(&self.paths, block)
    }

    fn decide(&self, block: BlockId, path_results: PathResult) -> Resolution {
        let resolve = self.descent.surroundings.knowledge.tables() == Tables::Resolve;
        match path_results {
            PathResult::Slot => Resolution::TailCall,
            PathResult::Far | PathResult::Sum => Resolution::Unresolved,
            PathResult::Word | PathResult::Unknown => self.otherwise(block, resolve),
            PathResult::Known {
                tables,
                addresses,
                bounded,
            } => match self.read_all(&tables, addresses, bounded) {
                Some(table) if resolve => table,
                Some(_) => Resolution::Unresolved,
                None => self.otherwise(block, resolve),
            },
        }
    }

    /// The result for a jump without a table. It is a tail call if the return address is on top of the stack;
    /// otherwise it may lead to any label of the function that occurs in data.
    fn otherwise(&self, block: BlockId, resolve: bool) -> Resolution {
        let image = self.descent.surroundings.image;
        let stack = self
            .stack
            .get_or_init(|| Stack::trace(self.graph, self.descent.bounds, image));
        let may_leave = stack.is_as_at_entry(block);
        match (may_leave, self.labels.is_empty()) {
            (true, true) => Resolution::TailCall,
            (false, false) if resolve && self.spend(self.labels.len() as u64) => {
                let labels = self.labels.iter();
                Resolution::Labels {
                    inside: labels
                        .copied()
                        .filter(|&label| self.descent.may_begin(label))
                        .collect(),
                }
            }
            _ => Resolution::Unresolved,
        }
    }

    /// The targets of all tables together; `None` if one of them is not a jump table.
    fn read_all(
        &self,
        tables: &BTreeSet<Table>,
        addresses: BTreeSet<u64>,
        bounded: bool,
    ) -> Option<Resolution> {
        let (mut inside, mut outside): (BTreeSet<u64>, BTreeSet<u64>) = addresses
            .into_iter()
            .partition(|&address| self.descent.offset(address).is_some());
        let mut data = Vec::new();
        let mut guessed = Vec::new();
        for table in tables {
            let image = self.descent.surroundings.image?;
            let targets = if bounded {
                self.read_bounded(image, table)?
            } else {
                self.read_while_valid(image, table)
            };
            if targets.is_empty() {
                return None;
            }
            data.push(table.address..table.address + table.stride * targets.len() as u64);
            if !bounded {
                guessed.extend_from_slice(&targets);
            }
            for target in targets {
                if self.descent.offset(target).is_some() {
                    inside.insert(target);
                } else {
                    outside.insert(target);
                }
            }
        }
        // A table of functions: tail calls, or a pattern that is not understood.
        let only_functions = inside.is_empty()
            && self.descent.surroundings.image.is_some_and(|image| {
                outside
                    .iter()
                    .all(|&target| image.is_function_start(target) && !self.is_part(image, target))
            });
        if only_functions {
            return None;
        }
        Some(Resolution::Table {
            inside: inside.into_iter().collect(),
            outside: outside.into_iter().collect(),
            data,
            guessed,
        })
    }

    /// True if an address lies in another part of this function, that is, in a function that this one
    /// branches into.
    fn is_part(&self, image: &Image<'_>, target: u64) -> bool {
        image
            .function_at(target)
            .is_some_and(|function| self.parts.contains(&function))
    }

    /// Deducts `targets` from the number of targets left; false if there are not enough.
    fn spend(&self, targets: u64) -> bool {
        let left = self.left.get().checked_sub(targets);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The entries of a table up to the first that cannot be a target or belongs to another table.
    fn read_while_valid(&self, image: &Image<'_>, table: &Table) -> Vec<u64> {
        let next_start = self.starts.range(table.address.saturating_add(1)..).next();
        let anywhere = self
            .descent
            .surroundings
            .knowledge
            .next_table(table.address);
        let end = next_start.copied().into_iter().chain(anywhere).min();
        let targets: Vec<u64> = (0..MAX_TABLE_ENTRIES.min(self.left.get()))
            .take_while(|index| {
                let at = table.address.saturating_add(table.stride * index);
                end.is_none_or(|end| at < end)
            })
            .map_while(|index| {
                let target = read_entry(image, table, index)?;
                let valid = match self.descent.offset(target) {
                    Some(_) => self.descent.reads_like_code(target),
                    None => self.is_part(image, target),
                };
                valid.then_some(target)
            })
            .collect();
        self.spend(targets.len() as u64);
        targets
    }

    /// All entries of a table whose highest index is known; `None` if one of them leads out of text.
    fn read_bounded(&self, image: &Image<'_>, table: &Table) -> Option<Vec<u64>> {
        let highest = table
            .highest
            .filter(|&highest| highest < MAX_TABLE_ENTRIES)?;
        if !self.spend(highest + 1) {
            return None;
        }
        (0..=highest)
            .map(|index| read_entry(image, table, index).filter(|&target| image.is_text(target)))
            .collect()
    }
}

fn read_entry(image: &Image<'_>, table: &Table, index: u64) -> Option<u64> {
    let at = table
        .address
        .checked_add(table.stride.checked_mul(index)?)?;
    let word = |bits: u8| {
        let bytes = image.bytes(at..at.checked_add(u64::from(bits / 8))?)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    };
    match table.entry {
        Entry::Address => match image.pointer_at(at) {
            Some(target) => Some(target),
            None if image.position_dependent() => word(64),
            None => None,
        },
        Entry::Offset {
            base,
            factor,
            bits,
            signed,
        } => {
            let word = word(bits)?;
            let shift = 64 - u32::from(bits);
            let offset = if signed {
                (word.cast_signed() << shift >> shift).cast_unsigned()
            } else {
                word
            };
            Some(base.wrapping_add(offset.wrapping_mul(factor)))
        }
    }
}
