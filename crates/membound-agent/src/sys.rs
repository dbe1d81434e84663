//! System calls, made directly: the agent has no libc, no `errno`, and must not touch the
//! program's.
//!
//! Wrappers whose arguments the type system can vouch for are safe; those that change the address
//! space are not.

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// An error number of the kernel, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) u32);

impl Errno {
    pub(crate) const EINTR: Self = Self(4);
    pub(crate) const EIO: Self = Self(5);
    pub(crate) const EAGAIN: Self = Self(11);
    pub(crate) const EBUSY: Self = Self(16);
    pub(crate) const ECANCELED: Self = Self(125);
    pub(crate) const EEXIST: Self = Self(17);
    pub(crate) const EINVAL: Self = Self(22);
    pub(crate) const ENOSPC: Self = Self(28);
    pub(crate) const EPROTO: Self = Self(71);
}

/// System call numbers.
pub(crate) mod number {
    pub(crate) const READ: usize = 0;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const POLL: usize = 7;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MPROTECT: usize = 10;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const RT_SIGACTION: usize = 13;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const PREAD64: usize = 17;
    pub(crate) const PWRITE64: usize = 18;
    pub(crate) const MADVISE: usize = 28;
    pub(crate) const NANOSLEEP: usize = 35;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const SENDTO: usize = 44;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const GETSOCKOPT: usize = 55;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const FORK: usize = 57;
    pub(crate) const VFORK: usize = 58;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const EXIT: usize = 60;
    pub(crate) const RT_SIGPENDING: usize = 127;
    pub(crate) const RT_SIGTIMEDWAIT: usize = 128;
    pub(crate) const SIGALTSTACK: usize = 131;
    pub(crate) const ARCH_PRCTL: usize = 158;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const CAPGET: usize = 125;
    pub(crate) const MLOCKALL: usize = 151;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const MLOCK2: usize = 325;
    pub(crate) const GETTID: usize = 186;
    pub(crate) const FUTEX: usize = 202;
    pub(crate) const GETDENTS64: usize = 217;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const SCHED_GETSCHEDULER: usize = 145;
    pub(crate) const CLOCK_NANOSLEEP: usize = 230;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const EPOLL_WAIT: usize = 232;
    pub(crate) const EPOLL_PWAIT: usize = 281;
    pub(crate) const TGKILL: usize = 234;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const UNSHARE: usize = 272;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const SETNS: usize = 308;
    pub(crate) const RT_TGSIGQUEUEINFO: usize = 297;
    pub(crate) const PKEY_MPROTECT: usize = 329;
    pub(crate) const SCHED_SETATTR: usize = 314;
    pub(crate) const SCHED_GETATTR: usize = 315;
    pub(crate) const EXECVEAT: usize = 322;
    pub(crate) const SECCOMP: usize = 317;
    pub(crate) const MEMBARRIER: usize = 324;
    pub(crate) const CLONE3: usize = 435;
    pub(crate) const CLOSE_RANGE: usize = 436;
    pub(crate) const SCHED_GETAFFINITY: usize = 204;
}

const AT_FDCWD: isize = -100;
const AT_EMPTY_PATH: usize = 0x1000;

/// Makes a system call. Returns the kernel's result: negative error numbers from -4095 on.
///
/// # Safety
///
/// The call and its arguments must be as sound for the program as they would be in assembly.
#[inline(always)]
pub(crate) unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel changes rax, rcx, r11 and what the caller vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Turns a system call's result into a value or an error number.
pub(crate) fn check(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno(result.unsigned_abs() as u32))
    } else {
        Ok(result.cast_unsigned())
    }
}

/// A descriptor that is closed when dropped, so that none of the agent's stays in the program.
#[derive(Debug)]
pub(crate) struct Descriptor(i32);

impl Descriptor {
    pub(crate) fn new(number: usize) -> Self {
        Self(number as i32)
    }

