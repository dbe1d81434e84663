//! Threads that run a kernel together, each on arrays of its own.

use membound_platform::affinity::Pinned;
use membound_types::{BandwidthKernel, CpuId, Disturbance, NodePolicy, PageKind};

use super::timeline::{self, Piece, Timeline};
use crate::arch::StreamLoop;
use crate::gate::{Gate, Ticket};
use crate::ones::region_of_ones;
use crate::sampling::{self, Visit};
use crate::threads::{joined, spawned};
use crate::watch::{BatchWatch, StealWatch};
use crate::{Clock, Error, Region, RegionConfig, Session, hint};

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

/// Number of arrays that a kernel uses; a pass goes through each of them once.
pub(super) const fn arrays(kernel: BandwidthKernel) -> usize {
    match kernel {
        BandwidthKernel::Read | BandwidthKernel::Write | BandwidthKernel::NtWrite => 1,
        BandwidthKernel::Copy => 2,
        BandwidthKernel::Triad => 3,
    }
}

/// Positions of the arrays in a thread's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    offsets: [usize; 3],
    array_bytes: usize,
}

impl Layout {
    /// Lines by which the arrays begin after a page's start. A load whose low 12 address bits equal
    /// those of an older store in flight waits for that store (4 KiB aliasing). With the arrays
    /// that are read a few lines ahead of the one that is written, the store with the same low bits
    /// is nearly a page of stores older and long done. Odd numbers, so that the streams do not meet
    /// in the same DRAM bank again and again either.
    const LINES_AHEAD: [usize; 3] = [0, 5, 11];

    pub(super) const fn new(array_bytes: usize) -> Self {
        let mut offsets = [0; 3];
        let mut index = 1;
        while index < 3 {
            let free = offsets[index - 1] + array_bytes;
            offsets[index] =
                free.next_multiple_of(PAGE_BYTES) + Self::LINES_AHEAD[index] * LINE_BYTES;
            index += 1;
        }
        Self {
            offsets,
            array_bytes,
        }
    }

    /// Bytes of memory needed for sets of up to `size_bytes`.
    pub(super) const fn room(size_bytes: usize) -> usize {
        size_bytes.saturating_add(4 * PAGE_BYTES)
    }
}

/// The memory of one thread.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) cpu: CpuId,
    region: Region,
}

impl Member {
    /// Allocates room for sets of `size_bytes`, touched and filled on the member's own CPU.
    pub(super) fn new(
        session: &Session<'_>,
        cpu: CpuId,
        page: PageKind,
        node: NodePolicy,
        size_bytes: usize,
    ) -> Result<Self, Error> {
        let config = RegionConfig {
            bytes: Layout::room(size_bytes),
            page,
            node,
            cpu,
        };
        let region = region_of_ones(session, config)?;
        Ok(Self { cpu, region })
    }

    pub(super) fn partial_page_share(&self) -> Option<f64> {
        self.region.partial_page_share()
    }
}

/// Work of every thread in a visit.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) kernel: BandwidthKernel,
    pub(super) stream: &'a dyn StreamLoop,
    /// Bytes of all arrays together, a multiple of what three arrays of whole iterations have.
    pub(super) size_bytes: usize,
}

/// One thread's position, which cycles through its arrays a piece at a time.
struct Cursor<'a> {
    work: Work<'a>,
    base: *mut u8,
    layout: Layout,
    position: usize,
}

impl<'a> Cursor<'a> {
    fn new(work: Work<'a>, member: &Member) -> Self {
        let layout = Layout::new(work.size_bytes / arrays(work.kernel));
        debug_assert!(
            layout.offsets[arrays(work.kernel) - 1] + layout.array_bytes <= member.region.len(),
            "callers allocate room for the largest set"
        );
        Self {
            work,
            base: member.region.start(),
            layout,
            position: 0,
        }
    }

