//! The system call `perf_event_open`: attributes, groups, scaling, and the meaning of its errors.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use membound_types::{NotMeasured, Outcome};

use super::encoding::Code;
use super::event::{Event, Reading};
use crate::{Error, Root, hypervisor};

/// `struct perf_event_attr` up to and with `sig_data`, which is its version 7; older kernels accept
/// it as long as the fields that they do not know are zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    type_number: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    rest: [u64; 7],
}

const SIZE: u32 = size_of::<Attr>() as u32;
const _: () = assert!(SIZE == 128);

const READ_TOTAL_TIME_ENABLED: u64 = 1;
const READ_TOTAL_TIME_RUNNING: u64 = 2;
const READ_GROUP: u64 = 8;

const FLAG_DISABLED: u64 = 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const TYPE_BREAKPOINT: u32 = 5;

const OPEN_CLOEXEC: libc::c_ulong = 8;

/// `_IO('$', number)`: POWER has a bit for requests without an argument.
const fn request(number: libc::c_ulong) -> libc::c_ulong {
    let direction = if cfg!(target_arch = "powerpc64") {
        1 << 29
    } else {
        0
    };
    direction | 0x24 << 8 | number
}
const IOC_ENABLE: libc::c_ulong = request(0);
const IOC_DISABLE: libc::c_ulong = request(1);
const IOC_RESET: libc::c_ulong = request(3);
const IOC_FLAG_GROUP: libc::c_ulong = 1;

