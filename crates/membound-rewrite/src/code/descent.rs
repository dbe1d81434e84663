//! Decodes a function by following its control flow (recursive descent).

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::knowledge::ImageFacts;
use super::unresolved::Unresolved;
use crate::image::{FunctionBounds, Image, leading_padding};

/// Largest function that is decoded, in bytes: more than any real one has, and small enough that the per-byte
/// maps of a hostile file's functions need little memory.
const MAX_FUNCTION_BYTES: usize = 16 << 20;

/// Bytes that are searched backward for known code.
const MAX_BACKWARD_BYTES: usize = 4096;

/// Bytes that are examined for padding at once.
const PADDING_BYTES_PER_STEP: usize = 256;

/// Bytes that decode to this many consecutive instructions are accepted as code.
const MIN_CODE_INSTRUCTIONS: usize = 256;

/// The effect of an instruction on control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next instruction follows.
    Next,
    /// The kernel runs, then the next instruction follows.
    SystemCall,
    /// A direct jump.
    Jump(u64),
    /// A direct jump, or the next instruction follows.
    Branch(u64),
    /// A call, with its target if it is direct.
    Call(Option<u64>),
    /// A jump to an address in a register or in memory.
    Indirect,
    /// A near return, a far return, or a return from an interrupt.
    Return,
    /// No instruction runs after it.
    Stops,
}

/// Determines the effect of an instruction on control flow.
pub(super) fn flow(instruction: &Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::Next => match instruction.mnemonic() {
            Mnemonic::Hlt => Flow::Stops,
            _ => Flow::Next,
        },
        FlowControl::UnconditionalBranch => match near_target(instruction) {
            Some(target) => Flow::Jump(target),
            None => Flow::Indirect,
        },
        FlowControl::ConditionalBranch => Flow::Branch(instruction.near_branch_target()),
        FlowControl::IndirectBranch => Flow::Indirect,
        FlowControl::Return => Flow::Return,
        FlowControl::Call => match instruction.mnemonic() {
            Mnemonic::Call => Flow::Call(near_target(instruction)),
            _ => Flow::SystemCall,
        },
        FlowControl::IndirectCall => Flow::Call(None),
        FlowControl::Interrupt => match instruction.mnemonic() {
            Mnemonic::Int => Flow::SystemCall,
            _ => Flow::Stops,
        },
        FlowControl::XbeginXabortXend => match instruction.mnemonic() {
            Mnemonic::Xbegin => Flow::Branch(instruction.near_branch_target()),
            _ => Flow::SystemCall,
        },
        FlowControl::Exception => Flow::Stops,
    }
}

fn near_target(instruction: &Instruction) -> Option<u64> {
    matches!(
        instruction.op0_kind(),
        iced_x86::OpKind::NearBranch16
            | iced_x86::OpKind::NearBranch32
            | iced_x86::OpKind::NearBranch64
    )
    .then(|| instruction.near_branch_target())
}

/// What is known outside the function.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a, 'data> {
    pub(super) image: Option<&'a Image<'data>>,
    pub(super) knowledge: &'a ImageFacts,
}

impl Surroundings<'_, '_> {
    /// False if control is known never to return from a call.
    pub(super) fn call_returns(&self, call: &Instruction, target: Option<u64>) -> bool {
        match target {
            Some(target) => !self.knowledge.never_returns(target),
            None if call.is_ip_rel_memory_operand() => !self
                .knowledge
                .slot_never_returns(call.memory_displacement64()),
            None => true,
        }
    }
}

const UNKNOWN: u32 = 0;
const INSIDE: u32 = u32::MAX;

/// A function that is being decoded.
pub(super) struct Descent<'a, 'data> {
    pub(super) surroundings: Surroundings<'a, 'data>,
    bytes: &'a [u8],
    /// Decodes `bytes`. Shared by the whole function, because creating a decoder takes as long as decoding
    /// some instructions.
    decoder: Decoder<'a>,
    start: u64,
    /// For each byte: [`UNKNOWN`], [`INSIDE`] an instruction, or the index plus one of the instruction that
    /// begins there.
    map: Vec<u32>,
    /// For each byte: whether a block must begin there, and whether control enters it from outside.
    leader: Vec<bool>,
    entered: Vec<bool>,
    /// Instructions in the order in which they were found.
    pub(super) instructions: Vec<Instruction>,
    work: Vec<u64>,
    pub(super) undecodable: Option<u64>,
    /// Addresses that control reaches although a different decoding covers them.
    entered_inside: Vec<u64>,
    pub(super) bounds: &'a FunctionBounds,
    /// True if the function has an indirect jump.
    pub(super) jumps_indirectly: bool,
    /// Number of instructions, leaders and entries found. Nothing is ever removed, so equal numbers mean
    /// equal blocks.
    pub(super) findings: usize,
}

