//! Finds where a plateau ends: the effective size of a cache.
//!
//! The climb from one plateau to the next is compared with a family of climbs, each the
//! curve that a cache of capacity C would show in a cyclic random walk over S bytes:
//! curve that a cache of capacity C would show in a cyclic random walk over S bytes:
//!
//! ```text
//! ns(S) = T(S) + m(S/C)·(H − T(S))
//! T(S)  = a + t·(1 − R/S)₊
//! ```
//!
//! H is the latency of the next plateau, m the share of loads that miss (`family` has the
//! policies, page colours and ramps), T the plateau: t covers a TLB whose reach R ends inside it,
//! and the last part of the climb to the plateau itself.
//!
//! The effective size is C: where the climb begins, or with colours the capacity at the centre of
//! an early, soft climb. The weight of each climb is the likelihood of the points under it (errors
//! from `clean`, no point counting for more than three of them), reduced for each parameter that it
//! uses beyond the simplest; the size is the mean of ln C over all climbs, and its interval holds
//! 95 % of the likelihood. If points are sparse, any C between two of them fits, and the
//! interval shows that too.

use std::ops::RangeInclusive;

use super::clean::Prepared;
use super::family::Shape;
use super::plateaus::{Interval, Knee};
use super::segment::Flat;
use crate::stats::median;

/// Steps per octave of the first pass over C, and of the second.
const COARSE_STEPS_PER_OCTAVE: f64 = 12.0;
const FINE_STEPS_PER_OCTAVE: f64 = 48.0;

/// Share of misses up to which the climb is compared; beyond it the next level affects the curve.
const COMPARED_SHARE: f64 = 0.8;

/// Octaves of the plateau below its end that are included in the comparison.
const PLATEAU_OCTAVES: f64 = 2.0;

/// Steps per octave of the tried TLB reaches.
const TLB_REACH_STEPS_PER_OCTAVE: f64 = 4.0;

/// Most that one point can contribute to the cost of a climb.
const MAX_DEVIATION: f64 = 9.0;

/// Excess of the cost over the best in the first pass, beyond which a climb does not widen the second.
const MAX_WIDENING_EXCESS: f64 = 9.0;

/// Least error of a point in ln(ns): the family describes real climbs no better than this.
const MODEL_SIGMA: f64 = 0.03;

/// Cost of a TLB in −2·ln(likelihood): it has two parameters, reach and miss time.
const TLB_COST: f64 = 6.0;

/// Most that a TLB can tilt a plateau, as a share of its latency (t/a).
const MAX_TILT: f64 = 0.8;

/// The points of one climb, and its ends.
struct Climb<'a> {
    points: &'a [Prepared],
    /// Nanoseconds of each point.
    ns: Vec<f64>,
    /// The tried tilts of the plateau; the first is no tilt.
    tilts: Vec<Tilt>,
    /// Nanoseconds of the next plateau.
    next: f64,
    /// Nanoseconds at which both points and model are cut in the comparison.
    ceiling: f64,
    /// log₂ of the largest size on the plateau.
    end_octave: f64,
    /// Bytes of a page, for the number of colours.
    page: f64,
}

/// A tilt of the plateau by a TLB.
struct Tilt {
    /// log₂ of the reach in bytes; −∞ for no tilt.
    reach: f64,
    /// (1 − R/S)₊ at each point.
    shares: Vec<f64>,
    /// Cost of using this tilt, in −2·ln(likelihood).
    cost: f64,
}

/// A shape of the family at one C.
struct Member {
    /// log₂ of C.
    octave: f64,
    /// −2·ln(likelihood), up to a constant.
    cost: f64,
    shape: &'static Shape,
}

/// Effective size of the plateau `lower` in bytes, and how it ends; `None` if no point follows it.
///
/// `upper` is the index range of the next plateau, if there is one. `page_bytes` is the size of the
/// pages that are placed at random.
pub(crate) fn locate(
    points: &[Prepared],
    lower: &Flat,
    upper: Option<RangeInclusive<usize>>,
    page_bytes: u64,
) -> Option<(Interval, Knee)> {
    points.get(lower.last + 1)?;
    let end_octave = points[lower.last].octave;
    let first = (lower.first..=lower.last)
        .find(|&index| points[index].octave >= end_octave - PLATEAU_OCTAVES)
        .unwrap_or(lower.first);
    let base = median_ns(&points[first..=lower.last])?;
    let beyond = match upper {
        Some(range) => &points[range],
        None => &points[points.len().saturating_sub(3).max(lower.last + 1)..],
    };
    let next = median_ns(beyond)?;
    let ceiling = base + COMPARED_SHARE * (next - base);
    let compared = &points[first..=compared_until(points, lower, ceiling)];
    let climb = Climb {
        points: compared,
        ns: compared.iter().map(|point| point.log_ns.exp()).collect(),
        tilts: tilts(compared, end_octave),
        next,
        ceiling,
        end_octave,
        page: page_bytes as f64,
    };
    climb.posterior()
}