    pub(crate) fn raw(&self) -> usize {
        self.0 as usize
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the agent has opened the descriptor, and closes it only here.
        let _ = unsafe { call(number::CLOSE, [self.raw(), 0, 0, 0, 0, 0]) };
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Read,
    ReadWrite,
    Directory,
}

/// Opens `path`, close-on-exec.
pub(crate) fn open(path: &CStr, how: Open) -> Result<Descriptor, Errno> {
    const CLOEXEC: usize = 0o2_000_000;
    const DIRECTORY: usize = 0o200_000;
    const NOCTTY: usize = 0o400;
    const NONBLOCK: usize = 0o4000;
    let flags = CLOEXEC
        | match how {
            // If the path is a pipe, opening it must not block the program.
            Open::Read => NOCTTY | NONBLOCK,
            Open::ReadWrite => 2,
            Open::Directory => DIRECTORY,
        };
    loop {
        // SAFETY: the path is a C string that outlives the call.
        let result = unsafe {
            call(
                number::OPENAT,
                [
                    AT_FDCWD.cast_unsigned(),
                    path.as_ptr() as usize,
                    flags,
                    0,
                    0,
                    0,
                ],
            )
        };
        match check(result) {
            Err(Errno::EINTR) => {}
            other => return other.map(Descriptor::new),
        }
    }
}

/// Reads once and returns the number of bytes, which may be fewer than `room` has.
pub(crate) fn read(file: &Descriptor, room: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the kernel writes into `room` only.
        let result = unsafe {
            call(
                number::READ,
                [file.raw(), room.as_mut_ptr() as usize, room.len(), 0, 0, 0],
            )
        };
        match check(result) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Reads directory entries as the kernel packs them.
pub(crate) fn directory_entries(directory: &Descriptor, room: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes into `room` only.
    let result = unsafe {
        call(
            number::GETDENTS64,
            [
                directory.raw(),
                room.as_mut_ptr() as usize,
                room.len(),
                0,
                0,
                0,
            ],
        )
    };
    check(result)
}

/// Reads all of `room` from `offset`.
pub(crate) fn read_all_at(file: &Descriptor, room: &mut [u8], offset: u64) -> Result<(), Errno> {
    let (start, length) = (room.as_mut_ptr() as usize, room.len());
    // SAFETY: the kernel writes into `room` only.
    unsafe { transfer_all(number::PREAD64, file, start, length, offset) }
}

/// Writes all of `bytes` at `offset`.
///
/// # Safety
///
/// Where the file is the process's own memory, `bytes` must be right for that place.
pub(crate) unsafe fn write_all_at(
    file: &Descriptor,
    bytes: &[u8],
    offset: u64,
) -> Result<(), Errno> {
    let (start, length) = (bytes.as_ptr() as usize, bytes.len());
    // SAFETY: the caller vouches for the bytes and their place.
    unsafe { transfer_all(number::PWRITE64, file, start, length, offset) }
}

/// Repeats `transfer`, a `pread64` or `pwrite64`, until all `length` bytes at `start` are transferred.
///
/// # Safety
///
/// The caller may read or write the bytes at `start`, and they are right for their place in the file.
unsafe fn transfer_all(
    transfer: usize,
    file: &Descriptor,
    start: usize,
    length: usize,
    offset: u64,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        let place = offset as usize + done;
        // SAFETY: the range lies inside the caller's.
        let result = unsafe {
            call(
                transfer,
                [file.raw(), start + done, length - done, place, 0, 0],
            )
        };
        match check(result) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => done += count,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The kernel's `struct stat`, up to the fields that are used.
#[derive(Clone, Copy)]
#[repr(C)]
struct Stat {
    device: u64,
    inode: u64,
    links: u64,
    head: [u64; 3],
    size: u64,
    rest: [u64; 11],
}

impl Stat {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        links: 0,
        head: [0; 3],
        size: 0,
        rest: [0; 11],
    };
}

/// Size of the file in bytes.
pub(crate) fn size(file: &Descriptor) -> Result<u64, Errno> {
    let mut stat = Stat::EMPTY;
    // SAFETY: the kernel writes one `struct stat`, for which there is room.
    let result = unsafe {
        call(
            number::FSTAT,
            [file.raw(), (&raw mut stat) as usize, 0, 0, 0, 0],
        )
    };
    check(result).map(|_| stat.size)
}

/// Number of the process's threads; 0 if it cannot be read.
pub(crate) fn threads() -> u64 {
    let mut stat = Stat::EMPTY;
    let path = c"/proc/self/task";
    // SAFETY: the path is a C string and the kernel writes one `struct stat`.
    let result = unsafe {
        call(
            number::NEWFSTATAT,
            [
                AT_FDCWD.cast_unsigned(),
                path.as_ptr() as usize,
                (&raw mut stat) as usize,
                0,
                0,
                0,
            ],
        )
    };
    // A directory has two links, and one more for each directory in it.
    if result == 0 {
        stat.links.saturating_sub(2)
    } else {
        0
    }
}

/// The process's number.
pub(crate) fn process() -> u32 {
    // SAFETY: it takes no arguments and changes nothing.
    (unsafe { call(number::GETPID, [0; 6]) }) as u32
}

/// The calling thread's number.
pub(crate) fn thread() -> u32 {
    // SAFETY: it takes no arguments and changes nothing.
    (unsafe { call(number::GETTID, [0; 6]) }) as u32
}

/// Registers the process for [`barrier`].
pub(crate) fn register_barrier() -> Result<(), Errno> {
    const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 6;
    membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)
}

/// Serialises every core that runs the process: none continues with instructions that it fetched before.
pub(crate) fn barrier() -> Result<(), Errno> {
    const PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 5;
    membarrier(PRIVATE_EXPEDITED_SYNC_CORE)
}

fn membarrier(command: usize) -> Result<(), Errno> {
    // SAFETY: it touches no memory.
    let result = unsafe { call(number::MEMBARRIER, [command, 0, 0, 0, 0, 0]) };
    check(result).map(|_| ())
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn monotonic_ns() -> u64 {
    const MONOTONIC: usize = 1;
    clock_ns(MONOTONIC)
}

/// CPU time of a thread of the process in nanoseconds; `None` if it has ended.
pub(crate) fn cpu_ns(thread: u32) -> Option<u64> {
    // The kernel's numbering of thread clocks.
    const PER_THREAD_SCHED: usize = 6;
    let clock = (!(thread as usize)) << 3 | PER_THREAD_SCHED;
    read_clock(clock & 0xffff_ffff)
}

/// Nanoseconds that the calling thread has run.
pub(crate) fn thread_cpu_ns() -> u64 {
    const THREAD_CPUTIME: usize = 3;
    clock_ns(THREAD_CPUTIME)
}

/// CPU time of all threads of the process, in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    const PROCESS_CPUTIME: usize = 2;
    clock_ns(PROCESS_CPUTIME)
}

/// Time of a clock of the kernel in nanoseconds; 0 if there is no such clock.
pub(crate) fn clock_ns(clock: usize) -> u64 {
    read_clock(clock).unwrap_or(0)
}

fn read_clock(clock: usize) -> Option<u64> {
    let mut time = [0_u64; 2];
    // SAFETY: the kernel writes one `struct timespec`.
    let got = unsafe {
        call(
            number::CLOCK_GETTIME,
            [clock, (&raw mut time) as usize, 0, 0, 0, 0],
        )
    };
    (got == 0).then(|| time[0].wrapping_mul(1_000_000_000).wrapping_add(time[1]))
}

/// Waits on a futex until `word` differs from `value`, a wake-up, a signal, or `limit_ns` has passed
/// (`u64::MAX`: no limit).
pub(crate) fn wait_while(word: &AtomicU32, value: u32, limit_ns: u64) {
    const WAIT_PRIVATE: usize = 128;
    let limit = [limit_ns / 1_000_000_000, limit_ns % 1_000_000_000];
    let limit = if limit_ns == u64::MAX {
        0
    } else {
        (&raw const limit) as usize
    };
    // SAFETY: word and limit outlive the call.
    let _ = unsafe {
        call(
            number::FUTEX,
            [
                (&raw const *word) as usize,
                WAIT_PRIVATE,
                value as usize,
                limit,
                0,
                0,
            ],
        )
    };
}

/// Sleeps for `ns` nanoseconds, or until a signal handler has run.
pub(crate) fn nap(ns: u64) {
    // No thread wakes this futex word.
    let never_changes = AtomicU32::new(0);
    wait_while(&never_changes, 0, ns);
}

/// Wakes all threads that wait for `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    const WAKE_PRIVATE: usize = 129;
    // SAFETY: the word is only an address to the kernel here.
    let _ = unsafe {
        call(
            number::FUTEX,
            [
                (&raw const *word) as usize,
                WAKE_PRIVATE,
                i32::MAX as usize,
                0,
                0,
                0,
            ],
        )
    };
}

