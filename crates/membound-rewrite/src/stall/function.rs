//! A decoded function with facts derived from it.
//!
//! A recording of a large program samples thousands of instructions of one function, so loops and edges are
//! computed once and kept.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use iced_x86::{Formatter as _, Instruction, IntelFormatter, Mnemonic};
use self_cell::self_cell;

use crate::code::{BlockId, Function};
use crate::flow::{self, Conventions, Direction, Graph, Loops, Reaching, Summaries};
use crate::image::Convention;

/// Conventions under which nothing is known about calls.
static CONVENTIONS: LazyLock<Conventions<'static>> = LazyLock::new(|| {
    static SUMMARIES: LazyLock<Summaries> = LazyLock::new(Summaries::default);
    Conventions {
        convention: Convention::Unknown,
        summaries: &SUMMARIES,
    }
});

/// What an instruction does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteKind {
    /// Reads memory.
    Load,
    /// Writes memory.
    Store,
    /// Reads and writes memory.
    Both,
    /// Reads and writes memory in one atomic step.
    Locked,
    /// Prefetches a line: waits for translation, and for room among the lines on their way, but not for the line.
    Prefetch,
}

/// An instruction that accesses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteInfo {
    /// What the instruction does to memory.
    pub kind: SiteKind,
    /// Bytes of one access; 0 if unknown.
    pub bytes: u32,
    /// The instruction in Intel syntax.
    pub text: String,
}

self_cell! {
    struct Origins {
        owner: Arc<Function>,
        #[covariant]
        dependent: Reaching,
    }
}

/// Bytes of a function that share one entry in [`CodeFunction::pieces`].
const PIECE_BYTES: u64 = 64;

/// A decoded function of a file.
pub struct CodeFunction {
    function: Arc<Function>,
    /// For each piece of [`PIECE_BYTES`], the index of the first instruction that begins in it or after it. A
    /// binary search over the instructions themselves would miss the caches at every step in a function of
    /// megabytes.
    pieces: OnceLock<Vec<u32>>,
    graph: OnceLock<Arc<Graph>>,
    loops: OnceLock<Loops>,
    origins: OnceLock<Origins>,
}

impl fmt::Debug for CodeFunction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = self.range();
        write!(out, "CodeFunction({:#x}..{:#x})", range.start, range.end)
    }
}

impl CodeFunction {
    /// The function's address range in the file.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.function.bounds.range.clone()
    }

    /// See [`super::Code::site`].
    #[must_use]
    pub fn site(&self, address: u64) -> Option<SiteInfo> {
        let instruction = &self.function.instructions[self.index_of(address)?];
        let (kind, bytes) = match flow::access(instruction) {
            Some(access) => (kind(instruction, access.direction), access.bytes),
            None if is_prefetch(instruction) => (SiteKind::Prefetch, 1),
            None => return None,
        };
        let mut text = String::new();
        IntelFormatter::new().format(instruction, &mut text);
        Some(SiteInfo { kind, bytes, text })
    }

    pub(super) fn new(function: Function) -> Self {
        Self {
            function: Arc::new(function),
            pieces: OnceLock::new(),
            graph: OnceLock::new(),
            loops: OnceLock::new(),
            origins: OnceLock::new(),
        }
    }

    pub(super) const fn function(&self) -> &Arc<Function> {
        &self.function
    }

    /// The index of the instruction at an address.
    pub(super) fn index_of(&self, address: u64) -> Option<usize> {
        let instructions = &self.function.instructions;
        let start = self.function.bounds.range.start;
        let piece = usize::try_from(address.checked_sub(start)? / PIECE_BYTES).ok()?;
        let pieces = self.pieces.get_or_init(|| pieces(instructions, start));
        let first = *pieces.get(piece)? as usize;
        let end = pieces
            .get(piece + 1)
            .map_or(instructions.len(), |end| *end as usize);
        let found = instructions[first..end].binary_search_by_key(&address, Instruction::ip);
        found.ok().map(|found| first + found)
    }

    fn graph(&self) -> &Arc<Graph> {
        self.graph
            .get_or_init(|| Arc::new(Graph::of(&self.function)))
    }

    /// The blocks that may run directly before a block, ascending, each once.
    pub(super) fn predecessors(&self, block: BlockId) -> impl Iterator<Item = BlockId> + '_ {
        let mut last = None;
        let each = self.graph().predecessors(block.index());
        each.filter(move |it| last.replace(*it) != Some(*it))
            .filter_map(|it| Some(BlockId(u32::try_from(it).ok()?)))
    }

    pub(super) fn loops(&self) -> &Loops {
        self.loops.get_or_init(|| Loops::of_graph(self.graph()))
    }

    /// Origins of register values, under the assumption that calls may do anything.
    pub(super) fn origins(&self) -> &Reaching<'_> {
        let new = || {
            let function = Arc::clone(&self.function);
            let graph = Arc::clone(self.graph());
            Origins::new(function, |function| {
                Reaching::in_graph(function, graph, &CONVENTIONS)
            })
        };
        self.origins.get_or_init(new).borrow_dependent()
    }
}

