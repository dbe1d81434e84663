//! Predicts which touches of a recorded piece of one thread miss a cache.

use rustc_hash::FxHashMap;

use super::{Distinct, Observed, Survival};

/// An access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAccess {
    /// Number of the instruction; any numbering, small numbers need least memory.
    pub site: u16,
    /// Address ÷ bytes of a line.
    pub line: u64,
    /// True if the access stores.
    pub stores: bool,
}

/// Range of a cache's effective size in lines. The size is uncertain because replacement is not
/// exactly least recently used, and others use the cache as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Number of lines that the cache certainly keeps.
    pub low: f64,
    /// Number of lines beyond which the cache keeps nothing.
    pub high: f64,
}

/// Number of sizes between both ends of a [`Capacity`] over which misses are averaged.
const CAPACITY_STEPS: u32 = 5;

/// Facts about the program beyond the recorded piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramContext {
    /// Number of distinct lines that the thread accesses before it returns to the same place.
    pub footprint: f64,
}

/// How a site returns to lines that it touched before the record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Order {
    /// Share of its new lines that follow each other in order: they return after the whole
    /// footprint, the others at any time.
    pub swept: f64,
    /// Number of its new lines: lines touched for the first time in the record.
    pub new: u64,
    /// The first new line.
    begin: u64,
    /// Steps up minus steps down between new lines.
    upward: i64,
}

/// Number of new lines from which a site counts as having a direction.
const MIN_LINES_WITH_DIRECTION: u64 = 8;

impl Order {
    /// Lines by which `other` is ahead in their common direction; `None` without one.
    fn ahead(&self, other: &Self) -> Option<f64> {
        let front =
            |it: &Self| it.swept > 0.5 && it.new >= MIN_LINES_WITH_DIRECTION && it.upward != 0;
        let same = front(self) && front(other) && (self.upward > 0) == (other.upward > 0);
        let gap = if self.upward > 0 {
            other.begin.checked_sub(self.begin)
        } else {
            self.begin.checked_sub(other.begin)
        };
        gap.filter(|gap| same && *gap > 0).map(|gap| gap as f64)
    }
}

/// Most lines between two new ones that count as in order, regardless of the stride.
const MAX_LINES_IN_ORDER: u64 = 2;

/// Reuse time of a touch without an earlier touch of its line.
const NO_EARLIER_TOUCH: u32 = u32::MAX;

/// Touches with their reuse times.
#[derive(Clone, Debug)]
pub struct Stream {
    touches: Vec<LineAccess>,
    /// Reuse time: number of touches since the last one of the same line.
    back: Vec<u32>,
    distinct: Distinct,
    /// Distribution of reuse times by site.
    survival: Vec<Survival>,
    /// Order by site.
    order: Vec<Order>,
    /// By site: distinct lines since another site touched the lines that it now touches;
    /// infinite if no site is ahead of it.
    followed: Vec<f64>,
}

impl Stream {
    /// Analyses touches in their order, at most `u32::MAX` − 1 of them.
    #[must_use]
    pub fn new(touches: Vec<LineAccess>) -> Self {
        let sites = touches.iter().map(|it| usize::from(it.site) + 1).max();
        let sites = sites.unwrap_or(0);
        let mut last: FxHashMap<u64, u32> = FxHashMap::default();
        let mut back = Vec::with_capacity(touches.len());
        let mut all = Vec::with_capacity(touches.len());
        let mut of_sites: Vec<Vec<Observed>> = vec![Vec::new(); sites];
        let mut order = vec![Order::default(); sites];
        let mut steps: Vec<Steps> = vec![Steps::default(); sites];
        for (at, touch) in (0..NO_EARLIER_TOUCH).zip(&touches) {
            let site = usize::from(touch.site);
            let observed = match last.insert(touch.line, at) {
                Some(before) => {
                    back.push(at - before);
                    Observed::After(at - before)
                }
                None => {
                    back.push(NO_EARLIER_TOUCH);
                    steps[site].add(touch.line, &mut order[site]);
                    Observed::Beyond(at)
                }
            };
            all.push(observed);
            of_sites[site].push(observed);
        }
        let length = back.len() as u32;
        for of_site in &mut order {
            of_site.swept /= of_site.new.saturating_sub(2).max(1) as f64;
        }
        Self {
            touches,
            back,
            distinct: Distinct::new(&Survival::of(all), length),
            survival: of_sites.into_iter().map(Survival::of).collect(),
            followed: followed(&order),
            order,
        }
    }