/// Sends a plain signal to a thread of the process.
pub(crate) fn send_signal(process: u32, thread: u32, signal: u32) -> bool {
    // SAFETY: the caller knows what the signal does here.
    let result = unsafe {
        call(
            number::TGKILL,
            [process as usize, thread as usize, signal as usize, 0, 0, 0],
        )
    };
    result == 0
}

/// True if a thread of this number exists in this process, or in another one that the kernel lets this
/// process see.
pub(crate) fn thread_exists_anywhere(process: u32, thread: u32) -> bool {
    if thread_exists(process, thread) {
        return true;
    }
    const TKILL: usize = 200;
    const ESRCH: isize = -3;
    // SAFETY: signal 0 only checks.
    let result = unsafe { call(TKILL, [thread as usize, 0, 0, 0, 0, 0]) };
    result != ESRCH
}

/// True if the process has this thread.
pub(crate) fn thread_exists(process: u32, thread: u32) -> bool {
    send_signal(process, thread, 0)
}

/// The kernel's `siginfo` of a queued signal.
#[repr(C)]
struct Information {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    process: u32,
    user: u32,
    value: u64,
    rest: [u64; 12],
}

/// Sends a signal that this process has received to one of its threads, with its `information`: the address
/// of the kernel's 128 bytes.
pub(crate) fn send_again(to: u32, signal: u32, information: usize) {
    // SAFETY: the information has the kernel's layout and outlives the call. A process may send its own
    // threads any information.
    let _ = unsafe {
        call(
            number::RT_TGSIGQUEUEINFO,
            [
                process() as usize,
                to as usize,
                signal as usize,
                information,
                0,
                0,
            ],
        )
    };
}

