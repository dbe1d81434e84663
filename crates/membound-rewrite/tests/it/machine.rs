//! Runs code natively from a given state of all registers to the state it leaves.
//!
//! A [`Machine`] wraps code in an entry that loads every register and an exit that stores
//! them. The code works in an arena between inaccessible pages; a fault in it ends the run
//! and is a result like any other.

use std::cell::Cell;
use std::sync::Once;

use iced_x86::code_asm::{
    AsmRegister64, AsmRegisterZmm, CodeAssembler, CodeLabel, k0, k1, k2, k3, k4, k5, k6, k7, ptr,
    qword_ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::code_asm::{get_xmm, get_ymm, get_zmm};
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use membound_jit::CodeBuffer;
use membound_rewrite::{Flag, Gpr, RegisterSet, VectorPart};

/// Numbers that look random and are the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) const fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A value as programs have them: small, near the ends of a width, or anything.
    pub(crate) const fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(4),
            1 => self.below(256),
            2 => (self.below(8) as i64 - 4) as u64,
            3 => self.next() >> 32,
            _ => self.next(),
        }
    }
}

/// Everything that code can see in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct State {
    /// As `fxsave64` stores it: x87 and MMX in bytes 0–23 and 32–159, MXCSR in 24–27.
    x87: [u8; 512],
    vectors: [[u8; 64]; 32],
    masks: [u64; 8],
    gprs: [u64; 16],
    flags: u64,
}

/// The processor's flags by their places in rflags.
pub(crate) const FLAGS: [(Flag, u32); 7] = [
    (Flag::Carry, 0),
    (Flag::Parity, 2),
    (Flag::Adjust, 4),
    (Flag::Zero, 6),
    (Flag::Sign, 7),
    (Flag::Overflow, 11),
    (Flag::Direction, 10),
];

const PARTS: [(VectorPart, std::ops::Range<usize>); 3] = [
    (VectorPart::Xmm, 0..16),
    (VectorPart::YmmHigh, 16..32),
    (VectorPart::ZmmHigh, 32..64),
];

/// A unit of state, for comparing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Gpr(Gpr),
    Flag(Flag, u32),
    Mxcsr,
    X87,
    Mask(u8),
    Vector(u8, VectorPart),
}

impl Unit {
    pub(crate) fn set(self) -> RegisterSet {
        match self {
            Self::Gpr(register) => RegisterSet::gpr(register),
            Self::Flag(flag, _) => RegisterSet::flag(flag),
            Self::Mxcsr => RegisterSet::MXCSR,
            Self::X87 => RegisterSet::X87,
            Self::Mask(number) => RegisterSet::mask(number),
            Self::Vector(number, part) => RegisterSet::vector(number, part),
        }
    }

    /// All units that this machine has.
    pub(crate) fn all() -> Vec<Self> {
        let width = Width::of_machine();
        let mut units: Vec<Self> = Gpr::all().map(Self::Gpr).collect();
        units.extend(FLAGS.iter().map(|&(flag, bit)| Self::Flag(flag, bit)));
        units.extend([Self::Mxcsr, Self::X87]);
        if width == Width::Zmm {
            units.extend((0..8).map(Self::Mask));
        }
        let parts = match width {
            Width::Xmm => 1,
            Width::Ymm => 2,
            Width::Zmm => 3,
        };
        for (part, _) in &PARTS[..parts] {
            units.extend((0..width.registers()).map(|number| Self::Vector(number, *part)));
        }
        units
    }
}

impl State {
    /// Random registers; rsp at the arena's middle.
    pub(crate) fn random(random: &mut Random, arena: &Arena) -> Self {
        let mut state = Self {
            x87: [0; 512],
            vectors: [[0; 64]; 32],
            masks: [0; 8],
            gprs: [0; 16],
            flags: 2,
        };
        for unit in Unit::all() {
            state.scramble(unit, random);
        }
        state.set_gpr(Gpr::RSP, arena.middle());
        state
    }

