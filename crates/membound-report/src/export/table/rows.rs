//! Samples as a table, a row each: what the formats for columns, Arrow and Parquet, hold.
//!
//! Text is kept once and referred to by rows: a run has few names and call chains and many
//! samples.

use std::collections::HashMap;

use membound_types::{Detail, DetailSample, Profile};

use super::super::chains::{Chains, Sum, by_time, nanoseconds};
use super::super::folded;
use crate::facts::run;

/// A table that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Arrow's library refused it.
    #[error("cannot write the samples as Arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// Parquet's library refused it.
    #[error("cannot write the samples as Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
}

/// Text of a column, each once, and which of it every row has.
#[derive(Default)]
pub(super) struct Texts {
    pub(super) values: Vec<String>,
    pub(super) keys: Vec<Option<i32>>,
}

/// What a column holds.
pub(super) enum Values {
    /// Nanoseconds.
    Times(Vec<i64>),
    /// Numbers of 32 bits without a sign.
    Numbers(Vec<Option<u32>>),
    /// Addresses.
    Addresses(Vec<Option<u64>>),
    Texts(Texts),
}

pub(super) struct Column {
    pub(super) name: &'static str,
    /// Whether rows may have none.
    pub(super) optional: bool,
    pub(super) values: Values,
}

/// The columns in their order; all have a value, or none, for each sample, by time.
pub(super) fn columns(profile: &Profile, detail: &Detail) -> Vec<Column> {
    let rows = Rows {
        chains: Chains::new(detail),
        profile,
        samples: by_time(detail),
    };
    vec![
        rows.times("time_ns", |sample| nanoseconds(sample.t_s)),
        rows.times("cpu_ns", |sample| Sum::of(sample).cpu_ns),
        rows.times("stall_ns", |sample| Sum::of(sample).stall_ns),
        rows.texts("level", true, |rows, sample| {
            let level = sample.level.map(usize::from)?;
            Some(rows.profile.levels.get(level)?.name.clone())
        }),
        rows.texts("object", true, |rows, sample| {
            let object = rows.profile.objects.get(sample.object? as usize)?;
            Some(object.name.clone())
        }),
        rows.texts("thread", true, |rows, sample| {
            let thread = rows.profile.threads.get(sample.thread as usize)?;
            Some(thread.name.clone())
        }),
        rows.numbers("pid", |rows, sample| {
            Some(rows.profile.threads.get(sample.thread as usize)?.pid)
        }),
        rows.numbers("tid", |rows, sample| {
            Some(rows.profile.threads.get(sample.thread as usize)?.tid)
        }),
        rows.texts("function", true, |rows, sample| {
            let frame = rows.chains.innermost(sample.stack)?;
            Some(rows.chains.name(frame.function).to_owned())
        }),
        rows.texts("module", true, |rows, sample| {
            let frame = rows.chains.innermost(sample.stack)?;
            Some(rows.chains.name(frame.module).to_owned())
        }),
        rows.texts("file", true, |rows, sample| {
            let file = rows.chains.innermost(sample.stack)?.file?;
            Some(rows.chains.name(file).to_owned())
        }),
        rows.numbers("line", |rows, sample| {
            rows.chains.innermost(sample.stack)?.line
        }),
        rows.addresses(),
        rows.stacks(),
    ]
}

/// What a file says of the run as a whole: names and values.
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

/// Samples, and what they refer to.
struct Rows<'a> {
    chains: Chains<'a>,
    profile: &'a Profile,
    samples: Vec<&'a DetailSample>,
}

impl Rows<'_> {
    fn times(&self, name: &'static str, of: impl Fn(&DetailSample) -> u64) -> Column {
        let times = self.samples.iter();
        let times = times.map(|sample| i64::try_from(of(sample)).unwrap_or(i64::MAX));
        Column {
            name,
            optional: false,
            values: Values::Times(times.collect()),
        }
    }

    fn numbers(
        &self,
        name: &'static str,
        of: impl Fn(&Self, &DetailSample) -> Option<u32>,
    ) -> Column {
        let numbers = self.samples.iter().map(|sample| of(self, sample));
        Column {
            name,
            optional: true,
            values: Values::Numbers(numbers.collect()),
        }
    }

    fn addresses(&self) -> Column {
        let frames = self.samples.iter();
        let frames = frames.map(|sample| Some(self.chains.innermost(sample.stack)?.address));
        Column {
            name: "address",
            optional: true,
            values: Values::Addresses(frames.collect()),
        }
    }

    fn texts(
        &self,
        name: &'static str,
        optional: bool,
        of: impl Fn(&Self, &DetailSample) -> Option<String>,
    ) -> Column {
        let mut texts = Texts::default();
        let mut known = HashMap::new();
        for sample in &self.samples {
            let key = of(self, sample).map(|text| texts.key(&mut known, text));
            texts.keys.push(key);
        }
        Column {
            name,
            optional,
            values: Values::Texts(texts),
        }
    }

    /// Call chains as folded stacks have them.
    fn stacks(&self) -> Column {
        let mut texts = Texts::default();
        let mut known = HashMap::new();
        let mut keys: HashMap<u32, i32> = HashMap::new();
        for sample in &self.samples {
            let key = *keys
                .entry(sample.stack)
                .or_insert_with(|| texts.key(&mut known, folded::line(self.chains, sample.stack)));
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
    fn key(&mut self, known: &mut HashMap<String, i32>, text: String) -> i32 {
        *known.entry(text).or_insert_with_key(|text| {
            self.values.push(text.clone());
            // A run has fewer samples than that, and each needs at most one.
            i32::try_from(self.values.len() - 1).unwrap_or(i32::MAX)
        })
    }
}
