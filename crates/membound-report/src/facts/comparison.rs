//! Texts and numbers of a comparison that the page and the terminal share.

use membound_types::{
    ComparedCurve, ComparedFigure, ComparedValue, Comparison, ConditionRow, CurveVerdict, Figure,
    FigureDifference, FigureVerdict, FleetFigure, LoadsTime, OddProfile, Outcome, Outlier, Overlay,
    Worse,
};

use textwrap::core::display_width;

use crate::units;

/// Width of a range, as a share of the value, up to which it is written as one number.
const NARROW: f64 = 0.005;
/// Half-width of an interval, as a share of the value, up to which the value is written without it.
const MAX_UNSTATED_HALF_WIDTH: f64 = 0.1;
/// Distance from the pair's time, as a share, within which a time counts as equal: the rule's answer is a
/// whole number.
const REACHED: f64 = 0.02;

/// Letter of the profile at `index`: `A`, `B`, …; `#27` beyond the alphabet.
pub(crate) fn letter(index: usize) -> String {
    match u8::try_from(index) {
        Ok(index) if index < 26 => char::from(b'A' + index).to_string(),
        _ => format!("#{}", index + 1),
    }
}

/// Heading of a profile's column: its name, or its letter if any profile's name is too long for a column.
pub(crate) fn title(comparison: &Comparison, index: usize, most_columns: usize) -> String {
    let short = |name: &str| (1..=most_columns).contains(&display_width(name));
    let profiles = &comparison.profiles;
    match profiles.get(index) {
        Some(profile) if profiles.iter().all(|it| short(&it.name)) => profile.name.clone(),
        _ => letter(index),
    }
}

/// A row's condition without the name of its profile, for a row that names the profile elsewhere.
pub(crate) fn condition_within(row: &ConditionRow) -> &str {
    let rest = row.condition.strip_prefix(&row.profile);
    rest.and_then(|rest| rest.strip_prefix(", "))
        .unwrap_or(&row.condition)
}

/// Entry of a figure for profile `column`; `None` if there is none.
pub(crate) fn at<T: Copy>(of_profiles: &[Option<T>], column: usize) -> Option<T> {
    of_profiles.get(column).copied().flatten()
}

/// Value of a figure in profile `column`, or a dash.
pub(crate) fn value_at(figure: &ComparedFigure, column: usize) -> String {
    at(&figure.values, column)
        .map_or_else(|| "–".to_owned(), |found| value(found.value, &figure.unit))
}

/// 95 % interval of a figure in profile `column`, where it is wide: `[18.6, 26.4]`.
pub(crate) fn wide_interval(figure: &ComparedFigure, column: usize) -> Option<String> {
    let found = at(&figure.values, column)?;
    let (low, high) = found.low.zip(found.high)?;
    let is_wide = high - low > 2.0 * MAX_UNSTATED_HALF_WIDTH * found.value.abs();
    let text = |end: f64| match figure.unit.as_str() {
        "bytes" | "Hz" => value(end, &figure.unit),
        _ => units::number(end),
    };
    is_wide.then(|| format!("[{}, {}]", text(low), text(high)))
}

/// True if the first profile or `column` has the figure.
pub(crate) fn in_either(figure: &ComparedFigure, column: usize) -> bool {
    at(&figure.values, 0).is_some() || at(&figure.values, column).is_some()
}

/// Formats a value in the unit of its figure.
pub(crate) fn value(value: f64, unit: &str) -> String {
    match unit {
        "" => units::compact(value),
        "bytes" if value >= 0.0 => units::bytes(value.round() as u64),
        "Hz" => units::hertz(value),
        other if value.is_finite() => format!("{} {other}", units::number(value)),
        _ => units::NO_VALUE.to_owned(),
    }
}

/// Formats a change: `+12 %`, `−3.4 %`; as a factor from threefold on.
pub(crate) fn change(relative: f64) -> String {
    let ratio = 1.0 + relative;
    if !ratio.is_finite() || ratio < 0.0 {
        units::NO_VALUE.to_owned()
    } else if ratio >= 3.0 {
        format!("× {}", units::compact(ratio))
    } else {
        let sign = if relative < 0.0 { "−" } else { "+" };
        format!("{sign}{}", units::percent(relative.abs()))
    }
}

