//! Table of samples, one per row, which Arrow and Parquet files contain.
//!
//! Each text is stored once and referred to by rows: a run has few names and call chains, and many samples.

use std::collections::HashMap;

use indexmap::IndexSet;
use membound_types::{Detail, DetailAccess, DetailSample, Profile};

use super::super::chains::{Chains, Sum, nanoseconds};
use super::super::folded;
use crate::facts::run;
use crate::units::positive;

/// Error while writing a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Arrow's library rejected the table.
    #[error("cannot write the samples as Arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// Parquet's library rejected the table.
    #[error("cannot write the samples as Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
}

/// Distinct texts of a column, and the index of each row's text.
#[derive(Default)]
pub(super) struct Texts {
    pub(super) values: IndexSet<String>,
    pub(super) keys: Vec<Option<i32>>,
}

/// Values of a column.
pub(super) enum Values {
    /// Times in nanoseconds.
    Times(Vec<i64>),
    /// Unsigned 32-bit numbers.
    Numbers(Vec<Option<u32>>),
    /// Addresses and other unsigned 64-bit numbers.
    Addresses(Vec<Option<u64>>),
    Texts(Texts),
}

pub(super) struct Column {
    pub(super) name: &'static str,
    /// True if rows may lack a value.
    pub(super) optional: bool,
    pub(super) values: Values,
}

/// All columns in order; each has one entry per sample, sorted by time.
pub(super) fn columns(profile: &Profile, detail: &Detail) -> Vec<Column> {
    let rows = Rows {
        chains: Chains::new(detail),
        profile,
        rows: by_time(detail),
    };
    vec![
        rows.times("time_ns", |row| nanoseconds(row.t_s)),
        rows.times("cpu_ns", |row| row.sum().cpu_ns),
        rows.times("stall_ns", |row| row.sum().stall_ns),
        rows.texts("level", true, |rows, row| {
            let level = row.sample?.level.map(usize::from)?;
            Some(rows.profile.levels.get(level)?.name.clone())
        }),
        rows.texts("object", true, |rows, row| {
            let object = rows.profile.objects.get(row.sample?.object? as usize)?;
            Some(object.name.clone())
        }),
        rows.texts("thread", true, |rows, row| {
            let thread = rows.profile.threads.get(row.thread as usize)?;
            Some(thread.name.clone())
        }),
        rows.numbers("pid", |rows, row| {
            Some(rows.profile.threads.get(row.thread as usize)?.pid)
        }),
        rows.numbers("tid", |rows, row| {
            Some(rows.profile.threads.get(row.thread as usize)?.tid)
        }),
        rows.texts("function", true, |rows, row| {
            let frame = rows.chains.innermost(row.stack)?;
            Some(rows.chains.name(frame.function).to_owned())
        }),
        rows.texts("module", true, |rows, row| {
            let frame = rows.chains.innermost(row.stack)?;
            Some(rows.chains.name(frame.module).to_owned())
        }),
        rows.texts("file", true, |rows, row| {
            let file = rows.chains.innermost(row.stack)?.file?;
            Some(rows.chains.name(file).to_owned())
        }),
        rows.numbers("line", |rows, row| rows.chains.innermost(row.stack)?.line),
        rows.addresses("address", |rows, row| {
            Some(rows.chains.innermost(row.stack)?.address)
        }),
        rows.stacks(),
        rows.addresses("sampled_accesses", |_, row| Some(row.access?.events)),
        rows.texts("line_from", true, |rows, row| {
            let view = rows.profile.hardware.as_ref()?;
            Some(view.levels.get(row.access?.level as usize)?.name.clone())
        }),
        rows.numbers("latency_cycles", |_, row| row.access?.latency_cycles),
        rows.addresses("data_address", |_, row| row.access?.address),
    ]
}

