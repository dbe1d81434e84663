//! Fits a model to a machine without a description: the topology comes from the levels that the
//! data show, and sizes are fitted.

use std::collections::BTreeSet;

use membound_types::{
    Cache, FitData, FitMethod, Kind, Level, MachineProfile, Model, ModelSource, NodePolicy,
    Observation, Outcome, PageKind, ParameterRole, SCHEMA_VERSION, SizeMode, Tlb, TlbTerm,
    Topology, TopologyLevel, WindowKernel, WindowPoint,
};

use super::misfit::{Miss, misfit};
use super::options::{FitError, FitOptions, KeepPoints, LeftOut, Start, Steepness};
use super::robust::fit_robustly;
use super::thin::{thin_curve, thin_windows};
use super::topology::constant_symbol;
use super::window_levels::{TLB_NOTE, levels_of_windows};
use super::{fit, from_levels, level_names};
use crate::interpret::level_curves;
use crate::levels::{CurvePoint, LevelOptions, find_levels};
use crate::stats::median;

/// Upper bound of cache sizes for a curve from a file, whose machine is unknown: no bound.
const ANY_CACHE: u64 = 1 << 62;

/// Least relative change of the time at the end of a level from which the values determine where
/// that end is.
const MIN_STEP: f64 = 0.05;

/// Number of values from which sizes are first fitted to a thinned set.
const MIN_VALUES_FOR_COARSE_FIT: usize = 2000;

/// Most that the residuals with levels from the values may be, as a share of those with known
/// levels, to replace the known levels.
const MAX_RESIDUAL_RATIO: f64 = 0.7;

const NO_LEVEL: &str = "the values show no level: they climb smoothly, or are too few";

/// Facts about a machine besides the values to be fitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Levels from its latency curve; if empty, levels are searched for in the values.
    pub levels: Vec<Level>,
    /// TLB terms for the page size at which the values were measured.
    pub tlb: Vec<TlbTerm>,
    /// Declared caches, after which levels found in windows alone are named.
    pub caches: Vec<Cache>,
}

/// Fits values to a topology made of the `known` levels, or of levels found in the values.
///
/// Sizes are fitted too, and for a latency curve the exponents γ where the curve requires
/// them: a chase that visits its buffer in a cycle leaves a cache faster than independent
/// windows do. Single values far off the curve are excluded and listed in a note. `adjust`
/// may change the topology before the fit. Values that show no level give a model without
/// levels and parameters, and a note that says so.
///
/// # Errors
/// The errors of [`fit()`] and of `adjust`.
pub fn fit_measured<E: From<FitError>>(
    data: FitData,
    observations: &[Observation],
    known: &Known,
    adjust: impl Fn(Topology) -> Result<Topology, E>,
    options: &FitOptions,
) -> Result<Model, E> {
    let with = |choice: &Choice| {
        if choice.levels.is_empty() {
            return Ok(no_levels(data, observations, options, choice.selection));
        }
        let topology = from_levels(&choice.levels, &known.tlb, data).map_err(FitError::from)?;
        fit_levels(adjust(topology)?, data, observations, choice, options).map_err(E::from)
    };
    let shown = || {
        let (levels, selection) = levels_of(data, observations, known);
        Choice {
            levels,
            selection,
            known: false,
        }
    };
    if known.levels.is_empty() {
        return with(&shown());
    }
    let model = with(&Choice {
        levels: known.levels.clone(),
        selection: "levels of the machine profile",
        known: true,
    })?;
    if data == FitData::Latency || misses(&model).is_none() {
        return Ok(model);
    }
    // Another guest may have used much of a cache while the latency curve was measured.
    let mut other = with(&shown())?;
    if typical(&other) > MAX_RESIDUAL_RATIO * typical(&model) {
        return Ok(model);
    }
    other.notes.push(
        "the levels of the latency curve do not describe these windows: these are the levels \
         that the windows show"
            .to_owned(),
    );
    Ok(other)
}

/// Levels to fit, and their origin.
struct Choice {
    levels: Vec<Level>,
    selection: &'static str,
    /// True for levels from elsewhere: a size that the values do not determine keeps its value.
    known: bool,
}

