//! Figures of rows in equal periods of a run, so that a page can update its tables when the reader drags a
//! span.
//!
//! Each period is analysed like a selected span, so that its figures equal those of `report --span`.

use std::collections::HashMap;

use membound_run::RunData;
use membound_types::{CodeRow, Period, PeriodRow, Profile, Share};

use crate::context::Context;
use crate::listing::Texts;
use crate::objects::ObjectsWithRows;
use crate::selection;
use crate::span::{Selection, Span};
use crate::{Options, code, levels, objects};

/// Most periods of a run; each costs an analysis of its part.
const MAX_PERIODS: u64 = 24;

/// Fewest samples per period for its rows to be meaningful.
const SAMPLES_A_PERIOD: u64 = 100;

/// Most samples, timed accesses and windows over all periods together. A larger run gets fewer periods,
/// which bounds the time to make a page.
const MAX_RECORDS: u64 = 24_000_000;

/// Computes the periods of `run`, or of the part that `options` selects.
///
/// `profile` is the analysis of the same whole: rows are given as positions in its tables. Empty if the run
/// has too few samples to be divided.
#[must_use]
pub fn periods(run: &RunData, options: &Options<'_>, profile: &Profile) -> Vec<Period> {
    let (from_ns, to_ns) = options
        .selection
        .and_then(|selection| selection.span_ns)
        .unwrap_or((0, run.meta.elapsed_ns));
    let to_ns = to_ns.min(run.meta.elapsed_ns);
    let count = number(run, Span { from_ns, to_ns });
    if count < 2 {
        return Vec::new();
    }
    let rows = Positions::of(profile);
    let edge = |index: u64| {
        from_ns + (u128::from(to_ns - from_ns) * u128::from(index) / u128::from(count)) as u64
    };
    (0..count)
        .map(|index| period(run, options, &rows, (edge(index), edge(index + 1))))
        .collect()
}

/// Number of periods for `run`.
fn number(run: &RunData, span: Span) -> u64 {
    let samples = run.samples.iter().filter(|it| span.has(it.t_ns)).count() as u64;
    let records = run.samples.len() + run.accesses.len() + run.executions.len();
    MAX_PERIODS
        .min(samples / SAMPLES_A_PERIOD)
        .min(MAX_RECORDS / (records as u64).max(1))
        .min(span.to_ns.saturating_sub(span.from_ns))
}

fn period(
    run: &RunData,
    options: &Options<'_>,
    rows: &Positions<'_>,
    span_ns: (u64, u64),
) -> Period {
    let threads = options
        .selection
        .and_then(|selection| selection.threads.clone());
    let selection = Selection {
        span_ns: Some(span_ns),
        threads,
    };
    let span = Span::of(run, Some(&selection));
    let part = selection::within(run, span);
    let mut context = Context::new(run, &part, span, options);
    if let Some(threads) = selection.threads.as_deref() {
        selection::select_threads(&mut context, threads);
    }
    let texts = Texts::new(&part, &context.places);
    let threads = levels::threads(&context).into_iter();
    let objects = objects::objects(&context, ObjectsWithRows::Accessed).into_iter();
    Period {
        from_s: span.from_ns as f64 * 1e-9,
        to_s: span.to_ns as f64 * 1e-9,
        functions: code_rows(&rows.functions, code::functions(&context)),
        lines: code_rows(&rows.lines, code::lines(&context)),
        instructions: code_rows(&rows.instructions, code::instructions(&context, &texts)),
        objects: placed(
            objects.map(|(_, row)| (rows.objects.get(row.name.as_str()).copied(), row.share)),
        ),
        threads: placed(
            threads.map(|(_, row)| (rows.threads.get(&(row.pid, row.tid)).copied(), row.share)),
        ),
    }
}

/// Fields that identify a row of code in its table.
type CodeKey<'a> = (&'a str, &'a str, Option<&'a str>, Option<u32>, Option<u64>);

fn code_key(row: &CodeRow) -> CodeKey<'_> {
    let file = row.file.as_deref();
    (&row.name, &row.module, file, row.line, row.address)
}

/// Positions of rows in the tables of a profile.
struct Positions<'a> {
    functions: HashMap<CodeKey<'a>, u32>,
    lines: HashMap<CodeKey<'a>, u32>,
    instructions: HashMap<CodeKey<'a>, u32>,
    objects: HashMap<&'a str, u32>,
    threads: HashMap<(u32, u32), u32>,
}

impl<'a> Positions<'a> {
    fn of(profile: &'a Profile) -> Self {
        fn code(rows: &[CodeRow]) -> HashMap<CodeKey<'_>, u32> {
            positions(rows.iter().map(code_key))
        }
        Self {
            functions: code(&profile.functions),
            lines: code(&profile.lines),
            instructions: code(&profile.instructions),
            objects: positions(profile.objects.iter().map(|row| row.name.as_str())),
            threads: positions(profile.threads.iter().map(|row| (row.pid, row.tid))),
        }
    }
}

/// Positions by key; of equal keys the first, which has most of the time.
fn positions<K: Eq + std::hash::Hash>(keys: impl Iterator<Item = K>) -> HashMap<K, u32> {
    let mut found = HashMap::new();
    for (at, key) in keys.enumerate() {
        found.entry(key).or_insert(at as u32);
    }
    found
}

fn code_rows(positions: &HashMap<CodeKey<'_>, u32>, rows: Vec<CodeRow>) -> Vec<PeriodRow> {
    placed(rows.into_iter().map(|row| {
        let at = positions.get(&code_key(&row)).copied();
        (at, row.share)
    }))
}

/// Rows of the whole run that have counts or latencies in addition to their time.
fn placed(rows: impl Iterator<Item = (Option<u32>, Share)>) -> Vec<PeriodRow> {
    rows.filter_map(|(at, share)| Some(PeriodRow { row: at?, share }))
        .filter(|row| {
            let share = &row.share;
            share.loads.is_some() || share.stores.is_some() || share.avg_latency_ns.is_some()
        })
        .collect()
}
