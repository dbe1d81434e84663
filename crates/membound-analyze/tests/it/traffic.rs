//! Known traffic: a triad over arrays that fit no cache.

use membound_analyze::{Options, OtherMachine, analyze};
use membound_run::{Burst, RunData, SiteId, SiteKind, ThreadId};
use membound_types::{BandwidthKernel, Basis, InsightKind, Outcome, PageKind, Samples};

use crate::near;
use crate::synthetic::{From, Like, Synthetic, machine, machine_that_moves};

const WORK_NS: f64 = 3.0;
const SECONDS: f64 = 2.0;

/// A triad over three arrays of `bytes` each; one of its loads was counted, and a burst of all three
/// accesses recorded. Also returns the executions of the loop per nanosecond.
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
fn missing_records_are_reported() {
    let (mut run, _) = triad(128 << 20);
    run.bursts.clear();
    let profile = analyze(&run, &Options::default()).profile;
    assert!(profile.bandwidth.is_empty());
    assert!(profile.missing.iter().any(|it| it.table == "bandwidth"));
}

#[test]
fn a_triad_near_the_machine_s_triad_bandwidth_is_bound_by_it() {
    let (mut run, per_ns) = triad(128 << 20);
    // The triad uses a third of the bandwidth that kernels of other mixes reach.
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
    // Halfway between the read-only mix and equal reads and writes: half of the bytes by either kernel,
    // each at its own rate.
    near(
        most.unwrap(),
        1.0 / (0.5 / 20.0 + 0.5 / 40.0),
        0.5,
        "in turn",
    );
}

/// Profile with two of three nodes: CPUs 0 and 1 on node 0, CPU 2 on node 1.
fn on_two_nodes(run: &mut RunData, cpu_of_thread: u16) {
    run.meta.nodes = 2;
    run.meta.cpu_nodes = vec![0, 0, 1];
    for sample in &mut run.samples {
        sample.cpu = Some(cpu_of_thread);
    }
    for access in &mut run.accesses {
        access.cpu = Some(cpu_of_thread);
        access.node = Some(0);
    }
}

#[test]
fn memory_of_another_node_is_that_node_s_traffic_and_goes_through_the_interconnect() {
    let (mut run, per_ns) = triad(128 << 20);
    // One of the arrays was timed, and lies on node 0; the nodes of the other two are unknown at first.
    on_two_nodes(&mut run, 2);
    let profile = analyze(&run, &Options::default()).profile;
    let average = |profile: &membound_types::Profile, name: &str| {
        let domain = profile.bandwidth.iter().find(|it| it.domain == name);
        domain
            .unwrap_or_else(|| panic!("{name}: {:?}", profile.bandwidth))
            .average_gb_s
    };
    near(
        average(&profile, "DRAM 0"),
        8.0 * per_ns,
        0.5 * per_ns,
        "one array",
    );
    let missing = profile.missing.iter().find(|it| it.table == "bandwidth");
    let missing = &missing
        .expect("two arrays lie nobody knows where")
        .why
        .reason;
    assert!(missing.contains("75 %"), "{missing}");
    // Accesses to the other arrays, one of them written, show their nodes.
    let pages: Vec<(usize, SiteId, bool)> = vec![(1, SiteId(1), false), (2, SiteId(2), true)];
    for (object, site, store) in pages {
        for at in 0..100_u64 {
            let mut access = run.accesses[at as usize];
            access.site = site;
            access.store = store;
            access.address = run.objects[object].address + 64 * at;
            access.object = Some(membound_run::ObjectId(object as u32));
            run.accesses.push(access);
        }
    }
    let profile = analyze(&run, &Options::default()).profile;
    near(
        average(&profile, "DRAM"),
        32.0 * per_ns,
        2.0 * per_ns,
        "all",
    );
    near(
        average(&profile, "DRAM 0"),
        32.0 * per_ns,
        2.0 * per_ns,
        "node 0",
    );
    near(average(&profile, "DRAM 1"), 0.0, 0.1 * per_ns, "node 1");
    // Reads move bytes to node 1, writes move bytes to node 0.
    near(
        average(&profile, "interconnect 0→1"),
        24.0 * per_ns,
        2.0 * per_ns,
        "read",
    );
    near(
        average(&profile, "interconnect 1→0"),
        8.0 * per_ns,
        1.0 * per_ns,
        "written",
    );
    let written = profile
        .bandwidth
        .iter()
        .find(|it| it.domain == "interconnect 1→0")
        .unwrap();
    assert_eq!(written.objects[0].name, "triad.c:5 (128 MiB)");
    let histogram: f64 = written.histogram.iter().map(|bin| bin.fraction).sum();
    near(histogram, 1.0, 1e-6, "histogram");
    let platform = &profile.platform;
    assert_eq!(platform.nodes[1].cpus, [2]);
    near(platform.nodes[1].busy_cpus, 1.0, 0.02, "busy");
    near(
        platform.nodes[0].dram_gb_s.unwrap(),
        32.0 * per_ns,
        2.0 * per_ns,
        "diagram",
    );
    assert_eq!(platform.links.len(), 2);
    // Accesses on the own node use no link.
    for access in &mut run.accesses {
        access.node = Some(1);
    }
    let profile = analyze(&run, &Options::default()).profile;
    near(
        average(&profile, "DRAM 1"),
        32.0 * per_ns,
        2.0 * per_ns,
        "own node",
    );
    near(average(&profile, "interconnect 0→1"), 0.0, 1e-9, "nothing");
}

