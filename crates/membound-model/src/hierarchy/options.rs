//! Options of a fit, checks of its input, and the spellings of parameter symbols.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{FitData, Observation, ParameterRole, SizeMode, Topology, Weights};

use super::design::{Column, Term};
use super::error::TopologyError;
use super::topology::{missing_sizes, validate};

/// Accepted times in nanoseconds: from a millionth of a femtosecond to 30 000 years. Others are
/// mistakes in the data; within the range no square overflows.
const TIMES_NS: std::ops::RangeInclusive<f64> = 1e-12..=1e21;

/// Whether the exponents γ with which accesses leave the levels are fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steepness {
    /// The topology's exponents are used.
    #[default]
    Given,
    /// One exponent is fitted for each level but the last, starting from the topology's. Requires
    /// [`SizeMode::Free`].
    Free,
}

/// Whether the fit is cross-validated on areas that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftOut {
    /// Five more fits, each without every fifth area.
    #[default]
    Check,
    /// No cross-validation.
    Skip,
}

/// Whether the model keeps the points to which it was fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepPoints {
    /// Every point is kept with its modelled time.
    #[default]
    Keep,
    /// No points: a prediction then cannot report whether it lies outside the measured range.
    Drop,
}

/// Where the search for free sizes begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Possibly far from the answer: sizes are scanned and several descents compared.
    #[default]
    Wide,
    /// Near the answer: the topology's sizes and exponents come from a fit to some of the values, so
    /// a few steps suffice.
    Near,
}

/// Options of [`fit()`](super::fit()).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitOptions {
    /// The divisor of the residuals.
    pub weights: Weights,
    /// Whether level sizes are fitted.
    pub sizes: SizeMode,
    /// Where the search for free sizes begins.
    pub start: Start,
    /// Whether the exponents γ are fitted.
    pub steepness: Steepness,
    /// Levels, from 0, that keep the topology's size and exponent although sizes are free: their size
    /// is known better from elsewhere than these data could determine it.
    pub fixed_levels: BTreeSet<usize>,
    /// Parameters with fixed values, symbol → value in nanoseconds. The paper's spellings
    /// are accepted: `t_m,1` and `t_{m,1}` mean `t_m`, `t_m,0` and `t_{m,0}` mean `t_m0`.
    pub fixed: BTreeMap<String, f64>,
    /// Whether the fit is cross-validated.
    pub left_out: LeftOut,
    /// Whether the model keeps its points.
    pub points: KeepPoints,
}

/// Reasons why a fit fails.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The topology is invalid.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The topology has inner levels without a size.
    #[error(
        "topology `{topology}` does not say how large {levels} are: give their sizes (`--sizes`)"
    )]
    MissingSizes {
        /// Name of the topology.
        topology: String,
        /// Names of the levels.
        levels: String,
    },
    /// There are no points.
    #[error("no points to fit to")]
    NoPoints,
    /// There are as many parameters as points, so no degree of freedom is left to estimate errors.
    #[error(
        "{points} {} too few: they determine {determined} parameters of topology `{topology}`, \
         and at least {} are needed to see how well",
        if *points == 1 { "point is" } else { "points are" },
        determined + 1
    )]
    TooFewPoints {
        /// Number of points given.
        points: usize,
        /// Number of parameters that they determine.
        determined: usize,
        /// Name of the topology.
        topology: String,
    },
    /// A point's time is not a number or outside the accepted range.
    #[error("point {} (area {area_bytes} bytes) takes {ns} ns, which is no time", index + 1)]
    Time {
        /// Index of the point, from 0.
        index: usize,
        /// Area of the point in bytes.
        area_bytes: u64,
        /// Time of the point in nanoseconds.
        ns: f64,
    },
    /// A point has an area or a window of 0 bytes.
    #[error("point {} has {what} of 0 bytes", index + 1)]
    Empty {
        /// Index of the point, from 0.
        index: usize,
        /// `an area` or `a window`.
        what: &'static str,
    },
    /// A point's window is larger than its area.
    #[error(
        "point {} has a window of {window_bytes} bytes in an area of {area_bytes} bytes",
        index + 1
    )]
    WindowLarger {
        /// Index of the point, from 0.
        index: usize,
        /// Window of the point in bytes.
        window_bytes: u64,
        /// Area of the point in bytes.
        area_bytes: u64,
    },
    /// A point has a window although the data are loads, or the other way round.
    #[error("point {} {has}, but the data are declared to be of kind `{data}`", index + 1)]
    WrongData {
        /// Index of the point, from 0.
        index: usize,
        /// `has a window` or `has no window`.
        has: &'static str,
        /// Name of the kind of data.
        data: &'static str,
    },
    /// A fixed symbol is not a parameter of the topology.
    #[error("`{symbol}` is no parameter of topology `{topology}`: there are {known}")]
    UnknownSymbol {
        /// The symbol, control characters escaped.
        symbol: String,
        /// Name of the topology.
        topology: String,
        /// The symbols of the topology.
        known: String,
    },
    /// One parameter is fixed at two values under two spellings.
    #[error("`{first}` and `{second}` are the same parameter: give one value")]
    FixedTwice {
        /// One spelling of the symbol.
        first: String,
        /// The other spelling.
        second: String,
    },
    /// A fixed value is negative, not finite or too large.
    #[error("`{symbol}` cannot be fixed at {value}: use a number of nanoseconds from 0 on")]
    FixedValue {
        /// Symbol of the parameter.
        symbol: String,
        /// The value given, in nanoseconds.
        value: f64,
    },
    /// Exponents are to be fitted while sizes are fixed.
    #[error("steepness is fitted only together with sizes: use `--sizes free`")]
    SteepnessAlone,
    /// The numbers are too far apart for double precision.
    #[error("numbers overflow: points or fixed values lie too many orders of magnitude apart")]
    Overflow,
}

