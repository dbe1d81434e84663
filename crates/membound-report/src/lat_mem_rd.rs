//! Output in the format of lmbench's `lat_mem_rd`, for scripts that read it.
//!
//! That program writes `"stride=N` (with one quotation mark, as xgraph expects), then a line `size latency`
//! for each size, in MiB with five and nanoseconds with three decimals, and an empty line after each
//! stride. The format has no room for remarks, so the caller must show [`CONVENTION`] elsewhere.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use membound_types::{Latency, LatencyPoint, Timer};
use thiserror::Error;

use crate::facts;

/// Explains the latencies of this output; the caller shows it beside the output.
pub const CONVENTION: &str = "latencies follow lat_mem_rd's convention: the load's first core \
    clock cycle is left out; membound's own figures (text, JSON, CSV, page) include it";

/// Why a latency part cannot be written in this format.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The part has no points.
    #[error("no latency points to write as lat_mem_rd output")]
    NoPoints,
    /// The points differ in a condition for which the format has no column.
    #[error(
        "lat_mem_rd output holds one {what}, but these points have {found}; narrow with {narrow}"
    )]
    Several {
        /// Condition that has several values.
        what: &'static str,
        /// Values of the condition, as text.
        found: String,
        /// Command-line option that selects one value.
        narrow: &'static str,
    },
    /// The core clock is unknown, so the first cycle cannot be subtracted.
    #[error("core clock of {hz} Hz cannot be used to take the first cycle off; measure again")]
    NoCoreClock {
        /// Core clock in the document, in Hz.
        hz: f64,
    },
}

/// Formats the points like `lat_mem_rd`: one core cycle is subtracted, and no latency is below zero.
///
/// # Errors
///
/// If there are no points, if they differ in more than size and stride, or if `timer` has no usable core
/// clock.
pub fn render(latency: &Latency, timer: &Timer) -> Result<String, Error> {
    if latency.points.is_empty() {
        return Err(Error::NoPoints);
    }
    one_only(latency)?;
    if !(timer.core_clock_hz.is_finite() && timer.core_clock_hz > 0.0) {
        return Err(Error::NoCoreClock {
            hz: timer.core_clock_hz,
        });
    }
    let cycle_ns = 1e9 / timer.core_clock_hz;
    let strides: BTreeSet<u64> = latency.points.iter().map(|p| p.stride_bytes).collect();
    let mut out = String::new();
    for stride in strides {
        let mut points: Vec<&LatencyPoint> = latency
            .points
            .iter()
            .filter(|point| point.stride_bytes == stride && point.ns.is_finite())
            .collect();
        points.sort_by_key(|point| point.size_bytes);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\"stride={stride}");
        for point in points {
            let size_mib = point.size_bytes as f64 / (1024.0 * 1024.0);
            let ns = (point.ns - cycle_ns).max(0.0);
            let _ = writeln!(out, "{size_mib:.5} {ns:.3}");
        }
        out.push('\n');
    }
    Ok(out)
}

fn one_only(latency: &Latency) -> Result<(), Error> {
    check(latency, "pattern", "--pattern", |p| p.pattern.to_string())?;
    check(latency, "page kind", "--page", |p| p.page.to_string())?;
    check(latency, "number of copies", "--threads", |p| {
        p.threads.to_string()
    })?;
    check(latency, "kind of access", "--access", |p| {
        p.access.to_string()
    })?;
    check(latency, "node policy", "--node", |p| p.node.to_string())?;
    check(latency, "CPU", "--cpu", |p| p.cpu.to_string())?;
    check(
        latency,
        "state of the prefetchers",
        "`measure latency` alone",
        |p| facts::prefetch_state_title(&p.prefetch),
    )
}

fn check(
    latency: &Latency,
    what: &'static str,
    narrow: &'static str,
    value: impl Fn(&LatencyPoint) -> String,
) -> Result<(), Error> {
    let found: BTreeSet<String> = latency.points.iter().map(value).collect();
    if found.len() > 1 {
        return Err(Error::Several {
            what,
            found: found.into_iter().collect::<Vec<_>>().join(", "),
            narrow,
        });
    }
    Ok(())
}
