//! Reads saved output of Intel Memory Latency Checker.
//!
//! A run of `--idle_latency` with a buffer size gives one point of a curve over sizes; runs with
//! several sizes are saved one after the other. The program prints the size in MiB with three
//! decimal places, which is imprecise for small buffers, so the value of `-b` in the repeated
//! command line is used instead if it agrees. A file without such points can contain latency under
//! traffic ([`loaded`]).

mod loaded;

use membound_types::{FitData, Observation};

use crate::check;
use crate::collect::{Collector, Conditions};
use crate::content::Content;
use crate::error::Fault;
use crate::number;
use crate::text::shown;

/// Decimal places of the printed buffer size.
const DECIMALS: i32 = 3;

const RESULT: &str = "Each iteration took";
const BUFFER: &str = "Using buffer size of";

/// True if `line`, already trimmed, is one that only this program writes.
pub(crate) fn recognises(line: &str) -> bool {
    line.starts_with("Intel(R) Memory Latency Checker")
        || line.starts_with(BUFFER)
        || (line.starts_with(RESULT) && line.contains("clocks"))
        || line.starts_with("Measuring idle latencies")
        || line.starts_with("Measuring Loaded Latencies")
        || (line.starts_with("Inject") && line.contains("Bandwidth"))
}

/// Headings of the program's other results, none of which is a curve over sizes.
const TABLES: [(&str, &str); 5] = [
    ("Measuring idle latencies", "a latency matrix"),
    ("Inject", "loaded latencies"),
    ("Measuring Loaded Latencies", "loaded latencies"),
    ("Bandwidths are in MB/sec", "bandwidths"),
    ("Measuring cache-to-cache", "cache-to-cache latencies"),
];

const REMEDY: &str = "measured with one buffer size, which makes no curve; a curve comes from \
                      `mlc --idle_latency -b<KiB>` run once for each size, four sizes or so an \
                      octave, all saved in one file";

/// Reads the output of one run or of several.
///
/// # Errors
/// A fault with the line and the value that cannot be used, or the reason why there is no curve.
pub(crate) fn read(text: &str) -> Result<Content, Fault> {
    let mut collector = Collector::new(FitData::Latency);
    let mut asked = None;
    let mut printed: Option<&str> = None;
    let mut results = 0;
    let mut table = None;
    let mut random = false;
    for (line, content) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(size) = content.strip_prefix(BUFFER) {
            printed = Some(size.trim());
        } else if loaded::is_command(content) {
            asked = buffer_option(content);
        } else if content.contains("enabling random access") {
            random = true;
        } else if content.starts_with(RESULT) {
            results += 1;
            let (area_bytes, ns) =
                point(content, asked, printed).map_err(|what| Fault::line(line, what))?;
            let observation = Observation {
                window_bytes: None,
                area_bytes,
                ns,
                ns_low: None,
                ns_high: None,
            };
            collector.push(&Conditions::default(), None, observation, &[]);
            (asked, printed) = (None, None);
        } else if let Some((_, what)) = TABLES.iter().find(|(mark, _)| content.starts_with(mark)) {
            table.get_or_insert((line, *what));
        }
    }
    if results == 0 {
        if let Some(curves) = loaded::read(text)? {
            return Ok(Content::Loaded(curves));
        }
        return Err(match table {
            Some((line, what)) => Fault::line(line, format!("{what}, {REMEDY}")),
            None => Fault::File(
                "output of Intel MLC without a result; a curve comes from \
                 `mlc --idle_latency -b<KiB>` run once for each size, four sizes or so an octave, \
                 all saved in one file"
                    .to_owned(),
            ),
        });
    }
    let mut notes = Vec::new();
    if random {
        notes.push(
            "MLC could not switch the prefetchers off and visited the buffer at random".to_owned(),
        );
    }
    if let Some((line, what)) = table {
        notes.push(format!(
            "line {line}: {what} belong to one buffer size and were passed over"
        ));
    }
    collector.finish(&notes).map(Content::Curves)
}

/// The buffer size in bytes that a command line requests; a number without unit counts KiB.
fn buffer_option(command: &str) -> Option<u64> {
    let value = command
        .split_whitespace()
        .find_map(|word| word.strip_prefix("-b"))?;
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        number::count(value).ok()?.checked_mul(1024)
    } else {
        number::parse_size(value).ok()
    }
}

/// Size in bytes and latency in nanoseconds of a result.
fn point(result: &str, asked: Option<u64>, printed: Option<&str>) -> Result<(u64, f64), String> {
    let Some(printed) = printed else {
        return Err(format!(
            "no `{BUFFER} …MiB` line before this result; save MLC's output whole"
        ));
    };
    let Some(mib) = printed.strip_suffix("MiB").map(str::trim) else {
        return Err(format!(
            "buffer size: {} is not in MiB, as in `2000.000MiB`",
            shown(printed)
        ));
    };
    let area_bytes = match asked {
        Some(bytes) if number::prints_as_mib(bytes, mib, DECIMALS) => {
            check::size(bytes).map(|()| bytes)
        }
        _ => number::printed_mib(mib, DECIMALS),
    }
    .map_err(|what| format!("buffer size: {what}"))?;
    let ns = result
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once("ns"))
        .map(|(ns, _)| ns.trim())
        .ok_or_else(|| {
            "no latency in nanoseconds, as in `Each iteration took 200.1 base frequency clocks \
             (80.0 ns)`: is the line cut off?"
                .to_owned()
        })?;
    let ns = number::number(ns)
        .and_then(|ns| check::load(ns).map(|()| ns))
        .map_err(|what| format!("latency: {what}"))?;
    Ok((area_bytes, ns))
}
