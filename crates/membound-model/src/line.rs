//! Finds the line size from chases at different strides.
//!
//! A random cycle over elements smaller than a line visits each line several times. In a
//! buffer somewhat larger than a cache, some of those visits happen while the line is still
//! cached, so the latency is lower; the fewer elements share a line, the fewer such visits.
//! From a stride of one line on there are no such visits and the latency no longer depends
//! on the stride. Random order keeps prefetchers out, and all strides touch the same
//! pages. The inner cache shows the line; beyond an outer cache that also fetches neighbouring
//! lines (adjacent-line prefetch, sectors), the same bend is at the size of the pair.
//!
//! A forward ring shows the same bend only if the prefetchers are off.

use membound_types::{
    Access, Basis, Cache, CacheKind, LatencyPoint, LineSize, NodePolicy, Outcome, PageKind,
    Pattern, PrefetchState,
};

use crate::stats::median;

/// Least rise of the latency from half a line to a line.
const MIN_RISE: f64 = 0.10;

/// Largest relative difference among the latencies beyond the line.
const MAX_DRIFT: f64 = 0.05;

/// Ratio to the smallest size that shows a bend, up to which sizes belong to the same cache.
const SAME_CACHE: u64 = 4;

/// The bend of one curve of latency over stride.
struct Bend {
    size_bytes: u64,
    stride_bytes: u64,
    rise: f64,
}

/// The line size from chases of one size at several strides, else the declared one.
///
/// Needs random chases (or forward rings with the prefetchers off) at strides from below
/// to at least twice the line, in buffers of about 1.2 to 4 times a cache. Missing if no
/// buffer shows a bend and no line size is declared.
#[must_use]
pub fn find_line(points: &[LatencyPoint], caches: &[Cache]) -> Outcome<LineSize> {
    let declared = caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction)
        .find_map(|cache| cache.line_bytes);
    let mut bends: Vec<Bend> = curves(points)
        .iter()
        .filter_map(|curve| bend(curve))
        .collect();
    bends.sort_by_key(|bend| bend.size_bytes);
    if let Some(smallest) = bends.first().map(|bend| bend.size_bytes) {
        // If several buffers of the inner cache show a bend, the largest rise counts.
        let inner = bends
            .iter()
            .filter(|bend| bend.size_bytes <= smallest.saturating_mul(SAME_CACHE))
            .max_by(|a, b| a.rise.total_cmp(&b.rise));
        if let Some(bytes) = inner.and_then(|bend| u32::try_from(bend.stride_bytes).ok()) {
            // A bend at only twice the declared line may be a pair of lines, if no buffer
            // exceeded just the inner cache.
            if let Some(line) = declared.filter(|line| line.saturating_mul(2) == bytes) {
                return Outcome::Known(LineSize {
                    bytes: line,
                    sector_bytes: bytes,
                    basis: Basis::Declared,
                });
            }
            let widest = bends
                .iter()
                .map(|bend| bend.stride_bytes)
                .max()
                .unwrap_or(0);
            return Outcome::Known(LineSize {
                bytes,
                sector_bytes: u32::try_from(widest).unwrap_or(bytes).max(bytes),
                basis: Basis::Estimated,
            });
        }
    }
    match declared {
        Some(bytes) => Outcome::Known(LineSize {
            bytes,
            sector_bytes: bytes,
            basis: Basis::Declared,
        }),
        None => Outcome::missing_with(
            "no buffer shows at which stride the latency stops rising, and no line size is declared",
            "measure random chases with strides 8 to 512 in 1.2 to 4 times the size of the first cache",
        ),
    }
}

/// Curves of latency over stride: groups of points that differ only in the stride, in order of
/// stride.
fn curves(points: &[LatencyPoint]) -> Vec<Vec<&LatencyPoint>> {
    type Key<'a> = (
        u64,
        Pattern,
        Access,
        PageKind,
        NodePolicy,
        u32,
        u32,
        &'a PrefetchState,
    );
    let mut groups: Vec<(Key<'_>, Vec<&LatencyPoint>)> = Vec::new();
    for point in points {
        let usable = match point.pattern {
            Pattern::Random | Pattern::Indexed => true,
            Pattern::Stride => match point.prefetch {
                PrefetchState::Off => true,
                // DSCR 1 is no prefetch depth, and enables no other kind of stream.
                PrefetchState::Dscr(dscr) => dscr.value() == 1,
                PrefetchState::Default | PrefetchState::Without(_) => false,
            },
            Pattern::PageRandom => false,
        };
        if !(usable && point.ns > 0.0 && point.ns.is_finite()) {
            continue;
        }
        let key = (
            point.size_bytes,
            point.pattern,
            point.access,
            point.page,
            point.node,
            point.threads,
            point.cpu.0,
            &point.prefetch,
        );
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(point),
            None => groups.push((key, vec![point])),
        }
    }
    groups
        .into_iter()
        .map(|(_, mut group)| {
            group.sort_by_key(|point| point.stride_bytes);
            group.dedup_by_key(|point| point.stride_bytes);
            group
        })
        .collect()
}

