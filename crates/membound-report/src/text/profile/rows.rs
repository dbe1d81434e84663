//! Groupings as tables on a terminal: code, objects, threads and levels.

use membound_types::{CodeRow, ObjectClass, ObjectRow, Profile, Share};

use crate::Sort;
use crate::facts::run;
use crate::facts::run::NONE;
use crate::facts::sorted::sorted;
use crate::text::out::Out;
use crate::text::table::{Align, Table};
use crate::units;

/// Most rows of a table; the CSV has all.
const MAX_ROWS: usize = 40;
/// Most frames of an allocation's call chain.
const MAX_FRAMES: usize = 6;
/// Most objects that are shown with offsets.
const MAX_OBJECTS_WITH_OFFSETS: usize = 5;
const MAX_OFFSETS: usize = 6;
/// Columns that an object's name keeps before other columns are dropped: a line and a size.
const MIN_OBJECT_COLUMNS: usize = 24;
/// Share of CPU time below which an object is not shown.
const MIN_SHARE: f64 = 0.0005;

/// Kind of code that rows stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Function,
    Line,
    Instruction,
}

impl Code {
    const fn table(self) -> &'static str {
        match self {
            Self::Function => "functions",
            Self::Line => "lines",
            Self::Instruction => "instructions",
        }
    }
}

pub(super) fn code(out: &mut Out, profile: &Profile, by: Code, sort: Sort) {
    let rows = match by {
        Code::Function => &profile.functions,
        Code::Line => &profile.lines,
        Code::Instruction => &profile.instructions,
    };
    let mut table = shares(Table::new());
    table = match by {
        Code::Function => table.middle("function").column("module", Align::Middle, 8),
        Code::Line => table.middle("line").column("function", Align::Middle, 1),
        Code::Instruction => table
            .middle("instruction")
            .figures("at")
            .column("line", Align::Middle, 1)
            .column("function", Align::Middle, 6),
    };
    for row in sorted(rows, sort).into_iter().take(MAX_ROWS) {
        let mut cells = figures(&row.share);
        cells.push(row.name.clone());
        cells.extend(cells_after_name(row, by));
        table.row(cells);
    }
    title(
        out,
        profile,
        &sorted_title(&format!("By {}", by.table().trim_end_matches('s')), sort),
    );
    finish(out, profile, &table, by.table(), rows.len());
}

/// Cells after the name.
fn cells_after_name(row: &CodeRow, by: Code) -> Vec<String> {
    match by {
        Code::Function => vec![row.module.clone()],
        Code::Line => vec![run::of_whom(row)],
        Code::Instruction => vec![
            row.address
                .map_or_else(String::new, |address| format!("{address:x}")),
            run::short_place(row.file.as_deref(), row.line).unwrap_or_default(),
            row.function.clone(),
        ],
    }
}

pub(super) fn objects(out: &mut Out, profile: &Profile, sort: Sort) {
    // Accesses, misses and latency are what readers of objects look for, so these columns are dropped last.
    let mut table = Table::new()
        .figures("stalled")
        .column("interval", Align::Right, 7)
        .column("time", Align::Right, 5)
        .column("of", Align::Right, 4)
        .column("latency", Align::Right, 1)
        .column("loads", Align::Right, 2)
        .column("stores", Align::Right, 3)
        .column("misses", Align::Right, 2)
        .column("sharing", Align::Left, 1)
        .column("size", Align::Right, 6)
        .column("blocks", Align::Right, 8)
        .column("kind", Align::Left, 9)
        .name("object", MIN_OBJECT_COLUMNS);
    let is_shown = |row: &&ObjectRow| {
        let share = &row.share;
        let sorted_by = crate::facts::sorted::figure(*row, sort);
        share.time_fraction >= MIN_SHARE
            || share.stall_fraction >= MIN_SHARE
            || (sort != Sort::Stall && sorted_by.is_some_and(|figure| figure > 0.0))
    };
    let shown: Vec<&ObjectRow> = sorted(&profile.objects, sort)
        .into_iter()
        .filter(is_shown)
        .collect();
    for row in shown.iter().take(MAX_ROWS) {
        let known = row.kind != ObjectClass::Unknown;
        let mut cells = brief_figures(&row.share);
        cells.extend([
            if row.false_sharing { "false" } else { "" }.to_owned(),
            if known {
                units::bytes(row.size_bytes)
            } else {
                NONE.to_owned()
            },
            if known {
                units::count(row.blocks)
            } else {
                NONE.to_owned()
            },
            row.kind.to_string(),
            row.name.clone(),
        ]);
        table.row(cells);
    }
    title(out, profile, &sorted_title("By object", sort));
    finish(out, profile, &table, "objects", shown.len());
    let inside = shown
        .iter()
        .filter(|row| row.share.stall_fraction >= MIN_SHARE)
        .take(MAX_OBJECTS_WITH_OFFSETS);
    for row in inside {
        inside_object(out, row);
    }
}

