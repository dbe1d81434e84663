//! Compares the levels found with the caches that the machine declares.
//!
//! A guest sees the host's caches declared, a chiplet's share may be declared as the whole, and a
//! private cache may spill into a neighbour's. So declared sizes never affect the search
//! for levels; they are reported next to the sizes found, with a note if they differ.

use membound_types::{Basis, Cache, CacheKind, Level, LevelKind, LineSize};

/// Ratio up to which two sizes count as equal: sets fill unevenly, and a curve has a grid.
const MAX_EQUAL_SIZE_RATIO: f64 = 1.15;

/// Cost of leaving a found cache unmatched, as ln of a ratio of sizes: a share
/// of a shared cache may well be an eighth of it.
const UNMATCHED_COST_LN: f64 = 2.08;

/// Compares found levels with declared caches.
///
/// Fills `declared_bytes`, `note`, and `line_bytes` with its basis, and names the levels after the
/// caches that they match. Found caches are matched to declared data and unified caches in order,
/// nearest in ln(size). An unmatched found cache is numbered after the one inside it.
/// `hypervisor` is the name of a hypervisor, if any; `line` is the line found from stride curves.
pub fn compare(
    levels: &mut [Level],
    caches: &[Cache],
    hypervisor: Option<&str>,
    line: Option<&LineSize>,
) {
    let mut declared: Vec<&Cache> = caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction && cache.size_bytes > 0)
        .collect();
    declared.sort_by_key(|cache| (cache.level, cache.size_bytes));
    declared.dedup_by_key(|cache| cache.level);
    let found: Vec<usize> = (0..levels.len())
        .filter(|&index| levels[index].kind == LevelKind::Cache)
        .collect();
    let sizes: Vec<Option<u64>> = found
        .iter()
        .map(|&index| levels[index].size_bytes)
        .collect();
    let matches = matching(&sizes, &declared);
    let names = names(&matches, &declared);
    let outermost = declared.last().map(|cache| cache.level);
    for (place, &index) in found.iter().enumerate() {
        let level = &mut levels[index];
        level.name = format!("L{}", names[place]);
        let Some(cache) = matches[place].map(|at| declared[at]) else {
            continue;
        };
        level.declared_bytes = Some(cache.size_bytes);
        if level.line_bytes.is_none() {
            level.line_bytes = cache.line_bytes;
            level.line_basis = cache.line_bytes.map(|_| Basis::Declared);
        }
        if let Some(size) = level.size_bytes {
            level.note = note(
                size,
                level.size_low_bytes.zip(level.size_high_bytes),
                cache,
                hypervisor,
                outermost,
            );
        }
    }
    if let Some(line) = line.filter(|line| line.basis != Basis::Declared) {
        for level in levels.iter_mut() {
            level.line_bytes = Some(line.bytes);
            level.line_basis = Some(line.basis);
        }
    }
}

/// For each found size the index of the declared cache that it matches: the monotone assignment
/// with the least sum of |ln(found ÷ declared)|, each unmatched size costing [`UNMATCHED_COST_LN`].
fn matching(found: &[Option<u64>], declared: &[&Cache]) -> Vec<Option<usize>> {
    // cost[f][d]: least cost of found[f..] with declared[d..].
    let (rows, columns) = (found.len(), declared.len());
    let mut cost = vec![vec![0.0_f64; columns + 1]; rows + 1];
    let pair = |row: usize, column: usize| {
        found[row].map_or(f64::INFINITY, |size| {
            (size as f64 / declared[column].size_bytes as f64)
                .ln()
                .abs()
        })
    };
    for row in (0..rows).rev() {
        for column in (0..=columns).rev() {
            let mut least = UNMATCHED_COST_LN + cost[row + 1][column];
            if column < columns {
                least = least
                    .min(cost[row][column + 1])
                    .min(pair(row, column) + cost[row + 1][column + 1]);
            }
            cost[row][column] = least;
        }
    }
    let mut matches = vec![None; rows];
    let (mut row, mut column) = (0, 0);
    while row < rows && column < columns {
        let here = cost[row][column];
        if pair(row, column) + cost[row + 1][column + 1] <= here {
            matches[row] = Some(column);
            row += 1;
            column += 1;
        } else if cost[row][column + 1] <= here {
            column += 1;
        } else {
            row += 1;
        }
    }
    matches
}

/// Level numbers: the declared number if matched, else one more than the level inside.
/// If the numbers would not increase, all are numbered from 1.
fn names(matches: &[Option<usize>], declared: &[&Cache]) -> Vec<u32> {
    let mut numbers: Vec<u32> = Vec::with_capacity(matches.len());
    for matched in matches {
        let after = numbers.last().map_or(1, |last| last + 1);
        numbers.push(matched.map_or(after, |at| declared[at].level));
    }
    if numbers.windows(2).all(|pair| pair[0] < pair[1]) {
        numbers
    } else {
        (1..).take(matches.len()).collect()
    }
}

