use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, eax, ecx, ptr, r8, r9, rax, rbx, rcx, rdi, rdx, rsi,
};
use membound_types::{Basis, Figure, HarvestRole};
use proptest::prelude::*;

use super::base::{BasicBlock, Step};
use super::*;
use crate::testing::{self, TEXT, elf, plan_for};

const FILE: &str = "/bin/scavenger";

/// A file with one function, whose instructions are identified by their number.
struct Assembled {
    file: Vec<u8>,
    addresses: Vec<u64>,
}

impl Assembled {
    fn of(write: impl FnOnce(&mut CodeAssembler)) -> Self {
        let mut a = CodeAssembler::new(64).unwrap();
        write(&mut a);
        Self::of_bytes(a.assemble(TEXT).unwrap())
    }

    fn of_bytes(code: Vec<u8>) -> Self {
        let length = code.len() as u64;
        let mut decoder =
            iced_x86::Decoder::with_ip(64, &code, TEXT, iced_x86::DecoderOptions::NONE);
        let addresses = decoder.iter().map(|it| it.ip()).collect();
        let mut text = code.clone();
        // Room for a jump, and another function.
        text.resize(text.len() + 16, 0x90);
        text.push(0xc3);
        text.resize(text.len() + 16, 0x90);
        let names = [("all", TEXT, length), ("other", TEXT + length + 16, 1)];
        Self {
            file: elf(&text, &names),
            addresses,
        }
    }

    /// The yields with chosen loads at the instructions `misses`, and bound yields at `bounds`.
    fn yields(&self, misses: &[usize], bounds: &[usize]) -> Settled {
        let image = Image::parse(&self.file).unwrap();
        let mut plan = plan_for(FILE, identity(&image));
        plan.role = HarvestRole::Scavenger;
        plan.options.bound_ns = Some(100.0);
        for (kind, indices) in [(YieldKind::Primary, misses), (YieldKind::Scavenger, bounds)] {
            for &index in indices {
                let offset = self.addresses[index];
                plan.sites.push(testing::site(FILE, offset, kind, 1));
            }
        }
        let groundwork = Groundwork::of(&image, &groundwork_options());
        let settle = |jumps| yields(&plan, &image, &groundwork, jumps, &[]);
        let [found, any] = [Jumps::Sure, Jumps::Any].map(settle);
        assert!(any.unsure || any == found, "{any:?}");
        let index = |address: u64| self.addresses.binary_search(&address).unwrap();
        let placed = groundwork.plan(&image, &found.options);
        assert!(placed.sites().all(|site| site.number.is_ok()));
        let own_base = found
            .options
            .bodies
            .iter()
            .filter_map(|(at, body)| match body {
                Body::Yield(
                    Yield::Miss { own_base: true, .. } | Yield::Bound { own_base: true, .. },
                ) => Some(index(*at)),
                _ => None,
            });
        Settled {
            yields: found.options.bodies.iter().map(|it| index(it.0)).collect(),
            own_base: own_base.collect(),
            bases: found.bases.iter().map(|&at| index(at)).collect(),
            left_out: found
                .left_out
                .iter()
                .map(|it| (index(it.address), it.why))
                .collect(),
            unsure: any.unsure,
        }
    }
}

/// Results, with instructions by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settled {
    yields: Vec<usize>,
    own_base: Vec<usize>,
    bases: Vec<usize>,
    left_out: Vec<(usize, Obstacle)>,
    /// Whether other yields may rely on unsure jumps.
    unsure: bool,
}

/// Eight bytes of code without effect on the test.
fn fill(a: &mut CodeAssembler) {
    a.lea(r8, ptr(r9 + rcx * 8 + 0x1234)).unwrap();
}

fn label(a: &mut CodeAssembler) -> CodeLabel {
    a.create_label()
}

#[test]
fn a_leaf_with_a_loop_has_one_base_where_it_returns() {
    let assembled = Assembled::of(|a| {
        let mut again = label(a);
        a.mov(rax, rdi).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rax, ptr(rax + 0x1000)).unwrap();
        fill(a);
        a.dec(rsi).unwrap();
        a.jnz(again).unwrap();
        fill(a);
        a.ret().unwrap();
    });
    assert_eq!(
        assembled.yields(&[1], &[]),
        Settled {
            yields: vec![1],
            bases: vec![6],
            ..Settled::default()
        }
    );
}

