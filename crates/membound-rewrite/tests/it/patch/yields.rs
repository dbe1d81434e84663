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
use super::stepping::TRAP_FLAG;
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
pub(super) struct RunQueueHarness {
    pub(super) run_queue: OwnRunQueue,
    pub(super) contexts: Box<[Context; 2]>,
    /// Kept alive because they are executed or used as stacks.
    _code: Vec<CodeBuffer>,
    _stack: Vec<u8>,
    /// Number of times that foreign code ran.
    visits: Box<u64>,
    /// The trap flag with which foreign code was entered.
    trap_flag: Box<u64>,
    /// Number of programs in which foreign code ran.
    programs_with_visits: u32,
    /// The run queue after the last of them.
    after_visit: RunQueue,
    /// Sum of the run queue's `harness` over all programs.
    slices: u64,
    /// Number of programs at whose end `fs` had a context's base, and how many of those ran foreign code.
    borrowed: (u32, u32),
}

impl RunQueueHarness {
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
            trap_flag: Box::default(),
            programs_with_visits: 0,
            after_visit: RunQueue::default(),
            slices: 0,
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
    fn read_run_queue(&self) -> RunQueue {
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
        self.stop_stepping(&mut a);
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
        self.resume_stepping(&mut a);
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

    /// Emits code that keeps the trap flag and clears it: where a thread is stepped, its steps through foreign
    /// code show nothing, and each costs a trap.
    fn stop_stepping(&self, a: &mut CodeAssembler) {
        a.pushfq().unwrap();
        a.pop(rax).unwrap();
        a.mov(rcx, rax).unwrap();
        a.and(rax, TRAP_FLAG).unwrap();
        a.xor(rcx, rax).unwrap();
        a.mov(rdx, (&raw const *self.trap_flag) as u64).unwrap();
        a.mov(qword_ptr(rdx), rax).unwrap();
        a.push(rcx).unwrap();
        a.popfq().unwrap();
    }

    /// Emits code that gives the trap flag back, with the other flags as they are.
    fn resume_stepping(&self, a: &mut CodeAssembler) {
        a.pushfq().unwrap();
        a.pop(rax).unwrap();
        a.mov(rdx, (&raw const *self.trap_flag) as u64).unwrap();
        a.or(rax, qword_ptr(rdx)).unwrap();
        a.push(rax).unwrap();
        a.popfq().unwrap();
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
fn run_among(
    body: Body,
    seed: u64,
    prepare: impl Fn(&mut RunQueueHarness),
) -> Option<RunQueueHarness> {
    run_mixed(body, None, seed, prepare)
}

/// As [`run_among`]; `other_body` may give single sites another body than `body`.
fn run_mixed(
    body: Body,
    other_body: Option<Bodies<'_>>,
    seed: u64,
    prepare: impl Fn(&mut RunQueueHarness),
) -> Option<RunQueueHarness> {
    let mut machine = Machine::new();
    let mut random = Random::new(seed);
    let pool = Pool::find(&mut machine, &mut random);
    let mut lab = Lab::new();
    let mut harness = RunQueueHarness::new()?;
    prepare(&mut harness);
    let (run_queue, contexts) = (*harness.run_queue, *harness.contexts);
    // A processor with few kinds of vector instructions has fewer sites in each program.
    let mut planted = 0;
    for round in 0..1500 {
        if round >= 150 && planted > 1000 {
            break;
        }
        let length = 5 + random.below(40) as usize;
        let program = program(length, &pool, &mut random);
        let code = code_of(&program, lab.text(), &mut random);
        let (state, memory) = lab::beginning(&machine, &mut random);
        lab.load(&code);
        let expected = harness.on_run_queue(|| {
            // Some programs read the base of `gs`.
            lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly)
        });
        let mut options: Options = options(body, &mut random);
        lab.patch(&code, &options, Jumps::Planted);
        if let Some(other_body) = other_body {
            let sites = |lab: &Lab| -> Vec<(u64, bool)> {
                let sites = lab.plan.as_ref().unwrap().sites();
                sites.map(|it| (it.address, it.number.is_ok())).collect()
            };
            let alike = sites(&lab);
            for &(address, _) in &alike {
                options.bodies.push((address, other_body(&mut random)));
            }
            lab.patch(&code, &options, Jumps::Planted);
            assert_eq!(sites(&lab), alike, "{round}");
        }
        planted += lab.planted().iter().filter(|planted| **planted).count();
        let visits = harness.visits();
        *harness.run_queue = run_queue;
        *harness.contexts = contexts;
        let after = harness
            .on_run_queue(|| lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly));
        lab::assert_same(&expected, &after, &format!("{round} {body:?} {program:?}"));
        let after_run = harness.read_run_queue();
        if harness.visits() > visits {
            harness.programs_with_visits += 1;
            harness.after_visit = after_run;
        }
        harness.slices += after_run.turns.wrapping_sub(run_queue.turns);
        assert_eq!(after_run.owner, run_queue.owner);
        if run_queue.current == 0 {
            assert_eq!((after_run.current, after_run.selector), (0, 0));
        }
        assert!([0, harness.context(0)].contains(&after_run.borrowed));
        if after_run.borrowed != 0 {
            harness.borrowed.0 += 1;
            harness.borrowed.1 += u32::from(harness.visits() > visits);
        }
    }
    assert!(planted > 1000, "{planted} sites");
    Some(harness)
}

/// Number of times that foreign code ran.
fn among_clobbering_contexts(
    body: Body,
    seed: u64,
    prepare: impl Fn(&mut RunQueueHarness),
) -> Option<u64> {
    run_among(body, seed, prepare).map(|harness| harness.visits())
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
fn a_primary_is_unchanged_after_each_slice() {
    let visits = among_clobbering_contexts(Body::Yield(Yield::Primary), 0x7969_656c, |harness| {
        let resume = harness.clobbering_code(ClobberingCode::Context);
        as_thread(harness, resume);
        harness.run_queue.span = 1234;
    });
    assert!(visits.is_none_or(|visits| visits > 1000), "{visits:?}");
}

#[test]
fn a_request_after_its_answer_is_ignored() {
    let visits = among_clobbering_contexts(Body::Yield(Yield::Primary), 0x6173_6b65, |harness| {
        harness.run_queue.next = membound_wire::ASK;
        harness.run_queue.owner = thread_pointer();
    });
    assert!(visits.is_none_or(|visits| visits == 0), "{visits:?}");
}

#[test]
fn yields_pass_empty_and_foreign_run_queues() {
    for (next, owner) in [(false, true), (true, false)] {
        let visits =
            among_clobbering_contexts(Body::Yield(Yield::Primary), 0x6e6f_626f, |harness| {
                let resume = harness.clobbering_code(ClobberingCode::Context);
                harness.contexts[0] = Context {
                    stack: harness.stack(),
                    resume,
                    next: harness.context(0),
                    ..Context::default()
                };
                harness.run_queue.next = if next { harness.context(0) } else { 0 };
                harness.run_queue.owner = if owner { thread_pointer() } else { 1 };
            });
        assert!(visits.is_none_or(|visits| visits == 0), "{visits:?}");
    }
}

#[test]
fn a_line_of_a_recent_yield_is_passed() {
    let Some(mut harness) = RunQueueHarness::new() else {
        return;
    };
    let resume = harness.clobbering_code(ClobberingCode::Context);
    as_thread(&mut harness, resume);
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
    let (run_queue, contexts) = (*harness.run_queue, *harness.contexts);
    let mut visits = |harness: &mut RunQueueHarness, without: &[YieldPart]| {
        let mut options = Options {
            accesses: Accesses::Loads,
            without: without.to_vec(),
            ..Options::new(Body::Yield(Yield::Primary))
        };
        lab.patch(&code, &options, Jumps::Planted);
        let sites = lab.plan.as_ref().unwrap().sites();
        options.recalled = sites.map(|site| site.address).collect();
        lab.patch(&code, &options, Jumps::Planted);
        *harness.run_queue = run_queue;
        *harness.contexts = contexts;
        let before = harness.visits();
        let ran = harness
            .on_run_queue(|| lab::run(&mut machine, lab.text(), &state, &memory, lab::plainly));
        assert!(ran.0.is_ok(), "{ran:?}");
        harness.visits() - before
    };
    assert_eq!(visits(&mut harness, &[]), 2);
    assert_eq!(visits(&mut harness, &[]), 0);
    assert_eq!(visits(&mut harness, &[YieldPart::Recency]), 4);
    harness.forget();
    assert_eq!(visits(&mut harness, &[]), 2);
}

/// Rounding mode of foreign code: towards zero, all exceptions masked.
pub(super) const ROUNDING: u64 = 0x0f7f_0000_7f80;

/// The program is the primary; the ring has one context, which resumes at `resume`.
pub(super) fn as_thread(harness: &mut RunQueueHarness, resume: u64) {
    harness.contexts[0] = Context {
        stack: harness.stack(),
        resume,
        next: harness.context(0),
        rounding: ROUNDING,
        ..Context::default()
    };
    harness.run_queue.next = harness.context(0);
    harness.run_queue.owner = thread_pointer();
}

/// The program is a scavenger; the thread is foreign code that gives it this credit.
pub(super) fn as_context(harness: &mut RunQueueHarness, credit: i32) {
    let thread = harness.clobbering_code(ClobberingCode::Thread(credit));
    let other = harness.clobbering_code(ClobberingCode::Other);
    harness.contexts[1] = Context {
        stack: harness.stack() - 4096,
        resume: other,
        rounding: ROUNDING,
        next: harness.context(0),
        ..Context::default()
    };
    harness.contexts[0].next = harness.context(1);
    harness.contexts[0].fs = thread_pointer();
    harness.run_queue.current = harness.context(0);
    // 0, as when the agent wants the thread to call it; a scavenger's yields must ignore it.
    harness.run_queue.owner = 0;
    harness.run_queue.base = thread_pointer();
    harness.run_queue.credit = credit;
    harness.run_queue.stack = harness.stack();
    harness.run_queue.resume = thread;
    harness.run_queue.rounding = ROUNDING;
}

#[test]
fn a_context_is_unchanged_after_the_thread_ran() {
    let cost = COST;
    for (own_base, misses) in [(false, false), (false, true), (true, false), (true, true)] {
        let body = if misses {
            Yield::Miss { cost, own_base }
        } else {
            Yield::Bound { cost, own_base }
        };
        let body = Body::Yield(body);
        let always = among_clobbering_contexts(body, 0x626f_756e, |harness| {
            as_context(harness, 0);
            // Every context had its turn, so the thread continues.
            harness.run_queue.first = harness.context(1);
        });
        let seldom = among_clobbering_contexts(body, 0x626f_756e, |harness| {
            as_context(harness, 4 * i32::from(COST));
            harness.run_queue.first = harness.context(0);
            harness.contexts[0].next = harness.context(0);
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
fn a_context_that_misses_yields_before_its_credit_is_used_up() {
    let body = Body::Yield(Yield::Miss {
        cost: COST,
        own_base: false,
    });
    let other_body = among_clobbering_contexts(body, 0x6d69_7373, |harness| {
        as_context(harness, i32::MAX / 2);
        harness.run_queue.resume = 0;
    });
    assert!(
        other_body.is_none_or(|other_body| other_body > 1000),
        "{other_body:?}"
    );
}

#[test]
fn a_context_on_its_home_thread_counts_its_loads_and_continues() {
    let body = Body::Yield(Yield::Miss {
        cost: COST,
        own_base: false,
    });
    let harness = run_among(body, 0x616c_6f6e, |harness| {
        as_context(harness, 0);
        harness.run_queue.alone = 1;
    });
    let Some(harness) = harness else { return };
    assert_eq!(harness.visits(), 0);
    let (after_run, context) = (harness.read_run_queue(), harness.contexts[0]);
    assert!(harness.slices > 1000, "{}", harness.slices);
    assert_eq!(
        (after_run.credit, context.yields, context.resume),
        (0, 0, 0)
    );
}

#[test]
fn a_context_that_missed_skips_the_set_number_of_slices() {
    let own_base = true;
    let visits = [0, 1, 3].map(|skips| {
        let cost = COST;
        let body = Body::Yield(Yield::Miss { cost, own_base });
        let visits = among_clobbering_contexts(body, 0x736b_6970, |harness| {
            as_context(harness, 0);
            harness.run_queue.skips = skips;
        });
        // A bound yield before a load prefetches too.
        let body = Body::Yield(Yield::Bound { cost, own_base });
        let bounds = among_clobbering_contexts(body, 0x736b_6970, |harness| {
            as_context(harness, 0);
            harness.run_queue.skips = skips;
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
fn a_skipped_slice_is_not_timed_if_the_context_began_it() {
    let own_base = false;
    let body = Body::Yield(Yield::Miss {
        cost: COST,
        own_base,
    });
    for index in [0, 1] {
        let harness = run_among(body, 0x6669_7273, |harness| {
            as_context(harness, 0);
            harness.run_queue.skips = 1;
            harness.run_queue.begun = 7;
            harness.run_queue.first = harness.context(index);
        });
        let Some(harness) = harness else { return };
        assert!(harness.visits() > 1000);
        let left_of_slice = if index == 0 { 0 } else { 7 };
        assert_eq!(harness.after_visit.begun, left_of_slice);
    }
}

#[test]
fn a_context_has_its_own_base_behind_a_base_yield() {
    let body = Body::Yield(Yield::Base);
    let harness = run_among(body, 0x6261_7365, |harness| {
        as_context(harness, 0);
    });
    if let Some(harness) = harness {
        assert_eq!(harness.visits(), 0);
        assert!(harness.borrowed.0 > 50, "{:?}", harness.borrowed);
    }
}

#[test]
fn the_thread_has_its_own_base_when_it_resumes() {
    let body = Body::Yield(Yield::Bound {
        cost: COST,
        own_base: false,
    });
    let harness = run_among(body, 0x6f77_6e65, |harness| {
        as_context(harness, 0);
        harness.run_queue.borrowed = harness.context(0);
    });
    if let Some(harness) = harness {
        assert!(harness.visits() > 1000);
        // Some programs execute no yield.
        assert_eq!(harness.borrowed.1, 0);
    }
}

#[test]
fn a_context_with_own_base_has_it_when_it_resumes() {
    let cost = COST;
    let own_base = true;
    for what in [
        Yield::Bound { cost, own_base },
        Yield::Miss { cost, own_base },
    ] {
        for credit in [0, i32::MAX / 2] {
            // With credit left, only a miss yield leaves, for the next context.
            let leaves = credit == 0 || matches!(what, Yield::Miss { .. });
            let harness = run_among(Body::Yield(what), 0x6561_6765, |harness| {
                as_context(harness, credit);
            });
            let Some(harness) = harness else { return };
            assert_eq!(harness.programs_with_visits > 50, leaves, "{what:?}");
            assert_eq!(
                harness.borrowed,
                (harness.programs_with_visits, harness.programs_with_visits),
                "{what:?}"
            );
        }
    }
}

#[test]
fn sites_of_one_program_have_bodies_of_their_own() {
    let other_body = |random: &mut Random| {
        let cost = 1 + random.below(200) as u16;
        let own_base = random.once_in(2);
        Body::Yield(match random.below(3) {
            0 => Yield::Bound { cost, own_base },
            1 => Yield::Miss { cost, own_base },
            _ => Yield::Base,
        })
    };
    let body = Body::Yield(Yield::Base);
    let harness = run_mixed(body, Some(&other_body), 0x6d69_7865, |harness| {
        as_context(harness, i32::from(COST));
    });
    if let Some(harness) = harness {
        assert!(harness.visits() > 500, "{}", harness.visits());
        // Some programs end after a plain yield, others after a `Base` or a yield that sets the base.
        assert!(harness.borrowed.0 > 20, "{:?}", harness.borrowed);
        assert!(
            harness.programs_with_visits > harness.borrowed.1,
            "{:?}",
            harness.borrowed
        );
    }
}
