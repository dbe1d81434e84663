//! Graphs whose distances can be computed by hand.

use super::*;

/// A block of instructions with these times, all of which can be patched.
fn block(times: &[f64], edges: &[(usize, f64)], count: f64) -> BasicBlock {
    BasicBlock {
        steps: times
            .iter()
            .zip(0..)
            .map(|(&ns, address)| Step {
                address,
                ns,
                patchable: true,
                yields: false,
            })
            .collect(),
        edges: edges
            .iter()
            .map(|&(to, share)| Edge { to, share })
            .collect(),
        call: None,
        returns: edges.is_empty(),
        entered: false,
        count,
    }
}

fn calling(mut block: BasicBlock, call: Call) -> BasicBlock {
    block.call = Some(call);
    block
}

fn yielding(mut block: BasicBlock) -> BasicBlock {
    block.steps[0].yields = true;
    block
}

fn fixed(mut block: BasicBlock) -> BasicBlock {
    for step in &mut block.steps {
        step.patchable = false;
    }
    block
}

fn program(functions: Vec<Vec<BasicBlock>>) -> Program {
    Program {
        functions: functions
            .into_iter()
            .map(|blocks| Function { blocks })
            .collect(),
    }
}

fn limits(rule: Rule, bound_ns: f64) -> Limits {
    Limits { bound_ns, rule }
}

/// The distance of function 0 without further yields.
fn distance(program: &Program, rule: Rule) -> Option<f64> {
    let limits = limits(rule, 1000.0);
    let ns = measure(program, limits, &Yields::new())[0].most_ns;
    ns.map(|ns| (ns * 1e3).round() / 1e3)
}

fn at(function: usize, block: usize, step: usize) -> YieldPosition {
    YieldPosition {
        function,
        block,
        step,
    }
}

#[test]
fn document_003s_two_paths_are_11_ns_on_average_and_20_at_most() {
    // Two paths from a yield, 10 ns taken 90 % of the time and 20 ns taken 10 %, and back.
    let program = program(vec![vec![
        yielding(block(&[0.0], &[(1, 0.9), (2, 0.1)], 1000.0)),
        block(&[10.0], &[(3, 1.0)], 900.0),
        block(&[20.0], &[(3, 1.0)], 100.0),
        block(&[0.0], &[], 1000.0),
    ]]);
    assert_eq!(distance(&program, Rule::Max), Some(20.0));
    let graph = graph::Graph::new(&program, &[0], &[None], &Yields::new());
    let where_they_meet = expected::solve(&graph, 1000.0, (0.0, 0.0)).pass[3];
    assert!((where_they_meet - 11.0).abs() < 1e-9, "{where_they_meet}");
}

#[test]
fn a_yield_stands_at_the_longest_wait_near_it() {
    // A loop whose third instruction misses as a rule, and one in which none does.
    let looping = |times: &[f64]| {
        program(vec![vec![
            block(&[1.0], &[(1, 1.0)], 1.0),
            block(times, &[(1, 0.99), (2, 0.01)], 100.0),
            block(&[1.0], &[], 1.0),
        ]])
    };
    let places = |program: &Program| -> Vec<YieldPosition> {
        let bounded = bound(program, limits(Rule::Max, 100.0));
        assert!(bounded.functions[0].gaps.is_empty());
        assert!(
            bounded.functions[0]
                .most_ns
                .is_some_and(|ns| ns <= 100.0 + 1e-6)
        );
        bounded.yields.into_keys().collect()
    };
    assert_eq!(places(&looping(&[1.0, 1.0, 70.0, 1.0])), [at(0, 1, 2)]);
    assert_eq!(places(&looping(&[1.0, 1.0, 7.0, 1.0])), [at(0, 1, 0)]);
    // Where the yield would be too late there, it stays.
    let long = program(vec![vec![block(&[90.0, 12.0, 40.0, 40.0], &[], 1.0)]]);
    assert_eq!(places(&long), [at(0, 0, 1)]);
}

#[test]
fn straight_code_gets_as_many_yields_as_it_needs() {
    let program = program(vec![vec![block(&[10.0; 20], &[], 1.0)]]);
    for (bound_ns, wanted) in [(200.0, 0), (199.0, 1), (100.0, 1), (50.0, 3), (10.0, 19)] {
        let bounded = bound(&program, limits(Rule::Max, bound_ns));
        assert_eq!(bounded.yields.len(), wanted, "{bound_ns}");
        assert!(
            bounded.functions[0]
                .most_ns
                .is_some_and(|ns| ns <= bound_ns + 1e-6)
        );
        assert!(bounded.functions[0].gaps.is_empty());
    }
}

