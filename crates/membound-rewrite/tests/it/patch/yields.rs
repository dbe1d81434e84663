//! A yield preserves all live state, whatever the other context does in the meantime.

use std::arch::asm;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};

use iced_x86::Register;
use iced_x86::code_asm::{
    CodeAssembler, cl, dword_ptr, eax, ecx, edx, get_gpr64, get_xmm, get_zmm, k0, k1, k2, k3, k4,
    k5, k6, k7, ptr, qword_ptr, rax, rcx, rdi, rdx, rsp, word_ptr,
};
use membound_jit::CodeBuffer;
use membound_rewrite::Gpr;
use membound_rewrite::patch::{Accesses, Body, Options, VectorLevel, Yield, YieldPart};
use membound_testkit::skipped;
use membound_wire::{Context, EVERY_BIT, RECENT_LINES, RECENT_OFFSET, RunQueue};

use super::bodies::{code_of, options, program};
use super::lab::{self, Jumps, Lab};
use crate::flow::programs::Pool;
use crate::machine::{Machine, Random};

/// Credit that each yield of a test costs.
pub(super) const COST: u16 = 100;

/// Foreign code on the other side of a yield: it overwrites every register and then continues as another
/// context or the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClobberingCode {
    /// A scavenger's context that yields to the thread.
    Context,
    /// The thread of the primary. Its next time slice begins with the first context and with this credit.
    Thread(i32),
    /// Another context of the ring, which continues as the first.
    Other,
}

/// A run queue, followed by the entries of its recent-miss filter.
#[repr(C)]
struct Ground {
    run_queue: RunQueue,
    rest: [u8; RECENT_OFFSET - size_of::<RunQueue>()],
    recent: [u16; RECENT_LINES],
}

/// A run queue at a fixed address, where patched code finds it.
pub(super) struct OwnRunQueue(Box<Ground>);

impl Deref for OwnRunQueue {
    type Target = RunQueue;

    fn deref(&self) -> &RunQueue {
        &self.0.run_queue
    }
}

impl DerefMut for OwnRunQueue {
    fn deref_mut(&mut self) -> &mut RunQueue {
        &mut self.0.run_queue
    }
}

/// A run queue with foreign code on its other side, which exists as long as this value.
pub(super) struct Turns {
    pub(super) run_queue: OwnRunQueue,
    pub(super) contexts: Box<[Context; 2]>,
    /// Kept alive because they are executed or used as stacks.
    _code: Vec<CodeBuffer>,
    _stack: Vec<u8>,
    /// Number of times that foreign code ran.
    visits: Box<u64>,
    /// Number of programs in which foreign code ran.
    visited: u32,
    /// Sum of the run queue's `turns` over all programs.
    counted: u64,
    /// Number of programs at whose end `fs` had a context's base, and how many of those ran foreign code.
    borrowed: (u32, u32),
}

impl Turns {
    /// `None`, after reporting a skipped test, if programs may not set the base of `gs`.
    pub(super) fn new() -> Option<Self> {
        const AT_HWCAP2: u64 = 26;
        const FSGSBASE: u64 = 2;
        // SAFETY: reads a value that the kernel passed to this process.
        if unsafe { libc::getauxval(AT_HWCAP2) } & FSGSBASE == 0 {
            skipped("this kernel does not let programs set the base of gs");
            return None;
        }
        Some(Self {
            run_queue: OwnRunQueue(Box::new(Ground {
                run_queue: RunQueue {
                    own_bits: EVERY_BIT,
                    ..RunQueue::default()
                },
                rest: [0; RECENT_OFFSET - size_of::<RunQueue>()],
                recent: [0; RECENT_LINES],
            })),
            contexts: Box::default(),
            _code: Vec::new(),
            _stack: vec![0; 1 << 16],
            visits: Box::default(),
            visited: 0,
            counted: 0,
            borrowed: (0, 0),
        })
    }

    fn run_queue(&self) -> *const RunQueue {
        (&raw const *self.run_queue.0).cast()
    }

    /// Clears the recent-miss filter.
    pub(super) fn forget(&mut self) {
        self.run_queue.0.recent.fill(0);
    }

    /// The run queue as patched code left it.
    fn seen(&self) -> RunQueue {
        // SAFETY: patched code writes the box behind the compiler's back.
        unsafe { std::ptr::read_volatile(self.run_queue()) }
    }

