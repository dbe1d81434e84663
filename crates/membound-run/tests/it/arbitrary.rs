//! Runs of any content whose references hold.

use membound_run::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;

/// A machine profile as it is on disk.
pub(crate) const MACHINE: &str = include_str!("../../../membound-input/tests/data/machine.json");

/// Any run.
pub(crate) fn run() -> impl Strategy<Value = RunData> {
    let code = (
        vec(process(), 0..4),
        vec(thread(), 0..6),
        vec(module(), 0..4),
        vec(mapping(), 0..4),
        vec(frame(), 0..20),
        vec(stack(), 0..20),
        vec(site(), 0..8),
        vec(attribution(), 0..8),
    );
    let time = (
        vec(sample(), 0..40),
        (
            vec(executions(), 0..8),
            vec(laps(), 0..8),
            vec(around(), 0..8),
        ),
        vec(access(), 0..40),
        vec(burst(), 0..4),
        vec(block(), 0..6),
        vec(object(), 0..8),
        (vec(allocations(), 0..6), vec(live(), 0..6)),
    );
    let rest = (
        vec(location(), 0..8),
        vec(code_of(), 0..4),
        vec(page(), 0..6),
        vec(traffic(), 0..4),
        vec(watched(), 0..6),
        (vec(hold(), 0..6), vec(hardware_access(), 0..8)),
        vec(gap(), 0..4),
    );
    (meta(), code, time, rest).prop_map(|(meta, code, time, rest)| {
        let (processes, threads, modules, mappings, frames, stacks, sites, attributions) = code;
        let (samples, counted, accesses, bursts, blocks, objects, allocated) = time;
        let ((executions, laps, loops), (allocations, live)) = (counted, allocated);
        let (locations, code, pages, traffic, watched, (holds, hardware_accesses), gaps) = rest;
        sound(RunData {
            meta,
            processes,
            threads,
            modules,
            mappings,
            frames,
            stacks,
            samples,
            sites,
            attributions,
            executions,
            laps,
            loops,
            accesses,
            bursts,
            blocks,
            objects,
            allocations,
            live,
            locations,
            code,
            pages,
            traffic,
            watched,
            holds,
            hardware_accesses,
            gaps,
        })
    })
}

/// Makes references valid: takes them modulo the number of rows, and leaves out rows that refer to an empty
/// table.
fn sound(mut run: RunData) -> RunData {
    let processes = run.processes.len() as u32;
    run.threads
        .retain_mut(|row| within(&mut row.process.0, processes));
    let threads = run.threads.len() as u32;
    let modules = run.modules.len() as u32;
    for frame in &mut run.frames {
        frame.module = frame
            .module
            .filter(|_| modules > 0)
            .map(|id| ModuleId(id.0 % modules));
    }
    let frames = run.frames.len() as u32;
    run.stacks
        .retain_mut(|row| within(&mut row.frame.0, frames));
    for (at, stack) in (0..).zip(&mut run.stacks) {
        stack.parent = stack.parent.filter(|_| at > 0).map(|id| StackId(id.0 % at));
    }
    let stacks = run.stacks.len() as u32;
    run.sites.retain_mut(|row| within(&mut row.frame.0, frames));
    let sites = run.sites.len() as u32;
    run.objects
        .retain_mut(|row| within(&mut row.process.0, processes));
    for row in &mut run.objects {
        row.stack = row
            .stack
            .filter(|_| stacks > 0)
            .map(|id| StackId(id.0 % stacks));
        row.thread = row
            .thread
            .filter(|_| threads > 0)
            .map(|id| ThreadId(id.0 % threads));
    }
    let objects = run.objects.len() as u32;
    let object = |id: Option<ObjectId>| {
        id.filter(|_| objects > 0)
            .map(|id| ObjectId(id.0 % objects))
    };
    run.mappings.retain_mut(|row| {
        within(&mut row.process.0, processes) && within(&mut row.module.0, modules)
    });
    run.samples.retain_mut(|row| {
        row.object = object(row.object);
        within(&mut row.thread.0, threads) && within(&mut row.stack.0, stacks)
    });
    run.attributions.retain_mut(|row| {
        row.site = row
            .site
            .filter(|_| sites > 0)
            .map(|id| SiteId(id.0 % sites));
        within(&mut row.frame.0, frames)
    });
    run.executions
        .retain_mut(|row| within(&mut row.site.0, sites));
    run.laps
        .retain_mut(|row| within(&mut row.site.0, sites) && within(&mut row.thread.0, threads));
    run.loops.retain_mut(|row| within(&mut row.frame.0, frames));
    run.accesses.retain_mut(|row| {
        row.object = object(row.object);
        within(&mut row.thread.0, threads) && within(&mut row.site.0, sites)
    });
    run.bursts.retain_mut(|row| {
        let own = row.sites.len() as u16;
        row.accesses.retain_mut(|access| {
            access.0 = access.0.checked_rem(own).unwrap_or(0);
            own > 0
        });
        row.sites.iter_mut().all(|site| within(&mut site.0, sites))
            && within(&mut row.thread.0, threads)
    });
    run.blocks
        .retain_mut(|row| within(&mut row.frame.0, frames));
    run.allocations.retain_mut(|row| {
        within(&mut row.stack.0, stacks) && within(&mut row.process.0, processes)
    });
    run.live.retain_mut(|row| {
        within(&mut row.stack.0, stacks) && within(&mut row.process.0, processes)
    });
    run.locations
        .retain_mut(|row| within(&mut row.frame.0, frames));
    run.code
        .retain_mut(|row| within(&mut row.module.0, modules));
    run.pages
        .retain_mut(|row| within(&mut row.process.0, processes));
    run.holds
        .retain_mut(|row| within(&mut row.thread.0, threads));
    run.hardware_accesses
        .retain_mut(|row| within(&mut row.thread.0, threads) && within(&mut row.stack.0, stacks));
    run.watched
        .retain_mut(|row| within(&mut row.thread.0, threads) && within(&mut row.frame.0, frames));
    run
}

