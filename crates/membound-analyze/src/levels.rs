//! Stall by level of the memory hierarchy, and by thread.

use membound_model::stall::{self, ByLevel, Served, Stall};
use membound_run::ThreadId;
use membound_types::{LevelRow, ThreadRow};

use crate::context::Context;
use crate::parts;
use crate::rows::{self, Sum};

/// Table of levels, with the row of each level.
#[derive(Debug)]
pub(crate) struct Levels {
    pub rows: Vec<LevelRow>,
    /// Row by [`Served`], in the order of [`Served::ALL`].
    pub row_of: [Option<u8>; Served::ALL.len()],
}

/// Table of levels, innermost first. Levels that the machine lacks and that have no stall are left out.
pub(crate) fn levels(context: &Context<'_>) -> Levels {
    let together = context.l1_and_l2_together();
    let mut levels = Levels {
        rows: Vec::new(),
        row_of: [None; Served::ALL.len()],
    };
    let served = accesses(context);
    for of_row in [
        &[Served::L1, Served::L2][..if together { 2 } else { 1 }],
        &[Served::L2][usize::from(together)..],
        &[Served::L3],
        &[Served::Dram],
        &[Served::Remote],
        &[Served::Unknown],
    ] {
        let Some(&first) = of_row.first() else {
            continue;
        };
        let (stall_ns, low, high) = stalled_on(context, of_row);
        let share = of_row
            .iter()
            .map(|level| served.map(|shares| shares.get(*level)))
            .sum::<Option<f64>>();
        let latency_ns = of_row
            .iter()
            .filter_map(|level| context.machine.latency_ns(*level))
            .reduce(f64::min);
        let has_accesses = share.is_some_and(|share| share > 0.0);
        if stall_ns <= 0.0 && !has_accesses && (latency_ns.is_none() || first == Served::Unknown) {
            continue;
        }
        for level in of_row {
            levels.row_of[*level as usize] = Some(levels.rows.len() as u8);
        }
        let stall_fraction = context.times.share(stall_ns);
        levels.rows.push(LevelRow {
            name: name(of_row).to_owned(),
            stall_fraction,
            stall_low: low.min(stall_fraction),
            stall_high: high.max(stall_fraction),
            accesses_fraction: share,
            latency_ns,
        });
    }
    levels
}

const fn name(levels: &[Served]) -> &'static str {
    match levels {
        [Served::L1, Served::L2] => "L1+L2",
        [Served::L1, ..] => "L1",
        [Served::L2, ..] => "L2",
        [Served::L3, ..] => "L3",
        [Served::Dram, ..] => "DRAM",
        [Served::Remote, ..] => "remote",
        _ => "unknown",
    }
}

/// Stall time on `levels` in nanoseconds, and both ends of the interval of its share of all CPU time.
fn stalled_on(context: &Context<'_>, levels: &[Served]) -> (f64, f64, f64) {
    let mut sum = 0.0;
    let stalls: Vec<Stall> = context
        .costs
        .iter()
        .filter(|cost| cost.time_ns > 0.0)
        .map(|cost| {
            let mut only = ByLevel::default();
            for &level in levels {
                only.add(level, cost.stall.levels.get(level));
            }
            sum += only.total();
            parts::part_of(&cost.stall, cost.time_ns, only.total(), only)
        })
        .collect();
    let bound = stall::combine(
        &stalls,
        context.times.total_ns,
        context.times.effective_samples,
    );
    (sum, bound.low, bound.high)
}

/// Share of the executions served from each level; `None` if none were both counted and timed.
fn accesses(context: &Context<'_>) -> Option<ByLevel> {
    let mut executions = ByLevel::default();
    for cost in &context.costs {
        let (Some(executed), Some(mixture)) = (&cost.executed, &cost.mixture) else {
            continue;
        };
        for level in &mixture.levels {
            executions.add(level.served, executed.count * level.share.value);
        }
        executions.add(Served::Unknown, executed.count * mixture.beyond.value);
    }
    (executions.total() > 0.0).then(|| executions.times(1.0 / executions.total()))
}

/// Rows by thread, most stalled first, each with its position in the run.
pub(crate) fn threads(context: &Context<'_>) -> Vec<(ThreadId, ThreadRow)> {
    let run = context.run;
    let mut sums: Vec<Sum> = vec![Sum::default(); run.threads.len()];
    for part in &context.parts.parts {
        sums[part.thread.index()].add(context, part);
    }
    for plain in &context.plain {
        sums[plain.thread.index()].add_plain(plain);
    }
    let mut rows: Vec<(ThreadId, ThreadRow)> = run
        .threads
        .iter()
        .zip(sums)
        .enumerate()
        .filter(|(_, (thread, _))| !run.is_agents(thread))
        .filter(|(index, _)| context.is_selected(ThreadId(*index as u32)))
        .map(|(index, (thread, mut sum))| {
            let id = ThreadId(index as u32);
            let time = context.times.thread(id);
            sum.time_ns = time.cpu_ns as f64;
            let busy = time.cpu_ns + time.own_ns;
            let row = ThreadRow {
                name: thread.name.clone(),
                pid: run.processes[thread.process.index()].pid,
                tid: thread.tid,
                lifetime_s: crate::info::seconds(time.lifetime_ns),
                idle_s: crate::info::seconds(time.lifetime_ns.saturating_sub(busy)),
                share: sum.share(context),
            };
            (id, row)
        })
        .collect();
    rows.sort_by(|(_, a), (_, b)| {
        rows::order((&a.share, &a.name), (&b.share, &b.name)).then(a.tid.cmp(&b.tid))
    });
    rows
}
