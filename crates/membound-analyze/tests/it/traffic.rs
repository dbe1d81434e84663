//! Traffic that is known: a triad over arrays that no cache holds.

use membound_analyze::{Options, OtherMachine, analyze};
use membound_run::{Burst, RunData, SiteId, SiteKind, ThreadId};
use membound_types::{
    Bandwidth, BandwidthKernel, BandwidthPoint, Basis, InsightKind, MachineProfile, NamedPolicy,
    NodePolicy, Outcome, PageKind, Samples, VectorWidth,
};

use crate::near;
use crate::synthetic::{From, Like, Synthetic, machine};

const WORK_NS: f64 = 3.0;
const SECONDS: f64 = 2.0;

/// A triad over three arrays of so many bytes; one of its loads was counted, and a piece of
/// all three accesses recorded. Executions of the loop in a nanosecond.
fn triad(bytes: u64) -> (RunData, f64) {
    let mut program = Synthetic::new(SECONDS, 1);
    let thread = program.thread("main");
    let arrays = [3, 4, 5].map(|line| program.heap(&[("main", "triad.c", line)], bytes));
    let kinds = [SiteKind::Load, SiteKind::Load, SiteKind::Store];
    let places = kinds.map(|kind| program.site(("triad", "triad.c", 20), kind, 8));
    let like = Like {
        from: vec![(From::L1, 0.9), (From::Dram, 0.1)],
        exposed: 0.2,
        work_ns: WORK_NS,
        to: vec![(arrays[0].clone(), 1.0)],
    };
    program.access(thread, 0, places[0], 0.0..SECONDS, &like);
    let per_ns = 1.0 / (From::L1.latency_ns() + WORK_NS + like.stall_ns());
    let mut run = program.finish();
    for from in [500_000_000, 1_500_000_000] {
        let start = bytes / 4;
        let accesses = (0..30_000_u64).map(|at| {
            let array = (at % 3) as u16;
            let address = arrays[usize::from(array)].address + (start + at / 3 * 8) % bytes;
            (array, address, array == 2)
        });
        run.bursts.push(Burst {
            from_ns: from,
            to_ns: from + 5_000_000,
            thread: ThreadId(0),
            sites: places
                .iter()
                .map(|place| place.site)
                .collect::<Vec<SiteId>>(),
            accesses: accesses.collect(),
        });
    }
    (run, per_ns)
}

#[test]
fn a_triad_moves_32_bytes_an_iteration() {
    let (run, per_ns) = triad(128 << 20);
    let views = analyze(&run, &Options::default());
    let [domain] = views.profile.bandwidth.as_slice() else {
        panic!("{:?}", views.profile.missing);
    };
    assert_eq!(domain.basis, Basis::Modelled);
    near(domain.average_gb_s, 32.0 * per_ns, 2.0 * per_ns, "average");
    let moment = domain.timeline[domain.timeline.len() / 2];
    near(moment.read_gb_s, 24.0 * per_ns, 2.0 * per_ns, "read");
    near(moment.write_gb_s, 8.0 * per_ns, 1.0 * per_ns, "written");
    let sum: f64 = domain.histogram.iter().map(|bin| bin.fraction).sum();
    near(sum, 1.0, 1e-6, "histogram");
    assert_eq!(domain.lines.len(), 1);
    assert_eq!(domain.lines[0].name, "triad.c:20");
    near(
        domain.objects[0].fraction,
        0.5,
        0.02,
        "the array that is stored to",
    );
    near(domain.objects[1].fraction, 0.25, 0.02, "another");
}

#[test]
fn arrays_that_fit_a_cache_move_nothing() {
    let (run, per_ns) = triad(1 << 20);
    let views = analyze(&run, &Options::default());
    near(
        views.profile.bandwidth[0].average_gb_s,
        0.0,
        0.5 * per_ns,
        "average",
    );
}

