//! Limits on the memory of the process (`RLIMIT_AS`, `RLIMIT_DATA`).
//!
//! What the agent has mapped counts against a limit that the program sets, so that the program would be
//! refused memory that it gets without the agent. The kernel's limit is higher by that amount; the program
//! reads its own figures.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::saved_registers::SavedRegisters;
use crate::sys::{self, call, number};
use crate::{filters, memory};

const DATA: u64 = 2;
const ADDRESS_SPACE: u64 = 9;
const UNLIMITED: u64 = u64::MAX;
/// Bytes of address space that patches of windows may still need.
const ROOM_FOR_PATCHES: u64 = 16 << 20;
/// Private bytes that the agent may still need.
const PRIVATE_ROOM: u64 = 4 << 20;

/// Soft and hard limit in bytes, as the kernel's `rlimit64`.
type Limits = [u64; 2];

/// Bytes by which the kernel's soft and hard limit of one resource are above those that the program set.
struct Raised([AtomicU64; 2]);

static OF_ADDRESS_SPACE: Raised = Raised([const { AtomicU64::new(0) }; 2]);
static OF_DATA: Raised = Raised([const { AtomicU64::new(0) }; 2]);

impl Raised {
    /// That of a resource, and the bytes that the agent takes of it; `None` for other resources.
    fn of(resource: u64) -> Option<(&'static Self, u64)> {
        let (mapped, private) = sys::mapped_bytes();
        match resource {
            ADDRESS_SPACE => Some((&OF_ADDRESS_SPACE, mapped + ROOM_FOR_PATCHES)),
            DATA => Some((&OF_DATA, private + PRIVATE_ROOM)),
            _ => None,
        }
    }

    fn get(&self) -> Limits {
        [0, 1].map(|which: usize| self.0[which].load(Ordering::Relaxed))
    }

    fn set(&self, kernels: Limits, programs: Limits) {
        for which in 0..2 {
            let raised = kernels[which] - programs[which];
            self.0[which].store(raised, Ordering::Relaxed);
        }
    }
}

/// `prlimit64` as the program calls it. `None`: the trampoline is to make the call.
pub(crate) fn prlimit(frame: &SavedRegisters) -> Option<isize> {
    let (process, resource, new, old) = (frame.rdi, frame.rsi, frame.rdx, frame.r10);
    // A child of `vfork` shares this memory, but has limits of its own.
    if (process != 0 && process != u64::from(sys::process()))
        || (new != 0 && filters::shares_memory())
    {
        return None;
    }
    let (raised, extra) = Raised::of(resource)?;
    let before = raised.get();
    if new == 0 && before == [0, 0] {
        return None;
    }
    let result = match new {
        0 => kernel_prlimit(resource, 0, old),
        _ => set(raised, extra, (resource, new, old))?,
    };
    if result == 0 && old != 0 {
        // SAFETY: the kernel has just written both numbers there.
        let kernels: Limits = unsafe { memory::get(old as usize) };
        // SAFETY: as above.
        unsafe { memory::put(old as usize, lowered(kernels, before)) };
    }
    Some(result)
}

/// Sets the limits at `new`, raised by `extra` bytes. `None` if the kernel is to refuse them itself.
fn set(raised: &Raised, extra: u64, (resource, new, old): (u64, u64, u64)) -> Option<isize> {
    if !is_readable(new) {
        return None;
    }
    // SAFETY: the kernel could read it a moment ago.
    let programs: Limits = unsafe { memory::get(new as usize) };
    let kernels = raise(programs, current(resource)?, raised.get(), extra)?;
    let result = kernel_prlimit(resource, (&raw const kernels) as u64, old);
    if result == 0 {
        raised.set(kernels, programs);
    }
    Some(result)
}

/// The kernel's limits for the `programs` ones; `None` if those are invalid. A hard limit is not raised above
/// the present one, for which a process needs a privilege, unless the program asks for that.
fn raise(programs: Limits, present: Limits, raised: Limits, extra: u64) -> Option<Limits> {
    let [soft, hard] = programs;
    if soft > hard {
        return None;
    }
    let known = lowered(present, raised)[1];
    let kernels_hard = match hard {
        UNLIMITED => UNLIMITED,
        _ if hard == known => present[1],
        _ if hard < known => hard.saturating_add(extra).min(present[1]),
        _ => hard.saturating_add(extra),
    };
    let kernels_soft = match soft {
        UNLIMITED => UNLIMITED,
        _ => soft.saturating_add(extra).min(kernels_hard),
    };
    Some([kernels_soft, kernels_hard])
}

/// The limits that the program knows.
fn lowered(kernels: Limits, raised: Limits) -> Limits {
    [0, 1].map(|which: usize| match kernels[which] {
        UNLIMITED => UNLIMITED,
        limit => limit - raised[which].min(limit),
    })
}

/// Before an `execve`: the new image gets the program's own soft limits. To be undone if the call fails.
pub(crate) fn before_exec() {
    set_soft(|kernels, raised| lowered(kernels, raised)[0]);
}

/// After a failed `execve`.
pub(crate) fn after_failed_exec() {
    set_soft(|kernels, raised| kernels[0].saturating_add(raised[0]).min(kernels[1]));
}

fn set_soft(soft: impl Fn(Limits, Limits) -> u64) {
    for resource in [ADDRESS_SPACE, DATA] {
        let Some((raised, _)) = Raised::of(resource) else {
            continue;
        };
        let raised = raised.get();
        if raised[0] == 0 {
            continue;
        }
        if let Some(kernels) = current(resource) {
            let limits = [soft(kernels, raised), kernels[1]];
            kernel_prlimit(resource, (&raw const limits) as u64, 0);
        }
    }
}

fn current(resource: u64) -> Option<Limits> {
    let mut limits: Limits = [0; 2];
    let result = kernel_prlimit(resource, 0, (&raw mut limits) as u64);
    (result == 0).then_some(limits)
}

/// True if the kernel can read limits at `address`: it does so before it refuses a resource that there is none
/// of.
fn is_readable(address: u64) -> bool {
    const NO_RESOURCE: u64 = 0xffff;
    const EFAULT: isize = -14;
    kernel_prlimit(NO_RESOURCE, address, 0) != EFAULT
}

fn kernel_prlimit(resource: u64, new: u64, old: u64) -> isize {
    let arguments = [0, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: the kernel refuses pointers that it cannot use; what it changes the program asked for.
    unsafe { call(number::PRLIMIT64, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_and_read_as_they_were_set() {
        const EXTRA: u64 = 100;
        let free = [UNLIMITED; 2];
        let first = raise([500, 500], free, [0, 0], EXTRA).unwrap();
        assert_eq!(first, [600, 600]);
        let raised = [100, 100];
        assert_eq!(lowered(first, raised), [500, 500]);
        // The hard limit stays where it is, and cannot be raised.
        assert_eq!(raise([300, 500], first, raised, EXTRA), Some([400, 600]));
        assert_eq!(raise([450, 450], first, raised, EXTRA), Some([550, 550]));
        // A hard limit that somebody else set before.
        assert_eq!(
            raise([990, 1000], [1000; 2], [0, 0], EXTRA),
            Some([1000, 1000])
        );
        assert_eq!(
            raise([700, 950], [1000; 2], [0, 0], EXTRA),
            Some([800, 1000])
        );
        assert_eq!(raise([700, 600], free, [0, 0], EXTRA), None);
        assert_eq!(raise(free, free, [0, 0], EXTRA), Some(free));
        assert_eq!(
            raise([5, UNLIMITED], free, [0, 0], EXTRA),
            Some([105, UNLIMITED])
        );
    }
}
