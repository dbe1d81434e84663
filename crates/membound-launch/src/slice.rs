//! Scheduler slices for threads that must answer at once while all processors are busy.

use std::mem::size_of;

/// The shortest scheduler slice that the kernel gives, in nanoseconds.
const MIN_SLICE_NS: u64 = 100_000;
const SCHED_OTHER: u32 = 0;

/// The kernel's `sched_attr`, in its first version.
#[derive(Debug, Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Requests short scheduler slices for the calling thread and for those that it will start. They get no
/// larger part of a processor, but run soon after they are woken. A program whose threads keep all
/// processors busy would otherwise wait some milliseconds, with incomplete patches in its text, for every
/// message of a conversation. Kernels before 6.12 ignore the request, and do not need it.
pub fn shorten() {
    let bytes = size_of::<Attributes>();
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
    if got != 0 || attributes.policy != SCHED_OTHER {
        return;
    }
    attributes.size = u32::try_from(bytes).expect("it is small");
    attributes.runtime = MIN_SLICE_NS;
    // SAFETY: the kernel reads as many bytes as `size` says. A refusal changes nothing.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
