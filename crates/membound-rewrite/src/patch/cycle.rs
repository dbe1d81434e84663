//! Loops that lie in one trampoline as a whole.
//!
//! A branch back to the group's first instruction then stays in the trampoline; otherwise it would go through
//! the text and return with one more jump. Such a loop also shows what it steps through: registers that
//! exactly one instruction, executed in every iteration, changes by a constant.

use std::ops::{Range, RangeInclusive};

use iced_x86::Instruction;

use super::emit::Address;
use super::loop_saves::LoopSaves;
use super::operand::Operand;
use crate::flow::{Access, Analyst, Direction, access, addition};
use crate::{Gpr, RegisterSet};

/// Bytes of a cache line.
pub(super) const LINE_BYTES: i64 = membound_wire::LINE_BYTES as i64;
/// Lines prefetched at one time, of all streams together: as many misses as a core can have outstanding.
const MAX_PREFETCHED_LINES: i64 = 16;

/// Most bytes of consecutive copies of an iteration: two cache lines less the counting code.
const COPIED_BYTES: usize = 2 * membound_wire::LINE_BYTES - 16;

/// A loop that lies completely in its trampoline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TrampolineLoop {
    /// Index in the function after the loop's last instruction; the loop begins at the trampoline's first.
    pub end: usize,
    /// The iteration counter: a register that every iteration changes by the same amount.
    pub iteration_counter: Option<IterationCounter>,
    /// The memory that the loop reads in constant steps.
    pub streams: Vec<Stream>,
    /// Registers and rounding mode that are saved once around the loop.
    pub saves: Option<LoopSaves>,
    /// Copies of the iteration that stand in a row, as a power of two; only the first of them can be counted.
    pub copies: u32,
}

/// A register used as an iteration counter: its `shift` low bits do not change, and every iteration adds the
/// same odd number to the bits above. Within 2 to the power of n iterations, the next n bits take each value
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IterationCounter {
    pub register: Gpr,
    pub shift: u32,
}

/// Loads whose address changes by the same stride from iteration to iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    pub operand: Operand,
    /// Bytes from one load to the next, never 0.
    pub stride: i64,
}

/// True if the instruction is a direct jump or conditional jump to `address`.
pub(super) fn leads_to(instruction: &Instruction, address: u64) -> bool {
    let branch = instruction.is_jmp_short_or_near() || instruction.is_jcc_short_or_near();
    branch && instruction.near_branch_target() == address
}

/// Index after the last instruction in `range` that branches to the first of them.
pub(super) fn end(instructions: &[Instruction], mut range: Range<usize>) -> Option<usize> {
    let head = instructions.get(range.start)?.ip();
    let last = range.rfind(|index| leads_to(&instructions[*index], head))?;
    Some(last + 1)
}

impl TrampolineLoop {
    /// The loop from the first instruction of `range` to the last that branches back to it, if there is one.
    pub(super) fn of(
        instructions: &[Instruction],
        range: Range<usize>,
        analyst: &mut Analyst,
    ) -> Option<Self> {
        let end = end(instructions, range.clone())?;
        let body = &instructions[range.start..end];
        let head = body[0].ip();
        // An iteration may end at the first branch back: what follows it is not part of every iteration.
        let every = body.iter().position(|it| leads_to(it, head))?;
        let steps = Steps::of(body, every, analyst);
        let mut streams: Vec<Stream> = Vec::new();
        for instruction in body {
            let access = access(instruction).filter(|it| it.direction == Direction::Load);
            let stream = access.and_then(|access| steps.stream(instruction, &access));
            if let Some(stream) = stream
                && !streams.iter().any(|it| it.covers(&stream))
            {
                streams.push(stream);
            }
        }
        Some(Self {
            end,
            iteration_counter: steps.iteration_counter(),
            streams,
            saves: None,
            copies: 0,
        })
    }