/// Computes [`CodeFunction::pieces`].
fn pieces(instructions: &[Instruction], start: u64) -> Vec<u32> {
    let mut pieces = Vec::new();
    for (position, instruction) in (0_u32..).zip(instructions) {
        let piece = instruction.ip().saturating_sub(start) / PIECE_BYTES;
        let needed = usize::try_from(piece).map_or(usize::MAX, |it| it + 1);
        if pieces.len() < needed {
            pieces.resize(needed, position);
        }
    }
    pieces
}

/// The index of the instruction at an address.
pub(super) fn index_of(function: &Function, address: u64) -> Option<usize> {
    function
        .instructions
        .binary_search_by_key(&address, Instruction::ip)
        .ok()
}

/// What the instruction does to memory.
/// True for instructions that ask for a line and use none of its bytes.
pub(super) fn is_prefetch(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetchw
    )
}

pub(super) fn kind(instruction: &Instruction, direction: Direction) -> SiteKind {
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg;
    match direction {
        Direction::Both if instruction.has_lock_prefix() || exchanges => SiteKind::Locked,
        Direction::Both => SiteKind::Both,
        Direction::Load => SiteKind::Load,
        Direction::Store => SiteKind::Store,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two loops, an entry with two jumps to it, and more bytes than one piece.
    fn studied() -> CodeFunction {
        let mut code = vec![0x48, 0x01, 0xd8]; // add rax, rbx
        code.extend([0x90; 90]);
        code.extend([0x75, 0xa1]); // jne to the first instruction
        code.extend([0x74, 0x03]); // je past what comes next
        code.extend([0x48, 0x8b, 0x03]); // mov rax, [rbx]
        code.extend([0x75, 0xfb]); // jne to it
        code.push(0xc3); // ret
        CodeFunction::new(Function::from_code(&code, 0x1007))
    }

    #[test]
    fn an_instruction_is_found_by_its_address_and_by_no_other() {
        let studied = studied();
        let instructions = &studied.function().instructions;
        let end = instructions.last().unwrap().next_ip();
        for address in 0xff0..end + 200 {
            let expected = instructions.iter().position(|it| it.ip() == address);
            assert_eq!(studied.index_of(address), expected, "{address:#x}");
        }
        assert_eq!(studied.index_of(0x1007), Some(0));
        assert_eq!(studied.index_of(0x100a), Some(1));
        assert_eq!(studied.index_of(0x1008), None);
        assert_eq!(studied.index_of(u64::MAX), None);
    }

    #[test]
    fn predecessors_are_the_blocks_that_lead_to_one_each_once() {
        let studied = studied();
        let blocks = &studied.function().blocks;
        let ids = || (0..).map(BlockId).take(blocks.len());
        for to in ids() {
            let leads = |from: &BlockId| blocks[from.index()].successors.contains(&to);
            let expected: Vec<BlockId> = ids().filter(leads).collect();
            let found: Vec<BlockId> = studied.predecessors(to).collect();
            assert_eq!(found, expected, "{to:?}");
        }
        let load = studied.index_of(0x1007 + 97).unwrap();
        let load = studied.function().block_of(load).unwrap();
        assert_eq!(studied.predecessors(load).count(), 2);
    }

    #[test]
    fn a_function_without_instructions_has_none_at_any_address() {
        let studied = CodeFunction::new(Function::from_code(&[], 0x1000));
        assert_eq!(studied.index_of(0x1000), None);
    }
}