fn within(id: &mut u32, count: u32) -> bool {
    match id.checked_rem(count) {
        Some(left) => *id = left,
        None => return false,
    }
    true
}

/// Ordinary numbers and extreme ones.
fn number() -> BoxedStrategy<u64> {
    prop_oneof![0..10_u64, any::<u64>(), Just(u64::MAX), Just(1 << 63)].boxed()
}

fn text() -> BoxedStrategy<String> {
    prop_oneof![
        Just(String::new()),
        any::<String>(),
        Just("a\0b'\"\u{1F600}".to_owned())
    ]
    .boxed()
}

fn real() -> BoxedStrategy<f64> {
    use proptest::num::f64::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![
        POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO,
        Just(1.0),
        Just(f64::INFINITY)
    ]
    .boxed()
}

fn meta() -> impl Strategy<Value = Meta> {
    let command = (
        text(),
        vec(text(), 0..3),
        option::of(any::<u32>()),
        text(),
        text(),
    );
    let times = (
        number(),
        number(),
        number(),
        option::of(number()),
        real(),
        number(),
        number(),
    );
    let ends = (
        any::<bool>(),
        option::of(any::<i32>()),
        option::of(any::<i32>()),
    );
    let rest = (
        any::<bool>(),
        any::<bool>(),
        any::<[u32; 3]>(),
        text(),
        vec(any::<u16>(), 0..4),
        any::<bool>(),
    );
    (command, times, ends, rest).prop_map(|(command, times, ends, rest)| Meta {
        membound_version: command.0,
        command: command.1,
        attached: command.2,
        host: command.3,
        date: command.4,
        elapsed_ns: times.0,
        period_ns: times.1,
        own_cpu_ns: times.2,
        stops: vec![times.1, times.2],
        longest_stop_ns: times.3,
        lost_cpu_ns: times.5,
        held_ns: times.6,
        objects_from_bytes: times.3,
        tsc_hz: times.4,
        complete: ends.0,
        exit_code: ends.1,
        signal: ends.2,
        timer: if rest.0 {
            TimerKind::CpuClock
        } else {
            TimerKind::Cycles
        },
        imported: (!rest.0).then(|| "perf.data".to_owned()),
        latencies: rest.1,
        site_period: rest.2[0],
        cpus: rest.2[1],
        nodes: rest.2[2],
        patch: rest.3,
        cpu_nodes: rest.4,
        machine: rest
            .5
            .then(|| serde_json::from_str(MACHINE).expect("the profile can be read")),
    })
}

