//! Compares the reach of the TLB with each cache, and advises larger pages: document
//! 002's remark that the page size should follow the size of the second-level cache.

use membound_types::{
    Basis, Cache, CacheKind, Level, LevelKind, PageKind, Tlb, TlbLevel, TlbReach,
};

use crate::declared::bytes;
use crate::tlb::{WALK_CYCLES, page_bytes};

/// A cache to compare the reach with.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheSize {
    /// Name of the cache, such as `L2`.
    pub name: String,
    /// Size of the cache in bytes.
    pub size_bytes: u64,
    /// Whether the size is estimated from a curve or declared.
    pub basis: Basis,
}

/// The caches among `levels` whose size was found, innermost first; if there are none, the
/// `declared` caches that hold data.
#[must_use]
pub fn cache_sizes(levels: &[Level], declared: &[Cache]) -> Vec<CacheSize> {
    let found: Vec<CacheSize> = levels
        .iter()
        .filter(|level| level.kind == LevelKind::Cache)
        .filter_map(|level| {
            Some(CacheSize {
                name: level.name.clone(),
                size_bytes: level.size_bytes?,
                basis: Basis::Estimated,
            })
        })
        .collect();
    if !found.is_empty() {
        return found;
    }
    let mut data: Vec<&Cache> = declared
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction)
        .collect();
    data.sort_by_key(|cache| cache.level);
    data.into_iter()
        .map(|cache| CacheSize {
            name: format!("L{}", cache.level),
            size_bytes: cache.size_bytes,
            basis: Basis::Declared,
        })
        .collect()
}

/// For every cache and page kind, the bytes that the TLB reaches without a page walk.
///
/// If that is less than the cache, the advice of document 002 is larger pages: it names the
/// measured kinds that reach far enough, or untried ones among `kinds`, those of the machine.
#[must_use]
pub fn reach(part: &Tlb, caches: &[CacheSize], kinds: &[PageKind]) -> Vec<TlbReach> {
    let measured: Vec<(PageKind, u64, Option<&TlbLevel>)> = PageKind::ALL
        .into_iter()
        .filter_map(|page| walk_free(part, page).map(|(bytes, level)| (page, bytes, level)))
        .collect();
    let mut all = Vec::new();
    for cache in caches {
        let enough: Vec<PageKind> = measured
            .iter()
            .filter(|(_, bytes, _)| *bytes >= cache.size_bytes)
            .map(|(page, _, _)| *page)
            .collect();
        for &(page, reach_bytes, level) in &measured {
            let covered = match level {
                _ if reach_bytes >= cache.size_bytes => Some(true),
                Some(_) => Some(false),
                None => None,
            };
            let advice = level
                .filter(|_| covered == Some(false))
                .map(|level| advice(cache, level, &enough, &measured, kinds));
            all.push(TlbReach {
                level: cache.name.clone(),
                size_bytes: cache.size_bytes,
                size_basis: cache.basis,
                page,
                reach_bytes,
                tlb_level: level.map(|level| level.level),
                covered,
                advice,
            });
        }
    }
    all
}

/// Bytes within reach of pages of kind `page` before walks begin, and the TLB level whose misses
/// are walks. If no level's misses are walks, the most bytes that were visited.
/// `None` without points.
fn walk_free(part: &Tlb, page: PageKind) -> Option<(u64, Option<&TlbLevel>)> {
    let most = part
        .points
        .iter()
        .filter(|point| point.page == page)
        .map(|point| point.pages)
        .max()?;
    let last = part
        .levels
        .iter()
        .filter(|level| level.page == page && level.miss_cycles.value >= WALK_CYCLES)
        .max_by_key(|level| level.level);
    Some(match last {
        Some(level) => (level.reach_bytes, Some(level)),
        None => (most.saturating_mul(page_bytes(page)), None),
    })
}

