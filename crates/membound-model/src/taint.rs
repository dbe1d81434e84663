//! Finds latency points that a prefetcher shortened, by comparing patterns.
//!
//! Two patterns over the same bytes, with the same pages, access and copies, differ in
//! what a prefetcher can predict and in how they use the TLB. So two patterns are compared
//! only if the TLB cannot explain a difference:
//!
//! - `stride` and `page-random` finish a page before they leave it; they are
//!   compared with each other on any page kind, and with `random` only on huge pages;
//! - `random` and `indexed` visit pages in the same way and are compared on any page kind;
//!   `indexed` needs some more cycles per load to decode the next address, which the smallest
//!   buffers show and which is subtracted first.

use membound_types::{LatencyPoint, PageKind, Pattern, PrefetchTaint};

use crate::stats::median;

/// Least shortening that is reported: row hits, banks and the order of sets cause smaller ones.
const MIN_GAIN: f64 = 0.08;

/// Ratio to the smallest common size up to which sizes count as innermost level,
/// where the cost of decoding an index can be measured.
const MAX_INNERMOST_SIZE_RATIO: u64 = 8;

/// Marks the points whose latency is below that of a harder pattern by more than noise,
/// and clears the mark of all others.
pub fn mark(points: &mut [LatencyPoint]) {
    // The cost of decoding is the same for all sizes of one kind, so it is computed once per kind.
    let mut decoding: Vec<(&LatencyPoint, f64)> = Vec::new();
    let mut marks: Vec<Option<PrefetchTaint>> = Vec::with_capacity(points.len());
    for point in points.iter() {
        let patterns = references(point);
        let cost = if patterns.contains(&Pattern::Indexed) {
            let known = decoding
                .iter()
                .find(|(other, _)| other.pattern == point.pattern && same_kind(other, point));
            match known {
                Some((_, cost)) => *cost,
                None => {
                    let cost = decoding_ns(points, point);
                    decoding.push((point, cost));
                    cost
                }
            }
        } else {
            0.0
        };
        marks.push(
            patterns
                .iter()
                .find_map(|against| compare(points, point, *against, cost)),
        );
    }
    for (point, taint) in points.iter_mut().zip(marks) {
        point.prefetch_taint = taint;
    }
}

/// Patterns that are harder for a prefetcher than the point's pattern and use the TLB in the
/// same way, hardest first.
fn references(point: &LatencyPoint) -> &'static [Pattern] {
    let huge = matches!(point.page, PageKind::Huge2M | PageKind::Huge1G)
        || (point.page == PageKind::Thp && point.page_share.is_none_or(|share| share > 0.99));
    match (point.pattern, huge) {
        (Pattern::Stride, true) => &[Pattern::Indexed, Pattern::Random, Pattern::PageRandom],
        (Pattern::Stride, false) => &[Pattern::PageRandom],
        (Pattern::PageRandom, true) => &[Pattern::Indexed, Pattern::Random],
        (Pattern::Random, _) => &[Pattern::Indexed],
        (Pattern::PageRandom, false) | (Pattern::Indexed, _) => &[],
    }
}

/// True if two points differ at most in the pattern.
fn differ_only_in_pattern(a: &LatencyPoint, b: &LatencyPoint) -> bool {
    a.size_bytes == b.size_bytes && same_kind(a, b)
}

/// True if two points differ at most in pattern and size.
fn same_kind(a: &LatencyPoint, b: &LatencyPoint) -> bool {
    a.stride_bytes == b.stride_bytes
        && a.access == b.access
        && a.page == b.page
        && a.cpu == b.cpu
        && a.node == b.node
        && a.prefetch == b.prefetch
        && a.threads == b.threads
}

fn compare(
    points: &[LatencyPoint],
    point: &LatencyPoint,
    against: Pattern,
    decoding_ns: f64,
) -> Option<PrefetchTaint> {
    let reference = points
        .iter()
        .find(|other| other.pattern == against && differ_only_in_pattern(point, other))?;
    let decoding = if against == Pattern::Indexed {
        decoding_ns
    } else {
        0.0
    };
    let harder = reference.ns - decoding;
    if !(harder > 0.0 && point.ns > 0.0) {
        return None;
    }
    let ratio = point.ns / harder;
    let noise = ((point.ns_high - point.ns).max(0.0) / point.ns)
        .hypot((reference.ns - reference.ns_low).max(0.0) / reference.ns);
    (ratio < 1.0 - MIN_GAIN.max(2.0 * noise)).then_some(PrefetchTaint { against, ratio })
}

