//! Hardware watchpoints: which threads access a few bytes, reported by the processor's debug registers
//! through perf events. Each hit costs the program microseconds, so watchpoints are armed for a number of
//! hits and disarmed again. [`Suspects`] chooses the lines, and [`Patrol`] watches them.

mod patrol;
mod suspects;

use std::io;

use rustix::param::page_size;

use crate::perf::{
    Attr, Breakpoint, Error, Event, Layout, PerfEvent, RawSample, Record, RegisterSet, Ring,
    Target, refused, refused_of,
};

pub use patrol::Patrol;
pub use suspects::{ObservedAccess, Plan, Suspects, Wrote};

/// Number of debug registers for addresses.
pub const MAX_POINTS: usize = 4;
/// Pages of a thread's ring: room for some eighty hits.
const RING_PAGES: usize = 16;

/// Bytes that are watched together: 1, 2, 4 or 8, and aligned to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// First address.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u8,
}

impl Point {
    /// The smallest point that covers the bytes; of more than 8, or across an 8-byte boundary, the aligned 8
    /// bytes at `address`.
    #[must_use]
    pub const fn covering(address: u64, bytes: u32) -> Self {
        let last = address.saturating_add(if bytes > 1 { bytes as u64 - 1 } else { 0 });
        let mut size = 1;
        while size < 8 && address & !(size - 1) != last & !(size - 1) {
            size *= 2;
        }
        Self {
            address: address & !(size - 1),
            bytes: size as u8,
        }
    }

    /// Points for accesses (address and bytes), the most important first: as many as there are debug
    /// registers, each byte at most once.
    #[must_use]
    pub fn for_accesses(accesses: impl IntoIterator<Item = (u64, u32)>) -> Vec<Self> {
        let mut points: Vec<Self> = Vec::new();
        for (address, bytes) in accesses {
            let point = Self::covering(address, bytes);
            if points.iter().any(|other| other.contains(point)) {
                continue;
            }
            if let Some(inside) = points.iter_mut().find(|other| point.contains(**other)) {
                *inside = point;
                // Remove the other points that the larger one covers as well.
                let mut first = true;
                points.retain(|other| {
                    !point.contains(*other) || *other == point && std::mem::take(&mut first)
                });
            } else if points.len() < MAX_POINTS {
                points.push(point);
            }
        }
        points
    }

    const fn contains(self, other: Self) -> bool {
        self.address <= other.address
            && other.address.wrapping_sub(self.address) + other.bytes as u64 <= self.bytes as u64
    }
}

/// An access to a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit<'a> {
    /// The watched bytes.
    pub point: Point,
    /// The thread that made the access, with the next instruction and a small part of its stack.
    pub sample: RawSample<'a>,
}

/// Watchpoints on some threads, removed on drop.
///
/// Debug registers are in use only while the watchpoints are armed, so that a debugger can get them.
#[derive(Debug)]
pub struct Watchpoints {
    pid: u32,
    points: Vec<Point>,
    threads: Vec<Thread>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Thread {
    tid: u32,
    /// Declared before the event that it belongs to, since it must be unmapped first.
    ring: Ring,
    owner: Event,
    armed: Vec<Event>,
}

impl Watchpoints {
    /// Prepares watching points on threads of process `pid`; nothing is watched yet. Threads that
    /// have ended, and those for which no memory may be locked any more, are left out
    /// ([`Self::threads`]).
    ///
    /// # Errors
    /// [`Error::NoWatchpoint`] when a debugger has them, [`Error::Unwatchable`],
    /// [`Error::OtherUser`], [`Error::NotPermitted`] and the like, [`Error::Gone`] when no
    /// thread is left.
    pub fn set(pid: u32, tids: &[u32], points: &[Point]) -> Result<Self, Error> {
        // Other processors stop the thread before the access, not after it.
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::Unsupported {
                reason: "watchpoints are used on x86-64 only".to_owned(),
            });
        }
        if points.is_empty() {
            return Err(Error::Unwatchable {
                address: 0,
                bytes: 0,
                reason: "nothing was asked for",
            });
        }
        for point in points {
            sound(*point)?;
        }
        let mut watchpoints = Self {
            pid,
            points: points.iter().take(MAX_POINTS).copied().collect(),
            threads: Vec::new(),
            buffer: Vec::new(),
        };
        for &tid in tids {
            match Thread::prepare(pid, tid) {
                Ok(Some(thread)) => watchpoints.threads.push(thread),
                Ok(None) => {}
                Err(Error::Locked) if !watchpoints.threads.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        // The kernel reports whether registers are free only when events are opened.
        let had: Result<Vec<usize>, Error> = watchpoints
            .threads
            .iter()
            .map(|thread| Ok(thread.open(pid, &watchpoints.points)?.len()))
            .collect();
        if had?.iter().all(|&count| count == 0) {
            return Err(Error::Gone { pid });
        }
        Ok(watchpoints)
    }

    /// The kernel's numbers of the watched threads.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.threads.iter().map(|thread| thread.tid)
    }

    /// Arms them until each point has been hit `hits` times by each thread. A thread that has ended meanwhile
    /// is no error.
    ///
    /// # Errors
    /// [`Error::NoWatchpoint`] if a debugger has occupied them meanwhile, and errors of the kernel.
    pub fn arm(&mut self, hits: u32) -> Result<(), Error> {
        self.disarm();
        for thread in &mut self.threads {
            // Opened anew each time: kernels from 6.16 on do not restart a breakpoint that has stopped at its
            // limit.
            thread.armed = thread.open(self.pid, &self.points)?;
        }
        for event in self.threads.iter().flat_map(|thread| &thread.armed) {
            event.enable_for(hits).map_err(|error| Error::System {
                call: "ioctl(PERF_EVENT_IOC_REFRESH)",
                error,
            })?;
        }
        Ok(())
    }

