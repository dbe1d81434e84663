//! The paper's Tables 1 and 2, rates from estimates, and what the TLB covers.

use std::collections::BTreeMap;

use membound_model::hierarchy::{bundled, model_levels, published, with_tlb};
use membound_types::{
    Basis, Figure, FitData, LevelKind, ModelLevel, Outcome, ParameterRole, SizeMeaning, TlbTerm,
    Topology,
};

use super::{GIB, KIB, MIB, origin, sound};

fn known(outcome: &Outcome<Figure>) -> f64 {
    outcome.known().map_or(f64::NAN, |figure| figure.value)
}

fn rounded(levels: &[ModelLevel], figure: fn(&ModelLevel) -> &Outcome<Figure>) -> Vec<String> {
    levels
        .iter()
        .map(|level| format!("{:.1}", known(figure(level))))
        .collect()
}

#[test]
fn table_2_follows_from_table_1() {
    let (_, levels) = published(&origin());
    assert_eq!(
        rounded(&levels, |level| &level.rate_mops),
        ["NaN", "75.5", "20.3", "14.5", "13.6", "12.9", "12.2"]
    );
    assert_eq!(
        rounded(&levels, |level| &level.ns_per_line),
        [
            "NaN", "53.0", "790.0", "1106.0", "1174.0", "1242.0", "1310.0"
        ]
    );
    let lines = levels.iter().map(|level| level.line_bytes);
    assert_eq!(lines.collect::<Vec<_>>(), [8, 32, 128, 128, 128, 128, 128]);
    for level in &levels[1..] {
        let bytes_a_second = known(&level.rate_mops) * 8e6;
        assert!((known(&level.rate_gb_s) * 1e9 / bytes_a_second - 1.0).abs() < 1e-12);
    }
    for missing in [
        &levels[0].ns_per_line,
        &levels[0].rate_mops,
        &levels[0].rate_gb_s,
    ] {
        assert_eq!(
            missing.why_missing().unwrap().reason,
            "the program's own time cannot be distinguished from this level's"
        );
    }
}

#[test]
fn table_1_is_shown_with_units_and_relations() {
    let (parameters, _) = published(&origin());
    let shown: Vec<String> = parameters
        .iter()
        .filter(|parameter| parameter.role != ParameterRole::Constant)
        .map(|p| format!("{} {} {} {}", p.symbol, p.value, p.unit, p.related_to))
        .collect();
    assert_eq!(
        shown,
        [
            "t_s 53 ns 32 Bytes",
            "t_hh 110 ns 128 Bytes",
            "t_hr 358 ns 128 Bytes",
            "t_r 68 ns 128 Bytes",
            "t_m 468 ns 128 Bytes",
            "t_tlb 1005 ns 1 TLB miss",
            "t_pt 8356 ns 1 window",
        ]
    );
    let constants: Vec<(&str, f64, &str)> = parameters
        .iter()
        .filter(|parameter| parameter.role == ParameterRole::Constant)
        .map(|p| (&*p.symbol, p.value, &*p.related_to))
        .collect();
    assert_eq!(
        constants,
        ["t_s0", "t_hh0", "t_hr0", "t_r0", "t_m0"].map(|symbol| (symbol, 0.0, "1 window"))
    );
    for parameter in &parameters {
        assert!(
            parameter.fixed && parameter.std_error.is_none(),
            "{parameter:?}"
        );
        assert!(
            parameter.low.is_none() && parameter.high.is_none(),
            "{parameter:?}"
        );
    }
}

#[test]
fn hubs_and_memory_are_marked_as_inseparable_until_one_is_fixed() {
    let marked = |topology: &Topology| -> Vec<String> {
        let (parameters, _) = published(topology);
        let inseparable = parameters
            .into_iter()
            .filter(|parameter| !parameter.identifiable);
        inseparable.map(|parameter| parameter.symbol).collect()
    };
    let mut topology = origin();
    assert_eq!(
        marked(&topology),
        ["t_hh0", "t_hh", "t_hr0", "t_hr", "t_m0", "t_m"]
    );
    let (parameters, _) = published(&topology);
    let router = parameters
        .iter()
        .find(|parameter| parameter.symbol == "t_hr")
        .unwrap();
    assert_eq!(
        router.reason.as_deref(),
        Some(
            "no level's path separates `t_hh`, `t_hr` and `t_m`: only sums of them can be measured"
        )
    );
    topology.components[5].fixed = true;
    assert_eq!(marked(&topology), Vec::<String>::new());
}

