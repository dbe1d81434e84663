//! Levels of a model: time per line, attainable rate, and what the TLB covers.
//!
//! The rates are those of the paper's Table 2: the rate of an infinitely fast processor that only
//! waits for data. Times come from a fit or, for a topology with a published table, from the
//! topology itself. Units: nanoseconds, 10⁶ operations per second and 10⁹ bytes per second.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{
    Basis, Component, Figure, FitData, LevelKind, ModelLevel, Outcome, Parameter, ParameterRole,
    TlbTerm, Topology, TopologyLevel,
};

use super::topology::{constant_symbol, listed, reaches};
use crate::declared::bytes;

/// Page sizes beyond the base page that systems offer: Arm and POWER, x86, and the largest.
const USUAL_PAGES: [u64; 3] = [64 << 10, 2 << 20, 1 << 30];

/// Parameters and levels from the values in a topology, without a fit: the paper's Tables 1 and 2
/// for the included Origin2000.
///
/// A parameter without a known value is omitted, and a level that needs one has its figures
/// missing. Published values have no interval, so `low` and `high` equal the value. A component
/// that no level's path separates from others is marked as not identifiable.
#[must_use]
pub fn published(topology: &Topology) -> (Vec<Parameter>, Vec<ModelLevel>) {
    let known: BTreeMap<&str, f64> = topology
        .components
        .iter()
        .filter_map(|component| Some((&*component.symbol, component.per_line_ns?)))
        .collect();
    let estimate = |combination: &BTreeMap<String, f64>| {
        let unknown = combination
            .keys()
            .map(String::as_str)
            .filter(|&symbol| !known.contains_key(symbol));
        let unknown = listed(unknown);
        if !unknown.is_empty() {
            return Outcome::missing_with(
                format!("no value is known of {unknown}"),
                "fit the topology to measurements, or write per_line_ns into its file",
            );
        }
        let terms = combination
            .iter()
            .map(|(symbol, factor)| factor * known[&**symbol]);
        let value = terms.sum();
        Outcome::Known(Figure {
            value,
            low: value,
            high: value,
            basis: Basis::Modelled,
        })
    };
    let levels = model_levels(topology, FitData::Window, &estimate);
    (known_parameters(topology), levels)
}

/// Levels of `topology` with their times and attainable rates.
///
/// `estimate` returns the value of a linear combination of parameters (symbol → factor) in
/// nanoseconds with its interval, or the reason why the data do not determine it.
///
/// The time of a line is the time of the hardware on the path for as many bytes as its longest
/// line has, per-line parts only: as in Table 2, where four on-chip lines of 32 bytes come with
/// each line of 128. For a latency curve it is the time of one load, to which every component on
/// the path adds, including the program's: there it is the hit in the innermost cache.
#[must_use]
pub fn model_levels(
    topology: &Topology,
    data: FitData,
    estimate: &dyn Fn(&BTreeMap<String, f64>) -> Outcome<Figure>,
) -> Vec<ModelLevel> {
    let of_level = |(level, reach_bytes): (&TopologyLevel, Option<u64>)| {
        let (line_bytes, combination) = line_time(topology, level, data);
        let ns_per_line = if combination.is_empty() {
            Outcome::missing("the program's own time cannot be distinguished from this level's")
        } else {
            estimate(&combination)
        };
        let (rate_mops, rate_gb_s) = match data {
            FitData::Window => {
                let line = f64::from(line_bytes);
                let operations = line / f64::from(topology.bytes_per_operation);
                (
                    rate(&ns_per_line, operations * 1e3),
                    rate(&ns_per_line, line),
                )
            }
            FitData::Latency => {
                let reason = "loads that wait for each other say nothing of a rate";
                (Outcome::missing(reason), Outcome::missing(reason))
            }
        };
        let latency_ns = ns_per_line
            .known()
            .filter(|_| data == FitData::Latency)
            .map(|figure| figure.value);
        ModelLevel {
            name: level.name.clone(),
            kind: level.kind,
            size_bytes: level.size_bytes,
            size_low_bytes: None,
            size_high_bytes: None,
            reach_bytes,
            steepness: level.steepness,
            line_bytes,
            ns_per_line,
            latency_ns,
            rate_mops,
            rate_gb_s,
            tlb_note: tlb_note(level, &topology.tlb),
        }
    };
    let levels = topology.levels.iter().zip(reaches(topology));
    let mut levels: Vec<ModelLevel> = levels.map(of_level).collect();
    drop_repeated_rates(&mut levels);
    levels
}

