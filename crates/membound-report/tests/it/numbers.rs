//! No drawing and no text contains NaN or infinity, with any numbers in a document.

use membound_report::{csv, page, text};
use membound_types::{
    Basis, ComparedValue, Comparison, Figure, MachineProfile, Model, Outcome, Prediction,
};
use proptest::prelude::*;

use crate::compare::fixture as comparison;
use crate::dom::Page;
use crate::fixture::{self, Extent};

/// Sets the figures of the profile to `values`, one after the other.
fn spoil(profile: &mut MachineProfile, values: &[f64]) {
    let mut cycled = values.iter().copied().cycle();
    let mut next = || cycled.next().unwrap_or(f64::NAN);
    for level in &mut profile.levels {
        level.latency_ns = next();
        level.latency_low_ns = next();
        level.latency_high_ns = next();
        level.latency_cycles = next();
    }
    profile.machine.timer.core_clock_hz = next();
    profile.machine.timer.rate_hz = next();
    profile.elapsed_s = next();
    if let Outcome::Known(part) = &mut profile.latency {
        part.points.truncate(120);
        for point in &mut part.points {
            (point.ns, point.ns_low, point.ns_high, point.cycles) =
                (next(), next(), next(), next());
            point.batches.disturbed.slow_mode = Some(next());
            point.batches.disturbed.steal_ms = next();
            point.size_bytes = next() as u64;
        }
    }
    if let Outcome::Known(part) = &mut profile.mlp {
        for cell in &mut part.cells {
            (cell.cycles, cell.spread) = (next(), next());
        }
        for point in &mut part.throughput {
            (point.cycles_per_load, point.parallelism) = (next(), next());
        }
        for point in &mut part.areas {
            (point.cycles, point.ratio) = (next(), Some(next()));
        }
        for window in &mut part.windows {
            window.entries.value = next();
        }
        part.rob_size = Outcome::Known(next());
        part.mlp_rule = Outcome::Known(next());
        part.sequential_pair_cycles = Outcome::Known(next());
    }
    if let Outcome::Known(part) = &mut profile.window {
        for point in &mut part.points {
            (
                point.seconds_per_window,
                point.seconds_low,
                point.seconds_high,
            ) = (next(), next(), next());
        }
    }
    if let Outcome::Known(model) = &mut profile.model {
        spoil_model(model, &mut next);
    }
    if let Outcome::Known(part) = &mut profile.bandwidth {
        for point in &mut part.points {
            (point.gb_s, point.gb_s_low, point.gb_s_high) = (next(), next(), next());
            point.gb_s_with_allocate = next();
        }
    }
    if let Outcome::Known(part) = &mut profile.loaded {
        for point in &mut part.points {
            (point.gb_s, point.ns, point.ns_low, point.ns_high) = (next(), next(), next(), next());
        }
    }
    if let Outcome::Known(part) = &mut profile.tlb {
        for point in &mut part.points {
            (point.ns, point.packed_ns, point.translation_cycles) = (next(), next(), next());
        }
        for level in &mut part.levels {
            (level.entries.value, level.entries.low, level.entries.high) = (next(), next(), next());
        }
    }
    if let Outcome::Known(part) = &mut profile.prefetch {
        for point in &mut part.points {
            (point.ns, point.ratio) = (next(), next());
        }
    }
    if let Outcome::Known(part) = &mut profile.numa {
        for pair in &mut part.pairs {
            pair.latency_ns = Outcome::Known(next());
            pair.read_gb_s = Outcome::Known(next());
            pair.placed_share = Outcome::Known(next());
        }
    }
    if let Outcome::Known(part) = &mut profile.c2c {
        for pair in &mut part.pairs {
            (pair.one_way_ns, pair.one_way_low_ns) = (next(), next());
        }
    }
}

