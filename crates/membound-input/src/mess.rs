//! Reads results of the Mess benchmark: `memory_curves.csv` and `memory_curves.json`, which its
//! plotter writes.
//!
//! Both contain latency in nanoseconds under traffic in 10⁹ bytes per second, for each share of reads
//! in percent. The table also says what the share refers to: `read_pct_rounded` counts reads at
//! memory, `rd_percentage` loads of the program.

use std::collections::BTreeMap;

use crate::csv;
use crate::error::Fault;
use crate::number;
use crate::text::{plural, shown};
use crate::traffic::{LoadedCurve, LoadedCurves, Traffic};

/// Least share of reads at memory in percent, if stores read each line before they write it.
const MIN_READS_AT_MEMORY: f64 = 50.0;

/// Column with the share of reads at memory.
const AT_MEMORY: &str = "read_pct_rounded";
/// Column with the share of loads in the program.
const IN_PROGRAM: &str = "rd_percentage";
/// Columns of traffic and latency: measured values, or if those are missing, plotted ones.
const VALUES: [[&str; 2]; 3] = [
    ["bandwidth_mean", "latency_mean"],
    ["bandwidth", "latency"],
    ["bandwidth_smooth", "latency_smooth"],
];

const BY_MEMORY: &str = "shares are taken for reads at memory, as Mess's plotter groups by default";
const BY_PROGRAM: &str =
    "the file has shares below 50%, so its shares are taken for loads of the program";

/// True if `line` is the header of a table of Mess.
pub(crate) fn recognises(line: &str) -> bool {
    let columns = csv::split(line).unwrap_or_default();
    let has = |name: &str| columns.iter().any(|column| column == name);
    (has(AT_MEMORY) || has(IN_PROGRAM)) && VALUES.iter().flatten().any(|name| has(name))
}

/// The curves of a JSON document of Mess; `None` for any other text.
///
/// # Errors
/// A fault with the path of an implausible value.
pub(crate) fn read_json(text: &str) -> Option<Result<Vec<LoadedCurve>, Fault>> {
    let groups: BTreeMap<String, Vec<[f64; 2]>> = serde_json::from_str(text).ok()?;
    if groups.is_empty() {
        return None;
    }
    let mut shares = Vec::new();
    for (share, points) in &groups {
        shares.push((percent(share).ok()?, share, points));
    }
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let by_program = shares
        .iter()
        .any(|(share, ..)| *share < MIN_READS_AT_MEMORY);
    let mut curves = LoadedCurves::default();
    for (share, name, points) in shares {
        let traffic = traffic(share, by_program);
        for (index, [gb_s, ns]) in points.iter().enumerate() {
            if let Err(what) = curves.push(&traffic, *gb_s, *ns) {
                let path = format!("{name}[{index}]");
                return Some(Err(Fault::Field { path, what }));
            }
        }
    }
    let basis = if by_program { BY_PROGRAM } else { BY_MEMORY };
    Some(curves.finish(&[basis.to_owned()]))
}

/// Reads a table of Mess.
///
/// # Errors
/// A fault with line, column and value.
pub(crate) fn read_csv(text: &str) -> Result<Vec<LoadedCurve>, Fault> {
    let mut rows = csv::rows(text);
    let Some((line, header)) = rows.next() else {
        return Err(Fault::Empty);
    };
    let names = csv::split(header).map_err(|what| Fault::line(line, what))?;
    let position = |name: &str| names.iter().position(|column| *column == name);
    let by_program = position(AT_MEMORY).is_none();
    let share = if by_program { IN_PROGRAM } else { AT_MEMORY };
    let both = VALUES
        .into_iter()
        .find_map(|[gb_s, ns]| Some((position(gb_s)?, position(ns)?)));
    let (Some(share_at), Some((gb_s_at, ns_at))) = (position(share), both) else {
        let what = "a table of Mess without both columns `bandwidth_mean` and `latency_mean`";
        return Err(Fault::line(line, what));
    };
    let mut curves = LoadedCurves::default();
    let mut empty = 0;
    for (line, row) in rows {
        let fields = csv::fields(row, names.len()).map_err(|what| Fault::line(line, what))?;
        if [share_at, gb_s_at, ns_at]
            .iter()
            .any(|at| fields[*at].is_empty())
        {
            empty += 1;
            continue;
        }
        let value = |at: usize| {
            number::number(&fields[at]).map_err(|what| format!("{}: {what}", names[at]))
        };
        percent(&fields[share_at])
            .map_err(|what| format!("{share}: {what}"))
            .and_then(|share| {
                curves.push(&traffic(share, by_program), value(gb_s_at)?, value(ns_at)?)
            })
            .map_err(|what| Fault::line(line, what))?;
    }
    let left_out = format!("left out: {} without a value", plural(empty, "row"));
    let notes: Vec<String> = (empty > 0).then_some(left_out).into_iter().collect();
    curves.finish(&notes)
}

fn traffic(percent: f64, by_program: bool) -> Traffic {
    if by_program {
        Traffic::of_loads(percent)
    } else if percent < MIN_READS_AT_MEMORY {
        // These stores do not read their lines, so nothing is subtracted.
        Traffic::counted_whole(format!("{percent}% reads at memory"))
    } else {
        Traffic::of_reads_at_memory(percent)
    }
}

/// Parses a share from 0 to 100 percent.
fn percent(text: &str) -> Result<f64, String> {
    match number::number(text) {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("{} is no share from 0 to 100", shown(text))),
    }
}
