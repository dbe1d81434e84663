//! Checks decoded functions against execution: executed addresses must begin instructions, targets
//! of control must begin blocks, along existing edges, and calls that are taken not to return must
//! not return.
//!
//! In a function that is marked unresolved no edge is promised, so only instructions that overlap
//! executed ones are wrong there; where control is known to read bytes in two ways, not even these.

use std::fmt;

use iced_x86::{FlowControl, Instruction};
use membound_rewrite::code::{BasicBlock, BlockEnd, BlockId, Function};

use super::callgrind::Object;

/// A statement of a decoded function that execution contradicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// An executed address lies inside a decoded instruction.
    InsideInstruction(u64),
    /// An executed address of a resolved function is in no block.
    NotDecoded(u64),
    /// Control came to an address that begins no block; `from` is the jump, if known.
    NoBlock { from: Option<u64>, to: u64 },
    /// A jump between blocks that no edge joins.
    NoEdge { from: u64, to: u64 },
    /// A jump from the middle of a block.
    InsideBlock { from: u64, to: u64 },
    /// A call that the decoder takes as not returning did return.
    Returned(u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::InsideInstruction(at) => write!(out, "{at:#x} lies inside an instruction"),
            Self::NotDecoded(at) => write!(out, "{at:#x} is in no block of a resolved function"),
            Self::NoBlock { from: None, to } => write!(out, "an entry at {to:#x} begins no block"),
            Self::NoBlock {
                from: Some(from),
                to,
            } => write!(
                out,
                "a jump from {from:#x} to {to:#x}, which begins no block"
            ),
            Self::NoEdge { from, to } => write!(out, "a jump from {from:#x} to {to:#x}, no edge"),
            Self::InsideBlock { from, to } => {
                write!(out, "a jump from {from:#x} to {to:#x} that ends no block")
            }
            Self::Returned(at) => write!(out, "the call at {at:#x} returned"),
        }
    }
}

/// Numbers of comparisons, and the differences.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Executed addresses in known functions.
    pub(super) addresses: usize,
    /// Executed addresses that no function holds.
    pub(super) outside: usize,
    /// Jumps and entries compared.
    pub(super) transfers: usize,
    /// Jumps and entries into the middle of blocks in functions that are marked unresolved, and
    /// executed addresses inside of instructions that are marked as read in two ways.
    pub(super) unresolved: usize,
    /// In the order of addresses within each kind.
    pub(super) violations: Vec<Violation>,
}

/// Compares `functions` (sorted, disjoint) with what was executed.
pub(super) fn compare(functions: &[Function], ran: &Object) -> Verdict {
    let mut verdict = Verdict::default();
    for &address in ran.executed.keys() {
        verdict.address(functions, address);
    }
    for &(from, to) in ran.jumps.keys() {
        verdict.jump(functions, from, to);
    }
    for &to in ran.entries.keys() {
        if let Some(function) = holding(functions, to) {
            verdict.transfers += 1;
            verdict.arrival(function, None, to);
        }
    }
    for function in functions {
        verdict.returns(function, ran);
    }
    verdict
}

impl Verdict {
    fn address(&mut self, functions: &[Function], address: u64) {
        let Some(function) = holding(functions, address) else {
            self.outside += 1;
            return;
        };
        self.addresses += 1;
        match instruction(function, address) {
            Some(found) if found.ip() == address => {}
            // The other reading is known too, and no instruction there is displaced.
            Some(_)
                if function
                    .overlapped
                    .iter()
                    .any(|range| range.contains(&address)) =>
            {
                self.unresolved += 1;
            }
            Some(_) => self.violations.push(Violation::InsideInstruction(address)),
            None if function.unresolved.is_some() => {}
            None => self.violations.push(Violation::NotDecoded(address)),
        }
    }

