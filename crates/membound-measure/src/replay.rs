//! Time of a program's loop when its data are in the first cache: what its iterations would take if they never
//! waited for memory.
//!
//! A loop that goes through memory in order shows no latency (prefetchers hide it) and its hits overlap with
//! everything else, so neither timed accesses nor counts of hits tell how much of its time is a wait. The time
//! of the same instructions on data in the first cache does. [`iteration_time`] executes an innermost loop ([`LoopBody`])
//! with registers of zeros, and with each of its memory operands moved to a small buffer of zeros. An operand keeps its
//! registers, so that it advances as in the program and stores are forwarded to loads as in the program. Where a register
//! says when the loop ends, it is executed as a loop, of a quarter and a half of a thousand iterations if the buffers permit:
//! of fewer, the processor may foresee the end, and of twice as many not. Otherwise a few dozen iterations are written out.
//!
//! A [`LoopBody`] contains only instructions that compute, and the copy runs in a child process of its own:
//! should an address leave the buffers after all, the child ends and there is no result.

#[cfg(target_arch = "x86_64")]
mod alignment;
mod iteration;
#[cfg(target_arch = "x86_64")]
mod run;

use std::time::Duration;

pub use iteration::IterationTime;
use membound_rewrite::stall::LoopBody;

/// Time of one iteration of a loop, with its data in the first cache. The measurements are distributed over the
/// duration `within`, for which this function sleeps most of the time.
///
/// `None` if the time could not be measured. Always `None` on machines other than x86-64.
#[must_use]
pub fn iteration_time(body: &LoopBody, within: Duration) -> Option<IterationTime> {
    #[cfg(target_arch = "x86_64")]
    {
        run::iteration_time(body, within)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (body, within);
        None
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
