//! Compares the outermost cache for one copy of a chase and for several at once.
//!
//! Document 004: with one copy on a POWER7+ the latency climbs gently beyond the 10 MiB of
//! its L3, because the L3 caches of idle neighbours keep lines that are cast out of it
//! (lateral cast-out); with several copies it climbs at once. If the cache is shared,
//! several copies get a part each instead.

use membound_types::{Access, Cache, CacheKind, CoreDifference, CpuId, LatencyPoint, Pattern};

use crate::declared::bytes;
use crate::levels::{CurvePoint, LevelOptions, find_levels};
use crate::stats::isotonic_median;

/// Ratio of the sizes for one copy and for several from which they count as different.
const MIN_DIFFERENT_SIZE_RATIO: f64 = 1.25;

/// Compares one copy with several, for every number of copies that was measured with the
/// same pattern, pages and access as one copy.
///
/// The compared size, in bytes per copy, is the size at which half of the loads go to memory: where
/// the curve passes half-way between the latency of its outermost cache and that of memory. This
/// size exists for a sharp end and for a long ramp. `siblings` are the groups of CPUs that share a
/// core.
#[must_use]
pub fn compare(
    points: &[LatencyPoint],
    caches: &[Cache],
    siblings: &[Vec<CpuId>],
    options: &LevelOptions,
) -> Vec<CoreDifference> {
    let mut counts: Vec<u32> = points
        .iter()
        .map(|point| point.threads)
        .filter(|&threads| threads > 1)
        .collect();
    counts.sort_unstable();
    counts.dedup();
    counts
        .into_iter()
        .filter_map(|threads| {
            let (alone, crowded) = pair(points, threads)?;
            let alone_bytes = half_way_bytes(&alone, options)?;
            let crowded_bytes = half_way_bytes(&crowded, options)?;
            Some(CoreDifference {
                threads,
                alone_bytes,
                crowded_bytes,
                meaning: meaning(alone_bytes, crowded_bytes, threads, caches, siblings),
            })
        })
        .collect()
}

/// The longest pair of curves that differ only in the number of copies: one, and `threads`.
fn pair(points: &[LatencyPoint], threads: u32) -> Option<(Vec<CurvePoint>, Vec<CurvePoint>)> {
    let curve = |like: &LatencyPoint, threads: u32| -> Vec<CurvePoint> {
        points
            .iter()
            .filter(|point| {
                point.threads == threads
                    && point.pattern == like.pattern
                    && point.page == like.page
                    && point.access == like.access
                    && point.node == like.node
                    && point.stride_bytes == like.stride_bytes
                    && point.prefetch == like.prefetch
            })
            .map(CurvePoint::from)
            .collect()
    };
    let mut visited: Vec<&LatencyPoint> = Vec::new();
    let mut longest: Option<(Vec<CurvePoint>, Vec<CurvePoint>)> = None;
    for point in points.iter().filter(|point| {
        point.threads == threads
            && point.access == Access::Clean
            && matches!(point.pattern, Pattern::Random | Pattern::Indexed)
    }) {
        let known = visited.iter().any(|other| {
            other.pattern == point.pattern
                && other.page == point.page
                && other.node == point.node
                && other.stride_bytes == point.stride_bytes
                && other.prefetch == point.prefetch
        });
        if known {
            continue;
        }
        visited.push(point);
        let (alone, crowded) = (curve(point, 1), curve(point, threads));
        let length = |pair: &(Vec<CurvePoint>, Vec<CurvePoint>)| pair.0.len().min(pair.1.len());
        let new = (alone, crowded);
        if length(&new) > longest.as_ref().map_or(0, length) {
            longest = Some(new);
        }
    }
    longest
}

/// The size in bytes at which the curve passes half-way from its outermost cache to memory.
fn half_way_bytes(curve: &[CurvePoint], options: &LevelOptions) -> Option<u64> {
    let levels = find_levels(curve, options);
    let [.., cache, memory] = levels.plateaus.as_slice() else {
        return None;
    };
    let limit = f64::midpoint(cache.latency_ns.value, memory.latency_ns.value);
    let mut sorted: Vec<&CurvePoint> = curve
        .iter()
        .filter(|point| {
            point.ns.is_finite()
                && point.size_bytes >= cache.from_bytes
                && point.size_bytes <= memory.to_bytes
        })
        .collect();
    sorted.sort_by_key(|point| point.size_bytes);
    let times: Vec<f64> = sorted.iter().map(|point| point.ns).collect();
    let times = isotonic_median(&times);
    let above = times.iter().position(|time| *time >= limit)?;
    let below = above.checked_sub(1)?;
    let share = (limit - times[below]) / (times[above] - times[below]);
    let (from, to) = (
        (sorted[below].size_bytes as f64).ln(),
        (sorted[above].size_bytes as f64).ln(),
    );
    Some((from + share * (to - from)).exp().round() as u64)
}

