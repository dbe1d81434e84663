//! State that the agent keeps for each thread, without thread-local storage.
//!
//! The key is the thread pointer, which the ABI stores where fs points to. A thread that ends leaves its
//! entry to the next one with the same thread pointer. The two are distinguished by the thread's number,
//! which every libc stores at some fixed distance behind the thread pointer: the agent searches for that
//! distance, and checks it for every thread. In forked children the table is empty.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::sys::{self, Open, Scratch};
use crate::unwind::Stack;
use crate::{assembly, memory, stack};

const ENTRIES: usize = 4096;
/// Entries searched, from the one that the key selects.
const REACH: usize = 16;
/// Bytes behind a thread pointer in which a libc keeps the thread's number.
const CONTROL_BYTES: usize = 1024;
/// How often the kernel is asked for the stacks of one thread.
const QUESTIONS: u32 = 64;

/// A thread's entry. Only the thread itself and its signal handlers use it.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Thread {
    /// Its thread pointer; 0: free.
    key: AtomicU64,
    /// Its number.
    pub(crate) number: AtomicU32,
    /// Index of its ring of allocations plus one; 0: none.
    pub(crate) ring: AtomicU32,
    /// The ring and the number of the thread that had the entry before.
    pub(crate) inherited: [AtomicU32; 2],
    /// Frame of the outermost wrapped call in progress, or of one that was left by a long jump; 0: none.
    pub(crate) outer: AtomicU64,
    /// The request that it works on according to marks.
    pub(crate) request: Request,
    /// Stacks that it has used.
    stacks: [Bounds; 2],
    /// How often the kernel was asked for its stacks.
    questions: AtomicU32,
}

/// A request of a thread: see `requests`.
#[derive(Debug)]
pub(crate) struct Request {
    /// Time stamp at which it began; 0: there is none.
    pub(crate) begun: AtomicU64,
    /// Address of the return address of the call that began it; 0: no call did.
    pub(crate) stack: AtomicU64,
    /// That return address.
    pub(crate) back: AtomicU64,
}

#[derive(Debug)]
struct Bounds {
    low: AtomicU64,
    high: AtomicU64,
}

impl Bounds {
    fn get(&self) -> Stack {
        Stack {
            low: self.low.load(Ordering::Relaxed),
            high: self.high.load(Ordering::Relaxed),
        }
    }

    fn set(&self, stack: Stack) {
        self.low.store(stack.low, Ordering::Relaxed);
        self.high.store(stack.high, Ordering::Relaxed);
    }
}

/// Address of the table; 0 without one.
static TABLE: AtomicUsize = AtomicUsize::new(0);

/// Makes the table, unless there is one.
pub(crate) fn prepare() -> Result<(), sys::Errno> {
    if TABLE.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let table = Scratch::new(ENTRIES * size_of::<Thread>())?;
    // If this fails, a child takes its parent's entries for its own until it compares the threads' numbers.
    let _ = table.wipe_on_fork();
    let address = table.address();
    let installed = TABLE.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
    if installed.is_ok() {
        table.keep();
    }
    Ok(())
}

/// Distance of the thread's number from the thread pointer, plus one; 0: not known yet, [`NOWHERE`]: there
/// is none.
static DISTANCE: AtomicU32 = AtomicU32::new(0);
const NOWHERE: u32 = u32::MAX;

/// The calling thread's entry; `None` when the table is full or there is none.
pub(crate) fn own(sp: u64) -> Option<&'static Thread> {
    let table = TABLE.load(Ordering::Acquire);
    if table == 0 {
        return None;
    }
    let key = assembly::thread_pointer();
    let first = first_choice(key);
    for index in first..first + REACH {
        let thread = entry(table, index);
        let found = thread.key.load(Ordering::Relaxed);
        if found == key {
            if thread.number.load(Ordering::Relaxed) != number(key) {
                thread.become_own(key, sp);
            }
            return Some(thread);
        }
        if found == 0 {
            break;
        }
    }
    take(table, key, sp)
}

fn first_choice(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

fn entry(table: usize, index: usize) -> &'static Thread {
    let place = table + (index % ENTRIES) * size_of::<Thread>();
    // SAFETY: the table has that many entries, all their words are atomics, and it is never unmapped.
    unsafe { &*(place as *const Thread) }
}

