//! Estimates how many of N accesses into an area each level served (document 000, chapter 5).
//!
//! If the machine counts misses, the counters give the hits. Otherwise times do: single accesses
//! into the same area were timed one by one, and their histogram of ticks is a mixture of the
//! histograms of the levels. The histogram of a level comes from an area that lies mostly in that
//! level, minus the part that inner levels serve according to their sizes. The accesses of a kernel
//! fall into the area independently of each other, so the shares for one access hold for N.
//!
//! Sizes decide only which areas represent a level; the shares come from the ticks.

use membound_types::{
    AreaPoint, Basis, Cache, CacheKind, CalibratedLevel, Calibration, Figure, Level, LevelHits,
    LevelKind, Misses, Mlp, Outcome, TickCount,
};

use crate::area::expected_hits;
use crate::stall::{Mixer, collected};
use crate::stats::student_95;

/// Name of the kernel's histograms; the mixer compares them only with themselves.
const KERNEL: &str = "mlp";

/// Fills the hits of every area and N, of `part` and of its other conditions.
/// Without `levels` the declared `caches` are used instead.
pub fn fill(part: &mut Mlp, levels: &[Level], caches: &[Cache]) {
    let known = if levels.is_empty() {
        declared_levels(caches)
    } else {
        levels.to_vec()
    };
    fill_points(&mut part.areas, &known);
    for other in &mut part.others {
        fill(other, levels, caches);
    }
}

/// Fills the hits of the points of one sweep.
pub fn fill_points(points: &mut [AreaPoint], levels: &[Level]) {
    let timed = shares_by_times(points, levels);
    for point in points {
        let counted = point
            .misses
            .known()
            .and_then(|misses| by_counters(point.loads, misses, levels));
        point.hits = match (counted, &timed) {
            (Some(hits), _) => Outcome::Known(hits),
            (None, Ok(areas)) => match areas.iter().find(|(area, _)| *area == point.area_bytes) {
                Some((_, shares)) => Outcome::Known(times(point.loads, shares)),
                None => Outcome::missing("no single accesses were timed in this area"),
            },
            (None, Err(why)) => Outcome::missing(why.clone()),
        };
    }
}

/// Levels as the machine declares them, then memory; empty without caches.
fn declared_levels(caches: &[Cache]) -> Vec<Level> {
    let mut data: Vec<&Cache> = caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction)
        .collect();
    data.sort_by_key(|cache| cache.level);
    data.dedup_by_key(|cache| cache.level);
    let level = |name: String, kind, size_bytes| Level {
        name,
        kind,
        size_bytes,
        size_low_bytes: None,
        size_high_bytes: None,
        latency_ns: 1.0,
        latency_low_ns: 1.0,
        latency_high_ns: 1.0,
        latency_cycles: 1.0,
        line_bytes: None,
        line_basis: None,
        declared_bytes: size_bytes,
        note: None,
    };
    let mut levels: Vec<Level> = data
        .into_iter()
        .map(|cache| {
            level(
                format!("L{}", cache.level),
                LevelKind::Cache,
                Some(cache.size_bytes),
            )
        })
        .collect();
    if !levels.is_empty() {
        levels.push(level("DRAM".to_owned(), LevelKind::Memory, None));
    }
    levels
}

