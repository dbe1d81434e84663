//! Reads the tables of `mlc --loaded_latency`: latency under one kind of traffic each.

use crate::error::Fault;
use crate::number;
use crate::text::shown;
use crate::traffic::{LoadedCurve, LoadedCurves, Traffic};

/// MLC's bandwidths are in 10⁶ bytes per second.
const MB_S_PER_GB_S: f64 = 1000.0;

const NO_INTERVAL: &str = "MLC states no interval; the usual scatter is assumed";

/// The curves of all such tables; `None` if the text has none.
///
/// # Errors
/// A fault with the line and the value that cannot be used.
pub(super) fn read(text: &str) -> Result<Option<Vec<LoadedCurve>>, Fault> {
    let mut curves = LoadedCurves::default();
    let mut traffic = Traffic::reads();
    let mut is_table = false;
    let mut seen = false;
    for (line, content) in (1..).zip(text.lines().map(str::trim)) {
        if is_command(content) {
            traffic = traffic_of(content);
            is_table = false;
        } else if content.starts_with("Using Read-only traffic type") {
            traffic = Traffic::reads();
        } else if content.starts_with("Measuring Loaded Latencies") {
            seen = true;
        } else if content.starts_with("Inject") {
            (is_table, seen) = (true, true);
        } else if is_table {
            is_table =
                row(content, &traffic, &mut curves).map_err(|what| Fault::line(line, what))?;
        }
    }
    if !seen {
        return Ok(None);
    }
    curves.finish(&[NO_INTERVAL.to_owned()]).map(Some)
}

/// True if `content` is a command line of the program, typed by a user or repeated by the program.
pub(super) fn is_command(content: &str) -> bool {
    content.contains("mlc") || content.starts_with("Command line parameters")
}

/// Reads a line of a table; `false` if the table has ended.
fn row(content: &str, traffic: &Traffic, curves: &mut LoadedCurves) -> Result<bool, String> {
    let fields: Vec<&str> = content.split_whitespace().collect();
    let is_head = content.starts_with("Delay") || content.starts_with("==");
    match fields.as_slice() {
        _ if is_head => Ok(true),
        [delay, ..] if number::count(delay).is_err() => Ok(false),
        [] => Ok(false),
        [_, ns, mb_s] => {
            let mb_s = number::number(mb_s).map_err(|what| format!("bandwidth: {what}"))?;
            let ns = number::number(ns).map_err(|what| format!("latency: {what}"))?;
            curves.push(traffic, mb_s / MB_S_PER_GB_S, ns)?;
            Ok(true)
        }
        _ => Err(format!(
            "{} is not a delay, a latency and a bandwidth: is the line cut off, or was -T given?",
            shown(content)
        )),
    }
}

/// The traffic that the options of a command line select.
fn traffic_of(command: &str) -> Traffic {
    let option = |name: &str| {
        let mut words = command.split_whitespace();
        words.find_map(|word| word.strip_prefix(name).filter(|value| !value.is_empty()))
    };
    if let Some(file) = option("-o") {
        return Traffic::counted_whole(format!("traffic of {}", shown(file)));
    }
    let Some(kind) = option("-W") else {
        return Traffic::reads();
    };
    // Ratios of lines that memory reads to lines that it writes, as `mlc --help` lists them.
    match kind {
        "2" => Traffic::at_memory(2, 1),
        "3" | "11" => Traffic::at_memory(3, 1),
        "4" => Traffic::at_memory(3, 2),
        "5" => Traffic::at_memory(1, 1),
        "12" => Traffic::at_memory(4, 1),
        "13" => Traffic::at_memory(5, 1),
        "14" => Traffic::at_memory(6, 1),
        "15" => Traffic::at_memory(7, 1),
        "16" => Traffic::at_memory(8, 1),
        "17" => Traffic::at_memory(9, 1),
        "6" => Traffic::non_temporal("0:1"),
        "7" | "10" => Traffic::non_temporal("2:1"),
        "8" => Traffic::non_temporal("1:1"),
        "9" => Traffic::non_temporal("3:1"),
        _ => Traffic::counted_whole(format!("traffic of {}", shown(&format!("-W{kind}")))),
    }
}