/// Formats the change of a figure: relative if possible, else in its unit.
pub(crate) fn difference(difference: &FigureDifference, unit: &str) -> String {
    difference.relative.map_or_else(
        || {
            let sign = if difference.absolute < 0.0 {
                "−"
            } else {
                "+"
            };
            format!("{sign}{}", value(difference.absolute.abs(), unit))
        },
        change,
    )
}

/// Verdict in words: `same`, `worse`, `better`, `undecided`; `higher` or `lower` where neither is
/// worse.
pub(crate) fn verdict(figure: &ComparedFigure, difference: &FigureDifference) -> &'static str {
    match difference.verdict {
        FigureVerdict::Same => "same",
        FigureVerdict::Unknown => "undecided",
        FigureVerdict::Different => {
            let neutral = figure.worse == Worse::Neither;
            direction(difference.worse, neutral, difference.absolute)
        }
    }
}

/// Verdict on an outlier in words, as that on a difference.
pub(crate) const fn outlier_verdict(outlier: &Outlier) -> &'static str {
    direction(outlier.worse, outlier.neutral, outlier.relative)
}

const fn direction(worse: bool, neutral: bool, change: f64) -> &'static str {
    match (worse, neutral) {
        (true, _) => "worse",
        (false, true) if change > 0.0 => "higher",
        (false, true) => "lower",
        (false, false) => "better",
    }
}

/// Figures that differ in profile `column`: worse ones first, then by size of the change.
pub(crate) fn differing(comparison: &Comparison, column: usize) -> Vec<&ComparedFigure> {
    let of = |figure: &ComparedFigure| at(&figure.differences, column);
    let mut found: Vec<&ComparedFigure> = comparison
        .figures
        .iter()
        .filter(|figure| of(figure).is_some_and(|it| it.verdict == FigureVerdict::Different))
        .collect();
    let size = |figure: &ComparedFigure| {
        let relative = of(figure).and_then(|it| it.relative).unwrap_or(0.0);
        (1.0 + relative).max(1e-9).ln().abs()
    };
    found.sort_by(|a, b| {
        let worse = |figure: &ComparedFigure| of(figure).is_some_and(|it| it.worse);
        worse(b).cmp(&worse(a)).then(size(b).total_cmp(&size(a)))
    });
    found
}

/// Verdict on two curves, in words.
pub(crate) const fn curve_verdict(verdict: CurveVerdict) -> &'static str {
    match verdict {
        CurveVerdict::Same => "same",
        CurveVerdict::Shift => "constant shift",
        CurveVerdict::Slope => "change of slope",
        CurveVerdict::Both => "shift and slope",
        CurveVerdict::Other => "another shape",
        CurveVerdict::Undecided => "shift or slope",
    }
}

/// Formats the range where two curves differ: `32 KiB – 1 MiB`, `5 – 12 loads`.
pub(crate) fn places(curve: &ComparedCurve) -> String {
    let place = |x: f64| match curve.x_unit.as_str() {
        "bytes" => units::bytes(x.max(0.0).round() as u64),
        _ => units::compact(x),
    };
    let unit = match curve.x_unit.as_str() {
        "bytes" => String::new(),
        other => format!(" {other}"),
    };
    match (curve.differs_from, curve.differs_to) {
        (Some(from), Some(to)) if from < to => format!("{} – {}{unit}", place(from), place(to)),
        (Some(from), _) => format!("{}{unit}", place(from)),
        _ => String::new(),
    }
}

