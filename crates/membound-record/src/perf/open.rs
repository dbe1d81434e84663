//! Opens and controls perf events.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Attr, Error};

const FLAG_CLOEXEC: libc::c_ulong = 1 << 3;

const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_REFRESH: libc::c_ulong = 0x2402;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

/// The thread and CPU of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Number of the thread; 0 for the calling thread.
    pub(crate) tid: u32,
    /// The event counts on this CPU only; `None`: wherever the thread runs.
    pub(crate) cpu: Option<u32>,
}

/// An open event.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Event {
    /// Opens an event. The kernel's error is returned as it is: the caller knows what it means for its
    /// request.
    pub(crate) fn open(attr: &Attr, target: Target) -> io::Result<Self> {
        let tid = i32::try_from(target.tid).map_err(|_| io::ErrorKind::InvalidInput)?;
        let cpu = match target.cpu {
            Some(cpu) => i32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?,
            None => -1,
        };
        Self::open_of(attr, tid, cpu)
    }

    /// Opens an event for all threads on a CPU, or on all CPUs that share its PMU.
    pub(crate) fn open_on_cpu(attr: &Attr, cpu: u32) -> io::Result<Self> {
        const ALL_THREADS: i32 = -1;
        let cpu = i32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
        Self::open_of(attr, ALL_THREADS, cpu)
    }

    fn open_of(attr: &Attr, tid: i32, cpu: i32) -> io::Result<Self> {
        // SAFETY: the kernel reads `size` bytes of `attr`, which is its whole length, and returns a new
        // descriptor.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(attr),
                tid,
                cpu,
                -1,
                FLAG_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = i32::try_from(fd).expect("a descriptor fits into an int");
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Enables the event until it has occurred `times` more.
    pub(crate) fn enable_for(&self, times: u32) -> io::Result<()> {
        self.control(IOC_REFRESH, libc::c_ulong::from(times))
    }

    /// Enables or disables the event in all threads that have inherited it.
    pub(crate) fn run(&self, runs: bool) -> io::Result<()> {
        self.control(if runs { IOC_ENABLE } else { IOC_DISABLE }, 0)
    }

    /// Redirects its records into the ring of `other`.
    pub(crate) fn write_into(&self, other: &Self) -> io::Result<()> {
        let fd = libc::c_ulong::from(other.0.as_raw_fd().unsigned_abs());
        self.control(IOC_SET_OUTPUT, fd)
    }

    /// Its count, including threads that inherited it and have ended.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        let read = rustix::io::read(&self.0, &mut count)?;
        if read == count.len() {
            Ok(u64::from_ne_bytes(count))
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these requests take an integer and touch no memory of ours. (musl: an int.)
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Turns the error of an event that was requested for the calling thread into its meaning.
pub(crate) fn refused(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EACCES) => Error::NotPermitted { level: paranoia() },
        // The kernel's own setting gives `EACCES`; filters give `EPERM`.
        Some(libc::EPERM) => Error::Filtered,
        Some(libc::ENOSYS) => Error::Unsupported {
            reason: "the kernel has no perf_event_open".to_owned(),
        },
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV) => Error::Unsupported {
            reason: format!("the kernel does not know this event ({error})"),
        },
        _ => Error::System {
            call: "perf_event_open",
            error,
        },
    }
}

/// The same for another process, if the calling thread may have the event for itself.
pub(crate) fn refused_of(error: io::Error, pid: u32) -> Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => Error::Gone { pid },
        Some(libc::EACCES | libc::EPERM) => Error::OtherUser { pid },
        _ => Error::System {
            call: "perf_event_open",
            error,
        },
    }
}

/// `kernel.perf_event_paranoid`.
fn paranoia() -> Option<i32> {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    text.trim().parse().ok()
}
