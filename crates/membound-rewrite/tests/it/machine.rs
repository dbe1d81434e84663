//! Runs code natively from a given state of all registers and returns the state afterwards.
//!
//! A [`Machine`] wraps code in an entry that loads every register and an exit that stores them. The code
//! works in an arena between inaccessible pages; a fault in it ends the run and is a result like any other.

mod state;

use std::cell::Cell;
use std::sync::Once;

use iced_x86::code_asm::{
    AsmRegister64, AsmRegisterZmm, CodeAssembler, CodeLabel, k0, k1, k2, k3, k4, k5, k6, k7, ptr,
    qword_ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::code_asm::{get_xmm, get_ymm, get_zmm};
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use membound_jit::CodeBuffer;
use membound_rewrite::Gpr;
pub(crate) use membound_testkit::Random;

pub(crate) use state::{FLAGS, State, Unit, Width};

/// A typical value of a program: small, near the limits of a width, or arbitrary.
pub(crate) const fn typical_value(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.below(4),
        1 => random.below(256),
        2 => (random.below(8) as i64 - 4) as u64,
        3 => random.next() >> 32,
        _ => random.next(),
    }
}

pub(crate) const ARENA_BYTES: usize = 1 << 13;
const GUARD_BYTES: usize = 1 << 20;

/// Memory for the code, between inaccessible pages.
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

    /// All bytes of the arena.
    pub(crate) fn contents(&self) -> &[u8] {
        // SAFETY: the pages are mapped, readable and owned by this arena; code that writes
        // them runs only while the machine is borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.start, ARENA_BYTES) }
    }

    /// Sets all bytes of the arena.
    pub(crate) fn fill(&mut self, contents: &[u8]) {
        assert_eq!(contents.len(), ARENA_BYTES);
        // SAFETY: as in `contents`, and `self` is borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), self.start, ARENA_BYTES) };
    }

    /// Random contents of the right size.
    pub(crate) fn random_contents(random: &mut Random) -> Vec<u8> {
        (0..ARENA_BYTES / 8)
            .flat_map(|_| typical_value(random).to_le_bytes())
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

/// The data that the entry and the exit use.
#[repr(C, align(64))]
struct MachineFrame {
    state: State,
    host_rsp: u64,
    host_mxcsr: u32,
}

/// Code with an entry and an exit around it.
pub(crate) struct Machine {
    buffer: CodeBuffer,
    frame: Box<MachineFrame>,
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
            let result = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
            assert_eq!(result, 0);
        }
    });
}

impl Machine {
    pub(crate) fn new() -> Self {
        listen();
        let frame = MachineFrame {
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

    /// Loads the code of `emit`, which must run off its end.
    pub(crate) fn load(&mut self, emit: impl FnOnce(&mut CodeAssembler)) {
        let frame = std::ptr::from_ref(&*self.frame) as u64;
        let mut a = CodeAssembler::new(64).unwrap();
        let mut recovery = a.create_label();
        let mut result = a.create_label();
        enter(&mut a, frame);
        emit(&mut a);
        leave(&mut a, frame, &mut recovery, &mut result);
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

    /// Runs the loaded code from `state`, with the arena as it is.
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
    let host_rsp = std::mem::offset_of!(MachineFrame, host_rsp) as i32;
    let host_mxcsr = std::mem::offset_of!(MachineFrame, host_mxcsr) as i32;
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

fn leave(a: &mut CodeAssembler, frame: u64, recovery: &mut CodeLabel, result: &mut CodeLabel) {
    let flags = std::mem::offset_of!(State, flags) as i32;
    let host_rsp = std::mem::offset_of!(MachineFrame, host_rsp) as i32;
    let host_mxcsr = std::mem::offset_of!(MachineFrame, host_mxcsr) as i32;
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
    a.jmp(*result).unwrap();
    a.set_label(recovery).unwrap();
    a.mov(rax, frame).unwrap();
    a.mov(rsp, qword_ptr(rax + host_rsp)).unwrap();
    a.set_label(result).unwrap();
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

/// Stores rax at an absolute address without using another register.
pub(crate) fn store_rax(a: &mut CodeAssembler, address: u64) {
    let to = MemoryOperand::with_displ(address, 8);
    a.add_instruction(Instruction::with2(Code::Mov_moffs64_RAX, to, Register::RAX).unwrap())
        .unwrap();
}

/// Loads rax from an absolute address.
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
