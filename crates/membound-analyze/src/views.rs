//! Builds all views of a run.

use membound_run::RunData;
use membound_types::{
    AverageLatency, CodeRow, Detail, FunctionObjectRow, HardwareView, Kind, LevelRow, Listing,
    MemoryBound, Missing, NumaView, ObjectRow, Outcome, Profile, SCHEMA_VERSION, ThreadRow,
    TimeSplit,
};

use crate::context::Context;
use crate::detail::{self, Rows};
use crate::findings::{self, MisplacedObject};
use crate::listing::{self, Texts};
use crate::objects::ObjectsWithRows;
use crate::rows::{self, Sum};
use crate::run_info::run_info;
use crate::selection;
use crate::span::Span;
use crate::{
    Extent, Options, code, consumption, hardware, info, levels, numa, objects, pairs, sharing,
    traffic, unattributed,
};

/// All views of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Views {
    /// Document of the report.
    pub profile: Profile,
    /// Single samples and listings, which pages and exports need in addition.
    pub detail: Detail,
}

/// Tables about code.
struct CodeTables {
    functions: Vec<CodeRow>,
    lines: Vec<CodeRow>,
    instructions: Vec<CodeRow>,
    listings: Vec<Listing>,
    pairs: Vec<FunctionObjectRow>,
}

impl CodeTables {
    fn new(context: &Context<'_>) -> Self {
        let (functions, lines) = rayon::join(|| code::functions(context), || code::lines(context));
        if context.options.extent == Extent::Summary {
            return Self {
                functions,
                lines,
                instructions: Vec::new(),
                listings: Vec::new(),
                pairs: Vec::new(),
            };
        }
        let texts = Texts::new(context.run, &context.places);
        Self {
            functions,
            lines,
            instructions: code::instructions(context, &texts),
            listings: listing::listings(context, &texts),
            pairs: pairs::pairs(context),
        }
    }
}

/// Tables about the run as a whole, its threads and its objects.
struct Overview {
    whole: Sum,
    levels: Vec<LevelRow>,
    threads: Vec<ThreadRow>,
    objects: Vec<ObjectRow>,
    misplaced: Vec<MisplacedObject>,
    numa: Outcome<NumaView>,
    hardware: Option<HardwareView>,
    detail: Detail,
}

impl Overview {
    fn new(context: &Context<'_>, sharing: &sharing::Sharing) -> Self {
        let whole = rows::whole(context);
        let levels = levels::levels(context);
        let threads = levels::threads(context);
        let mut objects = objects::objects(context, ObjectsWithRows::AllocatedToo);
        let placement = numa::placement(context);
        for (group, row) in &mut objects {
            row.false_sharing = sharing.falsely_shared.contains(group);
            row.node_local_fraction = placement.local.get(group).copied();
        }
        let misplaced: Vec<MisplacedObject> = placement
            .misplaced
            .into_iter()
            .map(|object| MisplacedObject {
                name: context.groups.get(object.group).name.clone(),
                stall_fraction: objects
                    .iter()
                    .find(|(group, _)| *group == object.group)
                    .map_or(0.0, |(_, row)| row.share.stall_fraction),
                local_fraction: object.local_fraction,
                advice: object.advice,
            })
            .collect();

        let mut thread_rows = vec![0; context.run.threads.len()];
        for (row, (id, _)) in threads.iter().enumerate() {
            thread_rows[id.index()] = row as u32;
        }
        let mut object_rows = vec![None; context.groups.len()];
        for (row, (id, _)) in objects.iter().enumerate() {
            object_rows[id.index()] = Some(row as u32);
        }
        let hardware = hardware::hardware(context);
        let rows = Rows {
            threads: &thread_rows,
            objects: &object_rows,
            levels: &levels,
            hardware: hardware.as_ref(),
        };
        let detail = match context.options.extent {
            Extent::Everything => detail::detail(context, &rows),
            Extent::Summary => Detail::default(),
        };
        Self {
            whole,
            levels: levels.rows,
            threads: threads.into_iter().map(|(_, row)| row).collect(),
            objects: objects.into_iter().map(|(_, row)| row).collect(),
            misplaced,
            numa: placement.view,
            hardware,
            detail,
        }
    }
}

/// Builds every view of `run`, or of the part that `options` selects.
#[must_use]
pub fn analyze(run: &RunData, options: &Options<'_>) -> Views {
    let span = Span::of(run, options.selection);
    let mut views = if span.is_all() {
        analyze_part(run, run, span, options)
    } else {
        analyze_part(run, &selection::within(run, span), span, options)
    };
    views.profile.selection = selection::selected_part(run, span, options.selection);
    views
}

