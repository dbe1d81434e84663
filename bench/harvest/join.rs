//! A primary: a hash join of two generated relations.
//!
//!     join [BUILD_ROWS [PROBE_ROWS [THREADS [REPEATS]]]]
//!
//! BUILD_ROWS and PROBE_ROWS: powers of two, 4194304 and 33554432 by default; there must be at least
//! twice as many of the second. THREADS: 2 by default. REPEATS: of the probe, 1 by default.
//!
//! The build relation holds every key from 0 to BUILD_ROWS once, in random order, with the payload
//! 3 · key + 1. The probe relation draws its keys, in random order, equally often from 0 to twice
//! BUILD_ROWS, so that every second one finds nothing. The hash table is of chains: buckets with the
//! number of a row, and in each row the number of the next.
//!
//! Prints matches and checksum (the sum of payloads that were found, in all repeats), build_s,
//! probe_s, build_rows_per_s, probe_rows_per_s and probe_ns_per_row (of one thread). Exit code 1
//! when matches or checksum differ from their closed forms.

use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Ends a chain.
const NONE: u32 = u32::MAX;

/// Rows between two calls of [`join_batch_done`].
const BATCH: usize = 4096;

/// A permutation of `0..rows`, a power of two: multiplications by odd numbers, and the upper half
/// of the bits onto the lower one between them.
#[derive(Clone, Copy)]
struct Shuffle {
    mask: u64,
    half: u32,
}

impl Shuffle {
    fn of(rows: usize) -> Self {
        Self {
            mask: rows as u64 - 1,
            half: rows.trailing_zeros().div_ceil(2),
        }
    }

    fn at(self, i: u64) -> u64 {
        let mut x = i;
        for factor in [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9] {
            x = x.wrapping_mul(factor) & self.mask;
            x ^= x >> self.half;
        }
        x
    }
}

/// A row of the build relation in the hash table.
#[derive(Default)]
struct Row {
    key: u64,
    payload: u64,
    /// The next row of the same bucket.
    next: AtomicU32,
}

struct Table {
    buckets: Vec<AtomicU32>,
    rows: Vec<Row>,
    shift: u32,
}

impl Table {
    /// An empty table of as many buckets as rows.
    fn new(rows: usize) -> Self {
        Self {
            buckets: (0..rows).map(|_| AtomicU32::new(NONE)).collect(),
            rows: (0..rows).map(|_| Row::default()).collect(),
            shift: u64::BITS - rows.trailing_zeros(),
        }
    }

    /// By multiplication (Knuth, volume 3, 6.4): the upper bits of the product.
    fn bucket(&self, key: u64) -> &AtomicU32 {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.buckets[(hash >> self.shift) as usize]
    }

    /// The payload of `key`.
    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        let mut at = self.bucket(key).load(Ordering::Relaxed);
        while at != NONE {
            let row = &self.rows[at as usize];
            if row.key == key {
                return Some(row.payload);
            }
            at = row.next.load(Ordering::Relaxed);
        }
        None
    }
}

/// Rows that met, and the sum of their payloads.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Found {
    matches: u64,
    checksum: u64,
}

impl Found {
    fn and(self, other: Self) -> Self {
        Self {
            matches: self.matches + other.matches,
            checksum: self.checksum.wrapping_add(other.checksum),
        }
    }

    fn times(self, count: u64) -> Self {
        Self {
            matches: self.matches * count,
            checksum: self.checksum.wrapping_mul(count),
        }
    }
}

/// Called after every batch of the probe with its rows: a mark for whoever measures from outside.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn join_batch_done(rows: u64) {
    std::hint::black_box(rows);
}

/// Puts a thread's rows into the chains of their buckets.
#[inline(never)]
fn build(table: &Table, first: usize, rows: &[Row]) {
    for (i, row) in rows.iter().enumerate() {
        let before = table
            .bucket(row.key)
            .swap((first + i) as u32, Ordering::Relaxed);
        row.next.store(before, Ordering::Relaxed);
    }
}

/// Looks up `keys`.
#[inline(never)]
fn probe(table: &Table, keys: &[u64]) -> Found {
    let mut found = Found::default();
    for &key in keys {
        if let Some(payload) = table.find(key) {
            found.matches += 1;
            found.checksum = found.checksum.wrapping_add(payload);
        }
    }
    found
}

#[derive(Clone, Copy)]
struct Config {
    build_rows: usize,
    probe_rows: usize,
    threads: usize,
    repeats: u64,
}