/// A sentence about a found size that differs from the declared one; `None` if they agree.
fn note(
    found: u64,
    interval: Option<(u64, u64)>,
    cache: &Cache,
    hypervisor: Option<&str>,
    outermost: Option<u32>,
) -> Option<String> {
    let ratio = found as f64 / cache.size_bytes as f64;
    let covered = interval.is_some_and(|(low, high)| (low..=high).contains(&cache.size_bytes));
    if (1.0 / MAX_EQUAL_SIZE_RATIO..=MAX_EQUAL_SIZE_RATIO).contains(&ratio) || covered {
        return None;
    }
    let shared = cache.shared_by.len() > 1 || outermost == Some(cache.level);
    let meaning = match (ratio < 1.0, shared, hypervisor) {
        (true, true, Some(name)) => {
            format!("the guest's share of a cache that the host's cores share ({name})")
        }
        (true, true, None) => "other cores use the rest, or hold it in slices of their own".to_owned(),
        (true, false, Some(name)) => format!(
            "pages that the hypervisor ({name}) laid out leave parts of it unused, or the declaration is another machine's"
        ),
        (true, false, None) => {
            "base pages of random colour, or a second thread of the core, leave less".to_owned()
        }
        (false, true, _) => {
            "lines spill into caches beyond the declared one, or the declaration counts a part".to_owned()
        }
        (false, false, _) => {
            "lines cast out of this private cache are kept by neighbouring ones, or the declaration is wrong".to_owned()
        }
    };
    Some(format!(
        "declared {}, effective {}: {meaning}",
        bytes(cache.size_bytes),
        bytes(found)
    ))
}

/// A size in bytes as text with two digits or so: `48 KiB`, `1.5 MiB`, `11 MiB`.
pub(crate) fn bytes(size: u64) -> String {
    let (value, unit) = if size >= 1 << 30 {
        (size as f64 / f64::from(1 << 30), "GiB")
    } else if size >= 1 << 20 {
        (size as f64 / f64::from(1 << 20), "MiB")
    } else if size >= 1 << 10 {
        (size as f64 / f64::from(1 << 10), "KiB")
    } else {
        return format!("{size} B");
    };
    if value < 10.0 && (value - value.round()).abs() > 0.05 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::level;
    use membound_types::CpuId;

    fn cache(level: u32, kind: CacheKind, size_bytes: u64, sharers: u32) -> Cache {
        Cache {
            level,
            kind,
            size_bytes,
            line_bytes: Some(64),
            ways: None,
            shared_by: (0..sharers).map(CpuId).collect(),
            source: "sysfs".to_owned(),
        }
    }

    fn zen5() -> Vec<Cache> {
        vec![
            cache(1, CacheKind::Data, 48 << 10, 1),
            cache(1, CacheKind::Instruction, 32 << 10, 1),
            cache(2, CacheKind::Unified, 1 << 20, 1),
            cache(3, CacheKind::Unified, 32 << 20, 2),
        ]
    }

    #[test]
    fn a_guests_share_is_named_and_equal_sizes_have_no_note() {
        let mut levels = [
            level("L1", Some(47 << 10)),
            level("L2", Some(1000 << 10)),
            level("L3", Some(11 << 20)),
            level("DRAM", None),
        ];
        compare(&mut levels, &zen5(), Some("kvm"), None);
        assert_eq!(levels[0].note, None);
        assert_eq!(levels[1].declared_bytes, Some(1 << 20));
        let note = levels[2].note.as_deref().unwrap();
        assert!(
            note.starts_with("declared 32 MiB, effective 11 MiB: the guest's share"),
            "{note}"
        );
        assert_eq!(levels[3].declared_bytes, None);
        assert_eq!(levels[0].line_basis, Some(Basis::Declared));
    }

    #[test]
    fn a_level_that_was_not_found_keeps_the_others_names() {
        let mut levels = [level("L1", Some(32 << 10)), level("L2", Some(18 << 20))];
        compare(
            &mut levels,
            &[
                cache(1, CacheKind::Data, 32 << 10, 2),
                cache(2, CacheKind::Unified, 256 << 10, 2),
                cache(3, CacheKind::Unified, 20 << 20, 16),
            ],
            None,
            None,
        );
        assert_eq!(levels[1].name, "L3");
        assert_eq!(levels[1].declared_bytes, Some(20 << 20));
    }

    #[test]
    fn undeclared_levels_are_named_in_order() {
        let mut levels = [
            level("a", Some(128 << 10)),
            level("b", Some(12 << 20)),
            level("c", Some(8 << 27)),
        ];
        compare(
            &mut levels,
            &[
                cache(1, CacheKind::Data, 128 << 10, 1),
                cache(2, CacheKind::Unified, 12 << 20, 4),
            ],
            None,
            None,
        );
        let names: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
        assert_eq!(names, ["L1", "L2", "L3"]);
        assert_eq!(levels[2].declared_bytes, None);
        let mut bare = [level("x", Some(1 << 15)), level("y", None)];
        compare(&mut bare, &[], None, None);
        assert_eq!(bare[1].name, "L2");
    }

    #[test]
    fn a_found_line_beats_the_declared_one() {
        let mut levels = [level("L1", Some(48 << 10)), level("DRAM", None)];
        let line = LineSize {
            bytes: 128,
            sector_bytes: 128,
            basis: Basis::Estimated,
        };
        compare(&mut levels, &zen5(), None, Some(&line));
        assert_eq!(levels[0].line_bytes, Some(128));
        assert_eq!(levels[1].line_basis, Some(Basis::Estimated));
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        let texts: Vec<String> = [512, 48 << 10, 1 << 20, 1_310_720, 11_534_336, 1 << 30]
            .map(bytes)
            .to_vec();
        assert_eq!(
            texts,
            ["512 B", "48 KiB", "1 MiB", "1.2 MiB", "11 MiB", "1 GiB"]
        );
    }
}
