//! Counts iterations of loops, from registers in samples.
//!
//! Where a loop adds a constant to a register in each iteration, two samples of it show how many iterations a
//! thread made between them, while nothing was patched. Counting patches slow loops of few instructions down
//! manyfold, and are not needed there.
//!
//! If a loop is left and entered again between two samples, they show too few iterations, or a register that
//! went back. So only consecutive samples are compared, and stretches must have a steady rate. Where the
//! register goes back, the rate and the time between the samples show how many iterations the loop makes
//! until it ends. If these numbers differ, the loop is not reported. If they agree, samples further apart
//! than one run of the loop would show as steady a rate that is too low: what the rate then would be is
//! reported too.

use std::sync::Arc;

use membound_rewrite::stall::CodeLoop;
use membound_run::{FrameId, Laps, ModuleId, ThreadId};
use rustc_hash::FxHashMap;

use crate::modules::CodeModule;
use crate::sites::Sites;

/// Pairs of samples that a stretch must have.
const MIN_PAIRS: u32 = 5;
/// Pairs that a loop must have per time that its register went back.
const PAIRS_PER_RETURN: u32 = 8;
/// A longer stretch is reported in parts, so that phases are visible.
const MAX_STRETCH_NS: u64 = 100_000_000;
/// The rates of a stretch's pairs may differ by this factor.
const MAX_RATE_RATIO: f64 = 2.0;
/// The lengths of a loop's runs in a stretch, in iterations, may differ by this factor.
const MAX_LENGTH_RATIO: f64 = 1.25;
/// Upper limit of iterations per nanosecond: no processor makes more.
const MAX_ITERATIONS_PER_NS: f64 = 8.0;
/// Time between two samples, as a multiple of the CPU time that the later one accounts for. Outside of this
/// range the thread was off the processor, or samples are missing.
const APART: std::ops::Range<f64> = 0.5..1.5;

/// A sample of the program's own code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopSample<'a> {
    pub(crate) t_ns: u64,
    pub(crate) thread: ThreadId,
    pub(crate) weight_ns: u64,
    pub(crate) leaf: FrameId,
    pub(crate) module: &'a Arc<CodeModule>,
    pub(crate) address: u64,
    /// Values by register number, as instructions encode it.
    pub(crate) registers: &'a [u64; 16],
    /// Since when no patch had been in the text; `None` if one was.
    pub(crate) clear_since_ns: Option<u64>,
}

/// A loop or function of a module, by its first address.
type LoopKey = (ModuleId, u64);

/// Compares each sample with the thread's previous one.
#[derive(Debug, Default)]
pub(crate) struct IterationCounter {
    around: FxHashMap<FrameId, Arc<[Arc<CodeLoop>]>>,
    threads: FxHashMap<ThreadId, OfThread>,
    loops: FxHashMap<LoopKey, Trust>,
}

/// A thread's last sample, and the stretches that continue from it.
#[derive(Debug, Default)]
struct OfThread {
    t_ns: u64,
    /// CPU time in the kernel since then.
    in_kernel_ns: u64,
    clear_since_ns: u64,
    /// The function in which it was.
    function: Option<LoopKey>,
    open: Vec<Stretch>,
}

/// How often a loop's register went on and how often back.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    pairs: u32,
    returns: u32,
}

/// Iterations that a loop made from its begin to its end, from pairs of samples between which it began again.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    number: u32,
    sum: f64,
    shortest: f64,
    longest: f64,
}

impl Lengths {
    fn add(&mut self, length: f64) {
        let first = self.number == 0;
        self.shortest = if first {
            length
        } else {
            self.shortest.min(length)
        };
        self.longest = self.longest.max(length);
        self.sum += length;
        self.number += 1;
    }

    /// The mean, if there is one and the lengths agree.
    fn agreed(&self) -> Option<f64> {
        let agree = self.number > 0 && self.longest <= MAX_LENGTH_RATIO * self.shortest;
        agree.then(|| self.sum / f64::from(self.number))
    }
}

