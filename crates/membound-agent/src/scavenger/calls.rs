//! System calls of scavengers.
//!
//! The home thread makes most calls unchanged. For calls that would affect the whole process, it emulates the
//! effect on the scavenger alone (break, thread pointer, exit, signals to itself), reports success and does
//! nothing (handlers and masks: a scavenger has no signals), or refuses. No signal that is sent to the
//! process may be consumed here (`narrowed`), and no effect that a scavenger asks for may reach the program.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use membound_wire::{ScavengerProcessState, ScavengerRequest};

use super::end::finish;
use super::table::{Request, Scavenger};
use crate::scheduler::{handover, page};
use crate::signal_frame::Registers;
use crate::sys::{self, call, number};
use crate::{memory, own_signals};

/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;
const EPERM: isize = -1;
const ECHILD: isize = -10;
const EAGAIN: isize = -11;
const ENOMEM: isize = -12;
const EACCES: isize = -13;
const EFAULT: isize = -14;
const EINVAL: isize = -22;
const ENOSYS: isize = -38;

const BRK: usize = 12;
const SETRLIMIT: usize = 160;
const SET_TID_ADDRESS: usize = 218;
const SET_ROBUST_LIST: usize = 273;
const PRLIMIT: usize = 302;
const RSEQ: usize = 334;
const KILL: usize = 62;
const TKILL: usize = 200;
const SIGQUEUE: [usize; 2] = [129, 297];
const MREMAP: usize = 25;
const RT_SIGRETURN: usize = 15;
// setuid, setgid, setreuid, setregid, setgroups, setresuid, setresgid, setfsuid, setfsgid,
// capset, setpgid, setsid, unshare, setns, chroot, pivot_root, ptrace, process_vm_writev.
const CHANGES_PROGRAM: [usize; 18] = [
    105, 106, 113, 114, 116, 117, 119, 122, 123, 126, 109, 112, 272, 308, 161, 155, 101, 311,
];
// alarm, setitimer, timer_create, mq_notify, pidfd_send_signal: their signals would be the program's.
// mlockall, munlockall, migrate_pages: they would act on its memory.
const ACTS_ON_PROGRAM: [usize; 8] = [37, 38, 222, 244, 424, 151, 152, 256];
// wait4 and waitid: the process's children are the program's.
const WAIT: [usize; 2] = [61, 247];
// Its operations could use signal masks that only the ring knows.
const IO_URING_SETUP: usize = 425;

/// Makes the system call in `registers`, and puts its result there. `report_text` reports text that the
/// call has mapped.
pub(super) fn make(
    scavenger: &'static Scavenger,
    registers: &mut Registers,
    report_text: impl Fn([u64; 2]),
) {
    let request = scavenger.request();
    scavenger.count(offset_of!(ScavengerRequest, calls));
    let (number, arguments) = registers.call();
    let result = answer(scavenger, request, number, arguments, report_text);
    registers.answer(result);
}

fn answer(
    scavenger: &'static Scavenger,
    request: Request,
    number: usize,
    arguments: [usize; 6],
    report_text: impl Fn([u64; 2]),
) -> isize {
    let [first, second, ..] = arguments;
    match number {
        number::EXIT | number::EXIT_GROUP => finish(
            scavenger,
            ScavengerProcessState::Exited,
            first as u32 & 0xff,
        ),
        KILL => signal(scavenger, first, None, second),
        TKILL => signal(scavenger, sys::process() as usize, Some(first), second),
        number::TGKILL => signal(scavenger, first, Some(second), arguments[2]),
        BRK => brk(scavenger, request, first as u64),
        number::ARCH_PRCTL => thread_pointer(scavenger, arguments),
        SET_TID_ADDRESS => sys::thread() as isize,
        SET_ROBUST_LIST => 0,
        RSEQ => ENOSYS,
        number::RT_SIGACTION => {
            const WORDS: usize = 4;
            pretend(arguments[2], WORDS, 0)
        }
        number::RT_SIGPROCMASK => pretend(arguments[2], 1, 0),
        number::SIGALTSTACK => {
            const DISABLED: u64 = 2;
            // Pointer, flags, size.
            pretend(second, 3, DISABLED)
        }
        number::CLONE | number::FORK | number::VFORK => EAGAIN,
        number::CLONE3 => ENOSYS,
        number::EXECVE | number::EXECVEAT => EACCES,
        number::PRCTL => process_control(arguments),
        number::SECCOMP => EINVAL,
        SETRLIMIT => EPERM,
        PRLIMIT if arguments[2] != 0 => EPERM,
        number if SIGQUEUE.contains(&number) || CHANGES_PROGRAM.contains(&number) => EPERM,
        number if ACTS_ON_PROGRAM.contains(&number) => EPERM,
        number if WAIT.contains(&number) => ECHILD,
        number if sends_signals(number, second) => EPERM,
        IO_URING_SETUP => ENOSYS,
        // A scavenger has no signal frames to return from.
        RT_SIGRETURN => finish(
            scavenger,
            ScavengerProcessState::Killed,
            own_signals::SEGV as u32,
        ),
        number if is_of_thread(number) => of_thread(number, arguments),
        number::MMAP => map(request, arguments, report_text),
        MREMAP => remap(request, arguments),
        // Reserved addresses become memory. Doing that repeatedly is not counted.
        number::MPROTECT if arguments[2] & WRITE != 0 && !may_have(second as u64) => ENOMEM,
        number::MUNMAP => {
            let result = plain(number, arguments);
            if result == 0 {
                Bytes::memory(second as u64).give_back(request);
            }
            result
        }
        _ => narrowed(number, arguments),
    }
}