#[test]
fn a_yield_stands_where_it_is_executed_least() {
    // 60 ns seldom, then a block of 60 ns that other edges lead to as well.
    let program = program(vec![vec![
        block(&[5.0], &[(1, 0.01), (2, 0.99)], 1000.0),
        block(&[20.0, 20.0, 20.0], &[(2, 1.0)], 10.0),
        block(&[20.0, 20.0, 20.0], &[], 1000.0),
    ]]);
    let bounded = bound(&program, limits(Rule::Max, 100.0));
    assert_eq!(bounded.yields.keys().collect::<Vec<_>>(), [&at(0, 1, 2)]);
}

#[test]
fn a_loop_is_counted_and_yields_each_kth_time() {
    let program = program(vec![vec![
        block(&[1.0], &[(1, 1.0)], 1.0),
        block(&[1.0, 1.0], &[(1, 0.999), (2, 0.001)], 1000.0),
        block(&[1.0], &[], 1.0),
    ]]);
    assert_eq!(distance(&program, Rule::Max), None);
    let bounded = bound(&program, limits(Rule::Max, 100.0));
    let (&place, &every) = bounded.yields.first_key_value().unwrap();
    assert_eq!((bounded.yields.len(), place.block), (1, 1));
    // 2 ns per iteration, and 3 before and behind: 48 iterations and the exit take 100 ns.
    assert!((48..=50).contains(&every), "{every}");
    assert!(bounded.functions[0].most_ns.is_some_and(|ns| ns <= 100.0));
}

#[test]
fn nested_loops_are_cut_at_a_common_block() {
    // The inner loop runs a few iterations for each of many of the outer one.
    let program = program(vec![vec![
        block(&[1.0], &[(1, 1.0)], 1.0),
        block(&[2.0], &[(2, 1.0)], 1000.0),
        block(&[1.0], &[(2, 0.75), (3, 0.25)], 4000.0),
        block(&[2.0], &[(1, 0.999), (4, 0.001)], 1000.0),
        block(&[1.0], &[], 1.0),
    ]]);
    let bounded = bound(&program, limits(Rule::Max, 200.0));
    assert_eq!(bounded.yields.len(), 1);
    let (place, every) = bounded.yields.first_key_value().unwrap();
    assert_eq!(place.block, 2);
    // The longest path around is 5 ns.
    assert!((35..=40).contains(every), "{every}");
}

#[test]
fn an_outer_loop_around_many_inner_iterations_has_its_own_counter() {
    // 500 iterations of 0.3 ns for each of the outer loop's 10 ns, and the same with a loop in between.
    let outermost = |inner: Vec<BasicBlock>| {
        let mut blocks = vec![block(&[1.0], &[(1, 1.0)], 1.0)];
        blocks.extend(inner);
        blocks
    };
    let two = outermost(vec![
        block(&[5.0], &[(2, 1.0)], 1e3),
        block(&[0.3], &[(2, 0.998), (3, 0.002)], 5e5),
        block(&[5.0], &[(1, 0.999), (4, 0.001)], 1e3),
        block(&[1.0], &[], 1.0),
    ]);
    let three = outermost(vec![
        block(&[5.0], &[(2, 1.0)], 10.0),
        block(&[5.0], &[(3, 1.0)], 1e3),
        block(&[0.3], &[(3, 0.998), (4, 0.002)], 5e5),
        block(&[5.0], &[(2, 0.99), (5, 0.01)], 1e3),
        block(&[5.0], &[(1, 0.9), (6, 0.1)], 10.0),
        block(&[1.0], &[], 1.0),
    ]);
    for (blocks, inner) in [(two, 2), (three, 3)] {
        let program = program(vec![blocks]);
        let bounded = bound(&program, limits(Rule::Max, 200.0));
        assert!(bounded.functions[0].gaps.is_empty());
        assert!(bounded.functions[0].most_ns.is_some_and(|ns| ns <= 200.0));
        let every = |block| {
            let found = bounded.yields.iter().find(|it| it.0.block == block);
            found.map_or(0, |it| *it.1)
        };
        // Alone it would be 200 ns / 10.3 ns.
        assert!(every(inner) > 300, "{:?}", bounded.yields);
        let of_outer = every(inner - 1).max(every(inner + 1));
        assert!((2..=10).contains(&of_outer), "{:?}", bounded.yields);
    }
}

#[test]
fn a_loop_that_yields_already_needs_no_other() {
    let program = program(vec![vec![
        block(&[1.0], &[(1, 1.0)], 1.0),
        yielding(block(&[2.0, 3.0], &[(1, 0.999), (2, 0.001)], 1000.0)),
        block(&[1.0], &[], 1.0),
    ]]);
    assert_eq!(distance(&program, Rule::Max), Some(6.0));
    assert!(bound(&program, limits(Rule::Max, 50.0)).yields.is_empty());
}

