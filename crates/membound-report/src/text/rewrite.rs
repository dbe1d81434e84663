//! Results of rewriting on a terminal: what can be patched in a binary, and how a fully patched program
//! ran.

use std::collections::BTreeMap;

use membound_types::{
    CheckedModule, CheckedRecords, Outcome, PatchCounts, PlannedFunction, PlannedInstruction,
    RewriteCheck, RewritePlan,
};

use super::Style;
use super::out::Out;
use super::table::{Align, Table};
use crate::units;

/// Most rows of a table of functions or modules.
const MAX_ROWS: usize = 20;

/// Formats a check: modules with their counts, and reasons for refusals.
#[must_use]
pub fn rewrite_check(check: &RewriteCheck, style: Style) -> String {
    let mut out = Out::new(style);
    let programs = check.processes.len();
    let patched = check.processes.iter().filter(|it| it.patched).count();
    // If patches were missing for part of a program's run, its counts cover only part of its executions.
    let counted = if check.missed.is_empty() {
        CountedExecutions::All
    } else {
        CountedExecutions::Part
    };
    let remark = format!(
        "{patched} of {} patched{}",
        units::plural(programs, "program"),
        match counted {
            CountedExecutions::All => "",
            CountedExecutions::Part => ", part of the time only: see below",
        }
    );
    out.heading(&format!("membound: body {}", check.body), &remark);
    modules(&mut out, &check.modules, counted);
    let mut refused: BTreeMap<&str, u64> = BTreeMap::new();
    for module in &check.modules {
        for (reason, count) in &module.counts.refused {
            *refused.entry(reason).or_default() += count;
        }
    }
    reasons(&mut out, &refused);
    for module in &check.modules {
        if let Some(reason) = &module.unpatched {
            out.note(&format!("{} was left alone: {reason}", module.path));
        }
    }
    for process in &check.processes {
        if let (Some(reason), true) = (&process.reason, check.reason.is_none()) {
            let path = &process.path;
            out.note(&format!(
                "process {} ({path}) ran unpatched: {reason}",
                process.pid
            ));
        }
    }
    if let Some(records) = &check.records {
        recorded(&mut out, &check.modules, records);
    }
    for missed in &check.missed {
        out.warning(&format!("incomplete: {missed}"));
    }
    out.finish()
}

/// Part of the executions that was counted.
#[derive(Clone, Copy)]
enum CountedExecutions {
    All,
    Part,
}

