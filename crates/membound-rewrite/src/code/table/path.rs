//! Where a jump leads, seen along the ways that lead to it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use iced_x86::{ConditionCode, Instruction, OpKind, Register};

use super::constants::Constants;
use super::state::State;
use super::value::{Node, Value, low_mask};
use crate::code::blocks::Graph;
use crate::code::descent::{Flow, flow};
use crate::code::{BlockEnd, BlockId};
use crate::image::Image;

/// Blocks that a way may have.
const LONGEST: usize = 10;
/// Ways looked at for one jump.
const WAYS: usize = 96;
/// The same where the target is read from memory by no index that is seen: almost always a
/// call of a method, in tail position.
const WAYS_OF_A_WORD: usize = 8;

/// Instructions of one block that are looked at, from its end.
const MOST_INSTRUCTIONS: usize = 128;

/// How entries of a table become addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Entry {
    /// They are addresses, of 8 bytes.
    Address,
    /// They are differences of so many bits to a base.
    Offset {
        /// What they are added to.
        base: u64,
        /// What they are multiplied by first.
        factor: u64,
        /// Width, 8–64.
        bits: u8,
        /// Whether they may be negative.
        signed: bool,
    },
}

/// A jump table as one way to the jump uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Table {
    /// Address of the entry for index 0.
    pub(super) address: u64,
    /// Bytes from one entry to the next.
    pub(super) stride: u64,
    pub(super) entry: Entry,
    /// The highest index, as far as it is known.
    pub(super) highest: Option<u64>,
}

/// What the jump's target is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// An entry of one of these tables.
    Tables(Vec<Table>),
    /// One address.
    Constant(u64),
    /// A word that is read from somewhere.
    Word,
    /// A sum of which not all is known: nothing that a tail call would jump to.
    Sum,
    /// Anything.
    Unknown,
}

/// All ways to a jump, taken together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// Through a word at a fixed address.
    Slot,
    /// To another code segment.
    Far,
    /// Every way leads through one of these tables or to one of these addresses; whether
    /// the bound of every table was found.
    Known {
        tables: BTreeSet<Table>,
        addresses: BTreeSet<u64>,
        bounded: bool,
    },
    /// See [`Target::Word`].
    Word,
    /// See [`Target::Sum`], on some way.
    Sum,
    /// See [`Target::Unknown`].
    Unknown,
}

/// Follows the ways to the jump that ends `block` backwards until its table's bound is
/// found on each.
pub(super) fn search(context: &Context<'_, '_>, block: BlockId) -> Ways {
    let mut way = vec![block];
    let nearest = context.evaluate(&way);
    let ways = if nearest == Target::Word {
        WAYS_OF_A_WORD
    } else {
        WAYS
    };
    let mut search = Search {
        context,
        left: ways,
        sum: false,
        tables: BTreeSet::new(),
        addresses: BTreeSet::new(),
    };
    if search.extend(&mut way) {
        return Ways::Known {
            tables: search.tables,
            addresses: search.addresses,
            bounded: true,
        };
    }
    // Without a bound on every way: the tables themselves, from as near as they are seen.
    search.left = ways;
    search.tables.clear();
    search.addresses.clear();
    way.truncate(1);
    match search.identify(&mut way) {
        Some(()) => Ways::Known {
            tables: search.tables,
            addresses: search.addresses,
            bounded: false,
        },
        None if search.sum => Ways::Sum,
        None if nearest == Target::Word => Ways::Word,
        None => Ways::Unknown,
    }
}

struct Search<'s, 'a, 'data> {
    context: &'s Context<'a, 'data>,
    left: usize,
    /// Whether the target is a sum on some way.
    sum: bool,
    tables: BTreeSet<Table>,
    addresses: BTreeSet<u64>,
}

impl Search<'_, '_, '_> {
    /// Whether tables with checked bounds were found on every way that ends with `way`
    /// (whose first block is the last of the vector).
    fn extend(&mut self, way: &mut Vec<BlockId>) -> bool {
        let Some(left) = self.left.checked_sub(1) else {
            return false;
        };
        self.left = left;
        match self.context.evaluate(way) {
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
        self.further(way, Self::extend)
    }

    /// Whether tables were found on every way, bounded or not.
    fn identify(&mut self, way: &mut Vec<BlockId>) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        match self.context.evaluate(way) {
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
        self.further(way, |search, way| search.identify(way).is_some())
            .then_some(())
    }

    /// Whether `visit` succeeds for every block that may run before `way`.
    fn further(
        &mut self,
        way: &mut Vec<BlockId>,
        mut visit: impl FnMut(&mut Self, &mut Vec<BlockId>) -> bool,
    ) -> bool {
        let head = way[way.len() - 1];
        let predecessors = self.context.graph.predecessors(head);
        let block = &self.context.graph.blocks[head.index()];
        if predecessors.is_empty()
            || way.len() >= LONGEST
            || (block.end - block.first) as usize > MOST_INSTRUCTIONS
        {
            return false;
        }
        for &predecessor in predecessors {
            if way.contains(&predecessor) {
                return false;
            }
            way.push(predecessor);
            let found = visit(self, way);
            way.pop();
            if !found {
                return false;
            }
        }
        true
    }
}

