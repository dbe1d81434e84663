//! Estimates the cost of a page walk and the number of walks under way at once, from T(N) with
//! small pages and T(N) with large ones.
//!
//! Document 000, chapter 2: without huge pages one access takes 57 cycles more (203 → 260)
//! and each further one about 60, so walks are served one after another. In general, if walks are
//! served P at a time, the first of several parallel loads returns after one walk and one load,
//! and then one load every w ÷ P cycles, where w is the cost of one walk, unless memory itself
//! takes longer for each further load. Hence
//!
//! ```text
//! P = w ÷ (further cycles of each load with small pages)
//! ```
//!
//! if those exceed the further cycles with large pages, that is if the excess
//! e(N) = T(N, small) − T(N, large) grows with N. If the two costs of a further load were added
//! instead of overlapping, P would be w ÷ (growth of the excess); the upper
//! end of the interval allows for that. If the excess does not grow, walks overlap with
//! the loads themselves, and P is only known to be at least the same quotient.
//!
//! The cost of one walk is the difference between the lines of loads in sequence
//! (M, small − M, large), which a shift between two runs does not affect, or of one load
//! alone, whichever has the narrower interval. Times are core clock cycles.

use std::collections::BTreeMap;

use membound_types::{Basis, Figure, Outcome, PageKind, PageWalks, SequentialLine};

use crate::mlp::{RulePoint, around};
use crate::stats::{robust_line, student_95};

/// Fewest different N for a slope.
const MIN_POINTS: usize = 4;

/// The times of the N that both conditions have, with small and with large pages.
type Common<'a> = BTreeMap<u32, (&'a RulePoint, &'a RulePoint)>;

/// The times of one condition, in core clock cycles.
#[derive(Clone, Copy, Debug)]
pub struct Times<'a> {
    /// Times of parallel loads.
    pub parallel: &'a [RulePoint],
    /// Line through the times of loads in sequence, if known.
    pub sequence: Option<&'a SequentialLine>,
}

/// Compares loads that need walks with loads on the larger pages `against`, which need none.
///
/// `most_loads` is the parallelism by the rule on the larger pages: with more loads, loads wait
/// for one another with or without walks. `None` uses all N that both conditions have. Missing
/// with fewer than four common N, or if one load takes no longer with the smaller pages.
#[must_use]
pub fn compare(
    small: Times<'_>,
    large: Times<'_>,
    against: PageKind,
    most_loads: Option<f64>,
) -> Outcome<PageWalks> {
    let most_loads = most_loads.unwrap_or(f64::INFINITY);
    let other: BTreeMap<u32, &RulePoint> = usable(large.parallel).collect();
    let common: Common<'_> = usable(small.parallel)
        .filter(|(loads, _)| f64::from(*loads) <= most_loads)
        .filter_map(|(loads, point)| Some((loads, (point, *other.get(&loads)?))))
        .collect();
    let (Some([further, further_against, excess]), Some(&from), Some(&to)) = (
        further_cycles(&common),
        common.keys().next(),
        common.keys().next_back(),
    ) else {
        return Outcome::missing_with(
            format!("fewer than {MIN_POINTS} numbers of loads were measured with both page kinds"),
            "measure more of them (`--loads`)",
        );
    };
    let Some((miss, miss_from_sequence)) = one_walk(small, large) else {
        return Outcome::missing("the time of one load is not known with both page kinds");
    };
    if miss.low <= 0.0 {
        return Outcome::missing(format!(
            "one load takes no longer than on {against} pages, within the intervals"
        ));
    }
    let most = f64::from(to).max(1.0);
    let (walks, walks_at_least) = walks_at_once(miss, further, excess, most, against);
    Outcome::Known(PageWalks {
        against,
        from_loads: from,
        to_loads: to,
        miss_cycles: miss,
        miss_from_sequence,
        further_cycles: further,
        further_against_cycles: further_against,
        excess_cycles: excess,
        walks,
        walks_at_least,
        walks_by_chases: None,
    })
}

/// Cycles that each further load takes with small and with large pages, and the growth of the excess; `None`
/// with too few common N for lines.
fn further_cycles(common: &Common<'_>) -> Option<[Figure; 3]> {
    if common.len() < MIN_POINTS {
        return None;
    }
    let slope = |time: fn(&RulePoint, &RulePoint) -> f64| {
        let points: Vec<(f64, f64)> = common
            .iter()
            .map(|(loads, (small, large))| (f64::from(*loads), time(small, large)))
            .collect();
        let line = robust_line(&points)?;
        Some(around(
            line.slope,
            student_95(line.points.saturating_sub(2)) * line.slope_error,
        ))
    };
    Some([
        slope(|small, _| small.cycles)?,
        slope(|_, large| large.cycles)?,
        slope(|small, large| small.cycles - large.cycles)?,
    ])
}

