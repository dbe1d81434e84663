//! Measures the time to analyse a run of a million samples and a million timed accesses.
//!
//! `cargo run --release -p membound-analyze --example analyze_a_million -- [RUN [MACHINE]]`
//!
//! With RUN, the run is written there as well, for `membound report`; with MACHINE, it carries
//! that machine profile, so that latencies are taken apart into levels.
//!
//! The run has 16 threads, 2000 sites in 200 functions with chains 30 deep, and 3000 blocks of
//! 60 allocating chains: more than most programs show, so that nothing grows unnoticed.

use std::time::Instant;

use membound_analyze::{NoSources, Options, Thresholds, analyze, compare};
use membound_run::{
    Access, Attribution, Executions, Frame, FrameId, Location, Meta, Module, ModuleId, ModuleKind,
    Object, ObjectClass, ObjectId, Process, ProcessId, RunData, Sample, Site, SiteId, SiteKind,
    Stack, StackId, Thread, ThreadId,
};
use membound_testkit::Random;

const SAMPLES: u64 = 1_000_000;
const ACCESSES: u64 = 1_000_000;
const THREADS: u32 = 16;
const SITES: u32 = 2000;
const SITES_A_FUNCTION: u32 = 10;
const DEPTH: u32 = 30;
const CHAINS: u32 = 60;
const OBJECTS: u32 = 3000;
const OBJECT_BYTES: u64 = 1 << 16;
const ELAPSED_NS: u64 = SAMPLES / THREADS as u64 * 1_000_000;

#[expect(
    clippy::print_stdout,
    reason = "an example's result goes to its standard output"
)]
fn main() {
    let mut words = std::env::args_os().skip(1);
    let file = words.next();
    let machine = words.next().map(|path| {
        let text = std::fs::read(&path).expect("the machine profile can be read");
        serde_json::from_slice(&text).expect("it is a machine profile")
    });
    let before = Instant::now();
    let mut run = run();
    run.meta.machine = machine.map(Box::new);
    run.meta.patch = run
        .meta
        .machine
        .as_ref()
        .and_then(|machine| Some(machine.calibration.known()?.patch.clone()))
        .unwrap_or_default();
    if let Some(file) = file {
        membound_run::write(file.as_ref(), &run).expect("the run can be written");
    }
    println!(
        "made {} samples and {} accesses in {:.0?}",
        run.samples.len(),
        run.accesses.len(),
        before.elapsed()
    );
    let options = Options {
        sources: &NoSources,
        thresholds: Thresholds::default(),
        ..Options::default()
    };
    for _ in 0..3 {
        let before = Instant::now();
        let views = analyze(&run, &options);
        println!(
            "analysed in {:.0?}: {} functions, {} lines, {} instructions, {} objects, {} contended",
            before.elapsed(),
            views.profile.functions.len(),
            views.profile.lines.len(),
            views.profile.instructions.len(),
            views.profile.objects.len(),
            views.profile.false_sharing.len() + views.profile.true_sharing.len(),
        );
        let before = Instant::now();
        let comparison = compare(&[("a", &views.profile), ("b", &views.profile)]);
        println!(
            "compared in {:.0?}: {} groups",
            before.elapsed(),
            comparison.changes.len()
        );
    }
}

fn run() -> RunData {
    let mut run = RunData {
        meta: Meta {
            complete: true,
            elapsed_ns: ELAPSED_NS,
            period_ns: 1_000_000,
            site_period: 1000,
            latencies: true,
            objects_from_bytes: Some(1),
            cpus: THREADS,
            nodes: 1,
            tsc_hz: 2.5e9,
            ..Meta::default()
        },
        processes: vec![Process {
            pid: 1,
            ..Process::default()
        }],
        modules: vec![Module {
            path: "/bin/large".to_owned(),
            build_id: None,
            text_hash: None,
            kind: ModuleKind::File,
        }],
        ..RunData::default()
    };
    for index in 0..THREADS {
        run.threads.push(Thread {
            process: ProcessId(0),
            tid: 1 + index,
            name: format!("worker-{index}"),
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
        });
    }
    let mut random = Random::new(1);
    let stacks = code(&mut run);
    objects(&mut run);
    events(&mut run, &stacks, &mut random);
    run
}

