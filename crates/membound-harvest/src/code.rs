//! Turns the code of profiled functions into a [`Program`] whose distances can be bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use membound_rewrite::code::{self, BlockEnd, Function, ImageFacts, Tables};
use membound_rewrite::image::Image;

use crate::distance::{self, BasicBlock, Call, Edge, Program, Step};
use crate::edges;
use crate::patches::Patches;
use crate::times::{self, CodeTimes, Usual};

/// Maximum number of callees that are added to the sampled functions of a module.
const MAX_CALLEES: usize = 4096;

/// A module whose code is analysed.
pub(crate) struct AnalyzedModule<'a> {
    /// Its position in the run.
    pub index: usize,
    pub image: &'a Image<'a>,
    pub patches: &'a Patches<'a>,
    pub times: &'a CodeTimes,
    /// Addresses of the loads that yield.
    pub yields: &'a BTreeSet<u64>,
}

/// The origin of a function of the program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    /// Position of its module in the run.
    pub module: usize,
    pub range: Range<u64>,
    pub name: String,
    /// CPU time in it, in nanoseconds, without the stalls that yields hide.
    pub time_ns: f64,
    /// Whether the executions of each block are known.
    pub counted: Vec<bool>,
}

impl Origin {
    /// Whether any of its blocks was counted.
    pub(crate) fn is_profiled(&self) -> bool {
        self.counted.contains(&true)
    }
}

/// The functions of `modules` that were sampled or counted, and their callees.
pub(crate) fn program(modules: &[AnalyzedModule<'_>], usual: Usual) -> (Program, Vec<Origin>) {
    let mut program = Program::default();
    let mut origins = Vec::new();
    for module in modules {
        add(module, usual, &mut program, &mut origins);
    }
    (program, origins)
}

fn add(
    module: &AnalyzedModule<'_>,
    usual: Usual,
    program: &mut Program,
    origins: &mut Vec<Origin>,
) {
    let times = module.times;
    let (decoded, position) = decoded(module, program.functions.len());
    let mut addresses: Vec<u64> = decoded
        .iter()
        .flat_map(|function| function.instructions.iter().map(iced_x86::Instruction::ip))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let patchable = module.patches.instructions(addresses);
    for function in decoded {
        let range = function.bounds.range.clone();
        let counts: Vec<Option<f64>> = function
            .blocks
            .iter()
            .map(|block| times.count(extent(&function, block)))
            .collect();
        program.functions.push(convert(&Source {
            module,
            function: &function,
            counts: &counts,
            patchable: &patchable,
            position: &position,
            usual,
        }));
        origins.push(Origin {
            module: module.index,
            time_ns: times.between(range.clone()),
            counted: counts.iter().map(Option::is_some).collect(),
            name: match &function.bounds.name {
                Some(name) => format!("{:#}", rustc_demangle::demangle(name)),
                None => format!("{:#x}", range.start),
            },
            range,
        });
    }
}

/// The functions of a module that were sampled or counted, and their callees, with the position of each in the
/// program, from `first` on, by its first address.
fn decoded(module: &AnalyzedModule<'_>, first: usize) -> (Vec<Function>, BTreeMap<u64, usize>) {
    let (image, times) = (module.image, module.times);
    let knowledge = ImageFacts::gather(image, Tables::Resolve);
    let profiled = times
        .time_ns
        .keys()
        .chain(times.blocks.keys())
        .filter_map(|&address| image.function_at(address));
    let mut indices: Vec<usize> = profiled.collect::<BTreeSet<_>>().into_iter().collect();
    let most = indices.len() + MAX_CALLEES;
    let mut position: BTreeMap<u64, usize> = BTreeMap::new();
    let mut decoded: Vec<Function> = Vec::new();
    let mut next = 0;
    while let Some(&index) = indices.get(next) {
        next += 1;
        let function = Function::decode(image, &knowledge, index);
        let start = function.bounds.range.start;
        let begins = function.blocks.first().is_some_and(|block| {
            let instructions = function.block_instructions(block);
            instructions.first().is_some_and(|it| it.ip() == start)
        });
        if !begins || position.contains_key(&start) {
            continue;
        }
        position.insert(start, first + decoded.len());
        for target in function
            .blocks
            .iter()
            .filter_map(|block| target(block.leaves_by))
        {
            if indices.len() < most
                && !position.contains_key(&target)
                && image.is_function_start(target)
            {
                indices.extend(image.function_at(target));
            }
        }
        decoded.push(function);
    }
    (decoded, position)
}

/// Inputs from which a function is converted.
struct Source<'a> {
    module: &'a AnalyzedModule<'a>,
    function: &'a Function,
    counts: &'a [Option<f64>],
    patchable: &'a BTreeSet<u64>,
    /// Positions in the program of the module's functions, by first address.
    position: &'a BTreeMap<u64, usize>,
    usual: Usual,
}

impl Source<'_> {
    fn call(&self, target: Option<u64>) -> Call {
        let function = target.and_then(|target| self.position.get(&target));
        function.map_or(Call::Unknown, |&function| Call::Function(function))
    }

    fn steps(&self, block: &code::BasicBlock, count: Option<f64>) -> Vec<Step> {
        let instructions = self.function.block_instructions(block);
        let times = self.module.times;
        let sampled = |at: u64| times.time_ns.get(&at).copied().unwrap_or_default();
        let time_ns: f64 = instructions.iter().map(|it| sampled(it.ip())).sum();
        let block_ns = times::of_block(count, time_ns, self.usual, instructions.len());
        // Distributes the block's time over its instructions, each of which weighs at least the default time.
        let count = count.unwrap_or_default().max(1.0);
        let weight = |at: u64| (sampled(at) / count).max(self.usual.cycle_ns);
        let weights: f64 = instructions.iter().map(|it| weight(it.ip())).sum();
        instructions
            .iter()
            .map(|instruction| {
                let address = instruction.ip();
                Step {
                    address,
                    ns: block_ns * weight(address) / weights.max(f64::MIN_POSITIVE),
                    patchable: self.patchable.contains(&address),
                    yields: self.module.yields.contains(&address),
                }
            })
            .collect()
    }
}