/// Opens an event of the calling thread on any CPU.
fn open(attr: &Attr, group: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size` bytes of the attributes, which is their length.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            0,
            -1,
            group,
            OPEN_CLOEXEC,
        )
    };
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made the descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Events that the kernel puts on counters together or not at all.
#[derive(Debug)]
pub(super) struct Group {
    /// The first member leads the group.
    members: Vec<(Event, OwnedFd)>,
    /// Times enabled and running at the last reset, because a reset clears only the counts.
    since: (u64, u64),
}

impl Group {
    pub(super) fn lead(event: Event, code: Code) -> Result<Self, NotMeasured> {
        let fd =
            open(&attributes(code, FLAG_DISABLED), -1).map_err(|error| refusal(event, &error))?;
        Ok(Self {
            members: vec![(event, fd)],
            since: (0, 0),
        })
    }

    /// Adds an event; `false` where the PMU has no counter left for it in this group.
    pub(super) fn join(&mut self, event: Event, code: Code) -> Result<bool, NotMeasured> {
        match open(&attributes(code, 0), self.leader()) {
            Ok(fd) => {
                self.members.push((event, fd));
                Ok(true)
            }
            // A hybrid processor also returns this error for a group over two of its PMUs.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(refusal(event, &error)),
        }
    }

    fn leader(&self) -> RawFd {
        self.members[0].1.as_raw_fd()
    }

    pub(super) fn enable(&self) -> Result<(), Error> {
        self.control(IOC_ENABLE, "ioctl(PERF_EVENT_IOC_ENABLE)")
    }

    pub(super) fn disable(&self) -> Result<(), Error> {
        self.control(IOC_DISABLE, "ioctl(PERF_EVENT_IOC_DISABLE)")
    }

    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.control(IOC_RESET, "ioctl(PERF_EVENT_IOC_RESET)")?;
        let raw = self.raw()?;
        self.since = (raw.enabled, raw.running);
        Ok(())
    }

    fn control(&self, request: libc::c_ulong, call: &'static str) -> Result<(), Error> {
        // SAFETY: these requests take a flag and no pointer.
        let result = unsafe { libc::ioctl(self.leader(), request as _, IOC_FLAG_GROUP) };
        if result < 0 {
            return Err(Error::last_call(call));
        }
        Ok(())
    }

    pub(super) fn read(&self) -> Result<Vec<Reading>, Error> {
        let raw = self.raw()?;
        let enabled = raw.enabled.saturating_sub(self.since.0);
        let running = raw.running.saturating_sub(self.since.1);
        Ok(self
            .members
            .iter()
            .zip(raw.values)
            .map(|(&(event, _), value)| reading(event, value, enabled, running))
            .collect())
    }

    fn raw(&self) -> Result<Raw, Error> {
        let mut bytes = vec![0u8; 8 * (3 + self.members.len())];
        let got =
            rustix::io::read(&self.members[0].1, &mut bytes).map_err(|error| Error::Call {
                call: "read of a counter group".to_owned(),
                source: error.into(),
            })?;
        let words: Vec<u64> = bytes[..got]
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes")))
            .collect();
        match words.split_first_chunk::<3>() {
            Some((&[count, enabled, running], values)) if values.len() as u64 == count => Ok(Raw {
                enabled,
                running,
                values: values.to_vec(),
            }),
            _ => Err(Error::Call {
                call: "read of a counter group".to_owned(),
                source: io::ErrorKind::UnexpectedEof.into(),
            }),
        }
    }
}

struct Raw {
    enabled: u64,
    running: u64,
    values: Vec<u64>,
}

/// Scales a count up by the share of time during which it was on a counter.
fn reading(event: Event, value: u64, enabled: u64, running: u64) -> Reading {
    let running_share = if enabled == 0 {
        0.0
    } else {
        (running as f64 / enabled as f64).min(1.0)
    };
    let count = if running == 0 {
        Outcome::missing(format!(
            "{event} were never on a counter while they were enabled"
        ))
    } else {
        Outcome::Known(value as f64 / running_share)
    };
    Reading {
        event,
        count,
        running_share,
    }
}

fn attributes(code: Code, flags: u64) -> Attr {
    Attr {
        type_number: code.type_number,
        size: SIZE,
        config: code.config,
        read_format: READ_GROUP | READ_TOTAL_TIME_ENABLED | READ_TOTAL_TIME_RUNNING,
        flags: flags | FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV,
        ..Attr::default()
    }
}

/// `kernel.perf_event_paranoid`; `None` where the kernel has no perf events.
#[must_use]
pub fn paranoid(root: &Root) -> Option<i32> {
    root.number("proc/sys/kernel/perf_event_paranoid")
}

/// Whether a thread of this process can count core cycles on a hardware counter.
///
/// # Errors
/// The reason why it cannot, and what would change that.
pub fn hardware_cycles() -> Result<(), NotMeasured> {
    Group::lead(
        Event::Cycles,
        Code {
            type_number: TYPE_HARDWARE,
            config: 0,
        },
    )
    .map(drop)
}

/// Whether the kernel's CPU-clock event, which samples without a PMU, can be opened.
///
/// # Errors
/// The reason why it cannot, and what would change that.
pub fn software_clock() -> Result<(), NotMeasured> {
    let attr = attributes(
        Code {
            type_number: TYPE_SOFTWARE,
            config: 0,
        },
        FLAG_DISABLED,
    );
    open(&attr, -1)
        .map(drop)
        .map_err(|error| refusal_reason("the cpu-clock event", &error))
}

/// Number of debug registers with which a thread of this process can watch data.
///
/// # Errors
/// Why it can have none, and what would change that.
pub fn breakpoints() -> Result<u32, NotMeasured> {
    const MAX_BREAKPOINTS: u32 = 16;
    const BP_WRITE: u32 = 2;
    let watched = 0u64;
    let mut open_ones = Vec::new();
    while (open_ones.len() as u32) < MAX_BREAKPOINTS {
        let attr = Attr {
            type_number: TYPE_BREAKPOINT,
            size: SIZE,
            sample_period: 1,
            flags: FLAG_DISABLED | FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV,
            bp_type: BP_WRITE,
            config1: std::ptr::from_ref(&watched).addr() as u64,
            config2: 8,
            ..Attr::default()
        };
        match open(&attr, -1) {
            Ok(fd) => open_ones.push(fd),
            Err(error) if open_ones.is_empty() => {
                return Err(refusal_reason("a watchpoint", &error));
            }
            Err(_) => break,
        }
    }
    Ok(open_ones.len() as u32)
}

fn refusal(event: Event, error: &io::Error) -> NotMeasured {
    refusal_reason(&event.to_string(), error)
}

/// The reason and remedy for an error of `perf_event_open` on this machine.
fn refusal_reason(what: &str, error: &io::Error) -> NotMeasured {
    let root = Root::system();
    explain(
        what,
        error,
        paranoid(&root),
        hypervisor::name(&root).is_some(),
    )
}

fn explain(what: &str, error: &io::Error, paranoid: Option<i32>, guest: bool) -> NotMeasured {
    let (reason, remedy) = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO) if guest => (
            format!("{what} cannot be counted: this guest has no hardware counter for it"),
            Some(
                "give the guest a virtual PMU (QEMU: -cpu host,pmu=on) or use a bare-metal machine",
            ),
        ),
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO) => (
            format!("{what} cannot be counted: this processor or kernel has no counter for it"),
            None,
        ),
        Some(libc::EACCES | libc::EPERM) => match paranoid {
            Some(level) if level > 2 => (
                format!("{what} may not be counted: kernel.perf_event_paranoid is {level}"),
                Some("as root: sysctl kernel.perf_event_paranoid=2"),
            ),
            _ => (
                format!("{what} may not be counted: perf_event_open is denied ({error})"),
                Some(
                    "permit perf_event_open in the container's seccomp profile (docker: --cap-add PERFMON)",
                ),
            ),
        },
        Some(libc::ENOSYS) => (
            format!("{what} cannot be counted: perf_event_open is not there"),
            Some("a kernel with CONFIG_PERF_EVENTS, or a seccomp profile that permits it"),
        ),
        Some(libc::EMFILE | libc::ENFILE) => (
            format!("{what} cannot be counted: {error}"),
            Some("raise the limit on open files (ulimit -n)"),
        ),
        Some(libc::EBUSY | libc::ENOSPC) => (
            format!("{what} cannot be counted: another program has the counters ({error})"),
            Some("end the other profiler, or as root: sysctl kernel.nmi_watchdog=0"),
        ),
        _ => (
            format!("{what} cannot be counted: perf_event_open: {error}"),
            None,
        ),
    };
    NotMeasured {
        reason,
        remedy: remedy.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_scaled_by_the_share_that_ran() {
        let half = reading(Event::L2Miss, 100, 2000, 1000);
        assert_eq!(half.count, Outcome::Known(200.0));
        assert!((half.running_share - 0.5).abs() < 1e-12);
        let never = reading(Event::L2Miss, 0, 2000, 0);
        assert!(never.count.known().is_none());
    }

    #[test]
    fn refusals_have_reasons_and_remedies() {
        let explain = |errno, paranoid, guest| {
            explain(
                "cycles",
                &io::Error::from_raw_os_error(errno),
                paranoid,
                guest,
            )
        };
        assert!(
            explain(libc::ENOENT, Some(2), true)
                .reason
                .contains("guest")
        );
        assert!(
            !explain(libc::ENOENT, Some(2), false)
                .reason
                .contains("guest")
        );
        let closed = explain(libc::EACCES, Some(4), false);
        assert!(closed.reason.contains("perf_event_paranoid is 4"));
        assert_eq!(
            closed.remedy.as_deref(),
            Some("as root: sysctl kernel.perf_event_paranoid=2")
        );
        assert!(
            explain(libc::EPERM, Some(2), false)
                .remedy
                .unwrap()
                .contains("seccomp")
        );
        assert!(explain(libc::ENOSYS, None, false).remedy.is_some());
    }

    #[test]
    fn probes_answer_or_explain() {
        for (what, answer) in [
            ("cycles", hardware_cycles()),
            ("cpu-clock", software_clock()),
            (
                "breakpoints",
                breakpoints().map(|count| assert!((1..=16).contains(&count))),
            ),
        ] {
            if let Err(missing) = answer {
                assert!(!missing.reason.is_empty());
                eprintln!("skipped: {what}: {}", missing.reason);
            }
        }
    }
}