#[test]
fn a_call_is_as_long_as_its_callee_and_ends_at_its_yields() {
    let caller = |callee: usize| {
        vec![
            calling(
                block(&[10.0, 1.0], &[(1, 1.0)], 1.0),
                Call::Function(callee),
            ),
            block(&[10.0], &[], 1.0),
        ]
    };
    // No yield: 11 + 30 + 10. (Function 0 begins 11 ns behind its caller's yield at most.)
    let plain = program(vec![caller(1), vec![block(&[30.0], &[], 1.0)]]);
    assert_eq!(distance(&plain, Rule::Max), Some(51.0 + 1.0));
    // A yield behind 30 of 70 ns: 11 + 30 up to it, 40 + 10 behind it.
    let yields = vec![
        block(&[30.0], &[(1, 1.0)], 1.0),
        yielding(block(&[40.0], &[], 1.0)),
    ];
    let inside = program(vec![caller(1), yields]);
    assert_eq!(distance(&inside, Rule::Max), Some(50.0));
}

#[test]
fn recursion_is_a_loop() {
    // f: 4 ns, itself or not, 6 ns, return.
    let recursive = program(vec![vec![
        block(&[2.0, 2.0], &[(1, 0.9), (2, 0.1)], 1000.0),
        calling(block(&[1.0], &[(2, 1.0)], 900.0), Call::Function(0)),
        block(&[3.0, 3.0], &[], 1000.0),
    ]]);
    assert_eq!(distance(&recursive, Rule::Max), None);
    let bounded = bound(&recursive, limits(Rule::Max, 100.0));
    // Both the path down and the path up.
    assert_eq!(bounded.yields.len(), 2, "{bounded:?}");
    assert!(
        bounded.yields.values().all(|every| *every > 3),
        "{bounded:?}"
    );
    assert!(bounded.functions[0].most_ns.is_some_and(|ns| ns <= 100.0));
}

/// Two functions that call each other.
fn even_and_odd() -> Program {
    let even = vec![
        block(&[2.0], &[(1, 0.9), (2, 0.1)], 1000.0),
        calling(block(&[2.0], &[(2, 1.0)], 900.0), Call::Function(1)),
        block(&[2.0], &[], 1000.0),
    ];
    let odd = vec![
        block(&[3.0], &[(1, 0.9), (2, 0.1)], 900.0),
        calling(block(&[3.0], &[(2, 1.0)], 800.0), Call::Function(0)),
        block(&[3.0], &[], 900.0),
    ];
    program(vec![even, odd])
}

#[test]
fn functions_that_call_each_other_are_bounded_together() {
    let bounded = bound(&even_and_odd(), limits(Rule::Max, 60.0));
    for function in &bounded.functions {
        assert!(function.most_ns.is_some_and(|ns| ns <= 60.0), "{bounded:?}");
    }
}

#[test]
fn many_functions_that_call_each_other_are_bounded_one_by_one() {
    let program = even_and_odd();
    let limits = limits(Rule::Max, 60.0);
    let (yields, gaps) = place::place_apart(&task::Task {
        program: &program,
        group: &[0, 1],
        summaries: &[None, None],
        limits,
        stale_ns: 60.0,
        entry_ns: 3.0,
        leave_ns: 0.0,
    });
    assert!(gaps.is_empty());
    // At the entry of each function, and behind each call of the other one.
    assert_eq!(
        yields.keys().collect::<Vec<_>>(),
        [&at(0, 0, 0), &at(0, 2, 0), &at(1, 0, 0), &at(1, 2, 0)]
    );
    for function in measure(&program, limits, &yields) {
        assert!(function.most_ns.is_some_and(|ns| ns <= 60.0), "{yields:?}");
    }
}

/// A function returns so late that its caller exceeds the bound where no patch can stand.
#[test]
fn gaps_caused_by_another_function_of_the_group_are_named() {
    let mut caller = vec![
        block(&[1.0], &[(1, 1.0)], 10.0),
        calling(block(&[1.0], &[(2, 1.0)], 10.0), Call::Function(1)),
        fixed(block(&[2.0], &[(3, 1.0)], 10.0)),
        block(&[1.0], &[], 10.0),
    ];
    // Enough blocks for each function to be solved by itself.
    caller.extend((0..700).map(|_| block(&[1.0], &[], 0.0)));
    let late = vec![
        block(&[1.0], &[(1, 0.9), (2, 0.1)], 10.0),
        fixed(block(&[1.0; 58], &[], 9.0)),
        calling(block(&[1.0], &[(3, 1.0)], 1.0), Call::Function(0)),
        block(&[1.0], &[], 1.0),
    ];
    let bounded = bound(&program(vec![caller, late]), limits(Rule::Max, 60.0));
    let [caller, late] = bounded.functions.as_slice() else {
        panic!("{bounded:?}");
    };
    assert_eq!(late.most_ns, Some(59.0));
    assert_eq!(caller.most_ns, Some(61.0));
    let gap = Gap {
        why: Unbounded::Stretch,
        place: at(0, 2, 0),
    };
    assert_eq!((&*caller.gaps, &*late.gaps), (&[gap][..], &[][..]));
}