/// The calling thread's number, from its libc or from the kernel.
fn number(key: u64) -> u32 {
    match DISTANCE.load(Ordering::Relaxed) {
        0 | NOWHERE => sys::thread(),
        // SAFETY: the word was read when this thread, or one with the same thread pointer, got its entry.
        distance => unsafe { memory::get(key as usize + distance as usize - 1) },
    }
}

/// Takes an entry for a thread that has none: a free one, or that of a thread that has ended.
#[cold]
fn take(table: usize, key: u64, sp: u64) -> Option<&'static Thread> {
    let first = first_choice(key);
    let choices = || (first..first + REACH).map(|index| entry(table, index));
    let claim = |thread: &&'static Thread, found: u64| {
        thread
            .key
            .compare_exchange(found, key, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let free = choices().find(|thread| claim(thread, 0));
    let thread = free.or_else(|| {
        let process = sys::process();
        choices().find(|thread| {
            let found = thread.key.load(Ordering::Relaxed);
            let number = thread.number.load(Ordering::Relaxed);
            !sys::thread_exists(process, number) && claim(thread, found)
        })
    })?;
    thread.become_own(key, sp);
    Some(thread)
}

impl Thread {
    /// Makes the entry the calling thread's.
    #[cold]
    fn become_own(&self, key: u64, sp: u64) {
        let number = sys::thread();
        find_number_distance(key, number);
        let [ring, owner] = &self.inherited;
        ring.store(self.ring.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        owner.store(self.number.load(Ordering::Relaxed), Ordering::Relaxed);
        self.outer.store(0, Ordering::Relaxed);
        self.request.begun.store(0, Ordering::Relaxed);
        self.questions.store(0, Ordering::Relaxed);
        for bounds in &self.stacks {
            bounds.set(Stack { low: 0, high: 0 });
        }
        self.stack(sp);
        self.number.store(number, Ordering::Relaxed);
    }

    /// The stack that holds `sp`.
    pub(crate) fn stack(&self, sp: u64) -> Stack {
        let contains = |stack: &Stack| stack.low <= sp && sp < stack.high;
        let known = self.stacks.iter().map(Bounds::get).find(contains);
        known.unwrap_or_else(|| self.find_stack(sp))
    }

    #[cold]
    fn find_stack(&self, sp: u64) -> Stack {
        let questions = self.questions.load(Ordering::Relaxed);
        if questions >= QUESTIONS {
            return stack::page(sp);
        }
        self.questions.store(questions + 1, Ordering::Relaxed);
        let found = stack::holding(sp);
        let [first, second] = &self.stacks;
        second.set(first.get());
        first.set(found);
        found
    }

    /// True if both addresses are on the same known stack.
    pub(crate) fn on_one_stack(&self, low: u64, high: u64) -> bool {
        self.stacks.iter().any(|bounds| {
            let stack = bounds.get();
            stack.low <= low && high < stack.high
        })
    }
}

/// Searches for the distance of a thread's number. If it is wrong for any thread, none is used from then
/// on.
fn find_number_distance(key: u64, number: u32) {
    let known_distance = DISTANCE.load(Ordering::Relaxed);
    if known_distance == NOWHERE {
        return;
    }
    let mut words = [0; CONTROL_BYTES];
    let length = control_words(key, &mut words).unwrap_or(0);
    let (words, _) = words.get(..length).unwrap_or_default().as_chunks::<4>();
    let number = number.to_ne_bytes();
    let found = if known_distance == 0 {
        words.iter().position(|word| *word == number)
    } else {
        let index = (known_distance as usize - 1) / 4;
        Some(index).filter(|index| words.get(*index) == Some(&number))
    };
    let distance = found.map_or(NOWHERE, |index| index as u32 * 4 + 1);
    if distance != known_distance {
        DISTANCE.store(distance, Ordering::Relaxed);
    }
}

/// Reads the memory behind a thread pointer, as far as it is mapped.
fn control_words(key: u64, words: &mut [u8; CONTROL_BYTES]) -> Option<usize> {
    const PAGE: u64 = 4096;
    let file = sys::open(c"/proc/self/mem", Open::Read).ok()?;
    if sys::read_all_at(&file, words, key).is_ok() {
        return Some(CONTROL_BYTES);
    }
    let bytes_to_page_end = (PAGE - key % PAGE) as usize;
    let words = words.get_mut(..bytes_to_page_end)?;
    sys::read_all_at(&file, words, key)
        .ok()
        .map(|()| bytes_to_page_end)
}
