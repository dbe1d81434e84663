//! Runs of any content whose references hold.

use membound_run::*;
use membound_types::MachineProfile;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;

/// A machine profile as it is on disk.
pub(crate) const MACHINE: &str = include_str!("../../../membound-input/tests/data/machine.json");

/// Any run.
pub(crate) fn run() -> impl Strategy<Value = RunData> {
    RunData::drawn().prop_map(sound)
}

/// A type whose values can be drawn at random.
trait Drawn: Sized {
    /// A list of these values is shorter than this.
    const LIST_LENGTH: usize = 12;

    fn drawn() -> BoxedStrategy<Self>;
}

impl<T: Drawn + std::fmt::Debug + 'static> Drawn for Option<T> {
    fn drawn() -> BoxedStrategy<Self> {
        option::of(T::drawn()).boxed()
    }
}

impl<T: Drawn + std::fmt::Debug + 'static> Drawn for Vec<T> {
    fn drawn() -> BoxedStrategy<Self> {
        vec(T::drawn(), 0..T::LIST_LENGTH).boxed()
    }
}

/// Draws values of each type with a strategy; `[N]` is the length that its lists stay below.
macro_rules! values {
    ($($Type:ty $([$length:literal])?: $strategy:expr,)+) => {$(
        impl Drawn for $Type {
            $(const LIST_LENGTH: usize = $length;)?

            fn drawn() -> BoxedStrategy<Self> {
                $strategy.boxed()
            }
        }
    )+};
}

values! {
    bool: any::<bool>(),
    u8 [40]: any::<u8>(),
    u16: any::<u16>(),
    u32: any::<u32>(),
    i32: any::<i32>(),
    // Ordinary numbers and extreme ones.
    u64: prop_oneof![0..10_u64, any::<u64>(), Just(u64::MAX), Just(1 << 63)],
    f64: real(),
    String: prop_oneof![
        Just(String::new()),
        any::<String>(),
        Just("a\0b'\"\u{1F600}".to_owned())
    ],
    (u16, u64, bool) [30]: (any::<u16>(), u64::drawn(), any::<bool>()),
    ProcessId: any::<u32>().prop_map(ProcessId),
    ThreadId: any::<u32>().prop_map(ThreadId),
    ModuleId: any::<u32>().prop_map(ModuleId),
    FrameId: any::<u32>().prop_map(FrameId),
    StackId: any::<u32>().prop_map(StackId),
    SiteId: any::<u32>().prop_map(SiteId),
    ObjectId: any::<u32>().prop_map(ObjectId),
    TimerKind: select(&TimerKind::ALL),
    ModuleKind: select(&ModuleKind::ALL),
    SiteKind: select(&SiteKind::ALL),
    ObjectClass: select(&ObjectClass::ALL),
    AccessSampler: select(&AccessSampler::ALL),
    Operation: select(&Operation::ALL),
    ServedBy: select(&ServedBy::ALL),
    Snoop: select(&Snoop::ALL),
    Translation: select(&Translation::ALL),
    Box<MachineProfile>: Just(serde_json::from_str(MACHINE).expect("the profile can be read")),
}

fn real() -> impl Strategy<Value = f64> {
    use proptest::num::f64::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![
        POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO,
        Just(1.0),
        Just(f64::INFINITY)
    ]
}

/// Pairs in pairs, as strategies and patterns: tuples have too few elements for some records.
macro_rules! nested {
    ($last:tt) => { $last };
    ($first:tt $($rest:tt)+) => { ($first, nested!($($rest)+)) };
}

/// Draws records field by field; `[N]` is the length that their lists stay below.
macro_rules! records {
    ($($Type:ident $([$length:literal])? { $($field:ident),+ $(,)? })+) => {$(
        impl Drawn for $Type {
            $(const LIST_LENGTH: usize = $length;)?

            fn drawn() -> BoxedStrategy<Self> {
                $(let $field = Drawn::drawn();)+
                let fields = nested!($($field)+);
                fields.prop_map(|nested!($($field)+)| Self { $($field),+ }).boxed()
            }
        }
    )+};
}

records! {
    RunData {
        meta, processes, threads, modules, mappings, frames, stacks, samples, sites, attributions,
        executions, laps, loops, accesses, bursts, blocks, objects, allocations, live, locations,
        code, pages, traffic, watched, holds, hardware_accesses, gaps,
    }
    Meta {
        membound_version, command, attached, host, date, complete, elapsed_ns, exit_code,
        signal, timer, imported, period_ns, site_period, latencies, patch, objects_from_bytes,
        tsc_hz, cpus, nodes, cpu_nodes, own_cpu_ns, stops, longest_stop_ns, lost_cpu_ns,
        held_ns, machine,
    }
    Process { pid, parent, path, start_ns, end_ns, unpatched }
    Thread { process, tid, name, start_ns, end_ns, cpu_ns }
    Module { path, build_id, text_hash, kind }
    Mapping { process, module, start, end, bias, t_ns }
    Frame [20] { module, address }
    Stack [20] { parent, frame }
    Site { frame, kind, bytes, text, refused }
    Attribution { frame, site, share, confidence }
    Sample [40] { t_ns, thread, cpu, stack, weight_ns, address, exact, object }
    Executions { site, from_ns, to_ns, count, cpu_ns, least_cpu_ns, most_cpu_ns }
    Laps { site, thread, from_ns, to_ns, count, more_count, cpu_ns }
    LoopAround { frame, level, start, cached_ns, cached_least_ns, cached_most_ns }
    Access [40] { t_ns, thread, site, address, ticks, hit, drain, store, object, cpu, node }
    Burst { from_ns, to_ns, thread, sites, accesses }
    BlockCount { frame, length, from_ns, to_ns, count, cpu_ns, least_cpu_ns }
    Object {
        kind, process, address, size_bytes, name, stack, thread, allocated_ns, freed_ns, weight,
    }
    Allocations {
        stack, process, function, blocks, blocks_variance, bytes, freed, lifetime_ns,
        peak_bytes,
    }
    LiveBytes { stack, process, function, from_ns, to_ns, bytes, peak_bytes }
    Location { frame, depth, function, function_start, function_size, file, line, column }
    Code { module, address, bytes }
    PageNode { process, address, t_ns, node }
    Traffic { domain, from_ns, to_ns, read_bytes, write_bytes }
    Watched { t_ns, thread, address, bytes, frame }
    Hold { t_ns, trial, thread, line, alone, wall_ns, cpu_ns, progress }
    HardwareAccess {
        t_ns, thread, cpu, stack, sampler, operation, served, missed, snoop, translation,
        locked, latency_cycles, address, physical_address, period,
    }
    Gap { about, reason, remedy, count }
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
