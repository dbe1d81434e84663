//! Finds callers of code without call frame information: C libraries without any (musl), assembly, code made
//! at run time.
//!
//! The kernel's signal frames are recognised by the code that handlers return to. In other x86-64 code, the
//! instructions from the current one to a return are followed: their effect on the stack leads to the return
//! address, as in the program itself. Where that fails as well, and on aarch64, rbp or x29 may be a frame
//! pointer.

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use super::state::{Memory, State};
use super::stop::Stop;
use crate::cfi::Cfi;
use crate::elf::Elf;
use crate::machine::Machine;

/// Register numbers of rsp and rbp.
const RSP: u8 = Machine::X86_64.stack_pointer();
const RBP: u8 = Machine::X86_64.frame_pointer();

/// Instructions decoded in search of a return, including paths without one.
const FARTHEST: usize = 1024;

/// Branches remembered for a second path.
const MAX_BRANCHES: usize = 32;

/// Shortest piece of code that is kept, in bytes: shorter ones without a return are padding between
/// functions.
const MIN_CODE_BYTES: usize = 16;
const RET: u8 = 0xc3;

/// Code that the kernel makes signal handlers return to: `rt_sigreturn` as C libraries and the vdso write it,
/// with the number of bytes before the system call instruction.
fn returns(machine: Machine) -> &'static [(&'static [u8], usize)] {
    match machine {
        Machine::X86_64 => &[
            (b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05", 7),
            (b"\xb8\x0f\x00\x00\x00\x0f\x05", 5),
        ],
        // mov x8, #139; svc #0
        Machine::Aarch64 => &[(b"\x68\x11\x80\xd2\x01\x00\x00\xd4", 4)],
    }
}

/// The pieces of a module's code that have no call frame information.
#[derive(Debug)]
pub(super) struct Gaps {
    machine: Machine,
    /// First address and bytes of each piece.
    pieces: Vec<(u64, Box<[u8]>)>,
}

impl Gaps {
    /// For a module without such code.
    pub(super) const fn none(machine: Machine) -> Self {
        let pieces = Vec::new();
        Self { machine, pieces }
    }

    /// For a module that consists of this code only.
    #[cfg(test)]
    pub(super) fn of_code(machine: Machine, address: u64, code: &[u8]) -> Self {
        Self {
            machine,
            pieces: vec![(address, code.into())],
        }
    }

    pub(super) fn read(elf: &Elf<'_>, cfi: &Cfi) -> Self {
        let mut gaps = Self::none(elf.machine);
        // Segments that refer to the same bytes again and again are made to exhaust memory.
        let mut left = elf.length().saturating_mul(2);
        for segment in elf.segments.iter().filter(|segment| segment.executable) {
            let length = segment.file.end - segment.file.start;
            let Some(rest) = left.checked_sub(length) else {
                break;
            };
            left = rest;
            let Some(bytes) = elf.view(segment.file.clone()) else {
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
        gaps.pieces.sort_by_key(|(start, _)| *start);
        gaps
    }

    fn keep(&mut self, start: u64, bytes: &[u8], gap: Range<u64>) {
        let range = usize::try_from(gap.start)
            .ok()
            .zip(usize::try_from(gap.end).ok());
        let Some(bytes) = range.and_then(|(start, end)| bytes.get(start..end)) else {
            return;
        };
        let may_return = self.machine != Machine::X86_64 || bytes.contains(&RET);
        let code = bytes.len() >= MIN_CODE_BYTES || may_return;
        if code && bytes.iter().any(|byte| !is_padding(*byte)) {
            self.pieces.push((start, bytes.into()));
        }
    }

    /// The code from `address` to the end of its piece.
    fn code(&self, address: u64) -> Option<&[u8]> {
        self.piece(address).map(|(offset, bytes)| &bytes[offset..])
    }

    fn piece(&self, address: u64) -> Option<(usize, &[u8])> {
        let behind = self.pieces.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.pieces.get(behind.checked_sub(1)?)?;
        let offset = usize::try_from(address - start).ok()?;
        (offset < bytes.len()).then_some((offset, bytes))
    }

    /// True if a thread at this address is about to return from a signal handler through the kernel's signal
    /// frame.
    pub(super) fn returns_from_signal(&self, address: u64) -> bool {
        let Some((offset, bytes)) = self.piece(address) else {
            return false;
        };
        returns(self.machine).iter().any(|(code, call)| {
            bytes[offset..].starts_with(code)
                || (offset >= *call && bytes[offset - call..].starts_with(code))
        })
    }

    /// The caller's state, if a path from here to a return can be followed.
    pub(super) fn walk(&self, address: u64, state: &State, read: &mut Memory<'_>) -> Option<State> {
        if self.machine == Machine::Aarch64 {
            return self.through_stub(address, state);
        }
        let mut walk = Walk {
            state: *state,
            pushed: Vec::new(),
        };
        let mut info = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        let mut decoder = self.decoder(address);
        let mut others = Vec::new();
        let mut visited = Vec::new();
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
                    if others.len() < MAX_BRANCHES && !visited.contains(&target) {
                        visited.push(target);
                        others.push((target, walk.clone()));
                    }
                    continue;
                }
                Next::At(target) if !visited.contains(&target) => {
                    visited.push(target);
                    target
                }
                // A loop, or a path that cannot be followed: try the other path of the last branch.
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

    /// The caller of an aarch64 stub, from any of its instructions: the stub computes an address and jumps
    /// there, while the link register still has the return address.
    fn through_stub(&self, address: u64, state: &State) -> Option<State> {
        /// Instructions of the longest stub.
        const MAX_STUB_INSTRUCTIONS: usize = 6;
        let link = state.machine.link_register()?;
        let words = self.code(address)?.as_chunks::<4>().0;
        let words = words.iter().map(|word| u32::from_le_bytes(*word));
        for word in words.take(MAX_STUB_INSTRUCTIONS) {
            // br; ret
            if word & 0xffff_fc1f == 0xd61f_0000 || word == 0xd65f_03c0 {
                let mut caller = *state;
                caller.ip = state.machine.code_address(state.get(link)?);
                return Some(caller);
            }
            // adr, adrp, and ldr and add with an immediate, into a register that calls need not preserve;
            // and hints, such as bti.
            let computes = word & 0x1f00_0000 == 0x1000_0000
                || word & 0xffc0_0000 == 0xf940_0000
                || word & 0xff80_0000 == 0x9100_0000;
            let is_hint = word & 0xffff_f01f == 0xd503_201f;
            if !(is_hint || computes && word & 31 <= 17) {
                return None;
            }
        }
        None
    }

    fn decoder(&self, address: u64) -> Option<Decoder<'_>> {
        let code = self.code(address)?;
        Some(Decoder::with_ip(64, code, address, DecoderOptions::NONE))
    }
}

const fn is_padding(byte: u8) -> bool {
    matches!(byte, 0 | 0x90 | 0xcc)
}

/// Where execution continues after an instruction.
enum Next {
    Following,
    /// At the next instruction or at this address.
    Either(u64),
    At(u64),
    Returned,
    /// At an unknown place: in another function, which returns in this one's stead, or in this one.
    Away,
    /// Unknown.
    Stuck,
}

/// State while instructions are followed: their effect on stack and registers.
#[derive(Clone)]
struct Walk {
    state: State,
    /// Stack slots that were written on this path: the copied stack does not have their values.
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
            // A jump through a fixed slot is a linkage stub, never a jump within a function.
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                self.ended(0, read)
            }
            FlowControl::IndirectBranch => Next::Away,
            FlowControl::ConditionalBranch => Next::Either(instruction.near_branch_target()),
            // A called function preserves what it must.
            FlowControl::Call | FlowControl::IndirectCall => {
                self.state.keep_preserved();
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

    /// Simulates a return that also removes `more` bytes from the stack. False if the return address is
    /// unknown.
    fn returned(&mut self, more: u16, read: &mut Memory<'_>) -> bool {
        let Some(address) = self.pop(read) else {
            return false;
        };
        self.state.ip = address;
        self.state.keep_preserved();
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

    /// Marks registers that an instruction writes as unknown, except one loaded from the stack, which gets
    /// the value of the slot.
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
        // Without a stack pointer, the walk cannot continue.
        self.state.sp().map(|_| ())
    }

    /// The register and value of a `mov` that loads a whole register from the stack.
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

/// Layout of registers in the kernel's signal frame: offset in bytes from the stack pointer, and order of the
/// registers, which ip follows.
const fn signal_frame(machine: Machine) -> (u64, &'static [u8]) {
    match machine {
        // `struct ucontext` up to the registers of `struct sigcontext`.
        Machine::X86_64 => (
            40,
            &[8, 9, 10, 11, 12, 13, 14, 15, 7, 6, RBP, 3, 2, 0, 1, RSP],
        ),
        // `siginfo`, `struct ucontext` up to `struct sigcontext`, and the fault's address.
        Machine::Aarch64 => (
            128 + 176 + 8,
            &[
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                23, 24, 25, 26, 27, 28, 29, 30, 31,
            ],
        ),
    }
}

/// The state that a signal interrupted, from the kernel's frame on the stack.
pub(super) fn from_signal(state: &State, read: &mut Memory<'_>) -> Result<State, Stop> {
    let (before, order) = signal_frame(state.machine);
    let saved = state.sp().ok_or(Stop::Unknown)?.wrapping_add(before);
    let mut interrupted = *state;
    for (at, number) in (0..).zip(order) {
        let value = read(saved.wrapping_add(8 * at));
        interrupted.set(*number, value);
    }
    let ip = saved.wrapping_add(8 * order.len() as u64);
    interrupted.ip = read(ip).ok_or(Stop::Unread)?;
    Ok(interrupted)
}

/// The caller's state, assuming that rbp or x29 is a frame pointer: on both architectures it points to the
/// caller's frame pointer, which the return address follows.
pub(super) fn by_frame_pointer(state: &State, read: &mut Memory<'_>) -> Result<State, Stop> {
    let (Some(sp), Some(frame)) = (state.sp(), state.frame()) else {
        return Err(Stop::Unknown);
    };
    // The ABIs mark a thread's first frame in this way.
    if frame == 0 {
        return Err(Stop::Outermost);
    }
    if frame < sp || frame % 8 != 0 {
        return Err(Stop::Unknown);
    }
    let mut caller = *state;
    caller.keep_preserved();
    let return_address = read(frame.wrapping_add(8)).ok_or(Stop::Unread)?;
    caller.ip = state.machine.code_address(return_address);
    caller.set(state.machine.frame_pointer(), read(frame));
    caller.set_sp(frame.wrapping_add(16));
    Ok(caller)
}
