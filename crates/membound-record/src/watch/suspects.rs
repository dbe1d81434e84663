//! Chooses lines worth a watchpoint: lines that several threads contend for, as far as single sampled
//! accesses show.

use super::Point;
use rustc_hash::FxHashMap;

/// Lines remembered at most; of more, those with the fewest accesses are forgotten.
const MAX_LINES: usize = 4096;
/// Threads remembered for one line.
const MAX_KNOWN_THREADS: usize = 64;
/// Threads watched for one line.
const MAX_THREADS: usize = 16;
/// Positions in a line remembered for each thread.
const MAX_PLACES: usize = 16;

/// Whether an access wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// It wrote.
    Yes,
    /// It only read.
    No,
}

/// A single access observed by a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedAccess {
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u32,
    /// Whether it wrote.
    pub wrote: Wrote,
}

/// A line to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of the process.
    pub pid: u32,
    /// First address of the line.
    pub line: u64,
    /// Threads that accessed it, those with most accesses first.
    pub tids: Vec<u32>,
    /// The watched bytes: each thread's most frequent position first, then each thread's second, and so on.
    pub points: Vec<Point>,
}

/// Counts accesses by line and thread.
#[derive(Clone, Debug)]
pub struct Suspects {
    line_bytes: u64,
    lines: FxHashMap<(u32, u64), Line>,
}

#[derive(Clone, Debug, Default)]
struct Line {
    accesses: u64,
    watched: u64,
    threads: Vec<Thread>,
}

#[derive(Clone, Debug)]
struct Thread {
    tid: u32,
    accesses: u64,
    wrote: u64,
    /// Address, bytes, and number of accesses.
    places: Vec<(u64, u32, u64)>,
}

impl Suspects {
    /// Counts for lines of `line_bytes`, a power of two.
    #[must_use]
    pub fn new(line_bytes: u64) -> Self {
        Self {
            line_bytes: line_bytes.max(1).next_power_of_two(),
            lines: FxHashMap::default(),
        }
    }

    /// Notes an access.
    pub fn note(&mut self, access: ObservedAccess) {
        let key = (access.pid, access.address & !(self.line_bytes - 1));
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&key) {
            self.forget();
        }
        let line = self.lines.entry(key).or_default();
        line.accesses += 1;
        let Some(thread) = line.thread(access.tid) else {
            return;
        };
        thread.accesses += 1;
        thread.wrote += u64::from(access.wrote == Wrote::Yes);
        let known = thread
            .places
            .iter_mut()
            .find(|(address, bytes, _)| (*address, *bytes) == (access.address, access.bytes));
        if let Some((.., count)) = known {
            *count += 1;
        } else if thread.places.len() < MAX_PLACES {
            thread.places.push((access.address, access.bytes, 1));
        }
    }

    /// The line to be watched next: of the lines with two threads and a writer, the one with most accesses
    /// per time that it was watched.
    pub fn next_plan(&mut self) -> Option<Plan> {
        let (&(pid, address), line) = self
            .lines
            .iter_mut()
            .filter(|(_, line)| line.is_shared())
            .max_by(|(key, line), (other_key, other)| {
                // Compares seen / (watched + 1) without division; ties in a fixed order.
                let this = u128::from(line.accesses) * u128::from(other.watched + 1);
                let that = u128::from(other.accesses) * u128::from(line.watched + 1);
                this.cmp(&that).then(other_key.cmp(key))
            })?;
        line.watched += 1;
        line.threads
            .sort_by_key(|thread| std::cmp::Reverse(thread.accesses));
        let threads = &line.threads[..line.threads.len().min(MAX_THREADS)];
        // Rank positions within each thread first: there are few watchpoints, and contention has two sides.
        let mut places: Vec<(usize, u64, u32, u64)> = Vec::new();
        for thread in threads {
            let mut own = thread.places.clone();
            own.sort_by_key(|&(address, bytes, count)| (std::cmp::Reverse(count), address, bytes));
            let ranked = own.into_iter().enumerate();
            places.extend(
                ranked.map(|(rank, (address, bytes, count))| (rank, address, bytes, count)),
            );
        }
        places.sort_by_key(|&(rank, address, bytes, count)| {
            (rank, std::cmp::Reverse(count), address, bytes)
        });
        Some(Plan {
            pid,
            line: address,
            tids: threads.iter().map(|thread| thread.tid).collect(),
            points: Point::for_accesses(
                places
                    .into_iter()
                    .map(|(_, address, bytes, _)| (address, bytes)),
            ),
        })
    }

    /// Forgets the lines of a process that has ended or executes another program.
    pub fn gone(&mut self, pid: u32) {
        self.lines.retain(|(of, _), _| *of != pid);
    }

    /// Makes room: forgets the half with the fewest accesses.
    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.lines.values().map(|line| line.accesses).collect();
        let middle = counts.len() / 2;
        let (_, &mut median, _) = counts.select_nth_unstable(middle);
        let mut spare = self.lines.len() - middle;
        self.lines.retain(|_, line| {
            let keep = line.accesses > median || spare == 0;
            spare -= usize::from(!keep);
            keep
        });
    }
}

