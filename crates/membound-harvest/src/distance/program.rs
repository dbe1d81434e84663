//! Functions in the order of the call graph, callees first.

use super::components::components;
use super::graph::Summary;
use super::place::{self, Task};
use super::{Call, Function, Gap, Limits, Place, Program, Rule, Unbounded, Yields};

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
    walk(program, limits, None)
}

/// What distances there are with `yields` beside those that stand in the program.
#[must_use]
pub fn measure(program: &Program, limits: Limits, yields: &Yields) -> Vec<Achieved> {
    walk(program, limits, Some(yields)).functions
}

fn walk(program: &Program, limits: Limits, given: Option<&Yields>) -> Bounded {
    let functions = &program.functions;
    let all: Vec<usize> = (0..functions.len()).collect();
    let mut groups = components(all.len(), &all, |function| callees(&functions[function]));
    groups.reverse();
    let entry_ns = match limits.rule {
        Rule::Max => entry_ns(program).min(limits.bound_ns / 2.0),
        Rule::Expected => 0.0,
    };
    let mut bounded = Bounded {
        yields: given.cloned().unwrap_or_default(),
        functions: vec![
            Achieved {
                most_ns: None,
                gaps: Vec::new(),
            };
            functions.len()
        ],
    };
    let mut summaries: Vec<Option<Summary>> = vec![None; functions.len()];
    for mut group in groups {
        group.sort_unstable();
        let task = Task {
            program,
            group: &group,
            summaries: &summaries,
            limits,
            entry_ns,
        };
        let (yields, gaps) = match given {
            Some(given) => (given.clone(), Vec::new()),
            None => place::place(&task),
        };
        let graph = task.graph(&yields);
        let solved = task.solve(&graph);
        if given.is_none() {
            bounded.yields.extend(yields);
        }
        for (&function, &summary) in group.iter().zip(&solved.summaries) {
            let mut gaps: Vec<Gap> = gaps
                .iter()
                .copied()
                .filter(|gap| gap.place.function == function)
                .collect();
            gaps.extend(unknown_calls(&functions[function], function));
            bounded.functions[function] = Achieved {
                most_ns: solved.most_ns.is_finite().then_some(solved.most_ns),
                gaps,
            };
            summaries[function] = Some(finite(summary, limits.bound_ns));
        }
    }
    bounded
}

/// A function that cannot be bounded is said to be; its callers go on as after a call of
/// code that is not known.
fn finite(summary: Summary, bound_ns: f64) -> Summary {
    let is_finite = |ns: Option<f64>| ns.is_none_or(f64::is_finite);
    if is_finite(summary.head) && is_finite(summary.through) && is_finite(summary.tail) {
        summary
    } else {
        Summary {
            head: summary.head.filter(|ns| ns.is_finite()),
            through: None,
            tail: Some(bound_ns),
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