#[test]
fn a_loop_with_a_call_has_a_base_before_the_call() {
    let assembled = Assembled::of(|a| {
        let mut again = label(a);
        a.push(rbx).unwrap();
        a.mov(rbx, rdi).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rbx, ptr(rbx + 0x1000)).unwrap();
        fill(a);
        a.call(TEXT).unwrap();
        a.test(rbx, rbx).unwrap();
        a.jnz(again).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    // Every path from the yield to the return passes the call.
    assert_eq!(
        assembled.yields(&[2], &[]),
        Settled {
            yields: vec![2],
            bases: vec![4],
            ..Settled::default()
        }
    );
}

#[test]
fn a_stack_protector_has_a_base_before_it_reads_its_word() {
    let assembled = Assembled::of(|a| {
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        fill(a);
        let mut wrong = label(a);
        a.mov(rdx, ptr(rsi + 0x1008)).unwrap();
        a.sub(rdx, ptr(0x28).fs()).unwrap();
        a.jne(wrong).unwrap();
        a.ret().unwrap();
        a.set_label(&mut wrong).unwrap();
        a.call(TEXT).unwrap();
    });
    assert_eq!(
        assembled.yields(&[0], &[]),
        Settled {
            yields: vec![0],
            bases: vec![3],
            ..Settled::default()
        }
    );
}

#[test]
fn a_jump_of_unknown_targets_has_a_base() {
    let assembled = Assembled::of(|a| {
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        fill(a);
        a.mov(rcx, ptr(rsi + rax * 8)).unwrap();
        a.lea(rcx, ptr(rcx + rdx + 0x100)).unwrap();
        a.jmp(rcx).unwrap();
    });
    let settled = assembled.yields(&[0], &[]);
    assert_eq!(settled.yields, [0]);
    assert!(
        settled.own_base == [0] || settled.bases.len() == 1,
        "{settled:?}"
    );
    assert!(settled.bases.iter().all(|&at| at > 0));
    // Two bytes with nothing behind them.
    assert!(settled.unsure);
}

#[test]
fn a_yield_restores_the_base_where_no_body_can() {
    // The return is a one-byte block that is a branch target, without padding behind it.
    let assembled = Assembled::of(|a| {
        let mut out = label(a);
        let mut again = label(a);
        a.set_label(&mut again).unwrap();
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        a.test(rax, rax).unwrap();
        a.jz(out).unwrap();
        fill(a);
        a.cmp(rax, rsi).unwrap();
        a.jnz(again).unwrap();
        a.set_label(&mut out).unwrap();
        a.ret().unwrap();
        a.mov(eax, ecx).unwrap();
        a.jmp(again).unwrap();
    });
    assert_eq!(
        assembled.yields(&[0], &[]),
        Settled {
            yields: vec![0],
            own_base: vec![0],
            ..Settled::default()
        }
    );
}

#[test]
fn a_base_goes_before_the_instruction_where_none_can_stand_at_it() {
    // A system call is not displaced.
    let assembled = Assembled::of(|a| {
        a.mov(rdi, ptr(rdi + 0x1000)).unwrap();
        a.mov(eax, 39).unwrap();
        a.syscall().unwrap();
        a.ret().unwrap();
    });
    assert_eq!(
        assembled.yields(&[0], &[]),
        Settled {
            yields: vec![0],
            bases: vec![1],
            ..Settled::default()
        }
    );
}

#[test]
fn a_load_from_fs_is_no_place_for_a_yield_that_another_leads_to() {
    let write = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        fill(a);
        a.mov(rcx, ptr(rax + 0x100).fs()).unwrap();
        fill(a);
        a.ret().unwrap();
    };
    let assembled = Assembled::of(write);
    let settled = assembled.yields(&[0, 2], &[]);
    assert_eq!(settled.left_out, [(2, Obstacle::ForeignBase)]);
    assert_eq!((settled.yields, settled.bases), (vec![0], vec![2]));
    // Alone it finds its own base, and leaves it.
    let settled = assembled.yields(&[2], &[]);
    assert_eq!((settled.yields, settled.own_base), (vec![2], vec![2]));
    assert_eq!((settled.bases, settled.left_out), (vec![], vec![]));
}