impl<'a, 'data> Descent<'a, 'data> {
    pub(super) fn new(
        surroundings: Surroundings<'a, 'data>,
        bytes: &'a [u8],
        bounds: &'a FunctionBounds,
    ) -> Self {
        let start = bounds.range.start;
        let too_long = bytes.len() > MAX_FUNCTION_BYTES;
        let bytes = if too_long { &[] } else { bytes };
        Self {
            surroundings,
            bytes,
            decoder: Decoder::with_ip(64, bytes, start, DecoderOptions::NONE),
            start,
            map: vec![UNKNOWN; bytes.len()],
            leader: vec![false; bytes.len()],
            entered: vec![false; bytes.len()],
            instructions: Vec::with_capacity(bytes.len() / 4),
            work: Vec::new(),
            undecodable: (too_long || bytes.is_empty()).then_some(start),
            entered_inside: Vec::new(),
            bounds,
            jumps_indirectly: false,
            findings: 0,
        }
    }

    /// The offset of an address from the function's start, if it is inside.
    pub(super) fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        (offset < self.bytes.len()).then_some(offset)
    }

    /// The function's first address.
    pub(super) const fn start(&self) -> u64 {
        self.start
    }

    /// One past the function's last address.
    pub(super) const fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// True if an address is inside the function and not in the middle of an instruction.
    pub(super) fn may_begin(&self, address: u64) -> bool {
        self.offset(address)
            .is_some_and(|offset| self.map[offset] != INSIDE)
    }

    pub(super) fn is_leader(&self, address: u64) -> bool {
        self.offset(address)
            .is_some_and(|offset| self.leader[offset])
    }

    pub(super) fn is_entered(&self, address: u64) -> bool {
        self.offset(address)
            .is_some_and(|offset| self.entered[offset])
    }

    /// True if decoding that starts at the end of the nearest known instruction reaches `address` as the
    /// start of an instruction.
    pub(super) fn is_in_step(&self, address: u64) -> bool {
        let Some(offset) = self.offset(address) else {
            return false;
        };
        let unknown = self.map[..offset]
            .iter()
            .rev()
            .take(MAX_BACKWARD_BYTES)
            .take_while(|&&byte| byte == UNKNOWN)
            .count();
        let from = offset - unknown;
        let mut decoder = Decoder::with_ip(
            64,
            &self.bytes[from..],
            self.start + from as u64,
            DecoderOptions::NONE,
        );
        let mut instruction = Instruction::default();
        while decoder.ip() < address {
            decoder.decode_out(&mut instruction);
        }
        decoder.ip() == address && self.map[offset] != INSIDE
    }

    /// True if `address` begins a known instruction, or undecoded bytes that decode without conflict up to a
    /// jump, a return or known code.
    pub(super) fn reads_like_code(&self, address: u64) -> bool {
        let Some(mut at) = self.offset(address) else {
            return false;
        };
        let mut decoder = Decoder::with_ip(64, &self.bytes[at..], address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        for _ in 0..MIN_CODE_INSTRUCTIONS {
            match self.map.get(at) {
                Some(&UNKNOWN) => {}
                Some(&INSIDE) | None => return false,
                Some(_) => return true,
            }
            decoder.decode_out(&mut instruction);
            let next = at + instruction.len();
            if is_data(&instruction, &self.bytes[at..next])
                || self.map[at + 1..next].iter().any(|&byte| byte != UNKNOWN)
            {
                return false;
            }
            let flow = flow(&instruction);
            if let Flow::Jump(target) | Flow::Branch(target) = flow
                && self
                    .offset(target)
                    .is_some_and(|offset| self.map[offset] == INSIDE)
            {
                return false;
            }
            if matches!(
                flow,
                Flow::Jump(_) | Flow::Indirect | Flow::Return | Flow::Stops
            ) {
                return true;
            }
            at = next;
        }
        true
    }

    /// Notes that a block begins at `address`. Returns true if that was not known.
    pub(super) fn lead(&mut self, address: u64) -> bool {
        let Some(offset) = self.offset(address) else {
            return false;
        };
        let new = !self.leader[offset];
        self.mark(address);
        if self.map[offset] == UNKNOWN {
            self.work.push(address);
        } else if self.map[offset] == INSIDE {
            self.entered_inside.push(address);
        }
        new
    }

    /// Notes that a block begins at `address` and is entered from outside.
    pub(super) fn enter(&mut self, address: u64) {
        if let Some(offset) = self.offset(address) {
            let was_known = std::mem::replace(&mut self.entered[offset], true);
            self.findings += usize::from(!was_known);
            self.lead(address);
        }
    }

    /// Decodes from all addresses that were noted and are still undecoded.
    pub(super) fn follow(&mut self) {
        while let Some(address) = self.work.pop() {
            self.run(address);
        }
    }

    /// Decodes from `address` until control does not continue with the next instruction.
    fn run(&mut self, address: u64) {
        let Some(mut at) = self.offset(address) else {
            return;
        };
        if self.decoder.set_position(at).is_err() {
            return;
        }
        self.decoder.set_ip(address);
        let mut instruction = Instruction::default();
        while at < self.bytes.len() {
            match self.map[at] {
                UNKNOWN => {}
                INSIDE => {
                    self.entered_inside.push(self.start + at as u64);
                    return;
                }
                _ => return,
            }
            self.decoder.decode_out(&mut instruction);
            let next = at + instruction.len();
            if is_data(&instruction, &self.bytes[at..next]) {
                self.undecodable.get_or_insert(self.start + at as u64);
                return;
            }
            if self.map[at + 1..next].iter().any(|&byte| byte != UNKNOWN) {
                self.entered_inside.push(self.start + at as u64);
                return;
            }
            self.instructions.push(instruction);
            self.findings += 1;
            self.map[at] = u32::try_from(self.instructions.len())
                .expect("a function has fewer bytes than 2^32");
            self.map[at + 1..next].fill(INSIDE);
            if !self.continues(&instruction) {
                return;
            }
            at = next;
        }
    }

    /// Notes the targets of an instruction. Returns true if the next instruction may run after it.
    fn continues(&mut self, instruction: &Instruction) -> bool {
        let next = instruction.next_ip();
        match flow(instruction) {
            Flow::Next => true,
            Flow::SystemCall => {
                self.mark(next);
                true
            }
            Flow::Jump(target) => {
                self.lead(target);
                false
            }
            Flow::Branch(target) => {
                self.lead(target);
                self.mark(next);
                true
            }
            Flow::Call(target) => {
                self.mark(next);
                if let Some(target) = target
                    && target != self.start
                {
                    self.enter(target);
                }
                self.surroundings.call_returns(instruction, target)
            }
            Flow::Indirect => {
                self.jumps_indirectly = true;
                false
            }
            Flow::Return | Flow::Stops => false,
        }
    }

    /// The instructions, sorted by address.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Instruction> {
        self.map
            .iter()
            .filter(|&&byte| byte != UNKNOWN && byte != INSIDE)
            .map(|&index| &self.instructions[index as usize - 1])
    }

    /// Notes that a block begins at `address`, if there is code.
    fn mark(&mut self, address: u64) {
        if let Some(offset) = self.offset(address) {
            let was_known = std::mem::replace(&mut self.leader[offset], true);
            self.findings += usize::from(!was_known);
        }
    }

    /// Decodes bytes that are neither reached by known control flow nor padding; they are assumed to be
    /// entered from outside. Ranges of `data` are skipped. Returns true if there were such bytes.
    pub(super) fn follow_unreached(&mut self, data: &[std::ops::Range<u64>]) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.map.len() {
            if self.map[at] != UNKNOWN {
                at += 1;
                continue;
            }
            let address = self.start + at as u64;
            if let Some(range) = data.iter().find(|range| range.contains(&address)) {
                at += usize::try_from(range.end - address).unwrap_or(usize::MAX - at);
                continue;
            }
            // Limited: counting all remaining bytes would take quadratic time in a function of megabytes.
            let open = self.map[at..]
                .iter()
                .take(PADDING_BYTES_PER_STEP)
                .take_while(|&&byte| byte == UNKNOWN)
                .count();
            let padding = leading_padding(&self.bytes[at..at + open]);
            at += padding;
            if padding == open || padding > 0 && open == PADDING_BYTES_PER_STEP {
                continue;
            }
            let address = self.start + at as u64;
            if data.iter().any(|range| range.contains(&address)) {
                continue;
            }
            any = true;
            self.enter(address);
            self.follow();
            if self.map[at] == UNKNOWN {
                // These bytes could not be decoded, which has been noted; nor can what follows.
                self.undecodable.get_or_insert(address);
                break;
            }
        }
        any
    }

    /// Why not all branches into the function are known, as far as decoding shows.
    pub(super) fn unresolved(&self) -> Option<Unresolved> {
        self.undecodable.map(Unresolved::Undecodable).or(self
            .entered_inside
            .first()
            .copied()
            .map(Unresolved::EnteredInside))
    }

    /// Ranges that control may read differently from how they were decoded: from each address where control
    /// enters an instruction in the middle (compilers and libraries themselves jump past a `lock` prefix) to
    /// the first instruction boundary that both decodings share. Sorted by start.
    pub(super) fn overlapped(&self) -> Vec<std::ops::Range<u64>> {
        let mut visited = rustc_hash::FxHashSet::default();
        let mut ranges = Vec::new();
        let mut work = self.entered_inside.clone();
        while let Some(address) = work.pop() {
            let Some(from) = self.offset(address) else {
                continue;
            };
            let mut at = from;
            while at < self.map.len() && matches!(self.map[at], INSIDE | UNKNOWN) {
                if !visited.insert(at) {
                    break;
                }
                let address = self.start + at as u64;
                let instruction =
                    Decoder::with_ip(64, &self.bytes[at..], address, DecoderOptions::NONE).decode();
                let flow = flow(&instruction);
                if let Flow::Jump(target) | Flow::Branch(target) | Flow::Call(Some(target)) = flow {
                    work.push(target);
                }
                at += instruction.len();
                if instruction.is_invalid()
                    || matches!(
                        flow,
                        Flow::Jump(_) | Flow::Indirect | Flow::Return | Flow::Stops
                    )
                {
                    break;
                }
            }
            if at > from {
                ranges.push(address..self.start + at.min(self.map.len()) as u64);
            }
        }
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        ranges
    }
}