    pub(super) fn visits(&self) -> u64 {
        // SAFETY: as above.
        unsafe { std::ptr::read_volatile(&raw const *self.visits) }
    }

    pub(super) fn context(&self, index: usize) -> u64 {
        (&raw const self.contexts[index]) as u64
    }

    pub(super) fn stack(&self) -> u64 {
        (self._stack.as_ptr() as u64 + self._stack.len() as u64) & !63
    }

    /// Emits the foreign code; returns its address.
    pub(super) fn clobbering_code(&mut self, clobbering_code: ClobberingCode) -> u64 {
        let mut a = CodeAssembler::new(64).unwrap();
        // Parks the context again at once, so that it restarts here.
        let own = match clobbering_code {
            ClobberingCode::Context => Some(self.context(0)),
            ClobberingCode::Other => Some(self.context(1)),
            ClobberingCode::Thread(_) => None,
        };
        let mut begin = a.create_label();
        a.set_label(&mut begin).unwrap();
        if let Some(own) = own {
            a.mov(rax, own).unwrap();
            a.lea(rcx, ptr(begin)).unwrap();
            a.mov(qword_ptr(rax + offset_of!(Context, resume)), rcx)
                .unwrap();
        }
        // Count a visit only if the rounding mode is the one stored for this side.
        let mut other = a.create_label();
        a.mov(rax, (&raw const *self.visits) as u64).unwrap();
        a.stmxcsr(dword_ptr(rsp - 8)).unwrap();
        a.fnstcw(word_ptr(rsp - 4)).unwrap();
        a.cmp(dword_ptr(rsp - 8), ROUNDING as i32).unwrap();
        a.jne(other).unwrap();
        a.cmp(word_ptr(rsp - 4), (ROUNDING >> 32) as i32).unwrap();
        a.jne(other).unwrap();
        a.inc(qword_ptr(rax)).unwrap();
        a.set_label(&mut other).unwrap();
        ruin(&mut a);
        let run_queue = |offset: usize| ptr(offset as u64).gs();
        match clobbering_code {
            ClobberingCode::Context => {
                a.mov(rsp, run_queue(offset_of!(RunQueue, stack))).unwrap();
                let rounding = offset_of!(RunQueue, rounding) as u64;
                a.ldmxcsr(dword_ptr(rounding).gs()).unwrap();
                a.fldcw(word_ptr(rounding + 4).gs()).unwrap();
                a.jmp(qword_ptr(offset_of!(RunQueue, resume) as u64).gs())
                    .unwrap();
            }
            ClobberingCode::Thread(credit) => {
                a.mov(dword_ptr(offset_of!(RunQueue, credit) as u64).gs(), credit)
                    .unwrap();
                self.go_on(&mut a);
            }
            ClobberingCode::Other => self.go_on(&mut a),
        }
        let code = a.assemble(0).unwrap();
        let mut buffer = CodeBuffer::new(code.len()).unwrap();
        let at = buffer.address();
        buffer.load(&code).unwrap();
        self._code.push(buffer);
        at
    }

    /// Emits code that continues as the first context.
    fn go_on(&self, a: &mut CodeAssembler) {
        a.mov(rax, self.context(0)).unwrap();
        a.mov(qword_ptr(offset_of!(RunQueue, current) as u64).gs(), rax)
            .unwrap();
        a.mov(rsp, qword_ptr(rax + offset_of!(Context, stack)))
            .unwrap();
        let rounding = offset_of!(Context, rounding);
        a.ldmxcsr(dword_ptr(rax + rounding)).unwrap();
        a.fldcw(word_ptr(rax + rounding + 4)).unwrap();
        let resume = qword_ptr(rax + offset_of!(Context, resume));
        a.mov(rdx, resume).unwrap();
        a.mov(resume, 0).unwrap();
        a.jmp(rdx).unwrap();
    }

    /// Runs `work` with `gs` of this thread set to the run queue.
    pub(super) fn on_run_queue<T>(&self, work: impl FnOnce() -> T) -> T {
        let set = |base: u64| {
            // SAFETY: nothing else in this process uses gs.
            unsafe { asm!("wrgsbase {}", in(reg) base, options(nostack, preserves_flags)) };
        };
        set(self.run_queue() as u64);
        let result = work();
        set(0);
        result
    }
}