    /// How many copies of the iteration may stand in a row, as a power of two. More than one only if the last
    /// instruction alone branches to the loop's head and the copies fit into [`COPIED_BYTES`].
    pub(super) fn max_copies_log2(body: &[Instruction]) -> u32 {
        let Some((last, others)) = body.split_last() else {
            return 0;
        };
        let head = body[0].ip();
        if !last.is_jcc_short_or_near() || others.iter().any(|it| leads_to(it, head)) {
            return 0;
        }
        // Counted with branches in their long form.
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

    /// The operands of the next `iterations` iterations, one per cache line, without the line that is read
    /// now.
    pub(super) fn prefetch_window(&self, iterations: i64) -> Vec<Operand> {
        let streams = self.streams.iter();
        let lines =
            streams.flat_map(|stream| stream.lines(1..=self.lines_ahead(stream, iterations)));
        lines.collect()
    }

    /// The lines after [`Self::prefetch_window`] that `more` further iterations bring within reach, at least
    /// one per stream.
    pub(super) fn next_prefetches(&self, iterations: i64, more: i64) -> Vec<Operand> {
        let streams = self.streams.iter();
        let lines = streams.flat_map(|stream| {
            let from = self.lines_ahead(stream, iterations) + 1;
            let count = (more * stream.stride / stream.step()).max(1);
            stream.lines(from..=from + count - 1)
        });
        lines.collect()
    }

    /// One operand per dense stream, `iterations` iterations after [`Self::prefetch_window`]: the page's
    /// translation is then known when its lines are prefetched.
    pub(super) fn page_prefetches(&self, iterations: i64) -> Vec<Operand> {
        let streams = self.streams.iter();
        let dense = streams.filter(|stream| stream.stride.abs() <= LINE_BYTES);
        let far = dense.filter_map(|stream| {
            let ahead = self.lines_ahead(stream, iterations) * stream.step();
            stream.operand.further(ahead + iterations * stream.stride)
        });
        far.collect()
    }

    /// How many lines of a stream are prefetched before they are read.
    fn lines_ahead(&self, stream: &Stream, iterations: i64) -> i64 {
        let streams = i64::try_from(self.streams.len()).unwrap_or(MAX_PREFETCHED_LINES);
        (iterations * stream.stride / stream.step()).min(MAX_PREFETCHED_LINES / streams.max(1))
    }
}

impl Stream {
    /// Bytes from one line that the stream reads to the next, with the sign of the stride.
    fn step(&self) -> i64 {
        self.stride.signum() * self.stride.abs().max(LINE_BYTES)
    }

    /// Operands in these lines, counted from the line that is read now.
    fn lines(&self, range: RangeInclusive<i64>) -> impl Iterator<Item = Operand> + '_ {
        range.filter_map(|line| self.operand.further(line * self.step()))
    }