impl Line {
    /// The counts of a thread; `None` when the line has too many threads already.
    fn thread(&mut self, tid: u32) -> Option<&mut Thread> {
        let known = self.threads.iter().position(|thread| thread.tid == tid);
        if known.is_none() && self.threads.len() < MAX_KNOWN_THREADS {
            self.threads.push(Thread {
                tid,
                accesses: 0,
                wrote: 0,
                places: Vec::new(),
            });
            return self.threads.last_mut();
        }
        known.map(|at| &mut self.threads[at])
    }

    fn is_shared(&self) -> bool {
        self.threads.len() > 1 && self.threads.iter().any(|thread| thread.wrote > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(tid: u32, address: u64, wrote: Wrote) -> ObservedAccess {
        ObservedAccess {
            pid: 1,
            tid,
            address,
            bytes: 8,
            wrote,
        }
    }

    fn suspects(accesses: &[(u32, u64, Wrote)]) -> Suspects {
        let mut suspects = Suspects::new(64);
        for &(tid, address, wrote) in accesses {
            suspects.note(access(tid, address, wrote));
        }
        suspects
    }

    #[test]
    fn each_side_of_a_fight_has_a_watchpoint() {
        use Wrote::{No, Yes};
        let mut accesses = Vec::new();
        for round in 0..10 {
            accesses.extend([64, 72, 80, 88, 96].map(|address| (1, address, Yes)));
            if round == 0 {
                accesses.push((2, 112, No));
            }
        }
        let plan = suspects(&accesses).next_plan().unwrap();
        let first: Vec<u64> = plan.points.iter().take(2).map(|it| it.address).collect();
        assert_eq!(first, [64, 112]);
    }

    #[test]
    fn a_line_is_suspect_when_two_threads_use_it_and_one_writes() {
        use Wrote::{No, Yes};
        assert_eq!(suspects(&[(1, 64, Yes), (1, 72, Yes)]).next_plan(), None);
        assert_eq!(suspects(&[(1, 64, No), (2, 72, No)]).next_plan(), None);
        assert_eq!(suspects(&[(1, 64, Yes), (2, 128, No)]).next_plan(), None);
        let plan = suspects(&[(1, 64, Yes), (2, 72, No), (2, 72, No)]).next_plan();
        let expected = Plan {
            pid: 1,
            line: 64,
            tids: vec![2, 1],
            points: [72, 64].map(|address| Point { address, bytes: 8 }).to_vec(),
        };
        assert_eq!(plan, Some(expected));
    }

    #[test]
    fn lines_take_turns_by_how_much_was_seen_of_them() {
        let mut suspects = Suspects::new(64);
        for (line, times) in [(0, 30), (64, 10)] {
            for _ in 0..times {
                suspects.note(access(1, line, Wrote::Yes));
                suspects.note(access(2, line + 8, Wrote::Yes));
            }
        }
        let order: Vec<u64> = (0..8)
            .filter_map(|_| Some(suspects.next_plan()?.line))
            .collect();
        assert_eq!(
            order.iter().filter(|&&line| line == 0).count(),
            6,
            "{order:?}"
        );
        assert_eq!(order[0], 0);
    }

    #[test]
    fn processes_that_end_are_forgotten_and_lines_are_bounded() {
        let mut suspects = suspects(&[(1, 64, Wrote::Yes), (2, 72, Wrote::No)]);
        for number in 0..3 * MAX_LINES as u64 {
            suspects.note(access(1, 4096 + number * 64, Wrote::Yes));
        }
        assert!(suspects.lines.len() <= MAX_LINES);
        assert!(
            suspects.next_plan().is_some(),
            "what was seen more often stays"
        );
        suspects.gone(1);
        assert_eq!(suspects.next_plan(), None);
    }
}
