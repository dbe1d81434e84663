//! Summary of a profile on a terminal: how much stall, where, on which objects, advice, and evidence.

use std::collections::BTreeMap;

use membound_types::{Insight, Outcome, Profile, SharedLine};

use crate::facts::{nodes, run};
use crate::text::bar;
use crate::text::out::Out;
use crate::text::table::{Align, Table};
use crate::units;

/// Most rows of the tables in the summary; the groupings have all.
const MAX_ROWS: usize = 5;
const MAX_SHARED_LINES: usize = 3;
/// Columns that an object's name keeps before other columns are dropped: a line, and its caller.
const MIN_OBJECT_COLUMNS: usize = 36;
/// Most gaps of one table that are written in full.
const MAX_GAPS_PER_TABLE: usize = 2;
/// Smallest share that is shown.
const MIN_SHARE: f64 = 0.0005;
/// Smallest share of a row in the summary.
const MIN_ROW_SHARE: f64 = 0.005;

pub(super) fn write(out: &mut Out, profile: &Profile) {
    header(out, profile);
    out.blank();
    write_bound_and_levels(out, profile);
    findings(out, profile);
    write_hottest_code(out, profile);
    super::hardware::write(out, profile);
    objects(out, profile);
    sharing(out, profile, "False sharing", &profile.false_sharing);
    sharing(out, profile, "True sharing", &profile.true_sharing);
    placement(out, profile);
    traffic(out, profile);
    if let Some(memory) = run::memory(profile) {
        out.line(&memory);
    }
    elsewhere(out, profile);
    out.blank();
    out.note(&format!("{}.", run::evidence_and_cost(profile).join("; ")));
    missing(out, profile, None);
}

fn header(out: &mut Out, profile: &Profile) {
    let info = &profile.run;
    let mut words = vec![
        format!("{} elapsed", units::seconds(profile.elapsed_s)),
        units::plural_of(info.processes, "process", "processes"),
        units::plural(info.threads as usize, "thread"),
        info.host.clone(),
        info.cpu.clone(),
    ];
    words.extend(run::ending(info));
    words.retain(|word| !word.is_empty());
    out.heading(&run::command(info), &words.join(" · "));
    if let Some(selection) = run::selection(profile) {
        out.warning(&format!(
            "only {selection}: everything here is of this part of the run"
        ));
    }
    if profile.incomplete {
        out.warning("incomplete: the run was cut short; figures cover only the recorded part");
    }
}

/// Writes `memory bound 42 % [38, 46] of 3.1 s CPU`, a bar by level, and the average latency.
fn write_bound_and_levels(out: &mut Out, profile: &Profile) {
    let bound = &profile.memory_bound;
    if profile.run.samples == 0 {
        out.warning(if profile.hardware.is_some() {
            "no sample carries CPU time, so the time cannot be attributed"
        } else {
            "no sample was taken, so the time cannot be attributed"
        });
        return;
    }
    let latency = match &profile.latency {
        Outcome::Known(latency) => format!(
            "average latency {} ({})",
            units::ns(latency.ns),
            units::cycles(latency.cycles)
        ),
        Outcome::Missing { not_measured } => {
            format!("latency {}", crate::facts::missing_text(not_measured))
        }
    };
    out.heading(
        &format!("memory bound {}", run::bound_share(bound)),
        &format!("of {} CPU; {latency}", units::seconds(profile.time.cpu_s)),
    );
    let parts: Vec<(&str, f64)> = run::level_parts(bound)
        .into_iter()
        .chain([(run::UNATTRIBUTED, bound.unseen)])
        .filter(|part| part.1 > MIN_SHARE)
        .collect();
    let idle = if profile.time.idle_s > 0.0 {
        format!(
            "(threads idle for {} in all)",
            units::seconds(profile.time.idle_s)
        )
    } else {
        String::new()
    };
    let other = (1.0 - bound.fraction - bound.unseen).max(0.0);
    bar::write(out, &parts, ("other", other), &idle);
    if let Some(unattributed) = run::unattributed(profile) {
        out.note(&unattributed);
    }
}

fn findings(out: &mut Out, profile: &Profile) {
    if profile.findings.is_empty() {
        return;
    }
    out.blank();
    out.heading("What to do", "");
    for (index, finding) in profile.findings.iter().enumerate() {
        out.item(index + 1, &sentence(finding));
    }
}

/// Finding, advice and predicted gain in one text.
fn sentence(finding: &Insight) -> String {
    let mut text = finding.text.clone();
    if !finding.advice.is_empty() {
        text.push(' ');
        text.push_str(&finding.advice);
    }
    if let Some(gain) = finding.predicted_gain {
        text.push_str(&format!(" ({})", run::gain(&gain)));
    }
    text
}

