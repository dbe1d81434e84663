//! At every instruction boundary of every trampoline, the tables restore the original program's state.
//!
//! The original program is run step by step as the reference. The patched program is run step by step too; at
//! each step the tables must give the state that the original has at the same point, in all live state. From
//! random steps the thread then continues as a signal handler would make it, and the result must be the same.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use iced_x86::code_asm::{qword_ptr, rsp};
use membound_rewrite::code::Function;
use membound_rewrite::flow::{Analyst, Conventions, Liveness, Summaries};
use membound_rewrite::image::Convention;
use membound_rewrite::patch::{Body, Options};
use membound_rewrite::{Flag, Gpr, RegisterSet, VectorPart};
use membound_wire::AS_FOUND;

use super::bodies::{BODIES, code_of, options, program};
use super::lab::{self, Jumps, Lab};
use crate::flow::programs::Pool;
use crate::machine::{FLAGS, Machine, Random, State};

/// The bit of the flags that has the processor trap after every instruction.
pub(super) const TRAP_FLAG: i32 = 0x100;

/// Registers as the kernel passes them to a signal handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) ip: u64,
    gprs: [u64; 16],
    flags: u64,
    /// The lowest 16 bytes of each vector register.
    vectors: [u128; 16],
}

/// A stop: the state found, and the state that the tables restore.
#[derive(Clone, Copy, Debug)]
struct Stop {
    found: Step,
    /// The restored state, and where to continue with it. Only inside trampolines, at places where the thread
    /// is not to continue exactly as found.
    restored: Option<(Step, u64)>,
}

impl Stop {
    fn original(&self) -> Step {
        self.restored.map_or(self.found, |(original, _)| original)
    }
}

/// What is recorded while a thread is stepped, and where it is diverted.
struct Watch {
    text: Range<u64>,
    tables: Option<Tables>,
    stops: Vec<Stop>,
    /// At this stop, the thread continues elsewhere: at this address, or with its restored state where the
    /// tables say.
    divert: Option<(usize, Option<u64>)>,
}

impl Watch {
    fn stop(&mut self, found: Step) -> Option<Step> {
        let tables = self.tables.as_ref();
        let inside = tables.filter(|tables| tables.area.contains(&found.ip));
        if inside.is_none() && !self.text.contains(&found.ip) {
            return None;
        }
        let restored = inside.and_then(|tables| tables.undo(found));
        self.stops.push(Stop { found, restored });
        let (_, to) = self.divert.filter(|(at, _)| *at + 1 == self.stops.len())?;
        match (to, restored) {
            (Some(ip), _) => Some(Step { ip, ..found }),
            (None, Some((original, resume))) => Some(Step {
                ip: resume,
                ..original
            }),
            (None, None) => None,
        }
    }

    /// Whether the thread has continued elsewhere. Only its result is compared from then on.
    fn is_diverted(&self) -> bool {
        self.divert.is_some_and(|(at, _)| at < self.stops.len())
    }
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Address of the signal handler installed before.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// Index of each register in the kernel's array, by its number in the instruction set.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let watched = WATCH.with(|watch| {
        let mut watch = watch.borrow_mut();
        let Some(watch) = watch.as_mut() else {
            return false;
        };
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel passes a ucontext to a handler with SA_SIGINFO.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        // SAFETY: as above; it names where vector registers are.
        let vectors = unsafe { (*context).uc_mcontext.fpregs };
        // SAFETY: as above.
        let vectors = unsafe { &raw mut (*vectors)._xmm };
        // SAFETY: sixteen registers of 16 bytes each lie there, of whatever type.
        let vectors = unsafe { &mut *vectors.cast::<[[u64; 2]; 16]>() };
        let ip = registers[libc::REG_RIP as usize].cast_unsigned();
        let found = Step {
            ip,
            gprs: PLACES.map(|place| registers[place as usize].cast_unsigned()),
            flags: registers[libc::REG_EFL as usize].cast_unsigned(),
            vectors: vectors.map(|[low, high]| u128::from(high) << 64 | u128::from(low)),
        };
        if let Some(to) = watch.stop(found) {
            for (place, value) in PLACES.into_iter().zip(to.gprs) {
                registers[place as usize] = value.cast_signed();
            }
            registers[libc::REG_RIP as usize] = to.ip.cast_signed();
            registers[libc::REG_EFL as usize] = to.flags.cast_signed();
            *vectors = to.vectors.map(|value| [value as u64, (value >> 64) as u64]);
        }
        // A trap costs microseconds, on a virtual machine tens of them. Flags that the program pushed
        // before set the flag again, so it is cleared at every later stop too.
        if watch.is_diverted() {
            registers[libc::REG_EFL as usize] &= !i64::from(TRAP_FLAG);
        }
        true
    });
    if watched {
        return;
    }
    let before = BEFORE.load(Ordering::Relaxed);
    if before != 0 {
        // SAFETY: the handler that was there took the same three arguments.
        let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(before) };
        before(signal, info, context);
    }
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all-zero is a valid sigaction.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks for the present action only.
        unsafe { libc::sigaction(libc::SIGTRAP, std::ptr::null(), &mut before) };
        BEFORE.store(before.sa_sigaction, Ordering::Relaxed);
        let mut action = before;
        action.sa_sigaction = on_trap as *const () as usize;
        // SAFETY: the action is initialised; the handler passes on what is not its own.
        let result = unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) };
        assert_eq!(result, 0);
    });
}

