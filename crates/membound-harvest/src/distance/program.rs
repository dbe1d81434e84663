//! Bounds a whole program: its functions in the order of the call graph, callees first.

use super::components::components;
use super::graph::Summary;
use super::place;
use super::task::{SAME_NS, Task};
use super::{
    BasicBlock, Call, Function, Gap, Limits, Program, Rule, Unbounded, YieldPosition, Yields,
};

/// The distances of a function with a set of yields.
#[derive(Clone, Debug, PartialEq)]
pub struct Achieved {
    /// The longest time between two yields in it, in nanoseconds, according to the rule and without the time
    /// of code outside the program. `None`: it is not bounded.
    pub most_ns: Option<f64>,
    /// Where the time exceeds the bound, or is not known.
    pub gaps: Vec<Gap>,
}

/// Placed yields and the resulting distances.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounded {
    /// The yields that were placed.
    pub yields: Yields,
    /// Distances of each function of the program.
    pub functions: Vec<Achieved>,
}

/// Places yields so that no distance exceeds the bound, as far as possible.
#[must_use]
pub fn bound(program: &Program, limits: Limits) -> Bounded {
    let mut yields = Yields::new();
    let mut gaps = Vec::new();
    // Assume so much time since the last yield that the next one must follow as soon as possible.
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
        if gap.why == Unbounded::Loop || most_ns > limits.bound_ns + SAME_NS {
            achieved.gaps.push(gap);
            achieved.gaps.sort_unstable();
        }
    }
    Bounded { yields, functions }
}

/// The distances with `yields` in addition to the program's own.
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

/// Solves the groups of mutually recursive functions, callees first, each with the yields that `yields_of`
/// returns for it; returns each function with its longest distance. Where unknown code returns, the last
/// yield is assumed to be `stale_ns` ago.
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

/// For a function that is not bounded, callers continue as after a call of unknown code.
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
            place: YieldPosition {
                function: index,
                block,
                step: content.steps.len().saturating_sub(1),
            },
        })
}

/// Time since the last yield, at the entry of a callee, if its caller yields as near before the call as
/// possible. The longest of the program is assumed for all functions, because callees are bounded before
/// their callers are known.
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

/// Time behind the return of a call until a yield can stand: the longest of the program, but at most a
/// quarter of the bound, to leave room for the rest.
fn leave_ns(program: &Program, limits: Limits) -> f64 {
    let stretch = |block: &BasicBlock| -> f64 {
        let steps = block.steps.iter();
        steps
            .take_while(|step| !step.patchable && !step.yields)
            .map(|step| step.ns)
            .sum()
    };
    let mut longest = 0.0_f64;
    for function in &program.functions {
        for block in function.blocks.iter().filter(|block| block.call.is_some()) {
            for edge in &block.edges {
                longest = longest.max(stretch(&function.blocks[edge.to]));
            }
        }
    }
    longest.min(limits.bound_ns / 4.0)
}
