//! Runs before the program's first instruction: finds the launcher's socket, removes the agent from the
//! environment, and lets the launcher do its work.
//!
//! The loader runs this as an initialiser, the first of all (`-z initfirst`). glibc passes arguments, musl
//! does not, so the initial stack is found by symbols. On any error the program continues as if nothing had
//! been preloaded.

use core::sync::atomic::Ordering;

use membound_wire::{CONTROL_VARIABLE, Event, PADDING_VARIABLE, agent_in};

use crate::control;
use crate::memory;
use crate::scheduler::{home_threads, page};
use crate::settings::{READY, SETTINGS, value_of};
use crate::{assembly, quiesce};

// Miri executes initialisers too, but has neither this one's assembly nor an initial stack.
#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static BEGIN: extern "C" fn() = begin;

const LD_PRELOAD: &[u8] = b"LD_PRELOAD=";
const AT_IGNORE: u64 = 1;
const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_SECURE: u64 = 23;

extern "C" fn begin() {
    if prepare().is_some() {
        quiesce::adopt_process();
        // The launcher knows what it could not do; the program runs in any case.
        let _ = control::converse(Event::Start, [0; 2]);
        if page::control_page().is_some() {
            home_threads::lower_priorities();
        }
    }
}

/// Reads and cleans the environment. `None`: the agent was not preloaded by a launcher.
fn prepare() -> Option<()> {
    let environment = Environment::find()?;
    let auxiliary = environment.auxiliary();
    if auxiliary.value(AT_SECURE).unwrap_or(0) != 0 {
        return None;
    }
    let control_slot = environment.last(|text| value_of(text, CONTROL_VARIABLE).is_some())?;
    let preload_slot = environment.last(|text| text.starts_with(LD_PRELOAD))?;

    // SAFETY: the settings are not read before `READY` is set, and no other thread runs.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    settings.control_name = CONTROL_VARIABLE.len() + 1;
    settings.control.push(environment.text(control_slot))?;
    let preload = environment.text(preload_slot).get(LD_PRELOAD.len()..)?;
    let own = agent_in(preload);
    settings.own_path.push(preload.get(own.clone())?)?;
    settings.r_debug = loader_record(&auxiliary).unwrap_or_else(assembly::r_debug);

    environment.hide(preload_slot, own.end);
    READY.store(true, Ordering::Release);
    Some(())
}

/// The program's environment in the kernel's layout: pointers, a null pointer, and then the auxiliary
/// vector.
struct Environment {
    first: usize,
    count: usize,
}

impl Environment {
    fn find() -> Option<Self> {
        let stack_end = assembly::stack_end();
        let environ = assembly::environ();
        let first = if stack_end != 0 {
            // SAFETY: it is glibc's variable of that name.
            let bottom: usize = unsafe { memory::get(stack_end) };
            if bottom == 0 {
                return None;
            }
            // SAFETY: the variable points to the argument count on the initial stack.
            let arguments: usize = unsafe { memory::get(bottom) };
            bottom.checked_add(arguments.checked_add(2)?.checked_mul(8)?)?
        } else if environ != 0 {
            // SAFETY: it is libc's variable of that name; musl has set it by now.
            unsafe { memory::get(environ) }
        } else {
            return None;
        };
        if first == 0 {
            return None;
        }
        let mut count = 0;
        // SAFETY: the array ends with a null pointer, which is not passed.
        while (unsafe { memory::get::<usize>(first + count * 8) }) != 0 {
            count += 1;
        }
        Some(Self { first, count })
    }

    fn pointer(&self, slot: usize) -> usize {
        // SAFETY: slots are below `count`, and the array is on the initial stack.
        unsafe { memory::get(self.first + slot * 8) }
    }

    fn set_pointer(&self, slot: usize, pointer: usize) {
        // SAFETY: slots are at most `count`; no other thread runs, and libc has no copy yet.
        unsafe { memory::put(self.first + slot * 8, pointer) }
    }

