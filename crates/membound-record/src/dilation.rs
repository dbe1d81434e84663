//! Estimates how much of the CPU time in a window the patches took themselves.
//!
//! Counts are divided by CPU time, and a patch in a tight loop takes more of it than the loop. Samples show
//! the share of patches in two ways:
//!
//! First, samples lie in patches (perf's samples show that; the agent's only show at which instruction). But
//! the program's own misses go on while a patch executes, so that this share is an upper bound. Second, more
//! samples than usual wait for patched accesses: with g their share outside of windows and s inside, a share
//! p = (s - g) / (1 - g) of the windows' time went into patches. One window has few samples, so the samples
//! of all windows with the same patches are pooled, and a window waits for windows that follow soon.
//!
//! A core overlaps patches with the program, and samples do not show by how much. So each window's time has
//! bounds. The upper bound: all of it was the program's. The lower bound: the program's other instructions
//! took little longer than usual, and an execution of a patch no longer than [`MAX_COST_RATIO`] allows.

use std::collections::{BTreeMap, BTreeSet};

use membound_run::{BlockCount, Executions, FrameId, SiteId};
use rustc_hash::FxHashMap;

use crate::budget::Work;

/// Samples below which no share is estimated.
const MIN_SAMPLES: u32 = 10;
/// Periods of samples in a window from which on samples show whether a thread slept in it.
const MIN_PERIODS: f64 = 4.0;
/// Upper limit of the patches' share of a window's time.
const MAX_PATCHED_SHARE: f64 = 0.95;
/// Upper limit of the cost of a patch, as a multiple of the budget's guess.
const MAX_COST_RATIO: f64 = 3.0;
/// Upper limit of the slowdown of instructions between patches.
const MAX_SLOWDOWN: f64 = 1.25;
/// Standard errors of a share of samples to the end of its interval.
const Z95: f64 = 1.96;
/// How long windows wait for others with the same patches.
const HOLD_NS: u64 = 2_000_000_000;

/// A window that waits for its samples.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) work: Work,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// See [`crate::windows::Closed::is_one_thread`].
    is_one_thread: bool,
    /// The patched sites.
    pub(crate) sites: BTreeSet<SiteId>,
    pub(crate) executions: Vec<Executions>,
    pub(crate) blocks: Vec<BlockCount>,
    /// Upper guess of the patches' cost, from the budget.
    cost_ns: f64,
    at_patches_ns: f64,
    in_patches_ns: f64,
    /// Time in trampolines at displaced instructions of the program, by instruction.
    displaced_ns: BTreeMap<FrameId, f64>,
    all_ns: f64,
    samples: u32,
    /// Whether its samples are complete and were added to the pool.
    pooled: bool,
}

impl Waiting {
    /// A closed window without samples yet.
    pub(crate) fn new(
        work: Work,
        (from_ns, to_ns): (u64, u64),
        is_one_thread: bool,
        cost_ns: f64,
        sites: BTreeSet<SiteId>,
        executions: Vec<Executions>,
        blocks: Vec<BlockCount>,
    ) -> Self {
        Self {
            work,
            from_ns,
            to_ns,
            is_one_thread,
            sites,
            executions,
            blocks,
            cost_ns,
            at_patches_ns: 0.0,
            in_patches_ns: 0.0,
            displaced_ns: BTreeMap::new(),
            all_ns: 0.0,
            samples: 0,
            pooled: false,
        }
    }

