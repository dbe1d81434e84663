//! A thread on another CPU that modifies lines on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use membound_platform::affinity::Pinned;
use membound_types::CpuId;

use super::area::MODIFIED_STRIDE_BYTES;
use crate::Error;
use crate::threads::spawned;

/// Number of passes requested and done, each counter in its own line.
#[derive(Debug, Default)]
struct Iterations {
    asked: CacheLineAligned,
    done: CacheLineAligned,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct CacheLineAligned(AtomicU64);

/// Requested instead of a pass to end the thread.
const END: u64 = u64::MAX;
/// Stored in `done` if the thread could not run.
const FAILED: u64 = u64::MAX;
/// Timeout of one pass, after which the thread is given up: it may share its CPU.
const ITERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread, and the number of passes requested from it.
#[derive(Debug)]
pub(super) struct Writer {
    iterations: Arc<Iterations>,
    asked: u64,
}

/// Start of the lines; the thread writes the second word of each.
#[derive(Clone, Copy)]
struct Lines(*mut u8);

// SAFETY: only one thread writes through it, to words that no other thread accesses.
unsafe impl Send for Lines {}

impl Writer {
    /// Starts the thread on `cpu`, for `lines` lines from `start`, which outlive `scope`.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        cpu: CpuId,
        start: *mut u8,
        lines: u64,
    ) -> Result<Self, Error> {
        let iterations = Arc::new(Iterations::default());
        let shared = Arc::clone(&iterations);
        let start = Lines(start);
        spawned(scope, cpu, move || run(&shared, cpu, start, lines))?;
        let mut writer = Self {
            iterations,
            asked: 0,
        };
        if writer.modify() {
            return Ok(writer);
        }
        Err(Error::Copy {
            cpu,
            reason: "it cannot run there".to_owned(),
        })
    }

    /// Requests a pass over all lines and waits for it; false if the thread failed or timed out.
    pub(super) fn modify(&mut self) -> bool {
        self.asked += 1;
        self.iterations.asked.0.store(self.asked, Ordering::Release);
        let started = Instant::now();
        loop {
            match self.iterations.done.0.load(Ordering::Acquire) {
                FAILED => return false,
                done if done == self.asked => return true,
                _ if started.elapsed() > ITERATION_TIMEOUT => return false,
                _ => std::hint::spin_loop(),
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.iterations.asked.0.store(END, Ordering::Release);
    }
}

fn run(iterations: &Iterations, cpu: CpuId, start: Lines, lines: u64) {
    let Lines(start) = start;
    let Ok(_pinned) = Pinned::to(cpu) else {
        iterations.done.0.store(FAILED, Ordering::Release);
        return;
    };
    let mut done = 0;
    loop {
        let asked = iterations.asked.0.load(Ordering::Acquire);
        if asked == END {
            return;
        }
        if asked == done {
            std::hint::spin_loop();
            continue;
        }
        for line in 0..lines {
            let word = start.wrapping_add((line * MODIFIED_STRIDE_BYTES + 8) as usize);
            // SAFETY: the second word of a line of the region, which no other thread accesses.
            unsafe { word.cast::<u64>().write_volatile(asked) };
        }
        done = asked;
        // Release: a thread that reads this count also sees the modified lines.
        iterations.done.0.store(done, Ordering::Release);
    }
}
