//! The output of lmbench's `lat_mem_rd`, so that scripts written for it read ours.
//!
//! That program writes `"stride=N` (with one quotation mark, as xgraph wants it), then a
//! line `size latency` for each size, in MiB with five and nanoseconds with three digits,
//! and an empty line after each stride. Nothing else may stand there, so what has to be
//! said about the figures is handed to the caller as [`CONVENTION`].

use std::collections::BTreeSet;
use std::fmt::Write as _;

use membound_types::{Latency, LatencyPoint, Timer};
use thiserror::Error;

use crate::facts;

/// What the latencies in this output mean, for the caller to say beside it.
pub const CONVENTION: &str = "latencies follow lat_mem_rd's convention: the load's first core \
    clock cycle is left out; membound's own figures (text, JSON, CSV, page) include it";

/// Why a latency part cannot be written in this format.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is not one point.
    #[error("no latency points to write as lat_mem_rd output")]
    NoPoints,
    /// The format has no column for what differs between the points.
    #[error(
        "lat_mem_rd output holds one {what}, but these points have {found}; narrow with {narrow}"
    )]
    Several {
        /// What there is more than one of.
        what: &'static str,
        /// The values there are.
        found: String,
        /// The flag that leaves one.
        narrow: &'static str,
    },
    /// Without the core clock, the first cycle cannot be taken off.
    #[error("core clock of {hz} Hz cannot be used to take the first cycle off; measure again")]
    NoCoreClock {
        /// What the document says.
        hz: f64,
    },
}

/// The points as `lat_mem_rd` writes them, one core cycle taken off and never below zero.
///
/// # Errors
///
/// When there are no points, when they differ in more than size and stride, and when
/// `timer` holds no usable core clock.
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