    /// CPU time in nanoseconds of a part of the window, from the kernel's account of it and from how long it took.
    ///
    /// The account stands still between the kernel's ticks, which may be as long as a window; samples have the
    /// resolution of their period.
    fn cpu_clock(&self) -> impl Fn(u64, u64) -> u64 + use<> {
        let window_ns = self.to_ns.saturating_sub(self.from_ns).max(1) as f64;
        let (all_ns, is_one_thread) = (self.all_ns, self.is_one_thread);
        let has_samples = self.samples >= MIN_SAMPLES;
        let period_ns = all_ns / f64::from(self.samples.max(1));
        move |cpu_ns, length_ns| {
            let sampled_ns = (all_ns * (length_ns as f64 / window_ns).min(1.0)) as u64;
            let known_ns = match has_samples || cpu_ns < sampled_ns {
                true => sampled_ns,
                false => cpu_ns,
            };
            // A thread that is not known to have slept ran all the time: the lesser of the two would be too short
            // on average.
            let is_long = length_ns as f64 >= MIN_PERIODS * period_ns;
            match is_one_thread {
                true if is_long && known_ns as f64 + period_ns >= length_ns as f64 => length_ns,
                true => known_ns.min(length_ns),
                false => known_ns,
            }
        }
    }
}

/// The samples of all windows with the same patches.
#[derive(Clone, Debug, Default)]
struct Pool {
    samples: u32,
    all_ns: f64,
    at_patches_ns: f64,
    in_patches_ns: f64,
    displaced_ns: BTreeMap<FrameId, f64>,
    cost_ns: f64,
}

impl Pool {
    fn add(&mut self, window: &Waiting) {
        self.samples += window.samples;
        self.all_ns += window.all_ns;
        self.at_patches_ns += window.at_patches_ns;
        self.in_patches_ns += window.in_patches_ns;
        for (frame, ns) in &window.displaced_ns {
            *self.displaced_ns.entry(*frame).or_default() += ns;
        }
        self.cost_ns += window.cost_ns;
    }
}

/// Whose code a sample lay in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// A patch of a window, or the agent while a window is open.
    Patch,
    /// The agent while no window is open: an allocation hook, which is charged to no window.
    Hook,
    /// A trampoline, at a displaced instruction of the program.
    Trampoline,
    /// The program's own text.
    Program,
}

/// The share of a window's time that went into patches: the estimate and its upper bound.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    likely: f64,
    most: f64,
}

/// What a sample shows about patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchVisibility {
    /// Whether it lay in a patch.
    Patches,
    /// Only the instruction of the program, and whether it lay in the agent.
    Instructions,
}

/// Corrects windows by their samples.
#[derive(Debug)]
pub(crate) struct Dilation {
    visibility: PatchVisibility,
    waiting: Vec<Waiting>,
    /// By kind of work and patched sites.
    pools: FxHashMap<(Work, BTreeSet<SiteId>), Pool>,
    /// Time in patches beyond the budget's guess, not charged yet.
    unforeseen_ns: f64,
    /// Time outside of windows, by the site that samples waited for.
    usual_ns: FxHashMap<SiteId, f64>,
    /// The same by sampled instruction.
    usual_at_ns: FxHashMap<FrameId, f64>,
    usual_all_ns: f64,
}

impl Dilation {
    /// No windows yet.
    pub(crate) fn new(visibility: PatchVisibility) -> Self {
        Self {
            visibility,
            waiting: Vec::new(),
            pools: FxHashMap::default(),
            unforeseen_ns: 0.0,
            usual_ns: FxHashMap::default(),
            usual_at_ns: FxHashMap::default(),
            usual_all_ns: 0.0,
        }
    }

    /// Adds a closed window.
    pub(crate) fn wait(&mut self, window: Waiting) {
        self.waiting.push(window);
    }

    /// Adds a sample, with its instruction and the site that it waited for. Samples come in time order.
    pub(crate) fn sample(
        &mut self,
        t_ns: u64,
        (leaf, waited): (FrameId, Option<SiteId>),
        weight_ns: u64,
        inside: Inside,
    ) {
        let weight = weight_ns as f64;
        let holds = |it: &&mut Waiting| (it.from_ns..=it.to_ns).contains(&t_ns);
        if let Some(window) = self.waiting.iter_mut().find(holds) {
            window.samples += 1;
            window.all_ns += weight;
            match inside {
                Inside::Patch => window.in_patches_ns += weight,
                Inside::Trampoline => *window.displaced_ns.entry(leaf).or_default() += weight,
                Inside::Program | Inside::Hook => {}
            }
            if inside == Inside::Patch || waited.is_some_and(|site| window.sites.contains(&site)) {
                window.at_patches_ns += weight;
            }
        } else if inside == Inside::Patch {
            // On a busy machine patches stay in the text long before a window opens and after it closes.
            self.unforeseen_ns += weight;
        } else if inside == Inside::Program || inside == Inside::Trampoline {
            if let Some(site) = waited {
                *self.usual_ns.entry(site).or_default() += weight;
            }
            *self.usual_at_ns.entry(leaf).or_default() += weight;
            self.usual_all_ns += weight;
        }
    }