/// Overwrites every register except the stack pointer.
fn ruin(a: &mut CodeAssembler) {
    let level = VectorLevel::detect();
    for number in 0..16 {
        let vector = get_xmm(Register::XMM0 + number).unwrap();
        match level {
            VectorLevel::Sse => a.pcmpeqd(vector, vector).unwrap(),
            // Clears the upper half.
            VectorLevel::Avx | VectorLevel::Avx512 => a.vpcmpeqd(vector, vector, vector).unwrap(),
        }
    }
    if level == VectorLevel::Avx512 {
        for number in 0..32 {
            let vector = get_zmm(Register::ZMM0 + number).unwrap();
            a.vpternlogd(vector, vector, vector, 0xff).unwrap();
        }
        for mask in [k0, k1, k2, k3, k4, k5, k6, k7] {
            a.kxnorw(mask, mask, mask).unwrap();
        }
    }
    for number in 0..16_u32 {
        let register = Register::RAX + number;
        if register != Register::RSP {
            let value = 0x5a5a_0000_0000_5a00 + u64::from(number);
            a.mov(get_gpr64(register).unwrap(), value).unwrap();
        }
    }
    // Flags that are rarely set together: overflow and carry.
    a.mov(eax, i32::MIN as u32).unwrap();
    a.add(eax, eax).unwrap();
    a.mov(cl, 3).unwrap();
}

/// Chooses the bodies of a program's sites.
type Bodies<'a> = &'a dyn Fn(&mut Random) -> Body;

/// Runs random programs patched with `body`, with foreign code as set up by `prepare` for each run; returns
/// the state after the last one.
fn run_among(body: Body, seed: u64, prepare: impl Fn(&mut Turns)) -> Option<Turns> {
    run_mixed(body, None, seed, prepare)
}

/// As [`run_among`]; `others` may give single sites another body than `body`.
fn run_mixed(
    body: Body,
    others: Option<Bodies<'_>>,
    seed: u64,
    prepare: impl Fn(&mut Turns),
) -> Option<Turns> {
    let mut machine = Machine::new();
    let mut random = Random::new(seed);
    let pool = Pool::find(&mut machine, &mut random);
    let mut lab = Lab::new();
    let mut turns = Turns::new()?;
    prepare(&mut turns);
    let (run_queue, contexts) = (*turns.run_queue, *turns.contexts);
    let mut planted = 0;
    for round in 0..150 {
        let length = 5 + random.below(40) as usize;
        let program = program(length, &pool, &mut random);
        let code = code_of(&program, lab.text(), &mut random);
        let (state, memory) = lab::beginning(&machine, &mut random);
        lab.load(&code);
        let expected = turns.on_run_queue(|| {
            // Some programs read the base of `gs`.
            lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly)
        });
        let mut options: Options = options(body, &mut random);
        lab.patch(&code, &options, Jumps::Planted);
        if let Some(others) = others {
            let sites = |lab: &Lab| -> Vec<(u64, bool)> {
                let sites = lab.plan.as_ref().unwrap().sites();
                sites.map(|it| (it.address, it.number.is_ok())).collect()
            };
            let alike = sites(&lab);
            for &(address, _) in &alike {
                options.bodies.push((address, others(&mut random)));
            }
            lab.patch(&code, &options, Jumps::Planted);
            assert_eq!(sites(&lab), alike, "{round}");
        }
        planted += lab.planted().iter().filter(|planted| **planted).count();
        let visits = turns.visits();
        *turns.run_queue = run_queue;
        *turns.contexts = contexts;
        let after = turns
            .on_run_queue(|| lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly));
        lab::assert_same(&expected, &after, &format!("{round} {body:?} {program:?}"));
        let seen = turns.seen();
        turns.visited += u32::from(turns.visits() > visits);
        turns.counted += seen.turns.wrapping_sub(run_queue.turns);
        assert_eq!(seen.owner, run_queue.owner);
        if run_queue.current == 0 {
            assert_eq!((seen.current, seen.selector), (0, 0));
        }
        assert!([0, turns.context(0)].contains(&seen.borrowed));
        if seen.borrowed != 0 {
            turns.borrowed.0 += 1;
            turns.borrowed.1 += u32::from(turns.visits() > visits);
        }
    }
    assert!(planted > 1000, "{planted} sites");
    Some(turns)
}

