//! Whatever numbers stand in a document, no drawing and no text says NaN or infinity.

use membound_report::{page, text};
use membound_types::{MachineProfile, Outcome};
use proptest::prelude::*;

use crate::dom::Page;
use crate::fixture::{self, Extent};

/// Puts `values` in turns into every figure of the profile.
fn spoil(profile: &mut MachineProfile, values: &[f64]) {
    let mut turn = values.iter().copied().cycle();
    let mut next = || turn.next().unwrap_or(f64::NAN);
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
            (point.cycles, point.ratio) = (next(), next());
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

/// Every number in every coordinate is one that a browser can draw.
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
        check_words(&text::profile(&profile, text::Style::default()));
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
        let shown = text::profile(&profile, text::Style::default());
        check_words(&shown);
        for line in shown.lines() {
            prop_assert!(textwrap::core::display_width(line) <= 80, "{}", line);
        }
    }
}