    /// Removes windows that closed long enough before `horizon_ns`, until which samples are complete, and
    /// subtracts the patches' share from their CPU time.
    pub(crate) fn settle(&mut self, horizon_ns: u64) -> Vec<Waiting> {
        for window in &mut self.waiting {
            if !window.pooled && window.to_ns < horizon_ns {
                window.pooled = true;
                let key = (window.work, window.sites.clone());
                self.pools.entry(key).or_default().add(window);
                self.unforeseen_ns += (window.in_patches_ns - window.cost_ns).max(0.0);
            }
        }
        let until_ns = match horizon_ns {
            u64::MAX => u64::MAX,
            _ => horizon_ns.saturating_sub(HOLD_NS),
        };
        let (done, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|it| it.to_ns < until_ns);
        self.waiting = waiting;
        let mut done: Vec<Waiting> = done;
        for window in &mut done {
            let part = self.part(window);
            let clock = window.cpu_clock();
            for row in &mut window.executions {
                row.cpu_ns = clock(row.cpu_ns, row.to_ns.saturating_sub(row.from_ns));
                let without = |part: f64| (row.cpu_ns as f64 * (1.0 - part)) as u64;
                row.most_cpu_ns = Some(row.cpu_ns);
                row.least_cpu_ns = Some(without(part.most));
                row.cpu_ns = without(part.likely);
            }
            for row in &mut window.blocks {
                if let (Some(cpu_ns), Some(least_ns)) = (row.cpu_ns, row.least_cpu_ns) {
                    let cost_ns = cpu_ns.saturating_sub(least_ns);
                    let known_ns = clock(cpu_ns, row.to_ns.saturating_sub(row.from_ns));
                    row.cpu_ns = Some(known_ns);
                    row.least_cpu_ns = Some(known_ns.saturating_sub(cost_ns));
                }
            }
        }
        done
    }

    /// Time in patches beyond the budget's guess, since the last call.
    pub(crate) const fn take_unforeseen(&mut self) -> f64 {
        std::mem::replace(&mut self.unforeseen_ns, 0.0)
    }