/// Number of times that foreign code ran.
fn among_clobbering_contexts(body: Body, seed: u64, prepare: impl Fn(&mut Turns)) -> Option<u64> {
    run_among(body, seed, prepare).map(|turns| turns.visits())
}

/// The word at `fs:0`: the thread pointer.
pub(super) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the thread's control block begins with its own address.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    pointer
}

#[test]
fn a_primary_is_the_same_after_each_turn() {
    let visits = among_clobbering_contexts(Body::Yield(Yield::Primary), 0x7969_656c, |turns| {
        let resume = turns.clobbering_code(ClobberingCode::Context);
        as_thread(turns, resume);
        turns.run_queue.span = 1234;
    });
    assert!(visits.is_none_or(|visits| visits > 1000), "{visits:?}");
}

#[test]
fn a_wish_that_came_after_its_answer_is_passed() {
    let visits = among_clobbering_contexts(Body::Yield(Yield::Primary), 0x6173_6b65, |turns| {
        turns.run_queue.next = membound_wire::ASK;
        turns.run_queue.owner = thread_pointer();
    });
    assert!(visits.is_none_or(|visits| visits == 0), "{visits:?}");
}

#[test]
fn an_empty_run_queue_and_another_thread_s_are_passed() {
    for (next, owner) in [(false, true), (true, false)] {
        let visits = among_clobbering_contexts(Body::Yield(Yield::Primary), 0x6e6f_626f, |turns| {
            let resume = turns.clobbering_code(ClobberingCode::Context);
            turns.contexts[0] = Context {
                stack: turns.stack(),
                resume,
                next: turns.context(0),
                ..Context::default()
            };
            turns.run_queue.next = if next { turns.context(0) } else { 0 };
            turns.run_queue.owner = if owner { thread_pointer() } else { 1 };
        });
        assert!(visits.is_none_or(|visits| visits == 0), "{visits:?}");
    }
}

#[test]
fn a_line_that_was_yielded_for_lately_is_passed() {
    let Some(mut turns) = Turns::new() else {
        return;
    };
    let resume = turns.clobbering_code(ClobberingCode::Context);
    as_thread(&mut turns, resume);
    let mut machine = Machine::new();
    let mut random = Random::new(0x7265_6365);
    let mut lab = Lab::new();
    // Four loads from two lines; before them the flags and two registers are dead.
    let mut a = CodeAssembler::new(64).unwrap();
    for place in [0, 64, 8, 72] {
        a.mov(rax, qword_ptr(rdi + place)).unwrap();
    }
    a.xor(ecx, ecx).unwrap();
    a.mov(edx, 1).unwrap();
    a.cmp(ecx, edx).unwrap();
    a.ret().unwrap();
    let code = a.assemble(lab.text()).unwrap();
    let (mut state, memory) = lab::beginning(&machine, &mut random);
    let line = state.gpr(Gpr::RSP) & !63;
    state.set_gpr(Gpr::RDI, line);
    let (run_queue, contexts) = (*turns.run_queue, *turns.contexts);
    let mut visits = |turns: &mut Turns, without: &[YieldPart]| {
        let mut options = Options {
            accesses: Accesses::Loads,
            without: without.to_vec(),
            ..Options::new(Body::Yield(Yield::Primary))
        };
        lab.patch(&code, &options, Jumps::Planted);
        let sites = lab.plan.as_ref().unwrap().sites();
        options.recalled = sites.map(|site| site.address).collect();
        lab.patch(&code, &options, Jumps::Planted);
        *turns.run_queue = run_queue;
        *turns.contexts = contexts;
        let before = turns.visits();
        let ran = turns
            .on_run_queue(|| lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly));
        assert!(ran.0.is_ok(), "{ran:?}");
        turns.visits() - before
    };
    assert_eq!(visits(&mut turns, &[]), 2);
    assert_eq!(visits(&mut turns, &[]), 0);
    assert_eq!(visits(&mut turns, &[YieldPart::Recency]), 4);
    turns.forget();
    assert_eq!(visits(&mut turns, &[]), 2);
}