fn frame(run: &mut RunData, function: &str, line: u32) -> FrameId {
    let id = FrameId(run.frames.len() as u32);
    run.frames.push(Frame {
        module: Some(ModuleId(0)),
        address: 0x40_0000 + 4 * u64::from(id.0),
    });
    for (depth, function) in ["std::vector<int>::operator[](unsigned long)", function]
        .into_iter()
        .enumerate()
    {
        run.locations.push(Location {
            frame: id,
            depth: depth as u32,
            function: function.to_owned(),
            function_start: None,
            function_size: None,
            file: Some(format!("/src/{}.cpp", function.len() % 7)),
            line: Some(line),
            column: None,
        });
    }
    id
}

/// Creates sites and the call chains of their samples; some sites are called in several ways.
fn code(run: &mut RunData) -> Vec<StackId> {
    let mut parents = Vec::new();
    for _ in 0..CHAINS {
        let mut parent = None;
        for depth in 0..DEPTH {
            let frame = frame(run, &format!("caller_{depth}"), depth + 1);
            let id = StackId(run.stacks.len() as u32);
            run.stacks.push(Stack { parent, frame });
            parent = Some(id);
        }
        parents.push(parent);
    }
    let mut stacks = Vec::new();
    for index in 0..SITES {
        let function = format!("worker_{}", index / SITES_A_FUNCTION);
        let access = frame(run, &function, 2 * index + 1);
        let behind = frame(run, &function, 2 * index + 2);
        run.sites.push(Site {
            frame: access,
            kind: if index % 4 == 0 {
                SiteKind::Store
            } else {
                SiteKind::Load
            },
            bytes: 8,
            text: "mov rax, [rdi]".to_owned(),
            refused: None,
        });
        run.attributions.push(Attribution {
            frame: behind,
            site: Some(SiteId(index)),
            share: 0.9,
            confidence: 0.9,
        });
        run.executions.push(Executions {
            site: SiteId(index),
            from_ns: 0,
            to_ns: ELAPSED_NS / 10,
            count: ACCESSES * 1000 / u64::from(SITES),
            cpu_ns: ELAPSED_NS / 10 * u64::from(THREADS),
            least_cpu_ns: None,
            most_cpu_ns: None,
        });
        for way in 0..3 {
            let id = StackId(run.stacks.len() as u32);
            run.stacks.push(Stack {
                parent: parents[((index + way * 7) % CHAINS) as usize],
                frame: behind,
            });
            stacks.push(id);
        }
    }
    stacks
}

fn objects(run: &mut RunData) {
    for index in 0..OBJECTS {
        let chain = index % CHAINS;
        run.objects.push(Object {
            kind: ObjectClass::Heap,
            process: ProcessId(0),
            address: 0x7f00_0000_0000 + u64::from(index) * OBJECT_BYTES,
            size_bytes: OBJECT_BYTES,
            name: "malloc".to_owned(),
            stack: Some(StackId(chain * DEPTH + DEPTH - 1)),
            thread: None,
            allocated_ns: Some(0),
            freed_ns: None,
            weight: 1.0,
        });
    }
}

fn events(run: &mut RunData, stacks: &[StackId], random: &mut Random) {
    for index in 0..SAMPLES {
        let object = random.below(u64::from(OBJECTS));
        // A few sites are hot, as in programs.
        let hot = random.below(stacks.len() as u64) * random.below(stacks.len() as u64);
        run.samples.push(Sample {
            t_ns: index / u64::from(THREADS) * 1_000_000,
            thread: ThreadId((index % u64::from(THREADS)) as u32),
            cpu: Some(0),
            stack: stacks[(hot / stacks.len() as u64) as usize],
            weight_ns: 1_000_000,
            address: Some(0x7f00_0000_0000 + object * OBJECT_BYTES + random.below(OBJECT_BYTES)),
            exact: true,
            object: Some(ObjectId(object as u32)),
        });
    }
    for index in 0..ACCESSES {
        let object = random.below(u64::from(OBJECTS));
        let hot = random.below(u64::from(SITES)) * random.below(u64::from(SITES));
        run.accesses.push(Access {
            t_ns: index * (ELAPSED_NS / ACCESSES),
            thread: ThreadId((index % u64::from(THREADS)) as u32),
            site: SiteId((hot / u64::from(SITES)) as u32),
            address: 0x7f00_0000_0000
                + object * OBJECT_BYTES
                + random.below(OBJECT_BYTES / 64) * 64,
            ticks: Some(40 + 2 * random.below(200) as u32),
            hit: Some(40),
            drain: Some(60),
            store: index % 4 == 0,
            object: Some(ObjectId(object as u32)),
            cpu: Some(0),
            node: None,
        });
    }
}