/// Median of the relative residuals; infinite for a model without levels.
fn typical(model: &Model) -> f64 {
    let residual = model.residual.known();
    residual.map_or(f64::INFINITY, |residual| residual.median_relative)
}

/// Fits sizes and times to `topology`, which was made of the levels in `choice`.
fn fit_levels(
    topology: Topology,
    data: FitData,
    observations: &[Observation],
    choice: &Choice,
    options: &FitOptions,
) -> Result<Model, FitError> {
    let options = FitOptions {
        sizes: SizeMode::Free,
        fixed_levels: if choice.known {
            levels_hidden_in_windows(&topology, data, observations, options)?
        } else {
            BTreeSet::new()
        },
        ..options.clone()
    };
    let (topology, options) = nearer(topology, data, observations, options);
    let mut model = fit_robustly(&topology, data, observations, &options)?;
    // One level would describe such a ramp only by its mean.
    if !choice.known && model.levels.len() == 1 && misses(&model).is_some() {
        return Ok(no_levels(data, observations, &options, choice.selection));
    }
    widen_sizes(&mut model);
    model
        .notes
        .extend(fixed_levels_note(&topology, &options.fixed_levels));
    let found = !choice.known && model.levels.len() > 1;
    if found && data == FitData::Window && topology.tlb.is_empty() {
        model.notes.push(TLB_NOTE.to_owned());
    }
    model.method.selection = Some(choice.selection.to_owned());
    Ok(model)
}

/// Shortens the search for many values: fits a thinned set, and returns the topology with the
/// sizes and exponents found, and options that start near them. Few values change nothing.
fn nearer(
    mut topology: Topology,
    data: FitData,
    observations: &[Observation],
    options: FitOptions,
) -> (Topology, FitOptions) {
    if observations.len() < MIN_VALUES_FOR_COARSE_FIT {
        return (topology, options);
    }
    let thinned = match data {
        FitData::Latency => thin_curve(observations),
        FitData::Window => thin_windows(observations),
    };
    let quick = FitOptions {
        left_out: LeftOut::Skip,
        ..options.clone()
    };
    let Ok(model) = fit_robustly(&topology, data, &thinned, &quick) else {
        return (topology, options);
    };
    for (level, found) in topology.levels.iter_mut().zip(&model.levels) {
        level.size_bytes = level.size_bytes.and(found.size_bytes);
        level.steepness = found.steepness;
    }
    let steep = |role| role == ParameterRole::Steepness;
    let steepness = if model.parameters.iter().any(|found| steep(found.role)) {
        Steepness::Free
    } else {
        Steepness::Given
    };
    let options = FitOptions {
        start: Start::Near,
        steepness,
        ..options
    };
    (topology, options)
}

/// The misfit of a model to its values; `None` if the model describes them.
fn misses(model: &Model) -> Option<f64> {
    let points = model.points.iter();
    let mut misses: Vec<Miss> = points
        .map(|point| Miss {
            window: point
                .measured
                .window_bytes
                .map_or(0.0, |bytes| bytes as f64),
            area: point.measured.area_bytes as f64,
            relative: point.model_ns / point.measured.ns - 1.0,
        })
        .collect();
    misfit(&mut misses)
}

/// Widens the intervals of sizes to the measured areas around the nearest one, if exponents were
/// fitted: a chase leaves a cache somewhere between two areas, and a narrower interval would rest
/// on the assumed family of curves.
fn widen_sizes(model: &mut Model) {
    let steep = |role| role == ParameterRole::Steepness;
    if !model.parameters.iter().any(|found| steep(found.role)) {
        return;
    }
    let areas = model
        .points
        .iter()
        .map(|point| point.measured.area_bytes as f64);
    let mut areas: Vec<f64> = areas.collect();
    areas.sort_by(f64::total_cmp);
    areas.dedup();
    let mut parameters = model.parameters.iter_mut();
    for level in &mut model.levels {
        let Some(size) = level.size_bytes.filter(|_| level.size_low_bytes.is_some()) else {
            continue;
        };
        let nearest = (0..areas.len()).min_by(|&one, &other| {
            let off = |index: usize| (areas[index] / size as f64).ln().abs();
            off(one).total_cmp(&off(other))
        });
        let around = nearest.and_then(|nearest| {
            let below = nearest.checked_sub(1).map(|index| areas[index])?;
            Some((below, *areas.get(nearest + 1)?))
        });
        let Some((below, beyond)) = around else {
            continue;
        };
        let parameter = parameters.find(|parameter| parameter.role == ParameterRole::Size);
        if let Some(parameter) = parameter {
            parameter.low = parameter.low.map(|low| low.min(below));
            parameter.high = parameter.high.map(|high| high.max(beyond));
            level.size_low_bytes = parameter.low.map(|low| low.round() as u64);
            level.size_high_bytes = parameter.high.map(|high| high.round() as u64);
        }
    }
}

