//! Random walks through random programs: no walk runs longer between two yields than computed.

use membound_harvest::distance::{
    self, BasicBlock, Call, Edge, Function, Limits, Program, Rule, Step, Unbounded, YieldPosition,
    Yields,
};
use proptest::prelude::*;

/// Number of steps of a walk.
const WALK: usize = 4000;

/// Maximum call depth of a walk; deeper calls are not made.
const DEEPEST: usize = 40;

#[derive(Clone, Debug)]
struct Shape {
    /// By function and block: times of instructions and whether each can be patched.
    blocks: Vec<Vec<Vec<(u16, bool)>>>,
    /// By function and block: seeds of the blocks that may run next.
    edges: Vec<Vec<Vec<u8>>>,
    /// By function and block: a seed of the callee; even ones call nothing.
    calls: Vec<Vec<u8>>,
    /// By function and block: whether a yield stands at its first instruction.
    yields: Vec<Vec<bool>>,
}

fn shape(functions: usize, always: bool) -> impl Strategy<Value = Shape> {
    let step = (
        1_u16..400,
        if always {
            Just(true).boxed()
        } else {
            prop::bool::weighted(0.8).boxed()
        },
    );
    let block = prop::collection::vec(step, 1..5);
    let sizes = prop::collection::vec(1_usize..9, 1..=functions);
    sizes.prop_flat_map(move |sizes| {
        let blocks: Vec<_> = sizes
            .iter()
            .map(|&size| prop::collection::vec(block.clone(), size).boxed())
            .collect();
        let edges: Vec<_> = sizes
            .iter()
            .map(|&size| {
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), size).boxed()
            })
            .collect();
        let calls: Vec<_> = sizes
            .iter()
            .map(|&size| prop::collection::vec(any::<u8>(), size).boxed())
            .collect();
        let yields: Vec<_> = sizes
            .iter()
            .map(|&size| prop::collection::vec(prop::bool::weighted(0.1), size).boxed())
            .collect();
        (blocks, edges, calls, yields).prop_map(|(blocks, edges, calls, yields)| Shape {
            blocks,
            edges,
            calls,
            yields,
        })
    })
}

fn program(shape: &Shape) -> Program {
    let functions = shape.blocks.len();
    let function = |index: usize| {
        let size = shape.blocks[index].len();
        let block = |number: usize| {
            let edges: Vec<usize> = shape.edges[index][number]
                .iter()
                .map(|&seed| usize::from(seed) % size)
                .collect();
            let call = shape.calls[index][number];
            let call = (call % 2 == 1).then(|| Call::Function(usize::from(call / 2) % functions));
            BasicBlock {
                steps: shape.blocks[index][number]
                    .iter()
                    .enumerate()
                    .map(|(at, &(tenths, patchable))| Step {
                        address: at as u64,
                        ns: f64::from(tenths) / 10.0,
                        patchable,
                        yields: at == 0 && shape.yields[index][number],
                    })
                    .collect(),
                returns: edges.is_empty(),
                edges: edges
                    .iter()
                    .map(|&to| Edge {
                        to,
                        share: 1.0 / edges.len() as f64,
                    })
                    .collect(),
                call,
                entered: false,
                count: (number + 1) as f64,
            }
        };
        Function {
            blocks: (0..size).map(block).collect(),
        }
    };
    Program {
        functions: (0..functions).map(function).collect(),
    }
}

/// Walks through `program` from function `start`, right behind a yield: the longest time between two yields,
/// and the function in which it ended.
struct Walk<'a> {
    program: &'a Program,
    yields: &'a Yields,
    state: u64,
    counters: std::collections::HashMap<YieldPosition, u32>,
    since_ns: f64,
    left: usize,
    most_ns: f64,
}

