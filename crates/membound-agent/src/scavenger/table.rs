//! The table of scavengers, and the memory that launcher and agent share for each.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_wire::{ScavengerPlacement, ScavengerProcessState, ScavengerRequest};

use crate::scheduler::handover::HomeThread;
use crate::scheduler::{Context, ending};
use crate::{memory, sys};

/// Most scavengers at one time.
pub(super) const MAX_SCAVENGERS: usize = 1024;
/// Nanoseconds between two checks of a held scavenger whether it may continue.
const HELD_POLL_INTERVAL_NS: u64 = 1_000_000;

/// A scavenger, as the agent knows it.
#[derive(Debug)]
pub(crate) struct Scavenger {
    /// Its home thread; 0: the entry is free; [`RESERVED`]: it is being filled.
    pub(super) thread: AtomicU32,
    /// Address of its [`ScavengerRequest`]; 0: none yet.
    pub(super) request: AtomicUsize,
    /// The break: start, present end, and end of the reserved addresses.
    pub(super) heap: [AtomicU64; 3],
    /// Dispatch selector of its thread in a process without run queues: 1, all calls go to the agent.
    pub(super) selector: AtomicU32,
    /// State for handing it over, in a process with run queues.
    pub(super) home_thread: HomeThread,
}

impl Scavenger {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            request: AtomicUsize::new(0),
            heap: [const { AtomicU64::new(0) }; 3],
            // Zeros take no room in the object file.
            selector: AtomicU32::new(0),
            home_thread: HomeThread::new(),
        }
    }

    pub(crate) fn home_thread(&'static self) -> &'static HomeThread {
        &self.home_thread
    }

    pub(super) fn request(&self) -> Request {
        Request(self.request.load(Ordering::Acquire))
    }

    /// The scavenger that this `HomeThread` is part of.
    pub(crate) fn of(home_thread: &'static HomeThread) -> &'static Self {
        let address = (&raw const *home_thread) as usize - offset_of!(Self, home_thread);
        // SAFETY: every `HomeThread` is part of a `Scavenger`, and these are static.
        unsafe { &*(address as *const Self) }
    }

    /// Where it is to run: a [`ScavengerPlacement`] as its number.
    fn place(&self) -> u32 {
        let request = self.request();
        // An entry that is being filled has no request yet.
        if request.0 == 0 {
            return ScavengerPlacement::RunQueues as u32;
        }
        let word = request.word(offset_of!(ScavengerRequest, place));
        word.load(Ordering::Relaxed)
    }

    /// True if it is to run on its home thread, and no run queue may have it.
    pub(crate) fn runs_on_home_thread(&self) -> bool {
        self.place() == ScavengerPlacement::Own as u32
    }

    /// True if it is to wait.
    pub(crate) fn is_held(&self) -> bool {
        self.place() == ScavengerPlacement::Held as u32
    }

    /// Waits while it is held. Called on its home thread, between two slices there.
    pub(crate) fn wait_while_held(&self) {
        while self.is_held() && !ending::is_requested() {
            sys::nap(HELD_POLL_INTERVAL_NS);
        }
    }

    /// True if no run queue may have it.
    pub(crate) fn is_barred_from_run_queues(&'static self) -> bool {
        self.place() != ScavengerPlacement::RunQueues as u32
            || self.home_thread.is_kept()
            || ending::is_requested()
    }

    /// Adds one to a counter of its request.
    pub(crate) fn count(&self, offset: usize) {
        self.request().long(offset).fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to a counter of its request.
    pub(crate) fn add(&self, offset: usize, more: u64) {
        self.request()
            .long(offset)
            .fetch_add(more, Ordering::Relaxed);
    }
}

pub(super) static ALL: [Scavenger; MAX_SCAVENGERS] = [const { Scavenger::new() }; MAX_SCAVENGERS];
/// Number of entries of [`ALL`] that were ever used, from the first on.
pub(super) static USED: AtomicUsize = AtomicUsize::new(0);

/// The entries that were ever used: reading all of them would evict the program's lines from the caches.
fn used() -> &'static [Scavenger] {
    ALL.get(..USED.load(Ordering::Acquire)).unwrap_or(&ALL)
}

/// Thread number of an entry that is being filled.
pub(super) const RESERVED: u32 = u32::MAX;

/// The scavenger whose home thread is the calling one.
pub(super) fn own() -> Option<&'static Scavenger> {
    let thread = sys::thread();
    used()
        .iter()
        .find(|scavenger| scavenger.thread.load(Ordering::Acquire) == thread)
}

/// Memory that launcher and agent share for one scavenger, by its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request(pub(super) usize);

impl Request {
    pub(super) fn get(self) -> ScavengerRequest {
        // SAFETY: the launcher has mapped it, and it stays mapped.
        unsafe { memory::get(self.0) }
    }

    pub(super) fn word(self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: as above; both sides use what the agent writes as atomics.
        unsafe { &*((self.0 + offset) as *const AtomicU32) }
    }

    pub(super) fn long(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: as above.
        unsafe { &*((self.0 + offset) as *const AtomicU64) }
    }

    pub(super) fn set(self, state: ScavengerProcessState, code: u32) {
        // The code before the state: a reader that sees the state sees its code.
        self.word(offset_of!(ScavengerRequest, code))
            .store(code, Ordering::Relaxed);
        let word = self.word(offset_of!(ScavengerRequest, state));
        word.store(state as u32, Ordering::Release);
        sys::wake_all(word);
    }

    /// Address of the first string.
    pub(super) const fn strings(self) -> usize {
        self.0 + size_of::<ScavengerRequest>()
    }
}

/// Takes the context of a ready scavenger for a run queue; `None`: no scavenger is ready.
pub(crate) fn take_ready() -> Option<&'static Context> {
    used()
        .iter()
        .filter(|scavenger| {
            scavenger.thread.load(Ordering::Relaxed) != 0 && !scavenger.is_barred_from_run_queues()
        })
        .find_map(|scavenger| scavenger.home_thread.take())
}

/// Number of ready scavengers.
pub(crate) fn count_ready() -> u32 {
    let mut count = 0;
    visit_home_threads(|_, home_thread| count += u32::from(home_thread.is_ready()));
    count
}

/// True if every scavenger has ended.
pub(crate) fn all_ended() -> bool {
    used()
        .iter()
        .all(|scavenger| scavenger.thread.load(Ordering::Acquire) == 0)
}

/// Calls `visit` with the number of every home thread.
pub(crate) fn visit_threads(mut visit: impl FnMut(u32)) {
    visit_home_threads(|thread, _| visit(thread));
}

/// True if any scavenger has not ended.
pub(crate) fn any_lives() -> bool {
    let thread = |scavenger: &Scavenger| scavenger.thread.load(Ordering::Relaxed);
    used().iter().any(|scavenger| thread(scavenger) != 0)
}

/// Calls `visit` with every scavenger's home thread and `HomeThread`.
pub(crate) fn visit_home_threads(mut visit: impl FnMut(u32, &'static HomeThread)) {
    for scavenger in used() {
        let thread = scavenger.thread.load(Ordering::Relaxed);
        if thread != 0 && thread != RESERVED {
            visit(thread, scavenger.home_thread());
        }
    }
}

/// True if `thread` is a home thread.
pub(crate) fn is_own_thread(thread: u32) -> bool {
    used()
        .iter()
        .any(|scavenger| scavenger.thread.load(Ordering::Relaxed) == thread)
}