fn modules(out: &mut Out, modules: &[CheckedModule], counted: CountedExecutions) {
    let mut table = Table::new()
        .words("module")
        .column("loads", Align::Right, 2)
        .column("stores", Align::Right, 2)
        .figures("patched")
        .figures("executed");
    let shown = modules.iter().filter(|module| module.unpatched.is_none());
    for module in shown.clone().take(MAX_ROWS) {
        table.row([
            module.path.clone(),
            units::count(module.counts.loads),
            units::count(module.counts.stores),
            share(&module.counts),
            match (module.executions.known(), counted) {
                (Some(executions), CountedExecutions::Part) => {
                    format!("≥ {}", units::count(*executions))
                }
                (executions, _) => figure(executions.copied()),
            },
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
    let more = shown.count().saturating_sub(MAX_ROWS);
    if more > 0 {
        out.note(&format!("and {} more", units::plural(more, "module")));
    }
}

/// Recorded accesses by module, and records for which there was no room.
fn recorded(out: &mut Out, modules: &[CheckedModule], records: &CheckedRecords) {
    let how = match (records.period, records.burst_ms, records.burst_every_ms) {
        (Some(period), _, _) => format!("one in about {} of each", units::count(u64::from(period))),
        (None, Some(length), Some(every)) => format!("bursts of {length} ms every {every} ms"),
        _ => String::new(),
    };
    out.heading("recorded accesses", &how);
    let mut table = Table::new()
        .words("module")
        .figures("timed")
        .figures("untimed")
        .figures("median ticks")
        .figures("p90")
        .figures("lines");
    let mut shown: Vec<_> = modules
        .iter()
        .filter_map(|module| Some((module, module.samples.as_ref()?)))
        .filter(|(_, samples)| samples.timed + samples.untimed > 0)
        .collect();
    shown.sort_by_key(|(_, samples)| std::cmp::Reverse(samples.timed + samples.untimed));
    let ticks = |ticks: &Outcome<u32>| figure(ticks.known().map(|ticks| u64::from(*ticks)));
    for (module, samples) in shown.iter().take(MAX_ROWS) {
        let lines = module.lines.as_ref().and_then(Outcome::known);
        // The table above has the whole path.
        let name = module.path.rsplit('/').next().unwrap_or_default();
        table.row([
            name.to_owned(),
            units::count(samples.timed),
            units::count(samples.untimed),
            ticks(&samples.median_ticks),
            ticks(&samples.p90_ticks),
            figure(lines.copied()),
        ]);
    }
    if table.is_empty() {
        out.line("none");
    } else {
        out.table(&table);
    }
    if records.lost > 0 {
        let lost = units::count(records.lost);
        let all = units::count(records.recorded.saturating_add(records.lost));
        out.note(&format!(
            "{lost} of {all} found no room and are not among them"
        ));
    }
}

fn figure(value: Option<u64>) -> String {
    value.map_or_else(|| "–".to_owned(), units::count)
}

fn share(counts: &PatchCounts) -> String {
    if counts.accesses == 0 {
        return "–".to_owned();
    }
    let share = counts.patched as f64 / counts.accesses as f64;
    // Round down: a share of 99.96 % must not be shown as 100 %.
    format!("{:.1} %", (share * 1000.0).floor() / 10.0)
}

fn reasons(out: &mut Out, refused: &BTreeMap<&str, u64>) {
    if refused.is_empty() {
        return;
    }
    let mut sorted: Vec<_> = refused.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let words: Vec<String> = sorted
        .into_iter()
        .map(|(reason, count)| format!("{reason} {}", units::count(*count)))
        .collect();
    out.note(&format!("refused: {}", words.join(", ")));
}

/// Formats a plan: totals and the functions with most refusals, or the listing of requested functions.
#[must_use]
pub fn rewrite_plan(plan: &RewritePlan, style: Style) -> String {
    let mut out = Out::new(style);
    out.heading(&plan.path, &plan.identity);
    let listing = plan
        .functions
        .iter()
        .any(|function| !function.instructions.is_empty());
    if listing {
        for function in &plan.functions {
            self::listing(&mut out, function);
        }
        return out.finish();
    }
    totals(&mut out, plan);
    let worst: Vec<&PlannedFunction> = plan
        .functions
        .iter()
        .filter(|function| function.counts.patched < function.counts.accesses)
        .collect();
    if worst.is_empty() {
        return out.finish();
    }
    out.heading("functions with most refusals", "");
    let mut table = Table::new()
        .words("address")
        .words("function")
        .figures("accesses")
        .figures("refused")
        .words("most often for");
    for function in worst.iter().take(MAX_ROWS) {
        let counts = &function.counts;
        let most = counts.refused.iter().max_by_key(|(_, count)| **count);
        table.row([
            format!("{:#x}", function.address),
            function.name.clone(),
            units::count(counts.accesses),
            units::count(counts.accesses - counts.patched),
            most.map_or_else(String::new, |(reason, _)| reason.clone()),
        ]);
    }
    out.table(&table);
    if worst.len() > MAX_ROWS {
        let more = units::plural(worst.len() - MAX_ROWS, "function");
        out.note(&format!("and {more} more; --json has them all"));
    }
    out.finish()
}

fn totals(out: &mut Out, plan: &RewritePlan) {
    let counts = &plan.counts;
    out.line(&format!(
        "{} with {}; {} of them with branches that are not all known{}",
        units::plural(plan.functions_found as usize, "function"),
        units::plural(plan.blocks as usize, "block"),
        units::count(plan.unresolved),
        if plan.tables_resolved {
            ""
        } else {
            ", since jump tables were not resolved"
        },
    ));
    out.line(&format!(
        "{} and {}: {} patchable ({})",
        units::plural(counts.loads as usize, "load"),
        units::plural(counts.stores as usize, "store"),
        units::count(counts.patched),
        share(counts),
    ));
    let refused = counts
        .refused
        .iter()
        .map(|(reason, count)| (reason.as_str(), *count));
    reasons(out, &refused.collect());
}

fn listing(out: &mut Out, function: &PlannedFunction) {
    let counts = &function.counts;
    out.heading(
        &function.name,
        &format!(
            "{:#x}, {} bytes, {}, {} of {} accesses patched",
            function.address,
            function.size_bytes,
            units::plural(function.blocks as usize, "block"),
            counts.patched,
            counts.accesses,
        ),
    );
    if let Some(unresolved) = &function.unresolved {
        out.warning(&format!("not every branch into it is known: {unresolved}"));
    }
    let mut block = None;
    let mut lines = Vec::new();
    let width = out.width();
    for instruction in &function.instructions {
        if block != Some(instruction.block) {
            block = Some(instruction.block);
            lines.push(format!("block {}", instruction.block));
        }
        let mark = mark(instruction);
        let head = format!("{:>8x} {mark:<1} ", instruction.address);
        let text = format!("{head}{:<34} ", instruction.text);
        let live = live(instruction);
        if text.chars().count() + live.chars().count() <= width {
            lines.push(format!("{text}{live}"));
        } else {
            lines.push(text.trim_end().to_owned());
            let options = textwrap::Options::new(width)
                .initial_indent("             ")
                .subsequent_indent("             ")
                .word_splitter(textwrap::WordSplitter::NoHyphenation);
            lines.extend(
                textwrap::wrap(&live, options)
                    .into_iter()
                    .map(std::borrow::Cow::into_owned),
            );
        }
        if let Some(reason) = &instruction.refused {
            lines.push(format!("             refused: {reason}"));
        }
    }
    out.verbatim(&lines);
    out.note(
        "P: patched; +: runs in a trampoline with its neighbour; !: refused. Behind each \
         instruction what is alive before it.",
    );
}

/// Live registers and flags before an instruction, or the dead ones if that is shorter.
fn live(instruction: &PlannedInstruction) -> String {
    let (live, dead) = (&instruction.live, &instruction.dead);
    match (live.is_empty(), dead.is_empty()) {
        (false, true) => "everything".to_owned(),
        (true, _) => "nothing".to_owned(),
        (false, false) => {
            let but = format!("all but {dead}");
            if but.len() < live.len() {
                but
            } else {
                live.clone()
            }
        }
    }
}

const fn mark(instruction: &PlannedInstruction) -> &'static str {
    if instruction.patched {
        "P"
    } else if instruction.refused.is_some() {
        "!"
    } else if instruction.group.is_some() {
        "+"
    } else {
        ""
    }
}