    pub(crate) fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[usize::from(register.number())]
    }

    pub(crate) fn set_gpr(&mut self, register: Gpr, value: u64) {
        self.gprs[usize::from(register.number())] = value;
    }

    pub(crate) fn vector_mut(&mut self, number: u8) -> &mut [u8; 64] {
        &mut self.vectors[usize::from(number)]
    }

    /// The bytes of a unit.
    pub(crate) fn bytes(&self, unit: Unit) -> Vec<u8> {
        match unit {
            Unit::Gpr(register) => self.gpr(register).to_le_bytes().to_vec(),
            Unit::Flag(_, bit) => vec![(self.flags >> bit & 1) as u8],
            Unit::Mxcsr => self.x87[24..28].to_vec(),
            Unit::X87 => {
                let mut bytes = self.x87[..24].to_vec();
                bytes.extend(&self.x87[32..160]);
                bytes
            }
            Unit::Mask(number) => self.masks[usize::from(number)].to_le_bytes().to_vec(),
            Unit::Vector(number, part) => self.vectors[usize::from(number)][range(part)].to_vec(),
        }
    }

    /// Puts something else into a unit.
    pub(crate) fn scramble(&mut self, unit: Unit, random: &mut Random) {
        match unit {
            Unit::Gpr(register) => self.set_gpr(register, random.value()),
            Unit::Flag(_, bit) => {
                self.flags = self.flags & !(1 << bit) | random.below(2) << bit;
            }
            Unit::Mxcsr => {
                // All exceptions masked; rounding, flushing and sticky bits at random.
                let control = 0x1f80 | random.next() as u32 & 0xe07f;
                self.x87[24..28].copy_from_slice(&control.to_le_bytes());
                self.x87[28..32].copy_from_slice(&0xffff_u32.to_le_bytes());
            }
            Unit::X87 => self.scramble_x87(random),
            Unit::Mask(number) => self.masks[usize::from(number)] = random.value(),
            Unit::Vector(number, part) => {
                let style = random.below(4);
                for chunk in self.vectors[usize::from(number)][range(part)].chunks_mut(8) {
                    let value = match style {
                        0 => random.value(),
                        1 => (random.below(1000) as f64).to_bits(),
                        2 => {
                            let [low, high] = [random.below(1000), random.below(1000)]
                                .map(|value| u64::from((value as f32).to_bits()));
                            low | high << 32
                        }
                        _ => random.next(),
                    };
                    chunk.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }

    fn scramble_x87(&mut self, random: &mut Random) {
        let control = 0x007f | random.next() as u16 & 0x0f00;
        let status = random.next() as u16 & 0x7f00;
        self.x87[..2].copy_from_slice(&control.to_le_bytes());
        self.x87[2..4].copy_from_slice(&status.to_le_bytes());
        self.x87[4] = random.next() as u8;
        for register in 0..8 {
            let at = 32 + 16 * register;
            self.x87[at..at + 8].copy_from_slice(&(random.next() | 1 << 63).to_le_bytes());
            let exponent = 0x3fff_u16 + random.below(64) as u16;
            self.x87[at + 8..at + 10].copy_from_slice(&exponent.to_le_bytes());
        }
    }
}

fn range(part: VectorPart) -> std::ops::Range<usize> {
    PARTS[part as usize].1.clone()
}

/// How far vector registers go here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Xmm,
    Ymm,
    Zmm,
}

impl Width {
    pub(crate) fn of_machine() -> Self {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            Self::Zmm
        } else if is_x86_feature_detected!("avx") {
            Self::Ymm
        } else {
            Self::Xmm
        }
    }

    const fn registers(self) -> u8 {
        match self {
            Self::Zmm => 32,
            _ => 16,
        }
    }
}

pub(crate) const ARENA_BYTES: usize = 1 << 13;
const GUARD_BYTES: usize = 1 << 20;

/// Memory for code to work in, with nothing around it.
#[derive(Debug)]
pub(crate) struct Arena {
    start: *mut u8,
}

