//! What recording cost, what the recording lacks, and which code and threads are membound's own.

use std::collections::{BTreeSet, HashSet};

use membound_run::{FrameId, Gap, ModuleKind, RunData, SiteId, Thread, ThreadId};
use membound_types::{Missing, NotMeasured, Overhead, StopCount};

use crate::lost_records;

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// Number of threads of the program, without membound's own. A thread that starts another program by `exec`
/// goes on in a new image, and is counted once.
pub(crate) fn threads(run: &RunData) -> usize {
    let number = |thread: &Thread| (run.processes[thread.process.index()].pid, thread.tid);
    run.own_threads().map(number).collect::<HashSet<_>>().len()
}

/// Number of processes; an `exec` begins another image of the same process.
pub(crate) fn processes(run: &RunData) -> usize {
    let numbers = run.processes.iter().map(|process| process.pid);
    numbers.collect::<HashSet<_>>().len()
}

/// Effective sample size (Σw)² ÷ Σw² of `weights`: as many samples of equal weight have the same variance.
/// The sums are integers, so that the order does not matter.
pub(crate) fn effective(weights: impl Iterator<Item = u64>) -> f64 {
    let (sum, squares) = weights.fold((0_u128, 0_u128), |(sum, squares), weight| {
        let weight = u128::from(weight);
        (sum + weight, squares.saturating_add(weight * weight))
    });
    if squares == 0 {
        return 0.0;
    }
    let sum = sum as f64;
    sum * sum / squares as f64
}

/// Cost of recording to the program.
pub(crate) fn overhead(run: &RunData) -> Overhead {
    let (mut inside, mut all, mut agents_ns) = (0_u128, 0_u128, 0);
    for sample in &run.samples {
        // The agent's own threads run beside those of the program.
        if run.is_agents(&run.threads[sample.thread.index()]) {
            agents_ns += sample.weight_ns;
            continue;
        }
        let weight = u128::from(sample.weight_ns);
        all += weight;
        if is_own(run, run.stacks[sample.stack.index()].frame) {
            inside += weight;
        }
    }
    // CPU time of the program's threads, including what recording took of it.
    let threads_ns = run.own_threads().filter_map(|thread| thread.cpu_ns);
    let cpu_ns = threads_ns.map(u128::from).sum::<u128>().max(all) as f64;
    let lost_ns = run.meta.lost_cpu_ns as f64 + inside as f64;
    let (held_ns, elapsed_ns) = (run.meta.held_ns as f64, run.meta.elapsed_ns as f64);
    Overhead {
        // A program that mostly sleeps is not longer by as many times as its CPU time was taken.
        cost_fraction: slowdown_share(lost_ns, cpu_ns.max(elapsed_ns))
            + slowdown_share(held_ns, elapsed_ns),
        own_cpu_s: seconds(run.meta.own_cpu_ns + agents_ns),
        inside_fraction: if all == 0 {
            0.0
        } else {
            inside as f64 / all as f64
        },
        longest_stop_ms: run.meta.longest_stop_ns.map(|stop_ns| stop_ns as f64 / 1e6),
        stops: (0_i32..)
            .zip(&run.meta.stops)
            .filter(|(_, changes)| **changes > 0)
            .map(|(digits, changes)| StopCount {
                below_ms: 2_f64.powi(digits) / 1e3,
                changes: *changes,
            })
            .collect(),
        lost_samples: lost_records::count(run, "samples"),
        lost_accesses: lost_records::count(run, "latencies"),
        lost_allocations: lost_records::count(run, "objects"),
    }
}

/// Slowdown of a program that lost `lost` of its time `all`, as a share of the time without that loss.
fn slowdown_share(lost: f64, all: f64) -> f64 {
    /// Lower bound of the remaining time, as a share of all.
    ///
    /// It keeps the slowdown finite for a program that hardly runs but for recording, and for processes
    /// that were stopped in parallel, whose stops sum to more than the elapsed time.
    const MIN_REMAINING_SHARE: f64 = 0.1;
    if all <= 0.0 {
        return 0.0;
    }
    lost / (all - lost).max(MIN_REMAINING_SHARE * all)
}

/// True if `frame` lies in membound's own code inside the program.
pub(crate) fn is_own(run: &RunData, frame: membound_run::FrameId) -> bool {
    run.frames[frame.index()]
        .module
        .is_some_and(|module| run.modules[module.index()].kind == ModuleKind::Agent)
}