/// Result of a stepped run.
pub(super) struct Run {
    stops: Vec<Stop>,
    after: State,
    memory: Vec<u8>,
}

/// Initial state of a program.
pub(super) struct Beginning {
    text: Range<u64>,
    state: State,
    memory: Vec<u8>,
}

impl Beginning {
    /// Loads `code` into `lab`'s text and chooses an initial state.
    pub(super) fn of(code: &[u8], lab: &mut Lab, machine: &Machine, random: &mut Random) -> Self {
        let (state, memory) = lab::beginning(machine, random);
        lab.load(code);
        Self {
            text: lab.text()..lab.text() + code.len() as u64,
            state,
            memory,
        }
    }

    /// Runs the unpatched program: the reference.
    pub(super) fn truth(&self, machine: &mut Machine) -> Run {
        self.watch(machine, None, None)
    }

    fn watch(
        &self,
        machine: &mut Machine,
        tables: Option<Tables>,
        divert: Option<(usize, Option<u64>)>,
    ) -> Run {
        listen();
        WATCH.set(Some(Watch {
            text: self.text.clone(),
            tables,
            // Allocated beforehand, because the trap handler must not allocate.
            stops: Vec::with_capacity(1 << 17),
            divert,
        }));
        let (after, memory) = lab::run(
            machine,
            self.text.start,
            &self.state,
            &self.memory,
            |a, call| {
                a.pushfq().unwrap();
                a.or(qword_ptr(rsp), TRAP_FLAG).unwrap();
                a.popfq().unwrap();
                call(a);
                a.pushfq().unwrap();
                a.and(qword_ptr(rsp), !TRAP_FLAG).unwrap();
                a.popfq().unwrap();
            },
        );
        let watch = WATCH.take().expect("it was put there");
        assert!(watch.stops.len() < 1 << 17);
        Run {
            stops: watch.stops,
            after: after.expect("programs of the pool run"),
            memory,
        }
    }
}

/// All instructions that are executed in `text`.
pub(crate) fn trace(
    machine: &mut Machine,
    text: Range<u64>,
    state: &State,
    memory: &[u8],
) -> Vec<Step> {
    let beginning = Beginning {
        text,
        state: state.clone(),
        memory: memory.to_vec(),
    };
    let run = beginning.watch(machine, None, None);
    run.stops.iter().map(|stop| stop.found).collect()
}

/// An independent reader of placed tables.
#[derive(Clone)]
struct Tables {
    bytes: Vec<u8>,
    base: u64,
    area: Range<u64>,
}

impl Tables {
    fn of(lab: &Lab) -> Self {
        let placed = lab.placed.as_ref().unwrap();
        let code = lab.plan.as_ref().unwrap().layout().code_bytes;
        Self {
            bytes: placed.tables.to_vec(),
            base: placed.base,
            area: lab.area()..lab.area() + code,
        }
    }

    fn number(&self, at: u64, bytes: usize) -> u64 {
        let at = at as usize;
        let mut field = [0; 8];
        field[..bytes].copy_from_slice(&self.bytes[at..at + bytes]);
        u64::from_le_bytes(field)
    }

    fn place(&self, index: u64) -> (u64, u64, u64) {
        let at = self.number(0, 8) + 12 * index;
        (
            self.number(at, 4),
            self.number(at + 4, 4),
            self.number(at + 8, 4),
        )
    }

