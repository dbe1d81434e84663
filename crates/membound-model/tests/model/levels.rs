//! Levels of random hierarchies, of ramps, and of a machine with partly remote memory.

use membound_model::{CurvePoint, LevelOptions, find_levels};

use crate::hierarchies::{ASKED, Disturbance, Hierarchy, MissShape, point};
use crate::scores::Score;
use membound_testkit::Random;

/// Hierarchies drawn for each way of leaving; the example `levels` draws a thousand.
const HIERARCHIES: u32 = 200;

/// The requirement: the right number of levels in 97 of 100, sizes within 10 % and latencies
/// within 2 % (median).
fn check(shape: MissShape) {
    let score = Score::of(shape, ASKED, HIERARCHIES);
    let (right, size, latency) = (
        score.right_share(),
        score.size_error(0.5),
        score.latency_error(0.5),
    );
    assert!(
        right >= 0.97 && size <= 0.10 && latency <= 0.02,
        "{shape:?}: {right} right, sizes within {size}, latencies within {latency}\n{}",
        score.wrong.join("\n")
    );
}

#[test]
fn random_windows() {
    check(MissShape::Windows);
}

#[test]
fn steps_and_cyclic_walks() {
    check(MissShape::Step);
    check(MissShape::Cyclic);
    check(MissShape::Replaced);
}

#[test]
fn blurred_steps() {
    check(MissShape::Blurred);
    check(MissShape::LogBlurred);
}

fn curve(
    octaves: f64,
    ns: impl Fn(f64) -> f64,
    disturbance: Disturbance,
    random: &mut Random,
) -> Vec<CurvePoint> {
    let steps = (6.0 * octaves) as u32;
    (0..=steps)
        .map(|step| {
            let octave = f64::from(step) / 6.0;
            point(
                (1024.0 * octave.exp2()).round(),
                ns(octave),
                disturbance,
                random,
            )
        })
        .collect()
}

const CLEAN: Disturbance = Disturbance {
    noise: 0.0,
    outliers: 0.0,
    both_ways: false,
};

/// A straight line, a power, a parabola and an S over twenty octaves have no levels.
#[test]
fn smooth_ramps_have_no_level() {
    type Ramp = (&'static str, fn(f64) -> f64);
    let ramps: [Ramp; 6] = [
        ("linear in the logarithm of size", |x| 1.0 + 5.0 * x),
        ("a fifth power law", |x| (0.3 * x).exp2()),
        ("a steep power law", |x| (0.5 * x).exp2()),
        ("a tenfold rise", |x| (x / 20.0 * 10.0_f64.ln()).exp()),
        ("quadratic", |x| 1.0 + 0.5 * x * x),
        ("bent in the logarithm", |x| {
            (0.15 * x + 0.012 * x * x).exp()
        }),
    ];
    for (name, ramp) in ramps {
        for seed in 0..20 {
            for disturbance in [CLEAN, ASKED] {
                let mut random = Random::new(seed);
                let found = find_levels(
                    &curve(20.0, ramp, disturbance, &mut random),
                    &LevelOptions::default(),
                );
                assert!(found.plateaus.is_empty(), "{name}, seed {seed}: {found:#?}");
            }
        }
    }
}

#[test]
fn a_constant_curve_is_one_level() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let found = find_levels(
            &curve(20.0, |_| 3.0, ASKED, &mut random),
            &LevelOptions::default(),
        );
        assert_eq!(found.plateaus.len(), 1, "seed {seed}: {found:#?}");
        let latency = found.plateaus[0].latency_ns;
        assert!((latency.value / 3.0 - 1.0).abs() < 0.02, "{latency:?}");
    }
}

/// Table 1 of document 002 as loads of a line of 128 bytes see it, on 32 processors with
/// 512 MiB a node: on-chip cache (here 100 ns, the program's own time), secondary cache,
/// home memory, the other node of the corner, and corners one, two and three hops away.
/// Leaving home costs 36 % more, each further hop 5 %.
fn origin(shape: MissShape, per_node: f64) -> Hierarchy {
    const PROGRAM: f64 = 100.0;
    let secondary = PROGRAM + 4.0 * 53.0;
    let home = secondary + 110.0 + 468.0;
    let remote = |routers: f64| secondary + 358.0 + 468.0 + 68.0 * routers;
    // Number of nodes nearer than the next distance: 1 at home, 2 in the corner, 8 and 14 of 16.
    Hierarchy::given(
        &[
            (32.0 * 1024.0, PROGRAM),
            (4.0 * 1024.0 * 1024.0, secondary),
            (per_node, home),
            (2.0 * per_node, remote(1.0)),
            (8.0 * per_node, remote(2.0)),
            (14.0 * per_node, remote(3.0)),
        ],
        remote(4.0),
        shape,
    )
}

/// The hierarchy has seven levels, and the document's author sees five in his curve: the
/// last three steps are 5 % each and at most two octaves apart. Each alone stays below the
/// least step that counts (10 %); together they are one of 16 %: a far level beyond home and
/// its corner. Seen through random windows at the document's sizes the far step blurs into
/// the near one (they overlap over two octaves), so there five are distinguished only with
/// little noise.
#[test]
fn an_origin_with_remote_steps_of_five_per_cent_has_five_levels() {
    for (shape, noise, least) in [
        (MissShape::Windows, 0.0, 1),
        (MissShape::Step, 0.0, 1),
        (MissShape::Step, 0.003, 10),
        (MissShape::Step, 0.01, 10),
        (MissShape::Blurred, 0.0, 1),
        (MissShape::Blurred, 0.003, 10),
    ] {
        for node in [256.0, 512.0] {
            let truth = origin(shape, node * 1024.0 * 1024.0);
            let mut right = 0;
            let mut outcomes = Vec::new();
            for seed in 0..least {
                let mut random = Random::new(seed);
                let (from, to) = (4096.0, 32.0 * node * 1024.0 * 1024.0);
                let disturbance = Disturbance { noise, ..CLEAN };
                let curve = truth.curve_between(from, to, 6.0, disturbance, &mut random);
                let found = find_levels(&curve, &LevelOptions::default());
                right += u64::from(found.plateaus.len() == 5);
                outcomes.push(found.plateaus.len());
            }
            assert!(
                right == least,
                "{shape:?}, noise {noise}, {node} MiB a node: {outcomes:?}"
            );
        }
    }
}

/// While memory is being measured, its neighbours begin to use it as well.
#[test]
fn memory_that_gradually_grows_slower_is_no_cache() {
    let truth = Hierarchy::given(
        &[
            (32.0 * 1024.0, 1.0),
            (1024.0 * 1024.0, 4.0),
            (14.0 * 1024.0 * 1024.0, 14.0),
            (370.0 * 1024.0 * 1024.0, 115.0),
        ],
        152.0,
        MissShape::Step,
    );
    let (from, to) = (4096.0, 4.0 * 1024.0 * 1024.0 * 1024.0);
    let mut random = Random::new(1);
    let curve = truth.curve_between(from, to, 6.0, CLEAN, &mut random);
    let mut found = find_levels(&curve, &LevelOptions::default());
    assert_eq!(found.plateaus.len(), 5, "{found:#?}");
    found.join_memory(64 << 20);
    let names: Vec<String> = found.to_levels(1e9).into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["L1", "L2", "L3", "DRAM"]);
    let memory = found.plateaus[3];
    assert!(memory.size.is_none() && found.reaches_memory());
    assert!(memory.latency_ns.low < 120.0 && memory.latency_ns.high > 150.0);
    let as_it_was = found.clone();
    found.join_memory(64 << 20);
    assert_eq!(found, as_it_was);
}
