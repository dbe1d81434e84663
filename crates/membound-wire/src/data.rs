//! What lies in the data pages beside a module's trampolines.
//!
//! They are shared with the launcher and begin with [`Slots`]; the sites' own words follow
//! at [`SLOTS_BYTES`], one [`Probe`] or one `u64` counter a site, as the plan's body says.

/// Bytes before the first site's words.
pub const SLOTS_BYTES: usize = 256;

/// Entry points of the agent, by their index in [`Slots`] and in `Hello::entries`.
///
/// All are called from trampolines by `call [slot]` with the red zone skipped and no other
/// convention than: the stack need not be aligned, and every register, the flags and the vector state are
/// as they were when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Entry {
    /// A system call of which the program's result must be kept true (`rt_sigaction`,
    /// `execve`, `mprotect`, …). Number and arguments are in the kernel's registers. On
    /// return, a set carry flag says that it was done (rax holds the result; rcx and r11 are
    /// lost as after `syscall`); clear, the trampoline is to execute the instruction itself.
    Syscall = 0,
    /// The loader's list of objects has changed.
    Modules = 1,
    /// A probe's countdown has run out. On the stack, above the return address: the `u32`
    /// site number (bit 31: the access is a store), then the accessed address, then in ticks:
    /// what a load of it took, whatever the access is, what a load took before that from the
    /// top of the stack, which the innermost cache holds, and what the stores that were under
    /// way took to be done; each in 8 bytes.
    Sample = 2,
    /// A recording burst is on. On the stack as for [`Entry::Sample`], without ticks.
    Record = 3,
    /// A yield that found its lane another thread's, or closed.
    Yield = 4,
    /// A wrapped function is entered: not called but jumped to, with r11 on
    /// the stack, above it the return address, and in r11 the address of the displaced
    /// instructions, before which lies the `u32` that the plan gave to the function. All
    /// other registers are as the caller left them.
    Wrap = 5,
    /// Where a request of the program begins or ends: a [`crate::Mark`] as its number lies on the
    /// stack above the return address, and the red zone above that.
    Mark = 6,
    /// A system call that may wait, number and arguments in the kernel's registers. On return, a set carry
    /// flag says that the thread is to yield and ask again; else a set zero flag that the call is done (as
    /// for [`Entry::Syscall`]), and neither that the trampoline is to execute the instruction itself.
    Wait = 7,
}

/// The first [`SLOTS_BYTES`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Slots {
    /// Addresses by [`Entry`].
    pub entries: [u64; 8],
    /// Accesses that are still to be recorded in this burst, about: threads change it without
    /// locks. 0: none is on; `u32::MAX`: without end.
    pub burst: u32,
    /// Mean number of executions between two samples of a site that has no period of its own.
    pub period: u32,
    /// Number of the module (given by the launcher; goes into every [`crate::Record`]).
    pub module: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Reserved, 0.
    pub rest: [u64; 22],
}

/// A sampled site's words. Several threads may change them without locks: a lost decrement
/// delays a sample and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Probe {
    /// Executions until the last [`LEAD_IN`] before the next sample; the sample is due when it is
    /// not above minus that after the decrement.
    pub countdown: i32,
    /// What `countdown` was set to last.
    pub armed: i32,
    /// Executions up to the last time it was set. Executions = `done + armed - countdown`.
    pub done: u64,
    /// Mean number of executions between two samples (launcher); 0: [`Slots::period`], without
    /// end.
    pub period: u32,
    /// Samples that are still wanted at that period. When there are none, the probe only counts.
    pub left: u32,
    /// Fills up to a power of two; reserved, 0.
    pub reserved: u64,
}

/// Executions before a sample that do nothing but wait, with a fence, until all before them is done.
///
/// A processor that expects no sample goes on to the access before it knows better, and fetches
/// the line while the timing is being prepared: the timed load then finds the line there, or nearly
/// there. After so many executions that take the branch to the fence, the core predicts that branch, and
/// fetches nothing behind the fence.
pub const LEAD_IN: i32 = 8;

/// Words of a site that is counted by stacks. They are summed.
pub const COUNT_WORDS: usize = 8;
/// Bytes from one of them to the next: they are not to share a cache line, where lines are usual.
pub const COUNT_APART: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_fill_their_room() {
        assert_eq!(size_of::<Slots>(), SLOTS_BYTES);
        assert_eq!(size_of::<Probe>(), 32);
    }
}
