//! One function, decoded: instructions, basic blocks and their edges.
//!
//! [`ImageFacts::gather`] examines a whole image once, for facts that its functions need of each other.
//! [`Function::decode`] then decodes any of them. Decoding follows control flow from every known entry, reads
//! jump tables until they lead to nothing new, and finally decodes bytes that no control flow was seen to
//! reach.

mod basic_block;
mod block_id;
mod blocks;
mod descent;
mod knowledge;
mod landing;
mod noreturn;
mod resolution;
mod rseq;
mod stack;
mod successors;
mod sweep;
mod table;
mod unresolved;

use iced_x86::Instruction;
use rustc_hash::FxHashMap;

use crate::between;
use crate::image::{FunctionBounds, Image};
pub use basic_block::{BasicBlock, BlockEnd};
pub use block_id::BlockId;
use blocks::Graph;
use descent::{Descent, Flow, Surroundings, flow};
pub(crate) use knowledge::Outline;
use knowledge::{EntryCertainty, FoundTables};
pub use knowledge::{ImageFacts, Tables};
use resolution::Resolution;
pub use successors::Successors;
use table::Resolver;
pub use unresolved::Unresolved;

/// A decoded function.
///
/// Invariants: instructions are sorted by address and do not overlap; blocks are sorted and
/// disjoint; every instruction of a block lies inside [`FunctionBounds::range`]. Bytes that
/// no block holds (padding, tables in text) are not decoded.
#[derive(Clone, Debug)]
pub struct Function {
    /// The function's range, name and origin.
    pub bounds: FunctionBounds,
    /// The function's instructions; `ip()` is the address in the file.
    pub instructions: Vec<Instruction>,
    /// The function's basic blocks.
    pub blocks: Vec<BasicBlock>,
    /// Why not all branches into its instructions are known; `None` if they are.
    pub unresolved: Option<Unresolved>,
    /// Address ranges that must stay as they are: rseq critical sections and the
    /// signatures before their abort handlers.
    pub untouchable: Vec<std::ops::Range<u64>>,
    /// Address ranges with a second decoding, because control also enters an instruction in the middle (for
    /// example after a `lock` prefix). Instructions that overlap such a range must not be moved.
    pub overlapped: Vec<std::ops::Range<u64>>,
}

/// Most rounds of finding tables and decoding what they lead to. Two or three are usual: tables that lead to
/// further tables.
const MAX_TABLE_ROUNDS: usize = 32;

/// Most indirect jumps that are resolved in one function; interpreters have hundreds.
const MAX_INDIRECT_JUMPS: usize = 4096;

impl Function {
    /// The instructions of a block.
    #[must_use]
    pub fn block_instructions(&self, block: &BasicBlock) -> &[Instruction] {
        &self.instructions[block.first as usize..block.end as usize]
    }

    /// The block that contains the instruction with this index; `None` if no block does.
    #[must_use]
    pub fn block_of(&self, instruction: usize) -> Option<BlockId> {
        let instruction = u32::try_from(instruction).ok()?;
        let after = self.blocks.partition_point(|it| it.first <= instruction);
        let block = after.checked_sub(1)?;
        let id = BlockId(u32::try_from(block).ok()?);
        (instruction < self.blocks[block].end).then_some(id)
    }

