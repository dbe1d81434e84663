//! Time, stall and accesses by object, and by offset within each object.

use std::collections::BTreeMap;

use membound_run::SiteId;
use membound_types::{NamedShare, ObjectRow, OffsetRow};
use rustc_hash::FxHashMap;

use crate::allocation_chain::allocation_chain;
use crate::context::Context;
use crate::groups::{GroupId, Groups};
use crate::places::LineId;
use crate::recorded_accesses::Counts;
use crate::rows;

/// Largest block whose offsets are listed one by one. A larger block is an array rather than a record of
/// fields, and is listed by stretches.
const MAX_RECORD_BYTES: u64 = 4096;

/// Most stretches into which an array is divided.
const MAX_STRETCHES: u64 = 64;

/// Most offsets of a row; the most stalled ones are kept.
const MAX_OFFSETS: usize = 64;

/// Most lines of code of a row.
const MAX_CODE: usize = 8;

/// Which objects have rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectsWithRows {
    /// Objects with accesses.
    Accessed,
    /// Also objects with many allocated bytes ([`Groups::most_allocated`]).
    AllocatedToo,
}

/// The table of objects, each with its group.
pub(crate) fn objects(context: &Context<'_>, rowed: ObjectsWithRows) -> Vec<(GroupId, ObjectRow)> {
    let mut sums = rows::grouped(context, |part| Some(part.group));
    if rowed == ObjectsWithRows::AllocatedToo {
        for id in context.groups.most_allocated() {
            sums.entry(*id).or_default();
        }
    }
    let mut offsets = offsets(context);
    let mut code = code(context);
    let mut table: Vec<(GroupId, ObjectRow)> = sums
        .into_iter()
        .map(|(id, sum)| {
            let group = context.groups.get(id);
            let lifetime = (group.freed > 0)
                .then(|| crate::info::seconds(group.lifetime_ns) / group.freed as f64);
            let row = ObjectRow {
                name: group.name.clone(),
                kind: group.kind,
                size_bytes: group.size_bytes,
                alloc_stack: group.stack.map_or_else(Vec::new, |stack| {
                    allocation_chain(context.run, &context.places, stack)
                }),
                blocks: group.blocks,
                blocks_low: group.blocks_interval().map(|(low, _)| low),
                blocks_high: group.blocks_interval().map(|(_, high)| high),
                total_bytes: group.total_bytes,
                lifetime_s: lifetime,
                false_sharing: false,
                node_local_fraction: None,
                share: sum.share(context),
                offsets: offsets.remove(&id).unwrap_or_default(),
                code: code.remove(&id).unwrap_or_default(),
            };
            (id, row)
        })
        .collect();
    table.sort_by(|(_, a), (_, b)| rows::order((&a.share, &a.name), (&b.share, &b.name)));
    table
}

/// Lines of code that stall on each object.
fn code(context: &Context<'_>) -> BTreeMap<GroupId, Vec<NamedShare>> {
    let mut sums: BTreeMap<(GroupId, LineId), f64> = BTreeMap::new();
    for part in &context.parts.parts {
        if part.stall_ns > 0.0 {
            let frame = context.run.sites[part.site.index()].frame;
            let line = context.places.line_of(frame);
            *sums.entry((part.group, line)).or_default() += part.stall_ns;
        }
    }
    let mut code: BTreeMap<GroupId, Vec<NamedShare>> = BTreeMap::new();
    for ((group, line), stall_ns) in sums {
        code.entry(group).or_default().push(NamedShare {
            name: context.places.line(line).name.clone(),
            fraction: context.times.share(stall_ns),
        });
    }
    for lines in code.values_mut() {
        lines.sort_by(|a, b| b.fraction.total_cmp(&a.fraction).then(a.name.cmp(&b.name)));
        lines.truncate(MAX_CODE);
    }
    code
}

/// Accesses to one offset.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    counts: Counts,
    bytes: u32,
}

/// Accesses and stall of one offset.
#[derive(Clone, Copy, Debug, Default)]
struct OffsetSum {
    counts: Counts,
    bytes: u32,
    stall_ns: f64,
}