/// The smallest stride from which on the latency is constant, if it rose up to there.
fn bend(curve: &[&LatencyPoint]) -> Option<Bend> {
    // The last point cannot be the bend: a longer stride must show that the rise has ended.
    for (index, point) in curve
        .iter()
        .enumerate()
        .take(curve.len().checked_sub(1)?)
        .skip(1)
    {
        let rest: Vec<f64> = curve[index..].iter().map(|other| other.ns).collect();
        let level = median(&rest)?;
        let stays = curve[index..].iter().all(|other| {
            (other.ns / level - 1.0).abs() <= MAX_DRIFT.max(relative_half_width(other))
        });
        if !stays {
            continue;
        }
        let before = curve[index - 1];
        let rise = level / before.ns - 1.0;
        let noise = relative_half_width(before).hypot(relative_half_width(point));
        return (rise > MIN_RISE.max(2.0 * noise)).then_some(Bend {
            size_bytes: point.size_bytes,
            stride_bytes: point.stride_bytes,
            rise,
        });
    }
    None
}

fn relative_half_width(point: &LatencyPoint) -> f64 {
    ((point.ns_high - point.ns_low) / 2.0 / point.ns).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{CpuId, Samples};

    const STRIDES: [u64; 7] = [8, 16, 32, 64, 128, 256, 512];

    fn curve(size_bytes: u64, pattern: Pattern, ns: [f64; 7]) -> Vec<LatencyPoint> {
        STRIDES
            .iter()
            .zip(ns)
            .map(|(&stride_bytes, ns)| LatencyPoint {
                size_bytes,
                stride_bytes,
                pattern,
                access: Access::Clean,
                page: PageKind::Thp,
                cpu: CpuId(0),
                node: NodePolicy::LOCAL,
                prefetch: PrefetchState::Default,
                threads: 1,
                ns,
                ns_low: ns * 0.99,
                ns_high: ns * 1.01,
                cycles: ns * 4.0,
                samples: 9,
                batches: Samples::default(),
                page_share: None,
                prefetch_taint: None,
            })
            .collect()
    }

    fn declared(line_bytes: Option<u32>) -> Vec<Cache> {
        vec![Cache {
            level: 1,
            kind: CacheKind::Data,
            size_bytes: 32 << 10,
            line_bytes,
            ways: None,
            shared_by: vec![],
            source: "sysfs".to_owned(),
        }]
    }

    /// Times as measured on a machine with 64-byte lines that fetches pairs of lines into its L2.
    #[test]
    fn the_inner_cache_shows_the_line_and_the_outer_one_the_pair() {
        let mut points = curve(
            24 << 10,
            Pattern::Random,
            [0.91, 0.90, 0.90, 0.90, 0.90, 0.90, 0.90],
        );
        points.extend(curve(
            64 << 10,
            Pattern::Random,
            [1.53, 1.64, 1.87, 3.13, 3.10, 3.10, 3.11],
        ));
        points.extend(curve(
            128 << 10,
            Pattern::Random,
            [2.36, 2.46, 2.67, 3.10, 3.10, 3.10, 3.11],
        ));
        points.extend(curve(
            2 << 20,
            Pattern::Random,
            [8.50, 8.77, 9.20, 9.34, 12.59, 12.66, 12.69],
        ));
        points.extend(curve(
            64 << 20,
            Pattern::Random,
            [139.0, 140.7, 140.5, 145.2, 149.6, 149.8, 151.0],
        ));
        let found = find_line(&points, &[]);
        let line = found.known().unwrap();
        assert_eq!((line.bytes, line.sector_bytes), (64, 128));
        assert_eq!(line.basis, Basis::Estimated);
    }

    #[test]
    fn a_line_of_128_bytes() {
        let points = curve(
            48 << 10,
            Pattern::Random,
            [1.5, 1.6, 1.8, 2.2, 3.5, 3.5, 3.5],
        );
        for known in [None, Some(128), Some(32)] {
            let found = find_line(&points, &declared(known));
            let line = found.known().unwrap();
            assert_eq!(
                (line.bytes, line.sector_bytes, line.basis),
                (128, 128, Basis::Estimated)
            );
        }
        // If 64 is declared, 128 may be a pair of lines.
        let found = find_line(&points, &declared(Some(64)));
        let line = found.known().unwrap();
        assert_eq!(
            (line.bytes, line.sector_bytes, line.basis),
            (64, 128, Basis::Declared)
        );
    }

    #[test]
    fn a_forward_ring_counts_only_without_prefetchers() {
        let ns = [2.0, 3.0, 5.0, 9.0, 9.0, 9.1, 9.1];
        let mut points = curve(4 << 20, Pattern::Stride, ns);
        assert!(find_line(&points, &[]).known().is_none());
        for point in &mut points {
            point.prefetch = PrefetchState::Off;
        }
        assert_eq!(
            find_line(&points, &[]).known().map(|line| line.bytes),
            Some(64)
        );
    }

    #[test]
    fn without_a_bend_the_declared_size_is_used_and_noted() {
        let flat = curve(16 << 10, Pattern::Random, [1.0; 7]);
        let found = find_line(&flat, &declared(Some(64)));
        assert_eq!(found.known().map(|line| line.basis), Some(Basis::Declared));
        let rising = curve(
            64 << 10,
            Pattern::Random,
            [1.0, 1.2, 1.5, 2.0, 2.7, 3.6, 5.0],
        );
        let missing = find_line(&rising, &declared(None));
        assert!(missing.why_missing().unwrap().remedy.is_some());
    }
}
