//! Loops that lie in one trampoline as a whole.
//!
//! A branch back to the group's first instruction then stays in the trampoline: it would only come back
//! from the text by a jump more. What such a loop steps through is known too: registers that one
//! instruction of it, which every lap executes, changes by a constant.

use std::ops::{Range, RangeInclusive};

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::emit::Address;
use super::loop_saves::LoopSaves;
use super::operand::{Operand, gpr};
use crate::flow::{Access, Analyst, Direction, access};
use crate::{Gpr, RegisterSet};

/// Bytes of a cache line.
pub(super) const LINE_BYTES: i64 = membound_wire::LINE_BYTES as i64;
/// Lines asked for at one time, of all streams together: as many misses as a core may have open.
const MOST_LINES: i64 = 16;

/// Bytes that laps have which stand one behind the other: those of two lines, but for what counts them.
const COPIED_BYTES: usize = 2 * membound_wire::LINE_BYTES - 16;

/// A loop of which nothing is outside of its trampoline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cycle {
    /// One past its last instruction, of its function's; its first is that of its trampoline.
    pub end: usize,
    /// A register that every lap changes by the same.
    pub beat: Option<Beat>,
    /// What it reads in steps.
    pub streams: Vec<Stream>,
    /// What is saved around it.
    pub saves: Option<LoopSaves>,
    /// Laps that stand one behind the other, as a power of two: of which only the first can be counted.
    pub copies: u32,
}

/// A register with a number of low bits that stay as they are, above which every lap adds the same odd
/// number: in two to the nth laps the n bits there take each value once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub register: Gpr,
    pub shift: u32,
}

/// Loads at addresses that lie equally far apart from one lap to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub operand: Operand,
    /// Bytes from one to the next, not 0.
    pub stride: i64,
}

/// Whether an instruction goes straight to `address`, perhaps.
pub(super) fn leads_to(instruction: &Instruction, address: u64) -> bool {
    let branch = instruction.is_jmp_short_or_near() || instruction.is_jcc_short_or_near();
    branch && instruction.near_branch_target() == address
}

/// One past the last of the instructions in `range` that leads to the first of them.
pub(super) fn end(instructions: &[Instruction], mut range: Range<usize>) -> Option<usize> {
    let head = instructions.get(range.start)?.ip();
    let last = range.rfind(|index| leads_to(&instructions[*index], head))?;
    Some(last + 1)
}

impl Cycle {
    /// The loop from the first instruction of `range` to the last that leads back there, if there is one.
    pub(super) fn of(
        instructions: &[Instruction],
        range: Range<usize>,
        analyst: &mut Analyst,
    ) -> Option<Self> {
        let end = end(instructions, range.clone())?;
        let body = &instructions[range.start..end];
        let head = body[0].ip();
        // Where laps may be short, what is behind the short cut is not in all of them.
        let every = body.iter().position(|it| leads_to(it, head))?;
        let steps = Steps::of(body, every, analyst);
        let mut streams: Vec<Stream> = Vec::new();
        for instruction in body {
            let access = access(instruction).filter(|it| it.direction == Direction::Load);
            let stream = access.and_then(|access| steps.stream(instruction, &access));
            if let Some(stream) = stream
                && !streams.iter().any(|known| known.covers(&stream))
            {
                streams.push(stream);
            }
        }
        Some(Self {
            end,
            beat: steps.beat(),
            streams,
            saves: None,
            copies: 0,
        })
    }

    /// How many laps may stand one behind the other, as a power of two: of a loop of these instructions that
    /// nothing but its end leads to the head of, and that lie in a few lines together.
    pub(super) fn most_copies(body: &[Instruction]) -> u32 {
        let Some((last, others)) = body.split_last() else {
            return 0;
        };
        let head = body[0].ip();
        if !last.is_jcc_short_or_near() || others.iter().any(|it| leads_to(it, head)) {
            return 0;
        }
        // With branches in their long forms.
        let bytes: usize = body
            .iter()
            .map(|it| {
                if it.is_jcc_short_or_near() {
                    6
                } else {
                    it.len()
                }
            })
            .sum();
        (COPIED_BYTES / bytes).checked_ilog2().unwrap_or(0)
    }

    /// What is read in the `laps` to come, without what lies in the line that is read now: an operand a
    /// line.
    pub(super) fn ahead(&self, laps: i64) -> Vec<Operand> {
        let streams = self.streams.iter();
        let lines = streams.flat_map(|stream| stream.lines(1..=self.lines_ahead(stream, laps)));
        lines.collect()
    }