fn process() -> impl Strategy<Value = Process> {
    (
        any::<u32>(),
        option::of(any::<u32>()),
        text(),
        number(),
        option::of(number()),
        option::of(text()),
    )
        .prop_map(|(pid, parent, path, start_ns, end_ns, unpatched)| Process {
            pid,
            parent,
            path,
            start_ns,
            end_ns,
            unpatched,
        })
}

fn thread() -> impl Strategy<Value = Thread> {
    (
        any::<u32>(),
        any::<u32>(),
        text(),
        number(),
        option::of(number()),
        option::of(number()),
    )
        .prop_map(|(process, tid, name, start_ns, end_ns, cpu_ns)| Thread {
            process: ProcessId(process),
            tid,
            name,
            start_ns,
            end_ns,
            cpu_ns,
        })
}

fn module() -> impl Strategy<Value = Module> {
    let kind = prop_oneof![
        Just(ModuleKind::File),
        Just(ModuleKind::Vdso),
        Just(ModuleKind::Jit),
        Just(ModuleKind::Agent),
        Just(ModuleKind::Kernel)
    ];
    (text(), option::of(text()), option::of(text()), kind).prop_map(
        |(path, build_id, text_hash, kind)| Module {
            path,
            build_id,
            text_hash,
            kind,
        },
    )
}

fn mapping() -> impl Strategy<Value = Mapping> {
    (
        any::<u32>(),
        any::<u32>(),
        number(),
        number(),
        number(),
        number(),
    )
        .prop_map(|(process, module, start, end, bias, t_ns)| Mapping {
            process: ProcessId(process),
            module: ModuleId(module),
            start,
            end,
            bias,
            t_ns,
        })
}

fn frame() -> impl Strategy<Value = Frame> {
    (option::of(any::<u32>()), number()).prop_map(|(module, address)| Frame {
        module: module.map(ModuleId),
        address,
    })
}

fn stack() -> impl Strategy<Value = Stack> {
    (option::of(any::<u32>()), any::<u32>()).prop_map(|(parent, frame)| Stack {
        parent: parent.map(StackId),
        frame: FrameId(frame),
    })
}

fn site() -> impl Strategy<Value = Site> {
    let kind = prop_oneof![
        Just(SiteKind::Load),
        Just(SiteKind::Store),
        Just(SiteKind::Both),
        Just(SiteKind::Locked)
    ];
    (any::<u32>(), kind, any::<u32>(), text(), option::of(text())).prop_map(
        |(frame, kind, bytes, text, refused)| Site {
            frame: FrameId(frame),
            kind,
            bytes,
            text,
            refused,
        },
    )
}

fn attribution() -> impl Strategy<Value = Attribution> {
    (any::<u32>(), option::of(any::<u32>()), real(), real()).prop_map(
        |(frame, site, share, confidence)| Attribution {
            frame: FrameId(frame),
            site: site.map(SiteId),
            share,
            confidence,
        },
    )
}

fn sample() -> impl Strategy<Value = Sample> {
    (
        (
            number(),
            any::<u32>(),
            option::of(any::<u16>()),
            any::<u32>(),
        ),
        (
            number(),
            option::of(number()),
            any::<bool>(),
            option::of(any::<u32>()),
        ),
    )
        .prop_map(
            |((t_ns, thread, cpu, stack), (weight_ns, address, exact, object))| Sample {
                t_ns,
                thread: ThreadId(thread),
                cpu,
                stack: StackId(stack),
                weight_ns,
                address,
                exact,
                object: object.map(ObjectId),
            },
        )
}

fn executions() -> impl Strategy<Value = Executions> {
    let bounds = (option::of(number()), option::of(number()));
    (any::<u32>(), number(), number(), number(), number(), bounds).prop_map(
        |(site, from_ns, to_ns, count, cpu_ns, (least_cpu_ns, most_cpu_ns))| Executions {
            site: SiteId(site),
            from_ns,
            to_ns,
            count,
            cpu_ns,
            least_cpu_ns,
            most_cpu_ns,
        },
    )
}