    /// The touches in their order.
    #[must_use]
    pub fn touches(&self) -> &[LineAccess] {
        &self.touches
    }

    /// For each touch the probability that its line is no longer in a cache of this size.
    ///
    /// A line is evicted once as many other lines as the cache holds were touched. If a
    /// line's last touch was before the record, the probability is that a reuse
    /// time of its site is long enough, given that it exceeds the record up to the touch.
    /// The footprint F gives the part that no record is long enough to show: the reuse times of
    /// all touches of a stationary stream average F (a line with the share f of the touches
    /// returns after 1/f on average, and Σ f·1/f counts the lines: Kac's lemma), hence
    /// rows of touches grow from the u lines of the longest record to F.
    ///
    /// A sweep returns after F lines, or after another site that is ahead of it in the same direction
    /// (as in a stencil): it misses if that many lines do not fit. Lines that return at any time
    /// do so after an exponentially distributed number of touches, hence after a number of lines that
    /// is uniformly distributed between u and F: they miss in the share
    /// (F − capacity) ÷ (F − u) of cases.
    #[must_use]
    pub fn misses(&self, capacity: Capacity, around: ProgramContext) -> Vec<f32> {
        let mut misses = vec![0.0; self.touches.len()];
        for step in 0..CAPACITY_STEPS {
            let along = (f64::from(step) + 0.5) / f64::from(CAPACITY_STEPS);
            let lines = along.mul_add(capacity.high - capacity.low, capacity.low);
            self.add_misses(lines, around, &mut misses);
        }
        for miss in &mut misses {
            *miss /= CAPACITY_STEPS as f32;
        }
        misses
    }

    fn add_misses(&self, lines: f64, around: ProgramContext, misses: &mut [f32]) {
        let most = self.distinct.most();
        let footprint = around.footprint.max(most);
        // The shortest reuse time that misses, if the record is long enough to show it.
        let gone = self
            .distinct
            .touches(lines)
            .map(|touches| (touches.ceil() as u32).saturating_add(1));
        let tails: Vec<f64> = self
            .order
            .iter()
            .zip(&self.followed)
            .map(|(order, followed)| {
                let sweep = f64::from(u8::from(footprint.min(*followed) > lines));
                let any = ((footprint - lines) / (footprint - most).max(1.0)).clamp(0.0, 1.0);
                order.swept.mul_add(sweep - any, any)
            })
            .collect();
        for (at, (touch, back)) in (0..NO_EARLIER_TOUCH).zip(self.touches.iter().zip(&self.back)) {
            let site = usize::from(touch.site);
            let miss = match (*back, gone) {
                (NO_EARLIER_TOUCH, _) => {
                    let survival = &self.survival[site];
                    let longer = survival.probability_beyond(at);
                    let (beyond, of_those) = match gone {
                        Some(gone) => {
                            let near = f64::from(u8::from(self.followed[site] <= lines));
                            let kept = near * self.order[site].swept;
                            (survival.probability_beyond((gone - 1).max(at)), 1.0 - kept)
                        }
                        None => (survival.tail(), tails[site]),
                    };
                    if longer > 0.0 {
                        (beyond / longer).min(1.0) * of_those
                    } else {
                        of_those
                    }
                }
                (back, Some(gone)) => f64::from(u8::from(back >= gone)),
                (_, None) => 0.0,
            };
            misses[at as usize] += miss as f32;
        }
    }

    /// Expected number of lines written back because of each touch, given the probability `misses` of
    /// each.
    ///
    /// A store makes a line dirty, and a dirty line is written once when it leaves the cache,
    /// so a store counts with the probability that its line was not dirty. A line that was
    /// touched before the record counts as dirty if it was in the cache and is stored to in the
    /// record.
    #[must_use]
    pub fn written_back(&self, misses: &[f32]) -> Vec<f32> {
        let count = self.back.len();
        let mut stored = vec![false; count];
        for at in (0..count).rev() {
            stored[at] |= self.touches[at].stores;
            if self.back[at] != NO_EARLIER_TOUCH && stored[at] {
                stored[at - self.back[at] as usize] = true;
            }
        }
        let mut dirty = vec![0.0_f32; count];
        let mut written = vec![0.0_f32; count];
        for at in 0..count {
            let before = match self.back[at] {
                NO_EARLIER_TOUCH => f32::from(u8::from(stored[at])),
                back => dirty[at - back as usize],
            };
            let kept = before * (1.0 - misses[at]);
            if self.touches[at].stores {
                written[at] = 1.0 - kept;
                dirty[at] = 1.0;
            } else {
                dirty[at] = kept;
            }
        }
        written
    }
}

