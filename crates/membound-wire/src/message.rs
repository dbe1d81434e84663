//! Messages on the control socket (`SOCK_SEQPACKET`, one struct a packet).
//!
//! The agent opens a connection for each conversation and closes it afterwards, so that no
//! descriptor of its own stays in the program. It sends one [`Hello`]; then the launcher
//! sends [`Command`]s, each answered by one [`Reply`], until [`Action::Go`], which is not
//! answered. A descriptor travels with a command as `SCM_RIGHTS`.

/// `b"mbnd"` in the machine's byte order.
pub const HELLO_MAGIC: u32 = u32::from_ne_bytes(*b"mbnd");

/// Both sides come out of one binary, so this only guards against a stale agent.
pub const PROTOCOL_VERSION: u32 = 2;

/// Why the agent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// A new process image; its program has not begun to run.
    Start = 1,
    /// The dynamic loader has mapped or unmapped objects.
    Modules = 2,
    /// The program is about to make patched text writable; `Hello::range` says where. The
    /// patches there are to be taken back.
    Writable = 3,
    /// The control thread was woken (live sessions only).
    Doorbell = 4,
    /// A probe asked for attention (a ring is nearly full); sampling sessions only.
    Attention = 5,
    /// The program is about to put itself behind a filter on system calls. Everything is to be
    /// taken back, and the process left alone.
    Filtered = 6,
    /// A guest has mapped text of a file; `Hello::range` says where. It does not run yet.
    Guest = 7,
    /// As [`Event::Filtered`]: the program is about to have its system calls dispatched to a handler of its own.
    Dispatched = 8,
    /// As [`Event::Filtered`]: the program is about to forbid itself to read the time stamp counter.
    Untimed = 9,
}

/// The agent's first words in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Hello {
    /// [`HELLO_MAGIC`].
    pub magic: u32,
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// An [`Event`] as its number.
    pub event: u32,
    /// [`HelloFlags`].
    pub flags: u32,
    /// The agent's view of its process number (a namespace may show the launcher another).
    pub pid: u32,
    /// Thread that speaks.
    pub tid: u32,
    /// Address of the function that the loader calls when its list changes (`r_brk`), or 0.
    pub loader_hook: u64,
    /// The first bytes at `loader_hook`.
    pub loader_hook_bytes: [u8; 16],
    /// Start and end of what [`Event::Writable`] is about.
    pub range: [u64; 2],
    /// The agent's entry points, by [`crate::Entry`].
    pub entries: [u64; 8],
    /// Start and end of the agent's own mapping: never to be patched.
    pub agent: [u64; 2],
}

/// Bits of [`Hello::flags`].
#[derive(Clone, Copy, Debug)]
pub struct HelloFlags;

impl HelloFlags {
    /// The process has more than one thread.
    pub const THREADS: u32 = 1;
    /// The loader has mapped or unmapped objects since the control thread last spoke
    /// ([`Event::Doorbell`]).
    pub const MODULES: u32 = 2;
}

/// What the launcher wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// The conversation is over; the program goes on.
    Go = 1,
    /// Maps `length` bytes of the descriptor from `offset` at `address`, which must be free
    /// (`MAP_FIXED_NOREPLACE`), with [`Protection`] in `mode`. Bit 8 of `mode`: shared.
    /// Without a descriptor: anonymous memory.
    Map = 2,
    /// Unmaps `length` bytes at `address`.
    Unmap = 3,
    /// Applies `count` [`crate::TextEdit`]s, sorted by address, that lie in the descriptor
    /// from `offset`; `mode` is a [`TextMode`]. The reply's `count` is the number of edits
    /// applied; one whose text is not what was planned for is left out, and its index is
    /// put into the array of `u32` at `extra` (in the same descriptor, writable) while
    /// there is room. So is, with the bit [`GIVEN_UP`], one that could not be applied.
    Text = 4,
    /// Registers trampolines: `address` and `length` of the code, `extra` the address of a
    /// [`crate::TableHeader`] (already mapped), `base` the address that the table's
    /// `original` offsets are relative to.
    Register = 5,
    /// Forgets the trampolines whose code begins at `address`.
    Forget = 6,
    /// Starts the control thread, whose doorbell is the `u32` at `address` (mapped, shared
    /// with the launcher; it waits while the value is unchanged). Live sessions only. `mode` 1: the control
    /// thread tells of objects that the loader maps ([`HelloFlags::MODULES`]), and the program does not wait.
    Listen = 7,
    /// Wraps the signal handlers that the program has installed already, and from now on
    /// every one it installs. Needs the hook of `rt_sigaction` in place.
    AdoptSignals = 8,
    /// Registers the set of rings for [`crate::Entry::Sample`] and [`crate::Entry::Record`]: `address`
    /// of a [`crate::RingSet`], mapped and shared.
    Rings = 9,
    /// Registers the [`crate::UnwindHeader`] at `extra` (already mapped, and never unmapped) for
    /// `length` bytes of text at `address`; its rows count from `base`. What was registered
    /// for any of that text is forgotten.
    Unwind = 10,
    /// Forgets the unwind tables of texts that touch `length` bytes at `address`.
    ForgetUnwind = 11,
    /// Makes wrapped functions tell of allocations in the [`crate::Allocations`] at `address`,
    /// mapped and shared; 0: no longer.
    Allocations = 12,
    /// Starts a guest: `address` of a [`crate::GuestRequest`], mapped and shared for as long as
    /// the program lives, `length` bytes with its strings. What comes of it is said there. Needs the hook of
    /// `rt_sigaction`.
    Guest = 13,
    /// Lets guests run at the yields of the program's threads: `address` of a [`crate::Board`],
    /// mapped and shared, `length` bytes. Needs what [`Action::Guest`] needs, and comes before it.
    Lanes = 14,
    /// Counts requests of the program in the [`crate::Requests`] at `address`, mapped and shared,
    /// `length` bytes, by what is wrapped and marked for it.
    Requests = 15,
    /// Samples threads by timers of their own CPU time: `address` of a [`crate::TickSet`],
    /// mapped and shared, `count` nanoseconds between two samples. Needs the hooks of the
    /// system calls by which programs could see the signal, and adopted handlers.
    Timers = 20,
    /// Makes the [`crate::Trial`] at `address`, mapped and shared: for spans of less than a
    /// millisecond, threads are kept from running in the handler of the signal by which threads are
    /// called. The reply's `count` is the number of spans measured.
    Hold = 21,
}