/// Indices of levels at whose end the time hardly changes, so that these values do not determine
/// the size: a core hides the misses of its first cache behind the work on a window. The latency
/// curve gives their sizes better than a search in these values could.
fn levels_hidden_in_windows(
    topology: &Topology,
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
) -> Result<BTreeSet<usize>, FitError> {
    let options = FitOptions {
        sizes: SizeMode::Fixed,
        steepness: Steepness::Given,
        left_out: LeftOut::Skip,
        points: KeepPoints::Drop,
        ..options.clone()
    };
    let model = fit(topology, data, observations, &options)?;
    let windows: Vec<f64> = observations
        .iter()
        .filter_map(|point| point.window_bytes.map(|bytes| bytes as f64))
        .collect();
    let window = median(&windows).unwrap_or(0.0);
    let time = |level: &TopologyLevel| -> f64 {
        let parts = topology.components.iter().map(|component| {
            let times = f64::from(level.path.get(&component.symbol).copied().unwrap_or(0));
            let value = |symbol: &str| {
                let mut parameters = model.parameters.iter();
                let found = parameters.find(|parameter| parameter.symbol == symbol);
                found.map_or(0.0, |parameter| parameter.value)
            };
            times
                * match data {
                    FitData::Latency => value(&component.symbol),
                    FitData::Window => {
                        value(&constant_symbol(&component.symbol))
                            + value(&component.symbol) * window / f64::from(component.line_bytes)
                    }
                }
        });
        parts.sum()
    };
    let times: Vec<f64> = topology.levels.iter().map(time).collect();
    let pairs = times.windows(2).enumerate();
    Ok(pairs
        .filter(|(_, pair)| pair[1] <= pair[0] * (1.0 + MIN_STEP))
        .map(|(index, _)| index)
        .collect())
}

fn fixed_levels_note(topology: &Topology, fixed_levels: &BTreeSet<usize>) -> Option<String> {
    let names: Vec<&str> = fixed_levels
        .iter()
        .map(|&level| topology.levels[level].name.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "these values hardly change at the end of {}: its size is that of the latency curve",
            names.join(", ")
        )
    })
}

/// The model of values that show no level.
fn no_levels(
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
    selection: &str,
) -> Model {
    Model {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Model,
        source: ModelSource::default(),
        topology: Topology {
            name: "measured".to_owned(),
            ..Topology::default()
        },
        method: FitMethod {
            data,
            weights: options.weights,
            sizes: SizeMode::Free,
            points: observations.len(),
            rank: 0,
            iterations: 0,
            condition: 1.0,
            selection: Some(selection.to_owned()),
        },
        parameters: Vec::new(),
        combinations: Vec::new(),
        covariance: Vec::new(),
        levels: Vec::new(),
        residual: Outcome::missing(NO_LEVEL),
        vanishing: None,
        points: Vec::new(),
        notes: vec![NO_LEVEL.to_owned()],
    }
}

/// Levels found in the values, and a text on how their number was chosen.
fn levels_of(
    data: FitData,
    observations: &[Observation],
    known: &Known,
) -> (Vec<Level>, &'static str) {
    if data == FitData::Window {
        let (mut levels, selection) = levels_of_windows(observations, &known.tlb);
        level_names::name(&mut levels, &known.caches);
        return (levels, selection);
    }
    let thinned = thin_curve(observations);
    let curve: Vec<CurvePoint> = thinned.iter().map(CurvePoint::from).collect();
    let options = LevelOptions {
        cache_bound_bytes: Some(ANY_CACHE),
        ..LevelOptions::default()
    };
    let found = find_levels(&curve, &options);
    (found.to_levels(0.0), found.selection.sentence())
}