/// Formats shift and slope of a curve with their intervals, as far as its verdict involves them. A flat
/// curve determines neither.
pub(crate) fn parameters(curve: &ComparedCurve) -> (Option<ValueText>, Option<ValueText>) {
    let (shifted, scaled) = match curve.verdict {
        None | Some(CurveVerdict::Other) => (false, false),
        Some(CurveVerdict::Shift) => (true, false),
        Some(CurveVerdict::Slope) => (false, true),
        Some(_) => (true, true),
    };
    let known = |outcome: &Outcome<Figure>| {
        let figure = outcome.known().copied()?;
        let finite = [figure.value, figure.low, figure.high];
        finite.iter().all(|it| it.is_finite()).then_some(figure)
    };
    let slope = known(&curve.slope);
    if scaled && shifted && slope.is_some_and(|slope| slope.low <= 0.0) {
        return (None, None);
    }
    let shift = known(&curve.shift).map(|shift| ValueText {
        value: format!("{} {}", signed(shift.value), curve.y_unit),
        interval: format!("[{}, {}]", signed(shift.low), signed(shift.high)),
    });
    let slope = slope.map(|slope| ValueText {
        value: format!("× {}", factor(slope.value)),
        interval: format!("[{}, {}]", factor(slope.low), factor(slope.high)),
    });
    (shift.filter(|_| shifted), slope.filter(|_| scaled))
}

/// A value and its interval, formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueText {
    pub(crate) value: String,
    pub(crate) interval: String,
}

fn signed(value: f64) -> String {
    let digits = units::number(value.abs());
    let sign = if digits == units::number(0.0) {
        ""
    } else if value < 0.0 {
        "−"
    } else {
        "+"
    };
    format!("{sign}{digits}")
}

/// Three decimals: slopes are near 1, and 1 % of them matters.
fn factor(value: f64) -> String {
    if value.abs() < 1000.0 {
        format!("{value:.3}").replace('-', "−")
    } else {
        units::number(value)
    }
}

/// Formats a range: `340–360`, or one number if it is narrow.
pub(crate) fn range(low: f64, high: f64) -> String {
    if high - low <= NARROW * high.abs() {
        units::number(f64::midpoint(low, high)).replace('-', "−")
    } else if low < 0.0 {
        // A dash between negative numbers would look like a minus sign.
        format!("{} to {}", units::number(low), units::number(high)).replace('-', "−")
    } else {
        format!("{}–{}", units::number(low), units::number(high))
    }
}

fn scattered(value: &ComparedValue) -> String {
    match (value.low, value.high) {
        (Some(low), Some(high)) => range(low, high),
        _ => units::number(value.value),
    }
}

/// A row of document 000's Table 6.1, formatted by column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionText {
    /// `4.4 (4–5)`, with the two measured numbers around it, or a whole number.
    pub(crate) mlp: String,
    /// Its 95 % interval, if it has one.
    pub(crate) interval: String,
    pub(crate) throughput: String,
    /// Time of one load, in cycles.
    pub(crate) one: String,
    /// Time of two loads in sequence, in cycles.
    pub(crate) pair: String,
    /// Numbers of loads whose time follows: `5 / 6`.
    pub(crate) loads: String,
    /// Their times in cycles: `490–500 / 560–570`.
    pub(crate) time: String,
    /// Overhead over the first row; `nil` for the first row.
    pub(crate) overhead: String,
}