    /// True if the other stream reads the same lines.
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

/// What one iteration adds to each register: `None` if unknown, 0 if it does not change.
#[derive(Debug)]
struct Steps([Option<i64>; 16]);

impl Steps {
    /// Examines a loop's instructions; every iteration executes at least those up to index `every`.
    fn of(body: &[Instruction], every: usize, analyst: &mut Analyst) -> Self {
        let mut steps = [Some(0); 16];
        for (index, instruction) in body.iter().enumerate() {
            let writes = analyst.effects(instruction).writes;
            let step = step_of(instruction).filter(|_| index <= every);
            for register in Gpr::all().filter(|it| writes.intersects(RegisterSet::gpr(*it))) {
                let state = &mut steps[usize::from(register.number())];
                *state = match (*state, step) {
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

    fn iteration_counter(&self) -> Option<IterationCounter> {
        let stepped = Gpr::all().filter_map(|register| {
            let by = self.by(register).filter(|by| *by != 0)?;
            let shift = by.trailing_zeros();
            Some(IterationCounter { register, shift })
        });
        stepped.min_by_key(|iteration_counter| iteration_counter.shift)
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

/// The constant that an instruction adds to a 64-bit register, if it does nothing else to registers.
fn step_of(instruction: &Instruction) -> Option<(Gpr, i64)> {
    let added = addition(instruction).filter(|added| added.bits == 64)?;
    // Bounded so that the sum of two does not overflow.
    (added.by.unsigned_abs() < 1 << 32).then_some((added.register, added.by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Function;

    fn trampoline_loop(code: &[u8]) -> Option<TrampolineLoop> {
        let function = Function::from_code(code, 0x1000);
        let all = &function.instructions;
        TrampolineLoop::of(all, 0..all.len(), &mut Analyst::new())
    }

    /// A loop of this many instructions, with nothing else known.
    fn plain(end: usize) -> Option<TrampolineLoop> {
        Some(TrampolineLoop {
            end,
            ..TrampolineLoop::default()
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
        let trampoline_loop = trampoline_loop(&code).unwrap();
        let (register, shift) = (Gpr::RDI, 3);
        assert_eq!(
            trampoline_loop.iteration_counter,
            Some(IterationCounter { register, shift })
        );
        assert_eq!(trampoline_loop.streams.len(), 1);
        assert_eq!(trampoline_loop.streams[0].stride, 8);
        assert_eq!(places(&trampoline_loop.prefetch_window(24)), [64, 128, 192]);
        assert_eq!(trampoline_loop.prefetch_window(7).len(), 0);
        assert_eq!(trampoline_loop.prefetch_window(1 << 20).len(), 16);
        assert_eq!(places(&trampoline_loop.next_prefetches(24, 16)), [256, 320]);
        assert_eq!(places(&trampoline_loop.next_prefetches(24, 2)), [256]);
        assert_eq!(
            places(&trampoline_loop.next_prefetches(1 << 20, 8)),
            [17 * 64]
        );
    }

    #[test]
    fn downwards_and_by_an_index_with_two_loads_of_a_line() {
        // 1: mov rax,[rsi+rcx*4]; add rax,[rsi+rcx*4+8]; sub rcx,32; jnz 1b; ret
        let code = [
            0x48, 0x8b, 0x04, 0x8e, 0x48, 0x03, 0x44, 0x8e, 0x08, 0x48, 0x83, 0xe9, 0x20, 0x75,
            0xf1, 0xc3,
        ];
        let trampoline_loop = trampoline_loop(&code).unwrap();
        assert_eq!(
            trampoline_loop
                .iteration_counter
                .map(|iteration_counter| iteration_counter.shift),
            Some(5)
        );
        assert_eq!(trampoline_loop.streams.len(), 1);
        assert_eq!(trampoline_loop.streams[0].stride, -128);
        assert_eq!(places(&trampoline_loop.prefetch_window(2)), [-128, -256]);
        assert_eq!(places(&trampoline_loop.next_prefetches(2, 2)), [-384, -512]);
    }

    #[test]
    fn a_chased_pointer_is_no_stream_and_no_iteration_counter() {
        // 1: mov rdi,[rdi]; dec esi; jnz 1b; ret
        let code = [0x48, 0x8b, 0x3f, 0xff, 0xce, 0x75, 0xf9, 0xc3];
        assert_eq!(trampoline_loop(&code), plain(3));
    }

    #[test]
    fn a_step_that_some_iterations_leave_out_is_none() {
        // 1: add rax,[rdi]; jc 1b; add rdi,8; cmp rdi,rdx; jne 1b; ret
        let code = [
            0x48, 0x03, 0x07, 0x72, 0xfb, 0x48, 0x83, 0xc7, 0x08, 0x48, 0x39, 0xd7, 0x75, 0xf2,
            0xc3,
        ];
        assert_eq!(trampoline_loop(&code), plain(5));
    }

    #[test]
    fn code_without_back_edge_is_no_loop() {
        // test edi,edi; jz 2f; mov eax,[rsi]; 2: ret
        assert_eq!(
            trampoline_loop(&[0x85, 0xff, 0x74, 0x02, 0x8b, 0x06, 0xc3]),
            None
        );
    }
}
