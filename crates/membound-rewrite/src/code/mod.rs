//! One function, decoded: instructions, basic blocks and their edges.
//!
//! [`Knowledge::gather`] looks at all of an image once, for what its functions have to know
//! of each other; [`Function::decode`] then takes any of them. Decoding follows control
//! flow from every known entry, reads jump tables until they lead to nothing new, and last
//! takes in what nothing was seen to reach.

mod blocks;
mod descent;
mod knowledge;
mod landing;
mod noreturn;
mod rseq;
mod stack;
mod successors;
mod sweep;
mod table;

use std::fmt;

use iced_x86::Instruction;
use rustc_hash::FxHashMap;

use crate::between;
use crate::image::{FunctionBounds, Image};
use blocks::Graph;
use descent::{Descent, Flow, Surroundings, flow};
use knowledge::{FoundTables, Trust};
pub use knowledge::{Knowledge, Tables};
pub use successors::Successors;
use table::{Resolution, Resolver};

/// Index of a block in [`Function::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// For indexing.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How control leaves a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEnd {
    /// The next instruction begins another block.
    FallsThrough,
    /// A direct jump inside the function, conditional or not.
    Jump,
    /// A direct jump to another function (tail call, cold part): `target`. When
    /// `conditional`, the block after it is a successor. So is an indirect jump through a
    /// table of which some entries lead to another function, the others being successors;
    /// and any instruction after which control runs off what could be decoded, `target`
    /// being the address it runs to.
    Leaves {
        /// Where to, or one of the places.
        target: u64,
        /// Whether control may stay.
        conditional: bool,
    },
    /// A call. The return site, if it returns, is the successor; in hand-written code that
    /// ends with a call there may be none.
    Call {
        /// A direct call's target.
        target: Option<u64>,
        /// Whether the callee is known never to return.
        returns: bool,
    },
    /// An indirect jump whose targets are all known and inside the function.
    Table,
    /// An indirect jump that is a tail call by its form (through a GOT or PLT slot, or
    /// after the frame was taken down, with the stack pointer as at entry).
    TailCall,
    /// An indirect jump whose targets are not known.
    Unresolved,
    /// A return.
    Return,
    /// An instruction after which nothing runs (`ud2`, `hlt`, `int3`), or bytes that are no
    /// instruction.
    Stops,
}

impl BlockEnd {
    /// Whether control goes on at the block's successors and nowhere else, a callee that
    /// comes back not counted.
    #[must_use]
    pub const fn stays_inside(self) -> bool {
        matches!(
            self,
            Self::FallsThrough | Self::Jump | Self::Table | Self::Call { returns: true, .. }
        )
    }
}

/// A basic block. Its instructions follow each other; only the first is ever branched to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of its first instruction in [`Function::instructions`].
    pub first: u32,
    /// One past its last.
    pub end: u32,
    /// How control leaves it.
    pub leaves_by: BlockEnd,
    /// Blocks that may run next inside the function, landing pad excluded.
    pub successors: Successors,
    /// Where an exception thrown by the call at its end is caught, cleaned up or filtered.
    pub landing_pad: Option<BlockId>,
    /// Entered from outside the function: its entry, a landing pad, an address that is
    /// taken, an rseq abort handler.
    pub entered_from_outside: bool,
}

/// Why not every branch into a function is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unresolved {
    /// An indirect jump at this address.
    IndirectJump(u64),
    /// Its bytes cannot be decoded from this address on, or data lie among them.
    Undecodable(u64),
    /// Something outside jumps into its middle, to this address, and its own blocks are not
    /// known to begin there.
    EnteredInside(u64),
}

impl fmt::Display for Unresolved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndirectJump(at) => write!(out, "an indirect jump at {at:#x}"),
            Self::Undecodable(at) => write!(out, "bytes at {at:#x} that are no instruction"),
            Self::EnteredInside(at) => write!(out, "a jump from outside to {at:#x}"),
        }
    }
}

/// A decoded function.
///
/// Invariants: instructions are sorted by address and do not overlap; blocks are sorted and
/// disjoint; every instruction of a block lies inside [`FunctionBounds::range`]. Bytes that
/// no block holds (padding, tables in text) are not decoded.
#[derive(Clone, Debug)]
pub struct Function {
    /// Where it lies.
    pub bounds: FunctionBounds,
    /// Its instructions (`ip()` is the file's address).
    pub instructions: Vec<Instruction>,
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// `None` when every branch into its instructions is known.
    pub unresolved: Option<Unresolved>,
    /// Address ranges that must stay as they are: rseq critical sections and the
    /// signatures before their abort handlers.
    pub untouchable: Vec<std::ops::Range<u64>>,
    /// Address ranges that control also reads from inside of an instruction, as from behind a
    /// `lock` prefix: what overlaps them must stay where it is.
    pub overlapped: Vec<std::ops::Range<u64>>,
}