#[test]
fn addresses_without_instruction_are_left_out() {
    let assembled = Assembled::of(|a| {
        fill(a);
        a.ret().unwrap();
    });
    let image = Image::parse(&assembled.file).unwrap();
    let groundwork = Groundwork::of(&image, &groundwork_options());
    let mut plan = plan_for(FILE, identity(&image));
    plan.sites
        .push(testing::site(FILE, TEXT + 1, YieldKind::Primary, 1));
    plan.sites
        .push(testing::site("/other", TEXT, YieldKind::Primary, 1));
    let found = yields(&plan, &image, &groundwork, Jumps::Sure, &[]);
    assert_eq!(found.options.sites, Sites::Instructions(vec![]));
    assert_eq!(
        found.left_out,
        [LeftOut {
            address: TEXT + 1,
            kind: YieldKind::Primary,
            why: Obstacle::NoInstruction
        }]
    );
    plan.role = HarvestRole::Scavenger;
    let found = yields(&plan, &image, &groundwork, Jumps::Sure, &[]);
    assert_eq!(found.left_out.len(), 1);
}

#[test]
fn switched_off_parts_are_not_emitted() {
    let mut hits = testing::site(FILE, TEXT, YieldKind::Primary, 1);
    hits.chosen = false;
    hits.reason = YieldReason::Hits;
    assert!(!is_wanted(&hits, &[]));
    assert!(is_wanted(&hits, &[HarvestPart::Choice]));
    hits.reason = YieldReason::CannotPatch;
    assert!(!is_wanted(&hits, &[HarvestPart::Choice]));
    let bound = testing::site(FILE, TEXT, YieldKind::Scavenger, 1);
    assert!(is_wanted(&bound, &[HarvestPart::Choice]));
    assert!(!is_wanted(&bound, &[HarvestPart::Distance]));
    assert_eq!(
        yield_parts(&[
            HarvestPart::Switch,
            HarvestPart::Distance,
            HarvestPart::Liveness
        ]),
        [YieldPart::Liveness, YieldPart::Passing]
    );
}

#[test]
fn a_primary_yields_at_its_loads_and_restores_no_base() {
    let assembled = Assembled::of(|a| {
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        fill(a);
        a.mov(rcx, ptr(rax + 0x100).fs()).unwrap();
        a.ret().unwrap();
    });
    let image = Image::parse(&assembled.file).unwrap();
    let groundwork = Groundwork::of(&image, &groundwork_options());
    let mut plan = plan_for(FILE, identity(&image));
    for index in [2, 0] {
        let at = assembled.addresses[index];
        plan.sites
            .push(testing::site(FILE, at, YieldKind::Primary, 1));
    }
    let found = yields(&plan, &image, &groundwork, Jumps::Sure, &[]);
    assert_eq!(found.options.body, Body::Yield(Yield::Primary));
    assert_eq!(found.options.bodies, []);
    let sites = vec![assembled.addresses[0], assembled.addresses[2]];
    assert_eq!(found.options.sites, Sites::Instructions(sites));
    assert_eq!((found.bases, found.left_out), (vec![], vec![]));
}

