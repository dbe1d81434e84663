//! Instructions of yields that access a thread's [`RunQueue`] (through `gs`) and contexts.

use std::mem::offset_of;

use membound_wire::{Context, RunQueue};

use super::emit::{Address, Condition, Emitter, Width};
use crate::Gpr;

pub(super) const GS: &[u8] = &[0x65];
pub(super) const FS: &[u8] = &[0x64];

pub(super) const fn absolute(offset: usize) -> Address {
    Address::Registers {
        base: None,
        index: None,
        displacement: offset as i32,
    }
}

pub(super) const fn at(base: Gpr, offset: usize) -> Address {
    Address::Registers {
        base: Some(base),
        index: None,
        displacement: offset as i32,
    }
}

/// `mov register, gs:[offset]`
pub(super) fn load_run_queue(out: &mut Emitter, register: Gpr, offset: usize) {
    out.with_operand(
        GS,
        Width::Quad,
        &[0x8b],
        register.number(),
        absolute(offset),
    );
}

/// `mov gs:[offset], register`
pub(super) fn store_run_queue(out: &mut Emitter, offset: usize, register: Gpr) {
    out.with_operand(
        GS,
        Width::Quad,
        &[0x89],
        register.number(),
        absolute(offset),
    );
}

pub(super) fn load(out: &mut Emitter, register: Gpr, address: Address) {
    out.with_operand(&[], Width::Quad, &[0x8b], register.number(), address);
}

pub(super) fn store(out: &mut Emitter, address: Address, register: Gpr) {
    out.with_operand(&[], Width::Quad, &[0x89], register.number(), address);
}

/// `cmp qword gs:[offset], 0`
pub(super) fn compare_with_zero(out: &mut Emitter, offset: usize) {
    out.with_operand(GS, Width::Quad, &[0x83], 7, absolute(offset));
    out.raw(&[0]);
}

/// `cmp byte gs:[offset], 0`
pub(super) fn compare_byte_with_zero(out: &mut Emitter, offset: usize) {
    out.with_operand(GS, Width::Default, &[0x80], 7, absolute(offset));
    out.raw(&[0]);
}

/// `sub dword gs:[credit], cost`
pub(super) fn count_down(out: &mut Emitter, cost: u16) {
    let credit = absolute(offset_of!(RunQueue, credit));
    out.with_operand(GS, Width::Default, &[0x81], 5, credit);
    out.raw(&u32::from(cost).to_le_bytes());
}

/// `wrfsbase register`
pub(super) fn set_base(out: &mut Emitter, register: Gpr) {
    let number = register.number();
    out.raw(&[0xf3, 0x48 | number >> 3, 0x0f, 0xae, 0xd0 | number & 7]);
}

/// Restores the `fs` base of the thread, if a context has its own there. Changes rdx and flags.
pub(super) fn give_base_back(out: &mut Emitter) {
    compare_with_zero(out, offset_of!(RunQueue, borrowed));
    let own = out.jump_if_ahead(Condition::ZERO);
    load_run_queue(out, Gpr::RDX, offset_of!(RunQueue, base));
    set_base(out, Gpr::RDX);
    // Cleared only after the change: a signal in between must find that the base still has to be restored.
    clear(out, offset_of!(RunQueue, borrowed));
    out.land(own);
}

/// Gives the running context its own `fs` base, unless `fs` has it already. Changes rax and flags.
pub(super) fn borrow_base(out: &mut Emitter) {
    load_run_queue(out, Gpr::RAX, offset_of!(RunQueue, current));
    let borrowed = offset_of!(RunQueue, borrowed);
    out.with_operand(
        GS,
        Width::Quad,
        &[0x3b],
        Gpr::RAX.number(),
        absolute(borrowed),
    );
    let has_it = out.jump_if_ahead(Condition::ZERO);
    store_run_queue(out, borrowed, Gpr::RAX);
    load(out, Gpr::RAX, at(Gpr::RAX, offset_of!(Context, fs)));
    set_base(out, Gpr::RAX);
    out.land(has_it);
}