#[test]
fn a_topology_without_known_values_is_reported() {
    let (parameters, levels) = published(&bundled("generic").unwrap());
    assert_eq!(parameters, []);
    let missing = levels[2].ns_per_line.why_missing().unwrap();
    assert_eq!(missing.reason, "no value is known of `t_l2` and `t_l3`");
    assert_eq!(levels[2].rate_mops.why_missing(), Some(missing));
    assert!(missing.remedy.is_some());
    assert_eq!(levels[4].reach_bytes, None);
}

#[test]
fn rates_invert_intervals() {
    let interval = |low, value, high| {
        move |_: &BTreeMap<String, f64>| {
            Outcome::Known(Figure {
                value,
                low,
                high,
                basis: Basis::Estimated,
            })
        }
    };
    let rates = |low, value, high| {
        let levels = model_levels(&origin(), FitData::Window, &interval(low, value, high));
        levels[2].rate_mops.clone()
    };
    assert_eq!(
        rates(400.0, 800.0, 1600.0),
        Outcome::Known(Figure {
            value: 20.0,
            low: 10.0,
            high: 40.0,
            basis: Basis::Estimated
        })
    );
    for low in [0.0, -1.0] {
        assert_eq!(
            rates(low, 800.0, 1600.0).why_missing().unwrap().reason,
            "the time of a line cannot be distinguished from 0, so it bounds no rate"
        );
    }
}

