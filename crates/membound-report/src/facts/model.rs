//! Texts about a fitted model that page and terminal share.

use std::collections::BTreeMap;

use membound_types::{
    Combination, FitData, FitMethod, FittedPoint, Model, ModelLevel, ModelSource, Outcome,
    Parameter, SizeMeaning, SizeMode, Topology, VanishingTest, Weights,
};

use crate::units;

/// Unit of sizes in a model.
const BYTES: &str = "bytes";
/// Unit of a dimensionless number.
const NONE: &str = "1";

/// Points of one window size, by rising area.
#[derive(Clone, Debug)]
pub(crate) struct FittedCurve<'a> {
    /// `None` for the loads of a latency curve.
    pub(crate) window_bytes: Option<u64>,
    pub(crate) points: Vec<&'a FittedPoint>,
}

impl FittedCurve<'_> {
    /// Label: `1 KiB windows`, `loads`.
    pub(crate) fn label(&self) -> String {
        match self.window_bytes {
            Some(bytes) => format!("{} windows", units::bytes(bytes)),
            None => "loads".to_owned(),
        }
    }
}

/// Groups the points of a fit into curves, by rising window size.
pub(crate) fn fitted_curves(points: &[FittedPoint]) -> Vec<FittedCurve<'_>> {
    let mut curves: BTreeMap<Option<u64>, Vec<&FittedPoint>> = BTreeMap::new();
    for point in points {
        curves
            .entry(point.measured.window_bytes)
            .or_default()
            .push(point);
    }
    curves
        .into_iter()
        .map(|(window_bytes, mut points)| {
            points.sort_by_key(|p| p.measured.area_bytes);
            FittedCurve {
                window_bytes,
                points,
            }
        })
        .collect()
}

/// Deviation of the model from a measured value, as a share of that value; `None` if it is not finite.
pub(crate) fn deviation(point: &FittedPoint) -> Option<f64> {
    let share = point.model_ns / point.measured.ns - 1.0;
    share.is_finite().then_some(share)
}

/// Points with the largest deviations from the model, largest first.
pub(crate) fn worst_points(points: &[FittedPoint], most: usize) -> Vec<(&FittedPoint, f64)> {
    let mut found: Vec<(&FittedPoint, f64)> = points
        .iter()
        .filter_map(|point| Some((point, deviation(point)?)))
        .collect();
    found.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    found.truncate(most);
    found
}

/// Formats a signed share as a percentage: `+2.1 %`, `-0.4 %`.
pub(crate) fn signed_percent(share: f64) -> String {
    let text = units::percent(share);
    if share > 0.0 && share.is_finite() {
        format!("+{text}")
    } else {
        text
    }
}

/// Like [`units::number`], with a third decimal below 1: the cost of a line in a near cache is a few
/// hundredths of a nanosecond.
pub(crate) fn fine(value: f64) -> String {
    if (0.0005..0.9995).contains(&value.abs()) {
        format!("{value:.3}")
    } else {
        units::number(value)
    }
}

/// Formats an interval in the digits of [`fine`].
pub(crate) fn fine_interval(low: f64, high: f64) -> String {
    format!("[{}, {}]", fine(low), fine(high))
}

/// Splits a value of a model into number and unit: (`53.0`, `ns`), (`48`, `KiB`), (`1.4`, empty).
pub(crate) fn quantity(value: f64, unit: &str) -> (String, String) {
    match unit {
        BYTES if value.is_finite() => {
            let text = units::bytes(value.max(0.0).round() as u64);
            match text.split_once(' ') {
                Some((number, unit)) => (number.to_owned(), unit.to_owned()),
                None => (text, String::new()),
            }
        }
        NONE => (fine(value), String::new()),
        _ => (fine(value), unit.to_owned()),
    }
}

/// Formats an interval in the unit of [`quantity`]; empty if there is none.
pub(crate) fn interval(value: f64, low: Option<f64>, high: Option<f64>, unit: &str) -> String {
    match (low, high) {
        (Some(low), Some(high)) if unit == BYTES => {
            if [value, low, high].iter().all(|bytes| bytes.is_finite()) {
                let [value, low, high] = [value, low, high].map(|b| b.max(0.0).round() as u64);
                units::bytes_interval_after_value(value, low, high)
            } else {
                units::NO_VALUE.to_owned()
            }
        }
        (Some(low), Some(high)) => fine_interval(low, high),
        _ => String::new(),
    }
}

/// Interval column of a parameter: its interval, `given` if it was fixed, or empty.
pub(crate) fn parameter_interval(parameter: &Parameter) -> String {
    if parameter.fixed {
        "given".to_owned()
    } else {
        interval(
            parameter.value,
            parameter.low,
            parameter.high,
            &parameter.unit,
        )
    }
}