/// Marks the index of an edit of [`Action::Text`] whose text is as planned and that was left out because a thread could
/// not be shown to be elsewhere.
pub const GIVEN_UP: u32 = 1 << 31;

/// Set in the action of a [`Command`] that is to be carried out only if the one before it was; otherwise the answer is
/// `ECANCELED`.
pub const CHAINED: u32 = 1 << 31;

/// How text is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TextMode {
    /// Nobody can be executing it: the process has one thread, or the text was just mapped.
    Quiet = 0,
    /// Threads may be running in it: int3 first, every core serialised, every thread that
    /// stands inside a group moved to the same place in its trampoline.
    Live = 1,
}

/// Protection bits of [`Action::Map`], as `mmap` takes them.
pub struct Protection;

impl Protection {
    /// Readable.
    pub const READ: u32 = 1;
    /// Readable and writable.
    pub const READ_WRITE: u32 = 3;
    /// Readable and executable.
    pub const READ_EXECUTE: u32 = 5;
    /// Flag beside the protection: shared with the launcher rather than private.
    pub const SHARED: u32 = 1 << 8;
    /// Flag beside the protection: anonymous memory, into which the descriptor's bytes are
    /// copied. Profilers take it for code that was made by the program itself.
    pub const FILLED: u32 = 1 << 9;
}

/// One thing to do. Fields that an [`Action`] does not name are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Command {
    /// An [`Action`] as its number.
    pub action: u32,
    /// See [`Action`].
    pub mode: u32,
    /// See [`Action`].
    pub address: u64,
    /// See [`Action`].
    pub length: u64,
    /// Offset in the descriptor.
    pub offset: u64,
    /// See [`Action`].
    pub count: u64,
    /// See [`Action`].
    pub extra: u64,
    /// See [`Action`].
    pub base: u64,
}

/// The agent's answer to one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Reply {
    /// 0, or the kernel's error number (positive).
    pub errno: u32,
    /// A [`Refusal`] as its number: what the error number alone does not say.
    pub detail: u32,
    /// See [`Action`].
    pub count: u64,
    /// Longest time in nanoseconds that a thread of the program stood still or waited for changes of
    /// text since the last reply that said so.
    pub stop_ns: u64,
}

/// Why a command was refused where the kernel's error number alone does not say it; goes into
/// [`Reply::detail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// Nothing to add to the error number.
    None = 0,
    /// The command is unknown or its numbers contradict each other.
    Malformed = 1,
    /// A descriptor should have come with the command.
    NoDescriptor = 2,
    /// The kernel put the mapping somewhere else.
    Elsewhere = 3,
    /// `/proc/self/mem` could not be opened.
    MemoryClosed = 4,
    /// Text could not be read or written through `/proc/self/mem`.
    MemoryRefused = 5,
    /// No more areas can be registered.
    AreasFull = 6,
    /// A debugger is attached: it would see the signals that live changes need.
    Traced = 7,
    /// The kernel offers no core serialisation (membarrier).
    NoBarrier = 8,
    /// Another thread is changing text.
    Occupied = 9,
    /// A thread could not be shown to stand outside the text to be changed.
    ThreadUnknown = 10,
    /// `/proc/self/task` could not be read.
    ThreadsHidden = 11,
    /// The control thread could not be started.
    NoThread = 12,
    /// A thread blocks SIGTRAP: a trap in text under change would kill it.
    TrapBlocked = 13,
    /// Programs may not set the bases of `fs` and `gs` here (FSGSBASE).
    NoBases = 14,
}

impl Refusal {
    /// Every refusal, by its number.
    pub const ALL: [Self; 15] = [
        Self::None,
        Self::Malformed,
        Self::NoDescriptor,
        Self::Elsewhere,
        Self::MemoryClosed,
        Self::MemoryRefused,
        Self::AreasFull,
        Self::Traced,
        Self::NoBarrier,
        Self::Occupied,
        Self::ThreadUnknown,
        Self::ThreadsHidden,
        Self::NoThread,
        Self::TrapBlocked,
        Self::NoBases,
    ];

    /// The refusal with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_stand_at_their_numbers() {
        for (number, refusal) in (0..).zip(Refusal::ALL) {
            assert_eq!(refusal as u32, number);
            assert_eq!(Refusal::from_number(number), Some(refusal));
        }
        assert_eq!(Refusal::from_number(99), None);
    }
}