    fn jump(&mut self, functions: &[Function], from: u64, to: u64) {
        let (Some(source), Some(target)) = (holding(functions, from), holding(functions, to))
        else {
            return;
        };
        // Valgrind executes a repeated string instruction as a loop of its own.
        let origin = instruction(source, from);
        if origin.is_some_and(|origin| to == from || to == origin.next_ip()) {
            return;
        }
        self.transfers += 1;
        if !self.arrival(target, Some(from), to) || source.unresolved.is_some() {
            return;
        }
        let Some((_, block)) = block_at(source, from) else {
            return;
        };
        let last = source.block_instructions(block).last();
        if last.is_none_or(|last| last.ip() != from) {
            self.violations.push(Violation::InsideBlock { from, to });
            return;
        }
        let abroad = source.bounds != target.bounds;
        let followed =
            !abroad && block_at(target, to).is_some_and(|(id, _)| block.successors.contains(&id));
        let led = match block.leaves_by {
            // A jump table may lead to several places outside, of which the block names one.
            BlockEnd::Leaves { target, .. } => {
                target == to || followed || (abroad && origin.is_some_and(is_indirect))
            }
            // A tail call begins a function.
            BlockEnd::TailCall => target.bounds.range.start == to || abroad,
            BlockEnd::Jump | BlockEnd::Table => followed,
            BlockEnd::Unresolved => true,
            // An exception, a signal's return or a longjmp: not a jump of the block itself.
            BlockEnd::Call { .. } | BlockEnd::Return => true,
            BlockEnd::FallsThrough | BlockEnd::Stops => false,
        };
        if !led {
            self.violations.push(Violation::NoEdge { from, to });
        }
    }

    /// Returns true if `to` begins a block; otherwise records a violation or an unresolved arrival.
    fn arrival(&mut self, function: &Function, from: Option<u64>, to: u64) -> bool {
        let begins = block_at(function, to)
            .and_then(|(_, block)| function.block_instructions(block).first())
            .is_some_and(|first| first.ip() == to);
        if !begins {
            if function.unresolved.is_some() {
                self.unresolved += 1;
            } else {
                self.violations.push(Violation::NoBlock { from, to });
            }
        }
        begins
    }

    /// Checks that the code after a call that does not return is reached by jumps and entries only.
    fn returns(&mut self, function: &Function, ran: &Object) {
        for block in &function.blocks {
            let BlockEnd::Call { returns: false, .. } = block.leaves_by else {
                continue;
            };
            let Some(call) = function.block_instructions(block).last() else {
                continue;
            };
            let next = call.next_ip();
            // Callgrind counts the way to a landing pad as a return.
            let excepted = block_at(function, next)
                .is_some_and(|(_, following)| following.entered_from_outside);
            if excepted || !ran.executed.contains_key(&call.ip()) {
                continue;
            }
            let executed = ran.executed.get(&next).copied().unwrap_or_default();
            let jumped: u64 = ran
                .jumps
                .iter()
                .filter(|((_, to), _)| *to == next)
                .map(|(_, count)| count)
                .sum();
            let entered = ran.entries.get(&next).copied().unwrap_or_default();
            if executed > jumped + entered {
                self.violations.push(Violation::Returned(call.ip()));
            }
        }
    }
}

fn is_indirect(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::IndirectBranch
}

/// The function that holds `address`.
fn holding(functions: &[Function], address: u64) -> Option<&Function> {
    let after = functions.partition_point(|function| function.bounds.range.start <= address);
    functions[..after]
        .last()
        .filter(|function| function.bounds.range.contains(&address))
}

/// The instruction that covers `address`.
fn instruction(function: &Function, address: u64) -> Option<&Instruction> {
    let after = function
        .instructions
        .partition_point(|one| one.ip() <= address);
    function.instructions[..after]
        .last()
        .filter(|one| address < one.next_ip())
}