/// Hits by counted misses: a level served the accesses that missed the cache before it and did not
/// miss the level itself. Levels between two counters are reported together. `None` if the misses
/// of the first or of the last cache are not counted, or with fewer than two caches.
fn by_counters(loads: u32, misses: &Misses, levels: &[Level]) -> Option<Vec<LevelHits>> {
    let caches = levels
        .iter()
        .filter(|level| level.kind == LevelKind::Cache)
        .count();
    // Misses of each cache; the last cache's counter is `l3`, regardless of its number.
    let behind = |cache: usize| match cache {
        _ if cache + 1 == caches => misses.l3.known(),
        0 => misses.l1.known(),
        1 => misses.l2.known(),
        _ => None,
    };
    if caches < 2 || misses.l1.known().is_none() || misses.l3.known().is_none() {
        return None;
    }
    let mut hits = Vec::new();
    let mut arriving = f64::from(loads);
    let mut names: Vec<&str> = Vec::new();
    for (index, level) in levels.iter().enumerate() {
        names.push(&level.name);
        let passed = if index + 1 == levels.len() {
            Some(0.0)
        } else {
            // Counters include the kernel's own accesses and prefetches, so counts can be too high.
            behind(index).map(|count| count.clamp(0.0, arriving))
        };
        if let Some(passed) = passed {
            let value = arriving - passed;
            hits.push(LevelHits {
                level: names.join("+"),
                hits: Figure {
                    value,
                    low: value,
                    high: value,
                    basis: Basis::Measured,
                },
            });
            arriving = passed;
            names.clear();
        }
    }
    Some(hits)
}

/// The share of accesses that one level served, with the ends of its 95 % interval.
struct Share {
    level: String,
    value: f64,
    low: f64,
    high: f64,
}

impl Share {
    /// Adds an independent error, half of a 95 % interval, to both sides.
    fn widen(&mut self, half: f64) {
        self.low = (self.value - (self.value - self.low).hypot(half)).max(0.0);
        self.high = (self.value + (self.high - self.value).hypot(half)).min(1.0);
    }
}

fn times(loads: u32, shares: &[Share]) -> Vec<LevelHits> {
    let n = f64::from(loads);
    shares
        .iter()
        .map(|share| LevelHits {
            level: share.level.clone(),
            hits: Figure {
                value: n * share.value,
                low: n * share.low,
                high: n * share.high,
                basis: Basis::Estimated,
            },
        })
        .collect()
}

/// The shares of every area in which single accesses were timed, or the reason why there are none.
fn shares_by_times(
    points: &[AreaPoint],
    levels: &[Level],
) -> Result<Vec<(u64, Vec<Share>)>, String> {
    let timed: Vec<&AreaPoint> = points
        .iter()
        .filter(|point| point.loads == 1 && !point.ticks.is_empty())
        .collect();
    if timed.is_empty() {
        return Err("there are no counters, and no single accesses were timed".to_owned());
    }
    let calibration = references(&timed, levels)?;
    let mixer = Mixer::new(&calibration, KERNEL).map_err(|why| why.to_string())?;
    let mut areas: Vec<(u64, Vec<Share>)> = timed
        .iter()
        .map(|point| (point.area_bytes, shares(&mixer, point)))
        .collect();
    let scatter = share_scatter(&areas, levels[0].size_bytes);
    for (_, shares) in &mut areas {
        for share in shares.iter_mut().take(2) {
            share.widen(scatter);
        }
    }
    Ok(areas)
}

/// Error of the first level's share, as half of a 95 % interval; 1 without a suitable area.
///
/// Areas well inside the first cache are served by it alone, but a histogram that is a few ticks
/// off gives another share. The first two levels have similar times, so their shares are no more
/// precise in other areas.
fn share_scatter(areas: &[(u64, Vec<Share>)], first_bytes: Option<u64>) -> f64 {
    const NORMAL_95: f64 = 1.96;
    let errors: Vec<f64> = areas
        .iter()
        .filter(|(area, _)| first_bytes.is_some_and(|size| *area <= size / 2))
        .filter_map(|(_, shares)| Some(1.0 - shares.first()?.value))
        .collect();
    if errors.is_empty() {
        return 1.0;
    }
    let squares: f64 = errors.iter().map(|error| error.powi(2)).sum();
    NORMAL_95 * (squares / errors.len() as f64).sqrt()
}