    /// Decodes the function with this index in [`Image::functions`].
    ///
    /// # Panics
    /// If the image has no such function.
    #[must_use]
    pub fn decode(image: &Image<'_>, knowledge: &ImageFacts, index: usize) -> Self {
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

    /// Decodes a single function without an image; nothing is known of its surroundings.
    #[must_use]
    pub fn from_code(bytes: &[u8], address: u64) -> Self {
        let bounds = FunctionBounds {
            range: address..address.saturating_add(bytes.len() as u64),
            name: None,
            exported: false,
            assembly: false,
        };
        let knowledge = ImageFacts::nothing(Tables::Resolve);
        let surroundings = Surroundings {
            image: None,
            knowledge: &knowledge,
        };
        let decoded = decode(surroundings, bytes, &bounds);
        Self::assemble(bounds, decoded, &knowledge)
    }

    /// What the function's jump tables show about other functions.
    fn tables(image: &Image<'_>, knowledge: &ImageFacts, index: usize) -> FoundTables {
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

    fn assemble(mut bounds: FunctionBounds, decoded: Decoded, knowledge: &ImageFacts) -> Self {
        let graph = decoded.graph;
        // Registers that a handler in another function reads are not seen to be read here.
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

/// The result of decoding one function.
struct Decoded {
    graph: Graph,
    /// Why not all of it is known.
    unresolved: Option<Unresolved>,
    /// See [`Function::overlapped`].
    overlapped: Vec<std::ops::Range<u64>>,
    /// The resolution of each indirect jump, by its address.
    resolutions: FxHashMap<u64, Resolution>,
}

fn decode(surroundings: Surroundings<'_, '_>, bytes: &[u8], bounds: &FunctionBounds) -> Decoded {
    let knowledge = surroundings.knowledge;
    let mut descent = Descent::new(surroundings, bytes, bounds);
    descent.enter(bounds.range.start);
    let entries = knowledge.entries(&bounds.range);
    for (address, _) in entries
        .iter()
        .filter(|(_, certainty)| *certainty == EntryCertainty::Jumped)
    {
        descent.enter(*address);
    }
    descent.follow();
    let mut resolutions = FxHashMap::default();
    // Read tables first: they show more reliably than guesses what is code.
    let before = (descent.jumps_indirectly).then(|| settle(&mut descent, &mut resolutions));
    // An address that occurs as a value may be that of data. Accept it only if it does not contradict the
    // control flow found so far.
    for (address, certainty) in entries {
        let believed = match certainty {
            EntryCertainty::Jumped => false,
            EntryCertainty::Taken => descent.reads_like_code(*address),
            EntryCertainty::Guessed => {
                descent.is_in_step(*address) && descent.reads_like_code(*address)
            }
        };
        if believed {
            descent.enter(*address);
            descent.follow();
        }
    }
    let mut data = table_ranges(&resolutions);
    data.retain(|table| table.start < bounds.range.end && bounds.range.start < table.end);
    let is_more_reached = descent.follow_unreached(&data);
    let mut graph = match before {
        Some(before) if before.holds_at == Some(descent.findings) => before.graph,
        _ => settle(&mut descent, &mut resolutions).graph,
    };
    let misses_any =
        |it: &Resolution| it.is_labels() && (is_more_reached || it.misses_any(entries));
    if resolutions.values().any(misses_any) {
        // Code that is entered in a way that no data show: an interpreter in assembly computes where it jumps to.
        resolutions.retain(|_, resolution| !resolution.is_labels());
        graph = blocks::build(&descent, &resolutions);
    }
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

/// The address ranges of the known tables.
fn table_ranges(resolutions: &FxHashMap<u64, Resolution>) -> Vec<std::ops::Range<u64>> {
    let mut ranges = Vec::new();
    for resolution in resolutions.values() {
        if let Resolution::Table { data, .. } = resolution {
            ranges.extend_from_slice(data);
        }
    }
    ranges
}

/// Decodes the targets of a table without a known end, entry by entry. The table has ended where an entry
/// leads into the middle of an instruction that earlier entries have shown. Returns true if a block begins
/// where none was known.
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

/// A function's blocks, with its indirect jumps resolved.
struct ResolvedBlocks {
    graph: Graph,
    /// The value of [`Descent::findings`] at which another search would find the same; `None` if the search
    /// was given up.
    holds_at: Option<usize>,
}

/// Reads tables and follows their entries until nothing new is found.
fn settle(
    descent: &mut Descent<'_, '_>,
    resolutions: &mut FxHashMap<u64, Resolution>,
) -> ResolvedBlocks {
    for _ in 0..MAX_TABLE_ROUNDS {
        let graph = blocks::build(descent, resolutions);
        let findings = descent.findings;
        let settled = |graph| ResolvedBlocks {
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
        if jumps.len() > MAX_INDIRECT_JUMPS {
            resolutions.clear();
            return settled(blocks::build(descent, resolutions));
        }
        let tables = table_ranges(resolutions);
        let found = Resolver::new(descent, &graph, &tables).resolve(&jumps);
        let mut changed = false;
        for &target in found.iter().flat_map(Resolution::certain) {
            changed |= descent.lead(target);
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
                // A jump that leaves the function, or that may go anywhere, adds no edge on a path to another
                // jump.
                leads_on |= resolution.has_targets() || before.is_some_and(Resolution::has_targets);
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
    // The search did not settle, so no table is trusted.
    for resolution in resolutions.values_mut() {
        *resolution = Resolution::Unresolved;
    }
    ResolvedBlocks {
        graph: blocks::build(descent, resolutions),
        holds_at: None,
    }
}
