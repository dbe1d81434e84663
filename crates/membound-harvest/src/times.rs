//! What the profile says of code: time by instruction and executions by block, for each module.

use std::collections::BTreeMap;

use membound_analyze::Figures;
use membound_run::{FrameId, ModuleId, RunData};

use crate::code::Usual;

/// Samples of a block or function from which on they, and not a default, tell its time.
pub(crate) const ENOUGH_SAMPLES: f64 = 30.0;

/// Times and counts of the code of a module. Addresses are the file's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CodeTimes {
    /// CPU time by instruction over the run, in nanoseconds: that of accesses stands at them,
    /// the rest where it was sampled. Stalls that chosen yields hide are taken out.
    pub time_ns: BTreeMap<u64, f64>,
    /// Executions over the run by block: first address, bytes, executions.
    pub blocks: BTreeMap<u64, (u32, f64)>,
    /// Executions over the run of single accesses.
    pub accesses: BTreeMap<u64, f64>,
}

impl CodeTimes {
    /// CPU time between two addresses.
    pub(crate) fn between(&self, range: std::ops::Range<u64>) -> f64 {
        self.time_ns.range(range).map(|(_, ns)| ns).sum()
    }

    /// Executions of the block that begins at `start`; `None` where nothing tells.
    pub(crate) fn count(&self, range: std::ops::Range<u64>) -> Option<f64> {
        let mut of_accesses = self.accesses.range(range.clone());
        let counted = self.blocks.range(..=range.start).next_back();
        let of_block = counted
            .filter(|&(&start, &(length, _))| range.start < start + u64::from(length))
            .map(|(_, &(_, count))| count);
        of_accesses.next().map(|(_, &count)| count).or(of_block)
    }
}

/// Those of all modules, by position in [`RunData::modules`].
///
/// `hidden` says of each access (by its position in the run) whether a yield hides its stall.
pub(crate) fn times(
    run: &RunData,
    figures: &Figures,
    hidden: impl Fn(usize) -> bool,
) -> Vec<CodeTimes> {
    let mut modules = vec![CodeTimes::default(); run.modules.len()];
    let place = |frame: FrameId| {
        let frame = run.frames[frame.index()];
        frame.module.map(|module| (module.index(), frame.address))
    };
    // What is left of each sampled instruction when its accesses have their shares.
    let mut rest = vec![1.0_f64; run.frames.len()];
    for attribution in &run.attributions {
        if attribution.site.is_some() {
            let left = &mut rest[attribution.frame.index()];
            *left = (*left - attribution.share).max(0.0);
        }
    }
    let mut sampled = vec![0_u64; run.frames.len()];
    for sample in &run.samples {
        let frame = run.stacks[sample.stack.index()].frame;
        sampled[frame.index()] += sample.weight_ns;
    }
    for (index, &ns) in sampled.iter().enumerate() {
        let frame = FrameId(index as u32);
        if let Some((module, address)) = place(frame)
            && ns > 0
        {
            let time = modules[module].time_ns.entry(address).or_default();
            *time += ns as f64 * rest[index];
        }
    }
    for access in &figures.accesses {
        let site = &run.sites[access.site.index()];
        let Some((module, address)) = place(site.frame) else {
            continue;
        };
        let stall_ns = if hidden(access.site.index()) {
            access.stall_ns.value
        } else {
            0.0
        };
        let code = &mut modules[module];
        *code.time_ns.entry(address).or_default() += (access.time_ns - stall_ns).max(0.0);
        if let Some(executed) = access.executed {
            code.accesses.insert(address, executed.count);
        }
    }
    count_blocks(run, figures.cpu_ns, &mut modules);
    modules
}

