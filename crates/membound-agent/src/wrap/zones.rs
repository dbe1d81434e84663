//! Registers that the program would have, for a thread that a signal interrupts in the stub of wrapped
//! functions.

use core::mem::offset_of;

use membound_wire::{STACK_POINTER, State};

use super::frame::{WrapFrame, frame_of, membound_wrap_start, membound_wrap_zones};
use crate::memory;

/// The part of the stub in which a thread is, or from which it has called a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Zone {
    /// Nothing is pushed: the stack pointer is at r11.
    Entered = 0,
    /// One word is pushed.
    Copied = 1,
    /// Two words are pushed: the stack pointer is at rbp.
    Pushed = 2,
    /// The word at rbp is the program's rbp. The registers are in the frame, those of them that were pushed
    /// already; the original has not run.
    Before = 3,
    /// All registers except rbp are restored, and the stack pointer is at the return address.
    Passing = 4,
    /// As [`Self::Passing`], with rbp restored.
    Passed = 5,
    /// All registers are restored, and the stack pointer is at the frame; the original is called next.
    Calling = 6,
    /// The original has returned: the registers are the program's, and the stack pointer is at the frame.
    Returned = 7,
    /// As [`Self::Returned`], but the word at rbp is the program's rbp.
    Keeping = 8,
    /// The frame has the program's registers, and the word at rbp is the program's rbp.
    After = 9,
    /// As [`Self::Passing`], after the original.
    Leaving = 10,
    /// As [`Self::Passed`], after the original.
    Left = 11,
    /// As [`Self::Entered`], with rax pushed.
    Chosen = 12,
    /// As [`Self::Chosen`], with rcx pushed as well; both have changed.
    Choosing = 13,
    /// All registers are restored, and the stack pointer is at the return address; the address of the
    /// original's displaced instructions is two words below it.
    LetPass = 14,
}

impl Zone {
    const ALL: [Self; 15] = [
        Self::Entered,
        Self::Copied,
        Self::Pushed,
        Self::Before,
        Self::Passing,
        Self::Passed,
        Self::Calling,
        Self::Returned,
        Self::Keeping,
        Self::After,
        Self::Leaving,
        Self::Left,
        Self::Chosen,
        Self::Choosing,
        Self::LetPass,
    ];
}

/// The zone of an address in the stub; `None` outside of it.
fn zone_of(ip: u64) -> Option<Zone> {
    let offset = ip.checked_sub(membound_wrap_start as *const () as u64)?;
    let mut at = (&raw const membound_wrap_zones) as usize;
    let mut zone = None;
    loop {
        // SAFETY: the table ends with an offset that none is above.
        let [start, number]: [u32; 2] = unsafe { memory::get(at) };
        if u64::from(start) > offset {
            break;
        }
        zone = Zone::ALL.get(number as usize).copied();
        at += 8;
    }
    zone
}

/// Registers that the program would have, for a thread that was interrupted in the stub.
pub(crate) fn in_stub(found: &State) -> Option<State> {
    Some(original(found, zone_of(found.ip)?, &|address| {
        // SAFETY: the stub has written this stack, within the red zone of a thread that continues only when
        // its handler, which runs now, has returned.
        unsafe { memory::get(address as usize) }
    }))
}

/// As [`in_stub`], for a thread that was interrupted in a function that the stub has called; that returns
/// to `back`, and `rbp` is the stub's.
pub(crate) fn below_stub(found: &State, back: u64, rbp: u64) -> Option<State> {
    let zone = zone_of(back)?;
    let mut stub = *found;
    stub.general[FRAME_POINTER] = rbp;
    Some(original(&stub, zone, &|address| {
        // SAFETY: this stack is above the stack pointer, and the stub's frame there is complete.
        unsafe { memory::get(address as usize) }
    }))
}

/// Numbers of registers in the instruction set.
const FRAME_POINTER: usize = 5;
const R11: usize = 11;
/// Registers in the frame, with their numbers in the instruction set.
const KEPT: [(usize, usize); 13] = [
    (0, offset_of!(WrapFrame, rax)),
    (1, offset_of!(WrapFrame, rcx)),
    (2, offset_of!(WrapFrame, rdx)),
    (3, offset_of!(WrapFrame, rbx)),
    (6, offset_of!(WrapFrame, rsi)),
    (7, offset_of!(WrapFrame, rdi)),
    (8, offset_of!(WrapFrame, r8)),
    (9, offset_of!(WrapFrame, r9)),
    (10, offset_of!(WrapFrame, r10)),
    (12, offset_of!(WrapFrame, r12)),
    (13, offset_of!(WrapFrame, r13)),
    (14, offset_of!(WrapFrame, r14)),
    (15, offset_of!(WrapFrame, r15)),
];