/// Index of the last point to compare: half an octave beyond the point from which the curve stays
/// above `ceiling`.
fn compared_until(points: &[Prepared], lower: &Flat, ceiling: f64) -> usize {
    let last = points.len() - 1;
    let limit = ceiling.ln();
    let Some(above) = (lower.last + 1..=last).find(|&index| {
        points[index..=(index + 1).min(last)]
            .iter()
            .all(|point| point.log_ns >= limit)
    }) else {
        return last;
    };
    let end = points[above].octave + 0.5;
    (above..=last)
        .rfind(|&index| points[index].octave <= end)
        .unwrap_or(above)
}

/// No tilt, then tilts with reaches from the first point to an octave beyond the plateau.
fn tilts(points: &[Prepared], end_octave: f64) -> Vec<Tilt> {
    let first = points[0].octave;
    let steps = ((end_octave + 1.0 - first) * TLB_REACH_STEPS_PER_OCTAVE).ceil() as usize;
    let none = Tilt {
        reach: f64::NEG_INFINITY,
        shares: vec![0.0; points.len()],
        cost: 0.0,
    };
    let some = (0..=steps).map(|step| {
        let reach = first + step as f64 / TLB_REACH_STEPS_PER_OCTAVE;
        Tilt {
            reach,
            shares: points
                .iter()
                .map(|point| (1.0 - (reach - point.octave).exp2()).max(0.0))
                .collect(),
            cost: TLB_COST,
        }
    });
    std::iter::once(none).chain(some).collect()
}

fn median_ns(points: &[Prepared]) -> Option<f64> {
    let logs: Vec<f64> = points.iter().map(|point| point.log_ns).collect();
    median(&logs).map(f64::exp)
}