/// `inc qword gs:[offset]`
pub(super) fn increment(out: &mut Emitter, offset: usize) {
    out.with_operand(GS, Width::Quad, &[0xff], 0, absolute(offset));
}

/// `inc qword [address]`
pub(super) fn increment_at(out: &mut Emitter, address: Address) {
    out.with_operand(&[], Width::Quad, &[0xff], 0, address);
}

/// `mov byte gs:[selector], value`
pub(super) fn set_selector(out: &mut Emitter, value: u8) {
    let selector = absolute(offset_of!(RunQueue, selector));
    out.with_operand(GS, Width::Default, &[0xc6], 0, selector);
    out.raw(&[value]);
}

/// `mov qword gs:[offset], 0`
pub(super) fn clear(out: &mut Emitter, offset: usize) {
    out.with_operand(GS, Width::Quad, &[0xc7], 0, absolute(offset));
    out.raw(&[0; 4]);
}

/// `/reg` fields of `0f ae` and `d9` that store MXCSR and the x87 control word; the field for loading MXCSR
/// is one less, that for loading the control word two less.
const STORE_MXCSR: u8 = 3;
const STORE_CONTROL: u8 = 7;
/// Bytes from the stored MXCSR to the stored control word.
const CONTROL_OFFSET: i64 = 4;

/// `stmxcsr`, `fnstcw`: stores the rounding mode of the running context in eight bytes at `place`. A load of
/// all eight bytes that follows soon waits until both stores are in the cache, as they cannot be forwarded
/// together.
pub(super) fn store_rounding(out: &mut Emitter, segment: &[u8], place: Address) {
    out.with_operand(segment, Width::Default, &[0x0f, 0xae], STORE_MXCSR, place);
    let control = control_of(place);
    out.with_operand(segment, Width::Default, &[0xd9], STORE_CONTROL, control);
}

/// Loads what [`store_rounding`] has just stored into rdx and stores it again with one store, so that later
/// loads can be forwarded. Changes rcx and flags.
pub(super) fn take_rounding(out: &mut Emitter, segment: &[u8], place: Address) {
    const SHL: u8 = 4;
    let (rcx, rdx) = (Gpr::RCX.number(), Gpr::RDX.number());
    out.with_operand(segment, Width::Default, &[0x8b], rdx, place);
    // `movzx ecx, word`
    out.with_operand(
        segment,
        Width::Default,
        &[0x0f, 0xb7],
        rcx,
        control_of(place),
    );
    out.raw(&[0x48, 0xc1, 0xc0 | SHL << 3 | rcx, 8 * CONTROL_OFFSET as u8]);
    // `or rdx, rcx`
    out.raw(&[0x48, 0x09, 0xc0 | rcx << 3 | rdx]);
    out.with_operand(segment, Width::Quad, &[0x89], rdx, place);
}

/// Loads the rounding mode stored at `to`, an address with its segment prefix, unless it equals the mode of
/// the leaving context in rdx, as it nearly always does. Changes rdx and flags.
pub(super) fn change_rounding(out: &mut Emitter, to: (&[u8], Address)) {
    let rdx = Gpr::RDX.number();
    // `xor`, `test`
    out.with_operand(to.0, Width::Quad, &[0x33], rdx, to.1);
    let own_bits = absolute(offset_of!(RunQueue, own_bits));
    out.with_operand(GS, Width::Quad, &[0x85], rdx, own_bits);
    let same = out.jump_if_ahead(Condition::ZERO);
    out.with_operand(to.0, Width::Default, &[0x0f, 0xae], STORE_MXCSR - 1, to.1);
    let control = control_of(to.1);
    out.with_operand(to.0, Width::Default, &[0xd9], STORE_CONTROL - 2, control);
    out.land(same);
}

/// Address of the control word next to the MXCSR that is stored at `place`.
fn control_of(place: Address) -> Address {
    let control = place.further(CONTROL_OFFSET);
    control.expect("lanes and contexts are small, and registers lead to them")
}