    fn text(&self, slot: usize) -> &'static [u8] {
        // SAFETY: the strings lie on the initial stack for as long as the process lives.
        unsafe { memory::c_string(self.pointer(slot)) }
    }

    fn last(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<usize> {
        (0..self.count).rev().find(|&slot| wanted(self.text(slot)))
    }

    fn auxiliary(&self) -> Auxiliary {
        Auxiliary {
            first: self.first + (self.count + 1) * 8,
        }
    }

    /// Removes the agent from the variable `preload`, and the variables that only the agent uses. The first
    /// `own` bytes of the value of `preload` name the agent and what had to precede it.
    fn hide(&self, preload: usize, own: usize) {
        let text = self.text(preload);
        let users_part = text.get(LD_PRELOAD.len() + own..).unwrap_or_default();
        let alone = users_part.is_empty();
        if let Some(users) = users_part.get(1..) {
            let pointer = self.pointer(preload);
            for (at, &byte) in users.iter().chain([0].iter()).enumerate() {
                // SAFETY: the shorter value is moved down inside the old string's room, byte
                // by byte upwards, so that nothing is read after it was overwritten.
                unsafe { memory::put(pointer + LD_PRELOAD.len() + at, byte) };
            }
        }
        let mut kept_count = 0;
        for slot in 0..self.count {
            let text = self.text(slot);
            let ours = value_of(text, CONTROL_VARIABLE).is_some()
                || value_of(text, PADDING_VARIABLE).is_some()
                || (slot == preload && alone);
            if !ours {
                self.set_pointer(kept_count, self.pointer(slot));
                kept_count += 1;
            }
        }
        // Some runtimes expect the auxiliary vector right behind the null pointer. It cannot move, since
        // the loader remembers its address; entries to be ignored (`AT_IGNORE`) fill the gap if an even
        // number of pointers was removed, which launcher and agent ensure.
        let gap = self.count - kept_count;
        self.set_pointer(kept_count, 0);
        let mut slot = kept_count + 1;
        while slot < kept_count + gap {
            self.set_pointer(slot, AT_IGNORE as usize);
            self.set_pointer(slot + 1, 0);
            slot += 2;
        }
    }
}

/// The kernel's auxiliary vector.
struct Auxiliary {
    first: usize,
}

impl Auxiliary {
    fn value(&self, wanted: u64) -> Option<u64> {
        let mut at = self.first;
        loop {
            // SAFETY: the vector ends with an entry of type 0, which is not passed.
            let kind: u64 = unsafe { memory::get(at) };
            if kind == 0 {
                return None;
            }
            if kind == wanted {
                // SAFETY: each entry has a value behind its type.
                return Some(unsafe { memory::get(at + 8) });
            }
            at += 16;
        }
    }
}

/// Address of `struct r_debug`, from the main program's dynamic section.
fn loader_record(auxiliary: &Auxiliary) -> Option<usize> {
    const PT_DYNAMIC: u32 = 2;
    const PT_PHDR: u32 = 6;
    const HEADER_BYTES: usize = 56;
    const DT_DEBUG: u64 = 21;
    let headers = auxiliary.value(AT_PHDR)? as usize;
    let count = auxiliary.value(AT_PHNUM)? as usize;
    let mut bias = None;
    let mut dynamic = None;
    for index in 0..count {
        let header = headers + index * HEADER_BYTES;
        // SAFETY: the kernel counted the program headers it mapped.
        let kind: u32 = unsafe { memory::get(header) };
        // SAFETY: the virtual address lies 16 bytes into the header.
        let address: usize = unsafe { memory::get(header + 16) };
        match kind {
            PT_PHDR => bias = Some(headers.wrapping_sub(address)),
            PT_DYNAMIC => dynamic = Some(address),
            _ => {}
        }
    }
    // A statically linked program need not have `PT_PHDR`, and has no loader.
    let mut at = bias?.wrapping_add(dynamic?);
    loop {
        // SAFETY: the dynamic section ends with an entry of tag 0, which is not passed.
        let tag: u64 = unsafe { memory::get(at) };
        if tag == 0 {
            return None;
        }
        if tag == DT_DEBUG {
            // SAFETY: each entry has a value behind its tag.
            let value: usize = unsafe { memory::get(at + 8) };
            return (value != 0).then_some(value);
        }
        at += 16;
    }
}
