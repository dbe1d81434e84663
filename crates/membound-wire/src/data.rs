//! Layout of the data pages beside a module's trampolines.
//!
//! They are shared with the launcher and begin with [`Slots`]. The words of the sites follow at
//! [`SLOTS_BYTES`]: one [`Probe`] or one `u64` counter for each site, depending on the plan's body.

/// Bytes before the first site's words.
pub const SLOTS_BYTES: usize = 256;

/// Entry points of the agent, by their index in [`Slots`] and in `Hello::entries`.
///
/// Trampolines call all of them by `call [slot]`, with the red zone skipped. The stack need not be aligned,
/// and every register, the flags and the vector state are unchanged on return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Entry {
    /// A system call whose effect the program must see as without the agent (`rt_sigaction`, `execve`,
    /// `mprotect`, …). Number and arguments are in the kernel's registers. On return, a set carry flag
    /// means that the call was made (rax holds the result; rcx and r11 are lost as after `syscall`); with a
    /// clear one the trampoline executes the instruction itself.
    Syscall = 0,
    /// The loader's list of objects has changed.
    Modules = 1,
    /// A probe's countdown has run out. On the stack, above the return address, in 8 bytes each: the `u32`
    /// site number (bit 31: the access is a store), the accessed address, and then in ticks: what a load of
    /// that address took, whatever the access is; what a load from the top of the stack, which the
    /// innermost cache holds, took before that; and what the outstanding stores took to complete.
    Sample = 2,
    /// A recording burst is in progress. On the stack as for [`Entry::Sample`], without ticks.
    Record = 3,
    /// A yield whose run queue is another thread's, or whose thread was asked to enter the agent.
    Yield = 4,
    /// A wrapped function is entered: by a jump, not a call, with r11 on the stack, the return address
    /// above it, and in r11 the address of the displaced instructions. The `u32` before these is the number
    /// that the plan gave to the function. All other registers are as the caller left them.
    Wrap = 5,
    /// A request of the program begins or ends: a [`crate::Mark`] as its number is on the stack above the
    /// return address, and the red zone above that.
    Mark = 6,
    /// A system call that may wait, with number and arguments in the kernel's registers. On return, a set
    /// carry flag means that the thread yields and asks again; otherwise a set zero flag means that the
    /// call is done (as for [`Entry::Syscall`]); with neither, the trampoline executes the instruction
    /// itself.
    Wait = 7,
}

/// The first [`SLOTS_BYTES`] bytes of the data pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Slots {
    /// Addresses by [`Entry`].
    pub entries: [u64; 8],
    /// Accesses still to be recorded in this burst, approximately, since threads change it without locks.
    /// 0: no burst; `u32::MAX`: without end.
    pub burst: u32,
    /// Mean number of executions between two samples of a site that has no period of its own.
    pub period: u32,
    /// Number of the module, given by the launcher; copied into every [`crate::Record`].
    pub module: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Reserved, 0.
    pub rest: [u64; 22],
}

/// The words of a sampled site. Several threads may change them without locks: a lost decrement delays a
/// sample, and has no other effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Probe {
    /// Executions left until the last [`LEAD_IN`] before the next sample. The sample is due when this is
    /// not above `-LEAD_IN` after the decrement.
    pub countdown: i32,
    /// Value to which `countdown` was last set.
    pub armed: i32,
    /// Executions until it was last set. Executions in total = `done + armed - countdown`.
    pub done: u64,
    /// Mean number of executions between two samples, set by the launcher; 0: [`Slots::period`], for ever.
    pub period: u32,
    /// Samples that are still wanted at that period. At 0 the probe only counts.
    pub left: u32,
    /// Reserved, 0; pads to a power of two.
    pub reserved: u64,
}

/// Executions before a sample that only wait, with a fence, until all earlier instructions are done.
///
/// A core that expects no sample runs ahead speculatively to the access, and fetches the line while the
/// timing is being prepared: the timed load would then find the line there, or nearly there. After this
/// many executions that take the branch to the fence, the core predicts that branch, and fetches nothing
/// behind the fence.
pub const LEAD_IN: i32 = 8;

/// Counter words of a site whose threads choose a word by the address of their stack, so that they do not
/// compete for a cache line. The count is the sum of the words.
pub const COUNT_WORDS: usize = 8;
/// Bytes from one of them to the next, so that no two share a cache line of the usual size.
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