/// Formats the sum of parameters: `t_hh + t_m`, `t_r - 2 t_m`.
pub(crate) fn combination_title(combination: &Combination) -> String {
    let factors = combination.coefficients.iter().copied();
    let mut out = String::new();
    for (symbol, factor) in combination
        .symbols
        .iter()
        .zip(factors.chain(std::iter::repeat(1.0)))
    {
        let sign = match (out.is_empty(), factor < 0.0) {
            (true, false) => "",
            (true, true) => "-",
            (false, false) => " + ",
            (false, true) => " - ",
        };
        out.push_str(sign);
        if factor.abs() != 1.0 {
            out.push_str(&units::compact(factor.abs()));
            out.push(' ');
        }
        out.push_str(symbol);
    }
    out
}

/// Components on the way to a level: `t_s + 2 t_r + t_m`; `nothing` if there are none.
pub(crate) fn path_title(topology: &Topology, level: usize) -> String {
    let Some(level) = topology.levels.get(level) else {
        return String::new();
    };
    // The order of the components is the order of the way.
    let known = topology.components.iter().map(|c| c.symbol.as_str());
    let others = level
        .path
        .keys()
        .map(String::as_str)
        .filter(|symbol| topology.components.iter().all(|c| c.symbol != *symbol));
    let words: Vec<String> = known
        .chain(others)
        .filter_map(|symbol| match level.path.get(symbol)? {
            0 => None,
            1 => Some(symbol.to_owned()),
            times => Some(format!("{times} {symbol}")),
        })
        .collect();
    if words.is_empty() {
        "nothing".to_owned()
    } else {
        words.join(" + ")
    }
}

/// Origin of the data: host, curves, files.
pub(crate) fn source_words(source: &ModelSource) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(source.host.clone());
    words.push(source.series.clone());
    words.push(source.files.join(", "));
    words.retain(|word| !word.is_empty());
    words
}

/// Describes the method of the fit, most important first.
pub(crate) fn method_words(topology: &str, method: &FitMethod, parameters: usize) -> Vec<String> {
    let data = match method.data {
        FitData::Window => "window",
        FitData::Latency => "latency",
    };
    let sizes = match method.sizes {
        SizeMode::Fixed => "sizes given",
        SizeMode::Free => "sizes fitted",
    };
    let weights = match method.weights {
        Weights::Model => "errors relative to the model",
        Weights::Measured => "errors relative to the measured values",
        Weights::Equal => "absolute errors",
    };
    let mut words = vec![
        format!("topology {topology}, {sizes}"),
        units::plural(method.points, &format!("{data} point")),
        format!(
            "{} of {} determined",
            units::count(method.rank as u64),
            units::plural(parameters, "parameter")
        ),
        weights.to_owned(),
        units::plural(method.iterations, "iteration"),
        format!("condition {}", units::compact(method.condition)),
    ];
    words.extend(
        method
            .selection
            .iter()
            .map(|selection| format!("number of levels: {selection}")),
    );
    words
}

/// Number of fitted parameters: those that were not given.
pub(crate) fn free_parameters(parameters: &[Parameter]) -> usize {
    parameters.iter().filter(|p| !p.fixed).count()
}

/// Summary of a fit in one line: `12 parameters, median residual 2.1 %, left out 2.6 %`.
pub(crate) fn model_line(model: &Model) -> String {
    let residual = match &model.residual {
        Outcome::Known(residual) => residual,
        Outcome::Missing { not_measured } => return not_measured.reason.clone(),
    };
    let mut words = vec![
        units::plural(free_parameters(&model.parameters), "parameter"),
        format!(
            "median residual {}",
            units::percent(residual.median_relative)
        ),
    ];
    words.extend(
        residual
            .left_out_median_relative
            .map(|share| format!("left out {}", units::percent(share))),
    );
    words.join(", ")
}

/// Share of every time below which constants are called negligible.
const SMALL_SHARE: f64 = 0.02;

/// Result of the test whether constants vanish, beginning with their symbols.
pub(crate) fn vanishing_verdict(test: &VanishingTest) -> String {
    let p = units::p_value(test.p_value);
    // With noisy data, even large constants may not differ significantly from zero.
    let verdict = match test.vanish {
        true if test.largest_share <= SMALL_SHARE => "vanish in good approximation",
        true => "cannot be distinguished from zero",
        false => "do not vanish",
    };
    format!(
        "{} {verdict}: F = {}, {p}; they make up at most {} of any modelled time",
        test.symbols.join(", "),
        units::compact(test.f),
        units::percent(test.largest_share)
    )
}