    /// What lies behind [`Self::ahead`] and comes to be ahead by so many laps more, at least a line of each
    /// stream.
    pub(super) fn behind(&self, laps: i64, more: i64) -> Vec<Operand> {
        let streams = self.streams.iter();
        let lines = streams.flat_map(|stream| {
            let from = self.lines_ahead(stream, laps) + 1;
            let count = (more * stream.stride / stream.step()).max(1);
            stream.lines(from..=from + count - 1)
        });
        lines.collect()
    }

    /// What is read so many laps behind [`Self::ahead`], of each stream that reads line after line: its page
    /// is known then when it is asked for.
    pub(super) fn far(&self, laps: i64) -> Vec<Operand> {
        let streams = self.streams.iter();
        let dense = streams.filter(|stream| stream.stride.abs() <= LINE_BYTES);
        let far = dense.filter_map(|stream| {
            let ahead = self.lines_ahead(stream, laps) * stream.step();
            stream.operand.further(ahead + laps * stream.stride)
        });
        far.collect()
    }

    /// How many lines of a stream are asked for before they are read.
    fn lines_ahead(&self, stream: &Stream, laps: i64) -> i64 {
        let streams = i64::try_from(self.streams.len()).unwrap_or(MOST_LINES);
        (laps * stream.stride / stream.step()).min(MOST_LINES / streams.max(1))
    }
}

impl Stream {
    /// Bytes from one line that it reads to the next.
    fn step(&self) -> i64 {
        self.stride.signum() * self.stride.abs().max(LINE_BYTES)
    }

    /// These lines, counted from the one that is read now.
    fn lines(&self, range: RangeInclusive<i64>) -> impl Iterator<Item = Operand> + '_ {
        range.filter_map(|line| self.operand.further(line * self.step()))
    }

    /// Whether the other one is of the same lines.
    fn covers(&self, other: &Self) -> bool {
        let parts = |it: &Self| it.operand.address.parts();
        let (Some(own), Some(others)) = (parts(self), parts(other)) else {
            return false;
        };
        (own.0, own.1) == (others.0, others.1)
            && self.stride == other.stride
            && (own.2 - others.2).abs() < LINE_BYTES
    }
}

/// By register: what a lap adds to it, `None` where that is not known, 0 where it stays.
#[derive(Debug)]
struct Steps([Option<i64>; 16]);

impl Steps {
    /// Of a loop's instructions, of which every lap executes at least those up to `every`.
    fn of(body: &[Instruction], every: usize, analyst: &mut Analyst) -> Self {
        let mut steps = [Some(0); 16];
        for (index, instruction) in body.iter().enumerate() {
            let writes = analyst.effects(instruction).writes;
            let step = step_of(instruction).filter(|_| index <= every);
            for register in Gpr::all().filter(|it| writes.intersects(RegisterSet::gpr(*it))) {
                let known = &mut steps[usize::from(register.number())];
                *known = match (*known, step) {
                    (Some(0), Some((stepped, by))) if stepped == register => Some(by),
                    _ => None,
                };
            }
        }
        Self(steps)
    }

    fn by(&self, register: Gpr) -> Option<i64> {
        self.0[usize::from(register.number())]
    }

    fn beat(&self) -> Option<Beat> {
        let stepped = Gpr::all().filter_map(|register| {
            let by = self.by(register).filter(|by| *by != 0)?;
            let shift = by.trailing_zeros();
            Some(Beat { register, shift })
        });
        stepped.min_by_key(|beat| beat.shift)
    }

    fn stream(&self, instruction: &Instruction, access: &Access) -> Option<Stream> {
        let operand = Operand::of(instruction, access)?;
        let Address::Registers { base, index, .. } = operand.address else {
            return None;
        };
        let of_base = base.map_or(Some(0), |base| self.by(base))?;
        let of_index = index.map_or(Some(0), |(index, scale)| Some(self.by(index)? << scale))?;
        let stride = of_base + of_index;
        (stride != 0).then_some(Stream { operand, stride })
    }
}