    /// Does about `bytes` bytes of work, in whole passes if that is more than one pass; returns the
    /// number of bytes done.
    fn advance(&mut self, bytes: f64) -> f64 {
        let arrays = arrays(self.work.kernel);
        let whole = self.layout.array_bytes;
        let passes = (bytes / (whole * arrays) as f64) as u64;
        let (length, passes) = if passes > 0 {
            self.position = 0;
            (whole, passes)
        } else {
            let step = self.work.stream.bytes_per_iteration();
            let wanted = (bytes / arrays as f64) as usize / step * step;
            (wanted.max(step).min(whole - self.position), 1)
        };
        let at = |array: usize| {
            self.base
                .wrapping_add(self.layout.offsets[array] + self.position)
        };
        // SAFETY: the part lies inside each array that the kernel uses, `Layout` keeps the arrays
        // apart and aligned, and only this thread uses the member's memory.
        unsafe { self.work.stream.run(at(0), at(1), at(2), length, passes) };
        self.position = (self.position + length) % whole;
        (length * arrays) as f64 * passes as f64
    }

    /// Bytes of work that take about `ticks`, found by doubling.
    fn bytes_for(&mut self, clock: &Clock, ticks: f64) -> f64 {
        let mut bytes = (16 * LINE_BYTES) as f64;
        loop {
            let start = clock.now();
            let done = self.advance(bytes);
            let elapsed_ticks = (clock.now() - start) as f64 - clock.overhead_ticks();
            if elapsed_ticks * 4.0 >= ticks {
                return done * ticks / elapsed_ticks;
            }
            bytes = done * 2.0;
        }
    }
}

/// Result of one thread of a run.
struct Run {
    timeline: Timeline,
    core_hz: f64,
    disturbed: Disturbance,
}

/// Batches per visit.
const BATCHES: usize = 5;
/// Approximate number of pieces per batch.
const PIECES_PER_BATCH: f64 = 5.0;

/// Runs `work` on all members at once and returns the rates in 10⁹ bytes per second. Batches in
/// which a thread was perturbed are left out; if there are any, everything runs once more.
pub(super) fn visit(
    session: &Session<'_>,
    members: &[Member],
    work: Work<'_>,
    batch_ns: f64,
) -> Result<Visit, Error> {
    let mut visit = Visit::default();
    let mut last = Vec::new();
    for _ in 0..2 {
        let runs = run_together(session, members, work, batch_ns)?;
        for run in &runs {
            sampling::add_disturbance(&mut visit.disturbed, &run.disturbed);
        }
        visit.core_hz = runs.first().map_or(session.core_hz, |run| run.core_hz);
        let timelines: Vec<Timeline> = runs.into_iter().map(|run| run.timeline).collect();
        last = timeline::batches(&timelines, BATCHES);
        let missing = BATCHES - visit.values.len();
        let clean = last.iter().filter(|batch| batch.clean);
        visit.values.extend(
            clean
                .map(|batch| gb_s(session, batch.bytes_per_tick))
                .take(missing),
        );
        if visit.values.len() == BATCHES {
            break;
        }
        let disturbed = last.iter().filter(|batch| !batch.clean).count();
        visit.disturbed.repeated_batches += disturbed as u32;
    }
    if visit.values.is_empty() {
        // No batch was clean: keep those of the last run as they are.
        visit.disturbed.repeated_batches -= last.len() as u32;
        let rates = last.iter().map(|batch| batch.bytes_per_tick);
        visit.values = rates.map(|rate| gb_s(session, rate)).collect();
    }
    Ok(visit)
}

/// Converts bytes per tick to 10⁹ bytes per second, which are bytes per nanosecond.
fn gb_s(session: &Session<'_>, bytes_per_tick: f64) -> f64 {
    bytes_per_tick / session.clock.ns(1.0)
}