fn convert(source: &Source<'_>) -> distance::Function {
    let blocks = &source.function.blocks;
    let successors: Vec<Vec<usize>> = blocks
        .iter()
        .map(|block| block.successors.iter().map(|to| to.index()).collect())
        .collect();
    let open: Vec<bool> = blocks
        .iter()
        .enumerate()
        .map(|(index, block)| index == 0 || block.entered_from_outside)
        .collect();
    let shares = edges::shares(source.counts, &successors, &open);
    let mut converted: Vec<BasicBlock> = Vec::with_capacity(blocks.len());
    let mut behind = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let count = source.counts[index];
        let mut edges: Vec<Edge> = successors[index]
            .iter()
            .zip(&shares[index])
            .map(|(&to, &share)| Edge { to, share })
            .collect();
        let (call, returns) = match block.leaves_by {
            BlockEnd::FallsThrough | BlockEnd::Jump | BlockEnd::Table | BlockEnd::Stops => {
                (None, false)
            }
            BlockEnd::Call { target, .. } => (Some(source.call(target)), false),
            BlockEnd::Leaves {
                target,
                conditional: false,
            } => (Some(source.call(Some(target))), true),
            BlockEnd::Leaves {
                target,
                conditional: true,
            } => {
                // The tail call behind a conditional jump out of the function becomes a block of its own.
                let to = blocks.len() + behind.len();
                let staying_share: f64 = count.map_or(0.5, |count| staying(source, block, count));
                for edge in &mut edges {
                    edge.share *= staying_share;
                }
                edges.push(Edge {
                    to,
                    share: 1.0 - staying_share,
                });
                behind.push(BasicBlock {
                    call: Some(source.call(Some(target))),
                    returns: true,
                    count: (1.0 - staying_share) * count.unwrap_or_default(),
                    ..BasicBlock::default()
                });
                (None, false)
            }
            BlockEnd::TailCall | BlockEnd::Unresolved => (Some(Call::Unknown), true),
            BlockEnd::Return => (None, true),
        };
        converted.push(BasicBlock {
            steps: source.steps(block, count),
            edges,
            call,
            returns,
            entered: block.entered_from_outside,
            count: count.unwrap_or_default(),
        });
    }
    converted.extend(behind);
    distance::Function { blocks: converted }
}

/// Share of a block's executions that stay in the function at a conditional jump out of it.
fn staying(source: &Source<'_>, block: &code::BasicBlock, count: f64) -> f64 {
    let next: Option<f64> = block
        .successors
        .iter()
        .map(|to| source.counts[to.index()])
        .sum();
    match next {
        Some(next) if count > 0.0 => (next / count).min(1.0),
        _ => 0.5,
    }
}

fn target(end: BlockEnd) -> Option<u64> {
    match end {
        BlockEnd::Call { target, .. } => target,
        BlockEnd::Leaves { target, .. } => Some(target),
        _ => None,
    }
}

fn extent(function: &Function, block: &code::BasicBlock) -> Range<u64> {
    let instructions = function.block_instructions(block);
    match (instructions.first(), instructions.last()) {
        (Some(first), Some(last)) => first.ip()..last.next_ip(),
        _ => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distance::{Limits, Rule};

    /// Functions of the test program itself.
    #[test]
    fn compiled_functions_are_bounded_where_patches_can_stand() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let patches = Patches::of(&image);
        let mut times = CodeTimes::default();
        for function in image.functions().iter().skip(100).step_by(100) {
            times.time_ns.insert(function.range.start, 1e6);
        }
        let nothing = BTreeSet::new();
        let module = AnalyzedModule {
            index: 0,
            image: &image,
            patches: &patches,
            times: &times,
            yields: &nothing,
        };
        let usual = Usual {
            cycle_ns: 0.25,
            sample_ns: 1e6,
        };
        let (program, origins) = program(&[module], usual);
        assert!(origins.len() >= times.time_ns.len());
        assert_eq!(origins.len(), program.functions.len());
        let limits = Limits {
            bound_ns: 50.0,
            rule: Rule::Max,
        };
        let bounded = distance::bound(&program, limits);
        let mut bounded_count = 0;
        for achieved in &bounded.functions {
            if achieved
                .most_ns
                .is_some_and(|ns| ns <= limits.bound_ns + 1e-3)
            {
                bounded_count += 1;
            } else {
                let excuse = |gap: &distance::Gap| gap.why != distance::Unbounded::UnknownCall;
                assert!(achieved.gaps.iter().any(excuse), "{achieved:?}");
            }
        }
        assert!(
            bounded_count * 10 >= 9 * origins.len(),
            "{bounded_count} of {}",
            origins.len()
        );
        assert!(!bounded.yields.is_empty());
        for place in bounded.yields.keys() {
            let block = &program.functions[place.function].blocks[place.block];
            let step = block.steps[place.step];
            assert!(step.patchable, "{step:x?}");
            assert!(origins[place.function].range.contains(&step.address));
        }
        let chosen: Vec<u64> = bounded
            .yields
            .keys()
            .map(|place| {
                let block = &program.functions[place.function].blocks[place.block];
                block.steps[place.step].address
            })
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        // The chosen ones can stand together, not only each alone.
        assert_eq!(patches.instructions(chosen.clone()).len(), chosen.len());
    }
}