#[derive(Debug)]
struct Stretch {
    module: Arc<CodeModule>,
    it: Arc<CodeLoop>,
    value: u64,
    from_ns: u64,
    to_ns: u64,
    iterations: f64,
    cpu_ns: u64,
    pairs: u32,
    slowest: f64,
    fastest: f64,
    lengths: Lengths,
}

impl Stretch {
    fn begin(module: &Arc<CodeModule>, it: &Arc<CodeLoop>, value: u64, t_ns: u64) -> Self {
        Self {
            module: Arc::clone(module),
            it: Arc::clone(it),
            value,
            from_ns: t_ns,
            to_ns: t_ns,
            iterations: 0.0,
            cpu_ns: 0,
            pairs: 0,
            slowest: f64::INFINITY,
            fastest: 0.0,
            lengths: Lengths::default(),
        }
    }

    fn place(&self) -> LoopKey {
        (self.module.id, self.it.start)
    }

    /// Adds a pair of samples, if its rate fits the earlier ones; false if not. A share `part` of the time
    /// between them was spent in the loop, the rest in the kernel.
    fn add(&mut self, value: u64, t_ns: u64, iterations: f64, part: f64) -> bool {
        let passed_ns = t_ns - self.to_ns;
        let rate = iterations / passed_ns as f64;
        let (slowest, fastest) = (self.slowest.min(rate), self.fastest.max(rate));
        if iterations < 1.0 || rate > MAX_ITERATIONS_PER_NS || fastest > MAX_RATE_RATIO * slowest {
            return false;
        }
        (self.slowest, self.fastest) = (slowest, fastest);
        self.value = value;
        self.to_ns = t_ns;
        self.iterations += iterations;
        self.cpu_ns += (passed_ns as f64 * part) as u64;
        self.pairs += 1;
        true
    }

    /// The register went back by `iterations`, as the loop began again; false if the rate is not known yet.
    fn begin_again(&mut self, value: u64, t_ns: u64, iterations: f64) -> bool {
        if self.pairs == 0 {
            return false;
        }
        let rate = (self.slowest + self.fastest) / 2.0;
        let passed_ns = t_ns - self.to_ns;
        self.lengths.add(rate * passed_ns as f64 - iterations);
        self.skip(value, t_ns);
        true
    }

    /// The time until this sample does not count: the thread was off the processor, or patches were in the
    /// text.
    fn skip(&mut self, value: u64, t_ns: u64) {
        (self.value, self.to_ns) = (value, t_ns);
    }

    /// Number of iterations if the loop began again once more between the two samples of each pair. `None` if no
    /// processor executes that many, or if no pair of samples shows that the loop began again.
    fn more_iterations(&self) -> Option<f64> {
        let more = self.iterations + f64::from(self.pairs) * self.lengths.agreed()?;
        (more <= MAX_ITERATIONS_PER_NS * self.cpu_ns as f64).then_some(more)
    }
}