/// Metadata of the file: names and values that describe the run.
pub(super) fn about(profile: &Profile) -> Vec<(String, String)> {
    let run = &profile.run;
    [
        ("membound.version", run.membound_version.clone()),
        ("membound.command", run::command(run)),
        ("membound.date", run.date.clone()),
        ("membound.host", run.host.clone()),
        ("membound.cpu", run.cpu.clone()),
        ("membound.timer", run.timer.clone()),
        (
            "membound.elapsed_ns",
            nanoseconds(profile.elapsed_s).to_string(),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// Row: a timer sample, or an access sampled by the processor, which represents no time.
#[derive(Clone, Copy)]
struct Row<'a> {
    t_s: f64,
    thread: u32,
    stack: u32,
    sample: Option<&'a DetailSample>,
    access: Option<&'a DetailAccess>,
}

impl Row<'_> {
    fn sum(&self) -> Sum {
        self.sample.map(Sum::of).unwrap_or_default()
    }
}

/// All rows, sorted by time.
fn by_time(detail: &Detail) -> Vec<Row<'_>> {
    let samples = detail.samples.iter().map(|sample| Row {
        t_s: sample.t_s,
        thread: sample.thread,
        stack: sample.stack,
        sample: Some(sample),
        access: None,
    });
    let accesses = detail.accesses.iter().map(|access| Row {
        t_s: access.t_s,
        thread: access.thread,
        stack: access.stack,
        sample: None,
        access: Some(access),
    });
    let mut rows: Vec<Row<'_>> = samples.chain(accesses).collect();
    rows.sort_by(|a, b| positive(a.t_s).total_cmp(&positive(b.t_s)));
    rows
}

/// Rows with the tables that they refer to.
struct Rows<'a> {
    chains: Chains<'a>,
    profile: &'a Profile,
    rows: Vec<Row<'a>>,
}

impl Rows<'_> {
    fn times(&self, name: &'static str, of: impl Fn(&Row<'_>) -> u64) -> Column {
        let times = self.rows.iter();
        let times = times.map(|row| i64::try_from(of(row)).unwrap_or(i64::MAX));
        Column {
            name,
            optional: false,
            values: Values::Times(times.collect()),
        }
    }

    fn numbers(&self, name: &'static str, of: impl Fn(&Self, &Row<'_>) -> Option<u32>) -> Column {
        let numbers = self.rows.iter().map(|row| of(self, row));
        Column {
            name,
            optional: true,
            values: Values::Numbers(numbers.collect()),
        }
    }

    fn addresses(&self, name: &'static str, of: impl Fn(&Self, &Row<'_>) -> Option<u64>) -> Column {
        let addresses = self.rows.iter().map(|row| of(self, row));
        Column {
            name,
            optional: true,
            values: Values::Addresses(addresses.collect()),
        }
    }

    fn texts(
        &self,
        name: &'static str,
        optional: bool,
        of: impl Fn(&Self, &Row<'_>) -> Option<String>,
    ) -> Column {
        let mut texts = Texts::default();
        for row in &self.rows {
            let key = of(self, row).map(|text| texts.key(text));
            texts.keys.push(key);
        }
        Column {
            name,
            optional,
            values: Values::Texts(texts),
        }
    }

    /// Column of call chains in the form of folded stacks.
    fn stacks(&self) -> Column {
        let mut texts = Texts::default();
        let mut keys: HashMap<u32, i32> = HashMap::new();
        for row in &self.rows {
            let key = *keys
                .entry(row.stack)
                .or_insert_with(|| texts.key(folded::line(self.chains, row.stack)));
            texts.keys.push(Some(key));
        }
        Column {
            name: "stack",
            optional: false,
            values: Values::Texts(texts),
        }
    }
}

impl Texts {
    fn key(&mut self, text: String) -> i32 {
        // A run has fewer samples than `i32::MAX`, and each needs at most one text.
        i32::try_from(self.values.insert_full(text).0).unwrap_or(i32::MAX)
    }
}
