//! Times and counts of code from the profile: time by instruction and executions by block, for each module.

use std::collections::BTreeMap;

use membound_analyze::Figures;
use membound_run::{FrameId, ModuleId, RunData};

/// Samples from which on a block's or function's own time is used instead of the default.
pub(crate) const MIN_SAMPLES: f64 = 30.0;

/// Default times, where the profile has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usual {
    /// Time of an instruction, in nanoseconds: one cycle.
    pub cycle_ns: f64,
    /// CPU time per sample, in nanoseconds.
    pub sample_ns: f64,
}

/// Times and counts of a module's code. Addresses are those of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CodeTimes {
    /// CPU time of each instruction over the run, in nanoseconds: the time of accesses is at their
    /// instructions, the rest where it was sampled. Stalls that chosen yields hide are left out.
    pub time_ns: BTreeMap<u64, f64>,
    /// Executions of blocks over the run: first address, length in bytes, executions.
    pub blocks: BTreeMap<u64, (u32, f64)>,
    /// Executions of single accesses over the run.
    pub accesses: BTreeMap<u64, f64>,
}

impl CodeTimes {
    /// CPU time of the instructions in a range of addresses, in nanoseconds.
    pub(crate) fn between(&self, range: std::ops::Range<u64>) -> f64 {
        self.time_ns.range(range).map(|(_, ns)| ns).sum()
    }

    /// Executions of the block that takes `range`: those of an access in it, otherwise those of the counted
    /// block around its start; `None` if neither was counted.
    pub(crate) fn count(&self, range: std::ops::Range<u64>) -> Option<f64> {
        let mut of_accesses = self.accesses.range(range.clone());
        let counted = self.blocks.range(..=range.start).next_back();
        let of_block = counted
            .filter(|&(&start, &(length, _))| range.start < start + u64::from(length))
            .map(|(_, &(_, count))| count);
        of_accesses.next().map(|(_, &count)| count).or(of_block)
    }
}

/// Times and counts of all modules, by position in [`RunData::modules`].
///
/// `hidden` returns for an access, by its position in the run, whether a yield hides its stall.
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
    // Share of each sampled instruction's time that is not attributed to accesses.
    let mut unattributed = vec![1.0_f64; run.frames.len()];
    for attribution in &run.attributions {
        if attribution.site.is_some() {
            let share_left = &mut unattributed[attribution.frame.index()];
            *share_left = (*share_left - attribution.share).max(0.0);
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
            *time += ns as f64 * unattributed[index];
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

/// Extrapolates the counts of blocks to the whole run: by the executions of accesses in them if there are
/// any, otherwise by CPU time.
fn count_blocks(run: &RunData, cpu_ns: f64, modules: &mut [CodeTimes]) {
    /// Counts of a block over its windows.
    #[derive(Default)]
    struct Counted {
        length: u32,
        count: f64,
    }
    type Key = (ModuleId, u64);
    type Window = (u64, u64);
    // Blocks of a group are counted in the same windows, and no other group has the same ones.
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

/// Cycles by which counting slows down a block: a counter is loaded, incremented and stored, and in a loop
/// each iteration waits for the one before. The worst loops take five cycles, some take two.
const COUNTING_CYCLES: f64 = 4.0;
/// Approximate maximum number of instructions per cycle.
const WIDTH: f64 = 4.0;

/// Time of one execution of a block of `instructions` instructions, in nanoseconds, that ran `count` times
/// and has `time_ns` of sampled time.
///
/// With enough samples it is the sampled time per execution, less the cost of counting: the count is
/// extrapolated from windows in which counting slowed the block down. In a tight loop that cost is most of
/// the time. With few samples the default time holds, unless it exceeds the maximum that so few samples
/// permit (Poisson, 95 %).
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
    if samples >= MIN_SAMPLES {
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
    fn a_block_takes_its_sampled_time_if_that_suffices() {
        // 100 samples of 1 ms over a million executions, each with its counter.
        assert!((of_block(Some(1e6), 1e8, USUAL, 20) - 99.0).abs() < 1e-9);
        // Ten samples: at least the default time.
        assert!((of_block(Some(1e6), 1e7, USUAL, 48) - 12.0).abs() < 1e-9);
        assert!((of_block(Some(1e6), 1e7, USUAL, 20) - 10.0).abs() < 1e-9);
        // No sample over so many executions: the default cannot be true.
        assert!(of_block(Some(1e9), 0.0, USUAL, 20) < 0.005);
        assert!((of_block(None, 0.0, USUAL, 20) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn the_time_of_a_tight_loop_excludes_its_counter() {
        // Four instructions that take a cycle by themselves, and six with the counter.
        let iteration_ns = of_block(Some(1e8), 1.5e8, USUAL, 4);
        assert!((iteration_ns - 0.5).abs() < 1e-9, "{iteration_ns}");
        // It is never faster than its instructions permit, nor slower than it was observed.
        let iteration_ns = of_block(Some(1e8), 1e8, USUAL, 8);
        assert!((iteration_ns - 0.5).abs() < 1e-9, "{iteration_ns}");
        let iteration_ns = of_block(Some(1e8), 1e8, USUAL, 32);
        assert!((iteration_ns - 1.0).abs() < 1e-9, "{iteration_ns}");
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
