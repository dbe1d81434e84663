//! `measure calibration`, and what its histograms tell.
#![cfg(target_arch = "x86_64")]

use membound_model::stall::{Mixer, Mixture, Served};
use membound_testkit::{in_two_of_three, skipped};
use membound_types::Calibration;

use crate::command::Membound;

/// A calibration; `None` where programs cannot be patched.
fn calibrate(membound: &Membound) -> Option<Calibration> {
    let done = membound.run_alone("measure calibration --quick --json out.json");
    let text = std::fs::read_to_string(membound.home.path().join("out.json"));
    if done.code != Some(0) {
        assert!(done.stderr.contains("patched"), "{done:?}");
        skipped(done.stderr);
        return None;
    }
    let text = text.expect("it was written");
    Some(serde_json::from_str(&text).expect("it is of the documented form"))
}

/// A hop that takes so many times its level's latency was mostly not in that level.
const ELSEWHERE: f64 = 1.5;

/// Share of what is served from there.
fn share(mixture: &Mixture, served: &[Served]) -> f64 {
    let levels = mixture.levels.iter();
    levels
        .filter(|level| served.contains(&level.served))
        .map(|level| level.share.value)
        .sum()
}

#[test]
fn another_process_in_the_same_level_is_told_to_be_there() {
    in_two_of_three(|| {
        let membound = Membound::new();
        let Some(first) = calibrate(&membound) else {
            return;
        };
        assert!(first.levels.len() >= 4, "{:?}", first.skipped);
        assert_eq!(first.patch, membound_rewrite::patch::sampler_identity());
        for pair in first.levels.windows(2).take(3) {
            assert!(pair[0].latency_ns < pair[1].latency_ns, "{pair:?}");
        }
        let mixer = Mixer::new(&first, &first.patch).unwrap();
        // What it times anew is as good as any program whose level is known.
        let second = calibrate(&membound).expect("it could be patched before");
        let of_first = |name: &str| {
            let level = first.levels.iter().find(|level| level.name == name);
            level.map_or(f64::NAN, |level| level.latency_ns)
        };
        for level in &second.levels {
            let mixture = mixer.fit(&level.ticks).unwrap();
            let (wanted, least): (&[Served], f64) = match Served::of(&level.name) {
                Served::L1 | Served::L2 => (&[Served::L1, Served::L2], 0.9),
                Served::Dram => (&[Served::Dram], 0.9),
                // A cache that is shared with strangers does not always hold what it held, and
                // what comes from another core or node takes as long as other things do.
                Served::L3 if level.latency_ns > ELSEWHERE * of_first(&level.name) => {
                    skipped(format_args!(
                        "L3: a hop took {:.0} ns, neighbours have that cache",
                        level.latency_ns
                    ));
                    continue;
                }
                Served::L3 => (&[Served::L3], 0.8),
                _ => continue,
            };
            let found = share(&mixture, wanted);
            assert!(found >= least, "{}: {found}: {mixture:#?}", level.name);
        }
    });
}