impl Arena {
    fn new() -> Self {
        let bytes = ARENA_BYTES + 2 * GUARD_BYTES;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED, "no room for an arena");
        let start = mapped.cast::<u8>().wrapping_add(GUARD_BYTES);
        // SAFETY: the range lies inside the mapping made above.
        let opened = unsafe {
            libc::mprotect(
                start.cast(),
                ARENA_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        assert_eq!(opened, 0, "the arena cannot be opened");
        Self { start }
    }

    /// An address with thousands of bytes on both sides, aligned to 64.
    pub(crate) fn middle(&self) -> u64 {
        self.start as u64 + ARENA_BYTES as u64 / 2
    }

    /// All of it.
    pub(crate) fn contents(&self) -> &[u8] {
        // SAFETY: the pages are mapped, readable and owned by this arena; code that writes
        // them runs only while the machine is borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.start, ARENA_BYTES) }
    }

    /// Fills it.
    pub(crate) fn fill(&mut self, contents: &[u8]) {
        assert_eq!(contents.len(), ARENA_BYTES);
        // SAFETY: as in `contents`, and `self` is borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), self.start, ARENA_BYTES) };
    }

    /// Random contents of the right size.
    pub(crate) fn random_contents(random: &mut Random) -> Vec<u8> {
        (0..ARENA_BYTES / 8)
            .flat_map(|_| random.value().to_le_bytes())
            .collect()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let start = self.start.wrapping_sub(GUARD_BYTES);
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(start.cast(), ARENA_BYTES + 2 * GUARD_BYTES) };
    }
}

/// The signal that ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) i32);

/// What the entry and the exit work on.
#[repr(C, align(64))]
struct Frame {
    state: State,
    host_rsp: u64,
    host_mxcsr: u32,
}

/// Code with an entry and an exit around it.
pub(crate) struct Machine {
    buffer: CodeBuffer,
    frame: Box<Frame>,
    pub(crate) arena: Arena,
    recovery: u64,
    entry: Option<extern "sysv64" fn()>,
    alternate: Vec<u8>,
}

thread_local! {
    static RECOVERY: Cell<u64> = const { Cell::new(0) };
    static FAULT: Cell<i32> = const { Cell::new(0) };
}

extern "C" fn on_fault(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let recovery = RECOVERY.get();
    if recovery == 0 {
        // Not the code under test: the fault repeats itself with the default action.
        // SAFETY: resets one signal's action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    FAULT.set(signal);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes a ucontext to a handler with SA_SIGINFO.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = recovery.cast_signed();
    registers[libc::REG_EFL as usize] = 0x202;
}

const SIGNALS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGBUS,
    libc::SIGTRAP,
];

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in SIGNALS {
            // SAFETY: all-zero is a valid sigaction.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            // SAFETY: the action is initialised, and its handler touches thread-locals
            // without destructors and its own context only.
            let done = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
            assert_eq!(done, 0);
        }
    });
}

impl Machine {
    pub(crate) fn new() -> Self {
        listen();
        let frame = Frame {
            state: State {
                x87: [0; 512],
                vectors: [[0; 64]; 32],
                masks: [0; 8],
                gprs: [0; 16],
                flags: 2,
            },
            host_rsp: 0,
            host_mxcsr: 0x1f80,
        };
        Self {
            buffer: CodeBuffer::new(1 << 16).unwrap(),
            frame: Box::new(frame),
            arena: Arena::new(),
            recovery: 0,
            entry: None,
            alternate: vec![0; 1 << 16],
        }
    }

    /// Takes `emit`'s code, which must fall out of its end.
    pub(crate) fn load(&mut self, emit: impl FnOnce(&mut CodeAssembler)) {
        let frame = std::ptr::from_ref(&*self.frame) as u64;
        let mut a = CodeAssembler::new(64).unwrap();
        let mut recovery = a.create_label();
        let mut done = a.create_label();
        enter(&mut a, frame);
        emit(&mut a);
        leave(&mut a, frame, &mut recovery, &mut done);
        let address = self.buffer.address();
        let assembled = a
            .assemble_options(
                address,
                iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS,
            )
            .unwrap();
        self.recovery = assembled.label_ip(&recovery).unwrap();
        let code = self.buffer.load(&assembled.inner.code_buffer).unwrap();
        // SAFETY: the code is a function of no arguments that keeps the System V ABI.
        self.entry = Some(unsafe {
            std::mem::transmute::<*mut u8, extern "sysv64" fn()>(code.entry().as_ptr())
        });
    }