/// Shares of one area: mean over its draws of displacements, with Student's interval.
fn shares(mixer: &Mixer, point: &AreaPoint) -> Vec<Share> {
    let draws: Vec<Vec<(String, f64)>> = point
        .ticks
        .iter()
        .filter_map(|ticks| mixer.fit(ticks))
        .map(|mixture| {
            let mut shares: Vec<(String, f64)> = mixture
                .levels
                .into_iter()
                .map(|level| (level.name, level.share.value))
                .collect();
            // Accesses slower than every level waited for memory and something else.
            if let Some((_, outermost)) = shares.last_mut() {
                *outermost += mixture.beyond.value;
            }
            shares
        })
        .collect();
    let Some(first) = draws.first() else {
        return Vec::new();
    };
    let n = draws.len() as f64;
    first
        .iter()
        .enumerate()
        .map(|(index, (level, _))| {
            let of_draws = || draws.iter().map(|draw| draw[index].1);
            let value = of_draws().sum::<f64>() / n;
            let variance =
                of_draws().map(|share| (share - value).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
            let half = if draws.len() > 1 {
                student_95(draws.len() - 1) * (variance / n).sqrt()
            } else {
                1.0
            };
            Share {
                level: level.clone(),
                value,
                low: (value - half).max(0.0),
                high: (value + half).min(1.0),
            }
        })
        .collect()
}

/// Histograms of single accesses to each level, innermost first.
fn references(timed: &[&AreaPoint], levels: &[Level]) -> Result<Calibration, String> {
    if levels.len() < 2 {
        return Err("the levels of the hierarchy are not known".to_owned());
    }
    let mut found: Vec<CalibratedLevel> = Vec::new();
    for (index, level) in levels.iter().enumerate() {
        let Some((anchor, share)) = anchor(timed, levels, index) else {
            return Err(format!("no area lies mostly in {}", level.name));
        };
        let weighted = |entry: &TickCount| (entry.ticks, entry.count as f64);
        let all = collected(anchor.ticks.iter().flatten().map(weighted).collect());
        let total = total(&all);
        // Subtract the accesses that inner levels served.
        let inner: Vec<(&CalibratedLevel, f64)> = expected_hits(anchor.area_bytes, levels)
            .into_iter()
            .take(index)
            .filter_map(|hit| {
                let level = found.iter().find(|level| level.name == hit.level)?;
                Some((level, hit.share * total / total_of(level)))
            })
            .collect();
        let ticks: Vec<TickCount> = all
            .iter()
            .map(|entry| {
                let theirs: f64 = inner
                    .iter()
                    .map(|(level, scale)| scale * count_at(level, entry.ticks))
                    .sum();
                TickCount {
                    ticks: entry.ticks,
                    count: (entry.count as f64 - theirs).max(0.0).round() as u64,
                }
            })
            .filter(|entry| entry.count > 0)
            .collect();
        let count: u64 = ticks.iter().map(|entry| entry.count).sum();
        if (count as f64) < 0.5 * share * total {
            return Err(format!(
                "the area of {} bytes does not show {}",
                anchor.area_bytes, level.name
            ));
        }
        found.push(CalibratedLevel {
            name: level.name.clone(),
            area_bytes: anchor.area_bytes,
            latency_ns: level.latency_ns.max(f64::MIN_POSITIVE),
            count,
            ticks,
            hit_ticks: None,
            drain_ticks: None,
        });
    }
    Ok(Calibration {
        levels: found,
        tick_hz: 1e9,
        patch: KERNEL.to_owned(),
        ..Calibration::default()
    })
}

/// The area that represents level `index` best, and the share that the level serves there: the
/// largest area that lies well inside the level, because a cache holds less of an area as large as
/// itself; for memory the largest of all.
fn anchor<'a>(
    timed: &[&'a AreaPoint],
    levels: &[Level],
    index: usize,
) -> Option<(&'a AreaPoint, f64)> {
    const MOSTLY: f64 = 0.5;
    let share = |point: &AreaPoint| {
        expected_hits(point.area_bytes, levels)
            .get(index)
            .map_or(0.0, |hit| hit.share)
    };
    let largest_within = |bytes: u64, least: f64| {
        timed
            .iter()
            .copied()
            .filter(|point| point.area_bytes <= bytes && share(point) >= least)
            .max_by_key(|point| point.area_bytes)
    };
    let level = &levels[index];
    let found = match (level.kind, level.size_bytes) {
        (LevelKind::Cache, Some(size)) => {
            largest_within(size / 4, 0.7).or_else(|| largest_within(size / 2, MOSTLY))
        }
        _ => largest_within(u64::MAX, MOSTLY),
    };
    found.map(|point| (point, share(point)))
}

fn total(ticks: &[TickCount]) -> f64 {
    ticks.iter().map(|entry| entry.count as f64).sum()
}

fn total_of(level: &CalibratedLevel) -> f64 {
    total(&level.ticks).max(1.0)
}

fn count_at(level: &CalibratedLevel, ticks: u32) -> f64 {
    level
        .ticks
        .binary_search_by_key(&ticks, |entry| entry.ticks)
        .map_or(0.0, |at| level.ticks[at].count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use crate::testing::level;

    /// A set-associative cache with least recently used replacement.
    struct SimulatedCache {
        ways: usize,
        sets: Vec<Vec<u64>>,
    }

    impl SimulatedCache {
        fn new(bytes: u64, ways: usize) -> Self {
            let sets = bytes as usize / 64 / ways;
            Self {
                ways,
                sets: vec![Vec::new(); sets],
            }
        }

        /// True if `line` was present; it is present afterwards.
        fn access(&mut self, line: u64) -> bool {
            let index = (line % self.sets.len() as u64) as usize;
            let set = &mut self.sets[index];
            let hit = set.iter().position(|held| *held == line);
            match hit {
                Some(at) => {
                    set.remove(at);
                }
                None if set.len() == self.ways => {
                    set.remove(0);
                }
                None => {}
            }
            set.push(line);
            hit.is_some()
        }
    }

    const L1: u64 = 32 << 10;
    const L2: u64 = 256 << 10;
    const L3: u64 = 2 << 20;

    fn levels() -> Vec<Level> {
        vec![
            level("L1", Some(L1)),
            level("L2", Some(L2)),
            level("L3", Some(L3)),
            level("DRAM", None),
        ]
    }

    /// Random accesses into `area` through simulated caches: the number that each level served, and
    /// histograms of times whose timer advances in steps of `step` ticks.
    fn simulated(area: u64, step: u32) -> (Vec<f64>, AreaPoint) {
        const ACCESSES: usize = 10_000;
        const DRAWS: usize = 5;
        const TICKS: [u64; 4] = [52, 60, 90, 420];
        let mut caches = [
            SimulatedCache::new(L1, 8),
            SimulatedCache::new(L2, 8),
            SimulatedCache::new(L3, 16),
        ];
        let mut random = Random::new(area);
        let mut served = vec![0.0; 4];
        let lines = area / 64;
        let mut access = |random: &mut Random| {
            let line = random.below(lines);
            let hits: Vec<bool> = caches.iter_mut().map(|cache| cache.access(line)).collect();
            hits.iter().position(|hit| *hit).unwrap_or(3)
        };
        for _ in 0..4 * lines.max(1000) {
            access(&mut random);
        }
        let mut ticks = Vec::new();
        for _ in 0..DRAWS {
            let mut draw = Vec::new();
            for _ in 0..ACCESSES {
                let level = access(&mut random);
                served[level] += 1.0 / (ACCESSES * DRAWS) as f64;
                let noise = random.below(6) + random.below(6);
                let begin = random.below(u64::from(step));
                let steps = (begin + TICKS[level] + noise) / u64::from(step);
                draw.push((steps as u32 * step, 1.0));
            }
            ticks.push(collected(draw));
        }
        let point = AreaPoint {
            area_bytes: area,
            loads: 1,
            cycles: 0.0,
            spread: 0.0,
            ratio: Some(1.0),
            expected: Vec::new(),
            hits: Outcome::default(),
            ticks,
            misses: Outcome::missing("no counters"),
        };
        (served, point)
    }

    /// Fills `points` and compares them with what the caches served, N = 8 from N = 1.
    fn check(step: u32, within: f64) {
        let areas = (10..=24).map(|power| 1_u64 << power);
        let (truth, mut points): (Vec<Vec<f64>>, Vec<AreaPoint>) =
            areas.map(|area| simulated(area, step)).unzip();
        let eight: Vec<AreaPoint> = points
            .iter()
            .map(|point| AreaPoint {
                loads: 8,
                ticks: Vec::new(),
                ..point.clone()
            })
            .collect();
        points.extend(eight);
        fill_points(&mut points, &levels());
        for (index, point) in points.iter().enumerate() {
            let truth = &truth[index % truth.len()];
            let hits = point.hits.known().unwrap_or_else(|| panic!("{point:?}"));
            for (level, truth) in hits.iter().zip(truth) {
                let share = level.hits.value / f64::from(point.loads);
                assert!(
                    (share - truth).abs() < within,
                    "{} of {} bytes, N = {}: {share:.3} instead of {truth:.3}",
                    level.level,
                    point.area_bytes,
                    point.loads
                );
                assert_eq!(level.hits.basis, Basis::Estimated);
            }
        }
    }

    #[test]
    fn times_alone_give_the_hits_of_simulated_caches() {
        check(1, 0.03);
    }

    #[test]
    fn coarse_timer_steps_give_the_hits_of_simulated_caches() {
        check(26, 0.08);
    }

    #[test]
    fn errors_at_the_first_cache_widen_the_other_intervals() {
        let share = |value: f64| Share {
            level: "L1".to_owned(),
            value,
            low: value - 0.01,
            high: value + 0.01,
        };
        let areas = [
            (1 << 10, vec![share(0.6)]),
            (16 << 10, vec![share(1.0)]),
            (64 << 10, vec![share(0.5)]),
        ];
        let found = share_scatter(&areas, Some(L1));
        assert!((found - 1.96 * 0.4 / 2_f64.sqrt()).abs() < 1e-9, "{found}");
        let mut half = share(0.5);
        half.widen(0.2);
        assert!(
            half.low < 0.3 && half.high > 0.7,
            "{} {}",
            half.low,
            half.high
        );
        assert_eq!(share_scatter(&areas, Some(512)), 1.0);
    }

    fn counted(loads: u32, l1: f64, l2: Outcome<f64>, l3: f64) -> Vec<(String, f64)> {
        let misses = Misses {
            l1: Outcome::Known(l1),
            l2,
            l3: Outcome::Known(l3),
            tlb: Outcome::missing("not asked for"),
        };
        by_counters(loads, &misses, &levels())
            .unwrap()
            .into_iter()
            .map(|hit| (hit.level, hit.hits.value))
            .collect()
    }

    #[test]
    fn counters_give_the_hits_of_chapter_five() {
        // 64 KiB: of ten accesses five hit the first cache and five the second.
        let hits = counted(10, 5.0, Outcome::Known(0.0), 0.0);
        assert_eq!(hits[0], ("L1".to_owned(), 5.0));
        assert_eq!(hits[1], ("L2".to_owned(), 5.0));
        assert_eq!(hits[3], ("DRAM".to_owned(), 0.0));
        // 128 KiB: of eight two and six.
        let hits = counted(8, 6.0, Outcome::Known(0.0), 0.0);
        assert_eq!((hits[0].1, hits[1].1), (2.0, 6.0));
        // Without the second cache's counter, two levels are reported together.
        let hits = counted(10, 9.0, Outcome::missing("refused"), 4.0);
        assert_eq!(hits[1], ("L2+L3".to_owned(), 5.0));
        assert_eq!(hits[2], ("DRAM".to_owned(), 4.0));
    }

    #[test]
    fn without_counters_and_times_there_is_a_reason() {
        let (_, mut point) = simulated(1 << 10, 1);
        point.ticks.clear();
        let mut points = [point];
        fill_points(&mut points, &levels());
        let why = points[0].hits.why_missing().unwrap();
        assert!(why.reason.contains("no single accesses"), "{why:?}");
        let (_, point) = simulated(1 << 10, 1);
        let mut points = [point];
        fill_points(&mut points, &[]);
        assert!(points[0].hits.known().is_none());
    }
}
