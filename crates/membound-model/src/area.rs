//! Computes which level is expected to serve an access at a random place in an area.
//!
//! Document 000, chapter 5: with a 32 KiB L1, half of the accesses into 64 KiB hit it, a
//! quarter of those into 128 KiB. Random order fills all sets evenly, so each cache holds as much
//! of the area as it has room for beyond the caches inside it.

use membound_types::{ExpectedHits, Level, LevelKind};

/// Shares of random accesses into `area_bytes` that each of `levels` (innermost first)
/// serves. They add up to 1.
///
/// A cache of unknown size serves the rest, as memory does. If the outermost level
/// is a cache smaller than the area, the rest is named `beyond` that cache. Empty without
/// levels or with an area of 0 bytes.
#[must_use]
pub fn expected_hits(area_bytes: u64, levels: &[Level]) -> Vec<ExpectedHits> {
    if area_bytes == 0 || levels.is_empty() {
        return Vec::new();
    }
    let area = area_bytes as f64;
    let mut inner_bytes = 0_u64;
    let mut hits = Vec::with_capacity(levels.len());
    for level in levels {
        let reach = match (level.kind, level.size_bytes) {
            (LevelKind::Cache, Some(size)) => size.min(area_bytes).max(inner_bytes),
            (LevelKind::Cache, None) | (LevelKind::Memory, _) => area_bytes,
        };
        hits.push(ExpectedHits {
            level: level.name.clone(),
            share: (reach - inner_bytes) as f64 / area,
        });
        inner_bytes = reach;
    }
    if inner_bytes < area_bytes {
        let outermost = levels.last().map_or("", |level| level.name.as_str());
        hits.push(ExpectedHits {
            level: format!("beyond {outermost}"),
            share: (area_bytes - inner_bytes) as f64 / area,
        });
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::level;

    fn shares(area: u64, levels: &[Level]) -> Vec<(String, f64)> {
        expected_hits(area, levels)
            .into_iter()
            .map(|hit| (hit.level, hit.share))
            .collect()
    }

    #[test]
    fn chapter_five_of_the_document() {
        let haswell = [
            level("L1", Some(32 << 10)),
            level("L2", Some(256 << 10)),
            level("L3", Some(20 << 20)),
            level("DRAM", None),
        ];
        let of = |name: &str, area| {
            shares(area, &haswell)
                .into_iter()
                .find(|hit| hit.0 == name)
                .unwrap()
                .1
        };
        assert_eq!(of("L1", 64 << 10), 0.5);
        assert_eq!(of("L2", 64 << 10), 0.5);
        assert_eq!(of("L1", 128 << 10), 0.25);
        assert_eq!(of("L2", 128 << 10), 0.75);
        assert_eq!(of("L2", 512 << 10), 0.4375);
        assert_eq!(of("L3", 512 << 10), 0.5);
        assert_eq!(of("L1", 1 << 10), 1.0);
        assert_eq!(of("DRAM", 40 << 20), 0.5);
    }

    #[test]
    fn shares_add_up_to_one_also_beyond_the_last_cache() {
        let no_memory = [level("L1", Some(32 << 10)), level("L2", Some(256 << 10))];
        let found = shares(1 << 20, &no_memory);
        assert_eq!(found.last().unwrap().0, "beyond L2");
        assert!((found.iter().map(|hit| hit.1).sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(expected_hits(0, &no_memory).is_empty());
        assert!(expected_hits(1 << 20, &[]).is_empty());
    }
}