/// Reasons why parameters are not determined, each with the symbols that it applies to.
pub(crate) fn undetermined(parameters: &[Parameter]) -> Vec<(String, Vec<&str>)> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for parameter in parameters.iter().filter(|p| is_marked(p)) {
        let reason = parameter.reason.clone().unwrap_or_default();
        match found.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, symbols)) => symbols.push(&parameter.symbol),
            None => found.push((reason, vec![&parameter.symbol])),
        }
    }
    found
}

/// True if the data do not determine the parameter by itself, so that it is marked.
pub(crate) const fn is_marked(parameter: &Parameter) -> bool {
    !parameter.identifiable
}

/// Size of a level with its interval: (`11 MiB`, `[9.8, 11.8]`).
pub(crate) fn level_size(level: &ModelLevel) -> (String, String) {
    let size = level.size_bytes.map(units::bytes).unwrap_or_default();
    let interval = match (
        level.size_bytes,
        level.size_low_bytes,
        level.size_high_bytes,
    ) {
        (Some(size), Some(low), Some(high)) => units::bytes_interval_after_value(size, low, high),
        _ => String::new(),
    };
    (size, interval)
}

/// Interval in bytes of the end of a level: that of its size, plus the size of the levels inside it.
pub(crate) fn reach_interval(level: &ModelLevel, meaning: SizeMeaning) -> Option<(f64, f64)> {
    let inner = match meaning {
        SizeMeaning::Reach => 0,
        SizeMeaning::Own => level.reach_bytes?.saturating_sub(level.size_bytes?),
    };
    let low = level.size_low_bytes?.saturating_add(inner);
    let high = level.size_high_bytes?.saturating_add(inner);
    Some((low as f64, high as f64))
}

/// Reasons why levels have no time, or no rate though others have one, each with the names of the levels.
pub(crate) fn level_gaps(levels: &[ModelLevel]) -> Vec<(String, Vec<&str>)> {
    let rated = levels.iter().any(|level| level.rate_mops.known().is_some());
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for level in levels {
        let outcomes = [Some(&level.ns_per_line), rated.then_some(&level.rate_mops)];
        let Some(why) = outcomes
            .into_iter()
            .flatten()
            .find_map(Outcome::why_missing)
        else {
            continue;
        };
        let reason = match &why.remedy {
            Some(remedy) => format!("{} ({remedy})", why.reason),
            None => why.reason.clone(),
        };
        match found.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(&level.name),
            None => found.push((reason, vec![&level.name])),
        }
    }
    found
}

/// Cuts a name to at most `most` characters.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let kept: String = name.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(terms: &[(&str, f64)]) -> String {
        combination_title(&Combination {
            symbols: terms.iter().map(|t| t.0.to_owned()).collect(),
            coefficients: terms.iter().map(|t| t.1).collect(),
            value: 0.0,
            unit: "ns".into(),
            std_error: 0.0,
            low: 0.0,
            high: 0.0,
        })
    }

    #[test]
    fn sums_read_like_sums() {
        assert_eq!(sum(&[("t_hh", 1.0), ("t_m", 1.0)]), "t_hh + t_m");
        assert_eq!(sum(&[("t_r", 2.0), ("t_m", -0.5)]), "2 t_r - 0.5 t_m");
        assert_eq!(sum(&[("t_r", -1.0)]), "-t_r");
        assert_eq!(sum(&[]), "");
    }

    #[test]
    fn quantities_take_the_unit_that_a_person_would() {
        let text = |value, unit| {
            let (number, unit) = quantity(value, unit);
            format!("{number}|{unit}")
        };
        assert_eq!(text(53.0, "ns"), "53.0|ns");
        assert_eq!(text(49_152.0, "bytes"), "48|KiB");
        assert_eq!(text(-1.0, "bytes"), "0|B");
        assert_eq!(text(f64::NAN, "bytes"), "n/a|bytes");
        assert_eq!(text(1.4, "1"), "1.40|");
        assert_eq!(
            interval(49_152.0, Some(47_104.0), Some(51_200.0), "bytes"),
            "[46, 50]"
        );
        assert_eq!(interval(1.0, Some(f64::NAN), Some(2.0), "bytes"), "n/a");
        assert_eq!(interval(1.0, None, Some(2.0), "ns"), "");
    }

    #[test]
    fn small_times_keep_their_digits() {
        for (value, text) in [
            (0.0213, "0.021"),
            (-0.0213, "-0.021"),
            (0.9996, "1.00"),
            (0.0, "0.00"),
            (0.0001, "0.00"),
            (53.0, "53.0"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(fine(value), text);
        }
    }

    #[test]
    fn signs_stand_before_percents() {
        assert_eq!(signed_percent(0.021), "+2.1 %");
        assert_eq!(signed_percent(-0.004), "-0.4 %");
        assert_eq!(signed_percent(0.0), "0 %");
        assert_eq!(signed_percent(f64::INFINITY), "n/a");
    }
}
