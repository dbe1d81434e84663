//! Fits to programs, and to levels of a calibration, that ran at another clock of the core.

use membound_model::stall::{Mixer, Mixture, Timing};
use membound_types::{CalibratedLevel, Calibration, TickCount};

use membound_testkit::Random;

const PATCH: &str = "patch";
/// Ticks of a timed hit, and for each level the ticks beyond a hit and their spread, at the clock of
/// the calibration. The timer advances in steps of 2 ticks.
const HIT: f64 = 50.0;
const LEVELS: [(&str, f64, f64); 4] = [
    ("L1", 0.0, 2.0),
    ("L2", 11.0, 2.0),
    ("L3", 64.0, 30.0),
    ("DRAM", 330.0, 90.0),
];
const TICK_HZ: f64 = 3e9;
const L1_NS: f64 = 1.6;
/// Share of the loads from the third cache's area that the second cache serves.
const STRAY: f64 = 0.15;

/// Histogram of loads from `level` at a clock at which core cycles take `pace` times as long.
fn timed(level: usize, pace: f64, seed: u64) -> Vec<TickCount> {
    let mut random = Random::new(seed);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..6000 {
        let level = match level {
            2 if random.unit() < STRAY => 1,
            level => level,
        };
        let (_, beyond, spread) = LEVELS[level];
        let beyond = beyond + spread * (random.unit() + random.unit() - 1.0);
        let beyond = if level < 2 { beyond * pace } else { beyond };
        let ticks = 2 * ((HIT * pace + beyond) / 2.0 + random.unit()).floor() as u32;
        *counts.entry(ticks).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|(ticks, count)| TickCount { ticks, count })
        .collect()
}

/// A calibration whose second cache was timed at the pace `second`.
fn calibration(second: f64) -> Calibration {
    let levels = LEVELS.iter().enumerate().map(|(level, (name, beyond, _))| {
        let pace = if level == 1 { second } else { 1.0 };
        CalibratedLevel {
            name: (*name).to_owned(),
            latency_ns: L1_NS + beyond / TICK_HZ * 1e9,
            ticks: timed(level, pace, level as u64 + 1),
            hit_ticks: Some(HIT * pace),
            ..CalibratedLevel::default()
        }
    });
    Calibration {
        levels: levels.collect(),
        tick_hz: TICK_HZ,
        patch: PATCH.to_owned(),
        ..Calibration::default()
    }
}

fn mixer(second: f64) -> Mixer {
    Mixer::new(&calibration(second), PATCH).expect("it is of this patch")
}

/// Loads of `level` by a program at `pace`, with ticks corrected by the time of hits.
fn corrected(level: usize, pace: f64) -> Vec<TickCount> {
    let mut ticks = timed(level, pace, 99);
    for entry in &mut ticks {
        entry.ticks -= 2 * (HIT * (pace - 1.0) / 2.0).round() as u32;
    }
    ticks
}

fn share(mixture: &Mixture, level: usize) -> f64 {
    mixture.levels[level].share.value
}

#[test]
fn levels_are_found_at_another_clock() {
    for second in [1.0, 1.2] {
        let mixer = mixer(second);
        for pace in [1.0, 1.1, 1.2, 1.3] {
            let timing = Timing { error: 0.1, pace };
            for (level, least) in [(0, 0.9), (1, 0.9), (2, 0.8), (3, 0.9)] {
                let mixture = mixer.fit_timed(&corrected(level, pace), timing).unwrap();
                assert!(
                    share(&mixture, level) >= least,
                    "{level} at {pace}, the second cache at {second}: {mixture:#?}"
                );
            }
        }
    }
}

#[test]
fn a_cache_that_is_a_little_slower_is_no_cache_beyond() {
    let mixer = mixer(1.0);
    for pace in [1.1, 1.2, 1.3, 1.4] {
        let mixture = mixer.fit(&corrected(1, pace)).unwrap();
        assert!(share(&mixture, 1) >= 0.9, "{pace}: {mixture:#?}");
        // The mean latency is the program's own, at its slower clock.
        let ns = L1_NS + 11.0 * pace / TICK_HZ * 1e9;
        assert!(
            (mixture.mean_ns.value / ns - 1.0).abs() < 0.12,
            "{mixture:#?}"
        );
    }
}

#[test]
fn a_level_that_was_not_calibrated_is_none_of_those_before_it() {
    let mut calibration = calibration(1.0);
    calibration.levels.remove(2);
    let mixer = Mixer::new(&calibration, PATCH).unwrap();
    let mixture = mixer.fit(&corrected(2, 1.0)).unwrap();
    // The second cache served some of them; most fit neither level, and are too slow for the second.
    assert!(share(&mixture, 1) < 0.5, "{mixture:#?}");
}