/// The block with the instruction that covers `address`.
fn block_at(function: &Function, address: u64) -> Option<(BlockId, &BasicBlock)> {
    let index = function
        .instructions
        .partition_point(|one| one.ip() <= address)
        .checked_sub(1)?;
    if address >= function.instructions[index].next_ip() {
        return None;
    }
    let after = function
        .blocks
        .partition_point(|block| block.first as usize <= index);
    let number = after.checked_sub(1)?;
    let block = &function.blocks[number];
    let id = BlockId(u32::try_from(number).ok()?);
    (index < block.end as usize).then_some((id, block))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use iced_x86::{Decoder, DecoderOptions};
    use membound_rewrite::code::Unresolved;
    use membound_rewrite::image::FunctionBounds;

    use super::*;

    /// `test edi, edi; je +2; xor eax, eax; call f; ret; ret`, at 0x1000.
    const CODE: [u8; 13] = [
        0x85, 0xff, // 0x1000 test edi, edi
        0x74, 0x02, // 0x1002 je 0x1006
        0x31, 0xc0, // 0x1004 xor eax, eax
        0xe8, 0xf5, 0x0f, 0x00, 0x00, // 0x1006 call 0x2000
        0xc3, // 0x100b ret
        0xc3, // 0x100c ret
    ];

    fn function(returns: bool) -> Function {
        let mut decoder = Decoder::with_ip(64, &CODE, 0x1000, DecoderOptions::NONE);
        let instructions = decoder.iter().collect();
        let block = |first, end, leaves_by, successors: &[u32]| BasicBlock {
            first,
            end,
            leaves_by,
            successors: successors.iter().copied().map(BlockId).collect(),
            landing_pad: None,
            entered_from_outside: first == 0,
        };
        let call = BlockEnd::Call {
            target: Some(0x2000),
            returns,
        };
        Function {
            bounds: FunctionBounds {
                range: 0x1000..0x100d,
                name: None,
                exported: false,
                assembly: false,
            },
            instructions,
            blocks: vec![
                block(0, 2, BlockEnd::Jump, &[1, 2]),
                block(2, 3, BlockEnd::FallsThrough, &[2]),
                block(3, 4, call, &[3]),
                block(4, 5, BlockEnd::Return, &[]),
            ],
            unresolved: None,
            untouchable: Vec::new(),
            overlapped: Vec::new(),
        }
    }

    fn ran(executed: &[u64], jumps: &[(u64, u64)], entries: &[u64]) -> Object {
        Object {
            executed: executed.iter().map(|at| (*at, 3)).collect(),
            jumps: jumps.iter().map(|edge| (*edge, 3)).collect(),
            entries: entries.iter().map(|at| (*at, 3)).collect(),
        }
    }

    fn violations(function: Function, ran: &Object) -> Vec<Violation> {
        compare(&[function], ran).violations
    }

    #[test]
    fn a_run_along_the_edges_is_in_order() {
        let ran = ran(
            &[0x1000, 0x1002, 0x1004, 0x1006, 0x100b, 0x9000],
            &[(0x1002, 0x1006)],
            &[0x1000],
        );
        let verdict = compare(&[function(true)], &ran);
        assert_eq!(verdict.violations, []);
        assert_eq!(
            (verdict.addresses, verdict.outside, verdict.transfers),
            (5, 1, 2)
        );
    }

    #[test]
    fn what_ran_began_an_instruction() {
        let found = violations(function(true), &ran(&[0x1003, 0x1007, 0x100c], &[], &[]));
        assert_eq!(
            found,
            [
                Violation::InsideInstruction(0x1003),
                Violation::InsideInstruction(0x1007)
            ]
        );
        let mut shorter = function(true);
        shorter.instructions.truncate(4);
        shorter.blocks.truncate(3);
        let found = violations(shorter, &ran(&[0x100b], &[], &[]));
        assert_eq!(found, [Violation::NotDecoded(0x100b)]);
    }

    #[test]
    fn control_arrives_at_blocks_along_edges() {
        let found = violations(
            function(true),
            &ran(
                &[],
                &[
                    (0x1000, 0x1006),
                    (0x1002, 0x1004),
                    (0x1002, 0x100b),
                    (0x1002, 0x1002),
                    (0x1004, 0x100b),
                ],
                &[0x1002],
            ),
        );
        assert_eq!(
            found,
            [
                Violation::InsideBlock {
                    from: 0x1000,
                    to: 0x1006
                },
                Violation::NoEdge {
                    from: 0x1002,
                    to: 0x100b
                },
                Violation::NoEdge {
                    from: 0x1004,
                    to: 0x100b
                },
                Violation::NoBlock {
                    from: None,
                    to: 0x1002
                },
            ]
        );
    }

    #[test]
    fn a_second_reading_that_is_known_is_in_order() {
        let mut entered = function(true);
        entered.overlapped.push(0x1007..0x100b);
        let verdict = compare(&[entered], &ran(&[0x1003, 0x1007], &[], &[]));
        assert_eq!(verdict.violations, [Violation::InsideInstruction(0x1003)]);
        assert_eq!(verdict.unresolved, 1);
    }

    #[test]
    fn nothing_is_promised_of_unresolved_functions() {
        let mut unresolved = function(true);
        unresolved.unresolved = Some(Unresolved::IndirectJump(0x1002));
        let verdict = compare(&[unresolved], &ran(&[], &[(0x1004, 0x1002)], &[0x100c]));
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.unresolved, 2);
    }

    #[test]
    fn a_call_that_does_not_return_is_held_to_it() {
        let run = ran(&[0x1006, 0x100b], &[], &[]);
        assert_eq!(
            violations(function(false), &run),
            [Violation::Returned(0x1006)]
        );
        assert_eq!(violations(function(true), &run), []);
        // Reached by other ways as often as it ran.
        let jumped = Object {
            jumps: BTreeMap::from([((0x1002, 0x100b), 3)]),
            ..run
        };
        assert!(!violations(function(false), &jumped).contains(&Violation::Returned(0x1006)));
    }
}
