//! Functions in the order of the call graph, callees first.

use super::components::components;
use super::graph::Summary;
use super::place::{self, Task};
use super::{Block, Call, Function, Gap, Limits, Place, Program, Rule, Unbounded, Yields};

/// The bound that a function keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Achieved {
    /// The most between two yields in it, in nanoseconds, by the rule; time in code that is not
    /// known is left out. `None`: there is no such time.
    pub most_ns: Option<f64>,
    /// Where it is more than was asked, or not known.
    pub gaps: Vec<Gap>,
}

/// Yields, and what they achieve.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounded {
    /// Those that were placed.
    pub yields: Yields,
    /// By function.
    pub functions: Vec<Achieved>,
}

/// Places yields so that no distance exceeds the bound, as far as that can be.
#[must_use]
pub fn bound(program: &Program, limits: Limits) -> Bounded {
    let mut yields = Yields::new();
    let mut gaps = Vec::new();
    // A yield is to follow as soon as it can behind code of which nothing is known.
    let stale_ns = limits.bound_ns - leave_ns(program, limits);
    walk(program, limits, stale_ns, |task| {
        let (placed, of_group) = place::place(task);
        gaps.extend(of_group);
        yields.extend(&placed);
        placed
    });
    let mut functions = measure(program, limits, &yields);
    for gap in gaps {
        let achieved = &mut functions[gap.place.function];
        let most_ns = achieved.most_ns.unwrap_or(f64::INFINITY);
        if gap.why == Unbounded::Loop || most_ns > limits.bound_ns + place::SAME_NS {
            achieved.gaps.push(gap);
            achieved.gaps.sort_unstable();
        }
    }
    Bounded { yields, functions }
}

/// What distances there are with `yields` beside those that stand in the program.
#[must_use]
pub fn measure(program: &Program, limits: Limits, yields: &Yields) -> Vec<Achieved> {
    let mut functions: Vec<Achieved> = program
        .functions
        .iter()
        .enumerate()
        .map(|(index, function)| Achieved {
            most_ns: None,
            gaps: unknown_calls(function, index).collect(),
        })
        .collect();
    for (function, most_ns) in walk(program, limits, 0.0, |_| yields.clone()) {
        functions[function].most_ns = most_ns.is_finite().then_some(most_ns);
    }
    functions
}

/// Goes through the groups of functions that call each other, callees first, each with the yields
/// that it gets, and says how long the longest distance in each function is. Behind code of which nothing is
/// known the last yield is taken to be `stale_ns` ago.
fn walk(
    program: &Program,
    limits: Limits,
    stale_ns: f64,
    mut yields_of: impl FnMut(&Task<'_>) -> Yields,
) -> Vec<(usize, f64)> {
    let functions = &program.functions;
    let all: Vec<usize> = (0..functions.len()).collect();
    let mut groups = components(&all, |function| callees(&functions[function]));
    groups.reverse();
    let entry_ns = match limits.rule {
        Rule::Max => entry_ns(program).min(limits.bound_ns / 2.0),
        Rule::Expected => 0.0,
    };
    let leave_ns = leave_ns(program, limits);
    let mut summaries: Vec<Option<Summary>> = vec![None; functions.len()];
    let mut result = Vec::new();
    for mut group in groups {
        group.sort_unstable();
        let task = Task {
            program,
            group: &group,
            summaries: &summaries,
            limits,
            stale_ns,
            entry_ns,
            leave_ns,
        };
        let yields = yields_of(&task);
        let solved = task.solve(&task.graph(&yields));
        for (&function, &summary) in group.iter().zip(&solved.summaries) {
            summaries[function] = Some(finite(summary, stale_ns));
        }
        result.extend(group.iter().copied().zip(solved.most_by_function));
    }
    result
}

/// A function that cannot be bounded is said to be; its callers go on as after a call of
/// code that is not known.
fn finite(summary: Summary, stale_ns: f64) -> Summary {
    let is_finite = |ns: Option<f64>| ns.is_none_or(f64::is_finite);
    if is_finite(summary.head) && is_finite(summary.through) && is_finite(summary.tail) {
        summary
    } else {
        Summary {
            head: summary.head.filter(|ns| ns.is_finite()),
            through: None,
            tail: Some(stale_ns),
            through_share: 0.0,
        }
    }
}

fn callees(function: &Function) -> impl Iterator<Item = usize> + '_ {
    function.blocks.iter().filter_map(|block| match block.call {
        Some(Call::Function(callee)) => Some(callee),
        Some(Call::Unknown) | None => None,
    })
}

fn unknown_calls(function: &Function, index: usize) -> impl Iterator<Item = Gap> + '_ {
    let blocks = function.blocks.iter().enumerate();
    blocks
        .filter(|(_, block)| block.call == Some(Call::Unknown))
        .map(move |(block, content)| Gap {
            why: Unbounded::UnknownCall,
            place: Place {
                function: index,
                block,
                step: content.steps.len().saturating_sub(1),
            },
        })
}

/// How long ago a yield is at least, at the entry of a callee, that its caller put as near
/// before the call as it can. The longest of the program holds for all of its functions, which
/// are bounded before their callers are known.
fn entry_ns(program: &Program) -> f64 {
    let blocks = program.functions.iter().flat_map(|it| &it.blocks);
    blocks
        .filter(|block| matches!(block.call, Some(Call::Function(_))))
        .map(|block| {
            let from = block.steps.iter().rposition(|step| step.patchable);
            let steps = &block.steps[from.unwrap_or(0)..];
            steps.iter().map(|step| step.ns).sum()
        })
        .fold(0.0, f64::max)
}

/// How long it takes, where calls return, until a yield can stand: the longest of the program, but
/// no more than what leaves room for anything else.
fn leave_ns(program: &Program, limits: Limits) -> f64 {
    let stretch = |block: &Block| -> f64 {
        let steps = block.steps.iter();
        steps
            .take_while(|step| !step.patchable && !step.yields)
            .map(|step| step.ns)
            .sum()
    };
    let mut longest = 0.0_f64;
    for function in &program.functions {
        for block in function.blocks.iter().filter(|block| block.call.is_some()) {
            for way in &block.ways {
                longest = longest.max(stretch(&function.blocks[way.to]));
            }
        }
    }
    longest.min(limits.bound_ns / 4.0)
}