fn laps() -> impl Strategy<Value = Laps> {
    let times = (number(), number(), number());
    (any::<u32>(), any::<u32>(), number(), times).prop_map(
        |(site, thread, count, (from_ns, to_ns, cpu_ns))| Laps {
            site: SiteId(site),
            thread: ThreadId(thread),
            from_ns,
            to_ns,
            count,
            cpu_ns,
        },
    )
}

fn around() -> impl Strategy<Value = LoopAround> {
    (any::<u32>(), any::<u32>(), number()).prop_map(|(frame, level, start)| LoopAround {
        frame: FrameId(frame),
        level,
        start,
    })
}

fn access() -> impl Strategy<Value = Access> {
    (
        (number(), any::<u32>(), any::<u32>(), number()),
        (
            option::of(any::<u32>()),
            option::of(any::<u32>()),
            option::of(any::<u32>()),
        ),
        (any::<bool>(), option::of(any::<u32>())),
        (option::of(any::<u16>()), option::of(any::<u16>())),
    )
        .prop_map(
            |((t_ns, thread, site, address), (ticks, hit, drain), (store, object), (cpu, node))| {
                Access {
                    t_ns,
                    thread: ThreadId(thread),
                    site: SiteId(site),
                    address,
                    ticks,
                    hit,
                    drain,
                    store,
                    object: object.map(ObjectId),
                    cpu,
                    node,
                }
            },
        )
}

fn burst() -> impl Strategy<Value = Burst> {
    (
        number(),
        number(),
        any::<u32>(),
        vec(any::<u32>(), 0..5),
        vec((any::<u16>(), number(), any::<bool>()), 0..30),
    )
        .prop_map(|(from_ns, to_ns, thread, sites, accesses)| Burst {
            from_ns,
            to_ns,
            thread: ThreadId(thread),
            sites: sites.into_iter().map(SiteId).collect(),
            accesses,
        })
}

fn block() -> impl Strategy<Value = BlockCount> {
    (any::<u32>(), any::<u32>(), number(), number(), number()).prop_map(
        |(frame, length, from_ns, to_ns, count)| BlockCount {
            frame: FrameId(frame),
            length,
            from_ns,
            to_ns,
            count,
        },
    )
}

fn object() -> impl Strategy<Value = Object> {
    let kind = prop_oneof![
        Just(ObjectKind::Heap),
        Just(ObjectKind::Mapped),
        Just(ObjectKind::File),
        Just(ObjectKind::Global),
        Just(ObjectKind::Stack),
        Just(ObjectKind::Unknown)
    ];
    (
        (kind, any::<u32>(), number(), number(), text()),
        (option::of(any::<u32>()), option::of(any::<u32>())),
        (option::of(number()), option::of(number()), real()),
    )
        .prop_map(
            |(
                (kind, process, address, size_bytes, name),
                (stack, thread),
                (allocated_ns, freed_ns, weight),
            )| Object {
                kind,
                process: ProcessId(process),
                address,
                size_bytes,
                name,
                stack: stack.map(StackId),
                thread: thread.map(ThreadId),
                allocated_ns,
                freed_ns,
                weight,
            },
        )
}

fn allocations() -> impl Strategy<Value = Allocations> {
    (
        (any::<u32>(), any::<u32>(), text()),
        (number(), number(), number(), number(), number()),
        option::of(0.0..1e12),
    )
        .prop_map(
            |(
                (stack, process, function),
                (blocks, bytes, freed, lifetime_ns, peak_bytes),
                blocks_variance,
            )| {
                Allocations {
                    stack: StackId(stack),
                    process: ProcessId(process),
                    function,
                    blocks,
                    blocks_variance,
                    bytes,
                    freed,
                    lifetime_ns,
                    peak_bytes,
                }
            },
        )
}

fn live() -> impl Strategy<Value = LiveBytes> {
    let whose = (any::<u32>(), any::<u32>(), text());
    (whose, (number(), number(), number(), number())).prop_map(
        |((stack, process, function), (from_ns, to_ns, bytes, peak_bytes))| LiveBytes {
            stack: StackId(stack),
            process: ProcessId(process),
            function,
            from_ns,
            to_ns,
            bytes,
            peak_bytes,
        },
    )
}