/// The program's state: at the original's entry (its displaced instructions), or behind the call.
fn original(found: &State, zone: Zone, word: &dyn Fn(u64) -> u64) -> State {
    let sp = found.stack_pointer();
    let rbp = found.general[FRAME_POINTER];
    let slot = |offset: usize| offset as u64;
    match zone {
        Zone::Chosen | Zone::Choosing => return at_choice(found, zone, word),
        Zone::LetPass => {
            let mut state = *found;
            state.ip = word(sp - 16);
            return state;
        }
        _ => {}
    }
    let frame = match zone {
        Zone::Entered | Zone::Copied | Zone::Pushed => {
            (sp + 8 * u64::from(zone as u32)).wrapping_sub(slot(offset_of!(WrapFrame, r11)))
        }
        Zone::Before | Zone::Keeping | Zone::After => frame_of(rbp),
        Zone::Calling | Zone::Returned => sp,
        _ => sp.wrapping_sub(slot(offset_of!(WrapFrame, return_address))),
    };
    let at = |offset: usize| frame.wrapping_add(slot(offset));
    // Registers that are not in the frame yet have their interrupted values.
    let kept = |offset: usize, found: u64| {
        if at(offset) < sp {
            found
        } else {
            word(at(offset))
        }
    };
    let mut state = *found;
    if matches!(zone, Zone::Before | Zone::After) {
        for (register, offset) in KEPT {
            if let Some(place) = state.general.get_mut(register) {
                *place = kept(offset, *place);
            }
        }
    }
    if matches!(
        zone,
        Zone::Before | Zone::Passing | Zone::Keeping | Zone::After | Zone::Leaving
    ) {
        state.general[FRAME_POINTER] = word(at(offset_of!(WrapFrame, rbp)));
    }
    if matches!(
        zone,
        Zone::Entered | Zone::Copied | Zone::Pushed | Zone::Before | Zone::After
    ) {
        state.general[R11] = word(at(offset_of!(WrapFrame, r11)));
    }
    let returns_to = at(offset_of!(WrapFrame, return_address));
    match zone {
        Zone::Entered | Zone::Copied | Zone::Pushed => {
            state.ip = found.general[R11];
            state.general[STACK_POINTER] = returns_to;
        }
        Zone::Before => {
            state.ip = kept(offset_of!(WrapFrame, original), found.general[R11]);
            state.general[STACK_POINTER] = returns_to;
        }
        Zone::Passing | Zone::Passed | Zone::Calling => {
            state.ip = word(at(offset_of!(WrapFrame, original)));
            state.general[STACK_POINTER] = returns_to;
        }
        _ => {
            state.ip = word(returns_to);
            state.general[STACK_POINTER] = returns_to + 8;
        }
    }
    state
}

