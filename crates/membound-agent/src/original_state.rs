//! The registers that the original program would have, for a thread that a signal has interrupted.

use membound_wire::State;

use crate::handlers::vectors;
use crate::inside::{self, Inside};
use crate::signal_frame::{REGISTERS_OFFSET, Registers};
use crate::{areas, memory};

/// A thread that was interrupted in a trampoline, or in the agent when a trampoline had called it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted {
    /// The registers that the original program would have.
    pub(crate) original: State,
    /// Address in the trampoline at which the thread continues with these registers; `None` inside the agent,
    /// which must finish its call first.
    pub(crate) resume: Option<u64>,
    /// The thread's registers in the trampoline, or when the trampoline called the agent.
    within: State,
}

impl Interrupted {
    /// True if a thread at `ip` executes code that the original program does not have.
    pub(crate) fn is_in_added_code(&self, ip: u64) -> bool {
        self.resume != Some(ip)
    }

    /// Puts the original program's vector registers into the frame whose `ucontext` is at `context`, if the
    /// trampoline has saved them on the stack.
    pub(crate) fn put_vectors(&self, context: usize) {
        if let Some(area) = areas::find(self.within.ip) {
            // SAFETY: it is the frame of a handler that runs now, and what a trampoline has put on the
            // stack is there until the thread continues in it.
            unsafe { vectors::put(context, area.vectors_of(&self.within)) };
        }
    }
}

/// Finds the place of a thread that `signal` interrupted with these registers. `None` in the program's own
/// code, and in the agent if no trampoline has called it.
pub(crate) fn find(signal: u64, found: &State) -> Option<Interrupted> {
    let inside = inside::interrupted(found);
    let of = |state: &State| areas::find(state.ip)?.original_of(state);
    // Inside the agent: the registers that the trampoline had at its call, which continues afterwards.
    let state = match inside {
        Some(Inside::Called(frame)) => found.of_call(frame, |address| {
            // SAFETY: it is stack at or above the stack pointer of a thread that continues only
            // when its handler, which is running now, has returned.
            Some(unsafe { memory::get(address as usize) })
        })?,
        Some(Inside::Wrapped(state)) => {
            return Some(Interrupted {
                // Behind the call there is usually the caller's own code.
                original: of(&state).map_or(state, |original| original.state),
                resume: None,
                within: state,
            });
        }
        None => *found,
    };
    let mut within = state;
    let original = of(&state).or_else(|| {
        within.ip = island_target(signal, state.ip)?;
        of(&within)
    })?;
    Some(Interrupted {
        original: original.state,
        resume: original.resume.filter(|_| inside.is_none()),
        within,
    })
}

/// Target of the jump at `ip`. On an island, between the text and a trampoline, the registers are still the
/// original program's.
fn island_target(signal: u64, ip: u64) -> Option<u64> {
    const BUS: u64 = 7;
    const SEGV: u64 = 11;
    const JUMP: u8 = 0xe9;
    // The thread may have jumped to unmapped memory.
    if matches!(signal, BUS | SEGV) {
        return None;
    }
    // SAFETY: the thread executes the instruction at this address.
    let code: u8 = unsafe { memory::get(ip as usize) };
    if code != JUMP {
        return None;
    }
    // SAFETY: the instruction has these four bytes more.
    let displacement: i32 = unsafe { memory::get(ip as usize + 1) };
    Some(
        ip.wrapping_add(5)
            .wrapping_add_signed(i64::from(displacement)),
    )
}

/// Moves a thread that would return from its handler into overwritten text to the trampoline instead.
///
/// A thread that sleeps in a handler of the agent counts as outside the text that is being changed, so
/// this is the last thing that such a handler does: no system call that may sleep comes after it.
///
/// # Safety
///
/// `context` is what the kernel passed to the handler.
pub(crate) unsafe fn leave_overwritten_text(context: usize) {
    let place = context + REGISTERS_OFFSET;
    // SAFETY: the kernel put the registers there, and takes them back from there.
    let mut registers: Registers = unsafe { memory::get(place) };
    if let Some(entrance) = areas::inside(registers.rip) {
        registers.rip = entrance;
        // SAFETY: as above.
        unsafe { memory::put(place, registers) };
    }
}