/// Sets every figure of a model, including sizes.
fn spoil_model(model: &mut Model, next: &mut impl FnMut() -> f64) {
    for parameter in &mut model.parameters {
        parameter.value = next();
        parameter.std_error = Some(next());
        (parameter.low, parameter.high) = (Some(next()), Some(next()));
    }
    for sum in &mut model.combinations {
        sum.coefficients.fill_with(&mut *next);
        (sum.value, sum.std_error, sum.low, sum.high) = (next(), next(), next(), next());
    }
    for level in &mut model.levels {
        level.size_bytes = Some(next() as u64);
        level.size_low_bytes = Some(next() as u64);
        level.size_high_bytes = Some(next() as u64);
        level.reach_bytes = Some(next() as u64);
        for outcome in [
            &mut level.ns_per_line,
            &mut level.rate_mops,
            &mut level.rate_gb_s,
        ] {
            *outcome = Outcome::Known(figure(next));
        }
    }
    let Outcome::Known(residual) = &mut model.residual else {
        panic!("the fixture's model was fitted")
    };
    residual.median_relative = next();
    residual.max_relative = next();
    residual.sigma = next();
    residual.left_out_median_relative = Some(next());
    if let Some(test) = &mut model.vanishing {
        (test.f, test.p_value, test.largest_share) = (next(), next(), next());
    }
    model.method.condition = next();
    for point in &mut model.points {
        let measured = &mut point.measured;
        (measured.ns, point.model_ns) = (next(), next());
        (measured.ns_low, measured.ns_high) = (Some(next()), Some(next()));
        measured.area_bytes = next() as u64;
        measured.window_bytes = measured.window_bytes.map(|_| next() as u64 % 8);
    }
}

fn spoil_prediction(prediction: &mut Prediction, next: &mut impl FnMut() -> f64) {
    for point in &mut prediction.points {
        point.ns = Outcome::Known(figure(next));
        point.area_bytes = next() as u64;
        for hits in &mut point.expected {
            hits.share = next();
        }
    }
}

/// Sets every figure of a comparison.
fn spoil_comparison(comparison: &mut Comparison, next: &mut impl FnMut() -> f64) {
    for figure in &mut comparison.figures {
        for value in figure.values.iter_mut().flatten() {
            *value = compared(next);
        }
        for difference in figure.differences.iter_mut().flatten() {
            difference.absolute = next();
            difference.relative = difference.relative.map(|_| next());
            (difference.relative_low, difference.relative_high) = (Some(next()), Some(next()));
            difference.p_value = Some(next());
        }
    }
    for curve in &mut comparison.curves {
        (curve.shift, curve.slope) = (Outcome::Known(figure(next)), Outcome::Known(figure(next)));
        (curve.differs_from, curve.differs_to) = (Some(next()), Some(next()));
        curve.median_relative = Some(next());
        for pair in &mut curve.points {
            (pair.x, pair.first, pair.later) = (next(), next(), next());
        }
    }
    for row in &mut comparison.conditions {
        row.effective_mlp = Outcome::Known(compared(next));
        row.throughput_mlp = Outcome::Known(next());
        row.one_load_cycles = Outcome::Known(compared(next));
        row.pair_cycles = Outcome::Known(compared(next));
        row.overhead_cycles = Outcome::Known(compared(next));
        for time in [&mut row.below, &mut row.reached].into_iter().flatten() {
            (time.cycles, time.spread) = (next(), next());
        }
    }
    for group in &mut comparison.fleets {
        group.limit_sigmas = Some(next());
        group.limit_relative = next();
        for figure in &mut group.figures {
            (figure.median, figure.robust_sigma) = (next(), next());
            (figure.p5, figure.p95) = (next(), next());
        }
        for outlier in group.odd.iter_mut().flat_map(|odd| &mut odd.outliers) {
            (outlier.value, outlier.median) = (next(), next());
            (outlier.sigmas, outlier.relative) = (next(), next());
        }
    }
    if let Some(guard) = &mut comparison.guard {
        guard.limit_percent = next();
        for hit in &mut guard.worst {
            (hit.value, hit.reference, hit.relative) = (next(), next(), next());
        }
    }
    comparison.method.false_discovery_rate = next();
    for floor in &mut comparison.method.floors {
        (floor.relative, floor.absolute) = (next(), next());
    }
}

fn compared(next: &mut impl FnMut() -> f64) -> ComparedValue {
    ComparedValue {
        value: next(),
        low: Some(next()),
        high: Some(next()),
    }
}

/// Checks all forms of comparisons full of `values`.
fn check_comparison(values: &[f64]) {
    let mut cycled = values.iter().copied().cycle();
    let mut next = || cycled.next().unwrap_or(f64::NAN);
    let mut one_median = comparison::against_a_median();
    one_median.curves = comparison::two_profiles().curves;
    for mut comparison in [comparison::two_profiles(), comparison::fleet(), one_median] {
        spoil_comparison(&mut comparison, &mut next);
        check_drawing(&page::comparison(&comparison));
        for shown in [text::Shown::Differences, text::Shown::Everything] {
            check_lines(&text::comparison(
                &comparison,
                shown,
                text::Style::default(),
            ));
        }
    }
}