/// `si_code` of a signal that carries a value.
pub(crate) const SI_QUEUE: i32 = -1;

/// True if a signal with this information was sent by [`queue_signal`] with the value `carried`.
pub(crate) fn is_queued(code: i32, process: u32, value: u64, carried: u64) -> bool {
    code == SI_QUEUE && value == carried && process == self::process()
}

/// True if the kernel has delivered a signal without the information that its sender gave it, since as many
/// signals are pending as the user may have (`RLIMIT_SIGPENDING`).
pub(crate) const fn is_information_lost(code: i32, process: u32) -> bool {
    const SI_USER: i32 = 0;
    code == SI_USER && process == 0
}

/// Sends a signal that carries a value to a thread of the process. It has no effect if the thread has ended
/// or has such a signal pending, so the caller must check again.
pub(crate) fn queue_signal(process: u32, thread: u32, signal: u32, value: u64) {
    let information = Information {
        signal: signal as i32,
        error: 0,
        code: SI_QUEUE,
        padding: 0,
        process,
        user: 0,
        value,
        rest: [0; 12],
    };
    // SAFETY: the structure has the kernel's 128 bytes and outlives the call.
    let _ = unsafe {
        call(
            number::RT_TGSIGQUEUEINFO,
            [
                process as usize,
                thread as usize,
                signal as usize,
                (&raw const information) as usize,
                0,
                0,
            ],
        )
    };
}

/// Memory of the agent, mapped from the kernel, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    address: usize,
    length: usize,
    is_private: bool,
}

/// Bytes of memory that the agent has mapped: shared memory and patches, and private data.
static MAPPED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Counts memory that the launcher has had mapped (`bytes`) or unmapped (`-bytes`). None of it is data.
pub(crate) fn count_mapped(bytes: isize) {
    MAPPED[0].fetch_add(bytes.cast_unsigned(), Ordering::Relaxed);
}

/// Bytes that the agent has mapped, and the private ones among them.
pub(crate) fn mapped_bytes() -> (u64, u64) {
    let [shared, private] = [0, 1].map(|which: usize| MAPPED[which].load(Ordering::Relaxed) as u64);
    (shared + private, private)
}

impl Scratch {
    /// Zeroed anonymous memory.
    pub(crate) fn new(length: usize) -> Result<Self, Errno> {
        const PRIVATE_ANONYMOUS: usize = 0x22;
        Self::map(length, 3, PRIVATE_ANONYMOUS, usize::MAX)
    }

    /// Zeroed memory that uses no physical memory before it is touched.
    pub(crate) fn untouched(length: usize, protection: Protection) -> Result<Self, Errno> {
        const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
        Self::map(
            length,
            protection as usize,
            PRIVATE_ANONYMOUS_NORESERVE,
            usize::MAX,
        )
    }

    /// The whole of `file`, shared; read-only if it cannot be written.
    pub(crate) fn file(file: &Descriptor, length: usize) -> Result<(Self, Access), Errno> {
        const SHARED: usize = 1;
        match Self::map(length, 3, SHARED, file.raw()) {
            Ok(map) => Ok((map, Access::ReadWrite)),
            Err(_) => Self::map(length, 1, SHARED, file.raw()).map(|map| (map, Access::Read)),
        }
    }