/// Checks that topology, points and options can be fitted.
pub(super) fn check(
    topology: &Topology,
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
) -> Result<(), FitError> {
    validate(topology)?;
    let missing: Vec<String> = missing_sizes(topology)
        .into_iter()
        .map(|level| format!("`{}`", topology.levels[level].name))
        .collect();
    if !missing.is_empty() {
        return Err(FitError::MissingSizes {
            topology: topology.name.clone(),
            levels: missing.join(", "),
        });
    }
    if options.steepness == Steepness::Free && options.sizes == SizeMode::Fixed {
        return Err(FitError::SteepnessAlone);
    }
    if observations.is_empty() {
        return Err(FitError::NoPoints);
    }
    for (index, point) in observations.iter().enumerate() {
        check_point(index, point, data)?;
    }
    Ok(())
}

fn check_point(index: usize, point: &Observation, data: FitData) -> Result<(), FitError> {
    let &Observation {
        window_bytes,
        area_bytes,
        ns,
        ..
    } = point;
    // A NaN is in no range.
    if !TIMES_NS.contains(&ns) {
        return Err(FitError::Time {
            index,
            area_bytes,
            ns,
        });
    }
    let has = match (data, window_bytes) {
        (FitData::Window, None) => Some("has no window"),
        (FitData::Latency, Some(_)) => Some("has a window"),
        _ => None,
    };
    if let Some(has) = has {
        return Err(FitError::WrongData {
            index,
            has,
            data: data.name(),
        });
    }
    if area_bytes == 0 {
        return Err(FitError::Empty {
            index,
            what: "an area",
        });
    }
    match window_bytes {
        Some(0) => Err(FitError::Empty {
            index,
            what: "a window",
        }),
        Some(window_bytes) if window_bytes > area_bytes => Err(FitError::WindowLarger {
            index,
            window_bytes,
            area_bytes,
        }),
        _ => Ok(()),
    }
}

/// For each term its given value: from `fixed`, else from the topology; `None` if it is to be fitted.
pub(super) fn given_values(
    topology: &Topology,
    terms: &[Term],
    fixed: &BTreeMap<String, f64>,
) -> Result<Vec<Option<f64>>, FitError> {
    let mut given: Vec<Option<f64>> = terms.iter().map(|term| term.given).collect();
    let mut spelt: Vec<Option<&String>> = vec![None; terms.len()];
    for (symbol, &value) in fixed {
        let Some(index) = term_of(terms, symbol) else {
            let known: Vec<&str> = terms.iter().map(|term| &*term.symbol).collect();
            return Err(FitError::UnknownSymbol {
                symbol: symbol.escape_debug().to_string(),
                topology: topology.name.clone(),
                known: known.join(", "),
            });
        };
        if !(value == 0.0 || (value > 0.0 && value <= *TIMES_NS.end())) {
            return Err(FitError::FixedValue {
                symbol: symbol.clone(),
                value,
            });
        }
        if let Some(first) = spelt[index].replace(symbol) {
            return Err(FitError::FixedTwice {
                first: first.clone(),
                second: symbol.clone(),
            });
        }
        given[index] = Some(value);
    }
    Ok(given)
}

/// Index of the term that `symbol` means: an exact match, else the only term whose symbol equals
/// it without subscript marks.
fn term_of(terms: &[Term], symbol: &str) -> Option<usize> {
    if let Some(exact) = terms.iter().position(|term| term.symbol == symbol) {
        return Some(exact);
    }
    let plain = plain(symbol);
    let mut fitting = terms.iter().enumerate().filter(|(_, term)| {
        let own = self::plain(&term.symbol);
        own == plain
            || (term.role == ParameterRole::PerLine
                && matches!(term.column, Column::Line(_))
                && plain.strip_suffix('1') == Some(&own))
    });
    let (index, _) = fitting.next()?;
    fitting.next().is_none().then_some(index)
}

/// `symbol` without the marks of subscripts.
fn plain(symbol: &str) -> String {
    symbol
        .chars()
        .filter(|character| !matches!(character, '_' | ',' | '{' | '}' | ' '))
        .collect()
}