impl Climb<'_> {
    /// Mean and 95 % interval of C over the family, and how the plateau ends.
    fn posterior(&self) -> Option<(Interval, Knee)> {
        let from = self.end_octave - 0.5;
        let to = self.points[self.points.len() - 1].octave + 0.3;
        let coarse = self.scan(from, to, COARSE_STEPS_PER_OCTAVE);
        let best = coarse
            .iter()
            .map(|member| member.cost)
            .min_by(f64::total_cmp)?;
        let likely = || {
            coarse
                .iter()
                .filter(|member| member.cost <= best + MAX_WIDENING_EXCESS)
                .map(|member| member.octave)
        };
        let margin = 1.0 / COARSE_STEPS_PER_OCTAVE;
        let fine = self.scan(
            likely().next()? - margin,
            likely().next_back()? + margin,
            FINE_STEPS_PER_OCTAVE,
        );
        summary(&fine)
    }

    /// Every shape at every C of a grid, each with its cheapest tilt.
    fn scan(&self, from: f64, to: f64, per_octave: f64) -> Vec<Member> {
        let steps = ((to - from) * per_octave).ceil().max(1.0) as usize;
        let mut all = Vec::new();
        let mut misses = vec![0.0; self.points.len()];
        for step in 0..=steps {
            let octave = from + step as f64 / per_octave;
            for shape in Shape::all() {
                for (miss, point) in misses.iter_mut().zip(self.points) {
                    *miss = shape.misses(point.octave - octave);
                }
                let draws = shape.draw_variance(octave.exp2(), self.page);
                let cheapest = self
                    .tilts
                    .iter()
                    .filter(|tilt| tilt.reach < octave)
                    .map(|tilt| self.cost(&misses, draws, &tilt.shares) + tilt.cost)
                    .fold(f64::INFINITY, f64::min);
                all.push(Member {
                    octave,
                    cost: cheapest + shape.cost,
                    shape,
                });
            }
        }
        all
    }

    /// −2·ln(likelihood) of the points, up to a constant, given the share of misses at each.
    ///
    /// `draws` is the spread of the misses over draws of page colours ([`Shape::draw_variance`]).
    fn cost(&self, misses: &[f64], draws: f64, tilted: &[f64]) -> f64 {
        let Some((base, tilt)) = self.plateau(misses, draws, tilted) else {
            return f64::INFINITY;
        };
        let ceiling = self.ceiling.ln();
        // The state is the deviation of the share of misses in this draw of pages from its expectation.
        // A colour that overflows early stays overfull, so the deviation carries over from size to
        // size like that of an empirical distribution (a Brownian bridge); a scalar Kalman filter
        // tracks it.
        let (mut drawn, mut variance, mut before) = (0.0_f64, 0.0_f64, 0.0_f64);
        let mut cost = 0.0;
        for ((point, &miss), share) in self.points.iter().zip(misses).zip(tilted) {
            let left = ((1.0 - miss) / (1.0 - before).max(1e-9)).clamp(0.0, 1.0);
            drawn *= left;
            variance = variance * left * left + (miss - before).max(0.0) * left * draws;
            before = miss;
            let plateau = base + tilt * share;
            let model = (plateau + miss * (self.next - plateau)).max(1e-9);
            let gain = (self.next - plateau) / model;
            let known = point.sigma.max(MODEL_SIGMA).powi(2);
            let spread = known + gain * gain * variance;
            let expected = (model.ln() + gain * drawn).min(ceiling);
            let deviation = point.log_ns.min(ceiling) - expected;
            let weighed = deviation * deviation / spread;
            cost += weighed.min(MAX_DEVIATION) + (spread / known).ln();
            if weighed < MAX_DEVIATION && expected < ceiling {
                let share = variance * gain / spread;
                drawn += share * deviation;
                variance *= 1.0 - share * gain;
            }
        }
        cost
    }

    /// a and t of T(S) = a + t·(1 − R/S)₊ by weighted least squares over the points below the ceiling;
    /// the model is linear in both.
    fn plateau(&self, misses: &[f64], draws: f64, tilted: &[f64]) -> Option<(f64, f64)> {
        let (mut aa, mut at, mut tt, mut ay, mut ty) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (index, point) in self.points.iter().enumerate() {
            let (ns, miss) = (self.ns[index], misses[index]);
            if ns > self.ceiling {
                continue;
            }
            let draw = self.next * self.next * miss * (1.0 - miss) * draws;
            let weight = 1.0 / ((ns * point.sigma.max(MODEL_SIGMA)).powi(2) + draw);
            let (a, t) = (1.0 - miss, (1.0 - miss) * tilted[index]);
            let y = ns - miss * self.next;
            aa += weight * a * a;
            at += weight * a * t;
            tt += weight * t * t;
            ay += weight * a * y;
            ty += weight * t * y;
        }
        if aa <= 0.0 {
            return None;
        }
        let determinant = aa * tt - at * at;
        let tilt = if determinant > 1e-9 * aa * tt {
            ((ty * aa - ay * at) / determinant).max(0.0)
        } else {
            0.0
        };
        let base = (ay - tilt * at) / aa;
        if tilt <= MAX_TILT * base {
            return Some((base, tilt));
        }
        let base = (ay + MAX_TILT * ty) / (aa + 2.0 * MAX_TILT * at + MAX_TILT * MAX_TILT * tt);
        Some((base, MAX_TILT * base))
    }
}

/// Mean, interval and kind of end from the costs of all members.
fn summary(members: &[Member]) -> Option<(Interval, Knee)> {
    let best = members
        .iter()
        .map(|member| member.cost)
        .min_by(f64::total_cmp)?;
    let mut sizes: Vec<(f64, f64)> = Vec::new();
    let (mut total, mut soft, mut slow, mut mean) = (0.0, 0.0, 0.0, 0.0);
    for member in members {
        let weight = ((best - member.cost) / 2.0).exp();
        total += weight;
        mean += weight * member.octave;
        match member.shape.knee {
            Knee::Blurred => soft += weight,
            Knee::Gradual => slow += weight,
            Knee::Sharp => {}
        }
        match sizes.last_mut() {
            Some((last, sum)) if *last == member.octave => *sum += weight,
            _ => sizes.push((member.octave, weight)),
        }
    }
    mean /= total;
    let quantile = |share: f64| {
        let mut sum = 0.0;
        sizes
            .iter()
            .find(|(_, weight)| {
                sum += weight;
                sum >= share * total
            })
            .map_or(mean, |(octave, _)| *octave)
    };
    let half_step = 0.5 / FINE_STEPS_PER_OCTAVE;
    let knee = if soft > 0.5 * total {
        Knee::Blurred
    } else if slow > 0.5 * total {
        Knee::Gradual
    } else {
        Knee::Sharp
    };
    Some((
        Interval {
            value: mean.exp2(),
            low: (quantile(0.025).min(mean) - half_step).exp2(),
            high: (quantile(0.975).max(mean) + half_step).exp2(),
        },
        knee,
    ))
}