#[test]
fn the_same_machine_takes_the_same_time_and_a_slower_memory_longer() {
    let (run, per_ns) = triad(128 << 20);
    let same = machine();
    let mut slower = machine();
    for level in &mut slower.levels {
        if level.name == "DRAM" {
            level.latency_ns *= 2.0;
        }
    }
    let mut larger = machine();
    for level in &mut larger.levels {
        if level.name == "L3" {
            level.size_bytes = Some(1 << 30);
            (level.size_low_bytes, level.size_high_bytes) = (Some(1 << 30), Some(1 << 30));
        }
    }
    let others = [("same", &same), ("slower", &slower), ("larger", &larger)]
        .map(|(name, profile)| OtherMachine { name, profile });
    let options = Options {
        elsewhere: &others,
        ..Options::default()
    };
    let profile = analyze(&run, &options).profile;
    let [same, slower, larger] = profile.elsewhere.as_slice() else {
        panic!("{:?}", profile.missing);
    };
    near(same.time_ratio.value, 1.0, 1e-6, "the same machine");
    near(
        same.memory_bound.value,
        profile.memory_bound.fraction,
        1e-6,
        "the same machine's stall",
    );
    near(same.per_core_gb_s, 32.0 * per_ns, 2.0 * per_ns, "a core");
    let stalled = profile.memory_bound.fraction;
    near(
        slower.time_ratio.value,
        1.0 + stalled,
        0.05 * stalled,
        "slower",
    );
    assert!(larger.time_ratio.value < 1.0);
    assert!(larger.per_core_gb_s < 0.1 * same.per_core_gb_s);
}

#[test]
fn what_was_not_recorded_is_said() {
    let (mut run, _) = triad(128 << 20);
    run.bursts.clear();
    let profile = analyze(&run, &Options::default()).profile;
    assert!(profile.bandwidth.is_empty());
    assert!(profile.missing.iter().any(|it| it.table == "bandwidth"));
}

/// A machine whose kernels moved so much with one thread, write-allocate included.
fn machine_that_moves(kernels: &[(BandwidthKernel, f64)]) -> MachineProfile {
    let point = |&(kernel, gb_s): &(BandwidthKernel, f64)| BandwidthPoint {
        kernel,
        vector: VectorWidth::V512,
        size_bytes: 128 << 20,
        level: Some("DRAM".to_owned()),
        threads: 1,
        page: PageKind::Thp,
        node: NodePolicy::Named(NamedPolicy::Local),
        gb_s,
        gb_s_low: gb_s,
        gb_s_high: gb_s,
        gb_s_with_allocate: gb_s,
        batches: Samples::default(),
    };
    MachineProfile {
        bandwidth: Outcome::Known(Bandwidth {
            points: kernels.iter().map(point).collect(),
            ..Bandwidth::default()
        }),
        ..machine()
    }
}

#[test]
fn a_triad_near_what_the_machine_s_triad_reaches_is_bound_by_bandwidth() {
    let (mut run, per_ns) = triad(128 << 20);
    // Of what kernels of other mixes reach, this triad uses a third.
    let triads = 32.0 * per_ns * 1.1;
    run.meta.machine = Some(Box::new(machine_that_moves(&[
        (BandwidthKernel::Read, 0.8 * triads),
        (BandwidthKernel::Triad, triads),
        (BandwidthKernel::Write, 3.0 * triads),
    ])));
    let profile = analyze(&run, &Options::default()).profile;
    let most = profile.bandwidth[0].machine_max_gb_s.known().copied();
    near(most.unwrap(), triads, 0.1 * triads, "the most of a triad");
    let found = profile
        .findings
        .iter()
        .find(|finding| finding.kind == InsightKind::Bandwidth);
    let found = found.unwrap_or_else(|| panic!("{:?}", profile.findings));
    assert!(found.text.starts_with("Bound by bandwidth"), "{found:?}");
    assert!(found.advice.contains("non-temporal"), "{found:?}");
    for finding in &profile.findings {
        let advice = &finding.advice;
        assert!(!advice.contains("nearer cache"), "{advice}");
    }
}

#[test]
fn a_mix_between_two_kernels_lies_between_them() {
    let (mut run, _) = triad(128 << 20);
    run.meta.machine = Some(Box::new(machine_that_moves(&[
        (BandwidthKernel::Read, 20.0),
        (BandwidthKernel::Write, 40.0),
    ])));
    let profile = analyze(&run, &Options::default()).profile;
    let most = profile.bandwidth[0].machine_max_gb_s.known().copied();
    near(most.unwrap(), 30.0, 0.5, "halfway");
}
