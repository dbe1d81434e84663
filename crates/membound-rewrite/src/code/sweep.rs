//! A linear pass over the instructions of a function, for what they show about other functions.
//!
//! The pass decodes bytes in order, so it may read data among the code as instructions, and miss instructions
//! behind the data. Those are read from the jumps that lead to them, so it finds too much rather than too
//! little.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

use super::descent::{Flow, flow};
use super::knowledge::EntryCertainty;
use super::noreturn::{Callee, Exits};
use crate::between;
use crate::image::{FunctionBounds, Image, leading_padding};

/// Result of the pass over one function.
#[derive(Clone, Debug, Default)]
pub(super) struct LinearScan {
    pub(super) exits: Exits,
    /// Addresses in text, other than starts of functions, that this function jumps to or whose address it
    /// takes.
    pub(super) entries: Vec<(u64, EntryCertainty)>,
    /// Stubs: targets of direct calls and jumps that jump through a slot, with that slot.
    pub(super) stubs: Vec<(u64, u64)>,
    /// Slots through which the function calls.
    pub(super) slots: Vec<u64>,
    /// True if the function jumps through registers or tables.
    pub(super) jumps_indirectly: bool,
}

pub(super) fn sweep(image: &Image<'_>, function: &FunctionBounds) -> LinearScan {
    between::pass();
    let mut found = LinearScan::default();
    let Some(bytes) = image.bytes(function.range.clone()) else {
        found.exits.may_return = true;
        return found;
    };
    let mut pass = Pass {
        image,
        function,
        bytes,
        begins: vec![false; bytes.len()],
        targets: Vec::new(),
        found,
    };
    let last = pass.in_order();
    if matches!(last, Flow::Next | Flow::SystemCall | Flow::Branch(_)) {
        pass.found.exits.may_return = true;
    }
    pass.behind_data();
    let mut found = pass.found;
    found.slots.sort_unstable();
    found.slots.dedup();
    found
}

/// The pass over one function.
struct Pass<'a> {
    image: &'a Image<'a>,
    function: &'a FunctionBounds,
    bytes: &'a [u8],
    /// For each byte: whether an instruction was read that begins there.
    begins: Vec<bool>,
    /// Offsets inside the function that its jumps lead to.
    targets: Vec<usize>,
    found: LinearScan,
}

impl<'a> Pass<'a> {
    fn decoder(&self, at: usize) -> Decoder<'a> {
        let start = self.function.range.start + at as u64;
        Decoder::with_ip(64, &self.bytes[at..], start, DecoderOptions::NONE)
    }

    /// Reads the function from its start to its end and returns how its last instruction passes control on.
    fn in_order(&mut self) -> Flow {
        let mut decoder = self.decoder(0);
        let mut last = Flow::Next;
        while decoder.can_decode() {
            let at = decoder.position();
            // Padding is not the end of a function.
            let rest = self.bytes.len() - at;
            if !matches!(last, Flow::Next) && leading_padding(&self.bytes[at..]) == rest {
                break;
            }
            last = self.read(&mut decoder, at);
        }
        last
    }

    /// Reads from the targets of jumps at which no instruction was read: data ahead of them put the pass out
    /// of step.
    fn behind_data(&mut self) {
        let last_call = self.found.exits.last_call;
        while let Some(target) = self.targets.pop() {
            let mut decoder = self.decoder(target);
            loop {
                let at = target + decoder.position();
                if at >= self.bytes.len() || self.begins[at] {
                    break;
                }
                let flow = self.read(&mut decoder, at);
                if matches!(
                    flow,
                    Flow::Jump(_) | Flow::Indirect | Flow::Return | Flow::Stops
                ) {
                    break;
                }
            }
        }
        self.found.exits.last_call = last_call;
    }

    /// Reads one instruction, at this offset, and notes what it shows.
    fn read(&mut self, decoder: &mut Decoder<'_>, at: usize) -> Flow {
        self.begins[at] = true;
        let instruction = decoder.decode();
        let found = &mut self.found;
        if instruction.is_invalid() {
            found.exits.may_return = true;
            return Flow::Stops;
        }
        let flow = flow(&instruction);
        found.exits.last_call = None;
        match flow {
            Flow::Next => found.take_address(self.image, self.function, &instruction),
            Flow::SystemCall | Flow::Stops => {}
            Flow::Return => found.exits.may_return = true,
            Flow::Jump(target) | Flow::Branch(target) => {
                if self.function.range.contains(&target) {
                    self.targets
                        .push((target - self.function.range.start) as usize);
                } else {
                    found.exits.jumps.push(target);
                    found.leads(self.image, target);
                }
            }
            Flow::Call(Some(target)) => {
                found.exits.last_call = Some(Callee::Direct(target));
                found.leads(self.image, target);
            }
            Flow::Call(None) => {
                // Through a register, or through a slot with unknown contents.
                found.exits.last_call = Some(Callee::Slot(0));
                if instruction.is_ip_rel_memory_operand() {
                    let slot = instruction.memory_displacement64();
                    found.exits.last_call = Some(Callee::Slot(slot));
                    found.slots.push(slot);
                }
            }
            Flow::Indirect => {
                found.exits.may_return = true;
                found.jumps_indirectly |= !instruction.is_ip_rel_memory_operand();
            }
        }
        flow
    }
}

impl LinearScan {
    /// Notes a direct jump or call to another function.
    fn leads(&mut self, image: &Image<'_>, target: u64) {
        if let Some(slot) = stub(image, target) {
            self.stubs.push((target, slot));
        }
        if !image.is_function_start(target) && image.is_text(target) {
            self.entries.push((target, EntryCertainty::Jumped));
        }
    }

    /// Notes addresses of code that an instruction computes or contains.
    fn take_address(
        &mut self,
        image: &Image<'_>,
        function: &FunctionBounds,
        instruction: &Instruction,
    ) {
        let mut take = |address: u64, certainty: EntryCertainty| {
            if image.is_text(address)
                && (function.range.contains(&address) || !image.is_function_start(address))
                && address != function.range.start
            {
                self.entries.push((address, certainty));
            }
        };
        if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
            take(instruction.memory_displacement64(), EntryCertainty::Taken);
        }
        if !image.position_dependent() {
            return;
        }
        for operand in 0..instruction.op_count() {
            match instruction.op_kind(operand) {
                OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => {
                    take(instruction.immediate(operand), EntryCertainty::Guessed)
                }
                OpKind::Memory
                    if instruction.mnemonic() == Mnemonic::Lea
                        && !instruction.is_ip_rel_memory_operand() =>
                {
                    take(instruction.memory_displacement64(), EntryCertainty::Guessed);
                }
                _ => {}
            }
        }
    }
}

/// The slot that the stub at `address` jumps through, if it is one of the procedure linkage table.
pub(super) fn stub(image: &Image<'_>, address: u64) -> Option<u64> {
    let bytes = image.bytes(address..address.checked_add(16)?)?;
    let after_marker = bytes
        .strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa])
        .unwrap_or(bytes);
    let after_bound = after_marker.strip_prefix(&[0xf2]).unwrap_or(after_marker);
    let displacement = after_bound.strip_prefix(&[0xff, 0x25])?;
    let displacement = i32::from_le_bytes(displacement.get(..4)?.try_into().ok()?);
    let length = (bytes.len() - after_bound.len()) as u64 + 6;
    Some((address + length).wrapping_add_signed(displacement.into()))
}
