//! Addresses of the entry points, and how a thread came into the agent by one of them.

use membound_wire::{CALL_FRAME_BASE, CALL_FRAME_RETURN, Entry, State};

use crate::wrap::{frame, zones};
use crate::{assembly, memory, vectors};

/// Number of rbp among the general registers.
const FRAME_POINTER: usize = 5;

unsafe extern "C" {
    static membound_zones: u32;
    fn membound_entries_start();
    fn membound_entries_end();
    fn membound_entry_syscall();
    fn membound_entry_modules();
    fn membound_entry_sample();
    fn membound_entry_record();
    fn membound_entry_yield();
    fn membound_entry_mark();
    fn membound_entry_wait();
}

/// The entry points, for `Hello::entries`.
pub(crate) fn addresses() -> [u64; 8] {
    let mut entries = [0; 8];
    entries[entry_index(Entry::Syscall)] = membound_entry_syscall as *const () as u64;
    entries[entry_index(Entry::Modules)] = membound_entry_modules as *const () as u64;
    entries[entry_index(Entry::Sample)] = membound_entry_sample as *const () as u64;
    entries[entry_index(Entry::Record)] = membound_entry_record as *const () as u64;
    entries[entry_index(Entry::Wrap)] = frame::address();
    entries[entry_index(Entry::Yield)] = membound_entry_yield as *const () as u64;
    entries[entry_index(Entry::Mark)] = membound_entry_mark as *const () as u64;
    entries[entry_index(Entry::Wait)] = membound_entry_wait as *const () as u64;
    entries
}

/// How a thread came into the agent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inside {
    /// By a trampoline's call: the address of the stub's frame, from which the registers at the call can be
    /// read. The frame may be half built or half removed.
    Called(u64),
    /// By the entry of a wrapped function: the registers that the thread would have at the entry, or behind
    /// the call. The instruction may be in a trampoline.
    Wrapped(State),
}

/// How a thread with these registers came into the agent; `None` if no trampoline's call is in progress.
///
/// The agent is compiled with frame pointers, so its frames form a chain up to the stub's.
pub(crate) fn interrupted(found: &State) -> Option<Inside> {
    const MAX_DEPTH_BYTES: u64 = 16 << 10;
    const MAX_FRAMES: usize = 32;
    let (rip, rsp) = (found.ip, found.stack_pointer());
    let rbp = found.general[FRAME_POINTER];
    let own = assembly::own_range();
    if !(own[0]..own[1]).contains(&rip) {
        return None;
    }
    if frame::contains(rip) {
        return zones::in_stub(found).map(Inside::Wrapped);
    }
    let stubs =
        membound_entries_start as *const () as u64..membound_entries_end as *const () as u64;
    if stubs.contains(&rip) {
        return in_stub(rip - stubs.start, rsp, rbp).map(Inside::Called);
    }
    // Before the function that the stub calls has set up its frame, and after it has removed it, the stack
    // pointer is at the return address or one push below it.
    let just_called = |saved: u64| {
        let back_at = vectors::return_slot(saved);
        // SAFETY: the place is on the stack, at or right above the stack pointer.
        (back_at == rsp || back_at == rsp + 8).then(|| unsafe { memory::get(back_at as usize) })
    };
    if just_called(rbp.wrapping_sub(CALL_FRAME_BASE)).is_some_and(|back| stubs.contains(&back)) {
        return frame_of(rbp).map(Inside::Called);
    }
    if let Some(back) = just_called(frame::frame_of(rbp))
        && frame::contains(back)
    {
        return zones::below_stub(found, back, rbp).map(Inside::Wrapped);
    }
    let mut low = rsp;
    let mut frame = rbp;
    for _ in 0..MAX_FRAMES {
        if frame < low || frame - rsp > MAX_DEPTH_BYTES || !frame.is_multiple_of(8) {
            return None;
        }
        // SAFETY: it is stack above the stack pointer, and the handler runs on the same
        // thread, or on its alternate stack.
        let outer: u64 = unsafe { memory::get(frame as usize) };
        // SAFETY: as above.
        let back: u64 = unsafe { memory::get(frame as usize + 8) };
        if stubs.contains(&back) {
            return frame_of(outer).map(Inside::Called);
        }
        if frame::contains(back) {
            return zones::below_stub(found, back, outer).map(Inside::Wrapped);
        }
        low = frame + 16;
        frame = outer;
    }
    None
}

/// Address of a stub's frame, complete or not, for a thread at this offset from the start of the stubs.
fn in_stub(offset: u64, rsp: u64, rbp: u64) -> Option<u64> {
    const FRAMED: u32 = 255;
    let mut at = (&raw const membound_zones) as usize;
    let mut words = 0;
    loop {
        // SAFETY: the table ends with an offset that none is above.
        let [start, depth]: [u32; 2] = unsafe { memory::get(at) };
        if u64::from(start) > offset {
            break;
        }
        words = depth;
        at += 8;
    }
    if words == FRAMED {
        return frame_of(rbp);
    }
    (rsp + 8 * u64::from(words)).checked_sub(CALL_FRAME_RETURN)
}

/// The address of the frame of the stub whose frame pointer this is.
fn frame_of(rbp: u64) -> Option<u64> {
    rbp.checked_sub(CALL_FRAME_BASE)
}

/// The index of an entry point in `Hello::entries` and `Slots::entries`.
pub(crate) const fn entry_index(entry: Entry) -> usize {
    entry as usize
}