impl Walk<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % bound
    }

    fn call(&mut self, function: usize, depth: usize) {
        let mut block = 0;
        while self.left > 0 {
            self.left -= 1;
            let content = &self.program.functions[function].blocks[block];
            for (step, instruction) in content.steps.iter().enumerate() {
                let place = YieldPosition {
                    function,
                    block,
                    step,
                };
                let due = match self.yields.get(&place) {
                    Some(&every) => {
                        // Counters may begin with any value.
                        let start = self.state as u32 % every;
                        let passed = self.counters.entry(place).or_insert(start);
                        *passed += 1;
                        let due = *passed >= every;
                        if due {
                            *passed = 0;
                        }
                        due
                    }
                    None => false,
                };
                if due || instruction.yields {
                    self.since_ns = 0.0;
                }
                self.since_ns += instruction.ns;
                self.most_ns = self.most_ns.max(self.since_ns);
            }
            if let Some(Call::Function(callee)) = content.call {
                if depth >= DEEPEST {
                    self.left = 0;
                    return;
                }
                self.call(callee, depth + 1);
            }
            if content.edges.is_empty() {
                return;
            }
            block = content.edges[self.below(content.edges.len())].to;
        }
    }
}

fn longest_walk(program: &Program, yields: &Yields, seed: u64) -> f64 {
    let mut most_ns = 0.0_f64;
    for start in 0..program.functions.len() {
        let mut walk = Walk {
            program,
            yields,
            state: seed.wrapping_add(start as u64),
            counters: std::collections::HashMap::new(),
            since_ns: 0.0,
            left: WALK,
            most_ns: 0.0,
        };
        walk.call(start, 0);
        most_ns = most_ns.max(walk.most_ns);
    }
    most_ns
}

fn limits(bound_ns: f64) -> Limits {
    Limits {
        bound_ns,
        rule: Rule::Max,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_walk_through_a_function_exceeds_the_bound(shape in shape(1, true), seed: u64, bound in 40.0..300.0_f64) {
        let mut shape = shape;
        shape.calls[0].fill(0);
        let program = program(&shape);
        let bounded = distance::bound(&program, limits(bound));
        prop_assert!(bounded.functions[0].gaps.is_empty(), "{:?}", bounded);
        prop_assert!(bounded.functions[0].most_ns.unwrap() <= bound + 1e-3);
        prop_assert!(longest_walk(&program, &bounded.yields, seed) <= bound + 1e-3);
    }

    #[test]
    fn no_walk_through_functions_that_call_each_other_exceeds_what_is_said(shape in shape(4, true), seed: u64, bound in 100.0..600.0_f64) {
        let program = program(&shape);
        let bounded = distance::bound(&program, limits(bound));
        let said = bounded.functions.iter().map(|it| it.most_ns.unwrap()).fold(0.0, f64::max);
        prop_assert!(longest_walk(&program, &bounded.yields, seed) <= said + 1e-3);
        // Calls themselves can be patched in these programs, and no instruction is longer than 40 ns.
        prop_assert!(said <= bound + 1e-3, "{} {:?}", said, bounded);
    }

    #[test]
    fn what_cannot_be_patched_is_said(shape in shape(3, false), seed: u64, bound in 60.0..300.0_f64) {
        let program = program(&shape);
        let bounded = distance::bound(&program, limits(bound));
        let walked = longest_walk(&program, &bounded.yields, seed);
        let said = bounded.functions.iter().map(|it| it.most_ns).collect::<Option<Vec<_>>>();
        match said {
            Some(said) => {
                let most = said.into_iter().fold(0.0, f64::max);
                prop_assert!(walked <= most + 1e-3, "{} {} {:?}", walked, most, bounded);
                let gaps = bounded.functions.iter().any(|it| !it.gaps.is_empty());
                prop_assert!(gaps || most <= bound + 1e-3, "{} {:?}", most, bounded);
            }
            None => {
                let why = |it: &distance::Achieved| it.gaps.iter().any(|gap| gap.why == Unbounded::Loop);
                prop_assert!(bounded.functions.iter().any(why), "{:?}", bounded);
            }
        }
        for place in bounded.yields.keys() {
            let step = program.functions[place.function].blocks[place.block].steps[place.step];
            prop_assert!(step.patchable && !step.yields);
        }
    }

    #[test]
    fn measuring_says_what_placing_said(shape in shape(3, true), bound in 60.0..300.0_f64) {
        let program = program(&shape);
        let bounded = distance::bound(&program, limits(bound));
        let measured = distance::measure(&program, limits(bound), &bounded.yields);
        for (placed, measured) in bounded.functions.iter().zip(&measured) {
            prop_assert_eq!(placed.most_ns, measured.most_ns);
        }
    }
}
