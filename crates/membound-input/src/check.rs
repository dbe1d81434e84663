//! Limits of plausible values. A value beyond them is in another unit, or broken.
//!
//! The limits are wide on purpose: mistakes by a factor of a thousand and
//! more exceed them, unusual machines do not.

use crate::text::{figure, plural};

/// Least bytes of a chase or a window: one pointer, one double.
const MIN_BYTES: u64 = 8;

/// Most bytes of a chase or a window: what page tables of five levels can map.
const MAX_BYTES: u64 = 1 << 57;

/// Least nanoseconds of a load that the next one waits for: a cycle at 100 GHz.
const MIN_LOAD_NS: f64 = 0.01;

/// Most nanoseconds of a load from memory: a millisecond, the time of a disk access.
const MAX_LOAD_NS: f64 = 1e6;

/// Least nanoseconds per byte of a window: 100 TB/s, from one core.
const MIN_WINDOW_NS_PER_BYTE: f64 = 1e-5;

/// Bytes of the shortest line; a window may take [`MAX_LOAD_NS`] for each of its lines.
const LINE_BYTES: u64 = 32;

/// Checks the size of a buffer, a window or an area, in bytes.
///
/// # Errors
/// A fragment of a message that begins with the size.
pub(crate) fn size(bytes: u64) -> Result<(), String> {
    if bytes == 0 {
        return Err("0 bytes hold nothing; sizes are above 0".to_owned());
    }
    if bytes < MIN_BYTES {
        let bytes = usize::try_from(bytes).unwrap_or_default();
        return Err(format!(
            "{} hold no pointer and no double: is this KiB or MiB? Sizes are in bytes",
            plural(bytes, "byte")
        ));
    }
    if bytes > MAX_BYTES {
        return Err(format!(
            "{bytes} bytes are more than any machine addresses; sizes are in bytes"
        ));
    }
    Ok(())
}

/// Checks that a time, in any unit, is positive and finite.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn time(value: f64) -> Result<(), String> {
    if value.is_nan() {
        return Err("NaN is no time; leave the line out where nothing was measured".to_owned());
    }
    if value.is_infinite() {
        return Err(format!("{} is not finite", figure(value)));
    }
    if value < 0.0 {
        return Err(format!("{} is negative; times are above 0", figure(value)));
    }
    if value == 0.0 {
        return Err("0 is no time; times are above 0".to_owned());
    }
    Ok(())
}

/// Checks that one load can take `ns` nanoseconds.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn load(ns: f64) -> Result<(), String> {
    time(ns)?;
    if ns < MIN_LOAD_NS {
        return Err(format!(
            "{} ns is too short for a load: are these seconds or microseconds? Expected are \
             nanoseconds",
            figure(ns)
        ));
    }
    if ns > MAX_LOAD_NS {
        return Err(format!(
            "{} ns would be {} ms for one load: are these picoseconds? Expected are \
             nanoseconds",
            figure(ns),
            figure(ns / 1e6)
        ));
    }
    Ok(())
}

/// Checks that a window of `window_bytes` can take `seconds`.
///
/// # Errors
/// A fragment of a message that begins with the value.
pub(crate) fn window(window_bytes: u64, seconds: f64) -> Result<(), String> {
    time(seconds)?;
    let ns = seconds * 1e9;
    let lines = window_bytes.div_ceil(LINE_BYTES) as f64;
    if ns > MAX_LOAD_NS * lines {
        return Err(format!(
            "{0} would be {0} s for {window_bytes} bytes: are these nanoseconds? Expected are \
             seconds",
            figure(seconds)
        ));
    }
    if ns < MIN_WINDOW_NS_PER_BYTE * window_bytes as f64 {
        return Err(format!(
            "{} s is too short for {window_bytes} bytes; expected are seconds for a whole window",
            figure(seconds)
        ));
    }
    Ok(())
}

/// Checks the ends of an interval around `value`; `None` unless both are given.
///
/// # Errors
/// A fragment of a message that begins with the interval.
pub(crate) fn interval(
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
) -> Result<Option<(f64, f64)>, String> {
    let (Some(low), Some(high)) = (low, high) else {
        return Ok(None);
    };
    if !(low.is_finite() && high.is_finite() && low >= 0.0) {
        return Err(format!(
            "{} to {} is no interval of times",
            figure(low),
            figure(high)
        ));
    }
    if low > value || high < value {
        return Err(format!(
            "{} to {} does not hold its value {}",
            figure(low),
            figure(high),
            figure(value)
        ));
    }
    Ok(Some((low, high)))
}