    fn map(
        length: usize,
        protection: usize,
        flags: usize,
        descriptor: usize,
    ) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a free address range, so the program's memory is not touched.
        let result = unsafe { call(number::MMAP, [0, length, protection, flags, descriptor, 0]) };
        let address = check(result)?;
        const PRIVATE: usize = 2;
        let is_private = flags & PRIVATE != 0;
        MAPPED[usize::from(is_private)].fetch_add(length, Ordering::Relaxed);
        Ok(Self {
            address,
            length,
            is_private,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Makes forked children find it zeroed.
    pub(crate) fn wipe_on_fork(&self) -> Result<(), Errno> {
        const WIPE_ON_FORK: usize = 18;
        // SAFETY: the mapping is ours; in this process nothing changes.
        let result = unsafe {
            call(
                number::MADVISE,
                [self.address, self.length, WIPE_ON_FORK, 0, 0, 0],
            )
        };
        check(result).map(|_| ())
    }

    /// The memory as bytes. Only for anonymous memory, to which no other reference exists.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let start = self.address as *mut u8;
        // SAFETY: the mapping has `length` bytes, lives as long as `self` and is borrowed
        // exclusively.
        unsafe { core::slice::from_raw_parts_mut(start, self.length) }
    }

    /// Keeps the memory mapped for ever; returns its address.
    pub(crate) fn keep(self) -> usize {
        let address = self.address;
        core::mem::forget(self);
        address
    }
}

/// Protection of new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Protection {
    None = 0,
    ReadWrite = 3,
}

/// Permitted access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        MAPPED[usize::from(self.is_private)].fetch_sub(self.length, Ordering::Relaxed);
        // SAFETY: the mapping is ours and no reference into it can outlive `self`.
        let _ = unsafe { call(number::MUNMAP, [self.address, self.length, 0, 0, 0, 0]) };
    }
}

/// Blocks every signal of the calling thread until dropped: a handler that left a conversation by a long
/// jump would leave its descriptor open.
#[derive(Debug)]
pub(crate) struct Quiet(u64);

impl Quiet {
    pub(crate) fn new() -> Self {
        Self(set_mask(u64::MAX))
    }

    /// The mask that is restored.
    pub(crate) fn before(&self) -> u64 {
        self.0
    }

    /// Removes these signals from the mask that is restored.
    pub(crate) fn unblock(&mut self, signals: u64) {
        self.0 &= !signals;
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Number of the CPU that the calling thread runs on.
pub(crate) fn cpu() -> Option<u16> {
    const GETCPU: usize = 309;
    let mut cpu = 0_u32;
    // SAFETY: the kernel writes one word.
    let result = unsafe { call(GETCPU, [(&raw mut cpu) as usize, 0, 0, 0, 0, 0]) };
    (result == 0).then(|| u16::try_from(cpu).ok())?
}

/// True if eight bytes at `address` can be read, according to the kernel.
pub(crate) fn readable(address: u64) -> bool {
    const NO_SUCH_WAY: usize = 99;
    const EFAULT: isize = -14;
    // An invalid way to change the mask: the kernel reads the mask before it refuses.
    // SAFETY: nothing is changed.
    let result = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [NO_SUCH_WAY, address as usize, 0, 8, 0, 0],
        )
    };
    result != EFAULT
}

/// Replaces the calling thread's signal mask and returns the previous one.
pub(crate) fn set_mask(mask: u64) -> u64 {
    const SETMASK: usize = 2;
    let mut before = 0_u64;
    // SAFETY: both masks are 8 bytes that outlive the call.
    let _ = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [
                SETMASK,
                (&raw const mask) as usize,
                (&raw mut before) as usize,
                8,
                0,
                0,
            ],
        )
    };
    before
}

/// Opens the file that an `openat`-like call names by descriptor and path.
pub(crate) fn open_at(directory: usize, path: usize, flags: usize) -> Result<Descriptor, Errno> {
    const CLOEXEC_NONBLOCK: usize = 0o2_004_400;
    if flags & AT_EMPTY_PATH != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the kernel refuses a path that cannot be read.
    let result = unsafe { call(number::OPENAT, [directory, path, CLOEXEC_NONBLOCK, 0, 0, 0]) };
    check(result).map(Descriptor::new)
}
