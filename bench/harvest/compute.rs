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

use std::ffi::{CStr, c_char, c_int};
use std::hint::black_box;
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

/// Does `units` of work, or works for ever when that is 0. Gives the units done, and whether their
/// results were right.
fn work(units: u64) -> (u64, bool) {
    let mut at = Neighbours(0, 1);
    let mut done = 0;
    while units == 0 || done < units {
        at = step(at);
        let pi = pi();
        done += 1;
        // No locked addition, which would be more than computing.
        let before = scavenger_work.load(Ordering::Relaxed);
        scavenger_work.store(before + 1, Ordering::Relaxed);
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
    let (done, right) = work(units);
    println!("work {done}");
    if right {
        return 0;
    }
    eprintln!("compute: wrong result");
    WRONG
}