/// Builds the views of `run`, which is the part of `recorded` in `span`.
fn analyze_part(recorded: &RunData, run: &RunData, span: Span, options: &Options<'_>) -> Views {
    let mut context = Context::new(recorded, run, span, options);
    // Contention between threads shows only when all of them are considered.
    let sharing = sharing::sharing(&context);
    let selected = options
        .selection
        .and_then(|selection| selection.threads.as_deref());
    let sharing = match selected {
        Some(threads) => {
            let whole_ns = context.times.total_ns;
            selection::select_threads(&mut context, threads);
            sharing.of_threads(&context, whole_ns)
        }
        None => sharing,
    };
    let context = context;
    // The tables of code are independent of the others and as much work: compute them in parallel.
    let (overview, (tables, traffic)) = rayon::join(
        || Overview::new(&context, &sharing),
        || (CodeTables::new(&context), traffic::traffic(&context)),
    );
    let whole = &overview.whole;
    let lines = sharing.false_sharing.iter().chain(&sharing.true_sharing);
    let contention = sharing::contention_cost(lines);
    let mut profile = Profile {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Profile,
        incomplete: !run.meta.complete,
        run: run_info(&context),
        selection: None,
        elapsed_s: info::seconds(run.meta.elapsed_ns),
        time: time(&context, whole, contention.value),
        memory_bound: memory_bound(&context, whole, contention),
        unseen: unattributed::unattributed_code(&context),
        latency: latency(&context, whole),
        findings: Vec::new(),
        functions: tables.functions,
        lines: tables.lines,
        instructions: tables.instructions,
        threads: overview.threads,
        levels: overview.levels,
        hardware: overview.hardware,
        objects: overview.objects,
        function_objects: tables.pairs,
        memory: consumption::consumption(&context),
        false_sharing: sharing.false_sharing,
        true_sharing: sharing.true_sharing,
        numa: overview.numa,
        bandwidth: traffic.bandwidth,
        platform: traffic.platform,
        elsewhere: traffic.elsewhere,
        overhead: info::overhead(recorded),
        missing: missing(&context, traffic.missing),
    };
    profile.findings = findings::findings(
        &profile,
        &overview.misplaced,
        streamed(&context),
        run.meta.nodes,
        &options.thresholds,
    );
    let detail = Detail {
        listings: tables.listings,
        ..overview.detail
    };
    Views { profile, detail }
}

/// What the run lacks, by the table that misses it; `of_traffic` is what traffic lacks.
fn missing(context: &Context<'_>, of_traffic: Vec<Missing>) -> Vec<Missing> {
    let mut missing = info::missing(context.run);
    if context.span.is_all() {
        missing.extend(info::late(context.run));
    }
    missing.extend(selection::untimed(context));
    for lacks in of_traffic {
        if missing.iter().all(|known| known.table != lacks.table) {
            missing.push(lacks);
        }
    }
    missing
}

/// Share of the stall at streams: accesses that go through memory in order.
fn streamed(context: &Context<'_>) -> f64 {
    let stall = |streams_only: bool| {
        let costs = context.costs.iter();
        let costs = costs.filter(|cost| cost.is_stream || !streams_only);
        costs.map(|cost| cost.stall.stall_ns.value).sum::<f64>()
    };
    let all = stall(false);
    if all > 0.0 { stall(true) / all } else { 0.0 }
}

fn time(context: &Context<'_>, whole: &Sum, contention: f64) -> TimeSplit {
    let cpu_s = context.times.total_ns * 1e-9;
    let memory_stall_s = (whole.stall_ns * 1e-9).max(contention * cpu_s);
    TimeSplit {
        idle_s: context.times.idle_ns * 1e-9,
        memory_stall_s,
        other_s: (cpu_s - memory_stall_s).max(0.0),
        cpu_s,
    }
}

/// Memory-bound share. `contention` is the measured cost of contention between threads; latencies of single
/// accesses show only part of it, so the larger of the two is reported.
fn memory_bound(context: &Context<'_>, whole: &Sum, contention: sharing::Share) -> MemoryBound {
    let bound = whole.bound(context);
    let waited = context.times.share(whole.stall_ns);
    let fraction = waited.max(contention.value);
    let levels = rows::level_shares(&whole.levels, context);
    MemoryBound {
        fraction,
        low: bound.low.max(contention.low).min(fraction),
        high: bound.high.max(contention.high).max(fraction),
        l1: levels.l1,
        l2: levels.l2,
        l3: levels.l3,
        dram: levels.dram,
        remote: levels.remote + (fraction - waited),
        unknown: levels.unknown,
        unseen: bound.unseen,
        l1_and_l2_together: context.l1_and_l2_together(),
    }
}

fn latency(context: &Context<'_>, whole: &Sum) -> Outcome<AverageLatency> {
    let Some(ns) = whole.latency_ns() else {
        return match &context.machine.mixer {
            _ if !context.run.meta.latencies => Outcome::missing_with(
                "no access was timed in this run",
                "start the program with `membound profile -- COMMAND`",
            ),
            Err(reason) => Outcome::missing_with(reason.clone(), "run `membound measure` first"),
            Ok(_) => Outcome::missing(unattributed::why_not_timed(context)),
        };
    };
    let flagged = context
        .machine
        .l1_ns()
        .is_some_and(|l1_ns| ns >= context.options.thresholds.latency_ratio * l1_ns);
    match context.machine.cycles(ns) {
        Some(cycles) => Outcome::Known(AverageLatency {
            ns,
            cycles,
            flagged,
        }),
        None => Outcome::missing("the machine profile has no core clock"),
    }
}
