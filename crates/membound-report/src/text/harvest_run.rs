//! Result of a harvest on a terminal: the answer first, then scavengers, distances, latencies, yields, and
//! missing data.

use membound_types::{HarvestRun, Scavenger};

use super::Style;
use super::bar;
use super::harvest::more;
use super::out::Out;
use super::table::{Align, Table};
use crate::facts::{durations, harvest_run as facts};
use crate::units;

/// Most rows of the table of scavengers, and most reasons below it.
const MAX_SCAVENGERS: usize = 16;
/// Columns that a command keeps before other columns are dropped.
const MIN_COMMAND_COLUMNS: usize = 26;
/// Most rows of the table of yields, and most reasons below it.
const MAX_SITE_ROWS: usize = 12;
/// Longest bar of a histogram, in columns.
const MAX_BAR_COLUMNS: usize = 36;

/// Formats a harvest: its gain and its cost.
#[must_use]
pub fn harvest_run(run: &HarvestRun, style: Style) -> String {
    let mut out = Out::new(style);
    header(&mut out, run);
    stall(&mut out, run);
    classes(&mut out, run);
    primary(&mut out, run);
    scavengers(&mut out, run);
    distances(&mut out, run);
    latency(&mut out, run);
    sites(&mut out, run);
    conditions(&mut out, run);
    missing(&mut out, run);
    out.finish()
}

fn header(out: &mut Out, run: &HarvestRun) {
    let mut words = vec![
        format!("{} elapsed", units::seconds(run.wall_s)),
        run.host.clone(),
        run.cpu.clone(),
        run.date.clone(),
    ];
    words.retain(|word| !word.is_empty());
    out.heading(
        &format!("membound: harvest, {}", facts::title(run)),
        &words.join(" · "),
    );
    if run.incomplete {
        out.warning(
            "incomplete: the run was cut short, or parts of it could not be observed; figures cover \
             only the observed part",
        );
    }
    if facts::exceeds_slowdown_limit(run) {
        out.warning("the primary was slowed down by more than was allowed");
    }
    out.blank();
    for sentence in facts::answer(run) {
        out.line(&sentence);
    }
}

/// Stall time before, harvested and left.
fn stall(out: &mut Out, run: &HarvestRun) {
    let parts = [
        ("before", run.stall.before_s),
        ("harvested", run.stall.harvested_s),
        ("left", run.stall.left_s),
    ];
    let words: Vec<String> = parts
        .iter()
        .filter_map(|(name, seconds)| Some(format!("{name} {}", units::seconds((*seconds)?))))
        .collect();
    if words.is_empty() {
        return;
    }
    out.heading("stall time", facts::BASIS.name());
    out.note(&words.join(", "));
    if let Some(shares) = facts::stall_shares(&run.stall) {
        let parts = [("harvested", shares.harvested)];
        bar::write(out, &parts, ("left", shares.left), "");
    }
}

fn classes(out: &mut Out, run: &HarvestRun) {
    let [class, before, harvested, by] = facts::CLASS_COLUMNS;
    let mut table = Table::new()
        .words(class)
        .figures(before)
        .figures(harvested)
        .words(by);
    for it in facts::classes(run) {
        table.row([
            it.name.to_owned(),
            facts::duration(it.before_s),
            facts::duration(it.harvested_s),
            it.by.to_owned(),
        ]);
    }
    if !table.is_empty() {
        out.heading("time that can be harvested", facts::BASIS.name());
        out.table(&table);
    }
}

fn primary(out: &mut Out, run: &HarvestRun) {
    let primary = &run.primary;
    if !facts::has_primary(run) {
        return;
    }
    out.heading("primary", &facts::exit(primary.exit_code, primary.signal));
    out.note(&format!(
        "{} CPU time of its own; {} gave way {}",
        units::seconds(primary.cpu_s),
        units::plural(primary.threads as usize, "thread"),
        units::plural(primary.yields as usize, "time"),
    ));
}

fn scavengers(out: &mut Out, run: &HarvestRun) {
    if run.scavengers.is_empty() {
        out.heading("scavengers", "none");
        return;
    }
    out.heading("scavengers", "");
    let mut table = Table::new()
        .name("command", MIN_COMMAND_COLUMNS)
        .words("state")
        .column("ended", Align::Left, 2)
        .figures("CPU")
        .column("in stalls", Align::Right, 1)
        .column("in waits", Align::Right, 3)
        .column("own thread", Align::Right, 3)
        .column("moves", Align::Right, 4)
        .column("calls", Align::Right, 5);
    for it in run.scavengers.iter().take(MAX_SCAVENGERS) {
        table.row([
            facts::scavenger(it, &run.scavengers),
            it.state.to_string(),
            facts::scavenger_end(it),
            facts::duration(it.cpu_s),
            facts::duration(it.in_stalls_s),
            units::seconds(it.in_waits_s),
            units::seconds(it.own_thread_s),
            units::short_count(it.turns as f64),
            units::short_count(it.calls as f64),
        ]);
    }
    out.table(&table);
    more(out, run.scavengers.len(), MAX_SCAVENGERS, "scavenger");
    if let Some(left) = facts::left_otherwise(run) {
        out.line(&left);
    }
    let has_reason = |it: &&Scavenger| it.reason.is_some();
    for it in run
        .scavengers
        .iter()
        .filter(has_reason)
        .take(MAX_SCAVENGERS)
    {
        out.warning(&format!(
            "{} {}: {}",
            facts::scavenger(it, &run.scavengers),
            it.state,
            it.reason.as_deref().unwrap_or_default()
        ));
    }
}