fn figure(next: &mut impl FnMut() -> f64) -> Figure {
    Figure {
        value: next(),
        low: next(),
        high: next(),
        basis: Basis::Modelled,
    }
}

/// Checks all forms of models and predictions full of `values`.
fn check_model(values: &[f64]) {
    let mut cycled = values.iter().copied().cycle();
    let mut next = || cycled.next().unwrap_or(f64::NAN);
    let models = [
        fixture::model::origin(),
        fixture::model::guest(),
        fixture::model::latency_curve(),
    ];
    for mut model in models {
        spoil_model(&mut model, &mut next);
        check_drawing(&page::model(&model));
        check_words(&csv::fitted(&model));
        check_lines(&text::model(&model, text::Style::default()));
        check_lines(&text::model_show(
            "hostile",
            &model.topology,
            &model.parameters,
            &model.levels,
            text::Style::default(),
        ));
    }
    let mut prediction = fixture::model::prediction();
    spoil_prediction(&mut prediction, &mut next);
    check_words(&csv::prediction(&prediction));
    check_lines(&text::prediction(&prediction, text::Style::default()));
}

fn check_lines(shown: &str) {
    check_words(shown);
    for line in shown.lines() {
        assert!(textwrap::core::display_width(line) <= 80, "{line}");
    }
}

/// Asserts that every coordinate is a number that a browser can draw.
fn check_drawing(html: &str) {
    let page = Page::parse(html);
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    for element in &page.elements {
        for name in ["d", "x", "y", "width", "height", "viewBox", "cx", "cy", "r"] {
            let value = element.attribute(name);
            let numbers = value
                .split(|c: char| c.is_ascii_whitespace() || "MLHVZzhvl,".contains(c))
                .filter(|part| !part.is_empty());
            for number in numbers {
                if name == "width" && number == "device-width"
                    || element.name == "path" && element.around.iter().any(|n| n == "defs")
                {
                    continue;
                }
                let parsed: f64 = number
                    .parse()
                    .unwrap_or_else(|_| panic!("{} {name}=\"{value}\"", element.name));
                assert!(
                    parsed.is_finite() && parsed.abs() < 1e5,
                    "{} {name}=\"{value}\"",
                    element.name
                );
            }
        }
        if ["width", "height"]
            .iter()
            .any(|name| element.attribute(name).starts_with('-'))
        {
            panic!("{} with a negative size", element.name);
        }
    }
    check_words(html);
}

fn check_words(text: &str) {
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        assert!(!["NaN", "inf", "nan"].contains(&word), "{word} in the text");
    }
}

#[test]
fn the_drawing_of_a_sound_profile_is_sound() {
    check_drawing(&page::render(&fixture::profile(Extent::Thorough)));
    check_drawing(&page::render(&fixture::two_nodes(64)));
    check_drawing(&page::comparison(&comparison::two_profiles()));
    check_drawing(&page::comparison(&comparison::fleet()));
}

#[test]
fn special_values_are_left_out() {
    for values in [
        vec![f64::NAN],
        vec![f64::INFINITY],
        vec![f64::NEG_INFINITY, 1.0],
        vec![0.0],
        vec![-0.0, -1.0],
        vec![f64::MAX, f64::MIN],
        vec![f64::MIN_POSITIVE, 5e-324, 1.0],
        vec![f64::NAN, 3.0, f64::INFINITY, 1e308, -1e308],
    ] {
        let mut profile = fixture::two_nodes(4);
        spoil(&mut profile, &values);
        check_drawing(&page::render(&profile));
        check_words(&text::machine(&profile, text::Style::default()));
        check_model(&values);
        check_comparison(&values);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_number_spoils_the_drawing(
        values in proptest::collection::vec(
            prop_oneof![
                any::<f64>(),
                -1e6..1e6_f64,
                1e-9..1e12_f64,
                Just(f64::NAN),
                Just(f64::INFINITY),
                Just(0.0),
            ],
            1..60,
        )
    ) {
        let mut profile = fixture::two_nodes(3);
        spoil(&mut profile, &values);
        check_drawing(&page::render(&profile));
        let shown = text::machine(&profile, text::Style::default());
        check_words(&shown);
        for line in shown.lines() {
            prop_assert!(textwrap::core::display_width(line) <= 80, "{}", line);
        }
        check_model(&values);
        check_comparison(&values);
    }
}