#[test]
fn estimates_combine_the_components_of_the_path() {
    let factors = |data: FitData, level: usize| {
        let value =
            |combination: &BTreeMap<String, f64>| Outcome::missing(format!("{combination:?}"));
        let levels = model_levels(&origin(), data, &value);
        levels[level]
            .ns_per_line
            .why_missing()
            .unwrap()
            .reason
            .clone()
    };
    assert_eq!(
        factors(FitData::Window, 4),
        r#"{"t_hr": 1.0, "t_m": 1.0, "t_r": 2.0, "t_s": 4.0}"#
    );
    assert_eq!(
        factors(FitData::Latency, 4),
        r#"{"t_hr": 1.0, "t_m": 1.0, "t_o": 1.0, "t_r": 2.0, "t_s": 1.0}"#
    );
    assert_eq!(factors(FitData::Latency, 0), r#"{"t_o": 1.0}"#);
}

#[test]
fn a_latency_curve_gives_no_rates() {
    let ten = |_: &BTreeMap<String, f64>| {
        Outcome::Known(Figure {
            value: 10.0,
            low: 9.0,
            high: 11.0,
            basis: Basis::Estimated,
        })
    };
    for level in model_levels(&origin(), FitData::Latency, &ten) {
        assert_eq!(known(&level.ns_per_line), 10.0);
        for rate in [&level.rate_mops, &level.rate_gb_s] {
            assert_eq!(
                rate.why_missing().unwrap().reason,
                "loads that wait for each other say nothing of a rate"
            );
        }
    }
}

/// The paper's levels with these times of a line, ±10 %; the first level has none.
fn levels_with(times: [f64; 6]) -> Vec<ModelLevel> {
    let topology = origin();
    let next = std::cell::Cell::new(0);
    let estimate = |_: &BTreeMap<String, f64>| {
        let value = times[next.replace(next.get() + 1)];
        Outcome::Known(Figure {
            value,
            low: 0.9 * value,
            high: 1.1 * value,
            basis: Basis::Estimated,
        })
    };
    model_levels(&topology, FitData::Window, &estimate)
}

#[test]
fn a_rate_like_that_of_a_level_further_inside_is_not_given_twice() {
    let levels = levels_with([50.0, 800.0, 820.0, 850.0, 1300.0, 1310.0]);
    let rated = |levels: &[ModelLevel]| -> Vec<bool> {
        let rates = levels.iter();
        rates
            .map(|level| level.rate_mops.known().is_some() && level.rate_gb_s.known().is_some())
            .collect()
    };
    assert_eq!(
        rated(&levels),
        [false, true, true, false, false, true, false]
    );
    let why = levels[4].rate_gb_s.why_missing().unwrap();
    let inner = &levels[2].name;
    assert_eq!(
        why.reason,
        format!("its rate cannot be distinguished from that of {inner}")
    );
    // The time of a line is still given.
    assert!((known(&levels[4].ns_per_line) - 850.0).abs() < 1e-9);
    // Each of these is more than 10 % slower than the one before.
    let levels = levels_with([50.0, 60.0, 80.0, 100.0, 120.0, 140.0]);
    assert_eq!(rated(&levels), [false, true, true, true, true, true, true]);
}

#[test]
fn reach_adds_up_own_sizes() {
    let reach = |topology: &Topology| {
        let (_, levels) = published(topology);
        levels
            .iter()
            .map(|level| level.reach_bytes)
            .collect::<Vec<_>>()
    };
    let own = sound();
    let (l1, l2) = (32 * KIB, 4 * MIB);
    assert_eq!(
        reach(&own),
        [Some(l1), Some(l1 + l2), Some(l1 + l2 + 1536 * MIB), None]
    );
    let reaching = Topology {
        sizes: SizeMeaning::Reach,
        ..own
    };
    assert_eq!(
        reach(&reaching),
        [Some(l1), Some(l2), Some(1536 * MIB), None]
    );
}

#[test]
fn a_tlb_that_reaches_less_than_a_cache_is_noted_with_the_remedy() {
    let notes = |entries: u64, page_bytes: u64, cache: u64| {
        let mut topology = with_tlb(&origin(), Some(entries), Some(page_bytes)).unwrap();
        topology.levels[1].size_bytes = Some(cache);
        let (_, levels) = published(&topology);
        assert!(
            levels
                .iter()
                .all(|level| level.kind == LevelKind::Cache || level.tlb_note.is_none())
        );
        levels[1].tlb_note.clone().unwrap_or_default()
    };
    for (entries, page, cache, note) in [
        (
            64,
            16 * KIB,
            4 * MIB,
            "the TLB reaches 1 MiB, this cache holds 4 MiB: pages of 64 KiB or more would cover it",
        ),
        (256, 16 * KIB, 4 * MIB, ""),
        (
            64,
            4 * KIB,
            32 * MIB,
            "the TLB reaches 256 KiB, this cache holds 32 MiB: \
             pages of 512 KiB or more would cover it, of the usual ones those of 2 MiB",
        ),
        (
            64,
            4 * KIB,
            96 * MIB,
            "the TLB reaches 256 KiB, this cache holds 96 MiB: pages of 2 MiB or more would cover it",
        ),
        (
            1,
            4 * KIB,
            2 * GIB,
            "the TLB reaches 4 KiB, this cache holds 2 GiB: only pages of 2 GiB or more would cover it",
        ),
        (
            1,
            4 * KIB,
            u64::MAX,
            "the TLB reaches 4 KiB, this cache holds 17179869184 GiB: no pages would cover it",
        ),
    ] {
        assert_eq!(notes(entries, page, cache), note);
    }
    let mut two = origin();
    two.tlb.push(TlbTerm {
        symbol: "t_walk".to_owned(),
        entries: 128,
        page_bytes: 16 * KIB,
        miss_ns: None,
    });
    let (_, levels) = published(&two);
    assert_eq!(
        levels[1].tlb_note.as_deref(),
        Some(
            "the TLB of `t_tlb` reaches 1 MiB, this cache holds 4 MiB: \
             pages of 64 KiB or more would cover it; \
             the TLB of `t_walk` reaches 2 MiB, this cache holds 4 MiB: \
             pages of 32 KiB or more would cover it, of the usual ones those of 64 KiB"
        )
    );
}