fn map(request: Request, arguments: [usize; 6], report_text: impl Fn([u64; 2])) -> isize {
    const EXECUTE: usize = 4;
    const ANONYMOUS: usize = 0x20;
    let [_, length, protection, flags, ..] = arguments;
    let whole = Bytes::mapped(length as u64, protection, flags);
    if !whole.charge(request) {
        return ENOMEM;
    }
    let mapped = plain(number::MMAP, arguments);
    if mapped < 0 && mapped > -4096 {
        whole.give_back(request);
    } else if protection & EXECUTE != 0 && flags & ANONYMOUS == 0 {
        report_text([mapped as u64, (mapped as u64) + length as u64]);
    } else if whole.memory >= HUGE_PAGE && flags & ANONYMOUS != 0 {
        ask_for_huge_pages(mapped as usize, length);
    }
    mapped
}

fn remap(request: Request, arguments: [usize; 6]) -> isize {
    let [_, before, after, ..] = arguments;
    let more = Bytes::memory((after as u64).saturating_sub(before as u64));
    if !more.charge(request) {
        return ENOMEM;
    }
    let moved = plain(MREMAP, arguments);
    if moved < 0 && moved > -4096 {
        more.give_back(request);
    }
    moved
}

/// Asks for huge pages for memory that a scavenger has mapped: a page walk during a time slice takes the
/// program's time, at times as long as a load.
fn ask_for_huge_pages(place: usize, length: usize) {
    const HUGEPAGE: usize = 14;
    if page::control_page().is_some_and(|control_page| control_page.huge_pages != 0) {
        // Without huge pages the mapping stays as it is.
        let _ = plain(number::MADVISE, [place, length, HUGEPAGE, 0, 0, 0]);
    }
}

/// True if `fcntl` or `ioctl` would make a descriptor send signals, which would go to the process.
fn sends_signals(number: usize, what: usize) -> bool {
    const FCNTL: usize = 72;
    const IOCTL: usize = 16;
    // F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY.
    const BY_FCNTL: [usize; 5] = [8, 10, 15, 1024, 1026];
    // FIOSETOWN, SIOCSPGRP.
    const BY_IOCTL: [usize; 2] = [0x8901, 0x8902];
    number == FCNTL && BY_FCNTL.contains(&(what & 0xffff_ffff))
        || number == IOCTL && BY_IOCTL.contains(&(what & 0xffff_ffff))
}

const GET_PRIORITY: usize = 140;
const SET_PRIORITY: usize = 141;
const SET_IO_PRIORITY: usize = 251;
const GET_IO_PRIORITY: usize = 252;

/// True if a call reads or changes how a thread, or a group of processes, is scheduled.
fn is_of_thread(number: usize) -> bool {
    // sched_setparam to sched_getscheduler, sched_setaffinity, sched_getaffinity, sched_setattr,
    // sched_getattr.
    const SCHED: [usize; 8] = [142, 143, 144, 145, 203, 204, 314, 315];
    const PRIORITIES: [usize; 4] = [GET_PRIORITY, SET_PRIORITY, SET_IO_PRIORITY, GET_IO_PRIORITY];
    SCHED.contains(&number) || PRIORITIES.contains(&number)
}

