//! Callers of code that has no call frame information: C libraries without any (musl),
//! assembly, code of compilers at run time.
//!
//! The kernel's signal frames are known by the code that handlers return to. For other code
//! the instructions from where the thread stands to a return are followed: what they do to
//! the stack leads to the return address as the program itself would get there. Where that
//! is not to be seen either, rbp may be a frame pointer.

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use super::rule::Stop;
use super::state::{Memory, PRESERVED, RBP, RSP, State};
use crate::cfi::Cfi;
use crate::elf::Elf;

/// Instructions on the way to a return, those of ways that led nowhere among them.
const FARTHEST: usize = 1024;

/// Branches whose other way is remembered.
const MOST_BRANCHES: usize = 32;

/// Bytes of the shortest piece of code that is kept: less is padding between functions, if
/// there is no return in it.
const SHORTEST: usize = 16;
const RET: u8 = 0xc3;

/// What the kernel lets signal handlers return to: `rt_sigreturn` as C libraries write it.
const RETURNS: [&[u8]; 2] = [
    b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05",
    b"\xb8\x0f\x00\x00\x00\x0f\x05",
];

/// Code of a module that has no call frame information.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<(u64, Box<[u8]>)>);

impl Gaps {
    pub(super) fn read(elf: &Elf<'_>, cfi: &Cfi) -> Self {
        let mut gaps = Self::default();
        // Segments that show the same bytes again and again are made to fill the memory.
        let mut left = elf.length().saturating_mul(2);
        for segment in elf.segments.iter().filter(|segment| segment.executable) {
            let length = segment.file.end - segment.file.start;
            let Some(rest) = left.checked_sub(length) else {
                break;
            };
            left = rest;
            let Some(bytes) = elf.range(segment.file.clone()) else {
                continue;
            };
            let end = segment.address.saturating_add(bytes.len() as u64);
            let mut at = segment.address;
            let covered = cfi.pieces().iter().map(|piece| (piece.start, piece.end));
            for (start, behind) in covered.chain([(end, end)]) {
                if behind <= at {
                    continue;
                }
                if start > at {
                    let gap = at - segment.address..start.min(end) - segment.address;
                    gaps.keep(at, &bytes, gap);
                }
                at = behind;
                if at >= end {
                    break;
                }
            }
        }
        gaps.0.sort_by_key(|(start, _)| *start);
        gaps
    }

    fn keep(&mut self, start: u64, bytes: &[u8], gap: Range<u64>) {
        let range = usize::try_from(gap.start)
            .ok()
            .zip(usize::try_from(gap.end).ok());
        let Some(bytes) = range.and_then(|(start, end)| bytes.get(start..end)) else {
            return;
        };
        let code = bytes.len() >= SHORTEST || bytes.contains(&RET);
        if code && bytes.iter().any(|byte| !is_padding(*byte)) {
            self.0.push((start, bytes.into()));
        }
    }

    /// The code from `address` to the end of its piece.
    fn code(&self, address: u64) -> Option<&[u8]> {
        self.piece(address).map(|(offset, bytes)| &bytes[offset..])
    }

    fn piece(&self, address: u64) -> Option<(usize, &[u8])> {
        let behind = self.0.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.0.get(behind.checked_sub(1)?)?;
        let offset = usize::try_from(address - start).ok()?;
        (offset < bytes.len()).then_some((offset, bytes))
    }

    /// Whether the kernel's signal frame lies on the stack of a thread that stands here.
    pub(super) fn returns_from_signal(&self, address: u64) -> bool {
        let Some((offset, bytes)) = self.piece(address) else {
            return false;
        };
        RETURNS.iter().any(|code| {
            let call = code.len() - 2;
            bytes[offset..].starts_with(code)
                || (offset >= call && bytes[offset - call..].starts_with(code))
        })
    }

