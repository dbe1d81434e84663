//! `measure calibration`: its document. `cargo xtask bench accuracy` checks how true the histograms are.
#![cfg(target_arch = "x86_64")]

use membound_model::stall::Mixer;
use membound_testkit::skipped;
use membound_types::Calibration;

use crate::command::Membound;

#[test]
fn levels_are_in_order_and_the_patch_is_that_of_profiles() {
    let membound = Membound::new();
    let done = membound.run_alone("measure calibration --quick --json out.json");
    if done.code != Some(0) {
        assert!(done.stderr.contains("patched"), "{done:?}");
        skipped(done.stderr);
        return;
    }
    let text = std::fs::read_to_string(membound.home.path().join("out.json"));
    let found: Calibration =
        serde_json::from_str(&text.expect("it was written")).expect("it is of the documented form");
    assert!(found.levels.len() >= 4, "{:?}", found.skipped);
    assert_eq!(found.patch, membound_rewrite::patch::sampler_identity());
    for pair in found.levels.windows(2).take(3) {
        assert!(pair[0].latency_ns < pair[1].latency_ns, "{pair:?}");
    }
    // Every level's own times can be read as a mixture of all of them.
    let mixer = Mixer::new(&found, &found.patch).expect("levels can be told apart");
    for level in &found.levels {
        let mixture = mixer.fit(&level.ticks).expect("there are times");
        let shares: f64 = mixture.levels.iter().map(|it| it.share.value).sum();
        assert!(
            (0.5..1.01).contains(&shares),
            "{}: {mixture:#?}",
            level.name
        );
    }
}