#[test]
fn loads_that_nearly_always_miss_prefetch_non_temporally_and_others_filter_recent_misses() {
    let assembled = Assembled::of(|a| {
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        fill(a);
        a.mov(rcx, ptr(rsi + 0x1000)).unwrap();
        fill(a);
        a.mov(rdx, ptr(rbx + 0x1000)).unwrap();
        fill(a);
        fill(a);
        a.ret().unwrap();
    });
    let image = Image::parse(&assembled.file).unwrap();
    let groundwork = Groundwork::of(&image, &groundwork_options());
    let mut plan = plan_for(FILE, identity(&image));
    plan.options.bound_ns = Some(100.0);
    for (index, lasts_ns) in [(5, Some(1000.0)), (6, Some(999.0)), (3, None)] {
        let mut site = testing::site(FILE, assembled.addresses[index], YieldKind::Scavenger, 1);
        site.lasts_ns = lasts_ns;
        plan.sites.push(site);
    }
    for (index, likelihood) in [(4, Some(0.95)), (0, Some(0.9)), (2, Some(0.89)), (1, None)] {
        let mut site = testing::site(FILE, assembled.addresses[index], YieldKind::Primary, 1);
        site.likelihood = likelihood.map(|value| Figure {
            value,
            low: value,
            high: value,
            basis: Basis::Estimated,
        });
        plan.sites.push(site);
    }
    for role in [HarvestRole::Primary, HarvestRole::Scavenger] {
        plan.role = role;
        let found = yields(&plan, &image, &groundwork, Jumps::Sure, &[]);
        let expected = [0, 4].map(|index: usize| assembled.addresses[index]);
        assert_eq!(found.options.non_temporal, expected, "{role:?}");
        let recalled = [assembled.addresses[2]];
        let recalled = &recalled[..usize::from(role == HarvestRole::Primary)];
        assert_eq!(found.options.recalled, recalled, "{role:?}");
        // A primary has no bound yields.
        let lasting = [assembled.addresses[5]];
        let lasting = &lasting[..usize::from(role == HarvestRole::Scavenger)];
        assert_eq!(found.options.long_loops, lasting, "{role:?}");
    }
    for (part, of_yields) in [
        (HarvestPart::NonTemporal, YieldPart::NonTemporal),
        (HarvestPart::Recency, YieldPart::Recency),
        (HarvestPart::Companions, YieldPart::Companions),
    ] {
        let found = yields(&plan, &image, &groundwork, Jumps::Sure, &[part]);
        assert_eq!(found.options.without, [of_yields]);
    }
}

#[test]
fn yields_cost_the_time_per_yield_of_their_function() {
    let assembled = Assembled::of(|a| {
        a.mov(rax, ptr(rdi + 0x1000)).unwrap();
        fill(a);
        fill(a);
        a.mov(rax, ptr(rsi + 0x1000)).unwrap();
        a.ret().unwrap();
    });
    let image = Image::parse(&assembled.file).unwrap();
    let groundwork = Groundwork::of(&image, &groundwork_options());
    let mut plan = plan_for(FILE, identity(&image));
    plan.role = HarvestRole::Scavenger;
    plan.options.bound_ns = Some(100.0);
    plan.options.switch_ns = 6.0;
    // 20 ms over two and a half million yields.
    plan.totals.cpu_s = 1.0;
    let at = |index: usize| assembled.addresses[index];
    plan.sites = vec![
        testing::site(FILE, at(0), YieldKind::Primary, 1),
        testing::site(FILE, at(3), YieldKind::Primary, 1),
        testing::site(FILE, at(1), YieldKind::Scavenger, 4),
        testing::site(FILE, at(2), YieldKind::Scavenger, 1),
    ];
    plan.sites[3].executions = Some(2.5e5);
    let costs = |plan: &HarvestPlan| -> Vec<u16> {
        let found = yields(plan, &image, &groundwork, Jumps::Sure, &[]);
        let bodies = found.options.bodies.iter();
        let costs = bodies.map(|it| match it.1 {
            Body::Yield(Yield::Miss { cost, .. } | Yield::Bound { cost, .. }) => cost,
            other => panic!("{other:?}"),
        });
        costs.collect()
    };
    plan.functions = vec![testing::function(FILE, TEXT, 0.02, Some(30.0))];
    assert_eq!(costs(&plan), [14 * 16, 25 * 16, 30 * 16, 14 * 16]);
    // Never more than the bound, and never nothing.
    plan.functions = vec![testing::function(FILE, TEXT, 0.9, None)];
    assert_eq!(costs(&plan), [1600, 400, 1600, 1600]);
    plan.options.switch_ns = 0.0;
    plan.functions = vec![testing::function(FILE, TEXT, 0.0, Some(0.0))];
    assert_eq!(costs(&plan), [1, 400, 1, 1]);
    plan.options.bound_ns = Some(1e9);
    assert_eq!(costs(&plan)[1], u16::MAX);
}