/// True if the process of `thread` could be patched.
pub(crate) fn is_patched(run: &RunData, thread: ThreadId) -> bool {
    let process = run.threads[thread.index()].process;
    run.processes[process.index()].unpatched.is_none()
}

/// The entry of [`missing`] for a table.
pub(crate) fn lacking(table: &str, reason: impl Into<String>, remedy: Option<&str>) -> Missing {
    Missing {
        table: table.to_owned(),
        why: NotMeasured {
            reason: reason.into(),
            remedy: remedy.map(str::to_owned),
        },
    }
}

/// What the run lacks, by the table that misses it: gaps that the run reports, and gaps inferred from
/// absent data.
pub(crate) fn missing(run: &RunData) -> Vec<Missing> {
    let mut missing: Vec<Missing> = run
        .gaps
        .iter()
        // `Profile::unseen` reports the time of such code.
        .filter(|gap| !is_loss(run, gap) && gap.about != Gap::UNSEEN_CODE)
        .map(|gap| {
            let counted = gap.count.map(|count| format!(" ({count})"));
            let reason = format!("{}{}", gap.reason, counted.unwrap_or_default());
            lacking(table(&gap.about), reason, gap.remedy.as_deref())
        })
        .collect();
    let started = run.meta.attached.is_none();
    let with_launch = (!started).then_some("start the program with `membound profile -- COMMAND`");
    let mut lacks = |table: &str, lacks: bool, reason: &str, remedy: Option<&str>| {
        if lacks && missing.iter().all(|one| one.table != table) {
            missing.push(lacking(table, reason, remedy));
        }
    };
    lacks(
        "samples",
        run.samples.is_empty(),
        "no timer sample was taken",
        (run.meta.elapsed_ns > 0).then_some("let the program run longer"),
    );
    lacks(
        "latency",
        !run.meta.latencies,
        "accesses were not timed",
        with_launch,
    );
    lacks(
        "objects",
        run.meta.objects_from_bytes.is_none(),
        "allocations were not followed",
        with_launch,
    );
    lacks(
        "levels",
        run.meta.machine.is_none(),
        "the run holds no machine profile",
        Some("run `membound measure` before recording"),
    );
    missing
}

/// Share of the time at timed accesses before the first is timed, above which the report mentions it.
const MAX_UNREPORTED_EARLY_SHARE: f64 = 0.25;

/// Reports that accesses were not timed in the first part of the run.
pub(crate) fn late(run: &RunData) -> Option<Missing> {
    let first_ns = run.accesses.iter().map(|access| access.t_ns).min()?;
    let timed: BTreeSet<SiteId> = run.accesses.iter().map(|access| access.site).collect();
    let frames: BTreeSet<FrameId> = (run.attributions.iter())
        .filter(|attribution| attribution.site.is_some_and(|site| timed.contains(&site)))
        .map(|attribution| attribution.frame)
        .collect();
    let (mut before_ns, mut all_ns) = (0, 0);
    for sample in &run.samples {
        if frames.contains(&run.stacks[sample.stack.index()].frame) {
            all_ns += sample.weight_ns;
            before_ns += sample.weight_ns * u64::from(sample.t_ns < first_ns);
        }
    }
    (before_ns as f64 > MAX_UNREPORTED_EARLY_SHARE * all_ns as f64).then(|| {
        let reason = format!(
            "accesses were timed from {:.1} s on, of {:.1} s: what was waited for before is \
             taken to be like what came after",
            first_ns as f64 * 1e-9,
            run.meta.elapsed_ns as f64 * 1e-9
        );
        lacking("latency", reason, Some("let the program run longer"))
    })
}

/// True if a gap only counts lost records of a table that is still present; such counts are reported with
/// the overhead.
fn is_loss(run: &RunData, gap: &Gap) -> bool {
    gap.count.is_some()
        && match gap.about.as_str() {
            "samples" => !run.samples.is_empty(),
            "latencies" => !run.accesses.is_empty(),
            "objects" => !run.objects.is_empty(),
            _ => false,
        }
}

/// Table that a gap is about.
fn table(about: &str) -> &str {
    match about {
        "latencies" => "latency",
        "nodes" => "numa",
        "names" => "functions",
        "watchpoints" | "holds" => "false_sharing",
        other => other,
    }
}
