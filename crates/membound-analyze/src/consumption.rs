//! Memory consumption: live bytes over time, in total and by object.

use std::collections::BTreeMap;

use membound_run::LiveBytes;
use membound_types::{MemoryMoment, MemoryRow, MemoryUse, Outcome};

use crate::context::Context;
use crate::groups::GroupId;
use crate::info;

/// Most objects that get a row.
const MAX_ROWS: usize = 100;

/// Changes of the number of live bytes over time.
#[derive(Clone, Debug, Default)]
struct Changes {
    /// Change of the live bytes at the end of recorded steps, by time in nanoseconds.
    ends: BTreeMap<u64, i64>,
    /// The same for the peaks within steps.
    peaks: BTreeMap<u64, i64>,
}

impl Changes {
    /// Adds the history of one call chain; `rows` are sorted by time.
    fn add(&mut self, rows: &[&LiveBytes]) {
        let (mut end, mut peak) = (0_i64, 0_i64);
        let to = |changes: &mut BTreeMap<u64, i64>, t_ns: u64, last: &mut i64, bytes: u64| {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            *changes.entry(t_ns).or_default() += bytes - *last;
            *last = bytes;
        };
        for row in rows {
            to(&mut self.ends, row.from_ns, &mut end, row.bytes);
            to(&mut self.peaks, row.from_ns, &mut peak, row.peak_bytes);
            to(&mut self.peaks, row.to_ns, &mut peak, row.bytes);
        }
    }

    /// Running sums of `changes`: the live bytes from each moment on.
    fn moments(changes: &BTreeMap<u64, i64>) -> Vec<MemoryMoment> {
        let mut bytes = 0_i64;
        let mut moments: Vec<MemoryMoment> = Vec::with_capacity(changes.len());
        for (t_ns, change) in changes {
            bytes = bytes.saturating_add(*change);
            let bytes = u64::try_from(bytes).unwrap_or(0);
            if moments.last().is_none_or(|last| last.bytes != bytes) {
                let t_s = info::seconds(*t_ns);
                moments.push(MemoryMoment { t_s, bytes });
            }
        }
        moments
    }
}

/// Live bytes over time in the selected span.
pub(crate) fn consumption(context: &Context<'_>) -> Outcome<MemoryUse> {
    let run = context.run;
    if run.live.is_empty() {
        return if run.meta.objects_from_bytes.is_none() {
            Outcome::missing_with(
                "allocations were not followed",
                "start the program with `membound profile -- COMMAND`, without --no-objects",
            )
        } else {
            Outcome::missing("no call chain ever had 4 KiB allocated at once")
        };
    }
    let mut by_chain: BTreeMap<_, Vec<&LiveBytes>> = BTreeMap::new();
    for row in &run.live {
        let chain = (row.process, row.stack, row.function.as_str());
        by_chain.entry(chain).or_default().push(row);
    }
    let mut by_group: BTreeMap<GroupId, Changes> = BTreeMap::new();
    let mut all = Changes::default();
    for rows in by_chain.values_mut() {
        rows.sort_by_key(|row| row.from_ns);
        if let Some(group) = context.groups.of_live(rows[0]) {
            by_group.entry(group).or_default().add(rows);
        }
        all.add(rows);
    }
    let cut = |moments| cut(moments, context);
    let mut objects: Vec<MemoryRow> = by_group
        .iter()
        .map(|(id, changes)| {
            let group = context.groups.get(*id);
            let timeline = cut(Changes::moments(&changes.peaks));
            let peak = peak(&timeline);
            MemoryRow {
                name: group.name.clone(),
                kind: group.kind,
                peak_bytes: peak.bytes,
                peak_s: peak.t_s,
                end_bytes: timeline.last().map_or(0, |last| last.bytes),
                timeline,
            }
        })
        .filter(|row| row.peak_bytes > 0)
        .collect();
    objects.sort_by(|a, b| {
        let by_peak = b.peak_bytes.cmp(&a.peak_bytes);
        by_peak.then_with(|| a.name.cmp(&b.name))
    });
    // Peaks within steps happen at different times, so that they do not add up over objects; but the
    // largest peak of a single object was reached.
    let timeline = cut(Changes::moments(&all.ends));
    let largest = objects.first().map(|row| MemoryMoment {
        t_s: row.peak_s,
        bytes: row.peak_bytes,
    });
    let most = [peak(&timeline)].into_iter().chain(largest);
    let peak = most.max_by_key(|moment| moment.bytes).unwrap_or_default();
    objects.truncate(MAX_ROWS);
    Outcome::Known(MemoryUse {
        peak_bytes: peak.bytes,
        peak_s: peak.t_s,
        timeline,
        objects,
    })
}

/// First of the moments with the most bytes.
fn peak(timeline: &[MemoryMoment]) -> MemoryMoment {
    let most = timeline.iter().rev().max_by_key(|moment| moment.bytes);
    most.copied().unwrap_or_default()
}

/// Moments inside the selected span; what was live before the span counts as live at its beginning.
fn cut(moments: Vec<MemoryMoment>, context: &Context<'_>) -> Vec<MemoryMoment> {
    if context.span.is_all() {
        return moments;
    }
    let from_s = info::seconds(context.span.from_ns);
    let to_s = info::seconds(context.span.to_ns);
    let before = moments.iter().rev().find(|moment| moment.t_s <= from_s);
    let first = before.map(|moment| MemoryMoment {
        t_s: from_s,
        bytes: moment.bytes,
    });
    let inside = moments
        .iter()
        .filter(|moment| moment.t_s > from_s && moment.t_s < to_s);
    first.into_iter().chain(inside.copied()).collect()
}