/// Follows every path with its state; returns whether `fs` is never used with a foreign base.
fn is_sound(flow: &Flow, bodies: &Bodies) -> bool {
    let mut visited = BTreeSet::new();
    let mut pending: Vec<(usize, bool)> = (0..flow.blocks.len()).map(|it| (it, false)).collect();
    while let Some((block, mut foreign)) = pending.pop() {
        if !visited.insert((block, foreign)) {
            continue;
        }
        // A yield that is not always taken: both outcomes are followed.
        let mut states = BTreeSet::from([foreign]);
        for index in flow.blocks[block].first..flow.blocks[block].end {
            let step = flow.steps[index];
            let mut behind = BTreeSet::new();
            for state in states {
                foreign = state;
                if bodies.bases.contains(&index) {
                    foreign = false;
                }
                if let Some(leave) = bodies.yields.get(&index) {
                    if step.own_operand && foreign {
                        return false;
                    }
                    if !leave.always {
                        behind.insert(foreign);
                    }
                    foreign = !leave.own_base;
                }
                behind.insert(foreign);
            }
            if step.needs_base && behind.contains(&true) {
                return false;
            }
            states = if step.calls {
                BTreeSet::from([false])
            } else {
                behind
            };
        }
        for &to in &flow.blocks[block].successors {
            pending.extend(states.iter().map(|&state| (to, state)));
        }
    }
    true
}

fn flows() -> impl Strategy<Value = (Flow, Bodies)> {
    let step = (0..10_u8).prop_map(|kind| Step {
        needs_base: kind >= 7,
        own_operand: kind == 8,
        calls: kind == 9,
    });
    let what = proptest::option::weighted(0.25, any::<bool>());
    let block = (
        proptest::collection::vec((step, what, any::<bool>()), 1..6),
        proptest::collection::vec(any::<prop::sample::Index>(), 0..3),
    );
    (
        proptest::collection::vec(block, 1..10),
        proptest::bool::weighted(0.05),
    )
        .prop_map(|(blocks, opaque)| {
            let count = blocks.len();
            let mut flow = Flow {
                opaque,
                ..Flow::default()
            };
            let mut bodies = Bodies::default();
            for (steps, successors) in blocks {
                let first = flow.steps.len();
                for (step, leave, forbidden) in steps {
                    let index = flow.steps.len();
                    flow.steps.push(step);
                    if let Some(always) = leave {
                        let own_base = false;
                        bodies.yields.insert(index, Leave { always, own_base });
                    }
                    if forbidden {
                        bodies.forbidden.insert(index);
                    }
                }
                flow.blocks.push(BasicBlock {
                    first,
                    end: flow.steps.len(),
                    successors: successors.iter().map(|to| to.index(count)).collect(),
                });
            }
            (flow, bodies)
        })
}

proptest! {
    #[test]
    fn no_path_comes_to_fs_with_a_foreign_base((flow, bodies) in flows()) {
        let mut settled = bodies.clone();
        flow.settle(&mut settled);
        prop_assert!(is_sound(&flow, &settled), "{settled:?}");
        for base in &settled.bases {
            prop_assert!(!settled.forbidden.contains(base) && !settled.yields.contains_key(base));
            // No body is superfluous.
            let mut without = settled.clone();
            without.bases.remove(base);
            prop_assert!(!is_sound(&flow, &without), "{base} of {settled:?}");
        }
        for given_up in &settled.given_up {
            prop_assert!(flow.steps[*given_up].own_operand);
        }
        prop_assert_eq!(settled.yields.len() + settled.given_up.len(), bodies.yields.len());
    }
}

#[test]
fn a_return_with_padding_behind_it_has_room_for_a_base() {
    let assembled = Assembled::of(|a| {
        let mut again = label(a);
        a.mov(eax, 0x100).unwrap();
        a.nop_1(dword_ptr(rax)).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rdi, ptr(rdi)).unwrap();
        a.sub(eax, 1).unwrap();
        a.jnz(again).unwrap();
        a.mov(rax, rdi).unwrap();
        a.ret().unwrap();
    });
    let found = assembled.yields(&[2], &[]);
    assert_eq!(found.own_base, Vec::<usize>::new());
    assert_eq!(found.bases.len(), 1);
}