/// What the ways to all jumps of a function are evaluated in.
pub(super) struct Context<'a, 'data> {
    image: Option<&'a Image<'data>>,
    graph: &'a Graph,
    constants: Constants<'a>,
    /// That of the way that is evaluated: ways are many and short, so that its room is kept from one to the next.
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

    /// What the jump at the end of a way leads to. The way's last block is its first
    /// element.
    fn evaluate(&self, way: &[BlockId]) -> Target {
        let graph = self.graph;
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.reset();
        let id = way[way.len() - 1];
        let block = &graph.blocks[id.index()];
        let head = Head {
            block: id,
            index: ((block.end - block.first) as usize).saturating_sub(MOST_INSTRUCTIONS),
        };
        for (position, &id) in way.iter().enumerate().rev() {
            let block = &graph.blocks[id.index()];
            let instructions = &graph.instructions[block.first as usize..block.end as usize];
            let skip = instructions.len().saturating_sub(MOST_INSTRUCTIONS);
            let (last, body) = instructions.split_last().expect("a block has instructions");
            for instruction in &body[skip..] {
                state.step(instruction);
            }
            if position == 0 {
                return self.target(state, head, last);
            }
            let next = way[position - 1];
            pass(state, graph, block.leaves_by, last, next);
        }
        Target::Unknown
    }

    fn target(&self, state: &mut State, head: Head, jump: &Instruction) -> Target {
        let value = match jump.op0_kind() {
            OpKind::Register | OpKind::Memory => state.read(jump, 0),
            _ => return Target::Unknown,
        };
        let linear = state.values.linear(value);
        if linear.terms.is_empty() {
            return Target::Constant(linear.constant);
        }
        // One term is read from the table; what others there are is its base.
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
                // With one base register for both, it is the same value in both.
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

    /// Where what is loaded may lie.
    fn place(&self, state: &State, head: Head, loaded: &Loaded) -> Option<Place> {
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
            Some((index, stride)) => Place {
                addresses,
                stride,
                highest: self.highest(state, index),
            },
            None => Place {
                addresses,
                stride: u64::from(loaded.bits / 8),
                highest: Some(0),
            },
        })
    }

    /// The highest value that an index may have: as it was checked, or by how it is made.
    fn highest(&self, state: &State, index: Value) -> Option<u64> {
        if let Some(bound) = state.values.checked(index) {
            return Some(bound);
        }
        let made = state.values.bound(index)?;
        // A mask or a shift bounds as well as a check; a byte may be read for its own sake.
        if made < 0xff {
            return Some(made);
        }
        // The index may itself be read from a table that never changes.
        let inner = loaded(state, index).filter(|inner| !inner.signed && inner.bits <= 16)?;
        let linear = state.values.linear(inner.address);
        let [(position, 1)] = linear.terms[..] else {
            return None;
        };
        let last = state.values.checked(position)?;
        self.largest_entry(linear.constant, last, inner.bits)
    }

    /// The largest of the first numbers of a table in read-only memory.
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

    /// The constants that a value may be: a register from before the way, or a spilled
    /// one.
    fn known(&self, state: &State, head: Head, value: Value) -> Option<Vec<u64>> {
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

/// Where a way begins: a block, and the first instruction of it that is looked at.
#[derive(Clone, Copy)]
struct Head {
    block: BlockId,
    index: usize,
}

/// Where a table may begin, the bytes from one entry to the next, the last entry.
struct Place {
    addresses: Vec<u64>,
    stride: u64,
    highest: Option<u64>,
}

/// Applies a block's last instruction on the way to `next`.
fn pass(state: &mut State, graph: &Graph, leaves_by: BlockEnd, last: &Instruction, next: BlockId) {
    match flow(last) {
        Flow::Branch(target) if last.condition_code() != ConditionCode::None => {
            let next = graph.instructions[graph.blocks[next.index()].first as usize].ip();
            // Both ways may lead to the same place.
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

/// A value that is read from memory, whole or in part.
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

/// Whether a loaded value may be a table's entry: it lies at an index, or at a fixed place
/// and is no address.
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