/// Rounding mode of foreign code: towards zero, all exceptions masked.
pub(super) const ROUNDING: u64 = 0x0f7f_0000_7f80;

/// The program is the primary; the ring has one context, which resumes at `resume`.
pub(super) fn as_thread(turns: &mut Turns, resume: u64) {
    turns.contexts[0] = Context {
        stack: turns.stack(),
        resume,
        next: turns.context(0),
        rounding: ROUNDING,
        ..Context::default()
    };
    turns.run_queue.next = turns.context(0);
    turns.run_queue.owner = thread_pointer();
}

/// The program is a scavenger; the thread is foreign code that gives it this credit.
pub(super) fn as_context(turns: &mut Turns, credit: i32) {
    let thread = turns.clobbering_code(ClobberingCode::Thread(credit));
    let other = turns.clobbering_code(ClobberingCode::Other);
    turns.contexts[1] = Context {
        stack: turns.stack() - 4096,
        resume: other,
        rounding: ROUNDING,
        next: turns.context(0),
        ..Context::default()
    };
    turns.contexts[0].next = turns.context(1);
    turns.contexts[0].fs = thread_pointer();
    turns.run_queue.current = turns.context(0);
    // 0, as when the agent wants the thread to call it; a scavenger's yields must ignore it.
    turns.run_queue.owner = 0;
    turns.run_queue.base = thread_pointer();
    turns.run_queue.credit = credit;
    turns.run_queue.stack = turns.stack();
    turns.run_queue.resume = thread;
    turns.run_queue.rounding = ROUNDING;
}

#[test]
fn a_context_is_the_same_after_each_turn_of_the_thread() {
    let cost = COST;
    for (own_base, misses) in [(false, false), (false, true), (true, false), (true, true)] {
        let body = if misses {
            Yield::Miss { cost, own_base }
        } else {
            Yield::Bound { cost, own_base }
        };
        let body = Body::Yield(body);
        let always = among_clobbering_contexts(body, 0x626f_756e, |turns| {
            as_context(turns, 0);
            // Every context had its turn, so the thread continues.
            turns.run_queue.first = turns.context(1);
        });
        let seldom = among_clobbering_contexts(body, 0x626f_756e, |turns| {
            as_context(turns, 4 * i32::from(COST));
            turns.run_queue.first = turns.context(0);
            turns.contexts[0].next = turns.context(0);
        });
        let (Some(always), Some(seldom)) = (always, seldom) else {
            return;
        };
        assert!(always > 1000, "{body:?}: {always}");
        if !misses {
            assert!(
                (always / 8..always / 2).contains(&seldom),
                "{seldom} of {always}"
            );
        }
    }
}

#[test]
fn a_context_that_misses_lets_the_next_one_run_before_its_time_is_up() {
    let body = Body::Yield(Yield::Miss {
        cost: COST,
        own_base: false,
    });
    let others = among_clobbering_contexts(body, 0x6d69_7373, |turns| {
        as_context(turns, i32::MAX / 2);
        turns.run_queue.resume = 0;
    });
    assert!(others.is_none_or(|others| others > 1000), "{others:?}");
}

#[test]
fn a_context_alone_on_its_own_thread_counts_its_loads_and_goes_on() {
    let body = Body::Yield(Yield::Miss {
        cost: COST,
        own_base: false,
    });
    let turns = run_among(body, 0x616c_6f6e, |turns| {
        as_context(turns, 0);
        turns.run_queue.alone = 1;
    });
    let Some(turns) = turns else { return };
    assert_eq!(turns.visits(), 0);
    let (seen, context) = (turns.seen(), turns.contexts[0]);
    assert!(turns.counted > 1000, "{}", turns.counted);
    assert_eq!((seen.credit, context.yields, context.resume), (0, 0, 0));
}