/// What an instruction adds to a register of 64 bits, if it does that and nothing else to registers.
fn step_of(instruction: &Instruction) -> Option<(Gpr, i64)> {
    if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let register = gpr(instruction.op0_register())?;
    let constant = || {
        let given = matches!(
            instruction.op1_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate32to64
        );
        given.then(|| instruction.immediate(1).cast_signed())
    };
    let by = match instruction.mnemonic() {
        Mnemonic::Inc => 1,
        Mnemonic::Dec => -1,
        Mnemonic::Add => constant()?,
        Mnemonic::Sub => constant()?.checked_neg()?,
        Mnemonic::Lea => {
            let own = gpr(instruction.memory_base()) == Some(register);
            let plain = own && instruction.memory_index() == Register::None;
            plain.then(|| instruction.memory_displacement64().cast_signed())?
        }
        _ => return None,
    };
    // Two of them together do not overflow.
    (by.unsigned_abs() < 1 << 32).then_some((register, by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Function;

    fn cycle(code: &[u8]) -> Option<Cycle> {
        let function = Function::from_code(code, 0x1000);
        let all = &function.instructions;
        Cycle::of(all, 0..all.len(), &mut Analyst::new())
    }

    /// A loop of so many instructions of which nothing else is known.
    fn plain(end: usize) -> Option<Cycle> {
        Some(Cycle {
            end,
            ..Cycle::default()
        })
    }

    fn places(ahead: &[Operand]) -> Vec<i32> {
        let displacement = |it: &Operand| match it.address {
            Address::Registers { displacement, .. } => displacement,
            Address::Module(_) => panic!("an address of the module"),
        };
        ahead.iter().map(displacement).collect()
    }

    #[test]
    fn a_sum_reads_ahead_line_by_line() {
        // 1: add rax,[rdi]; add rdi,8; cmp rdi,rdx; jne 1b; ret
        let code = [
            0x48, 0x03, 0x07, 0x48, 0x83, 0xc7, 0x08, 0x48, 0x39, 0xd7, 0x75, 0xf4, 0xc3,
        ];
        let cycle = cycle(&code).unwrap();
        let (register, shift) = (Gpr::RDI, 3);
        assert_eq!(cycle.beat, Some(Beat { register, shift }));
        assert_eq!(cycle.streams.len(), 1);
        assert_eq!(cycle.streams[0].stride, 8);
        assert_eq!(places(&cycle.ahead(24)), [64, 128, 192]);
        assert_eq!(cycle.ahead(7).len(), 0);
        assert_eq!(cycle.ahead(1 << 20).len(), 16);
        assert_eq!(places(&cycle.behind(24, 16)), [256, 320]);
        assert_eq!(places(&cycle.behind(24, 2)), [256]);
        assert_eq!(places(&cycle.behind(1 << 20, 8)), [17 * 64]);
    }

    #[test]
    fn downwards_and_by_an_index_with_two_loads_of_a_line() {
        // 1: mov rax,[rsi+rcx*4]; add rax,[rsi+rcx*4+8]; sub rcx,32; jnz 1b; ret
        let code = [
            0x48, 0x8b, 0x04, 0x8e, 0x48, 0x03, 0x44, 0x8e, 0x08, 0x48, 0x83, 0xe9, 0x20, 0x75,
            0xf1, 0xc3,
        ];
        let cycle = cycle(&code).unwrap();
        assert_eq!(cycle.beat.map(|beat| beat.shift), Some(5));
        assert_eq!(cycle.streams.len(), 1);
        assert_eq!(cycle.streams[0].stride, -128);
        assert_eq!(places(&cycle.ahead(2)), [-128, -256]);
        assert_eq!(places(&cycle.behind(2, 2)), [-384, -512]);
    }

    #[test]
    fn what_is_followed_is_no_stream_and_has_no_beat() {
        // 1: mov rdi,[rdi]; dec esi; jnz 1b; ret
        let code = [0x48, 0x8b, 0x3f, 0xff, 0xce, 0x75, 0xf9, 0xc3];
        assert_eq!(cycle(&code), plain(3));
    }

    #[test]
    fn a_step_that_some_laps_leave_out_is_none() {
        // 1: add rax,[rdi]; jc 1b; add rdi,8; cmp rdi,rdx; jne 1b; ret
        let code = [
            0x48, 0x03, 0x07, 0x72, 0xfb, 0x48, 0x83, 0xc7, 0x08, 0x48, 0x39, 0xd7, 0x75, 0xf2,
            0xc3,
        ];
        assert_eq!(cycle(&code), plain(5));
    }

    #[test]
    fn what_does_not_go_back_is_none() {
        // test edi,edi; jz 2f; mov eax,[rsi]; 2: ret
        assert_eq!(cycle(&[0x85, 0xff, 0x74, 0x02, 0x8b, 0x06, 0xc3]), None);
    }
}