/// The origin of an object, the offsets at which it stalls, and the code that waits for it.
fn inside_object(out: &mut Out, row: &ObjectRow) {
    out.blank();
    out.heading(&row.name, &run::lifetime(row));
    // Begin at the line that names the object: the frames before it are a language library's.
    for frame in run::naming_chain(row).iter().take(MAX_FRAMES) {
        let place = run::place(frame.file.as_deref(), frame.line);
        out.note(&format!(
            "allocated in {} {}",
            frame.function,
            place.unwrap_or_else(|| frame.module.clone())
        ));
    }
    let mut offsets = Table::new()
        .figures("  offset")
        .figures("of its stall")
        .figures("accesses")
        .figures("latency");
    for offset in row.offsets.iter().take(MAX_OFFSETS) {
        offsets.row([
            run::offset(offset),
            units::percent(offset.stall_fraction),
            units::count(offset.accesses),
            run::latency(offset.avg_latency_ns),
        ]);
    }
    if !offsets.is_empty() {
        out.table(&offsets);
    }
    let code: Vec<String> = row
        .code
        .iter()
        .take(MAX_OFFSETS)
        .map(|share| format!("{} {}", share.name, units::percent(share.fraction)))
        .collect();
    if !code.is_empty() {
        out.note(&format!("waited for at {}", code.join(", ")));
    }
}

pub(super) fn threads(out: &mut Out, profile: &Profile, sort: Sort) {
    let mut table = shares(Table::new())
        .column("idle", Align::Right, 6)
        .column("lived", Align::Right, 7)
        .figures("tid")
        .middle("thread");
    for row in sorted(&profile.threads, sort).into_iter().take(MAX_ROWS) {
        let mut cells = figures(&row.share);
        cells.extend([
            units::seconds(row.idle_s),
            units::seconds(row.lifetime_s),
            row.tid.to_string(),
            row.name.clone(),
        ]);
        table.row(cells);
    }
    title(out, profile, &sorted_title("By thread", sort));
    finish(out, profile, &table, "threads", profile.threads.len());
}

pub(super) fn levels(out: &mut Out, profile: &Profile) {
    let mut table = Table::new()
        .words("level")
        .figures("stalled")
        .figures("interval")
        .figures("accesses")
        .figures("latency here");
    for row in &profile.levels {
        table.row([
            row.name.clone(),
            units::percent(row.stall_fraction),
            units::percent_interval(row.stall_low, row.stall_high),
            row.accesses_fraction
                .map_or_else(String::new, units::percent),
            row.latency_ns.map_or_else(String::new, units::ns),
        ]);
    }
    title(out, profile, "By level");
    finish(out, profile, &table, "levels", profile.levels.len());
}

/// Title of a table, with the sort order if it is not sorted by stall.
pub(super) fn sorted_title(title: &str, sort: Sort) -> String {
    match sort {
        Sort::Stall => title.to_owned(),
        sort => format!("{title}, sorted by {sort}"),
    }
}

pub(super) fn title(out: &mut Out, profile: &Profile, title: &str) {
    out.heading(
        title,
        &format!(
            "shares of {} CPU time; memory bound {}",
            units::seconds(profile.time.cpu_s),
            units::percent(profile.memory_bound.fraction)
        ),
    );
    if let Some(selection) = run::selection(profile) {
        out.warning(&format!("only {selection}"));
    }
    if profile.incomplete {
        out.warning("incomplete: the run was cut short");
    }
}

/// Adds the columns that every grouping has.
fn shares(table: Table) -> Table {
    table
        .figures("stalled")
        .column("interval", Align::Right, 4)
        .column("time", Align::Right, 2)
        .column("of", Align::Right, 3)
        .column("latency", Align::Right, 2)
        .column("loads", Align::Right, 9)
        .column("stores", Align::Right, 9)
        .column("misses", Align::Right, 9)
}

fn figures(share: &Share) -> Vec<String> {
    figures_with(share, units::count_in_interval)
}

/// Like [`figures`], for narrow tables: of executions only the number, or the interval where that is wide.
pub(super) fn brief_figures(share: &Share) -> Vec<String> {
    figures_with(share, units::brief_count)
}

/// `executions` formats a number of executions and the ends of its interval.
fn figures_with(
    share: &Share,
    executions: fn(f64, Option<f64>, Option<f64>) -> String,
) -> Vec<String> {
    let executions = |count: Option<f64>, low, high| {
        count.map_or_else(String::new, |count| executions(count, low, high))
    };
    vec![
        run::flagged_percent(share.stall_fraction, share.flagged),
        units::percent_interval(share.stall_low, share.stall_high),
        units::percent(share.time_fraction),
        run::main_level(&share.levels)
            .unwrap_or_default()
            .to_owned(),
        run::latency(share.avg_latency_ns),
        executions(share.loads, share.loads_low, share.loads_high),
        executions(share.stores, share.stores_low, share.stores_high),
        executions(
            share.llc_misses,
            share.llc_misses_low,
            share.llc_misses_high,
        ),
    ]
}

pub(super) fn finish(out: &mut Out, profile: &Profile, table: &Table, name: &str, rows: usize) {
    if table.is_empty() {
        out.line("nothing was seen");
    } else {
        out.table(table);
    }
    if rows > MAX_ROWS {
        out.note(&format!("{} more; --format csv has all", rows - MAX_ROWS));
    }
    if table.has(NONE) {
        out.note("– not known: latency where no access was timed, size of what is no object");
    }
    if table.has_column("sharing") {
        out.note("sharing: threads fight over lines of it without sharing data; see the summary");
    }
    if table.has_column("misses") {
        out.note("misses: loads and stores that the last cache did not hold");
    }
    if table.ends_in('!') {
        out.note("! past a threshold: worth a look");
    }
    for gap in profile.missing.iter().filter(|gap| gap.table == name) {
        out.note(&run::gap(gap));
    }
}
