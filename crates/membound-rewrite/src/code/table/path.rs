//! Evaluates an indirect jump along the paths that lead to it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use iced_x86::{ConditionCode, Instruction, OpKind, Register};

use super::constants::Constants;
use super::state::State;
use super::value::{Node, Value, low_mask};
use crate::code::basic_block::BlockEnd;
use crate::code::block_id::BlockId;
use crate::code::blocks::Graph;
use crate::code::descent::{Flow, flow};
use crate::image::Image;

/// Most blocks of a path.
const MAX_PATH_BLOCKS: usize = 10;
/// Most paths that are evaluated for one jump.
const MAX_PATHS: usize = 96;
/// Most paths if the target is a word read from memory without a visible index: almost always a method call
/// in tail position.
const MAX_PATHS_TO_WORD: usize = 8;

/// Most instructions of one block that are evaluated, counted from its end.
const MAX_INSTRUCTIONS_PER_BLOCK: usize = 128;

/// How the entries of a table become addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Entry {
    /// Entries are addresses of 8 bytes.
    Address,
    /// Entries are differences to a base.
    Offset {
        /// The base that is added.
        base: u64,
        /// The factor by which an entry is multiplied first.
        factor: u64,
        /// Width of an entry in bits, 8–64.
        bits: u8,
        /// True if entries are sign-extended.
        signed: bool,
    },
}

/// A jump table, as used on one path to the jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Table {
    /// Address of the entry for index 0.
    pub(super) address: u64,
    /// Bytes from one entry to the next.
    pub(super) stride: u64,
    pub(super) entry: Entry,
    /// The highest index; `None` if unknown.
    pub(super) highest: Option<u64>,
}

/// How the target of a jump is computed on one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// It is an entry of one of these tables.
    Tables(Vec<Table>),
    /// It is one constant address.
    Constant(u64),
    /// It is a word read from memory.
    Word,
    /// It is a sum with unknown parts; a tail call would not jump to such an address.
    Sum,
    /// It may be anything.
    Unknown,
}

/// The combined result of all paths to a jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathResult {
    /// The jump goes through a word at a fixed address.
    Slot,
    /// The jump goes to another code segment.
    Far,
    /// All paths use one of these tables or lead to one of these addresses. `bounded` is true if the highest
    /// index of every table was found.
    Known {
        tables: BTreeSet<Table>,
        addresses: BTreeSet<u64>,
        bounded: bool,
    },
    /// As [`Target::Word`].
    Word,
    /// As [`Target::Sum`], on at least one path.
    Sum,
    /// As [`Target::Unknown`].
    Unknown,
}

/// Follows the paths to the jump at the end of `block` backward until the bound of the table's index is found
/// on each.
pub(super) fn search(context: &Context<'_, '_>, block: BlockId) -> PathResult {
    let mut path = vec![block];
    let nearest = context.evaluate(&path);
    let max_paths = if nearest == Target::Word {
        MAX_PATHS_TO_WORD
    } else {
        MAX_PATHS
    };
    let mut search = Search {
        context,
        left: max_paths,
        sum: false,
        tables: BTreeSet::new(),
        addresses: BTreeSet::new(),
    };
    if search.extend(&mut path) {
        return PathResult::Known {
            tables: search.tables,
            addresses: search.addresses,
            bounded: true,
        };
    }
    // Not every path has a bound. Search for the tables alone, on the shortest paths that show them.
    search.left = max_paths;
    search.tables.clear();
    search.addresses.clear();
    path.truncate(1);
    match search.identify(&mut path) {
        Some(()) => PathResult::Known {
            tables: search.tables,
            addresses: search.addresses,
            bounded: false,
        },
        None if search.sum => PathResult::Sum,
        None if nearest == Target::Word => PathResult::Word,
        None => PathResult::Unknown,
    }
}

struct Search<'s, 'a, 'data> {
    context: &'s Context<'a, 'data>,
    left: usize,
    /// True if the target is a sum on at least one path.
    sum: bool,
    tables: BTreeSet<Table>,
    addresses: BTreeSet<u64>,
}