/// Carries counts of blocks over to the whole run: by the executions of accesses in them where
/// there are some, else by CPU time.
fn count_blocks(run: &RunData, cpu_ns: f64, modules: &mut [CodeTimes]) {
    /// Counts of the windows of one group of blocks.
    #[derive(Default)]
    struct Counted {
        length: u32,
        count: f64,
    }
    type Key = (ModuleId, u64);
    type Window = (u64, u64);
    // Those of a group are counted in the same windows: that is what tells groups apart.
    type Group = (ModuleId, Vec<Window>);
    let mut blocks: BTreeMap<Key, Counted> = BTreeMap::new();
    let mut windows: BTreeMap<Key, Vec<Window>> = BTreeMap::new();
    for block in &run.blocks {
        let frame = run.frames[block.frame.index()];
        let Some(module) = frame.module else { continue };
        let counted = blocks.entry((module, frame.address)).or_default();
        counted.length = counted.length.max(block.length);
        counted.count += block.count as f64;
        let of_block = windows.entry((module, frame.address)).or_default();
        of_block.push((block.from_ns, block.to_ns));
    }
    let mut groups: BTreeMap<Group, Vec<u64>> = BTreeMap::new();
    for ((module, address), mut of_block) in windows {
        of_block.sort_unstable();
        groups.entry((module, of_block)).or_default().push(address);
    }
    let mut by_time: Vec<(u64, u64)> = run
        .samples
        .iter()
        .map(|sample| (sample.t_ns, sample.weight_ns))
        .collect();
    by_time.sort_unstable();
    let cpu_in = |(from, to): Window| -> f64 {
        let first = by_time.partition_point(|sample| sample.0 < from);
        let end = by_time.partition_point(|sample| sample.0 < to);
        let inside = by_time.get(first..end).unwrap_or_default();
        inside.iter().map(|sample| sample.1 as f64).sum()
    };
    for ((module, of_group), addresses) in groups {
        let code = &mut modules[module.index()];
        let (mut executed, mut counted) = (0.0, 0.0);
        for address in &addresses {
            let block = &blocks[&(module, *address)];
            let end = address + u64::from(block.length);
            if let Some((_, count)) = code.accesses.range(*address..end).next() {
                executed += count;
                counted += block.count;
            }
        }
        let factor = if counted > 0.0 && executed > 0.0 {
            executed / counted
        } else {
            let inside: f64 = of_group.iter().copied().map(cpu_in).sum();
            if inside > 0.0 {
                (cpu_ns / inside).max(1.0)
            } else {
                1.0
            }
        };
        for address in addresses {
            let block = &blocks[&(module, address)];
            code.blocks
                .insert(address, (block.length, block.count * factor));
        }
    }
}

/// Cycles that a block takes longer while it is counted: a counter is loaded, added to and stored, which
/// in a loop waits for the lap before. The worst of loops takes five, some take two.
const COUNTING_CYCLES: f64 = 4.0;
/// Instructions that are done in a cycle at most, about.
const WIDTH: f64 = 4.0;

/// Time of one execution of a block of so many `instructions`, in nanoseconds, that ran `count` times and
/// took `time_ns` in all of samples.
///
/// A block that is sampled enough takes what it took, without what counting it took: its count is
/// that of windows in which it was counted, at the rate that it had there. Of a tight loop that is most.
/// Where samples are few it takes what is usual, unless even the most that so few samples permit
/// (Poisson, 95 %) is less.
pub(crate) fn of_block(count: Option<f64>, time_ns: f64, usual: Usual, instructions: usize) -> f64 {
    let usual_ns = instructions as f64 * usual.cycle_ns;
    let Some(count) = count.filter(|&count| count >= 1.0) else {
        return usual_ns;
    };
    let each_ns = time_ns / count;
    if usual.sample_ns <= 0.0 {
        return each_ns.max(usual_ns);
    }
    let samples = time_ns / usual.sample_ns;
    if samples >= ENOUGH_SAMPLES {
        let uncounted_ns = each_ns - COUNTING_CYCLES * usual.cycle_ns;
        return uncounted_ns.max(each_ns.min(usual_ns / WIDTH));
    }
    let most = 1.96_f64.mul_add((samples + 1.0).sqrt(), samples) + 2.0;
    (most * usual.sample_ns / count).min(each_ns.max(usual_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Usual = Usual {
        cycle_ns: 0.25,
        sample_ns: 1e6,
    };

    #[test]
    fn a_block_takes_what_was_sampled_where_that_is_enough() {
        // 100 samples of 1 ms over a million executions, each with its counter.
        assert!((of_block(Some(1e6), 1e8, USUAL, 20) - 99.0).abs() < 1e-9);
        // Ten samples: at least the usual.
        assert!((of_block(Some(1e6), 1e7, USUAL, 48) - 12.0).abs() < 1e-9);
        assert!((of_block(Some(1e6), 1e7, USUAL, 20) - 10.0).abs() < 1e-9);
        // None over so many executions that the usual cannot be true.
        assert!(of_block(Some(1e9), 0.0, USUAL, 20) < 0.005);
        assert!((of_block(None, 0.0, USUAL, 20) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_tight_loop_takes_is_not_what_its_counter_takes() {
        // Four instructions that take a cycle by themselves, and six with the counter.
        let lap_ns = of_block(Some(1e8), 1.5e8, USUAL, 4);
        assert!((lap_ns - 0.5).abs() < 1e-9, "{lap_ns}");
        // It is never faster than its instructions, nor slower than it was seen to be.
        let lap_ns = of_block(Some(1e8), 1e8, USUAL, 8);
        assert!((lap_ns - 0.5).abs() < 1e-9, "{lap_ns}");
        let lap_ns = of_block(Some(1e8), 1e8, USUAL, 32);
        assert!((lap_ns - 1.0).abs() < 1e-9, "{lap_ns}");
    }

    #[test]
    fn a_block_that_begins_inside_a_counted_one_ran_as_often() {
        let mut code = CodeTimes::default();
        code.blocks.insert(100, (20, 7.0));
        assert_eq!(code.count(100..120), Some(7.0));
        assert_eq!(code.count(110..120), Some(7.0));
        assert_eq!(code.count(120..130), None);
        code.accesses.insert(112, 9.0);
        assert_eq!(code.count(110..120), Some(9.0));
    }
}
