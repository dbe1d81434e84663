//! Reads saved output of lmbench's `lat_mem_rd`: a line `"stride=N`, then `size latency` in MiB
//! and nanoseconds, for each stride.
//!
//! The program writes to stderr, so prompts, timings and warnings may be among the output;
//! lines that do not begin with a number are skipped and counted.

use membound_types::{FitData, Observation};

use crate::check;
use crate::collect::{Collector, Conditions};
use crate::content::Curve;
use crate::error::Fault;
use crate::number;
use crate::text::{plural, shown};

/// Decimal places of a printed size.
const DECIMALS: i32 = 5;

const CONVENTION: &str = "lat_mem_rd leaves the load's first core cycle out; the file does not \
                          give the core clock, so it is not added back and every latency is one \
                          cycle below membound's";

const LOCALE: &str = "expected are points: put them in, or save the output again under \
                      `LC_ALL=C`";

const ORDER: &str = "the file does not say in which order the buffer was visited; without -t \
                     lat_mem_rd goes through it stride by stride, which prefetchers shorten";

/// True if `line`, already trimmed, is a header of this format.
pub(crate) fn recognises(line: &str) -> bool {
    line.starts_with("\"stride=")
}

/// Reads the output of one run or of several.
///
/// # Errors
/// A fault with the line and the value that cannot be used.
pub(crate) fn read(text: &str) -> Result<Vec<Curve>, Fault> {
    let mut collector = Collector::new(FitData::Latency);
    let mut stride_bytes = None;
    let mut passed_over = 0;
    for (line, content) in (1..).zip(text.lines().map(str::trim)) {
        if recognises(content) {
            stride_bytes = Some(stride(content).map_err(|what| Fault::line(line, what))?);
            continue;
        }
        let fields: Vec<&str> = content.split_whitespace().collect();
        let Some((&size, rest)) = fields.split_first() else {
            continue;
        };
        if number::number(size).is_err() {
            // Prose may begin with such a number, but then more than one word follows.
            if number::has_decimal_comma(size) && rest.len() == 1 {
                let what = format!("{} has a decimal comma; {LOCALE}", shown(size));
                return Err(Fault::line(line, what));
            }
            passed_over += 1;
            continue;
        }
        let Some(stride_bytes) = stride_bytes else {
            if rest.len() == 1 && number::number(rest[0]).is_ok() {
                return Err(Fault::line(
                    line,
                    "a point before the first `\"stride=N` line; save the output whole",
                ));
            }
            passed_over += 1;
            continue;
        };
        let (area_bytes, ns) = point(size, rest).map_err(|what| Fault::line(line, what))?;
        let mut conditions = Conditions::default();
        conditions.add("stride_bytes", &stride_bytes.to_string());
        let observation = Observation {
            window_bytes: None,
            area_bytes,
            ns,
            ns_low: None,
            ns_high: None,
        };
        collector.push(&conditions, Some(stride_bytes), observation, &[]);
    }
    let mut notes = vec![CONVENTION.to_owned(), ORDER.to_owned()];
    if passed_over > 0 {
        notes.push(format!(
            "{} that do not belong to lat_mem_rd's output were passed over",
            plural(passed_over, "line")
        ));
    }
    collector.finish(&notes)
}

fn stride(header: &str) -> Result<u64, String> {
    let value = header
        .trim_start_matches("\"stride=")
        .trim_end_matches('"')
        .trim();
    number::stride(value).map_err(|what| format!("stride: {what}; expected is `\"stride=64`"))
}

/// Size in bytes and latency in nanoseconds of a line.
fn point(size: &str, rest: &[&str]) -> Result<(u64, f64), String> {
    let [latency] = rest else {
        return Err(format!(
            "{} after the size {}, expected is one, the latency in nanoseconds",
            plural(rest.len(), "field"),
            shown(size)
        ));
    };
    let area_bytes = number::printed_mib(size, DECIMALS).map_err(|what| format!("size: {what}"))?;
    let ns = number::number(latency)
        .and_then(|ns| check::load(ns).map(|()| ns))
        .map_err(|what| format!("latency: {what}"))?;
    Ok((area_bytes, ns))
}