/// Which offsets of objects were accessed, and how the stall divides among them. All blocks of a group
/// share one set of offsets.
fn offsets(context: &Context<'_>) -> BTreeMap<GroupId, Vec<OffsetRow>> {
    let run = context.run;
    // By part and offset; a part belongs to one object.
    let mut counted: FxHashMap<(u32, u64), At> = FxHashMap::default();
    for index in 0..run.sites.len() {
        let site = SiteId(index as u32);
        let site_bytes = run.sites[index].bytes;
        for (position, access) in context.touches.of(site) {
            let (Some(object), Some(part)) = (access.object, context.part_of[position as usize])
            else {
                continue;
            };
            let group = context.groups.of(object);
            let Some(place) = place(context, group, object, access.address) else {
                continue;
            };
            let at = counted.entry((part, place)).or_default();
            at.counts.add(
                context.touches.ticks(position),
                context.touches.weight(position),
            );
            at.bytes = at.bytes.max(site_bytes);
        }
    }
    let mut sums = divided(context, counted);
    sampled(context, &mut sums);
    let mut rows: BTreeMap<GroupId, Vec<OffsetRow>> = BTreeMap::new();
    let mut totals: FxHashMap<GroupId, f64> = FxHashMap::default();
    for ((group, _), sum) in &sums {
        *totals.entry(*group).or_default() += sum.stall_ns;
    }
    for ((group, offset), sum) in sums {
        let total = totals.get(&group).copied().unwrap_or(0.0);
        let stretch = stretch(context, context.groups.get(group).size_bytes);
        rows.entry(group).or_default().push(OffsetRow {
            offset,
            bytes: if stretch > 1 {
                u32::try_from(stretch).unwrap_or(u32::MAX)
            } else {
                sum.bytes
            },
            accesses: sum.counts.number,
            stall_fraction: if total > 0.0 {
                sum.stall_ns / total
            } else {
                0.0
            },
            avg_latency_ns: sum
                .counts
                .mean()
                .and_then(|ticks| context.machine.latency_of(ticks)),
        });
    }
    for offsets in rows.values_mut() {
        offsets.sort_by(|a, b| {
            (b.stall_fraction.total_cmp(&a.stall_fraction))
                .then(b.accesses.cmp(&a.accesses))
                .then(a.offset.cmp(&b.offset))
        });
        offsets.truncate(MAX_OFFSETS);
    }
    rows
}

/// Divides the stall of each part among its offsets: by latency beyond a hit, else by number of accesses.
fn divided(
    context: &Context<'_>,
    counted: FxHashMap<(u32, u64), At>,
) -> BTreeMap<(GroupId, u64), OffsetSum> {
    let mut counted: Vec<((u32, u64), At)> = counted.into_iter().collect();
    counted.sort_unstable_by_key(|(key, _)| *key);
    let baseline = context.machine.l1_ticks.unwrap_or(0.0);
    let mut sums: BTreeMap<(GroupId, u64), OffsetSum> = BTreeMap::new();
    for of_part in counted.chunk_by(|((a, _), _), ((b, _), _)| a == b) {
        let part = &context.parts.parts[of_part[0].0.0 as usize];
        let excess: f64 = of_part
            .iter()
            .map(|(_, at)| at.counts.excess(baseline))
            .sum();
        let seen: f64 = of_part.iter().map(|(_, at)| at.counts.represented).sum();
        for ((_, place), at) in of_part {
            let share = if excess > 0.0 {
                at.counts.excess(baseline) / excess
            } else {
                at.counts.represented / seen
            };
            let sum = sums.entry((part.group, *place)).or_default();
            sum.counts.merge(at.counts);
            sum.bytes = sum.bytes.max(at.bytes);
            sum.stall_ns += part.stall_ns * share;
        }
    }
    sums
}

/// Fills in offsets from timer samples for objects without accesses from the latency sampler.
fn sampled(context: &Context<'_>, sums: &mut BTreeMap<(GroupId, u64), OffsetSum>) {
    let run = context.run;
    let with_accesses: std::collections::BTreeSet<GroupId> =
        sums.keys().map(|(group, _)| *group).collect();
    let mut times: BTreeMap<(GroupId, u64), (u64, u64)> = BTreeMap::new();
    for sample in run.samples.iter().filter(|sample| sample.exact) {
        let (Some(object), Some(address)) = (sample.object, sample.address) else {
            continue;
        };
        let group = context.groups.of(object);
        if group == Groups::UNKNOWN || with_accesses.contains(&group) {
            continue;
        }
        if let Some(place) = place(context, group, object, address) {
            let sum = times.entry((group, place)).or_default();
            sum.0 += 1;
            sum.1 += sample.weight_ns;
        }
    }
    for (key, (samples, weight_ns)) in times {
        sums.insert(
            key,
            OffsetSum {
                counts: Counts {
                    number: samples,
                    ..Counts::default()
                },
                bytes: 0,
                stall_ns: weight_ns as f64,
            },
        );
    }
}

/// Offset of `address` in `object`, rounded down to the start of its stretch; `None` if it is not known where
/// the object begins.
fn place(
    context: &Context<'_>,
    group: GroupId,
    object: membound_run::ObjectId,
    address: u64,
) -> Option<u64> {
    let object = &context.run.objects[object.index()];
    if object.is_unrecorded() {
        return None;
    }
    let offset = address.checked_sub(object.address)?;
    let stretch = stretch(context, context.groups.get(group).size_bytes);
    Some(offset / stretch * stretch)
}

/// Stretch in bytes by which the offsets of an object of `size_bytes` are listed.
fn stretch(context: &Context<'_>, size_bytes: u64) -> u64 {
    if size_bytes <= MAX_RECORD_BYTES {
        return 1;
    }
    let bytes = (size_bytes / MAX_STRETCHES).next_power_of_two();
    bytes.max(u64::from(context.machine.line_bytes))
}