    /// Runs what was loaded from `state`, the arena as it is.
    pub(crate) fn run(&mut self, state: &State) -> Result<State, Fault> {
        let entry = self.entry.expect("code was loaded");
        self.frame.state.clone_from(state);
        let stack = libc::stack_t {
            ss_sp: self.alternate.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: self.alternate.len(),
        };
        // SAFETY: all-zero is a valid stack_t.
        let mut before: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: both point to initialised structures, and the stack is taken back below.
        let switched = unsafe { libc::sigaltstack(&stack, &mut before) };
        assert_eq!(switched, 0);
        FAULT.set(0);
        RECOVERY.set(self.recovery);
        entry();
        RECOVERY.set(0);
        // SAFETY: gives the thread back the stack that it had.
        let restored = unsafe { libc::sigaltstack(&before, std::ptr::null_mut()) };
        assert_eq!(restored, 0);
        // SAFETY: the code has written the frame behind the compiler's back.
        let after = unsafe { std::ptr::read_volatile(&self.frame.state) };
        match FAULT.get() {
            0 => Ok(after),
            signal => Err(Fault(signal)),
        }
    }
}

fn offset_of_gpr(number: usize) -> i32 {
    (std::mem::offset_of!(State, gprs) + 8 * number) as i32
}

const SAVED: [AsmRegister64; 6] = [rbx, rbp, r12, r13, r14, r15];
const GPRS: [AsmRegister64; 16] = [
    rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];
const MASKS: [iced_x86::code_asm::AsmRegisterK; 8] = [k0, k1, k2, k3, k4, k5, k6, k7];

fn zmm(number: u8) -> AsmRegisterZmm {
    get_zmm(Register::ZMM0 + u32::from(number)).unwrap()
}

fn enter(a: &mut CodeAssembler, frame: u64) {
    let flags = std::mem::offset_of!(State, flags) as i32;
    let host_rsp = std::mem::offset_of!(Frame, host_rsp) as i32;
    let host_mxcsr = std::mem::offset_of!(Frame, host_mxcsr) as i32;
    for register in SAVED {
        a.push(register).unwrap();
    }
    a.mov(rax, frame).unwrap();
    a.mov(qword_ptr(rax + host_rsp), rsp).unwrap();
    a.stmxcsr(ptr(rax + host_mxcsr)).unwrap();
    a.fxrstor64(ptr(rax)).unwrap();
    let width = Width::of_machine();
    for number in 0..width.registers() {
        let from = ptr(rax + vector_offset(number));
        let register = u32::from(number);
        match width {
            Width::Xmm => a.movups(get_xmm(Register::XMM0 + register).unwrap(), from),
            Width::Ymm => a.vmovups(get_ymm(Register::YMM0 + register).unwrap(), from),
            Width::Zmm => a.vmovups(zmm(number), from),
        }
        .unwrap();
    }
    if width == Width::Zmm {
        for (number, mask) in MASKS.into_iter().enumerate() {
            a.kmovq(mask, qword_ptr(rax + mask_offset(number))).unwrap();
        }
    }
    a.push(qword_ptr(rax + flags)).unwrap();
    a.popfq().unwrap();
    for (number, register) in GPRS.into_iter().enumerate().rev() {
        a.mov(register, qword_ptr(rax + offset_of_gpr(number)))
            .unwrap();
    }
}