/// Formats a row; `first` is true for the row that the others are compared with.
pub(crate) fn condition(row: &ConditionRow, first: bool) -> ConditionText {
    let dash = || "–".to_owned();
    let known = |outcome: &Outcome<ComparedValue>| outcome.known().map_or_else(dash, scattered);
    let mlp = row.effective_mlp.known().map_or_else(dash, |mlp| {
        let whole = mlp.value.round();
        if !mlp.value.is_finite() || mlp.value.abs() >= 1e6 {
            units::number(mlp.value)
        } else if (mlp.value - whole).abs() < 0.05 {
            units::compact(whole)
        } else {
            let (low, high) = match (row.below, row.reached) {
                (Some(below), Some(reached)) => {
                    let loads = |time: LoadsTime| f64::from(time.loads) - 1.0;
                    (loads(below), loads(reached))
                }
                _ => (mlp.value.floor(), mlp.value.ceil()),
            };
            let tenths = (mlp.value * 10.0).round() / 10.0;
            format!("{} ({low:.0}–{high:.0})", units::compact(tenths))
        }
    });
    let pair = row.pair_cycles.known().map(|pair| pair.value);
    let exact = row
        .reached
        .zip(pair)
        .is_some_and(|(reached, pair)| (reached.cycles / pair - 1.0).abs() < REACHED);
    let time = |time: LoadsTime| range(time.cycles - time.spread, time.cycles + time.spread);
    let (loads, times) = match (row.below, row.reached) {
        (Some(below), Some(reached)) if !exact => (
            format!("{} / {}", below.loads, reached.loads),
            format!("{} / {}", time(below), time(reached)),
        ),
        (_, Some(reached)) => (reached.loads.to_string(), time(reached)),
        (Some(below), None) => (
            format!("> {}", below.loads),
            format!("> {}", units::number(below.cycles)),
        ),
        (None, None) => (dash(), dash()),
    };
    let overhead = match &row.overhead_cycles {
        _ if first => "nil".to_owned(),
        Outcome::Known(value) => match (value.low, value.high) {
            (Some(low), Some(high)) if low <= 0.0 && high >= 0.0 => "within noise".to_owned(),
            _ => scattered(value),
        },
        Outcome::Missing { .. } => dash(),
    };
    ConditionText {
        mlp,
        interval: interval(row.effective_mlp.known()).trim().to_owned(),
        throughput: row.throughput_mlp.known().map_or_else(dash, |value| {
            units::number(*value) + &interval(row.throughput_interval.as_ref())
        }),
        one: known(&row.one_load_cycles),
        pair: known(&row.pair_cycles),
        loads,
        time: times,
        overhead,
    }
}

/// Noise between placements of each condition, as `name` names it: `quiet placement, thp pages 1.5 %`. `None` if
/// no condition has placements.
pub(crate) fn placement_noise(
    comparison: &Comparison,
    name: impl Fn(&ConditionRow) -> String,
) -> Option<String> {
    let rows = comparison.conditions.iter();
    let by_condition: Vec<String> = rows
        .filter_map(|row| {
            let noise = units::percent(row.placement_noise?);
            Some(format!("{} {noise}", name(row)))
        })
        .collect();
    (!by_condition.is_empty()).then(|| {
        format!(
            "standard deviation between placements, of their median: {}",
            by_condition.join("; ")
        )
    })
}

/// Formats an interval after a value: ` [9.6, 10.4]`; empty if there is none.
fn interval(value: Option<&ComparedValue>) -> String {
    let ends = value.and_then(|value| value.low.zip(value.high));
    ends.map_or_else(String::new, |(low, high)| {
        format!(" {}", units::interval(low, high))
    })
}

/// Describes an overlay's axes, and its scatter where that is known.
pub(crate) fn overlay_remark(overlay: &Overlay) -> String {
    let what = format!("{} over {}", overlay.y_unit, overlay.x_unit);
    match overlay.name.as_str() {
        "placements" => format!("{what}; the median of all placements between least and most"),
        _ => what,
    }
}

/// Counts outliers: `28 outliers, 26 for the worse`; empty for a profile that stands out only by missing
/// figures.
pub(crate) fn outlier_count(profile: &OddProfile) -> String {
    if profile.outliers.is_empty() {
        return String::new();
    }
    let worse = profile.outliers.iter().filter(|it| it.worse).count();
    format!(
        "{}, {worse} for the worse",
        units::plural(profile.outliers.len(), "outlier")
    )
}

/// Formats the range from the 5th to the 95th percentile of a fleet: `147–151 ns`, `1 MiB – 1.2 MiB`.
pub(crate) fn middle(figure: &FleetFigure) -> String {
    let (low, high) = (figure.p5, figure.p95);
    match figure.unit.as_str() {
        "bytes" | "Hz" => {
            let (low, high) = (value(low, &figure.unit), value(high, &figure.unit));
            if low == high {
                low
            } else {
                format!("{low} – {high}")
            }
        }
        "" => range(low, high),
        unit => format!("{} {unit}", range(low, high)),
    }
}