impl IterationCounter {
    /// Notes time that the kernel worked for a thread, which does not interrupt a loop.
    pub(crate) fn in_kernel(&mut self, thread: ThreadId, weight_ns: u64) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.in_kernel_ns += weight_ns;
        }
    }

    /// Adds a sample; a thread's samples come in time order. Stretches that end with it go into `out`.
    pub(crate) fn sample(&mut self, sample: &LoopSample<'_>, sites: &Sites, out: &mut Vec<Laps>) {
        let thread = self.threads.entry(sample.thread).or_default();
        let code = sample.module.code();
        let function = code.and_then(|code| code.function(sample.address));
        let function = function.map(|range| (sample.module.id, range.start));
        // To find a function's loops takes up to milliseconds, and most functions of a program are met once in a while.
        let stays = function.is_some() && thread.function == function;
        thread.function = function;
        let around = match code.filter(|_| stays) {
            Some(code) => Arc::clone(
                self.around
                    .entry(sample.leaf)
                    .or_insert_with(|| code.loops(sample.address).into()),
            ),
            None => Arc::default(),
        };
        let passed_ns = sample.t_ns.saturating_sub(thread.t_ns) as f64;
        let worked_ns = sample.weight_ns + std::mem::take(&mut thread.in_kernel_ns);
        let follows = sample.clear_since_ns == Some(thread.clear_since_ns)
            && APART.contains(&(passed_ns / worked_ns.max(1) as f64));
        let part = sample.weight_ns as f64 / worked_ns.max(1) as f64;
        let mut before = std::mem::take(&mut thread.open);
        thread.t_ns = sample.t_ns;
        thread.clear_since_ns = sample.clear_since_ns.unwrap_or(u64::MAX);
        let mut open = Vec::new();
        for it in around.iter().filter(|_| sample.clear_since_ns.is_some()) {
            let Some(register) = it.iterations else {
                continue;
            };
            let value = sample.registers[usize::from(register.register)];
            let begin = |t_ns| Stretch::begin(sample.module, it, value, t_ns);
            let known = before
                .iter()
                .position(|stretch| stretch.place() == (sample.module.id, it.start));
            let Some(mut stretch) = known.map(|at| before.swap_remove(at)) else {
                open.push(begin(sample.t_ns));
                continue;
            };
            let iterations = register.iterations_between(stretch.value, value);
            let trust = self.loops.entry(stretch.place()).or_default();
            let goes_on = if !follows {
                stretch.skip(value, sample.t_ns);
                true
            } else if stretch.add(value, sample.t_ns, iterations, part) {
                trust.pairs += 1;
                true
            } else if iterations <= 0.0 {
                trust.returns += 1;
                stretch.begin_again(value, sample.t_ns, iterations)
            } else {
                false
            };
            if goes_on && stretch.to_ns - stretch.from_ns < MAX_STRETCH_NS {
                open.push(stretch);
                continue;
            }
            report(&stretch, *trust, sample.thread, sites, out);
            open.push(begin(sample.t_ns));
        }
        for stretch in before {
            let trust = self.loops.get(&stretch.place()).copied();
            report(
                &stretch,
                trust.unwrap_or_default(),
                sample.thread,
                sites,
                out,
            );
        }
        thread.open = open;
    }

    /// Ends all stretches.
    pub(crate) fn end(&mut self, sites: &Sites, out: &mut Vec<Laps>) {
        let mut threads: Vec<(ThreadId, OfThread)> =
            std::mem::take(&mut self.threads).into_iter().collect();
        threads.sort_by_key(|(thread, _)| *thread);
        for (thread, of_thread) in threads {
            for stretch in of_thread.open {
                let trust = self.loops.get(&stretch.place()).copied();
                report(&stretch, trust.unwrap_or_default(), thread, sites, out);
            }
        }
    }
}

/// Appends a row for each known site of the stretch's loop, if the stretch is long enough and the loop is
/// trusted.
fn report(stretch: &Stretch, trust: Trust, thread: ThreadId, sites: &Sites, out: &mut Vec<Laps>) {
    let went_back_seldom = trust.pairs >= PAIRS_PER_RETURN * trust.returns;
    let is_steady = went_back_seldom || stretch.lengths.agreed().is_some();
    if stretch.pairs < MIN_PAIRS || !is_steady {
        return;
    }
    let more = stretch.more_iterations();
    let rows = stretch.it.sites.iter().filter_map(|address| {
        Some(Laps {
            site: sites.known(stretch.module.id, *address)?,
            thread,
            from_ns: stretch.from_ns,
            to_ns: stretch.to_ns,
            count: stretch.iterations.round() as u64,
            more_count: more.map(|more| more.round() as u64),
            cpu_ns: stretch.cpu_ns,
        })
    });
    out.extend(rows);
}