    /// Disarms them. Hits in the rings can still be read.
    pub fn disarm(&mut self) {
        for thread in &mut self.threads {
            thread.armed.clear();
        }
    }

    /// Passes the hits since the last call to `tell`, thread by thread. Returns the number of hits that were
    /// lost for lack of room.
    pub fn read(&mut self, tell: &mut dyn FnMut(Hit<'_>)) -> u64 {
        let layout = Layout {
            sample_type: attr(self.points[0]).sample_type,
            registers: RegisterSet::native_or_any(),
        };
        let mut lost = 0;
        for thread in &self.threads {
            self.buffer.clear();
            let head = thread.ring.copy(&mut self.buffer);
            thread.ring.taken(head);
            let mut rest = self.buffer.as_slice();
            while let Some(record) = Record::next(&mut rest) {
                match layout.event(&record) {
                    Some(PerfEvent::Sample(sample)) => {
                        let mut points = self.points.iter();
                        if let Some(&point) = points.find(|it| it.address == sample.address) {
                            tell(Hit { point, sample });
                        }
                    }
                    Some(PerfEvent::Lost(count)) => lost += count,
                    _ => {}
                }
            }
        }
        lost
    }
}

impl Thread {
    /// `None` when the thread has ended.
    fn prepare(pid: u32, tid: u32) -> Result<Option<Self>, Error> {
        let attr = Attr::nothing();
        let owner = match Event::open(&attr, Target { tid, cpu: None }) {
            Ok(owner) => owner,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(why(error, pid, &attr)),
        };
        let ring = ring(&owner)?;
        Ok(Some(Self {
            tid,
            ring,
            owner,
            armed: Vec::new(),
        }))
    }

    /// Opens a disabled event for each point; none when the thread has ended.
    fn open(&self, pid: u32, points: &[Point]) -> Result<Vec<Event>, Error> {
        let mut events = Vec::with_capacity(points.len());
        for &point in points {
            let attr = attr(point);
            let target = Target {
                tid: self.tid,
                cpu: None,
            };
            let event = match Event::open(&attr, target) {
                Ok(event) => event,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => return Ok(Vec::new()),
                    Some(libc::ENOSPC | libc::EBUSY) => {
                        return Err(Error::NoWatchpoint { tid: self.tid });
                    }
                    _ => return Err(why(error, pid, &attr)),
                },
            };
            event
                .write_into(&self.owner)
                .map_err(|error| Error::System {
                    call: "ioctl(PERF_EVENT_IOC_SET_OUTPUT)",
                    error,
                })?;
            events.push(event);
        }
        Ok(events)
    }
}

/// Maps a thread's ring, or a smaller one where the limit on locked memory is reached.
fn ring(event: &Event) -> Result<Ring, Error> {
    Ring::map(event, RING_PAGES * page_size())
        .or_else(|_| Ring::map(event, RING_PAGES / 4 * page_size()))
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Error::Locked,
            _ => Error::System {
                call: "mmap of a perf event",
                error,
            },
        })
}

/// Tells apart whether this event is refused in general, or only for that process.
fn why(error: io::Error, pid: u32, attr: &Attr) -> Error {
    match Event::open(attr, Target { tid: 0, cpu: None }) {
        Ok(_) => refused_of(error, pid),
        Err(own) => refused(own),
    }
}

fn attr(point: Point) -> Attr {
    Attr::breakpoint(Breakpoint {
        address: point.address,
        bytes: u64::from(point.bytes),
    })
}

fn sound(point: Point) -> Result<(), Error> {
    let reason = if !matches!(point.bytes, 1 | 2 | 4 | 8) {
        "a watchpoint has 1, 2, 4 or 8"
    } else if !point.address.is_multiple_of(u64::from(point.bytes)) {
        "the address is not aligned to their number"
    } else {
        return Ok(());
    };
    Err(Error::Unwatchable {
        address: point.address,
        bytes: u64::from(point.bytes),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn covering(address: u64, bytes: u32, expected: (u64, u8)) {
        let point = Point::covering(address, bytes);
        assert_eq!((point.address, point.bytes), expected);
        assert!(sound(point).is_ok());
    }

    #[test]
    fn points_cover_what_lies_together() {
        covering(0x1000, 1, (0x1000, 1));
        covering(0x1000, 8, (0x1000, 8));
        covering(0x1004, 4, (0x1004, 4));
        covering(0x1002, 4, (0x1000, 8));
        covering(0x1007, 2, (0x1000, 8));
        covering(0x1000, 64, (0x1000, 8));
        covering(0x1003, 0, (0x1003, 1));
        covering(u64::MAX, 8, (u64::MAX, 1));
    }

    #[test]
    fn points_are_few_and_do_not_overlap() {
        let points = Point::for_accesses([
            (0x40, 4),
            (0x44, 4),
            (0x40, 8),
            (0x41, 1),
            (0x48, 8),
            (0x50, 8),
            (0x58, 8),
            (0x60, 8),
        ]);
        let expected = [0x40, 0x48, 0x50, 0x58].map(|address| Point { address, bytes: 8 });
        assert_eq!(points, expected);
        assert_eq!(Point::for_accesses([]), []);
    }
}
