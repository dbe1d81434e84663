//! Time of a program's loop when its data are in the first cache: what its iterations would take if they never
//! waited for memory.
//!
//! A loop that goes through memory in order shows no latency (prefetchers hide it) and its hits overlap with
//! everything else, so neither timed accesses nor counts of hits tell how much of its time is a wait. The time
//! of the same instructions on data in the first cache does. [`iteration_ns`] executes the body of an innermost
//! loop a few dozen times in a row, with registers of zeros, and with each of its memory operands moved to a
//! small buffer of zeros. An operand keeps its registers, so that it advances as in the program and stores are
//! forwarded to loads as in the program.
//!
//! Instructions that could do anything but compute are refused, and the copy runs in a child process of its own:
//! should an address leave the buffers after all, the child ends and there is no result.

#[cfg(target_arch = "x86_64")]
mod body;
#[cfg(target_arch = "x86_64")]
mod run;

/// Time in nanoseconds of one iteration of the loop that is entered at `entry`, with its data in the first cache.
/// `code` is the machine code of the function, which lies at `address`.
///
/// `None` if the loop is not one stretch of code that ends with the jump back, if its instructions cannot be executed apart from their program,
/// or if the time could not be measured. Always `None` on machines other than x86-64.
#[must_use]
pub fn iteration_ns(code: &[u8], address: u64, entry: u64) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    {
        run::iteration_ns(&body::Body::decode(code, address, entry)?)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (code, address, entry);
        None
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