/// Makes such a call: with the process's number a scavenger means itself, and process groups are not its
/// own.
fn of_thread(number: usize, mut arguments: [usize; 6]) -> isize {
    const ONE: [(usize, usize); 4] = [
        (GET_PRIORITY, 0),
        (SET_PRIORITY, 0),
        (GET_IO_PRIORITY, 1),
        (SET_IO_PRIORITY, 1),
    ];
    let kind = ONE.iter().find(|(call, _)| *call == number);
    if let Some((_, one)) = kind
        && arguments[0] != *one
    {
        return EPERM;
    }
    if let Some(whose) = arguments.get_mut(usize::from(kind.is_some()))
        && *whose == sys::process() as usize
    {
        *whose = 0;
    }
    plain(number, arguments)
}

/// Makes a call. If it may wait for signals, its sets and masks are replaced, so that no signal of the
/// program is delivered to this thread.
fn narrowed(number: usize, mut arguments: [usize; 6]) -> isize {
    const RT_SIGSUSPEND: usize = 130;
    const SIGNALFD: usize = 282;
    // Calls with a temporary signal mask, and the index of that argument: pselect6, ppoll, epoll_pwait,
    // epoll_pwait2, io_pgetevents.
    const MASKS: [(usize, usize); 5] = [(270, 5), (271, 3), (281, 4), (441, 4), (333, 5)];
    let none = 0_u64;
    let mask = handover::MASK;
    match number {
        number::RT_SIGTIMEDWAIT if arguments[0] != 0 => {
            arguments[0] = (&raw const none) as usize;
        }
        SIGNALFD | number::SIGNALFD4 if arguments[1] != 0 => {
            arguments[1] = (&raw const none) as usize;
        }
        RT_SIGSUSPEND if arguments[0] != 0 => arguments[0] = (&raw const mask) as usize,
        _ => {
            let mask = MASKS.iter().find(|(call, _)| *call == number);
            if let Some(place) = mask.and_then(|(_, at)| arguments.get_mut(*at)) {
                *place = 0;
            }
        }
    }
    plain(number, arguments)
}

/// Makes the call as it is.
fn plain(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the scavenger asks for it as it would ask the kernel, on its own thread; calls that concern
    // the program were handled before.
    unsafe { call(number, arguments) }
}

/// Protection of a mapping: writable.
const WRITE: usize = 2;

/// Bytes that all scavengers together have mapped beyond their own shares: writable, at least.
static SHARED: AtomicU64 = AtomicU64::new(0);

/// True if scavengers may have that many bytes at all.
fn may_have(bytes: u64) -> bool {
    let most = page::control_page().map_or(0, |control_page| control_page.memory);
    most == 0 || bytes <= most
}

/// Bytes that a scavenger maps or unmaps.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    /// Bytes of addresses.
    addresses: u64,
    /// Bytes of memory that the kernel may have to provide.
    memory: u64,
}

impl Bytes {
    const fn memory(bytes: u64) -> Self {
        Self {
            addresses: bytes,
            memory: bytes,
        }
    }

    /// Bytes of a mapping. Shared pages of a file count as no memory, since the kernel can take them back.
    const fn mapped(bytes: u64, protection: usize, flags: usize) -> Self {
        const PRIVATE: usize = 2;
        const ANONYMOUS: usize = 0x20;
        let needs_memory = protection & WRITE != 0 && flags & (PRIVATE | ANONYMOUS) != 0;
        Self {
            addresses: bytes,
            memory: if needs_memory { bytes } else { 0 },
        }
    }

    /// Charges the bytes to the scavenger's own share, then to the common one; `false` if too few are left.
    fn charge(self, request: Request) -> bool {
        let mapped = request.long(offset_of!(ScavengerRequest, mapped));
        if !add_within(mapped, self.addresses, request.get().memory) {
            return false;
        }
        let most = page::control_page().map_or(0, |control_page| control_page.memory);
        let charged = request.long(offset_of!(ScavengerRequest, held));
        let before = charged.load(Ordering::Relaxed);
        let after = before.saturating_add(self.memory);
        if most > 0 && !add_within(&SHARED, shared_between(before, after), most - most / 2) {
            subtract(mapped, self.addresses);
            return false;
        }
        // Without a lock: a scavenger makes one call at a time.
        charged.store(after, Ordering::Relaxed);
        true
    }

    fn give_back(self, request: Request) {
        subtract(
            request.long(offset_of!(ScavengerRequest, mapped)),
            self.addresses,
        );
        let charged = request.long(offset_of!(ScavengerRequest, held));
        let before = charged.load(Ordering::Relaxed);
        subtract(charged, self.memory);
        let after = charged.load(Ordering::Relaxed);
        subtract(&SHARED, shared_between(after, before));
    }
}

