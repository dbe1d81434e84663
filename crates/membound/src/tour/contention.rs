//! The program that the tour profiles: two threads, each adding to a record of its own. The records lie on
//! one cache line, or, after the repair, on lines of their own.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Barrier;

use clap::ValueEnum;

/// Where the records lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// Next to each other.
    Together,
    /// 128 bytes apart: lines may be fetched in pairs.
    Apart,
}

/// What a thread computes: the sums of a linear regression.
#[derive(Default)]
#[repr(C)]
struct Record {
    sx: i64,
    sy: i64,
    sxx: i64,
    sxy: i64,
}

const THREADS: usize = 2;
/// Takes about four seconds with separate records. The sampler needs a second or two to analyse this
/// program's large file before it takes samples, and three if both threads leave it little of two CPUs; no
/// sample from before that shows what the threads wait for.
const POINTS: i64 = 2_000_000_000;
/// Number of records: 16 of 32 bytes fill 512 bytes.
const RECORDS: usize = 16;

/// The records, the first two of which fill one line.
#[repr(C, align(128))]
#[derive(Default)]
struct Records([Record; RECORDS]);

impl Layout {
    /// Distance from one thread's record to the next one's, in records.
    const fn stride(self) -> usize {
        match self {
            Self::Together => 1,
            Self::Apart => 128 / size_of::<Record>(),
        }
    }
}

/// Runs both threads to their end.
pub(crate) fn run(layout: Layout) -> ExitCode {
    let mut records = Box::<Records>::default();
    let begin = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let chosen = records.0.iter_mut().step_by(layout.stride()).take(THREADS);
        for (number, record) in chosen.enumerate() {
            let begin = &begin;
            let spawned = std::thread::Builder::new()
                .name(format!("sum {number}"))
                .spawn_scoped(scope, move || {
                    begin.wait();
                    sum(record);
                });
            if spawned.is_err() {
                // The threads already started would wait at the barrier for ever.
                std::process::exit(1);
            }
        }
    });
    black_box(&records);
    ExitCode::SUCCESS
}

fn sum(record: &mut Record) {
    for i in 0..POINTS {
        add(record, i & 127, (i >> 3) & 127);
    }
}

/// Not inlined: in the loop the sums would stay in registers until the end.
#[inline(never)]
fn add(record: &mut Record, x: i64, y: i64) {
    record.sx += x;
    record.sy += y;
    record.sxx += x * x;
    record.sxy += x * y;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that hold each thread's record, wherever the allocator puts them.
    fn lines(layout: Layout) -> Vec<Vec<usize>> {
        const LINE_BYTES: usize = 64;
        let records = Box::<Records>::default();
        let chosen = records.0.iter().step_by(layout.stride()).take(THREADS);
        chosen
            .map(|record| {
                let first = std::ptr::from_ref(record) as usize;
                let last = first + size_of::<Record>() - 1;
                (first / LINE_BYTES..=last / LINE_BYTES).collect()
            })
            .collect()
    }

    #[test]
    fn records_share_one_line_or_are_two_lines_apart() {
        for _ in 0..20 {
            let together = lines(Layout::Together);
            assert_eq!(together[0].len(), 1);
            assert_eq!(together[0], together[1]);
            let apart = lines(Layout::Apart);
            assert_eq!(apart[0].len(), 1);
            assert_eq!(apart[0][0] + 2, apart[1][0]);
        }
    }
}
