//! Threads that inject traffic while another one measures.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use membound_platform::affinity::Pinned;
use membound_types::{CpuId, Disturbance, TrafficMix};

use crate::arch::InjectLoop;
use crate::gate::{Gate, Ticket};
use crate::watch::{BatchWatch, StealWatch};
use crate::{Error, Region, Session};

const LINE_BYTES: u64 = 64;

/// One injecting thread's memory.
#[derive(Debug)]
pub(super) struct Injector {
    pub(super) cpu: CpuId,
    pub(super) region: Region,
}

/// Work of all injectors in one visit.
#[derive(Clone, Copy)]
pub(super) struct Traffic<'a> {
    pub(super) mix: TrafficMix,
    pub(super) inject: &'a dyn InjectLoop,
    /// The delay for which `inject` was made.
    pub(super) delay_steps: u32,
}

impl Traffic<'_> {
    fn lines_per_round(&self) -> u64 {
        u64::from(self.mix.reads) + u64::from(self.mix.writes)
    }

    /// Rounds between two checks of the signals: some 10 µs of work, so that counts are fresh and
    /// injectors stop soon.
    fn rounds_per_chunk(&self) -> u64 {
        const MAX_LINES: u64 = 1024;
        const MAX_STEPS: u64 = 40_000;
        let by_lines = MAX_LINES / self.lines_per_round();
        let by_steps = MAX_STEPS / u64::from(self.delay_steps).max(1);
        by_lines.min(by_steps).max(1)
    }
}

/// Counters of one injector, alone in two lines, because some processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Report {
    lines: AtomicU64,
    disturbances: AtomicU64,
}

/// Counters of all injectors at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Lines moved and perturbations observed, per injector.
    reports: Vec<(u64, u64)>,
}

impl Reading {
    /// Bytes that all injectors moved from `self` to `later`, and whether each of them was active
    /// and unperturbed.
    pub(super) fn until(&self, later: &Self) -> (u64, bool) {
        let pairs = self.reports.iter().zip(&later.reports);
        let lines: u64 = pairs
            .clone()
            .map(|(before, after)| after.0 - before.0)
            .sum();
        let clean = pairs
            .into_iter()
            .all(|(before, after)| after.0 > before.0 && after.1 == before.1);
        (lines * LINE_BYTES, clean)
    }
}

/// State that injectors and the measuring thread share.
#[derive(Debug)]
pub(super) struct Signals {
    gate: Gate,
    stop: AtomicBool,
    reports: Vec<Report>,
}

impl Signals {
    pub(super) fn new(injectors: usize) -> Self {
        Self {
            gate: Gate::new(injectors + 1),
            stop: AtomicBool::new(false),
            reports: (0..injectors).map(|_| Report::default()).collect(),
        }
    }

    /// Ticket for an injector or the measuring thread, with which all begin together.
    pub(super) const fn ticket(&self) -> Ticket<'_> {
        self.gate.ticket()
    }

    /// Reads the counters of all injectors.
    pub(super) fn read(&self) -> Reading {
        let reports = self.reports.iter();
        Reading {
            reports: reports
                .map(|report| {
                    (
                        report.lines.load(Ordering::Relaxed),
                        report.disturbances.load(Ordering::Relaxed),
                    )
                })
                .collect(),
        }
    }

    /// Ends the injectors when the value is dropped, even if the measuring thread panics.
    pub(super) const fn stop_on_drop(&self) -> StopOnDrop<'_> {
        StopOnDrop(self)
    }
}

/// Ends the injectors when dropped.
pub(super) struct StopOnDrop<'a>(&'a Signals);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Position of an injector in its memory: it reads lines in one part and writes lines in the other,
/// in proportion to the mix, and cycles through each part.
#[derive(Debug)]
struct Cursor {
    mix: TrafficMix,
    read_lines: u64,
    write_lines: u64,
    read_at: u64,
    write_at: u64,
}

impl Cursor {
    fn new(mix: TrafficMix, lines: u64) -> Self {
        let read_lines = lines * u64::from(mix.reads) / (u64::from(mix.reads + mix.writes));
        Self {
            mix,
            read_lines,
            write_lines: lines - read_lines,
            read_at: 0,
            write_at: 0,
        }
    }

    /// At most `rounds` further rounds: how many, and the lines at which they read and write.
    fn next(&mut self, rounds: u64) -> (u64, u64, u64) {
        let (reads, writes) = (u64::from(self.mix.reads), u64::from(self.mix.writes));
        if self.read_lines - self.read_at < reads {
            self.read_at = 0;
        }
        if self.write_lines - self.write_at < writes {
            self.write_at = 0;
        }
        let left = |lines: u64, at: u64, each: u64| (lines - at).checked_div(each);
        let rounds = [
            Some(rounds),
            left(self.read_lines, self.read_at, reads),
            left(self.write_lines, self.write_at, writes),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(rounds);
        let place = (rounds, self.read_at, self.read_lines + self.write_at);
        self.read_at += rounds * reads;
        self.write_at += rounds * writes;
        place
    }
}

impl Injector {
    /// Minimum memory of an injector in bytes, in which a round of any mix fits both parts.
    pub(super) const MIN_BYTES: u64 = 64 << 10;
    /// Chunks between two readings of the thread's usage, which take a system call.
    const CHUNKS_PER_WATCH: u64 = 16;