fn write_hottest_code(out: &mut Out, profile: &Profile) {
    // Without lines (no debug information) show functions.
    let (title, rows) = if profile.lines.is_empty() {
        ("function", &profile.functions)
    } else {
        ("line", &profile.lines)
    };
    let mut table = Table::new()
        .figures("stalled")
        .column("of", Align::Right, 3)
        .column("latency", Align::Right, 2)
        .middle(title)
        .column(
            if title == "line" {
                "function"
            } else {
                "module"
            },
            Align::Middle,
            1,
        );
    let shown = rows
        .iter()
        .filter(|row| row.share.stall_fraction > MIN_ROW_SHARE);
    for row in shown.take(MAX_ROWS) {
        table.row([
            run::flagged_percent(row.share.stall_fraction, row.share.flagged),
            run::main_level(&row.share.levels)
                .unwrap_or_default()
                .to_owned(),
            run::latency(row.share.avg_latency_ns),
            row.name.clone(),
            if title == "line" {
                run::of_whom(row)
            } else {
                row.module.clone()
            },
        ]);
    }
    if !table.is_empty() {
        out.blank();
        out.heading("Where it waits", "share of CPU time stalled");
        out.table(&table);
    }
}

fn objects(out: &mut Out, profile: &Profile) {
    let mut table = Table::new()
        .figures("stalled")
        .column("of", Align::Right, 4)
        .column("latency", Align::Right, 3)
        .figures("size")
        .name("object", MIN_OBJECT_COLUMNS)
        .column("allocated by", Align::Middle, 5);
    let shown = profile
        .objects
        .iter()
        .filter(|row| row.share.stall_fraction > MIN_ROW_SHARE);
    for row in shown.take(MAX_ROWS) {
        table.row([
            run::flagged_percent(row.share.stall_fraction, row.share.flagged),
            run::main_level(&row.share.levels)
                .unwrap_or_default()
                .to_owned(),
            run::latency(row.share.avg_latency_ns),
            run::size(row),
            row.name.clone(),
            run::allocated_by(row).unwrap_or_default().to_owned(),
        ]);
    }
    if !table.is_empty() {
        out.blank();
        out.heading("On which object", "");
        out.table(&table);
    }
    missing(out, profile, Some("objects"));
}

fn sharing(out: &mut Out, profile: &Profile, title: &str, lines: &[SharedLine]) {
    if lines.is_empty() {
        return;
    }
    out.blank();
    out.heading(title, &units::plural(lines.len(), "line"));
    for line in lines.iter().take(MAX_SHARED_LINES) {
        // The findings above contain the advice already, unless there were too many to be shown.
        let has_advice = (profile.findings.iter()).any(|finding| finding.advice == line.advice);
        if has_advice {
            let confirmed = run::shared_confirmed(line);
            out.line(&format!("{}{confirmed}", run::shared_where(line)));
        } else {
            out.line(&run::shared(line));
        }
        let threads: Vec<String> = line.threads.iter().map(run::shared_by).collect();
        out.note(&threads.join("; "));
        if !line.sites.is_empty() {
            out.note(&format!("at {}", run::shared_sites(line)));
        }
    }
    if lines.len() > MAX_SHARED_LINES {
        out.note(&format!(
            "{} more; --html and --format json have all",
            lines.len() - MAX_SHARED_LINES
        ));
    }
}

fn placement(out: &mut Out, profile: &Profile) {
    let Some(view) = profile.numa.known() else {
        return;
    };
    out.blank();
    out.heading(
        "Nodes",
        &format!(
            "{} of the accesses go to the thread's own node",
            nodes::local(view.local_fraction, view.local_interval)
        ),
    );
    for row in view.objects.iter().filter(|row| !row.advice.is_empty()) {
        out.note(&format!(
            "{}: {} local, {} of all remote accesses. {}",
            row.name,
            nodes::local(row.local_fraction, row.local_interval),
            units::percent(row.remote_share),
            row.advice
        ));
    }
}

fn traffic(out: &mut Out, profile: &Profile) {
    if profile.bandwidth.is_empty() {
        return;
    }
    out.blank();
    for domain in &profile.bandwidth {
        out.line(&run::traffic(domain));
    }
}

fn elsewhere(out: &mut Out, profile: &Profile) {
    if profile.elsewhere.is_empty() {
        return;
    }
    out.blank();
    out.heading("On other machines", "modelled");
    for other in &profile.elsewhere {
        out.note(&run::elsewhere(other));
        out.note(&run::computing(other));
    }
}

/// Writes missing data: of one table, or of all that the summary does not show.
fn missing(out: &mut Out, profile: &Profile, table: Option<&str>) {
    let mut gaps_of_table: BTreeMap<&str, usize> = BTreeMap::new();
    for gap in &profile.missing {
        let here = match table {
            Some(table) => gap.table == table,
            None => gap.table != "objects",
        };
        if here {
            let of_table = gaps_of_table.entry(&gap.table).or_default();
            *of_table += 1;
            if *of_table <= MAX_GAPS_PER_TABLE {
                out.note(&run::gap(gap));
            }
        }
    }
    for (table, of_table) in gaps_of_table
        .into_iter()
        .filter(|(_, of_table)| *of_table > MAX_GAPS_PER_TABLE)
    {
        out.note(&format!(
            "{table}: {} more like these; --html and --format json have all",
            of_table - MAX_GAPS_PER_TABLE
        ));
    }
}