impl Search<'_, '_, '_> {
    /// True if every path that ends with `path` leads to tables with checked bounds. The path's first block
    /// is the last element of the vector.
    fn extend(&mut self, path: &mut Vec<BlockId>) -> bool {
        let Some(left) = self.left.checked_sub(1) else {
            return false;
        };
        self.left = left;
        match self.context.evaluate(path) {
            Target::Tables(tables) if tables.iter().all(|table| table.highest.is_some()) => {
                self.tables.extend(tables);
                return true;
            }
            Target::Constant(address) => {
                self.addresses.insert(address);
                return true;
            }
            Target::Sum => self.sum = true,
            _ => {}
        }
        self.further(path, Self::extend)
    }

    /// `Some` if every path leads to tables, with or without bounds.
    fn identify(&mut self, path: &mut Vec<BlockId>) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        match self.context.evaluate(path) {
            Target::Tables(tables) => {
                self.tables.extend(tables.into_iter().map(|table| Table {
                    highest: None,
                    ..table
                }));
                return Some(());
            }
            Target::Constant(address) => {
                self.addresses.insert(address);
                return Some(());
            }
            _ => {}
        }
        self.further(path, |search, path| search.identify(path).is_some())
            .then_some(())
    }

    /// True if `visit` succeeds for every block that may run before `path`.
    fn further(
        &mut self,
        path: &mut Vec<BlockId>,
        mut visit: impl FnMut(&mut Self, &mut Vec<BlockId>) -> bool,
    ) -> bool {
        let head = path[path.len() - 1];
        let predecessors = self.context.graph.predecessors(head);
        let block = &self.context.graph.blocks[head.index()];
        if predecessors.is_empty()
            || path.len() >= MAX_PATH_BLOCKS
            || (block.end - block.first) as usize > MAX_INSTRUCTIONS_PER_BLOCK
        {
            return false;
        }
        for &predecessor in predecessors {
            if path.contains(&predecessor) {
                return false;
            }
            path.push(predecessor);
            let found = visit(self, path);
            path.pop();
            if !found {
                return false;
            }
        }
        true
    }
}

/// What the evaluation of paths needs, shared by all jumps of a function.
pub(super) struct Context<'a, 'data> {
    image: Option<&'a Image<'data>>,
    graph: &'a Graph,
    constants: Constants<'a>,
    /// State of the path that is being evaluated. Paths are many and short, so its allocations are reused.
    state: RefCell<State>,
}

impl<'a, 'data> Context<'a, 'data> {
    pub(super) fn new(image: Option<&'a Image<'data>>, graph: &'a Graph) -> Self {
        Self {
            image,
            graph,
            constants: Constants::new(graph),
            state: RefCell::new(State::new()),
        }
    }

    /// The target of the jump at the end of a path. The path's last block is the first element of the slice.
    fn evaluate(&self, path: &[BlockId]) -> Target {
        let graph = self.graph;
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.reset();
        let id = path[path.len() - 1];
        let block = &graph.blocks[id.index()];
        let head = PathStart {
            block: id,
            index: ((block.end - block.first) as usize).saturating_sub(MAX_INSTRUCTIONS_PER_BLOCK),
        };
        for (position, &id) in path.iter().enumerate().rev() {
            let block = &graph.blocks[id.index()];
            let instructions = &graph.instructions[block.first as usize..block.end as usize];
            let skip = instructions
                .len()
                .saturating_sub(MAX_INSTRUCTIONS_PER_BLOCK);
            let (last, body) = instructions.split_last().expect("a block has instructions");
            for instruction in &body[skip..] {
                state.step(instruction);
            }
            if position == 0 {
                return self.target(state, head, last);
            }
            let next = path[position - 1];
            pass(state, graph, block.leaves_by, last, next);
        }
        Target::Unknown
    }

