//! The program that the tour profiles: two threads, each summing into a record of its own,
//! which lie on one line of memory or, mended, on lines of their own.

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
/// A second or so on records that lie apart: long against the sampler's first looks.
const POINTS: i64 = 1_000_000_000;
/// Records of 32 bytes in 512 bytes.
const RECORDS: usize = 16;

/// Runs it.
pub(crate) fn run(layout: Layout) -> ExitCode {
    let stride = match layout {
        Layout::Together => 1,
        Layout::Apart => RECORDS / 4,
    };
    let mut records: Vec<Record> = (0..RECORDS).map(|_| Record::default()).collect();
    let begin = Barrier::new(THREADS);
    let first = first(&records);
    std::thread::scope(|scope| {
        let chosen = records[first..].iter_mut().step_by(stride).take(THREADS);
        for record in chosen {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                sum(record);
            });
        }
    });
    black_box(&records);
    ExitCode::SUCCESS
}

/// The first record that begins a line.
fn first(records: &[Record]) -> usize {
    const LINE_BYTES: usize = 64;
    let address = records.as_ptr() as usize;
    address.next_multiple_of(LINE_BYTES).saturating_sub(address) / size_of::<Record>()
}

fn sum(record: &mut Record) {
    for i in 0..POINTS {
        add(record, i & 127, (i >> 3) & 127);
    }
}

/// A function of its own: in the loop the sums would stay in registers until the end.
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

    #[test]
    fn the_first_record_of_a_line_leaves_room_for_both() {
        let records: Vec<Record> = (0..RECORDS).map(|_| Record::default()).collect();
        let first = first(&records);
        assert!(first + RECORDS / 4 < RECORDS);
        assert!(first < 2);
    }
}
