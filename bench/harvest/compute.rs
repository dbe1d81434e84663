//! A scavenger that only computes: Fibonacci numbers modulo a prime, by addition, and Leibniz's
//! series for pi. It waits for no memory.
//!
//!     compute [UNITS]
//!
//! UNITS: 0 (default) for ever. A unit is 16384 steps of each. Both results are held against their
//! closed forms after every unit; at the end the program prints `work` and the units done.
//!
//! Built twice: as a `cdylib` that exports `main`, and as a program (`--cfg program`).
#![cfg_attr(program, no_main)]

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Exit codes: the answer was wrong; the arguments were.
const WRONG: c_int = 1;
const USAGE: c_int = 2;

/// Steps of a unit.
const STEPS: u64 = 16384;

/// The prime 2^61 - 1.
const PRIME: u64 = (1 << 61) - 1;

/// Units of work done so far, for whoever loaded the object. Copies that run on one loaded image
/// add to the same number; each prints its own at its end.
#[unsafe(no_mangle)]
pub static scavenger_work: AtomicU64 = AtomicU64::new(0);

/// Two neighbours of the Fibonacci sequence modulo [`PRIME`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Neighbours(u64, u64);

/// `a + b` modulo [`PRIME`], both below it.
const fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= PRIME { sum - PRIME } else { sum }
}

/// `a * b` modulo [`PRIME`], both below it.
fn multiply(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64
}

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        size: usize,
        may: c_int,
        how: c_int,
        file: c_int,
        from: c_long,
    ) -> *mut c_void;
}

/// As in common.h: lines of 64 bytes, of which the first tells how many others are taken.
const COUNTS_BYTES: usize = 4096;
const LINE_COUNTS: usize = 8;
/// PROT_READ | PROT_WRITE and MAP_SHARED of Linux.
const READ_WRITE: c_int = 3;
const SHARED: c_int = 1;

/// Where this copy counts its own units: a line of the file that the environment names in
/// HARVEST_PROGRESS, else a number that nobody looks at; a line for a person where that fails.
fn own_count() -> Result<&'static AtomicU64, String> {
    static UNSEEN: AtomicU64 = AtomicU64::new(0);
    let Some(path) = std::env::var_os("HARVEST_PROGRESS") else {
        return Ok(&UNSEEN);
    };
    let told = |error| format!("compute: {}: {error}", path.display());
    let file = File::options().read(true).write(true).open(&path);
    let file = file.map_err(|error| told(error.to_string()))?;
    let descriptor = file.as_raw_fd();
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let mapped = unsafe { mmap(null_mut(), COUNTS_BYTES, READ_WRITE, SHARED, descriptor, 0) };
    if mapped.addr() == usize::MAX {
        return Err(told(std::io::Error::last_os_error().to_string()));
    }
    // SAFETY: the mapping has so many bytes, begins with a page, and is never taken away.
    let counts: &'static [AtomicU64; COUNTS_BYTES / 8] = unsafe { &*mapped.cast() };
    let line = 1 + counts[0].fetch_add(1, Ordering::Relaxed) as usize;
    let own = counts.get(line * LINE_COUNTS);
    own.ok_or_else(|| told("no line left".to_owned()))
}

/// [`STEPS`] additions on from `at`.
#[inline(never)]
fn step(at: Neighbours) -> Neighbours {
    let Neighbours(mut a, mut b) = at;
    for _ in 0..STEPS {
        (a, b) = (b, add(a, b));
    }
    Neighbours(a, b)
}

/// F(n) and F(n + 1) modulo [`PRIME`] by doubling:
/// F(2k) = F(k) · (2 F(k + 1) − F(k)), F(2k + 1) = F(k)² + F(k + 1)².
fn fibonacci(n: u64) -> Neighbours {
    let mut at = Neighbours(0, 1);
    for bit in (0..u64::BITS).rev() {
        let Neighbours(a, b) = at;
        let double = multiply(a, add(add(b, b), PRIME - a));
        let next = add(multiply(a, a), multiply(b, b));
        at = if n >> bit & 1 == 1 {
            Neighbours(next, add(double, next))
        } else {
            Neighbours(double, next)
        };
    }
    at
}

/// The first `2 * STEPS` terms of Leibniz's series, times four.
#[inline(never)]
fn pi() -> f64 {
    let mut sum = 0.0;
    let mut odd = 1.0;
    for _ in 0..black_box(STEPS) {
        sum += 1.0 / odd - 1.0 / (odd + 2.0);
        odd += 4.0;
    }
    4.0 * sum
}

/// Whether `found` is pi less one over the number of terms, which is what the series lacks but
/// for terms of the third order.
fn is_pi(found: f64) -> bool {
    let lacks = 1.0 / (2 * STEPS) as f64;
    (std::f64::consts::PI - lacks - found).abs() < 1e-9
}

/// The one argument, if there is one; a line for a person otherwise.
fn units(arguments: &[&CStr]) -> Result<u64, String> {
    match arguments {
        [] => Ok(0),
        [text] => {
            let text = text.to_string_lossy();
            text.parse()
                .map_err(|_| format!("compute: UNITS must be a number, not {text}"))
        }
        [_, text, ..] => Err(format!(
            "compute: unexpected argument {}",
            text.to_string_lossy()
        )),
    }
}

/// Does `units` of work, or works for ever when that is 0, and counts them in `own`. Gives the units
/// done, and whether their results were right.
fn work(units: u64, own: &AtomicU64) -> (u64, bool) {
    let mut at = Neighbours(0, 1);
    let mut done = 0;
    while units == 0 || done < units {
        at = step(at);
        let pi = pi();
        done += 1;
        // No locked addition, which would be more than computing.
        let before = scavenger_work.load(Ordering::Relaxed);
        scavenger_work.store(before + 1, Ordering::Relaxed);
        own.store(done, Ordering::Relaxed);
        if at != fibonacci(done * STEPS) || !is_pi(pi) {
            return (done, false);
        }
    }
    (done, true)
}

/// The entry of program and object alike.
///
/// # Safety
/// `argv` holds `argc` strings that end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let arguments: Vec<&CStr> = (1..usize::try_from(argc).unwrap_or(0))
        .map(|i| {
            // SAFETY: there are argc pointers.
            let text = unsafe { *argv.add(i) };
            // SAFETY: each is to a string, which lives as long as this function runs.
            unsafe { CStr::from_ptr(text) }
        })
        .collect();
    let units = match units(&arguments) {
        Ok(units) => units,
        Err(line) => {
            eprintln!("{line}");
            return USAGE;
        }
    };
    let own = match own_count() {
        Ok(own) => own,
        Err(line) => {
            eprintln!("{line}");
            return WRONG;
        }
    };
    let (done, right) = work(units, own);
    println!("work {done}");
    if right {
        return 0;
    }
    eprintln!("compute: wrong result");
    WRONG
}