/// True if these bytes are no instruction, or two zeros (`add [rax], al`), which no compiler writes as one. The
/// tables between the functions of GHC's programs consist mostly of zeros.
fn is_data(instruction: &Instruction, bytes: &[u8]) -> bool {
    instruction.is_invalid() || bytes == [0, 0]
}

#[cfg(test)]
mod tests {
    use super::super::Function;
    use super::*;

    fn overlapped(code: &[u8]) -> (Option<Unresolved>, Vec<std::ops::Range<u64>>) {
        let function = Function::from_code(code, 0x1000);
        (function.unresolved, function.overlapped)
    }

    #[test]
    fn a_jump_past_a_lock_prefix_enters_an_instruction() {
        // je 0x1003; lock dec qword ptr [rip]; ret: how glibc's malloc does without the lock
        // in a program of one thread.
        let code = [
            0x74, 0x01, 0xf0, 0x48, 0xff, 0x0d, 0x00, 0x00, 0x00, 0x00, 0xc3,
        ];
        let (unresolved, ranges) = overlapped(&code);
        assert_eq!(unresolved, Some(Unresolved::EnteredInside(0x1003)));
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges[0], 0x1003..0x100a);
    }

    #[test]
    fn two_readings_go_apart_up_to_a_common_boundary() {
        // je 0x1003; mov eax, 0x909090b8; nop; …; inside: mov eax, 0x90909090 and on, which
        // ends two instructions further.
        let code = [
            0x74, 0x02, 0xb8, 0x90, 0xb8, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3,
        ];
        let (unresolved, ranges) = overlapped(&code);
        assert_eq!(unresolved, Some(Unresolved::EnteredInside(0x1004)));
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges[0], 0x1004..0x1009);
    }

    #[test]
    fn readings_that_agree_overlap_nowhere() {
        assert_eq!(overlapped(&[0x74, 0x01, 0x90, 0xc3]), (None, Vec::new()));
    }
}