/// Bytes of the common share that a scavenger holds more with `much` than with `little`.
fn shared_between(little: u64, much: u64) -> u64 {
    let each = page::control_page().map_or(0, |control_page| control_page.memory_each);
    much.saturating_sub(each.max(little))
}

/// Adds `bytes` to a sum unless the sum would exceed `most`.
fn add_within(sum: &AtomicU64, bytes: u64, most: u64) -> bool {
    let increased = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= most);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increased)
        .is_ok()
}

fn subtract(sum: &AtomicU64, bytes: u64) {
    let reduced = |now: u64| Some(now.saturating_sub(bytes));
    let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reduced);
}

/// Fills a result buffer of `words` words with zeros, except that the second word becomes `second`. Returns
/// 0, or `EFAULT` if the buffer cannot be read.
fn pretend(place: usize, words: usize, second: u64) -> isize {
    if place == 0 {
        return 0;
    }
    if !sys::readable(place as u64) {
        return EFAULT;
    }
    for index in 0..words {
        let word = if index == 1 { second } else { 0 };
        // SAFETY: the scavenger gave the buffer to be written.
        unsafe { memory::put(place + 8 * index, word) };
    }
    0
}

/// A signal that the scavenger sends: to itself it is its end, to others it is refused.
fn signal(
    scavenger: &'static Scavenger,
    process: usize,
    thread: Option<usize>,
    signal: usize,
) -> isize {
    let itself = process == sys::process() as usize
        && thread.is_none_or(|thread| thread == sys::thread() as usize);
    match signal {
        0 => 0,
        1..=64 if itself => finish(scavenger, ScavengerProcessState::Killed, signal as u32),
        1..=64 => EPERM,
        _ => EINVAL,
    }
}

fn brk(scavenger: &Scavenger, request: Request, wanted: u64) -> isize {
    let [begin, now, end] = &scavenger.heap;
    let (begin, old, end) = (
        begin.load(Ordering::Relaxed),
        now.load(Ordering::Relaxed),
        end.load(Ordering::Relaxed),
    );
    if !(begin..=end).contains(&wanted) {
        return old as isize;
    }
    const READ_WRITE: usize = 3;
    let page = |address: u64| address.next_multiple_of(4096);
    let (from, to) = (page(old), page(wanted));
    if to > from {
        let more = Bytes::memory(to - from);
        if !more.charge(request) {
            return old as isize;
        }
        let length = (to - from) as usize;
        let opened = plain(
            number::MPROTECT,
            [from as usize, length, READ_WRITE, 0, 0, 0],
        );
        if opened != 0 {
            more.give_back(request);
            return old as isize;
        }
    } else if from > to {
        const DONTNEED: usize = 4;
        let length = (from - to) as usize;
        // Pages must be zero when they are used again.
        let _ = plain(number::MADVISE, [to as usize, length, DONTNEED, 0, 0, 0]);
        Bytes::memory(from - to).give_back(request);
    }
    now.store(wanted, Ordering::Relaxed);
    wanted as isize
}

/// `arch_prctl`: a scavenger may set the base of `fs`, but not that of `gs`.
fn thread_pointer(scavenger: &'static Scavenger, arguments: [usize; 6]) -> isize {
    const SET_FS: usize = 0x1002;
    const GET_FS: usize = 0x1003;
    let [what, ..] = arguments;
    match what {
        SET_FS => {
            let set = plain(number::ARCH_PRCTL, arguments);
            if set == 0 {
                scavenger.home_thread().set_fs(arguments[1] as u64);
            }
            set
        }
        GET_FS => plain(number::ARCH_PRCTL, arguments),
        _ => EINVAL,
    }
}

/// `prctl`: permits only what affects this thread alone.
fn process_control(arguments: [usize; 6]) -> isize {
    const SET_NAME: usize = 15;
    const GET_NAME: usize = 16;
    const SET_TIMER_SLACK: usize = 29;
    const GET_TIMER_SLACK: usize = 30;
    const SET_VMA: usize = 0x5356_4d41;
    let [what, ..] = arguments;
    match what {
        SET_NAME | GET_NAME | SET_TIMER_SLACK | GET_TIMER_SLACK | SET_VMA => {
            plain(number::PRCTL, arguments)
        }
        _ => EINVAL,
    }
}
