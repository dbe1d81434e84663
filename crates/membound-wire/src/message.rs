//! Messages on the control socket (`SOCK_SEQPACKET`, one structure in each packet).
//!
//! The agent opens a connection for each conversation and closes it afterwards, so that no descriptor of
//! its own stays in the program. It sends one [`Hello`]; then the launcher sends [`Command`]s, and the
//! agent answers each by one [`Reply`], except the last, [`Action::Go`]. A descriptor travels with a
//! command as `SCM_RIGHTS`.

/// `b"mbnd"` in the machine's byte order.
pub const HELLO_MAGIC: u32 = u32::from_ne_bytes(*b"mbnd");

/// Version of the protocol. Launcher and agent come from one binary, so this only guards against a stale
/// agent.
pub const PROTOCOL_VERSION: u32 = 3;

numbered! {
    /// Why the agent starts a conversation.
    pub enum Event {
        /// A new process image; its program has not begun to run.
        Start = 1,
        /// The dynamic loader has mapped or unmapped objects.
        Modules = 2,
        /// The program is about to make patched text writable, at `Hello::range`. The patches there must be
        /// removed.
        Writable = 3,
        /// The control thread was woken (live sessions only).
        Doorbell = 4,
        /// The program is about to install a filter on system calls. All patches must be removed, and the
        /// process left alone.
        Filtered = 6,
        /// A scavenger has mapped text of a file, at `Hello::range`. It does not execute it yet.
        Scavenger = 7,
        /// As [`Event::Filtered`]: the program is about to dispatch its system calls to a handler of its own.
        Dispatched = 8,
        /// As [`Event::Filtered`]: the program is about to forbid itself the time stamp counter.
        Untimed = 9,
    }
}

/// The agent's first message in a conversation.
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
    /// Process number in the agent's namespace; the launcher's may show another one.
    pub pid: u32,
    /// Number of the thread that talks.
    pub tid: u32,
    /// Address of the function that the loader calls when its list changes (`r_brk`); 0: unknown.
    pub loader_hook: u64,
    /// The first bytes at `loader_hook`.
    pub loader_hook_bytes: [u8; 16],
    /// Start and end of the address range of [`Event::Writable`] or [`Event::Scavenger`].
    pub range: [u64; 2],
    /// The agent's entry points, by [`crate::Entry`].
    pub entries: [u64; 8],
    /// Start and end of the agent's own mapping, which must never be patched.
    pub agent: [u64; 2],
}

/// Bits of [`Hello::flags`].
#[derive(Clone, Copy, Debug)]
pub struct HelloFlags;

impl HelloFlags {
    /// The process has more than one thread.
    pub const THREADS: u32 = 1;
    /// The loader has mapped or unmapped objects since the control thread's last conversation
    /// ([`Event::Doorbell`]).
    pub const MODULES: u32 = 2;
}