/// Number of concurrent walks, up to `most`, and its lower end.
fn walks_at_once(
    miss: Figure,
    further: Figure,
    excess: Figure,
    most: f64,
    against: PageKind,
) -> (Outcome<Figure>, f64) {
    let quotient = |walk: f64, each: f64| {
        if each > 0.0 {
            (walk / each).clamp(1.0, most)
        } else {
            most
        }
    };
    let walks_at_least = quotient(miss.low, further.high);
    let walks = if excess.low > 0.0 {
        let value = quotient(miss.value, further.value);
        Outcome::Known(Figure {
            value,
            low: walks_at_least.min(value),
            high: quotient(miss.high, excess.low).max(value),
            basis: Basis::Estimated,
        })
    } else {
        Outcome::missing_with(
            format!(
                "the excess over {against} pages does not grow with the loads, so that at least \
                 {walks_at_least:.1} walks overlap"
            ),
            "independent chases reach further (`membound measure tlb`)",
        )
    };
    (walks, walks_at_least)
}

fn usable(points: &[RulePoint]) -> impl Iterator<Item = (u32, &RulePoint)> {
    points
        .iter()
        .filter(|point| point.loads > 0 && point.cycles.is_finite())
        .map(|point| (point.loads, point))
}

/// Cycles that one walk adds to one load, and true if they come from loads in sequence: the
/// method with the narrower interval. `None` if neither is known.
fn one_walk(small: Times<'_>, large: Times<'_>) -> Option<(Figure, bool)> {
    let half = |figure: &Figure| (figure.high - figure.low) / 2.0;
    let in_sequence = small.sequence.zip(large.sequence).map(|(small, large)| {
        around(
            small.load_cycles.value - large.load_cycles.value,
            half(&small.load_cycles).hypot(half(&large.load_cycles)),
        )
    });
    let alone = |points: &[RulePoint]| {
        usable(points)
            .find(|(loads, _)| *loads == 1)
            .map(|(_, point)| *point)
    };
    let alone = alone(small.parallel)
        .zip(alone(large.parallel))
        .map(|(small, large)| {
            around(
                small.cycles - large.cycles,
                small.half_width.hypot(large.half_width),
            )
        });
    match (in_sequence, alone) {
        (Some(sequence), Some(alone)) if half(&sequence) < half(&alone) => Some((sequence, true)),
        (_, Some(alone)) => Some((alone, false)),
        (Some(sequence), None) => Some((sequence, true)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlp::{document_000, sequential_fit};
    use crate::testing::Random;

    const WALK: f64 = 60.0;
    const LOAD: f64 = 200.0;

    /// Cycles until the last of `loads` loads returns, all ready at once: walkers serve `WALK`
    /// cycles each, then memory starts one load every `apart` cycles.
    fn queue(loads: u32, walkers: Option<usize>, apart: f64) -> f64 {
        let mut free = vec![0.0_f64; walkers.unwrap_or(0)];
        let (mut memory, mut last) = (0.0_f64, 0.0_f64);
        for _ in 0..loads {
            let translated = match free.iter_mut().min_by(|a, b| a.total_cmp(b)) {
                Some(walker) => {
                    *walker += WALK;
                    *walker
                }
                None => 0.0,
            };
            let started = translated.max(memory);
            memory = started + apart;
            last = started + LOAD;
        }
        last
    }

    fn measured(
        walkers: Option<usize>,
        apart: f64,
        noise: f64,
        random: &mut Random,
    ) -> (Vec<RulePoint>, SequentialLine) {
        let mut noisy = |cycles: f64| cycles * (1.0 + noise * random.normal());
        let parallel = (1..=12)
            .map(|loads| {
                let cycles = noisy(queue(loads, walkers, apart));
                RulePoint {
                    loads,
                    cycles,
                    half_width: 1.96 * noise * cycles,
                }
            })
            .collect();
        let walk = if walkers.is_some() { WALK } else { 0.0 };
        let series: Vec<(u32, f64)> = (1..=12)
            .map(|n| (n, noisy((LOAD + walk) * f64::from(n) + 40.0)))
            .collect();
        let line = sequential_fit(&series).known().copied().unwrap();
        (parallel, line)
    }

    fn compared(walkers: usize, apart: f64, noise: f64, random: &mut Random) -> PageWalks {
        let (small, small_line) = measured(Some(walkers), apart, noise, random);
        let (large, large_line) = measured(None, apart, noise, random);
        let found = compare(
            Times {
                parallel: &small,
                sequence: Some(&small_line),
            },
            Times {
                parallel: &large,
                sequence: Some(&large_line),
            },
            PageKind::Thp,
            Some(10.4),
        );
        found.known().expect("60 cycles stand out").clone()
    }

    #[test]
    fn walkers_are_counted_without_noise() {
        let mut random = Random::new(1);
        for (walkers, apart, tolerance) in [
            (1, 5.0, 0.01),
            (1, 15.0, 0.01),
            (2, 5.0, 0.06),
            (4, 5.0, 0.15),
        ] {
            let found = compared(walkers, apart, 0.0, &mut random);
            assert_eq!((found.from_loads, found.to_loads), (1, 10));
            let walks = found.walks.known().expect("the excess grows");
            let truth = walkers as f64;
            assert!(
                (walks.value / truth - 1.0).abs() < tolerance && walks.low <= walks.high,
                "{walkers}: {found:?}"
            );
            assert!((found.miss_cycles.value - WALK).abs() < 0.5, "{found:?}");
        }
    }

    #[test]
    fn the_interval_holds_the_number_of_walkers_at_two_per_cent_noise() {
        const TRIALS: usize = 300;
        let mut random = Random::new(2);
        for (walkers, apart) in [(1, 5.0), (1, 15.0), (2, 5.0), (2, 15.0), (4, 5.0)] {
            let (mut inside, mut known) = (0, 0);
            for _ in 0..TRIALS {
                let found = compared(walkers, apart, 0.02, &mut random);
                let truth = walkers as f64;
                match &found.walks {
                    Outcome::Known(walks) => {
                        known += 1;
                        inside += usize::from(walks.low <= truth && truth <= walks.high);
                    }
                    Outcome::Missing { .. } => inside += usize::from(found.walks_at_least <= truth),
                }
            }
            assert!(inside * 100 >= TRIALS * 93, "{walkers} {apart}: {inside}");
            if walkers == 1 {
                assert!(known * 100 >= TRIALS * 99, "{walkers} {apart}: {known}");
            }
        }
    }

    #[test]
    fn walks_that_hide_behind_the_loads_are_at_least_so_many() {
        let mut random = Random::new(3);
        // Twelve walkers, and memory that takes a load every 15 cycles: at least four
        // is all that can be said. At one a cycle, all ten that were under way.
        for (apart, least, most) in [(15.0, 2.5, 4.0), (1.0, 8.0, 10.0)] {
            let mut bounds = Vec::new();
            for _ in 0..100 {
                let found = compared(12, apart, 0.02, &mut random);
                if let Some(why) = found.walks.why_missing() {
                    assert!(why.reason.contains("at least"), "{why:?}");
                    assert!(why.remedy.is_some());
                    bounds.push(found.walks_at_least);
                }
            }
            assert!(bounds.len() >= 93, "{apart}: {}", bounds.len());
            assert!(bounds.iter().all(|bound| (1.0..=12.0).contains(bound)));
            let middle = crate::stats::median(&bounds).unwrap();
            assert!((least..=most).contains(&middle), "{apart}: {middle}");
        }
    }

    /// Chapter 2 prints 203 → 260 cycles for one access and about 60 for each further one; the
    /// printed times of huge pages lie on a line between 2 and 10.
    #[test]
    fn the_document_has_one_walk_at_a_time() {
        let figures = |name: &str| document_000::condition(name).unwrap();
        let (huge, base) = (figures("no restrictions"), figures("disabling huge pages"));
        let (two, ten) = (huge.parallel[0].1.value, huge.parallel[1].1.value);
        let of = |condition: &document_000::Condition| RulePoint {
            loads: 1,
            cycles: condition.one.unwrap().value,
            half_width: condition.one.unwrap().half_width(),
        };
        let mut large = vec![of(huge)];
        large.extend(
            (2..=10).map(|n| RulePoint::from((n, two + (ten - two) / 8.0 * f64::from(n - 2)))),
        );
        let mut small = vec![of(base)];
        small.extend((2..=4).map(|n| RulePoint::from((n, 260.0 + 60.0 * f64::from(n - 1)))));
        small.extend(base.rule_points());
        let times = |parallel| Times {
            parallel,
            sequence: None,
        };
        let found = compare(times(&small), times(&large), PageKind::Thp, Some(10.0));
        let found = found.known().unwrap();
        assert!((found.miss_cycles.value - 57.0).abs() < 1e-9);
        assert!(!found.miss_from_sequence);
        assert!((found.further_cycles.value - 60.0).abs() < 1.5, "{found:?}");
        let walks = found.walks.known().unwrap();
        assert_eq!(walks.value, 1.0);
        assert!(walks.high < 2.0, "{walks:?}");
    }

    #[test]
    fn incomparable_walks_are_reported() {
        let points = |from: u32, to: u32, each: f64| -> Vec<RulePoint> {
            (from..=to)
                .map(|n| RulePoint::from((n, 200.0 + each * f64::from(n))))
                .collect()
        };
        let check = |small: &[RulePoint], large: &[RulePoint], reason: &str| {
            let times = |parallel| Times {
                parallel,
                sequence: None,
            };
            let found = compare(times(small), times(large), PageKind::Huge2M, None);
            let why = found.why_missing().expect("nothing to tell");
            assert!(why.reason.contains(reason), "{why:?}");
        };
        check(&points(1, 3, 60.0), &points(1, 12, 15.0), "fewer than 4");
        check(&points(1, 8, 60.0), &points(9, 12, 15.0), "fewer than 4");
        check(
            &points(2, 8, 60.0),
            &points(1, 12, 15.0),
            "one load is not known",
        );
        check(
            &points(1, 8, 15.0),
            &points(1, 8, 15.0),
            "no longer than on 2m pages",
        );
        check(&[], &[], "fewer than 4");
    }
}