#[cfg(test)]
mod tests {
    use membound_rewrite::stall::IterationRegister;

    use super::*;

    fn stretch() -> Stretch {
        let it = CodeLoop {
            start: 0x40,
            iterations: Some(IterationRegister {
                register: 0,
                step: 1,
                bits: 64,
            }),
            sites: Vec::new(),
        };
        let module =
            crate::modules::Modules::default().special("[test]", membound_run::ModuleKind::Agent);
        Stretch::begin(&module, &Arc::new(it), 0, 1_000)
    }

    #[test]
    fn a_steady_stretch_adds_up_and_others_do_not_belong_to_it() {
        let mut stretch = stretch();
        assert!(stretch.add(500, 2_000, 500.0, 1.0));
        // Half of it was the kernel's.
        assert!(stretch.add(900, 3_000, 400.0, 0.5));
        assert_eq!(
            (stretch.pairs, stretch.iterations, stretch.cpu_ns),
            (2, 900.0, 1_500)
        );
        // Back, far too slow, and faster than any processor.
        assert!(!stretch.add(100, 4_000, -800.0, 1.0));
        assert!(!stretch.add(950, 4_000, 50.0, 1.0));
        assert!(!stretch.add(90_900, 4_000, 90_000.0, 1.0));
        assert_eq!((stretch.pairs, stretch.to_ns), (2, 3_000));
    }

    /// Samples of a loop that makes an iteration in each nanosecond and runs for `length` of them, over and
    /// over.
    fn sampled(length: u64, samples: u64, apart_ns: u64) -> Stretch {
        let mut stretch = stretch();
        for sample in 1..=samples {
            let t_ns = 1_000 + sample * apart_ns;
            let value = (sample * apart_ns) % length;
            let iterations = value as f64 - stretch.value as f64;
            let went_on = iterations > 0.0 && stretch.add(value, t_ns, iterations, 1.0);
            assert!(went_on || stretch.begin_again(value, t_ns, iterations));
        }
        stretch
    }

    #[test]
    fn loops_that_begin_again_between_samples_keep_their_rate() {
        let often = sampled(2_000, 40, 900);
        assert!(often.lengths.number > 15 && often.pairs > 15);
        assert_eq!(often.lengths.agreed(), Some(2_000.0));
        assert_eq!(often.iterations, often.cpu_ns as f64);
        let more = often.more_iterations().unwrap();
        assert_eq!(more - often.iterations, 2_000.0 * f64::from(often.pairs));
    }

    #[test]
    fn samples_further_apart_than_a_loop_runs_show_it_as_the_larger_number() {
        let far = sampled(2_000, 40, 2_600);
        assert!(far.iterations < 0.3 * far.cpu_ns as f64);
        let more = far.more_iterations().unwrap();
        assert!((more / far.cpu_ns as f64 - 1.0).abs() < 1e-9, "{more}");
    }

    #[test]
    fn time_off_the_processor_does_not_end_a_stretch() {
        let mut stretch = stretch();
        assert!(stretch.add(500, 2_000, 500.0, 1.0));
        stretch.skip(700, 9_000);
        assert!(stretch.add(1_200, 10_000, 500.0, 1.0));
        assert_eq!(
            (stretch.pairs, stretch.iterations, stretch.cpu_ns),
            (2, 1_000.0, 2_000)
        );
        assert_eq!((stretch.from_ns, stretch.to_ns), (1_000, 10_000));
    }

    #[test]
    fn loops_of_changing_length_do_not_agree() {
        let mut stretch = sampled(2_000, 3, 500);
        assert!(stretch.begin_again(10, 3_000, -1_490.0));
        assert!(stretch.add(510, 3_500, 500.0, 1.0));
        assert!(stretch.begin_again(200, 4_000, -310.0));
        assert_eq!(stretch.lengths.agreed(), None);
        assert_eq!(stretch.more_iterations(), None);
    }
}