/// Formats the robust standard deviation of a fleet's figure: as a share of the median if that is positive,
/// else in its unit.
pub(crate) fn scatter(figure: &FleetFigure) -> String {
    if figure.median > 0.0 {
        units::percent(figure.robust_sigma / figure.median)
    } else {
        value(figure.robust_sigma, &figure.unit)
    }
}

/// True for figures that characterise a machine; the others are shown on request.
pub(crate) fn is_headline(name: &str) -> bool {
    let level = name.starts_with("levels.")
        && (name.ends_with(".latency_ns") || name.ends_with(".size_bytes"));
    level
        || (name.starts_with("latency.") && name.ends_with(".256MiB_ns"))
        || (name.starts_with("mlp.thp.local.")
            && ["rob_entries", "rule", "throughput", "one_load_cycles"]
                .iter()
                .any(|end| name.ends_with(end)))
        || (name.starts_with("numa.") && name.ends_with(".latency_ns"))
        || ["clock.core_hz", "bandwidth.memory_max_gb_s", "c2c.max_ns"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign_and_large_ones_a_factor() {
        for (relative, text) in [
            (0.123, "+12 %"),
            (-0.034, "−3.4 %"),
            (0.0, "+0 %"),
            (4.0, "× 5"),
            (f64::NAN, units::NO_VALUE),
        ] {
            assert_eq!(change(relative), text);
        }
        assert_eq!(value(48.0 * 1024.0, "bytes"), "48 KiB");
        assert_eq!(value(447.0, ""), "447");
        assert_eq!(value(160.23, "ns"), "160 ns");
        assert_eq!(value(f64::NAN, "ns"), units::NO_VALUE);
        assert_eq!([letter(0), letter(25), letter(26)], ["A", "Z", "#27"]);
    }

    fn curve(verdict: CurveVerdict, shift: [f64; 3], slope: [f64; 3]) -> ComparedCurve {
        let figure = |[low, value, high]: [f64; 3]| {
            Outcome::Known(Figure {
                value,
                low,
                high,
                basis: membound_types::Basis::Estimated,
            })
        };
        ComparedCurve {
            name: String::new(),
            part: String::new(),
            title: String::new(),
            x_unit: "loads".to_owned(),
            y_unit: "cycles".to_owned(),
            profile: String::new(),
            shift: figure(shift),
            slope: figure(slope),
            verdict: Some(verdict),
            differs_from: Some(2.0),
            differs_to: Some(12.0),
            median_relative: None,
            points: Vec::new(),
        }
    }

    #[test]
    fn a_shift_has_its_sign_and_unit_and_a_flat_curve_has_neither() {
        let check = |verdict, slope, right: (Option<&str>, Option<&str>)| {
            let curve = curve(verdict, [-50.0, -45.0, -40.0], slope);
            let (shift, slope) = parameters(&curve);
            let text =
                |found: Option<ValueText>| found.map(|it| format!("{} {}", it.value, it.interval));
            let (shift, slope) = (text(shift), text(slope));
            assert_eq!((shift.as_deref(), slope.as_deref()), right);
            assert_eq!(places(&curve), "2 – 12 loads");
        };
        let near = [0.98, 1.01, 1.04];
        let shift = Some("−45.0 cycles [−50.0, −40.0]");
        let slope = Some("× 1.010 [0.980, 1.040]");
        check(CurveVerdict::Same, near, (shift, slope));
        check(CurveVerdict::Shift, near, (shift, None));
        check(CurveVerdict::Slope, near, (None, slope));
        check(CurveVerdict::Other, near, (None, None));
        check(CurveVerdict::Same, [-41.0, -3.5, 34.0], (None, None));
        check(CurveVerdict::Same, [0.9, f64::NAN, 1.1], (shift, None));
    }

    #[test]
    fn ranges_are_written_as_the_document_writes_them() {
        assert_eq!(range(490.0, 500.0), "490–500");
        assert_eq!(range(199.9, 200.1), "200");
        assert_eq!(range(-262.0, -179.0), "−262 to −179");
        assert_eq!(range(-45.0, -45.0), "−45.0");
    }
}