/// Marks rates as missing that cannot be distinguished from the rate of a level further inside: both
/// rates would stand in a table as if the levels differed.
fn drop_repeated_rates(levels: &mut [ModelLevel]) {
    let mut inner: Option<(String, Figure)> = None;
    for level in levels {
        let Outcome::Known(rate) = level.rate_mops else {
            continue;
        };
        match &inner {
            Some((name, inner)) if (rate.low..=rate.high).contains(&inner.value) => {
                let missing = format!("its rate cannot be distinguished from that of {name}");
                level.rate_mops = Outcome::missing(missing.clone());
                level.rate_gb_s = Outcome::missing(missing);
            }
            _ => inner = Some((level.name.clone(), rate)),
        }
    }
}

/// The longest line on the path to a level, and the hardware's time for it as symbol → factor.
fn line_time(
    topology: &Topology,
    level: &TopologyLevel,
    data: FitData,
) -> (u32, BTreeMap<String, f64>) {
    let on_path: Vec<(&Component, u32)> = topology
        .components
        .iter()
        .filter_map(|component| Some((component, *level.path.get(&component.symbol)?)))
        .collect();
    let hardware: Vec<(&Component, u32)> = on_path
        .iter()
        .filter(|(component, _)| !component.application)
        .copied()
        .collect();
    let lines = if hardware.is_empty() {
        &on_path
    } else {
        &hardware
    };
    let longest = lines
        .iter()
        .map(|(component, _)| component.line_bytes)
        .max();
    let longest = longest.unwrap_or(topology.bytes_per_operation);
    let factor = |&(component, times): &(&Component, u32)| {
        let lines = match data {
            FitData::Window => f64::from(longest) / f64::from(component.line_bytes),
            FitData::Latency => 1.0,
        };
        (component.symbol.clone(), f64::from(times) * lines)
    };
    let adding = match data {
        FitData::Window => &hardware,
        FitData::Latency => &on_path,
    };
    (longest, adding.iter().map(factor).collect())
}

/// `amount` ÷ `time`; the ends of the interval change places.
fn rate(time: &Outcome<Figure>, amount: f64) -> Outcome<Figure> {
    let figure = match time {
        Outcome::Known(figure) => figure,
        Outcome::Missing { not_measured } => {
            return Outcome::Missing {
                not_measured: not_measured.clone(),
            };
        }
    };
    let turned = Figure {
        value: amount / figure.value,
        low: amount / figure.high,
        high: amount / figure.low,
        basis: figure.basis,
    };
    let bounded = |rate: f64| rate.is_finite() && rate >= 0.0;
    if [turned.value, turned.low, turned.high]
        .into_iter()
        .all(bounded)
    {
        Outcome::Known(turned)
    } else {
        Outcome::missing("the time of a line cannot be distinguished from 0, so it bounds no rate")
    }
}