    /// The original state of a thread at `step`, and where in the code it may continue.
    fn undo(&self, step: Step) -> Option<(Step, u64)> {
        let here = step.ip - self.area.start;
        let places = self.number(8, 8);
        let (code, original, shape) = (0..places)
            .map(|index| self.place(index))
            .take_while(|(code, ..)| *code <= here)
            .last()
            .expect("a place for every byte");
        let shape = self.number(16, 8) + 8 * shape;
        let (first, count) = (self.number(shape, 4), self.number(shape + 4, 4));
        let steps = self.number(32, 8);
        let at = (first..first + count)
            .map(|index| steps + 8 * index)
            .take_while(|at| self.number(*at, 2) <= here - code)
            .last()
            .expect("the first step has offset 0");
        let resume = self.number(at + 2, 2);
        if resume == u64::from(AS_FOUND) {
            return None;
        }
        let resume = self.area.start + code + resume;
        let undo = self.number(48, 8) + 8 * self.number(at + 4, 2);
        let mut restored = step;
        restored.ip = self.base + original;
        for index in 0..self.number(at + 6, 2) {
            let at = undo + 8 * index;
            let register = self.number(at + 1, 1) as usize;
            let value = self.number(at + 4, 4) as u32 as i32;
            // From the stack pointer as found, until it is moved, which comes last.
            let slot = step.gprs[4].wrapping_add_signed(i64::from(value));
            match self.number(at, 1) {
                1 => restored.gprs[register] = peek(slot),
                3 => restored.flags = flags_from(step.flags, step.gprs[0]),
                4 => restored.flags = flags_from(step.flags, peek(slot)),
                5 => restored.gprs[register] = step.gprs[value as usize],
                6 => restored.gprs[4] = slot,
                7 => {
                    let [low, high] = [slot, slot + 8].map(|at| u128::from(peek(at)));
                    restored.vectors[register] = high << 64 | low;
                }
                kind => panic!("undo {kind}"),
            }
        }
        Some((restored, resume))
    }

    /// Original addresses that may lie in overwritten text, with the addresses of their places in the code.
    fn entries(&self) -> Vec<(u64, u64)> {
        let at = self.number(64, 8);
        (0..self.number(72, 8))
            .map(|index| {
                let (code, original, _) = self.place(self.number(at + 4 * index, 4));
                (self.base + original, self.area.start + code)
            })
            .collect()
    }
}

fn peek(address: u64) -> u64 {
    // SAFETY: an address in the arena's stack, which is mapped while code runs on it.
    unsafe { (address as *const u64).read_unaligned() }
}

fn flags_from(flags: u64, rax: u64) -> u64 {
    let low = rax >> 8 & 0xd5;
    flags & !0x8d5 | low | (rax & 1) << 11
}

/// The live units in which two steps differ.
fn unlike(expected: &Step, found: &Step, live: RegisterSet) -> Vec<String> {
    let mut unlike = Vec::new();
    for register in Gpr::all() {
        let number = usize::from(register.number());
        let matters = register == Gpr::RSP || live.contains(RegisterSet::gpr(register));
        if matters && expected.gprs[number] != found.gprs[number] {
            unlike.push(register.to_string());
        }
    }
    for (number, (expected, found)) in (0..).zip(expected.vectors.iter().zip(found.vectors)) {
        let low = RegisterSet::vector(number, VectorPart::Xmm);
        if live.contains(low) && *expected != found {
            unlike.push(format!("xmm{number}"));
        }
    }
    for (flag, bit) in FLAGS {
        let matters = live.contains(RegisterSet::flag(flag)) && flag != Flag::Direction;
        if matters && (expected.flags ^ found.flags) >> bit & 1 == 1 {
            unlike.push(format!("{flag:?}"));
        }
    }
    unlike
}

/// State that is alive before an instruction, by address.
pub(super) struct Alive {
    function: Function,
    liveness: Liveness,
}

impl Alive {
    pub(super) fn of(code: &[u8], at: u64) -> Self {
        let function = Function::from_code(code, at);
        let summaries = Summaries::default();
        let conventions = Conventions {
            convention: Convention::Unknown,
            summaries: &summaries,
        };
        let liveness = Liveness::of(&function, &conventions, &mut Analyst::new());
        Self { function, liveness }
    }

    fn text(&self) -> String {
        let lines = self.function.instructions.iter();
        lines
            .map(|instruction| format!("\n{:#x} {instruction}", instruction.ip()))
            .collect()
    }

    fn before(&self, ip: u64) -> RegisterSet {
        self.function
            .instructions
            .binary_search_by_key(&ip, iced_x86::Instruction::ip)
            .map_or(RegisterSet::ALL, |index| self.liveness.before(index))
    }
}

/// A patched program with its reference run.
pub(super) struct Case<'a> {
    pub(super) beginning: &'a Beginning,
    pub(super) truth: &'a Run,
    pub(super) alive: &'a Alive,
    pub(super) code: &'a [u8],
    pub(super) body: Body,
    pub(super) round: usize,
}

