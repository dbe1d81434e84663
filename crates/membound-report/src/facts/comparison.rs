//! Words and numbers of a comparison that the page and the terminal share.

use membound_types::{
    ComparedCurve, ComparedFigure, ComparedValue, Comparison, ConditionRow, CurveVerdict,
    FigureDifference, FigureVerdict, LoadsTime, Outcome,
};

use crate::units;

/// Shares of a value that a range may span and still be written as one number.
const NARROW: f64 = 0.005;
/// A time this near to the pair's is the pair's: the rule's answer is a whole number.
const REACHED: f64 = 0.02;

/// `A`, `B`, … for the profiles in their order, `#27` beyond the alphabet.
pub(crate) fn letter(index: usize) -> String {
    match u8::try_from(index) {
        Ok(index) if index < 26 => char::from(b'A' + index).to_string(),
        _ => format!("#{}", index + 1),
    }
}

/// A value in the unit of its figure.
pub(crate) fn value(value: f64, unit: &str) -> String {
    match unit {
        "" => units::compact(value),
        "bytes" if value >= 0.0 => units::bytes(value.round() as u64),
        "Hz" => units::hertz(value),
        other if value.is_finite() => format!("{} {other}", units::number(value)),
        _ => units::NO_VALUE.to_owned(),
    }
}

/// `+12 %`, `−3.4 %`; times where more than threefold.
pub(crate) fn change(relative: f64) -> String {
    let ratio = 1.0 + relative;
    if !ratio.is_finite() {
        units::NO_VALUE.to_owned()
    } else if ratio >= 3.0 {
        format!("× {}", units::compact(ratio))
    } else {
        let sign = if relative < 0.0 { "−" } else { "+" };
        format!("{sign}{}", units::percent(relative.abs()))
    }
}

/// The change of a figure: relative where it can be, else in its unit.
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

/// `same`, `worse`, `better`, `cannot tell`.
pub(crate) const fn verdict(difference: &FigureDifference) -> &'static str {
    match (difference.verdict, difference.worse) {
        (FigureVerdict::Same, _) => "same",
        (FigureVerdict::Unknown, _) => "cannot tell",
        (FigureVerdict::Different, true) => "worse",
        (FigureVerdict::Different, false) => "better",
    }
}

/// The figures that differ in profile `column`, the ones for the worse first and of those
/// the most changed.
pub(crate) fn differing(comparison: &Comparison, column: usize) -> Vec<&ComparedFigure> {
    let of = |figure: &ComparedFigure| figure.differences.get(column).copied().flatten();
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

/// What a verdict on curves means, in words.
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

/// Where two curves differ: `32 KiB – 1 MiB`, `from 5 loads`.
pub(crate) fn places(curve: &ComparedCurve) -> String {
    let place = |x: f64| match curve.x_unit.as_str() {
        "bytes" => units::bytes(x.max(0.0).round() as u64),
        _ => units::compact(x),
    };
    match (curve.differs_from, curve.differs_to) {
        (Some(from), Some(to)) if from < to => format!("{} – {}", place(from), place(to)),
        (Some(from), _) => place(from),
        _ => String::new(),
    }
}

/// Whether the verdict leaves a shift and a slope to be shown.
pub(crate) const fn parameters(curve: &ComparedCurve) -> (bool, bool) {
    match curve.verdict {
        None | Some(CurveVerdict::Other) => (false, false),
        Some(CurveVerdict::Shift) => (true, false),
        Some(CurveVerdict::Slope) => (false, true),
        Some(_) => (true, true),
    }
}

/// `340–360`, or one number where the range is narrow.
pub(crate) fn range(low: f64, high: f64) -> String {
    if high - low <= NARROW * high.abs() {
        units::number(f64::midpoint(low, high))
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

/// A row of document 000's Table 6.1 as text, in its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionText {
    /// `4.4 (4–5)`, or a whole number.
    pub(crate) mlp: String,
    pub(crate) throughput: String,
    /// One load, cycles.
    pub(crate) one: String,
    /// Two in sequence, cycles.
    pub(crate) pair: String,
    /// Loads whose time follows: `5 / 6`.
    pub(crate) loads: String,
    /// `490–500 / 560–570`.
    pub(crate) time: String,
    /// `nil` for the first row.
    pub(crate) overhead: String,
}

/// Formats a row; `first` says whether the others are held against it.
pub(crate) fn condition(row: &ConditionRow, first: bool) -> ConditionText {
    let dash = || "–".to_owned();
    let known = |outcome: &Outcome<ComparedValue>| outcome.known().map_or_else(dash, scattered);
    let mlp = row.effective_mlp.known().map_or_else(dash, |mlp| {
        let whole = mlp.value.round();
        if (mlp.value - whole).abs() < 0.05 {
            units::compact(whole)
        } else {
            format!(
                "{} ({:.0}–{:.0})",
                units::compact((mlp.value * 10.0).round() / 10.0),
                mlp.value.floor(),
                mlp.value.ceil()
            )
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
        throughput: row
            .throughput_mlp
            .known()
            .map_or_else(dash, |value| units::number(*value)),
        one: known(&row.one_load_cycles),
        pair: known(&row.pair_cycles),
        loads,
        time: times,
        overhead,
    }
}

/// Figures of a fleet that say what its machines are; the others on request.
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

    #[test]
    fn ranges_are_written_as_the_document_writes_them() {
        assert_eq!(range(490.0, 500.0), "490–500");
        assert_eq!(range(199.9, 200.1), "200");
    }
}
