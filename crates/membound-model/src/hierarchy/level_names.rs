//! Names the levels that were found in windows alone.
//!
//! A level that ends where a declared cache may end gets that cache's name: a first cache that a
//! core hides behind its work, a TLB's reach or a neighbouring node's memory must not shift the
//! names of the real caches. All other levels are named after the matched cache next to them, as in
//! `past L1`, because a number of their own would pass for that of a cache. If no level matches a
//! cache, levels are numbered from the innermost on, as document 002 does.

use membound_types::{Cache, CacheKind, Level, LevelKind};

/// Ratios of a found end to the declared size at which the two match: for a cache private to a
/// core, and for a cache that others use a part of, such as the host's other guests.
const OF_OWN: (f64, f64) = (0.35, 1.6);
const OF_SHARED: (f64, f64) = (0.12, 1.6);

/// Names `levels`, innermost first, the last of which has no end.
pub(super) fn name(levels: &mut [Level], caches: &[Cache]) {
    let declared = declared(caches);
    let ends: Vec<Option<u64>> = levels.iter().map(|level| level.size_bytes).collect();
    let chosen = matched(&ends, &declared).chosen;
    let innermost = chosen.first().map(|(_, cache)| declared[*cache].level);
    let mut inside: Option<usize> = None;
    let mut unmatched = 0;
    for (index, level) in levels.iter_mut().enumerate() {
        let cache = chosen.iter().find(|(found, _)| *found == index);
        if let Some((_, cache)) = cache {
            level.declared_bytes = Some(declared[*cache].size_bytes);
            level.name = format!("L{}", declared[*cache].level);
            inside = Some(*cache);
            unmatched = 0;
            continue;
        }
        unmatched += 1;
        let outermost = inside.is_some_and(|cache| cache + 1 == declared.len());
        let place = match (inside, innermost) {
            // Levels outside the outermost declared cache can only be memory: several of them are nodes,
            // or one of them ends where a TLB's reach does.
            _ if outermost => {
                level.kind = LevelKind::Memory;
                "DRAM".to_owned()
            }
            (Some(cache), _) => format!("past L{}", declared[cache].level),
            (None, Some(innermost)) => format!("before L{innermost}"),
            (None, None) => {
                level.name = format!("level {}", index + 1);
                continue;
            }
        };
        level.name = match unmatched {
            1 => place,
            _ => format!("{place} ({unmatched})"),
        };
    }
}

/// A declared cache that can hold data.
#[derive(Clone, Copy, Debug)]
struct Declared {
    level: u32,
    size_bytes: u64,
    shares: (f64, f64),
}

/// Declared data and unified caches, innermost first, one per level.
fn declared(caches: &[Cache]) -> Vec<Declared> {
    let mut declared: Vec<Declared> = caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction && cache.size_bytes > 0)
        .map(|cache| Declared {
            level: cache.level,
            size_bytes: cache.size_bytes,
            shares: if cache.level < 3 { OF_OWN } else { OF_SHARED },
        })
        .collect();
    declared.sort_by_key(|cache| cache.level);
    declared.dedup_by_key(|cache| cache.level);
    declared
}

/// An assignment of found levels to declared caches.
#[derive(Clone, Debug, Default)]
struct Matching {
    /// Pairs of (level index, cache index), both ascending.
    chosen: Vec<(usize, usize)>,
    /// Sum of the distances between ends and declared sizes, in octaves.
    off: f64,
}

/// The order-preserving matching with most caches, and of those the one with the least distance.
fn matched(ends: &[Option<u64>], declared: &[Declared]) -> Matching {
    fn search(
        ends: &[Option<u64>],
        declared: &[Declared],
        (level, cache): (usize, usize),
    ) -> Matching {
        if level >= ends.len() || cache >= declared.len() {
            return Matching::default();
        }
        let without = [(level + 1, cache), (level, cache + 1)];
        let mut best = without
            .map(|next| search(ends, declared, next))
            .into_iter()
            .reduce(better)
            .unwrap_or_default();
        if let Some(end) = ends[level] {
            let share = end as f64 / declared[cache].size_bytes as f64;
            let (least, most) = declared[cache].shares;
            if (least..=most).contains(&share) {
                let mut with = search(ends, declared, (level + 1, cache + 1));
                with.chosen.insert(0, (level, cache));
                with.off += share.log2().abs();
                best = better(best, with);
            }
        }
        best
    }
    fn better(one: Matching, other: Matching) -> Matching {
        let more = other.chosen.len() > one.chosen.len();
        let nearer = other.chosen.len() == one.chosen.len() && other.off < one.off;
        if more || nearer { other } else { one }
    }
    search(ends, declared, (0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::level;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn caches(sizes: &[u64]) -> Vec<Cache> {
        let cache = |(index, size): (usize, &u64)| Cache {
            level: index as u32 + 1,
            kind: CacheKind::Data,
            size_bytes: *size,
            line_bytes: Some(64),
            ways: None,
            shared_by: Vec::new(),
            source: "sysfs".to_owned(),
        };
        sizes.iter().enumerate().map(cache).collect()
    }

    #[track_caller]
    fn check(ends: &[u64], declared: &[u64], expected: &[&str]) {
        let open = std::iter::once(None);
        let mut levels: Vec<Level> = ends
            .iter()
            .map(|end| Some(*end))
            .chain(open)
            .map(|end| level("", end))
            .collect();
        name(&mut levels, &caches(declared));
        let names: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_hidden_first_cache_does_not_shift_the_names_of_the_others() {
        let laptop = [48 * KIB, MIB, 32 * MIB];
        check(&[MIB, 11 * MIB], &laptop, &["L2", "L3", "DRAM"]);
        // As in a guest whose windows show a second cache of 1 MiB.
        check(&[436 * KIB, 7 * MIB], &laptop, &["L2", "L3", "DRAM"]);
        check(
            &[46 * KIB, 980 * KIB, 7 * MIB],
            &laptop,
            &["L1", "L2", "L3", "DRAM"],
        );
        // One end, the reach of a TLB, lies between two caches.
        check(
            &[46 * KIB, 256 * KIB, 980 * KIB, 7 * MIB],
            &laptop,
            &["L1", "past L1", "L2", "L3", "DRAM"],
        );
        // Beyond the last cache, memory that is not uniform has several levels.
        check(
            &[46 * KIB, MIB, 30 * MIB, 1024 * MIB],
            &laptop,
            &["L1", "L2", "L3", "DRAM", "DRAM (2)"],
        );
    }

    #[test]
    fn no_level_is_called_by_a_number_beside_a_cache_of_that_number() {
        let laptop = [48 * KIB, MIB, 32 * MIB];
        // Levels 1 to 3 are none of the caches, level 4 is the third cache.
        check(
            &[4 * KIB, 120 * KIB, 3 * MIB, 20 * MIB, 400 * MIB],
            &laptop,
            &[
                "before L3",
                "before L3 (2)",
                "before L3 (3)",
                "L3",
                "DRAM",
                "DRAM (2)",
            ],
        );
        // No end is near the outermost cache, so the last level may lie in that cache or beyond it.
        check(&[46 * KIB, 980 * KIB], &laptop, &["L1", "L2", "past L2"]);
    }

    #[test]
    fn without_declared_caches_levels_are_numbered_as_the_paper_numbers_them() {
        check(
            &[32 * KIB, 4 * MIB],
            &[],
            &["level 1", "level 2", "level 3"],
        );
        check(&[], &[], &["level 1"]);
        check(&[], &[48 * KIB], &["level 1"]);
    }
}