/// Rounds of finding tables, decoding what they lead to, and looking again. Two or three
/// are usual: tables that lead to further tables.
const ROUNDS: usize = 32;

/// The most indirect jumps that a function is believed to have; interpreters have hundreds.
const MOST_JUMPS: usize = 4096;

impl Function {
    /// The instructions of a block.
    #[must_use]
    pub fn block_instructions(&self, block: &Block) -> &[Instruction] {
        &self.instructions[block.first as usize..block.end as usize]
    }

    /// The block that holds the instruction of an index; `None` where none does.
    #[must_use]
    pub fn block_of(&self, instruction: usize) -> Option<BlockId> {
        let instruction = u32::try_from(instruction).ok()?;
        let after = self.blocks.partition_point(|it| it.first <= instruction);
        let block = after.checked_sub(1)?;
        let id = BlockId(u32::try_from(block).ok()?);
        (instruction < self.blocks[block].end).then_some(id)
    }

    /// Decodes the function of this index in [`Image::functions`].
    ///
    /// # Panics
    /// When the image has no such function.
    #[must_use]
    pub fn decode(image: &Image<'_>, knowledge: &Knowledge, index: usize) -> Self {
        between::pass();
        let bounds = image.functions()[index].clone();
        let surroundings = Surroundings {
            image: Some(image),
            knowledge,
        };
        let bytes = image.bytes(bounds.range.clone()).unwrap_or_default();
        let decoded = decode(surroundings, bytes, &bounds);
        Self::assemble(bounds, decoded, knowledge)
    }

    /// Decodes code that stands alone, with nothing known of its surroundings.
    #[must_use]
    pub fn from_code(bytes: &[u8], address: u64) -> Self {
        let bounds = FunctionBounds {
            range: address..address.saturating_add(bytes.len() as u64),
            name: None,
            exported: false,
            assembly: false,
        };
        let knowledge = Knowledge::nothing(Tables::Resolve);
        let surroundings = Surroundings {
            image: None,
            knowledge: &knowledge,
        };
        let decoded = decode(surroundings, bytes, &bounds);
        Self::assemble(bounds, decoded, &knowledge)
    }

    /// What the function's jump tables say about others.
    fn tables(image: &Image<'_>, knowledge: &Knowledge, index: usize) -> FoundTables {
        let bounds = &image.functions()[index];
        let surroundings = Surroundings {
            image: Some(image),
            knowledge,
        };
        let bytes = image.bytes(bounds.range.clone()).unwrap_or_default();
        let Decoded { resolutions, .. } = decode(surroundings, bytes, bounds);
        let mut found = FoundTables::default();
        for resolution in resolutions.into_values() {
            if let Resolution::Table { outside, data, .. } = resolution {
                found.outside.extend(outside);
                found.starts.extend(data.iter().map(|range| range.start));
            }
        }
        found
    }

    fn assemble(mut bounds: FunctionBounds, decoded: Decoded, knowledge: &Knowledge) -> Self {
        let graph = decoded.graph;
        // Registers that a handler elsewhere reads are not seen to be read here.
        bounds.assembly |= graph.caught_elsewhere;
        Self {
            untouchable: knowledge.untouchable(&bounds.range),
            bounds,
            instructions: graph.instructions,
            blocks: graph.blocks,
            unresolved: decoded.unresolved,
            overlapped: decoded.overlapped,
        }
    }
}

/// What decoding finds out of a function.
struct Decoded {
    graph: Graph,
    /// Why not all of it is known.
    unresolved: Option<Unresolved>,
    /// See [`Function::overlapped`].
    overlapped: Vec<std::ops::Range<u64>>,
    /// What its indirect jumps were found to do.
    resolutions: FxHashMap<u64, Resolution>,
}