#[test]
fn the_bandwidth_limit_of_a_node_comes_from_its_own_kernels() {
    use membound_types::{CpuId, NodeId, Numa, NumaPair};
    let (mut run, _) = triad(128 << 20);
    on_two_nodes(&mut run, 2);
    let mut machine = machine_that_moves(&[(BandwidthKernel::Triad, 100.0)]);
    let points = |kernels: &[(BandwidthKernel, f64)]| {
        let Outcome::Known(bandwidth) = machine_that_moves(kernels).bandwidth else {
            panic!("it has bandwidth");
        };
        bandwidth.points
    };
    let pair = |cpu_node: u32, memory_node: u32, kernels: &[(BandwidthKernel, f64)]| NumaPair {
        cpu_node: NodeId(cpu_node),
        cpu: CpuId(0),
        memory_node: NodeId(memory_node),
        distance: None,
        placed_share: Outcome::Known(1.0),
        latency_ns: Outcome::Known(100.0),
        latency_batches: Samples::default(),
        read_gb_s: Outcome::Known(10.0),
        read_batches: Samples::default(),
        rates: points(kernels),
    };
    let (read, nt) = (BandwidthKernel::Read, BandwidthKernel::NtWrite);
    machine.numa = Outcome::Known(Numa {
        nodes: vec![NodeId(0), NodeId(1)],
        summary: String::new(),
        pairs: vec![
            pair(0, 0, &[(read, 50.0)]),
            pair(1, 0, &[(read, 20.0), (BandwidthKernel::Triad, 16.0)]),
            pair(0, 1, &[(nt, 7.0)]),
            pair(1, 1, &[]),
        ],
        page: PageKind::Thp,
        skipped: Vec::new(),
        elapsed_s: 1.0,
    });
    run.meta.machine = Some(Box::new(machine));
    let profile = analyze(&run, &Options::default()).profile;
    let most = |name: &str| {
        let domain = profile.bandwidth.iter().find(|it| it.domain == name);
        domain.unwrap().machine_max_gb_s.known().copied()
    };
    assert_eq!(most("DRAM 0"), Some(50.0));
    assert_eq!(most("DRAM 1"), None, "nothing was measured there");
    assert_eq!(most("interconnect 0→1"), Some(20.0), "reads from node 1");
    assert_eq!(most("interconnect 1→0"), Some(4.0), "a triad's writes");
}