/// Advice if the TLB reaches less than a cache holds: the paper's remark that the page size should
/// follow the size of the second-level cache (section 3.2).
fn tlb_note(level: &TopologyLevel, tlb: &[TlbTerm]) -> Option<String> {
    let size = level
        .size_bytes
        .filter(|_| level.kind == LevelKind::Cache)?;
    let note = |term: &TlbTerm| {
        let reach = term.entries.checked_mul(term.page_bytes)?;
        if term.entries == 0 || size <= reach {
            return None;
        }
        let which = if tlb.len() > 1 {
            format!("the TLB of `{}`", term.symbol)
        } else {
            "the TLB".to_owned()
        };
        Some(format!(
            "{which} reaches {}, this cache holds {}: {}",
            bytes(reach),
            bytes(size),
            page_advice(size, term.entries)
        ))
    };
    let notes: Vec<String> = tlb.iter().filter_map(note).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The page size with which `entries` reach `size` bytes, as a clause.
fn page_advice(size: u64, entries: u64) -> String {
    let Some(page) = size.div_ceil(entries).checked_next_power_of_two() else {
        return "no pages would cover it".to_owned();
    };
    match USUAL_PAGES.into_iter().find(|&usual| usual >= page) {
        Some(usual) if usual == page => {
            format!("pages of {} or more would cover it", bytes(page))
        }
        Some(usual) => format!(
            "pages of {} or more would cover it, of the usual ones those of {}",
            bytes(page),
            bytes(usual)
        ),
        None => format!("only pages of {} or more would cover it", bytes(page)),
    }
}

fn known_parameters(topology: &Topology) -> Vec<Parameter> {
    let inseparable = inseparable(topology);
    let given = |symbol: &str, value: f64, role, related_to: String, name: &str| Parameter {
        symbol: symbol.to_owned(),
        value,
        unit: "ns".to_owned(),
        related_to,
        std_error: None,
        low: None,
        high: None,
        identifiable: true,
        reason: None,
        fixed: true,
        role,
        name: name.to_owned(),
    };
    let mut parameters = Vec::new();
    for component in &topology.components {
        let symbol = &component.symbol;
        let others = inseparable.get(&**symbol);
        let reason = others.map(|others| {
            format!(
                "no level's path separates {}: only sums of them can be measured",
                listed(others.iter().copied())
            )
        });
        let marked = |parameter| Parameter {
            identifiable: reason.is_none(),
            reason: reason.clone(),
            ..parameter
        };
        if let Some(value) = component.constant_ns {
            let symbol = constant_symbol(symbol);
            parameters.push(marked(given(
                &symbol,
                value,
                ParameterRole::Constant,
                "1 window".to_owned(),
                &component.name,
            )));
        }
        if let Some(value) = component.per_line_ns {
            parameters.push(marked(given(
                symbol,
                value,
                ParameterRole::PerLine,
                format!("{} Bytes", component.line_bytes),
                &component.name,
            )));
        }
    }
    for term in &topology.tlb {
        if let Some(value) = term.miss_ns {
            let related_to = "1 TLB miss".to_owned();
            let (role, name) = (ParameterRole::TlbMiss, "TLB miss handling");
            parameters.push(given(&term.symbol, value, role, related_to, name));
        }
    }
    if let Some(term) = &topology.page_table
        && let Some(value) = term.factor_ns
    {
        let related_to = "1 window".to_owned();
        let (role, name) = (ParameterRole::PageTable, "page-table correction");
        parameters.push(given(&term.symbol, value, role, related_to, name));
    }
    parameters
}

/// Components that no data of this topology could determine individually, each with the components
/// that it can exchange time with, including itself. Fixed components are not included.
///
/// A component is determined if its unit vector is a combination of the levels' paths.
/// In the reduced echelon form of the paths that is a row with a single entry; each column
/// without a pivot is one exchange of time that leaves every path's sum unchanged.
fn inseparable(topology: &Topology) -> BTreeMap<&str, BTreeSet<&str>> {
    let symbols: Vec<&str> = topology
        .components
        .iter()
        .filter(|component| !component.fixed)
        .map(|component| &*component.symbol)
        .collect();
    let paths = topology.levels.iter().map(|level| {
        let times = symbols.iter().map(|&symbol| level.path.get(symbol));
        times
            .map(|times| f64::from(times.copied().unwrap_or(0)))
            .collect()
    });
    let (rows, pivots) = reduced_echelon(paths.collect(), symbols.len());
    let mut inseparable: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for free in (0..symbols.len()).filter(|column| !pivots.contains(column)) {
        let trading: BTreeSet<&str> = pivots
            .iter()
            .zip(&rows)
            .filter(|(_, row)| row[free] != 0.0)
            .map(|(&pivot, _)| symbols[pivot])
            .chain([symbols[free]])
            .collect();
        for &symbol in &trading {
            inseparable.entry(symbol).or_default().extend(&trading);
        }
    }
    inseparable
}

/// The reduced echelon form of a matrix of small whole numbers: its non-zero rows, and the pivot
/// column of each.
fn reduced_echelon(mut rows: Vec<Vec<f64>>, columns: usize) -> (Vec<Vec<f64>>, Vec<usize>) {
    /// Far above the rounding error of a 0, far below any quotient of path counts.
    const ZERO: f64 = 1e-9;
    let mut pivots = Vec::new();
    for column in 0..columns {
        let next = pivots.len();
        let largest = (next..rows.len())
            .max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()));
        let Some(pivot) = largest.filter(|&at| rows[at][column].abs() > ZERO) else {
            continue;
        };
        rows.swap(next, pivot);
        let scale = rows[next][column];
        let lead: Vec<f64> = rows[next].iter().map(|value| value / scale).collect();
        for (at, row) in rows.iter_mut().enumerate() {
            if at == next {
                row.clone_from(&lead);
                continue;
            }
            let factor = row[column];
            for (value, lead) in row.iter_mut().zip(&lead) {
                *value -= factor * lead;
                if value.abs() < ZERO {
                    *value = 0.0;
                }
            }
        }
        pivots.push(column);
    }
    rows.truncate(pivots.len());
    (rows, pivots)
}