    /// The share of a window's time that went into patches.
    fn part(&self, window: &Waiting) -> Part {
        let key = (window.work, window.sites.clone());
        let none = Pool::default();
        let pool = self.pools.get(&key).unwrap_or(&none);
        let length_ns = window.to_ns.saturating_sub(window.from_ns).max(1) as f64;
        let cpu_ns = length_ns.max(window.all_ns);
        let costliest = (MAX_COST_RATIO * window.cost_ns / cpu_ns).min(MAX_PATCHED_SHARE);
        if pool.samples < MIN_SAMPLES || self.usual_all_ns <= 0.0 {
            return Part {
                likely: 0.0,
                most: costliest,
            };
        }
        let usual_ns = window.sites.iter().filter_map(|it| self.usual_ns.get(it));
        let usual = usual_ns.sum::<f64>() / self.usual_all_ns;
        let here = pool.at_patches_ns / pool.all_ns;
        // Displaced instructions wait for the patch before them: the time beyond their usual share belongs to
        // the patches.
        let displaced = pool.displaced_ns.values().sum::<f64>() / pool.all_ns;
        let usually = pool.displaced_ns.keys();
        let usually = usually.filter_map(|it| self.usual_at_ns.get(it));
        let usually = usually.sum::<f64>() / self.usual_all_ns;
        let most = match self.visibility {
            PatchVisibility::Patches => {
                pool.in_patches_ns / pool.all_ns + (displaced - usually).max(0.0)
            }
            PatchVisibility::Instructions => pool.cost_ns / pool.all_ns,
        };
        let most = most.min(MAX_PATCHED_SHARE);
        let samples = f64::from(pool.samples);
        let likely = if usual >= 1.0 || most <= 0.0 {
            0.0
        } else {
            likely(samples, here, usual, most)
        };
        // The lower bound assumes that the other instructions were at most this much slower.
        let patched = (pool.in_patches_ns / pool.all_ns + displaced)
            .max(here)
            .min(1.0);
        let before = usual.max(usually).min(1.0);
        // Two more of each kind (Agresti and Coull, 1998): none observed does not mean never.
        let share = (patched * samples + 2.0) / (samples + 4.0);
        let high = share + Z95 * (share * (1.0 - share) / (samples + 4.0)).sqrt();
        let progress = (1.0 - high).max(0.0) / (1.0 - before).max(1e-9);
        let slower = (1.0 - progress / MAX_SLOWDOWN).clamp(0.0, MAX_PATCHED_SHARE);
        Part {
            likely: likely.min(costliest),
            most: slower.max(likely).min(costliest),
        }
    }
}