    fn target(&self, state: &mut State, head: PathStart, jump: &Instruction) -> Target {
        let value = match jump.op0_kind() {
            OpKind::Register | OpKind::Memory => state.read(jump, 0),
            _ => return Target::Unknown,
        };
        let linear = state.values.linear(value);
        if linear.terms.is_empty() {
            return Target::Constant(linear.constant);
        }
        // One term is the entry read from the table; the others form its base.
        let mut read = None;
        let mut bases = vec![linear.constant];
        for &(term, factor) in &linear.terms {
            match loaded(state, term) {
                Some(loaded) if read.is_none() && is_entry(state, &loaded) => {
                    read = Some((loaded, factor));
                }
                _ if factor == 1 => {
                    let Some(known) = self.known(state, head, term) else {
                        return of_one_value(state, value);
                    };
                    bases = combine(&bases, &known);
                }
                _ => return Target::Sum,
            }
        }
        let Some((loaded, factor)) = read else {
            return of_one_value(state, value);
        };
        let Some(place) = self.place(state, head, &loaded) else {
            return of_one_value(state, value);
        };
        let plain = linear.terms.len() == 1 && linear.constant == 0 && factor == 1;
        let mut tables = Vec::new();
        for &address in &place.addresses {
            let table = |entry| Table {
                address,
                stride: place.stride,
                entry,
                highest: place.highest,
            };
            if plain && loaded.bits == 64 {
                tables.push(table(Entry::Address));
                continue;
            }
            for &base in &bases {
                // If one register holds both bases, it has the same value in both places.
                if bases.len() == place.addresses.len()
                    && place.addresses.contains(&base)
                    && base != address
                {
                    continue;
                }
                tables.push(table(Entry::Offset {
                    base,
                    factor,
                    bits: loaded.bits,
                    signed: loaded.signed,
                }));
            }
        }
        Target::Tables(tables)
    }

    /// The possible places of a loaded value.
    fn place(&self, state: &State, head: PathStart, loaded: &Loaded) -> Option<TableExtent> {
        let linear = state.values.linear(loaded.address);
        let mut index = None;
        let mut addresses = vec![linear.constant];
        for &(term, factor) in &linear.terms {
            if factor == 1
                && let Some(known) = self.known(state, head, term)
            {
                addresses = combine(&addresses, &known);
            } else if index.is_none() && factor <= 64 {
                index = Some((term, factor));
            } else {
                return None;
            }
        }
        if addresses == [0] {
            return None;
        }
        Some(match index {
            Some((index, stride)) => TableExtent {
                addresses,
                stride,
                highest: self.highest(state, index),
            },
            None => TableExtent {
                addresses,
                stride: u64::from(loaded.bits / 8),
                highest: Some(0),
            },
        })
    }

    /// The highest value of an index: from a check, or from how the index is computed.
    fn highest(&self, state: &State, index: Value) -> Option<u64> {
        if let Some(bound) = state.values.checked(index) {
            return Some(bound);
        }
        let from_expression = state.values.bound(index)?;
        // A mask or a shift bounds an index as well as a check does. A limit of a full byte proves nothing,
        // because a byte may be loaded for other reasons.
        if from_expression < 0xff {
            return Some(from_expression);
        }
        // The index may itself be read from a constant table.
        let inner = loaded(state, index).filter(|inner| !inner.signed && inner.bits <= 16)?;
        let linear = state.values.linear(inner.address);
        let [(position, 1)] = linear.terms[..] else {
            return None;
        };
        let last = state.values.checked(position)?;
        self.largest_entry(linear.constant, last, inner.bits)
    }

    /// The largest of the entries 0 to `last` of a table in read-only memory.
    fn largest_entry(&self, address: u64, last: u64, bits: u8) -> Option<u64> {
        let image = self.image.filter(|image| !image.is_writable(address))?;
        let size = u64::from(bits / 8);
        let length = last.checked_add(1)?.checked_mul(size)?;
        let bytes = image.bytes(address..address.checked_add(length)?)?;
        bytes
            .chunks_exact(usize::from(bits / 8))
            .map(|number| {
                number
                    .iter()
                    .rev()
                    .fold(0, |value, &byte| value << 8 | u64::from(byte))
            })
            .max()
    }