/// Cost of decoding an index in nanoseconds per load: `indexed` minus the point's pattern over
/// the smallest buffers of the same kind, where no prefetcher can help.
fn decoding_ns(points: &[LatencyPoint], point: &LatencyPoint) -> f64 {
    let mut pairs: Vec<(u64, f64)> = Vec::new();
    for indexed in points
        .iter()
        .filter(|other| other.pattern == Pattern::Indexed && same_kind(other, point))
    {
        if let Some(plain) = points
            .iter()
            .find(|other| other.pattern == point.pattern && differ_only_in_pattern(indexed, other))
        {
            pairs.push((indexed.size_bytes, indexed.ns - plain.ns));
        }
    }
    let Some(smallest) = pairs.iter().map(|(size, _)| *size).min() else {
        return 0.0;
    };
    let costs: Vec<f64> = pairs
        .iter()
        .filter(|(size, _)| *size <= smallest.saturating_mul(MAX_INNERMOST_SIZE_RATIO))
        .map(|(_, cost)| *cost)
        .collect();
    let cost = median(&costs).unwrap_or(0.0).max(0.0);
    // Without small buffers the difference would include the gain of the prefetcher.
    if smallest <= 64 << 10 { cost } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{Access, CpuId, NodePolicy, PrefetchState, Samples};

    fn point(size_bytes: u64, pattern: Pattern, page: PageKind, ns: f64) -> LatencyPoint {
        LatencyPoint {
            size_bytes,
            stride_bytes: 64,
            pattern,
            access: Access::Clean,
            page,
            cpu: CpuId(0),
            node: NodePolicy::LOCAL,
            prefetch: PrefetchState::Default,
            threads: 1,
            ns,
            ns_low: ns * 0.99,
            ns_high: ns * 1.01,
            cycles: ns * 4.0,
            samples: 15,
            batches: Samples::default(),
            page_share: None,
            prefetch_taint: None,
        }
    }

    fn marked(mut points: Vec<LatencyPoint>) -> Vec<Option<Pattern>> {
        mark(&mut points);
        points
            .iter()
            .map(|point| point.prefetch_taint.as_ref().map(|taint| taint.against))
            .collect()
    }

    const BIG: u64 = 256 << 20;

    #[test]
    fn a_forward_ring_on_huge_pages_is_tainted_against_random() {
        let found = marked(vec![
            point(BIG, Pattern::Random, PageKind::Thp, 150.0),
            point(BIG, Pattern::Stride, PageKind::Thp, 8.0),
            point(1 << 14, Pattern::Random, PageKind::Thp, 0.95),
            point(1 << 14, Pattern::Stride, PageKind::Thp, 0.95),
        ]);
        assert_eq!(found, [None, Some(Pattern::Random), None, None]);
    }

    #[test]
    fn effects_of_the_tlb_are_not_attributed_to_prefetch() {
        let found = marked(vec![
            point(BIG, Pattern::Random, PageKind::Base, 200.0),
            point(BIG, Pattern::PageRandom, PageKind::Base, 150.0),
            point(BIG, Pattern::Stride, PageKind::Base, 10.0),
        ]);
        assert_eq!(found, [None, None, Some(Pattern::PageRandom)]);
        let partly_huge = |pattern, ns| {
            let mut point = point(BIG, pattern, PageKind::Thp, ns);
            point.page_share = Some(0.5);
            point
        };
        let found = marked(vec![
            partly_huge(Pattern::Random, 200.0),
            partly_huge(Pattern::PageRandom, 150.0),
        ]);
        assert_eq!(found, [None, None]);
    }

    #[test]
    fn a_prefetcher_that_follows_pointers_shows_against_indexed_only() {
        let size = 16 << 10;
        let decoding = 0.75;
        let found = marked(vec![
            point(size, Pattern::Random, PageKind::Base, 1.0),
            point(size, Pattern::Indexed, PageKind::Base, 1.0 + decoding),
            point(BIG, Pattern::Random, PageKind::Base, 100.0),
            point(BIG, Pattern::Indexed, PageKind::Base, 150.0 + decoding),
        ]);
        assert_eq!(found, [None, None, Some(Pattern::Indexed), None]);
    }

    #[test]
    fn the_cost_of_decoding_alone_taints_nothing() {
        let mut points = Vec::new();
        for (size, ns) in [
            (4 << 10, 1.0),
            (16 << 10, 1.0),
            (256 << 10, 3.4),
            (BIG, 150.0),
        ] {
            points.push(point(size, Pattern::Random, PageKind::Thp, ns));
            points.push(point(size, Pattern::Indexed, PageKind::Thp, ns + 1.0));
        }
        assert!(marked(points).iter().all(Option::is_none));
    }

    #[test]
    fn a_noisy_point_is_given_the_benefit_of_its_interval_and_old_marks_go() {
        let mut noisy = point(BIG, Pattern::Stride, PageKind::Huge2M, 120.0);
        noisy.ns_high = 140.0;
        noisy.prefetch_taint = Some(PrefetchTaint {
            against: Pattern::Random,
            ratio: 0.5,
        });
        let found = marked(vec![
            point(BIG, Pattern::Random, PageKind::Huge2M, 150.0),
            noisy,
        ]);
        assert_eq!(found, [None, None]);
    }
}