impl Config {
    fn read(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut config = Self {
            build_rows: 1 << 22,
            probe_rows: 1 << 25,
            threads: 2,
            repeats: 1,
        };
        for (i, word) in words.enumerate() {
            let most = [1 << 30, 1 << 34, 1024, u64::MAX][i.min(3)];
            let name = ["BUILD_ROWS", "PROBE_ROWS", "THREADS", "REPEATS"]
                .get(i)
                .ok_or_else(|| format!("unexpected argument {word}"))?;
            let value = word
                .parse::<u64>()
                .ok()
                .filter(|&value| (1..=most).contains(&value))
                .ok_or_else(|| format!("{name} must be from 1 to {most}, not {word}"))?;
            match i {
                0 => config.build_rows = value as usize,
                1 => config.probe_rows = value as usize,
                2 => config.threads = value as usize,
                _ => config.repeats = value,
            }
        }
        for (name, rows) in [
            ("BUILD_ROWS", config.build_rows),
            ("PROBE_ROWS", config.probe_rows),
        ] {
            if rows < 2 || !rows.is_power_of_two() {
                return Err(format!("{name} must be a power of two from 2, not {rows}"));
            }
        }
        if config.probe_rows < 2 * config.build_rows {
            return Err("PROBE_ROWS must be at least twice BUILD_ROWS".to_owned());
        }
        Ok(config)
    }

    /// The closed form: each key is probed for `probe_rows / (2 * build_rows)` times in a repeat,
    /// and the payloads are 1, 4, 7 … 3 (`build_rows` - 1) + 1.
    fn truth(self) -> Found {
        let rows = self.build_rows as u64;
        let once = Found {
            matches: rows,
            checksum: 3 * (rows * (rows - 1) / 2) + rows,
        };
        once.times(self.probe_rows as u64 / (2 * rows) * self.repeats)
    }
}

/// From the first thread's begin to the last one's end.
#[derive(Clone, Copy)]
struct Span {
    began: Instant,
    ended: Instant,
}

impl Span {
    fn new(began: Instant, ended: Instant) -> Self {
        Self { began, ended }
    }

    fn and(self, other: Self) -> Self {
        Self::new(self.began.min(other.began), self.ended.max(other.ended))
    }

    fn seconds(self) -> f64 {
        (self.ended - self.began).as_secs_f64()
    }
}

/// What a thread or all of them found, and when.
#[derive(Clone, Copy)]
struct Joined {
    found: Found,
    build: Span,
    probe: Span,
}

impl Joined {
    fn and(self, other: Self) -> Self {
        Self {
            found: self.found.and(other.found),
            build: self.build.and(other.build),
            probe: self.probe.and(other.probe),
        }
    }
}

fn join(config: Config) -> Joined {
    let mut table = Table::new(config.build_rows);
    let shuffle = Shuffle::of(config.build_rows);
    for (i, row) in table.rows.iter_mut().enumerate() {
        row.key = shuffle.at(i as u64);
        row.payload = 3 * row.key + 1;
    }
    let shuffle = Shuffle::of(config.probe_rows);
    let domain = 2 * config.build_rows as u64 - 1;
    let keys: Vec<u64> = (0..config.probe_rows as u64)
        .map(|i| shuffle.at(i) & domain)
        .collect();

    let (table, keys) = (&table, &keys[..]);
    let phase = &Barrier::new(config.threads);
    std::thread::scope(|scope| {
        let part = |rows: usize, thread: usize| {
            rows * thread / config.threads..rows * (thread + 1) / config.threads
        };
        let threads: Vec<_> = (0..config.threads)
            .map(|thread| {
                scope.spawn(move || {
                    let of_build = part(config.build_rows, thread);
                    let of_probe = part(config.probe_rows, thread);
                    phase.wait();
                    let began = Instant::now();
                    build(table, of_build.start, &table.rows[of_build]);
                    let built = Instant::now();
                    phase.wait();
                    let probing = Instant::now();
                    let mut found = Found::default();
                    for _ in 0..config.repeats {
                        for batch in keys[of_probe.clone()].chunks(BATCH) {
                            found = found.and(probe(table, batch));
                            join_batch_done(batch.len() as u64);
                        }
                    }
                    Joined {
                        found,
                        build: Span::new(began, built),
                        probe: Span::new(probing, Instant::now()),
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .reduce(Joined::and)
            .expect("there is a thread")
    })
}

fn main() -> ExitCode {
    let config = match Config::read(std::env::args().skip(1)) {
        Ok(config) => config,
        Err(line) => {
            eprintln!("join: {line}");
            return ExitCode::from(2);
        }
    };
    let joined = join(config);
    let probed = config.probe_rows as f64 * config.repeats as f64;
    let (build_s, probe_s) = (joined.build.seconds(), joined.probe.seconds());
    println!("matches {}", joined.found.matches);
    println!("checksum {}", joined.found.checksum);
    println!("build_s {build_s:.6}");
    println!("probe_s {probe_s:.6}");
    println!("build_rows_per_s {:.0}", config.build_rows as f64 / build_s);
    println!("probe_rows_per_s {:.0}", probed / probe_s);
    println!(
        "probe_ns_per_row {:.2}",
        probe_s * 1e9 * config.threads as f64 / probed
    );
    if joined.found == config.truth() {
        return ExitCode::SUCCESS;
    }
    eprintln!("join: wrong result");
    ExitCode::FAILURE
}