impl Case<'_> {
    /// Every restored state must match the reference at its present step or one of the next.
    fn check(&self, stops: &[Stop]) -> usize {
        let truth: Vec<Step> = self.truth.stops.iter().map(|stop| stop.found).collect();
        let mut at = 0;
        let mut inside = 0;
        for stop in stops {
            if stop.restored.is_none() && !self.beginning.text.contains(&stop.found.ip) {
                continue;
            }
            inside += usize::from(stop.restored.is_some());
            let original = stop.original();
            let alike = |truth: &Step| {
                truth.ip == original.ip
                    && unlike(truth, &original, self.alive.before(truth.ip)).is_empty()
            };
            // The jump back counts as part of the next instruction, and so does the rest of a taken branch.
            match truth[at..].iter().take(3).position(alike) {
                Some(further) => at += further,
                None => panic!(
                    "{} {:?}: {stop:x?} is not at {:#x?}: {:?} {}",
                    self.round,
                    self.body,
                    truth[at..].iter().take(3).collect::<Vec<_>>(),
                    unlike(&truth[at], &original, self.alive.before(truth[at].ip)),
                    self.alive.text(),
                ),
            }
        }
        inside
    }

    fn same(&self, run: &Run, what: &str) {
        let differences = lab::differences(&self.truth.after, &run.after);
        assert_eq!(differences, [], "{} {:?} {what}", self.round, self.body);
        assert!(
            self.truth.memory == run.memory,
            "{} {:?} {what}",
            self.round,
            self.body
        );
    }

    /// Patches the program and sets the words that the agent would set.
    fn prepare(&self, lab: &mut Lab, options: &Options, jumps: Jumps) {
        lab.patch(self.code, options, jumps);
        if self.body == Body::Sample {
            lab.arm(u32::from(self.round.is_multiple_of(2)));
        }
        if self.body == Body::Record {
            lab.burst();
        }
    }

    /// The words of all sites, if the body counts without loss.
    fn counts(&self, lab: &Lab) -> Vec<Vec<u8>> {
        let sites = lab.plan.as_ref().unwrap().numbered_sites();
        match self.body {
            Body::Count { .. } | Body::CountByStack => {
                (0..sites).map(|site| lab.words(site)).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[test]
fn every_boundary_of_a_trampoline_leads_back() {
    let mut machine = Machine::new();
    let mut random = Random::new(0x7374_6570);
    let pool = Pool::find(&mut machine, &mut random);
    let mut lab = Lab::new();
    let mut inside = 0;
    let mut entered = 0;
    for round in 0..40 {
        let program = program(16, &pool, &mut random);
        let code = code_of(&program, lab.text(), &mut random);
        let beginning = Beginning::of(&code, &mut lab, &machine, &mut random);
        let (state, memory) = (&beginning.state, &beginning.memory);
        if lab::run(&mut machine, lab.text(), state, memory, lab::plainly)
            .0
            .is_err()
        {
            continue;
        }
        let truth = beginning.truth(&mut machine);
        let alive = Alive::of(&code, lab.text());
        for body in BODIES {
            let case = Case {
                beginning: &beginning,
                truth: &truth,
                alive: &alive,
                code: &code,
                body,
                round,
            };
            let options = options(body, &mut random);
            inside += undone(&case, &options, &mut machine, &mut lab, &mut random);
            entered += moved_in(&case, &options, &mut machine, &mut lab, &mut random);
        }
    }
    assert!(inside > 10_000, "{inside} places inside trampolines");
    assert!(entered > 200, "{entered} threads moved into trampolines");
}

/// Compares all stops of a patched run, then continues from some of them as the tables say.
pub(super) fn undone(
    case: &Case<'_>,
    options: &Options,
    machine: &mut Machine,
    lab: &mut Lab,
    random: &mut Random,
) -> usize {
    case.prepare(lab, options, Jumps::Planted);
    let tables = Tables::of(lab);
    let run = case.beginning.watch(machine, Some(tables.clone()), None);
    case.same(&run, "stepped");
    let inside = case.check(&run.stops);
    let counts = case.counts(lab);
    let places: Vec<usize> = (0..run.stops.len())
        .filter(|stop| run.stops[*stop].restored.is_some())
        .collect();
    for _ in 0..places.len().min(6) {
        let stop = *random.pick(&places);
        case.prepare(lab, options, Jumps::Planted);
        let diverted = case
            .beginning
            .watch(machine, Some(tables.clone()), Some((stop, None)));
        case.same(&diverted, "gone on");
        assert_eq!(case.counts(lab), counts, "{} {stop}", case.round);
    }
    inside
}

/// Moves threads found in text that is about to be overwritten into the trampolines.
pub(super) fn moved_in(
    case: &Case<'_>,
    options: &Options,
    machine: &mut Machine,
    lab: &mut Lab,
    random: &mut Random,
) -> usize {
    case.prepare(lab, options, Jumps::LeftOut);
    let tables = Tables::of(lab);
    let entries = tables.entries();
    let mut moved = 0;
    for _ in 0..4 {
        let stop = random.below(case.truth.stops.len() as u64) as usize;
        let ip = case.truth.stops[stop].found.ip;
        let Some((_, to)) = entries.iter().find(|(original, _)| *original == ip) else {
            continue;
        };
        let run = case
            .beginning
            .watch(machine, Some(tables.clone()), Some((stop, Some(*to))));
        case.same(&run, "moved in");
        moved += 1;
    }
    moved
}