fn location() -> impl Strategy<Value = Location> {
    (
        (any::<u32>(), any::<u32>(), text()),
        (
            option::of(number()),
            option::of(number()),
            option::of(text()),
        ),
        (option::of(any::<u32>()), option::of(any::<u32>())),
    )
        .prop_map(
            |((frame, depth, function), (function_start, function_size, file), (line, column))| {
                Location {
                    frame: FrameId(frame),
                    depth,
                    function,
                    function_start,
                    function_size,
                    file,
                    line,
                    column,
                }
            },
        )
}

fn code_of() -> impl Strategy<Value = Code> {
    (any::<u32>(), number(), vec(any::<u8>(), 0..40)).prop_map(|(module, address, bytes)| Code {
        module: ModuleId(module),
        address,
        bytes,
    })
}

fn page() -> impl Strategy<Value = PageNode> {
    (any::<u32>(), number(), number(), any::<u16>()).prop_map(|(process, address, t_ns, node)| {
        PageNode {
            process: ProcessId(process),
            address,
            t_ns,
            node,
        }
    })
}

fn traffic() -> impl Strategy<Value = Traffic> {
    (text(), number(), number(), number(), number()).prop_map(
        |(domain, from_ns, to_ns, read_bytes, write_bytes)| Traffic {
            domain,
            from_ns,
            to_ns,
            read_bytes,
            write_bytes,
        },
    )
}

fn watched() -> impl Strategy<Value = Watched> {
    (number(), any::<u32>(), number(), any::<u8>(), any::<u32>()).prop_map(
        |(t_ns, thread, address, bytes, frame)| Watched {
            t_ns,
            thread: ThreadId(thread),
            address,
            bytes,
            frame: FrameId(frame),
        },
    )
}

fn hold() -> impl Strategy<Value = Hold> {
    let numbers = (number(), any::<u32>(), any::<u32>(), number());
    let rest = (any::<bool>(), number(), number(), number());
    (numbers, rest).prop_map(|((t_ns, trial, thread, line), rest)| {
        let (alone, wall_ns, cpu_ns, progress) = rest;
        Hold {
            t_ns,
            trial,
            thread: ThreadId(thread),
            line,
            alone,
            wall_ns,
            cpu_ns,
            progress,
        }
    })
}

fn hardware_access() -> impl Strategy<Value = HardwareAccess> {
    let sampler = prop_oneof![
        Just(AccessSampler::Pebs),
        Just(AccessSampler::Ibs),
        Just(AccessSampler::Spe),
        Just(AccessSampler::Other)
    ];
    let served = || {
        option::of(prop_oneof![
            Just(ServedBy::L1),
            Just(ServedBy::RemoteCache),
            Just(ServedBy::RemoteDram)
        ])
    };
    let what = (
        sampler,
        option::of(prop_oneof![
            Just(Operation::Load),
            Just(Operation::LoadStore)
        ]),
        served(),
        served(),
        option::of(prop_oneof![Just(Snoop::None), Just(Snoop::Modified)]),
        option::of(prop_oneof![Just(Translation::L1), Just(Translation::Walk)]),
        option::of(any::<bool>()),
    );
    let numbers = (
        number(),
        any::<(u32, u32)>(),
        option::of(any::<u16>()),
        option::of(any::<u32>()),
        (option::of(number()), option::of(number())),
        number(),
    );
    (what, numbers).prop_map(|(what, numbers)| HardwareAccess {
        t_ns: numbers.0,
        thread: ThreadId(numbers.1.0),
        cpu: numbers.2,
        stack: StackId(numbers.1.1),
        sampler: what.0,
        operation: what.1,
        served: what.2,
        missed: what.3,
        snoop: what.4,
        translation: what.5,
        locked: what.6,
        latency_cycles: numbers.3,
        address: numbers.4.0,
        physical_address: numbers.4.1,
        period: numbers.5,
    })
}

fn gap() -> impl Strategy<Value = Gap> {
    (text(), text(), option::of(text()), option::of(number())).prop_map(
        |(about, reason, remedy, count)| Gap {
            about,
            reason,
            remedy,
            count,
        },
    )
}