/// The program's state while the stub decides whether the call passes: rax and rcx are above the stack
/// pointer if they were pushed, and r11 above them.
fn at_choice(found: &State, zone: Zone, word: &dyn Fn(u64) -> u64) -> State {
    const RAX: usize = 0;
    const RCX: usize = 1;
    let mut state = *found;
    let mut sp = found.stack_pointer();
    if zone == Zone::Choosing {
        state.general[RCX] = word(sp);
        sp += 8;
    }
    state.general[RAX] = word(sp);
    state.ip = found.general[R11];
    state.general[R11] = word(sp + 8);
    state.general[STACK_POINTER] = sp + 16;
    state
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::super::frame::{back, membound_wrap_end};
    use super::*;

    const FRAME: u64 = 0x8000;
    const RBP: u64 = FRAME + offset_of!(WrapFrame, rbp) as u64;
    const RETURN: u64 = FRAME + offset_of!(WrapFrame, return_address) as u64;
    const ORIGINAL: u64 = 0x4000;

    /// The program's registers: each has its number, at the entry and behind the call.
    fn programs() -> State {
        let mut state = State::default();
        for (number, register) in state.general.iter_mut().enumerate() {
            *register = number as u64;
        }
        state
    }

    /// The word of the frame at an address.
    fn word(address: u64) -> u64 {
        let offset = usize::try_from(address - FRAME).unwrap();
        let kept = KEPT.iter().find(|(_, at)| *at == offset);
        match offset {
            _ if let Some((number, _)) = kept => *number as u64,
            offset if offset == offset_of!(WrapFrame, rbp) => 5,
            offset if offset == offset_of!(WrapFrame, r11) => 11,
            offset if offset == offset_of!(WrapFrame, original) => ORIGINAL,
            offset if offset == offset_of!(WrapFrame, return_address) => 0x5000,
            _ => panic!("the stub has nothing at {offset}"),
        }
    }

    /// A thread in `zone` with some registers changed is shown as the program, with its stack
    /// pointer and instruction there.
    #[track_caller]
    fn check(zone: Zone, sp: u64, changed: &[(usize, u64)]) {
        let mut found = programs();
        found.general[STACK_POINTER] = sp;
        for (register, value) in changed {
            found.general[*register] = *value;
        }
        let mut expected = programs();
        let behind = zone as u32 >= Zone::Returned as u32;
        expected.ip = if behind { 0x5000 } else { ORIGINAL };
        expected.general[STACK_POINTER] = if behind { RETURN + 8 } else { RETURN };
        assert_eq!(original(&found, zone, &word), expected, "{zone:?}");
    }

    /// As [`check`], while the stub decides: r11, rax and rcx are pushed, or the original's address lies
    /// where rax was.
    #[track_caller]
    fn check_choice(zone: Zone, sp: u64, changed: &[(usize, u64)]) {
        let pushed = |address: u64| match RETURN - address {
            8 => 11,
            16 if zone == Zone::LetPass => ORIGINAL,
            16 => 0,
            24 => 1,
            below => panic!("nothing is pushed {below} bytes below"),
        };
        let mut found = programs();
        found.general[STACK_POINTER] = sp;
        for (register, value) in changed {
            found.general[*register] = *value;
        }
        let mut expected = programs();
        expected.ip = ORIGINAL;
        expected.general[STACK_POINTER] = RETURN;
        assert_eq!(original(&found, zone, &pushed), expected, "{zone:?}");
    }

    #[test]
    fn every_zone_leads_to_the_programs_registers() {
        const SPOILT: u64 = 0xdead;
        let spoilt: Vec<(usize, u64)> = KEPT.iter().map(|(number, _)| (*number, SPOILT)).collect();
        let with = |more: &[(usize, u64)]| [&spoilt[..], more].concat();
        let own_rbp = (FRAME_POINTER, RBP);
        check(Zone::Entered, RETURN - 8, &[(R11, ORIGINAL)]);
        check(Zone::Copied, RETURN - 16, &[(R11, ORIGINAL)]);
        check(Zone::Pushed, RBP, &[(R11, ORIGINAL)]);
        check_choice(Zone::Chosen, RETURN - 16, &[(0, SPOILT), (R11, ORIGINAL)]);
        let spoilt_choosing = [(0, SPOILT), (1, SPOILT), (R11, ORIGINAL)];
        check_choice(Zone::Choosing, RETURN - 24, &spoilt_choosing);
        check_choice(Zone::LetPass, RETURN, &[]);
        // No register is in the frame yet, then some are, then all, after the called function has changed
        // them.
        check(Zone::Before, RBP, &[own_rbp, (R11, ORIGINAL)]);
        let low = FRAME + offset_of!(WrapFrame, rsi) as u64;
        check(Zone::Before, low, &[own_rbp, (R11, ORIGINAL), (7, SPOILT)]);
        check(Zone::Before, FRAME - 300, &with(&[own_rbp, (R11, SPOILT)]));
        check(Zone::Passing, RETURN, &[own_rbp]);
        check(Zone::Passed, RETURN, &[]);
        check(Zone::Calling, FRAME, &[]);
        check(Zone::Returned, FRAME, &[]);
        check(Zone::Keeping, FRAME, &[own_rbp]);
        check(Zone::After, FRAME - 300, &with(&[own_rbp, (R11, SPOILT)]));
        check(Zone::Leaving, RETURN, &[own_rbp]);
        check(Zone::Left, RETURN, &[]);
    }

    #[test]
    fn the_stub_is_made_of_zones_in_their_order() {
        let start = membound_wrap_start as *const () as u64;
        let end = membound_wrap_end as *const () as u64;
        let mut zones: Vec<Zone> = (start..end).filter_map(zone_of).collect();
        assert_eq!(zones.len() as u64, end - start);
        zones.dedup();
        use Zone::{
            After, Before, Calling, Choosing, Chosen, Copied, Entered, Keeping, Leaving, Left,
            LetPass, Passed, Passing, Pushed, Returned,
        };
        let expected = [
            Entered, Chosen, Choosing, Chosen, Entered, LetPass, Choosing, Chosen, Entered, Copied,
            Pushed, Before, Passing, Passed, Before, Calling, Returned, Keeping, After, Leaving,
            Left,
        ];
        assert_eq!(zones, expected);
        assert_eq!(zone_of(back()), Some(Returned));
        for (number, zone) in Zone::ALL.into_iter().enumerate() {
            assert_eq!(zone as usize, number);
        }
    }
}