    /// The constants that a value may have, if it is a register's value from before the path, or a value
    /// spilled to the stack.
    fn known(&self, state: &State, head: PathStart, value: Value) -> Option<Vec<u64>> {
        match state.values.node(value) {
            Node::Initial(register) => {
                self.constants
                    .at(head.block, head.index, general_register(register))
            }
            Node::Load { address, .. } => {
                let linear = state.values.linear(address);
                let [(base, 1)] = linear.terms[..] else {
                    return None;
                };
                let Node::Initial(register @ (4 | 5)) = state.values.node(base) else {
                    return None;
                };
                self.constants
                    .in_slot(general_register(register), linear.constant)
            }
            _ => None,
        }
    }
}

/// The start of a path: a block, and the first instruction in it that is evaluated.
#[derive(Clone, Copy)]
struct PathStart {
    block: BlockId,
    index: usize,
}

/// Possible start addresses of a table, bytes from one entry to the next, and the highest index.
struct TableExtent {
    addresses: Vec<u64>,
    stride: u64,
    highest: Option<u64>,
}

/// Applies the last instruction of a block, given that the path continues at `next`.
fn pass(state: &mut State, graph: &Graph, leaves_by: BlockEnd, last: &Instruction, next: BlockId) {
    match flow(last) {
        Flow::Branch(target) if last.condition_code() != ConditionCode::None => {
            let next = graph.instructions[graph.blocks[next.index()].first as usize].ip();
            // If both outcomes lead to the same place, nothing is learned.
            if target != last.next_ip() {
                state.assume(last.condition_code(), next == target);
            }
        }
        Flow::Branch(_) => {}
        Flow::Call(_) if matches!(leaves_by, BlockEnd::Call { .. }) => state.called(),
        Flow::Jump(_) => {}
        _ => state.step(last),
    }
}

fn of_one_value(state: &State, value: Value) -> Target {
    match state.values.node(value) {
        Node::Load { .. } => Target::Word,
        Node::Initial(_) | Node::Unknown(_) | Node::AtMost(..) => Target::Unknown,
        _ => Target::Sum,
    }
}

fn combine(bases: &[u64], more: &[u64]) -> Vec<u64> {
    bases
        .iter()
        .flat_map(|base| more.iter().map(|more| base.wrapping_add(*more)))
        .collect()
}

struct Loaded {
    address: Value,
    bits: u8,
    signed: bool,
}

/// The load that a value comes from, if it is all or the low part of a loaded word.
fn loaded(state: &State, value: Value) -> Option<Loaded> {
    let (inner, bits, signed) = match state.values.node(value) {
        Node::Load { .. } => (value, 64, false),
        Node::Signed(inner, bits) => (inner, bits, true),
        Node::Masked(inner, mask) => {
            let bits = [8, 16, 32]
                .into_iter()
                .find(|&bits| low_mask(bits) == mask)?;
            (inner, bits, false)
        }
        _ => return None,
    };
    match state.values.node(inner) {
        Node::Load { address, .. } => Some(Loaded {
            address,
            bits,
            signed,
        }),
        _ => None,
    }
}

/// True if a loaded value may be a table entry: it is loaded from an indexed address, or from a fixed address
/// and is narrower than an address.
fn is_entry(state: &State, loaded: &Loaded) -> bool {
    let linear = state.values.linear(loaded.address);
    match linear.terms[..] {
        [] => loaded.bits < 64,
        [(index, 1)] if linear.constant != 0 => state.values.bound(index).is_some(),
        _ => linear.terms.iter().any(|&(_, factor)| factor > 1),
    }
}

fn general_register(number: u8) -> Register {
    Register::RAX + u32::from(number)
}