fn run_together(
    session: &Session<'_>,
    members: &[Member],
    work: Work<'_>,
    batch_ns: f64,
) -> Result<Vec<Run>, Error> {
    let gate = Gate::new(members.len());
    std::thread::scope(|scope| {
        let running: Vec<_> = members
            .iter()
            .map(|member| {
                let ticket = gate.ticket();
                spawned(scope, member.cpu, move || {
                    run(session, member, work, batch_ns, ticket)
                })
            })
            .collect();
        running.into_iter().map(|thread| joined(thread?)).collect()
    })
}

/// One thread of a run: all begin together and keep working until the last is done.
fn run(
    session: &Session<'_>,
    member: &Member,
    work: Work<'_>,
    batch_ns: f64,
    mut ticket: Ticket<'_>,
) -> Result<Run, Error> {
    let clock = &session.clock;
    // If an error returns from here, the ticket is dropped, and the others do not wait for it.
    let _pinned = Pinned::to(member.cpu)?;
    let mut cursor = Cursor::new(work, member);
    let mut run = Run {
        timeline: Timeline {
            start_ticks: 0,
            pieces: Vec::new(),
        },
        core_hz: session.core_hz,
        disturbed: Disturbance::default(),
    };
    let piece_ticks = clock
        .ticks(batch_ns / PIECES_PER_BATCH)
        .max(clock.min_batch_ticks() as f64);
    run.core_hz = session.core.measure(clock, 3);
    warm(session, &mut cursor);
    let piece_bytes = cursor.bytes_for(clock, piece_ticks);
    // Capacity for a run that has the memory for itself, so that nothing is allocated while the
    // clock runs.
    run.timeline.pieces.reserve(256);
    let steal = StealWatch::begin(session.root, member.cpu);
    ticket.pass();
    let run_ticks = clock.ticks(batch_ns * BATCHES as f64) as u64;
    run.timeline.start_ticks = clock.now();
    loop {
        let watch = BatchWatch::begin(member.cpu);
        let bytes = cursor.advance(piece_bytes);
        let clean = watch.end(&mut run.disturbed);
        let end_ticks = clock.now();
        run.timeline.pieces.push(Piece {
            end_ticks,
            bytes,
            clean,
        });
        if end_ticks - run.timeline.start_ticks >= run_ticks {
            ticket.finish();
        }
        if ticket.all_finished() {
            break;
        }
    }
    let core_hz_after = session.core.measure(clock, 3);
    run.disturbed.clock_changes = sampling::clock_changes(run.core_hz, core_hz_after);
    run.core_hz = f64::midpoint(run.core_hz, core_hz_after);
    run.disturbed.steal_ms = steal.end(session.root);
    Ok(run)
}

/// Brings the caches into the state that passes over these arrays leave behind.
fn warm(session: &Session<'_>, cursor: &mut Cursor<'_>) {
    let enough = cursor
        .work
        .size_bytes
        .min(2 * hint::largest_cache_bytes(session) as usize) as f64;
    let mut done = 0.0;
    while done < enough {
        done += cursor.advance(enough - done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_lie_apart_and_never_alias() {
        for array_bytes in [512, 5120, 8192, 65536, 1 << 25] {
            let layout = Layout::new(array_bytes);
            let [a, b, c] = layout.offsets;
            assert_eq!(a, 0);
            assert!(b >= array_bytes && c >= b + array_bytes);
            assert!(c + array_bytes <= Layout::room(3 * array_bytes));
            let lines: Vec<usize> = [b, c]
                .iter()
                .map(|offset| offset % PAGE_BYTES / LINE_BYTES)
                .collect();
            assert_eq!(lines, [5, 11]);
            assert!(layout.offsets.iter().all(|offset| offset % LINE_BYTES == 0));
        }
    }

    #[test]
    fn bytes_are_counted_for_every_array() {
        let counts: Vec<usize> = [
            BandwidthKernel::Read,
            BandwidthKernel::Write,
            BandwidthKernel::NtWrite,
            BandwidthKernel::Copy,
            BandwidthKernel::Triad,
        ]
        .map(arrays)
        .to_vec();
        assert_eq!(counts, [1, 1, 1, 2, 3]);
    }
}