/// A sentence of advice for a cache that is larger than the reach of `level`.
fn advice(
    cache: &CacheSize,
    level: &TlbLevel,
    enough: &[PageKind],
    measured: &[(PageKind, u64, Option<&TlbLevel>)],
    kinds: &[PageKind],
) -> String {
    let own = page_bytes(level.page);
    let names = |pages: Vec<PageKind>| {
        let names: Vec<String> = pages
            .iter()
            .map(|page| format!("{page} ({})", bytes(page_bytes(*page))))
            .collect();
        names.join(" or ")
    };
    let larger = |page: &PageKind| page_bytes(*page) > own;
    let suffice: Vec<PageKind> = enough.iter().copied().filter(larger).collect();
    let untried: Vec<PageKind> = kinds
        .iter()
        .copied()
        .filter(|page| larger(page) && !measured.iter().any(|(known, _, _)| known == page))
        .collect();
    let begin = format!(
        "with {} pages the TLB reaches {} of the {} of {}; random loads beyond that wait {:.0} \
         cycles for a page walk although the cache holds their data",
        level.page,
        bytes(level.reach_bytes),
        bytes(cache.size_bytes),
        cache.name,
        level.miss_cycles.value
    );
    if !suffice.is_empty() {
        format!(
            "{begin}: use larger pages, which reach it: {}",
            names(suffice)
        )
    } else if !untried.is_empty() {
        format!("{begin}: try larger pages: {}", names(untried))
    } else {
        format!("{begin}: larger pages would help, but none that were measured here reach it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::level;
    use membound_types::{Figure, Samples, TlbPoint};

    fn tlb_level(page: PageKind, level: u32, entries: f64, miss: f64) -> TlbLevel {
        let figure = |value| Figure {
            value,
            low: value,
            high: value,
            basis: Basis::Estimated,
        };
        TlbLevel {
            page,
            level,
            entries: figure(entries),
            reach_bytes: entries as u64 * page_bytes(page),
            miss_cycles: figure(miss),
        }
    }

    fn part(pages: &[(PageKind, u64)], levels: Vec<TlbLevel>) -> Tlb {
        let points = pages
            .iter()
            .map(|&(page, pages)| TlbPoint {
                page,
                pages,
                ns: 1.0,
                packed_ns: 1.0,
                translation_cycles: 0.0,
                batches: Samples::default(),
            })
            .collect();
        Tlb {
            points,
            levels,
            ..Tlb::default()
        }
    }

    fn sizes() -> Vec<CacheSize> {
        let levels = [
            level("L1", Some(48 << 10)),
            level("L2", Some(1 << 20)),
            level("L3", Some(14 << 20)),
            level("DRAM", None),
        ];
        cache_sizes(&levels, &[])
    }

    #[test]
    fn larger_pages_are_advised_where_the_tlb_reaches_less_than_a_cache() {
        let part = part(
            &[(PageKind::Base, 1 << 16), (PageKind::Thp, 512)],
            vec![
                tlb_level(PageKind::Base, 1, 96.0, 7.0),
                tlb_level(PageKind::Base, 2, 3072.0, 73.0),
                // A miss of seven cycles is served by another TLB, without a walk.
                tlb_level(PageKind::Thp, 1, 96.0, 7.0),
            ],
        );
        let found = reach(&part, &sizes(), &[PageKind::Base, PageKind::Thp]);
        let row = |level: &str, page| {
            found
                .iter()
                .find(|row| row.level == level && row.page == page)
                .unwrap()
        };
        assert_eq!(found.len(), 6);
        assert_eq!(row("L2", PageKind::Base).covered, Some(true));
        let bent = row("L3", PageKind::Base);
        assert_eq!((bent.covered, bent.tlb_level), (Some(false), Some(2)));
        assert_eq!(bent.reach_bytes, 12 << 20);
        let advice = bent.advice.as_deref().unwrap();
        assert!(
            advice.contains("12 MiB of the 14 MiB of L3")
                && advice.contains("73 cycles")
                && advice.ends_with("use larger pages, which reach it: thp (2 MiB)"),
            "{advice}"
        );
        let large = row("L3", PageKind::Thp);
        assert_eq!((large.covered, large.tlb_level), (Some(true), None));
        assert_eq!(large.reach_bytes, 1 << 30);
        assert!(found.iter().filter(|row| row.advice.is_some()).count() == 1);
    }

    #[test]
    fn only_pages_that_the_machine_has_are_named() {
        let small = vec![tlb_level(PageKind::Base, 1, 512.0, 40.0)];
        let check =
            |pages: &[(PageKind, u64)], levels: &[TlbLevel], kinds: &[PageKind], end: &str| {
                let found = reach(&part(pages, levels.to_vec()), &sizes(), kinds);
                let row = found
                    .iter()
                    .find(|row| row.level == "L3" && row.page == PageKind::Base)
                    .unwrap();
                let advice = row.advice.as_deref().unwrap();
                assert!(advice.ends_with(end), "{advice}");
            };
        let base = [(PageKind::Base, 4096)];
        check(
            &base,
            &small,
            &[PageKind::Base],
            "none that were measured here reach it",
        );
        check(
            &base,
            &small,
            &[PageKind::Thp],
            "try larger pages: thp (2 MiB)",
        );
        // Four entries for large pages do not reach the cache either, so they are not advised.
        let both = [(PageKind::Base, 4096), (PageKind::Huge2M, 64)];
        let mut levels = small.clone();
        levels.push(tlb_level(PageKind::Huge2M, 1, 4.0, 40.0));
        check(
            &both,
            &levels,
            &[PageKind::Huge2M],
            "none that were measured here reach it",
        );
        check(
            &[
                (PageKind::Base, 4096),
                (PageKind::Huge2M, 64),
                (PageKind::Huge1G, 2),
            ],
            &levels,
            &[],
            "use larger pages, which reach it: 1g (1 GiB)",
        );
    }

    #[test]
    fn a_reach_that_was_not_met_is_not_judged() {
        // All pages up to 4 MiB were reached: L3 is larger, so its coverage is unknown.
        let part = part(&[(PageKind::Base, 1024)], vec![]);
        let found = reach(&part, &sizes(), &[]);
        assert_eq!(found[1].covered, Some(true));
        assert_eq!((found[2].covered, found[2].tlb_level), (None, None));
        assert_eq!(found[2].reach_bytes, 4 << 20);
        assert_eq!(found[2].advice, None);
        assert!(reach(&Tlb::default(), &sizes(), &[]).is_empty());
    }

    #[test]
    fn declared_sizes_stand_in_for_levels() {
        let cache = |level, kind, size_bytes| Cache {
            level,
            kind,
            size_bytes,
            line_bytes: None,
            ways: None,
            shared_by: vec![],
            source: "sysfs".to_owned(),
        };
        let declared = [
            cache(2, CacheKind::Unified, 1 << 20),
            cache(1, CacheKind::Instruction, 32 << 10),
            cache(1, CacheKind::Data, 48 << 10),
        ];
        let sizes = cache_sizes(&[], &declared);
        let names: Vec<(&str, Basis)> = sizes
            .iter()
            .map(|size| (size.name.as_str(), size.basis))
            .collect();
        assert_eq!(names, [("L1", Basis::Declared), ("L2", Basis::Declared)]);
    }
}