    /// Injects from when the measuring thread begins until it stops; returns what perturbed the
    /// thread meanwhile. `index` is the injector's index in `signals`.
    pub(super) fn run(
        &self,
        session: &Session<'_>,
        traffic: Traffic<'_>,
        (signals, mut ticket): (&Signals, Ticket<'_>),
        index: usize,
    ) -> Result<Disturbance, Error> {
        // If an error returns from here, the ticket is dropped, and the others do not wait for it.
        let _pinned = Pinned::to(self.cpu)?;
        let mut disturbed = Disturbance::default();
        let steal = StealWatch::begin(session.root, self.cpu);
        ticket.pass();
        let mut cursor = Cursor::new(traffic.mix, self.region.len() as u64 / LINE_BYTES);
        let line = |index: u64| {
            let bytes = usize::try_from(index * LINE_BYTES)
                .expect("lines of the region lie inside the address space");
            self.region.start().wrapping_add(bytes)
        };
        let chunk = traffic.rounds_per_chunk();
        let report = &signals.reports[index];
        let (mut lines, mut disturbances) = (0, 0);
        let mut watch = BatchWatch::begin(self.cpu);
        for chunks in 1_u64.. {
            if signals.stop.load(Ordering::Relaxed) {
                break;
            }
            let (rounds, read_at, write_at) = cursor.next(chunk);
            let (read, write) = (line(read_at), line(write_at));
            // SAFETY: the cursor keeps all rounds inside the two parts of the region, which only
            // this thread uses.
            unsafe { traffic.inject.run(read, write, rounds) };
            lines += rounds * traffic.lines_per_round();
            if chunks % Self::CHUNKS_PER_WATCH == 0 {
                disturbances += u64::from(!watch.end(&mut disturbed));
                watch = BatchWatch::begin(self.cpu);
                report.disturbances.store(disturbances, Ordering::Relaxed);
            }
            report.lines.store(lines, Ordering::Relaxed);
        }
        watch.end(&mut disturbed);
        disturbed.steal_ms = steal.end(session.root);
        Ok(disturbed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_visited_in_its_part_and_none_outside() {
        for (reads, writes) in [(1, 0), (2, 1), (1, 1), (0, 1), (5, 3), (63, 1)] {
            let mix = TrafficMix { reads, writes };
            let lines = Injector::MIN_BYTES / LINE_BYTES;
            let mut cursor = Cursor::new(mix, lines);
            let (read_lines, write_lines) = (cursor.read_lines, cursor.write_lines);
            assert_eq!(read_lines + write_lines, lines);
            assert!(read_lines >= u64::from(reads) && write_lines >= u64::from(writes));
            let mut touched = vec![false; lines as usize];
            for _ in 0..lines {
                let (rounds, read_at, write_at) = cursor.next(7);
                assert!((1..=7).contains(&rounds), "{mix:?}");
                let read = read_at..read_at + rounds * u64::from(reads);
                let write = write_at..write_at + rounds * u64::from(writes);
                assert!(read.end <= read_lines && write.end <= lines);
                assert!(write_at >= read_lines || writes == 0);
                for line in read.chain(write) {
                    touched[line as usize] = true;
                }
            }
            // What does not fill a round at the end of a part is left out.
            let untouched = touched.iter().filter(|touched| !**touched).count() as u32;
            assert!(
                untouched < reads.max(1) + writes.max(1),
                "{untouched} of {mix:?}"
            );
        }
    }

    #[test]
    fn injectors_that_stood_still_or_were_disturbed_are_noticed() {
        let reading = |reports: &[(u64, u64)]| Reading {
            reports: reports.to_vec(),
        };
        let before = reading(&[(10, 0), (20, 3)]);
        assert_eq!(before.until(&reading(&[(12, 0), (25, 3)])), (7 * 64, true));
        assert_eq!(before.until(&reading(&[(12, 0), (20, 3)])), (2 * 64, false));
        assert_eq!(before.until(&reading(&[(12, 1), (25, 3)])), (7 * 64, false));
        assert_eq!(reading(&[]).until(&reading(&[])), (0, true));
    }

    #[test]
    fn chunks_are_short_however_long_the_delay() {
        let backend = crate::arch::Portable;
        let mix = TrafficMix {
            reads: 2,
            writes: 1,
        };
        let inject = crate::arch::Backend::inject(&backend, mix, 0).unwrap();
        let rounds = |delay_steps| {
            Traffic {
                mix,
                inject: &*inject,
                delay_steps,
            }
            .rounds_per_chunk()
        };
        assert_eq!(rounds(0), 341);
        assert_eq!(rounds(1000), 40);
        assert_eq!(rounds(u32::MAX), 1);
    }
}