#[test]
fn a_context_that_missed_skips_as_many_turns_as_it_is_told() {
    let own_base = true;
    let visits = [0, 1, 3].map(|skips| {
        let cost = COST;
        let body = Body::Yield(Yield::Miss { cost, own_base });
        let visits = among_clobbering_contexts(body, 0x736b_6970, |turns| {
            as_context(turns, 0);
            turns.run_queue.skips = skips;
        });
        // A bound yield before a load prefetches too.
        let body = Body::Yield(Yield::Bound { cost, own_base });
        let bounds = among_clobbering_contexts(body, 0x736b_6970, |turns| {
            as_context(turns, 0);
            turns.run_queue.skips = skips;
        });
        (visits, bounds)
    });
    let [(Some(none), Some(of_bounds)), once, thrice] = visits else {
        return;
    };
    assert!(none > 1000, "{none}");
    let (Some(bounds_once), Some(bounds_thrice)) = (once.1, thrice.1) else {
        return;
    };
    assert_eq!((once.0, thrice.0), (Some(2 * none), Some(4 * none)));
    let at_loads = bounds_once - of_bounds;
    assert!(
        0 < at_loads && at_loads < of_bounds,
        "{at_loads} of {of_bounds}"
    );
    assert_eq!(bounds_thrice, of_bounds + 3 * at_loads);
}

#[test]
fn a_turn_is_skipped_where_it_began_with_who_skips_it() {
    let own_base = false;
    let body = Body::Yield(Yield::Miss {
        cost: COST,
        own_base,
    });
    for index in [0, 1] {
        let turns = run_among(body, 0x6669_7273, |turns| {
            as_context(turns, 0);
            turns.run_queue.skips = 1;
            turns.run_queue.begun = 7;
            turns.run_queue.first = turns.context(index);
        });
        let Some(turns) = turns else { return };
        assert!(turns.visits() > 1000);
        // The last program executes a yield as well.
        assert_eq!(turns.seen().begun, if index == 0 { 0 } else { 7 });
    }
}

#[test]
fn a_context_has_its_own_base_where_it_asks_for_it() {
    let body = Body::Yield(Yield::Base);
    let turns = run_among(body, 0x6261_7365, |turns| {
        as_context(turns, 0);
    });
    if let Some(turns) = turns {
        assert_eq!(turns.visits(), 0);
        assert!(turns.borrowed.0 > 50, "{:?}", turns.borrowed);
    }
}

#[test]
fn the_thread_has_its_own_base_again_when_its_turn_comes() {
    let body = Body::Yield(Yield::Bound {
        cost: COST,
        own_base: false,
    });
    let turns = run_among(body, 0x6f77_6e65, |turns| {
        as_context(turns, 0);
        turns.run_queue.borrowed = turns.context(0);
    });
    if let Some(turns) = turns {
        assert!(turns.visits() > 1000);
        // Some programs execute no yield.
        assert_eq!(turns.borrowed.1, 0);
    }
}

#[test]
fn a_context_that_needs_it_has_its_own_base_as_soon_as_it_comes_back() {
    let cost = COST;
    let own_base = true;
    for what in [
        Yield::Bound { cost, own_base },
        Yield::Miss { cost, own_base },
    ] {
        for credit in [0, i32::MAX / 2] {
            // With credit left, only a miss yield leaves, for the next context.
            let leaves = credit == 0 || matches!(what, Yield::Miss { .. });
            let turns = run_among(Body::Yield(what), 0x6561_6765, |turns| {
                as_context(turns, credit);
            });
            let Some(turns) = turns else { return };
            assert_eq!(turns.visited > 50, leaves, "{what:?}");
            assert_eq!(turns.borrowed, (turns.visited, turns.visited), "{what:?}");
        }
    }
}

#[test]
fn sites_of_one_program_have_bodies_of_their_own() {
    let others = |random: &mut Random| {
        let cost = 1 + random.below(200) as u16;
        let own_base = random.one_in(2);
        Body::Yield(match random.below(3) {
            0 => Yield::Bound { cost, own_base },
            1 => Yield::Miss { cost, own_base },
            _ => Yield::Base,
        })
    };
    let body = Body::Yield(Yield::Base);
    let turns = run_mixed(body, Some(&others), 0x6d69_7865, |turns| {
        as_context(turns, i32::from(COST));
    });
    if let Some(turns) = turns {
        assert!(turns.visits() > 500, "{}", turns.visits());
        // Some programs end after a plain yield, others after a `Base` or a yield that sets the base.
        assert!(turns.borrowed.0 > 20, "{:?}", turns.borrowed);
        assert!(turns.visited > turns.borrowed.1, "{:?}", turns.borrowed);
    }
}