numbered! {
    /// What the launcher orders.
    pub enum Action {
        /// The conversation is over; the program goes on.
        Go = 1,
        /// Maps `length` bytes of the descriptor from `offset` at `address`, which must be free
        /// (`MAP_FIXED_NOREPLACE`), with [`Protection`] in `mode`. Bit 8 of `mode`: shared.
        /// Without a descriptor: anonymous memory.
        Map = 2,
        /// Unmaps `length` bytes at `address`.
        Unmap = 3,
        /// Applies `count` [`crate::TextEdit`]s, sorted by address, that are in the descriptor from `offset`
        /// on; `mode` is a [`TextMode`]. The reply's `count` is the number of edits applied. An edit whose text
        /// is not as planned is left out, and its index is stored in the array of `u32` at `extra` (in the same
        /// descriptor, writable) while there is room. An edit that could not be applied is stored there with
        /// the bit [`GIVEN_UP`].
        Text = 4,
        /// Registers trampolines: `address` and `length` of the code, `extra` the address of a
        /// [`crate::TableHeader`] (already mapped), `base` the address that the table's
        /// `original` offsets are relative to.
        Register = 5,
        /// Removes the trampolines whose code begins at `address`.
        Forget = 6,
        /// Starts the control thread. Its doorbell is the page at `address` (mapped, shared with the
        /// launcher, see [`crate::own_word`]), for whose change it waits. Live sessions only. With `mode` 1 the control thread reports
        /// objects that the loader maps ([`HelloFlags::MODULES`]), and the program does not wait.
        Listen = 7,
        /// Wraps the signal handlers that the program has already installed, and every one that it installs
        /// from now on. Needs the hook of `rt_sigaction` in place.
        AdoptSignals = 8,
        /// Registers the set of rings for [`crate::Entry::Sample`] and [`crate::Entry::Record`]: `address`
        /// of a [`crate::RingSet`], mapped and shared.
        Rings = 9,
        /// Registers the [`crate::UnwindHeader`] at `extra` (already mapped, and never unmapped) for `length`
        /// bytes of text at `address`; its rows count from `base`. Earlier tables for any of that text are
        /// removed.
        Unwind = 10,
        /// Removes the unwind tables of texts that overlap `length` bytes at `address`.
        ForgetUnwind = 11,
        /// Makes wrapped functions report allocations in the [`crate::Allocations`] at `address`, mapped and
        /// shared; address 0: ends that.
        Allocations = 12,
        /// Starts a scavenger: `address` of a [`crate::ScavengerRequest`], which stays mapped and shared for as
        /// long as the program lives, `length` bytes with its strings. The agent reports results there. Needs
        /// the hook of `rt_sigaction`.
        Scavenger = 13,
        /// Lets scavengers run at the yields of the program's threads: `address` of a [`crate::ControlPage`],
        /// mapped and shared, `length` bytes. Needs what [`Action::Scavenger`] needs, and comes before it.
        RunQueues = 14,
        /// Counts requests of the program in the [`crate::Requests`] at `address`, mapped and shared, `length`
        /// bytes, by the functions that are wrapped and marked for it.
        Requests = 15,
        /// Samples threads by timers on their own CPU time: `address` of a [`crate::TickSet`], mapped and
        /// shared, `count` nanoseconds between two samples. Needs the hooks of the system calls by which
        /// programs could notice the signal, and adopted handlers.
        Timers = 20,
        /// Makes the [`crate::Trial`] at `address`, mapped and shared: for spans of less than a millisecond the
        /// agent holds threads in a signal handler. The reply's `count` is the number of spans measured.
        Hold = 21,
    }
}

/// Flag in the index of an edit of [`Action::Text`] that was left out although its text is as planned,
/// because a thread could not be shown to be elsewhere.
pub const GIVEN_UP: u32 = 1 << 31;

/// Flag in the action of a [`Command`] that is carried out only if the previous one was; otherwise the
/// answer is `ECANCELED`.
pub const CHAINED: u32 = 1 << 31;

numbered! {
    /// How text is replaced.
    pub enum TextMode {
        /// No thread can be executing it: the process has one thread, or the text was just mapped.
        Quiet = 0,
        /// Threads may be running in it: `int3` first, every core serialised, every thread seen outside the
        /// bytes before they are written; a thread that meets an `int3` goes on in the trampoline.
        Live = 1,
    }
}

/// Protection bits of [`Action::Map`], as for `mmap`.
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
    /// Flag beside the protection: anonymous memory, into which the descriptor's bytes are copied, so that
    /// profilers treat it like code that the program itself has generated.
    pub const FILLED: u32 = 1 << 9;
}

/// One order. Fields that an [`Action`] does not mention are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Command {
    /// An [`Action`] as its number.
    pub action: u32,
    /// See [`Action`]: a mode or protection.
    pub mode: u32,
    /// See [`Action`].
    pub address: u64,
    /// Length in bytes; see [`Action`].
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
    /// A [`Refusal`] as its number, which explains the error number.
    pub detail: u32,
    /// Number of items done; see [`Action`].
    pub count: u64,
    /// Longest time in nanoseconds that a thread of the program stood still or waited for changes of text
    /// since the previous reply.
    pub stop_ns: u64,
    /// Time in nanoseconds since then in which text was being changed: threads stood, or met traps.
    pub changing_ns: u64,
}

numbered! {
    /// Why a command was refused, where the kernel's error number alone does not explain it; see
    /// [`Reply::detail`].
    pub enum Refusal {
        /// The error number explains it.
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
}