fn decode(surroundings: Surroundings<'_, '_>, bytes: &[u8], bounds: &FunctionBounds) -> Decoded {
    let knowledge = surroundings.knowledge;
    let mut descent = Descent::new(surroundings, bytes, bounds);
    descent.enter(bounds.range.start);
    let entries = knowledge.entries(&bounds.range);
    for (address, _) in entries.iter().filter(|(_, trust)| *trust == Trust::Jumped) {
        descent.enter(*address);
    }
    descent.follow();
    let mut resolutions = FxHashMap::default();
    // Tables say what is code before guesses do.
    let before = (descent.jumps_indirectly).then(|| settle(&mut descent, &mut resolutions));
    // Addresses that somebody has the value of may be data: they count where they do not
    // contradict what control flow shows.
    for (address, trust) in entries {
        let believed = match trust {
            Trust::Jumped => false,
            Trust::Taken => descent.reads_like_code(*address),
            Trust::Guessed => descent.is_in_step(*address) && descent.reads_like_code(*address),
        };
        if believed {
            descent.enter(*address);
            descent.follow();
        }
    }
    let mut data = table_ranges(&resolutions);
    data.retain(|table| table.start < bounds.range.end && bounds.range.start < table.end);
    descent.follow_unreached(&data);
    let graph = match before {
        Some(before) if before.holds_at == Some(descent.findings) => before.graph,
        _ => settle(&mut descent, &mut resolutions).graph,
    };
    let jump = graph
        .blocks
        .iter()
        .find(|block| block.leaves_by == BlockEnd::Unresolved)
        .map(|block| Unresolved::IndirectJump(graph.instructions[block.end as usize - 1].ip()));
    let unresolved = descent.unresolved().or(jump);
    Decoded {
        graph,
        unresolved,
        overlapped: descent.overlapped(),
        resolutions,
    }
}

/// Where known tables lie.
fn table_ranges(resolutions: &FxHashMap<u64, Resolution>) -> Vec<std::ops::Range<u64>> {
    let mut ranges = Vec::new();
    for resolution in resolutions.values() {
        if let Resolution::Table { data, .. } = resolution {
            ranges.extend_from_slice(data);
        }
    }
    ranges
}

/// Decodes what a table without a known end leads to, entry by entry: where one leads into
/// the middle of what those before it showed, the table has ended. Whether a block begins
/// where none was known to.
fn lead_while_valid(descent: &mut Descent<'_, '_>, targets: &[u64]) -> bool {
    let mut new = false;
    for &target in targets {
        if descent.offset(target).is_some() {
            if !descent.reads_like_code(target) {
                break;
            }
            new |= descent.lead(target);
            descent.follow();
        }
    }
    new
}

/// A function's blocks, with its jumps resolved.
struct Settled {
    graph: Graph,
    /// The [`Descent::findings`] for which looking again would find the same; `None` where the search was given up.
    holds_at: Option<usize>,
}

/// Reads tables and follows them until nothing new is found.
fn settle(descent: &mut Descent<'_, '_>, resolutions: &mut FxHashMap<u64, Resolution>) -> Settled {
    for _ in 0..ROUNDS {
        let graph = blocks::build(descent, resolutions);
        let findings = descent.findings;
        let settled = |graph| Settled {
            graph,
            holds_at: Some(findings),
        };
        if !descent.jumps_indirectly {
            return settled(graph);
        }
        let jumps: Vec<(BlockId, Instruction)> = (0..)
            .map(BlockId)
            .zip(&graph.blocks)
            .map(|(id, block)| (id, &graph.instructions[block.end as usize - 1]))
            .filter(|(_, last)| flow(last) == Flow::Indirect)
            .map(|(id, last)| (id, *last))
            .collect();
        if jumps.is_empty() {
            return settled(graph);
        }
        if jumps.len() > MOST_JUMPS {
            resolutions.clear();
            return settled(blocks::build(descent, resolutions));
        }
        let tables = table_ranges(resolutions);
        let found = Resolver::new(descent, &graph, &tables).resolve(&jumps);
        let mut changed = false;
        for resolution in &found {
            if let Resolution::Table {
                inside, guessed, ..
            } = resolution
                && guessed.is_empty()
            {
                for &target in inside {
                    changed |= descent.lead(target);
                }
            }
        }
        descent.follow();
        for resolution in &found {
            if let Resolution::Table { guessed, .. } = resolution {
                changed |= lead_while_valid(descent, guessed);
            }
        }
        let mut leads_on = changed || descent.findings != findings;
        for ((_, jump), resolution) in jumps.iter().zip(found) {
            let before = resolutions.get(&jump.ip());
            if before != Some(&resolution) {
                changed = true;
                // Jumps that leave the function, or may go anywhere, are edges of no way to another.
                leads_on |= is_table(&resolution) || before.is_some_and(is_table);
                resolutions.insert(jump.ip(), resolution);
            }
        }
        if !changed {
            return settled(graph);
        }
        if !leads_on {
            return settled(blocks::build(descent, resolutions));
        }
    }
    // Nothing that is still in motion is believed.
    for resolution in resolutions.values_mut() {
        *resolution = Resolution::Unresolved;
    }
    Settled {
        graph: blocks::build(descent, resolutions),
        holds_at: None,
    }
}

const fn is_table(resolution: &Resolution) -> bool {
    matches!(resolution, Resolution::Table { .. })
}
