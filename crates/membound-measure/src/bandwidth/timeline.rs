//! Rates of several threads in a common interval.
//!
//! Every thread keeps a timeline of its own: when each piece of work ended and how many bytes it
//! was. Rates are computed over intervals in which all threads ran, cutting pieces in proportion,
//! and never added up from every thread's own best time: while one thread is late to start or early
//! to finish, the others have the memory for themselves.

/// One piece of work of one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Reading of the clock when it was done.
    pub(super) end_ticks: u64,
    /// Bytes of this piece that the program asked for.
    pub(super) bytes: f64,
    /// Whether nothing perturbed it.
    pub(super) clean: bool,
}

/// The pieces of one thread, one after the other without gaps.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// Reading of the clock when the first piece began.
    pub(super) start_ticks: u64,
    pub(super) pieces: Vec<Piece>,
}

/// Rate in one part of the common interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Batch {
    /// Bytes per tick, all threads together.
    pub(super) bytes_per_tick: f64,
    /// Whether no thread was perturbed in it.
    pub(super) clean: bool,
}

impl Timeline {
    fn end_ticks(&self) -> u64 {
        self.pieces
            .last()
            .map_or(self.start_ticks, |piece| piece.end_ticks)
    }

    /// Bytes moved between two readings of the clock, and whether all of that was clean.
    fn within(&self, from: f64, to: f64) -> (f64, bool) {
        let mut begin = self.start_ticks as f64;
        let (mut bytes, mut clean) = (0.0, true);
        for piece in &self.pieces {
            let end = piece.end_ticks as f64;
            let overlap = end.min(to) - begin.max(from);
            if overlap > 0.0 {
                bytes += piece.bytes * overlap / (end - begin);
                clean &= piece.clean;
            }
            begin = end;
        }
        (bytes, clean)
    }
}

/// Cuts the interval in which all threads ran into `count` equal parts and gives the rate
/// of all threads together in each; empty when there is no such interval.
pub(super) fn batches(timelines: &[Timeline], count: usize) -> Vec<Batch> {
    let start = timelines.iter().map(|line| line.start_ticks).max();
    let end = timelines.iter().map(Timeline::end_ticks).min();
    let (Some(start), Some(end)) = (start, end) else {
        return Vec::new();
    };
    if end <= start {
        return Vec::new();
    }
    let length = (end - start) as f64 / count as f64;
    (0..count)
        .map(|index| {
            let from = length.mul_add(index as f64, start as f64);
            let mut batch = Batch {
                bytes_per_tick: 0.0,
                clean: true,
            };
            for timeline in timelines {
                let (bytes, clean) = timeline.within(from, from + length);
                batch.bytes_per_tick += bytes / length;
                batch.clean &= clean;
            }
            batch
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(start_ticks: u64, pieces: &[(u64, f64)]) -> Timeline {
        Timeline {
            start_ticks,
            pieces: pieces
                .iter()
                .map(|(end_ticks, bytes)| Piece {
                    end_ticks: *end_ticks,
                    bytes: *bytes,
                    clean: true,
                })
                .collect(),
        }
    }

    #[test]
    fn only_the_common_interval_counts() {
        // The first is alone until 100 and twice as fast there; the second ends late.
        let first = timeline(0, &[(100, 2000.0), (200, 1000.0), (300, 1000.0)]);
        let second = timeline(100, &[(300, 1000.0), (400, 9000.0)]);
        let found = batches(&[first, second], 2);
        let expected = Batch {
            bytes_per_tick: 15.0,
            clean: true,
        };
        assert_eq!(found, [expected, expected]);
    }

    #[test]
    fn pieces_are_cut_in_proportion() {
        let line = timeline(0, &[(300, 300.0), (400, 200.0)]);
        let found = batches(&[line], 4);
        let rates: Vec<f64> = found.iter().map(|batch| batch.bytes_per_tick).collect();
        assert_eq!(rates, [1.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn a_disturbed_piece_taints_the_batches_that_it_lies_in() {
        let mut line = timeline(0, &[(100, 1.0), (150, 1.0), (400, 1.0)]);
        line.pieces[1].clean = false;
        let other = timeline(0, &[(400, 4.0)]);
        let clean: Vec<bool> = batches(&[line, other], 4)
            .iter()
            .map(|batch| batch.clean)
            .collect();
        assert_eq!(clean, [true, false, true, true]);
    }

    #[test]
    fn threads_that_never_ran_together_have_no_rate() {
        let early = timeline(0, &[(100, 1.0)]);
        let late = timeline(200, &[(300, 1.0)]);
        assert!(batches(&[early, late], 5).is_empty());
        assert!(batches(&[], 5).is_empty());
    }
}