fn distances(out: &mut Out, run: &HarvestRun) {
    let distances = &run.distance_ns;
    let known: Vec<String> = [
        ("median", distances.p50),
        ("90 %", distances.p90),
        ("99 %", distances.p99),
        ("longest", distances.max),
    ]
    .into_iter()
    .filter_map(|(name, ns)| ns.map(|ns| format!("{name} {}", units::duration_ns(ns))))
    .collect();
    if known.is_empty() && distances.histogram.is_empty() {
        return;
    }
    out.heading(
        &facts::distance_title(run),
        &format!(
            "{} timed",
            units::plural(distances.timed as usize, "time slice")
        ),
    );
    if !known.is_empty() {
        out.note(&known.join(", "));
    }
    if let Some(exceeding) = facts::exceeding(run) {
        out.note(&exceeding);
    }
    if let Some(skipped) = facts::skipped(run) {
        out.note(&skipped);
    }
    let Some((low, high)) = durations::range([distances.histogram.as_slice()]) else {
        return;
    };
    let edges = durations::round_edges(low, high, distances.bound);
    let spans = durations::spread(&distances.histogram, &edges);
    let total: f64 = spans.iter().map(|span| span.count).sum();
    let most = spans.iter().map(|span| span.count).fold(0.0, f64::max);
    let mut table = Table::new()
        .figures("time")
        .figures("of the slices")
        .words("")
        .words("");
    for span in &spans {
        let is_beyond = distances.bound.is_some_and(|bound| span.from_ns >= bound);
        table.row([
            format!(
                "{}–{}",
                units::short_duration_ns(span.from_ns),
                units::short_duration_ns(span.to_ns)
            ),
            facts::some_percent(span.count / total),
            if is_beyond { "beyond" } else { "" }.to_owned(),
            bar::single(span.count, most, MAX_BAR_COLUMNS),
        ]);
    }
    out.table(&table);
}

fn latency(out: &mut Out, run: &HarvestRun) {
    let Some(latency) = &run.primary.latency else {
        return;
    };
    out.heading("latency of requests", &facts::latency_source(latency));
    let mut table = Table::new()
        .words("")
        .column("requests", Align::Right, 1)
        .figures(facts::LATENCY_COLUMNS[0]);
    for column in &facts::LATENCY_COLUMNS[1..] {
        table = table.figures(column);
    }
    for (name, latencies) in facts::latency_rows(run) {
        let values = facts::latency_values(latencies).map(units::duration_ns);
        table.row(
            [
                name.to_owned(),
                units::short_count(latencies.requests as f64),
            ]
            .into_iter()
            .chain(values),
        );
    }
    if let Some(changes) = facts::latency_changes(run) {
        table.row(
            ["change".to_owned(), String::new()]
                .into_iter()
                .chain(changes),
        );
    }
    out.table(&table);
    for note in facts::latency_notes(run) {
        out.note(&note);
    }
}

fn sites(out: &mut Out, run: &HarvestRun) {
    if run.sites.is_empty() {
        return;
    }
    out.heading("yields", &facts::sites(&run.sites));
    let mut table = Table::new()
        .words("state")
        .column("of", Align::Left, 1)
        .column("because of", Align::Left, 2)
        .figures("gain")
        .middle("before the instruction in");
    let sorted = facts::by_gain(&run.sites);
    for site in sorted.iter().take(MAX_SITE_ROWS) {
        table.row([
            site.state.to_string(),
            site.side.to_string(),
            facts::purpose(site.kind).to_owned(),
            facts::gain(site),
            facts::short_place(site),
        ]);
    }
    out.table(&table);
    more(out, run.sites.len(), MAX_SITE_ROWS, "yield");
    let reasons = sorted.iter().filter_map(|site| {
        let reason = site.reason.as_ref()?;
        Some(format!(
            "{}, {}: {reason}",
            facts::short_place(site),
            site.state
        ))
    });
    for reason in reasons.take(MAX_SITE_ROWS) {
        out.note(&reason);
    }
}

fn conditions(out: &mut Out, run: &HarvestRun) {
    out.heading("conditions", "");
    let (plans, others): (Vec<_>, Vec<_>) = facts::conditions(&run.options)
        .into_iter()
        .partition(|(name, _)| *name == facts::PLAN);
    // Keep a number and its unit on one line.
    let words = others.iter().map(|(name, value)| {
        let value = value.replace(' ', "\u{a0}");
        format!("{name}: {value}")
    });
    out.note(&words.collect::<Vec<_>>().join("; "));
    for (name, value) in &plans {
        out.note(&format!("{name} {value}"));
    }
    out.note(&facts::slots(&run.slots));
    if let Some(guard) = &run.guard {
        out.note(&format!("guard: {}", facts::guard(guard)));
    }
}

fn missing(out: &mut Out, run: &HarvestRun) {
    if !run.missing.is_empty() {
        out.heading("not measured", "");
        for gap in &run.missing {
            out.note(&facts::gap(gap));
        }
    }
    if !run.notes.is_empty() {
        out.heading("notes", "");
        for note in &run.notes {
            out.note(note);
        }
    }
}