/// By site: distinct lines between the site and the nearest one ahead of it. While it advances by
/// one line, each site takes new lines in proportion to its count.
fn followed(order: &[Order]) -> Vec<f64> {
    let all: u64 = order.iter().map(|it| it.new).sum();
    order
        .iter()
        .map(|it| {
            let gaps = order.iter().filter_map(|other| it.ahead(other));
            let nearest = gaps.fold(f64::INFINITY, f64::min);
            nearest * (all as f64 / it.new.max(1) as f64)
        })
        .collect()
}

/// The last new line of a site and the last step between two of them.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    last: Option<u64>,
    step: Option<u64>,
}

impl Steps {
    /// Adds a new line to `order`; it is in order if it is near the last one, or as far from it
    /// as the last one was from the line before.
    fn add(&mut self, line: u64, order: &mut Order) {
        let step = self.last.map(|last| line.wrapping_sub(last));
        if let (Some(step), Some(before)) = (step, self.step) {
            let near = step.wrapping_add(MAX_LINES_IN_ORDER) <= 2 * MAX_LINES_IN_ORDER;
            order.swept += f64::from(u8::from(near || step == before));
        }
        match step {
            Some(step) => order.upward += step.cast_signed().signum(),
            None => order.begin = line,
        }
        self.last = Some(line);
        self.step = step.or(self.step);
        order.new += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const LINE: u64 = 64;

    fn access(site: u16, address: u64, stores: bool) -> LineAccess {
        LineAccess {
            site,
            line: address / LINE,
            stores,
        }
    }

    fn cache(lines: f64) -> Capacity {
        Capacity {
            low: 0.95 * lines,
            high: 1.05 * lines,
        }
    }

    fn around(footprint: f64) -> ProgramContext {
        ProgramContext { footprint }
    }

    /// Mean of `of` over the touches of a site.
    fn average(stream: &Stream, of: &[f32], site: u16) -> f64 {
        let of_site = stream.touches().iter().zip(of);
        let (sum, count) = of_site
            .filter(|(touch, _)| touch.site == site)
            .fold((0.0, 0.0), |(sum, count), (_, value)| {
                (sum + f64::from(*value), count + 1.0)
            });
        sum / count
    }

    #[track_caller]
    fn check(value: f64, truth: f64, tolerance: f64) {
        assert!(
            (value - truth).abs() <= tolerance,
            "{value} is not {truth} ± {tolerance}"
        );
    }

    fn sweep(lines: u64, touches: u64, start: u64) -> Stream {
        let bytes = lines * LINE;
        let touches = (0..touches).map(|at| access(0, (start + at * 8) % bytes, false));
        Stream::new(touches.collect())
    }

    #[test]
    fn a_fully_sampled_sweep_fits_or_misses_each_line() {
        let stream = sweep(1000, 40_000, 0);
        let fits = stream.misses(cache(1500.0), around(1000.0));
        // The record does not show that the first pass is the first.
        check(average(&stream, &fits, 0), 0.0, 0.005);
        let not = stream.misses(cache(500.0), around(1000.0));
        check(average(&stream, &not, 0), 0.125, 0.005);
    }

    #[test]
    fn a_sparsely_sampled_sweep_misses_by_its_footprint() {
        let lines = 2_000_000;
        let stream = sweep(lines, 40_000, 77 * LINE);
        assert!(stream.order[0].swept > 0.99);
        for (cached, truth) in [(500.0, 0.125), (100_000.0, 0.125), (3e6, 0.0)] {
            let misses = stream.misses(cache(cached), around(lines as f64));
            check(average(&stream, &misses, 0), truth, 0.005);
        }
    }

    #[test]
    fn random_touches_hit_as_much_as_the_cache_holds() {
        for (lines, cached) in [(2000, 500.0), (2000, 1500.0), (1_000_000, 250_000.0)] {
            let mut random = Random::new(1);
            let touches = (0..50_000).map(|_| access(0, random.below(lines) * LINE, false));
            let stream = Stream::new(touches.collect());
            assert!(stream.order[0].swept < 0.05);
            let misses = stream.misses(cache(cached), around(lines as f64));
            let truth = 1.0 - cached / lines as f64;
            check(average(&stream, &misses, 0), truth, 0.05);
        }
    }

    #[test]
    fn sites_of_one_stream_keep_apart() {
        // A table of 100 lines accessed at random, next to a sweep through many lines.
        let mut random = Random::new(2);
        let touches = (0..60_000_u64).map(|at| match at % 3 {
            0 => access(0, random.below(100) * LINE, false),
            other => access(1, (1 << 40) + (at / 3 * 2 + other - 1) * 8, false),
        });
        let stream = Stream::new(touches.collect());
        let misses = stream.misses(cache(10_000.0), around(1e6));
        check(average(&stream, &misses, 0), 0.0, 0.01);
        check(average(&stream, &misses, 1), 0.125, 0.005);
        // In a cache of 50 lines; the sweep advances one line per four other accesses.
        let misses = stream.misses(cache(50.0), around(1e6));
        assert!(average(&stream, &misses, 0) > 0.5);
    }

    #[test]
    fn a_triad_reads_three_lines_and_writes_one() {
        let array = 2_000_000 * LINE;
        let touches = (0..60_000_u64).map(|at| {
            let which = at % 3;
            access(which as u16, which * array + at / 3 * 8, which == 2)
        });
        let stream = Stream::new(touches.collect());
        let misses = stream.misses(cache(100_000.0), around(6e6));
        let written = stream.written_back(&misses);
        let bytes = |of: &[f32]| of.iter().map(|it| f64::from(*it)).sum::<f64>() * LINE as f64;
        let iterations = 20_000.0;
        check(bytes(&misses) / iterations, 24.0, 0.5);
        check(bytes(&written) / iterations, 8.0, 0.2);
        check(average(&stream, &written, 0), 0.0, 1e-9);
        // If everything fits, nothing is moved.
        let misses = stream.misses(cache(1e7), around(6e6));
        let written = stream.written_back(&misses);
        check(bytes(&misses) + bytes(&written), 0.0, 1e-9);
    }

    #[test]
    fn a_stencil_reads_each_row_once_though_no_record_is_as_long_as_a_row() {
        let (row, array) = (32 * 4096_u64, 2_000_000 * LINE);
        let touches = (0..16_000_u64).flat_map(|at| {
            let middle = 10 * row + at * 8;
            [
                access(0, middle - row, false),
                access(1, middle, false),
                access(2, middle + row, false),
                access(3, array + at * 8, true),
            ]
        });
        let stream = Stream::new(touches.collect());
        let lines = |cached| {
            let misses = stream.misses(cache(cached), around(4e6));
            [0, 1, 2, 3].map(|site| average(&stream, &misses, site))
        };
        // Two rows and the lines stored meanwhile lie between two uses.
        for (cached, truth) in [(100_000.0, 0.0), (1000.0, 0.125)] {
            let missed = lines(cached);
            check(missed[0], truth, 0.005);
            check(missed[1], truth, 0.005);
            check(missed[2], 0.125, 0.005);
            check(missed[3], 0.125, 0.005);
        }
    }

    #[test]
    fn a_line_that_is_stored_to_again_and_again_is_written_once() {
        // Each of 6400 lines is stored to 100 times before the next.
        let stores = (0..640_000_u64).map(|at| access(0, at / 100 % 6400 * LINE, true));
        let stream = Stream::new(stores.collect());
        let misses = stream.misses(cache(1000.0), around(6400.0));
        let written = stream.written_back(&misses);
        check(average(&stream, &written, 0), 0.01, 0.001);
    }

    #[test]
    fn nothing_at_all_is_a_stream_too() {
        let stream = Stream::new(Vec::new());
        assert!(stream.misses(cache(10.0), around(0.0)).is_empty());
        assert!(stream.written_back(&[]).is_empty());
    }
}