    /// The caller's state, when the way from here to a return can be followed.
    pub(super) fn walk(&self, address: u64, state: &State, read: &mut Memory<'_>) -> Option<State> {
        let mut walk = Walk {
            state: *state,
            pushed: Vec::new(),
        };
        let mut info = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        let mut decoder = self.decoder(address);
        let mut others = Vec::new();
        let mut seen = Vec::new();
        let mut jumped_away = None;
        for _ in 0..FARTHEST {
            let next = match &mut decoder {
                Some(decoder) if decoder.can_decode() => {
                    decoder.decode_out(&mut instruction);
                    walk.follow(&instruction, &mut info, read)
                }
                _ => Next::Stuck,
            };
            let next = match next {
                Next::At(target) if self.code(target).is_none() => Next::Away,
                next => next,
            };
            let at = match next {
                Next::Following => continue,
                Next::Returned => return Some(walk.state),
                Next::Either(target) => {
                    if others.len() < MOST_BRANCHES && !seen.contains(&target) {
                        seen.push(target);
                        others.push((target, walk.clone()));
                    }
                    continue;
                }
                Next::At(target) if !seen.contains(&target) => {
                    seen.push(target);
                    target
                }
                // A loop, or the end of what can be seen: the other way at a branch.
                Next::At(_) | Next::Stuck | Next::Away => {
                    if matches!(next, Next::Away) && jumped_away.is_none() {
                        jumped_away = walk.returned(0, read).then_some(walk.state);
                    }
                    let Some((target, then)) = others.pop() else {
                        return jumped_away;
                    };
                    walk = then;
                    target
                }
            };
            decoder = self.decoder(at);
        }
        jumped_away
    }

    fn decoder(&self, address: u64) -> Option<Decoder<'_>> {
        let code = self.code(address)?;
        Some(Decoder::with_ip(64, code, address, DecoderOptions::NONE))
    }
}

const fn is_padding(byte: u8) -> bool {
    matches!(byte, 0 | 0x90 | 0xcc)
}

/// What comes next.
enum Next {
    Following,
    /// Here or there.
    Either(u64),
    At(u64),
    Returned,
    /// To another function, which will return for this one; or within this one.
    Away,
    /// It cannot be seen.
    Stuck,
}

/// Instructions, followed as far as they move the stack.
#[derive(Clone)]
struct Walk {
    state: State,
    /// Slots that were written on the way: memory does not have them.
    pushed: Vec<u64>,
}

impl Walk {
    fn follow(
        &mut self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        read: &mut Memory<'_>,
    ) -> Next {
        match instruction.flow_control() {
            _ if instruction.is_invalid() => Next::Stuck,
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => {
                let more = match instruction.op_count() {
                    0 => 0,
                    _ => instruction.immediate16(),
                };
                self.ended(more, read)
            }
            FlowControl::UnconditionalBranch => Next::At(instruction.near_branch_target()),
            // Linkage jumps through a table at a fixed place, and never within a function.
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                self.ended(0, read)
            }
            FlowControl::IndirectBranch => Next::Away,
            FlowControl::ConditionalBranch => Next::Either(instruction.near_branch_target()),
            // What is called gives back what it must.
            FlowControl::Call | FlowControl::IndirectCall => {
                self.state.keep(PRESERVED);
                Next::Following
            }
            FlowControl::Next => self
                .execute(instruction, info, read)
                .map_or(Next::Stuck, |()| Next::Following),
            _ => Next::Stuck,
        }
    }

    fn ended(&mut self, more: u16, read: &mut Memory<'_>) -> Next {
        if self.returned(more, read) {
            Next::Returned
        } else {
            Next::Stuck
        }
    }

    /// Returns, and takes `more` bytes off the stack. Says whether there was an address.
    fn returned(&mut self, more: u16, read: &mut Memory<'_>) -> bool {
        let Some(address) = self.pop(read) else {
            return false;
        };
        self.state.ip = address;
        self.state.keep(PRESERVED);
        self.move_stack(i64::from(more)).is_some()
    }

    fn execute(
        &mut self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        read: &mut Memory<'_>,
    ) -> Option<()> {
        let on_stack = instruction.op0_register() == Register::RSP;
        let immediate = instruction.op_count() == 2 && is_immediate(instruction.op1_kind());
        match instruction.mnemonic() {
            Mnemonic::Push => {
                self.move_stack(-8)?;
                self.pushed.push(self.state.sp()?);
                return Some(());
            }
            Mnemonic::Pop if instruction.op0_kind() == OpKind::Register => {
                let value = self.pop(read);
                let number = general(instruction.op0_register())?;
                self.state.set(number, value);
                return Some(());
            }
            Mnemonic::Leave => {
                self.state.set(RSP, Some(self.state.get(RBP)?));
                let value = self.pop(read);
                self.state.set(RBP, value);
                return Some(());
            }
            Mnemonic::Add if on_stack && immediate => {
                return self.move_stack(instruction.immediate(1).cast_signed());
            }
            Mnemonic::Sub if on_stack && immediate => {
                return self.move_stack(instruction.immediate(1).cast_signed().wrapping_neg());
            }
            Mnemonic::And if on_stack && immediate => {
                let aligned = self.state.sp()? & instruction.immediate(1);
                self.state.set(RSP, Some(aligned));
                return Some(());
            }
            Mnemonic::Mov
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Register =>
            {
                if let (Some(to), Some(from)) = (
                    general(instruction.op0_register()),
                    general(instruction.op1_register()),
                ) {
                    self.state.set(to, self.state.get(from));
                    return (to != RSP || self.state.sp().is_some()).then_some(());
                }
            }
            Mnemonic::Lea if instruction.memory_index() == Register::None => {
                if let (Some(to), Some(from)) = (
                    general(instruction.op0_register()),
                    general(instruction.memory_base()),
                ) {
                    let address = self
                        .state
                        .get(from)
                        .map(|base| base.wrapping_add(instruction.memory_displacement64()));
                    self.state.set(to, address);
                    return (to != RSP || address.is_some()).then_some(());
                }
            }
            _ => {}
        }
        self.forget_written(instruction, info, read)
    }

    /// Registers that an instruction writes are unknown behind it; one that is read from the
    /// stack has what lies there.
    fn forget_written(
        &mut self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        read: &mut Memory<'_>,
    ) -> Option<()> {
        let loaded = self.loaded(instruction, read);
        for used in info.info(instruction).used_registers() {
            let writes = !matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            if let Some(number) = general(used.register().full_register())
                && writes
            {
                self.state.set(number, None);
            }
        }
        if let Some((number, value)) = loaded {
            self.state.set(number, Some(value));
        }
        // Without the stack pointer there is no way on.
        self.state.sp().map(|_| ())
    }

    /// `mov` of a whole register from a place in the stack.
    fn loaded(&self, instruction: &Instruction, read: &mut Memory<'_>) -> Option<(u8, u64)> {
        if instruction.code() != Code::Mov_r64_rm64
            || instruction.op1_kind() != OpKind::Memory
            || instruction.memory_index() != Register::None
        {
            return None;
        }
        let to = general(instruction.op0_register())?;
        let base = general(instruction.memory_base()).filter(|base| matches!(*base, RSP | RBP))?;
        let address = self
            .state
            .get(base)?
            .wrapping_add(instruction.memory_displacement64());
        if self.pushed.contains(&address) {
            return None;
        }
        read(address).map(|value| (to, value))
    }

    fn pop(&mut self, read: &mut Memory<'_>) -> Option<u64> {
        let address = self.state.sp()?;
        let pushed = self.pushed.iter().rposition(|slot| *slot == address);
        self.move_stack(8)?;
        match pushed {
            Some(at) => {
                self.pushed.remove(at);
                None
            }
            None => read(address),
        }
    }

    fn move_stack(&mut self, by: i64) -> Option<()> {
        let sp = self.state.sp()?.wrapping_add_signed(by);
        self.state.set(RSP, Some(sp));
        Some(())
    }
}

const fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64
    )
}

fn general(register: Register) -> Option<u8> {
    register
        .is_gpr64()
        .then(|| u8::try_from(register.number()).ok())
        .flatten()
}

/// The state that a signal interrupted, out of the kernel's frame on the stack.
pub(super) fn from_signal(state: &State, read: &mut Memory<'_>) -> Result<State, Stop> {
    /// Bytes before the registers in `struct ucontext`.
    const BEFORE: u64 = 40;
    /// Their order in `struct sigcontext`, ip behind them.
    const ORDER: [u8; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 7, 6, RBP, 3, 2, 0, 1, RSP];
    let saved = state.sp().ok_or(Stop::Unknown)?.wrapping_add(BEFORE);
    let mut interrupted = *state;
    for (at, number) in (0..).zip(ORDER) {
        let value = read(saved.wrapping_add(8 * at));
        interrupted.set(number, value);
    }
    let ip = saved.wrapping_add(8 * ORDER.len() as u64);
    interrupted.ip = read(ip).ok_or(Stop::Unread)?;
    Ok(interrupted)
}

/// The caller's state, if rbp is a frame pointer.
pub(super) fn by_frame_pointer(state: &State, read: &mut Memory<'_>) -> Result<State, Stop> {
    let (Some(sp), Some(frame)) = (state.sp(), state.get(RBP)) else {
        return Err(Stop::Unknown);
    };
    // So the ABI marks a thread's first frame.
    if frame == 0 {
        return Err(Stop::Outermost);
    }
    if frame < sp || frame % 8 != 0 {
        return Err(Stop::Unknown);
    }
    let mut caller = *state;
    caller.keep(PRESERVED);
    caller.ip = read(frame.wrapping_add(8)).ok_or(Stop::Unread)?;
    caller.set(RBP, read(frame));
    caller.set(RSP, Some(frame.wrapping_add(16)));
    Ok(caller)
}