#[test]
fn unbounded_places_are_named() {
    let long = program(vec![vec![block(&[5.0, 300.0, 5.0], &[], 1.0)]]);
    let bounded = bound(&long, limits(Rule::Max, 100.0));
    assert_eq!(
        bounded.functions[0].gaps,
        [Gap {
            why: Unbounded::Instruction,
            place: at(0, 0, 1)
        }]
    );
    assert!(
        bounded.functions[0]
            .most_ns
            .is_some_and(|ns| (300.0..=305.0).contains(&ns))
    );

    let stuck = program(vec![vec![
        block(&[1.0], &[(1, 1.0)], 1.0),
        fixed(block(&[1.0], &[(1, 0.9), (2, 0.1)], 10.0)),
        block(&[1.0], &[], 1.0),
    ]]);
    let bounded = bound(&stuck, limits(Rule::Max, 100.0));
    assert_eq!(bounded.functions[0].most_ns, None);
    assert_eq!(
        bounded.functions[0].gaps,
        [Gap {
            why: Unbounded::Loop,
            place: at(0, 1, 0)
        }]
    );

    let stiff = program(vec![vec![fixed(block(&[60.0; 3], &[], 1.0))]]);
    let bounded = bound(&stiff, limits(Rule::Max, 100.0));
    assert_eq!(bounded.functions[0].most_ns, Some(180.0));
    assert_eq!(
        bounded.functions[0].gaps,
        [Gap {
            why: Unbounded::Stretch,
            place: at(0, 0, 1)
        }]
    );
}

#[test]
fn a_call_of_unknown_code_is_listed_and_a_yield_follows() {
    let program = program(vec![vec![
        calling(block(&[10.0], &[(1, 1.0)], 1.0), Call::Unknown),
        block(&[10.0, 10.0], &[], 1.0),
    ]]);
    let bounded = bound(&program, limits(Rule::Max, 100.0));
    assert_eq!(bounded.yields.keys().collect::<Vec<_>>(), [&at(0, 1, 0)]);
    assert_eq!(
        bounded.functions[0].gaps,
        [Gap {
            why: Unbounded::UnknownCall,
            place: at(0, 0, 0)
        }]
    );
}

#[test]
fn averages_place_fewer_yields_than_maxima() {
    // A long path that is seldom taken.
    let program = program(vec![vec![
        block(&[10.0], &[(1, 0.99), (2, 0.01)], 1000.0),
        block(&[10.0], &[(3, 1.0)], 990.0),
        block(&[40.0, 40.0], &[(3, 1.0)], 10.0),
        block(&[40.0], &[], 1000.0),
    ]]);
    let max = bound(&program, limits(Rule::Max, 95.0));
    assert_eq!(max.yields.len(), 1);
    let expected = bound(&program, limits(Rule::Expected, 95.0));
    assert!(expected.yields.is_empty(), "{expected:?}");
    let strict = bound(&program, limits(Rule::Expected, 60.0));
    assert!(!strict.yields.is_empty());
    assert!(
        strict.functions[0].most_ns.is_some_and(|ns| ns <= 60.0),
        "{strict:?}"
    );
}

#[test]
fn the_average_length_of_a_loop_depends_on_its_iterations() {
    // Nine iterations on average of 10, 5 ns each.
    let program = program(vec![vec![
        block(&[0.0], &[(1, 1.0)], 100.0),
        block(&[5.0], &[(1, 0.9), (2, 0.1)], 1000.0),
        yielding(block(&[0.0], &[], 100.0)),
    ]]);
    // t = 0.1·0 + 0.9·(t + 5): 45, and 5 more at the end.
    assert_eq!(distance(&program, Rule::Expected), Some(50.0));
    let bounded = bound(&program, limits(Rule::Expected, 30.0));
    let (place, every) = bounded.yields.first_key_value().unwrap();
    assert_eq!(place.block, 1);
    assert!(*every > 1, "{bounded:?}");
    assert!(
        bounded.functions[0].most_ns.is_some_and(|ns| ns <= 30.0),
        "{bounded:?}"
    );
}