fn leave(a: &mut CodeAssembler, frame: u64, recovery: &mut CodeLabel, done: &mut CodeLabel) {
    let flags = std::mem::offset_of!(State, flags) as i32;
    let host_rsp = std::mem::offset_of!(Frame, host_rsp) as i32;
    let host_mxcsr = std::mem::offset_of!(Frame, host_mxcsr) as i32;
    store_rax(a, frame + offset_of_gpr(0) as u64);
    a.mov(rax, frame).unwrap();
    for (number, register) in GPRS.into_iter().enumerate().skip(1) {
        a.mov(qword_ptr(rax + offset_of_gpr(number)), register)
            .unwrap();
    }
    a.mov(rsp, qword_ptr(rax + host_rsp)).unwrap();
    a.pushfq().unwrap();
    a.pop(qword_ptr(rax + flags)).unwrap();
    a.cld().unwrap();
    let width = Width::of_machine();
    for number in 0..width.registers() {
        let to = ptr(rax + vector_offset(number));
        let register = u32::from(number);
        match width {
            Width::Xmm => a.movups(to, get_xmm(Register::XMM0 + register).unwrap()),
            Width::Ymm => a.vmovups(to, get_ymm(Register::YMM0 + register).unwrap()),
            Width::Zmm => a.vmovups(to, zmm(number)),
        }
        .unwrap();
    }
    if width == Width::Zmm {
        for (number, mask) in MASKS.into_iter().enumerate() {
            a.kmovq(qword_ptr(rax + mask_offset(number)), mask).unwrap();
        }
    }
    a.fxsave64(ptr(rax)).unwrap();
    a.jmp(*done).unwrap();
    a.set_label(recovery).unwrap();
    a.mov(rax, frame).unwrap();
    a.mov(rsp, qword_ptr(rax + host_rsp)).unwrap();
    a.set_label(done).unwrap();
    a.fninit().unwrap();
    a.ldmxcsr(ptr(rax + host_mxcsr)).unwrap();
    if width != Width::Xmm {
        a.vzeroupper().unwrap();
    }
    for register in SAVED.into_iter().rev() {
        a.pop(register).unwrap();
    }
    a.ret().unwrap();
}

/// Stores rax at an absolute address, with no help of another register.
pub(crate) fn store_rax(a: &mut CodeAssembler, address: u64) {
    let to = MemoryOperand::with_displ(address, 8);
    a.add_instruction(Instruction::with2(Code::Mov_moffs64_RAX, to, Register::RAX).unwrap())
        .unwrap();
}

/// Loads it back.
pub(crate) fn load_rax(a: &mut CodeAssembler, address: u64) {
    let from = MemoryOperand::with_displ(address, 8);
    a.add_instruction(Instruction::with2(Code::Mov_RAX_moffs64, Register::RAX, from).unwrap())
        .unwrap();
}

fn vector_offset(number: u8) -> i32 {
    (std::mem::offset_of!(State, vectors) + 64 * usize::from(number)) as i32
}

fn mask_offset(number: usize) -> i32 {
    (std::mem::offset_of!(State, masks) + 8 * number) as i32
}

#[test]
fn state_goes_in_and_comes_out() {
    let mut machine = Machine::new();
    let mut random = Random::new(1);
    machine.load(|_| {});
    for _ in 0..50 {
        let state = State::random(&mut random, &machine.arena);
        let after = machine.run(&state).unwrap();
        for unit in Unit::all() {
            assert_eq!(state.bytes(unit), after.bytes(unit), "{unit:?}");
        }
    }
}

#[test]
fn a_fault_ends_the_run_only() {
    let mut machine = Machine::new();
    let mut random = Random::new(2);
    let state = State::random(&mut random, &machine.arena);
    machine.load(|a| a.ud2().unwrap());
    assert_eq!(machine.run(&state), Err(Fault(libc::SIGILL)));
    machine.load(|a| {
        a.mov(rax, 0_u64).unwrap();
        a.mov(rax, qword_ptr(rax)).unwrap();
    });
    assert_eq!(machine.run(&state), Err(Fault(libc::SIGSEGV)));
    machine.load(|a| a.mov(rdi, 77_u64).unwrap());
    assert_eq!(machine.run(&state).unwrap().gpr(Gpr::RDI), 77);
}
