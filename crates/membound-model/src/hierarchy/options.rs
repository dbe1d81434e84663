//! What a fit may be told, what it refuses, and which parameter a user's symbol means.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{FitData, Observation, ParameterRole, SizeMode, Topology, Weights};

use super::design::{Column, Term};
use super::error::TopologyError;
use super::topology::{missing_sizes, validate};

/// Times outside of this many nanoseconds are slips: a millionth of a femtosecond, 30 000
/// years. Within it no square overflows.
const TIMES_NS: std::ops::RangeInclusive<f64> = 1e-12..=1e21;

/// Whether the exponents γ with which accesses leave the levels are fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steepness {
    /// As the topology says.
    #[default]
    Given,
    /// One for each level but the last, beginning at the topology's. Only together with
    /// [`SizeMode::Free`].
    Free,
}

/// Whether the fit is tried on areas that it has not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftOut {
    /// Five more fits, each without every fifth area.
    #[default]
    Check,
    /// None.
    Skip,
}

/// Whether the model keeps what it was fitted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepPoints {
    /// Every value with the model's.
    #[default]
    Keep,
    /// None: a prediction then cannot say whether it lies outside of what was measured.
    Drop,
}

/// Where the search for free sizes begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Anywhere: sizes are scanned, and several descents compared.
    #[default]
    Wide,
    /// Near the answer: the topology's sizes and exponents are those of a fit to some of the
    /// values, and a few steps lead from there.
    Near,
}

/// How to fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitOptions {
    /// What residuals are divided by.
    pub weights: Weights,
    /// Whether level sizes are fitted.
    pub sizes: SizeMode,
    /// Where the search for free sizes begins.
    pub start: Start,
    /// Whether the exponents γ are fitted.
    pub steepness: Steepness,
    /// Levels, from 0, that keep the topology's size and exponent although sizes are free:
    /// what is known of them from elsewhere is better than what these data could say.
    pub held: BTreeSet<usize>,
    /// Parameters to take as they are, symbol → value in nanoseconds. The paper's spellings
    /// are understood: `t_m,1` and `t_{m,1}` are `t_m`, `t_m,0` and `t_{m,0}` are `t_m0`.
    pub fixed: BTreeMap<String, f64>,
    /// Whether points are left out for a check.
    pub left_out: LeftOut,
    /// Whether points stay in the model.
    pub points: KeepPoints,
}

/// Why there is no fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The topology is not sound.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Levels without a size.
    #[error(
        "topology `{topology}` does not say how large {levels} are: give their sizes (`--sizes`)"
    )]
    MissingSizes {
        /// Name of the topology.
        topology: String,
        /// Names of the levels.
        levels: String,
    },
    /// Nothing to fit to.
    #[error("no points to fit to")]
    NoPoints,
    /// As many parameters as points, so that nothing is left to judge the fit by.
    #[error(
        "{points} {} too few: they determine {determined} parameters of topology `{topology}`, \
         and at least {} are needed to see how well",
        if *points == 1 { "point is" } else { "points are" },
        determined + 1
    )]
    TooFewPoints {
        /// Points given.
        points: usize,
        /// Parameters that they determine.
        determined: usize,
        /// Name of the topology.
        topology: String,
    },
    /// A time that is none.
    #[error("point {} (area {area_bytes} bytes) takes {ns} ns, which is no time", index + 1)]
    Time {
        /// Place among the points, from 0.
        index: usize,
        /// Its area.
        area_bytes: u64,
        /// Its time.
        ns: f64,
    },
    /// An area or a window without bytes.
    #[error("point {} has {what} of 0 bytes", index + 1)]
    Empty {
        /// Place among the points, from 0.
        index: usize,
        /// `an area` or `a window`.
        what: &'static str,
    },
    /// A window that does not fit.
    #[error(
        "point {} has a window of {window_bytes} bytes in an area of {area_bytes} bytes",
        index + 1
    )]
    WindowLarger {
        /// Place among the points, from 0.
        index: usize,
        /// Its window.
        window_bytes: u64,
        /// Its area.
        area_bytes: u64,
    },
    /// A window where loads were announced, or the other way round.
    #[error("point {} {has}, but the data are said to be of kind `{data}`", index + 1)]
    WrongData {
        /// Place among the points, from 0.
        index: usize,
        /// `has a window` or `has no window`.
        has: &'static str,
        /// Name of the kind of data.
        data: &'static str,
    },
    /// A symbol that is no parameter.
    #[error("`{symbol}` is no parameter of topology `{topology}`: there are {known}")]
    UnknownSymbol {
        /// The symbol, control characters escaped.
        symbol: String,
        /// Name of the topology.
        topology: String,
        /// Symbols that there are.
        known: String,
    },
    /// One parameter, two values.
    #[error("`{first}` and `{second}` are the same parameter: give one value")]
    FixedTwice {
        /// A spelling.
        first: String,
        /// Another one.
        second: String,
    },
    /// A value that no parameter can have.
    #[error("`{symbol}` cannot be fixed at {value}: use a number of nanoseconds from 0 on")]
    FixedValue {
        /// The symbol.
        symbol: String,
        /// Its value.
        value: f64,
    },
    /// Exponents to be fitted around sizes that are not.
    #[error("steepness is fitted only together with sizes: use `--sizes free`")]
    SteepnessAlone,
    /// Numbers too far apart for double precision.
    #[error("numbers overflow: points or fixed values lie too many orders of magnitude apart")]
    Overflow,
}

/// Refuses a topology, points and options that cannot be fitted.
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

/// Values of the terms that are given, by the topology or by `fixed`, which goes before.
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

/// The term that `symbol` means: by its own symbol, else by the one spelling of the paper
/// that fits.
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

/// A symbol without the marks of subscripts.
fn plain(symbol: &str) -> String {
    symbol
        .chars()
        .filter(|character| !matches!(character, '_' | ',' | '{' | '}' | ' '))
        .collect()
}