impl From<&Observation> for CurvePoint {
    fn from(point: &Observation) -> Self {
        Self {
            size_bytes: point.area_bytes,
            ns: point.ns,
            ns_low: point.ns_low.unwrap_or(point.ns),
            ns_high: point.ns_high.unwrap_or(point.ns),
        }
    }
}

impl From<&CurvePoint> for Observation {
    fn from(point: &CurvePoint) -> Self {
        Self {
            window_bytes: None,
            area_bytes: point.size_bytes,
            ns: point.ns,
            ns_low: Some(point.ns_low),
            ns_high: Some(point.ns_high),
        }
    }
}

/// The TLB terms of a machine profile for pages of kind `page`, innermost first.
#[must_use]
pub fn tlb_terms(tlb: &Tlb, page: PageKind) -> Vec<TlbTerm> {
    let mut terms: Vec<TlbTerm> = Vec::new();
    for level in tlb.levels.iter().filter(|level| level.page == page) {
        let entries = level.entries.value.round();
        if !(1.0..1e12).contains(&entries) {
            continue;
        }
        let entries = entries as u64;
        terms.push(TlbTerm {
            symbol: match level.level {
                1 => "t_tlb".to_owned(),
                other => format!("t_tlb{other}"),
            },
            entries,
            page_bytes: (level.reach_bytes / entries).max(1),
            miss_ns: None,
        });
    }
    terms
}

/// The model of a machine profile, fitted to its windows or, without windows, to its latency curve.
///
/// Missing when the profile has neither, and with the error's text when the fit fails.
#[must_use]
pub fn fit_profile(profile: &MachineProfile) -> Outcome<Model> {
    let (data, observations, page) = match plain_values(profile) {
        Some(values) => values,
        None => return Outcome::missing("no windows and no latency curve"),
    };
    let known = Known {
        levels: profile.levels.clone(),
        tlb: profile
            .tlb
            .known()
            .map(|tlb| tlb_terms(tlb, page))
            .unwrap_or_default(),
        caches: profile.machine.caches.clone(),
    };
    let fitted: Result<Model, FitError> = fit_measured(
        data,
        &observations.values,
        &known,
        Ok,
        &FitOptions::default(),
    );
    match fitted {
        Ok(mut model) => {
            model.source.host = Some(profile.machine.host.clone());
            model.source.series = observations.series;
            Outcome::Known(model)
        }
        Err(error) => Outcome::missing(error.to_string()),
    }
}

struct Series {
    values: Vec<Observation>,
    series: String,
}

/// The values with the fewest effects of their own: scalar windows on the largest pages, local
/// memory initialised by the same CPU; else the latency curve in which levels are searched.
fn plain_values(profile: &MachineProfile) -> Option<(FitData, Series, PageKind)> {
    if let Outcome::Known(part) = &profile.window {
        let plain = |point: &&WindowPoint| {
            point.kernel == WindowKernel::Scalar
                && point.node == NodePolicy::LOCAL
                && point.init_cpu.is_none()
        };
        let page = part
            .points
            .iter()
            .filter(plain)
            .map(|point| point.page)
            .max();
        if let Some(page) = page {
            let points = part.points.iter().filter(plain);
            let values = points
                .filter(|point| point.page == page)
                .map(Observation::from);
            let series = Series {
                values: values.collect(),
                series: format!("scalar windows, {page} pages, local"),
            };
            return Some((FitData::Window, series, page));
        }
    }
    let latency = profile.latency.known()?;
    let curve = level_curves(&latency.points).into_iter().next()?;
    let series = Series {
        values: curve.iter().map(Observation::from).collect(),
        series: "the latency curve that levels were found in".to_owned(),
    };
    Some((FitData::Latency, series, PageKind::Thp))
}