/// The meaning of the difference as text, from what the caches are declared to share.
fn meaning(
    alone: u64,
    crowded: u64,
    threads: u32,
    caches: &[Cache],
    siblings: &[Vec<CpuId>],
) -> String {
    let ratio = alone as f64 / crowded as f64;
    let (one, each) = (bytes(alone), bytes(crowded));
    let outermost = caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction && !cache.shared_by.is_empty())
        .max_by_key(|cache| cache.level);
    let private = outermost.map(|cache| {
        cache.shared_by.len() == 1
            || siblings
                .iter()
                .any(|core| cache.shared_by.iter().all(|cpu| core.contains(cpu)))
    });
    if ratio < MIN_DIFFERENT_SIZE_RATIO {
        return match private {
            Some(true) => format!("private: one copy and each of {threads} see the same {each}"),
            _ => format!("one copy and each of {threads} see the same {each}"),
        };
    }
    match private {
        Some(true) => format!(
            "lateral cast-out: the outermost cache is private to a core, yet one copy sees {one} \
             where each of {threads} sees {each}; idle neighbours keep what it casts out"
        ),
        Some(false) => format!(
            "shared: one copy sees {one} of the outermost cache, each of {threads} copies {each}"
        ),
        None => format!(
            "one copy sees {one}, each of {threads} {each}: a shared cache, or lateral cast-out \
             from a private one (which cores share it is not declared)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{NodePolicy, PageKind, PrefetchState, Samples};

    /// A curve with 32 KiB and 256 KiB caches and an outermost one whose hits end between
    /// `from` and `to` MiB.
    fn curve(threads: u32, from: f64, to: f64) -> Vec<LatencyPoint> {
        (0..84)
            .map(|k| {
                let size = 4096.0 * (f64::from(k) / 5.0).exp2();
                let mib = size / f64::from(1 << 20);
                let misses = ((mib / from).ln() / (to / from).ln()).clamp(0.0, 1.0);
                let ns = match size {
                    size if size <= 32768.0 => 1.0,
                    size if size <= 262_144.0 => 3.5,
                    _ => 9.0 + misses * 91.0,
                };
                LatencyPoint {
                    size_bytes: size as u64,
                    stride_bytes: 128,
                    pattern: Pattern::Random,
                    access: Access::Clean,
                    page: PageKind::Thp,
                    cpu: CpuId(0),
                    node: NodePolicy::LOCAL,
                    prefetch: PrefetchState::Default,
                    threads,
                    ns,
                    ns_low: ns,
                    ns_high: ns,
                    cycles: ns,
                    samples: 1,
                    batches: Samples::default(),
                    page_share: None,
                    prefetch_taint: None,
                }
            })
            .collect()
    }

    fn outermost(sharers: &[u32]) -> Vec<Cache> {
        vec![Cache {
            level: 3,
            kind: CacheKind::Unified,
            size_bytes: 10 << 20,
            line_bytes: Some(128),
            ways: None,
            shared_by: sharers.iter().copied().map(CpuId).collect(),
            source: "sysfs".to_owned(),
        }]
    }

    fn cores() -> Vec<Vec<CpuId>> {
        vec![(0..4).map(CpuId).collect(), (4..8).map(CpuId).collect()]
    }

    #[test]
    fn a_gradual_ramp_of_one_copy_beyond_a_private_cache_is_lateral_cast_out() {
        let mut points = curve(1, 10.0, 80.0);
        points.extend(curve(5, 10.0, 12.0));
        let found = compare(
            &points,
            &outermost(&[0, 1, 2, 3]),
            &cores(),
            &LevelOptions::default(),
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].threads, 5);
        let mib = |size: u64| size as f64 / f64::from(1 << 20);
        assert!(
            (mib(found[0].alone_bytes) / 28.3 - 1.0).abs() < 0.1,
            "{found:?}"
        );
        assert!(
            (mib(found[0].crowded_bytes) / 11.0 - 1.0).abs() < 0.1,
            "{found:?}"
        );
        assert!(
            found[0].meaning.starts_with("lateral cast-out"),
            "{found:?}"
        );
    }

    #[test]
    fn a_shared_cache_and_an_unknown_one_are_distinguished() {
        let mut points = curve(1, 20.0, 24.0);
        points.extend(curve(2, 10.0, 12.0));
        let options = LevelOptions::default();
        let shared = compare(&points, &outermost(&[0, 4]), &cores(), &options);
        assert!(
            shared[0]
                .meaning
                .starts_with("shared: one copy sees 22 MiB"),
            "{shared:?}"
        );
        let unknown = compare(&points, &[], &[], &options);
        assert!(unknown[0].meaning.contains("not declared"), "{unknown:?}");
    }

    #[test]
    fn equal_curves_differ_in_nothing_and_no_crowd_gives_nothing() {
        let mut points = curve(1, 10.0, 12.0);
        assert!(compare(&points, &[], &[], &LevelOptions::default()).is_empty());
        points.extend(curve(2, 10.0, 12.0));
        let found = compare(
            &points,
            &outermost(&[0]),
            &cores(),
            &LevelOptions::default(),
        );
        assert!(found[0].meaning.starts_with("private"), "{found:?}");
    }
}