/// The posterior mean of p with a uniform prior on 0 to `most`, after `samples` of which a share `here` lay
/// at patches. The maximum-likelihood p is not used: where nearly all samples lie at patches in any case,
/// they hardly constrain p, and the best fit would make counts many times too high.
fn likely(samples: f64, here: f64, usual: f64, most: f64) -> f64 {
    const STEPS: u32 = 64;
    let steps = || (0..=STEPS).map(|step| most * f64::from(step) / f64::from(STEPS));
    let log_likelihood = |p: f64| {
        let share = (usual + p * (1.0 - usual)).clamp(1e-6, 1.0 - 1e-6);
        samples * (here * share.ln() + (1.0 - here) * (1.0 - share).ln())
    };
    let best = steps().map(log_likelihood).fold(f64::MIN, f64::max);
    let (sum, mean) = steps().fold((0.0, 0.0), |(sum, mean), p| {
        let weight = (log_likelihood(p) - best).exp();
        (sum + weight, mean + weight * p)
    });
    mean / sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(from_ns: u64, to_ns: u64) -> Waiting {
        let row = Executions {
            site: SiteId(0),
            from_ns,
            to_ns,
            count: 5,
            cpu_ns: 1000,
            least_cpu_ns: None,
            most_cpu_ns: None,
        };
        Waiting::new(
            Work::Count,
            (from_ns, to_ns),
            false,
            1e6,
            BTreeSet::from([SiteId(1)]),
            vec![row],
            Vec::new(),
        )
    }

    #[test]
    fn what_patches_take_is_taken_out_of_a_window_s_time() {
        let mut dilation = Dilation::new(PatchVisibility::Instructions);
        dilation.wait(window(100, 199));
        for t_ns in 0..300 {
            // One in ten is at the patched instruction; inside of windows one in two.
            let inside = (100..200).contains(&t_ns);
            let every = if inside { 2 } else { 10 };
            let leaf = SiteId(u32::from(t_ns % every == 0));
            dilation.sample(t_ns, (FrameId(leaf.0), Some(leaf)), 10, Inside::Program);
        }
        assert!(dilation.settle(150 + HOLD_NS).is_empty());
        let done = dilation.settle(200 + HOLD_NS);
        // (0.5 - 0.1) / (1 - 0.1)
        assert!(done[0].executions[0].cpu_ns.abs_diff(555) < 15);
        assert!(dilation.settle(u64::MAX).is_empty());
    }

    #[test]
    fn one_thread_has_the_time_that_passed_unless_it_is_known_to_have_slept() {
        let cpu_ns = |is_one_thread: bool, samples: u32, length_ns: u64| {
            let mut waiting = window(0, length_ns);
            waiting.is_one_thread = is_one_thread;
            waiting.samples = samples;
            waiting.all_ns = f64::from(samples) * 100.0;
            waiting.cpu_clock()(length_ns / 2, length_ns)
        };
        assert_eq!(cpu_ns(true, 10, 1000), 1000);
        assert_eq!(cpu_ns(true, 11, 1000), 1000, "never more than passed");
        assert_eq!(
            cpu_ns(true, 9, 1000),
            1000,
            "one sample more or less is chance"
        );
        assert_eq!(cpu_ns(true, 6, 1000), 600, "it slept");
        assert_eq!(cpu_ns(true, 2, 300), 200, "too short to tell");
        assert_eq!(cpu_ns(false, 11, 1000), 1100, "several threads");
    }

    /// CPU time of windows of ten samples: this many in patches and this many at other instructions; outside
    /// windows three in ten lie at the latter.
    fn windows(own: u64, elsewhere: u64) -> Vec<u64> {
        let mut dilation = Dilation::new(PatchVisibility::Patches);
        for number in 0..20 {
            dilation.wait(window(1000 * number, 1000 * number + 9));
        }
        for t_ns in 0..20_000 {
            let turn = t_ns % 10;
            let (leaf, inside) = match t_ns % 1000 {
                0..10 if turn < own => (SiteId(2), Inside::Patch),
                0..10 => (
                    SiteId(1 + u32::from(turn < own + elsewhere)),
                    Inside::Program,
                ),
                _ => (SiteId(1 + u32::from(turn < 3)), Inside::Program),
            };
            dilation.sample(t_ns, (FrameId(leaf.0), Some(leaf)), 10, inside);
        }
        let done = dilation.settle(u64::MAX);
        done.iter().map(|it| it.executions[0].cpu_ns).collect()
    }

    #[test]
    fn time_in_patches_is_the_program_s_where_its_own_goes_on_behind_them() {
        let check = |own, elsewhere, expected: std::ops::RangeInclusive<u64>| {
            let times = windows(own, elsewhere);
            assert_eq!(times.len(), 20);
            assert!(times.iter().all(|ns| expected.contains(ns)), "{times:?}");
        };
        // Half of the samples in patches, and the rest of the program as often as ever.
        check(5, 3, 85..=100);
        // The same, and the rest a third as often: the upper bound is the share of samples in patches.
        check(5, 1, 50..=62);
        check(0, 1, 100..=100);
    }

    #[test]
    fn where_samples_do_not_tell_what_patches_cost_bounds_it() {
        // Nearly all time is spent at the patched instructions in any case.
        let unsure = likely(18.0, 1.0, 0.9, 0.95);
        assert!((0.4..0.8).contains(&unsure), "{unsure}");
        assert!(likely(18.0, 1.0, 0.9, 0.02) <= 0.02);
        assert!(likely(1000.0, 0.1, 0.1, 0.95) < 0.05);
        assert!((likely(10_000.0, 0.5, 0.1, 0.95) - 0.444).abs() < 0.01);
    }

    #[test]
    fn windows_are_not_charged_for_allocations() {
        let mut dilation = Dilation::new(PatchVisibility::Patches);
        dilation.sample(10, (FrameId(1), None), 5_000_000, Inside::Hook);
        assert_eq!(dilation.take_unforeseen(), 0.0);
        dilation.sample(20, (FrameId(1), None), 1_000_000, Inside::Patch);
        assert_eq!(dilation.take_unforeseen(), 1e6);
    }

    #[test]
    fn without_samples_a_window_stays_as_it_is() {
        let mut dilation = Dilation::new(PatchVisibility::Instructions);
        dilation.wait(window(100, 199));
        for t_ns in 0..105 {
            dilation.sample(t_ns, (FrameId(1), Some(SiteId(1))), 10, Inside::Program);
        }
        assert_eq!(dilation.settle(u64::MAX)[0].executions[0].cpu_ns, 1000);
    }
}
