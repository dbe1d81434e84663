//! Executes the body of a loop in a child process and times it.

use std::io::Read as _;
use std::mem::{MaybeUninit, transmute};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use iced_x86::code_asm::{AsmRegister64, r8, rax, rcx, rdi, rdx, rsi};
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, EncodingKind, IcedError, Instruction,
    InstructionBlock, MemoryOperand, Register,
};
use membound_jit::{OwnedCode, assemble_owned};
use membound_rewrite::stall::LoopBody;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::process::{DumpableBehavior, WaitOptions, waitpid};

use super::alignment;
use super::iteration::{IterationTime, Slowdown};

/// Measurements, each of some calls of both pieces of code in turn.
const MEASUREMENTS: usize = 8;
/// Calls of each piece of code in a measurement; the median of their times counts.
const CALLS: usize = 7;
/// Duration of a call.
const CALL: Duration = Duration::from_micros(60);
/// Pieces of code: few and many iterations, and independent and dependent additions.
const CODES: usize = 4;
/// Additions to a register in a round.
const ADDITIONS: usize = 32;
/// The child is ended if it has not come to an end after this many seconds.
const TIMEOUT_S: u32 = 2;
/// Distance of two buffers: more than they touch, and not a multiple of 4 KiB, where stores would seem to
/// overlap with loads and all buffers would compete for the same sets of the cache.
const BUFFER_DISTANCE: usize = (8 << 10) + 2560;
/// Bytes before the first buffer: operands may move down.
const MARGIN: usize = 8 << 10;
/// Bytes that can be accessed.
const AREA: usize = 128 << 10;
/// Bytes on both sides of them that cannot.
const GUARD: usize = 1 << 20;

/// Memory below 2 GiB, where displacements reach it, with a guard on both sides.
struct Area {
    start: NonNull<u8>,
}

impl Area {
    fn new() -> Option<Self> {
        // Both kinds of overcommitment allow memory that cannot be accessed.
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let mapped = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                AREA + 2 * GUARD,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::from_bits_retain(libc::MAP_32BIT.cast_unsigned()),
            )
        };
        let area = Self {
            start: NonNull::new(mapped.ok()?.cast())?,
        };
        let accessible = area.start.as_ptr().wrapping_add(GUARD).cast();
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range lies inside the new mapping.
        unsafe { mprotect(accessible, AREA, flags) }.ok()?;
        Some(area)
    }

    /// Address of the accessible byte at `offset`.
    fn address(&self, offset: usize) -> u32 {
        u32::try_from(self.start.as_ptr() as usize + GUARD + offset).expect("it is below 2 GiB")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this area's own, and its code is dropped before it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), AREA + 2 * GUARD) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own pages succeeds");
    }
}

/// Time of an iteration; `None` if it cannot be measured.
pub(super) fn iteration_time(body: &LoopBody, within: Duration) -> Option<IterationTime> {
    let area = Area::new()?;
    let starts: Vec<u32> = (0..body.buffers())
        .map(|number| area.address(MARGIN + number * BUFFER_DISTANCE))
        .collect();
    let many = body.iterations();
    let few = many / 2;
    let codes =
        [few, many].map(|iterations| Rounds::new(body, iterations, &starts, area.address(0)));
    let [Some(of_few), Some(of_many)] = codes else {
        return None;
    };
    let further = (many - few) as f64;
    let independent = Rounds::adding(&[rax, rdx, rsi, r8])?;
    let dependent = Rounds::adding(&[rax])?;
    let codes = [of_few, of_many, independent, dependent];
    let measured = in_child(|| times(&codes, within))?;
    let measurements = measured.map(|[few_ns, many_ns, independent_ns, dependent_ns]| {
        let slowdown = Slowdown::of(independent_ns, dependent_ns);
        ((many_ns - few_ns) / further, slowdown)
    });
    IterationTime::of(&measurements)
}

/// Code that executes rounds of some iterations each.
struct Rounds {
    code: OwnedCode,
}

impl Rounds {
    /// `counter` is the address of the word that counts the rounds.
    fn new(body: &LoopBody, iterations: usize, starts: &[u32], counter: u32) -> Option<Self> {
        let emitted = emit(body, iterations, starts, counter).ok()?;
        let lead = emitted.lead(&body.addresses()).ok()?;
        let code = assemble_owned(|assembler| {
            (0..lead).try_for_each(|_| assembler.nop())?;
            let mut instructions = emitted.instructions.into_iter();
            instructions.try_for_each(|instruction| assembler.add_instruction(instruction))
        });
        Some(Self { code: code.ok()? })
    }

    /// Rounds of [`ADDITIONS`] additions to each of these registers.
    fn adding(registers: &[AsmRegister64]) -> Option<Self> {
        let code = assemble_owned(|a| {
            let mut top = a.create_label();
            a.set_label(&mut top)?;
            for _ in 0..ADDITIONS {
                // Cores execute additions of constants in no time.
                registers
                    .iter()
                    .try_for_each(|register| a.add(*register, rcx))?;
            }
            a.dec(rdi)?;
            a.jne(top)?;
            a.ret()
        });
        Some(Self { code: code.ok()? })
    }

    /// Executes `rounds` rounds.
    ///
    /// # Safety
    ///
    /// Only in a process that may end: addresses that the loop computes may be anywhere.
    unsafe fn execute(&self, rounds: u64) {
        // SAFETY: the code follows the calling convention, and it is alive as long as `self`.
        let function: unsafe extern "sysv64" fn(u64) = unsafe { transmute(self.code.entry()) };
        // SAFETY: the caller's.
        unsafe { function(rounds) };
    }
}

const GENERAL: [Register; 15] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
const KEPT: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// A function of the number of rounds.
struct Emitted {
    /// They have numbers in place of addresses, to which jumps refer.
    instructions: Vec<Instruction>,
    /// Indices of the loop's instructions, if it is executed as a loop.
    looping: Option<Range<usize>>,
}

impl Emitted {
    /// Bytes to put before the function, so that the loop lies across lines as it does at `addresses` in the program.
    fn lead(&self, addresses: &Range<u64>) -> Result<usize, IcedError> {
        let copy = self.loop_offsets()?;
        Ok(copy.map_or(0, |copy| alignment::lead(addresses, copy)))
    }

    /// Offsets of the loop in the encoded function.
    fn loop_offsets(&self) -> Result<Option<Range<usize>>, IcedError> {
        let Some(looping) = &self.looping else {
            return Ok(None);
        };
        let block = InstructionBlock::new(&self.instructions, 0);
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let offsets = BlockEncoder::encode(64, block, options)?.new_instruction_offsets;
        let [start, end] = [looping.start, looping.end].map(|index| offsets[index] as usize);
        Ok(Some(start..end))
    }
}

/// The rounds with so many iterations each, and what sets them up.
fn emit(
    body: &LoopBody,
    iterations: usize,
    starts: &[u32],
    counter: u32,
) -> Result<Emitted, IcedError> {
    let absolute = |address: u64| MemoryOperand::with_displ(address, 8);
    let counter = absolute(counter.into());
    let mut all = Vec::new();
    for register in KEPT {
        all.push(Instruction::with1(Code::Push_r64, register)?);
    }
    all.push(Instruction::with2(
        Code::Mov_rm64_r64,
        counter,
        Register::RDI,
    )?);
    all.extend(zeroed_vectors(body.vectors())?);
    let first = all.len();
    for word in body.stored_words(starts) {
        all.push(Instruction::with2(Code::Mov_rm64_imm32, absolute(word), 0)?);
    }
    for register in GENERAL {
        let half = register.full_register32();
        all.push(Instruction::with2(Code::Xor_r32_rm32, half, half)?);
    }
    // Rounds do not overlap, so that their times differ only by that of their iterations.
    all.push(Instruction::with(Code::Lfence));
    for (number, instruction) in (1_u64..).zip(&mut all) {
        instruction.set_ip(number);
    }
    let looping = match body.looping(starts, all.len() as u64 + 1, iterations) {
        Some(looping) => {
            all.extend(looping);
            // Instructions are numbered from 1 on.
            let top = all
                .last()
                .map(|jump| jump.near_branch_target() as usize - 1);
            top.map(|top| top..all.len())
        }
        None => {
            for _ in 0..iterations {
                all.extend(body.moved(starts, all.len() as u64 + 1));
            }
            None
        }
    };
    let next = all.len() as u64 + 1;
    all.push(Instruction::with1(Code::Dec_rm64, counter)?);
    all.push(Instruction::with_branch(
        Code::Jne_rel32_64,
        first as u64 + 1,
    )?);
    if body.vectors() != EncodingKind::Legacy {
        all.push(Instruction::with(Code::VEX_Vzeroupper));
    }
    for register in KEPT.into_iter().rev() {
        all.push(Instruction::with1(Code::Pop_r64, register)?);
    }
    all.push(Instruction::with(Code::Retnq));
    for (number, instruction) in (next..).zip(&mut all[next as usize - 1..]) {
        instruction.set_ip(number);
    }
    Ok(Emitted {
        instructions: all,
        looping,
    })
}

/// Sets all vector registers that such instructions use to zeros, and all masks to ones.
fn zeroed_vectors(vectors: EncodingKind) -> Result<Vec<Instruction>, IcedError> {
    let numbered = |first: Register, count: u32| (0..count).map(move |number| first + number);
    match vectors {
        EncodingKind::EVEX => {
            let zeros = numbered(Register::ZMM0, 32).map(|zmm| {
                Instruction::with3(Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32, zmm, zmm, zmm)
            });
            let ones = numbered(Register::K0, 8)
                .map(|mask| Instruction::with3(Code::VEX_Kxnorw_kr_kr_kr, mask, mask, mask));
            zeros.chain(ones).collect()
        }
        EncodingKind::VEX => numbered(Register::XMM0, 16)
            .map(|xmm| Instruction::with3(Code::VEX_Vpxor_xmm_xmm_xmmm128, xmm, xmm, xmm))
            .collect(),
        _ => numbered(Register::XMM0, 16)
            .map(|xmm| Instruction::with2(Code::Pxor_xmm_xmmm128, xmm, xmm))
            .collect(),
    }
}

/// Offset at which the copy of a loop lies in its code.
#[cfg(test)]
pub(super) fn copied_to(body: &LoopBody) -> usize {
    let emitted = emit(body, 16, &vec![0; body.buffers()], 0).expect("it can be emitted");
    let lead = emitted.lead(&body.addresses()).expect("it can be encoded");
    lead + emitted
        .loop_offsets()
        .expect("it can be encoded")
        .expect("it is a loop")
        .start
}

/// Times of a round of each piece of code in nanoseconds.
type Rounded = [f64; CODES];

/// Measurements that are distributed over the duration `within`.
fn times(codes: &[Rounds; CODES], within: Duration) -> [Rounded; MEASUREMENTS] {
    let enough = |code: &Rounds| {
        let mut rounds = 16;
        while call(code, rounds) < CALL {
            rounds *= 2;
        }
        rounds
    };
    let [_, many, independent, dependent] = codes;
    // Few and many iterations are called alike: then their times differ only by those of iterations.
    let of_many = enough(many);
    let rounds = [of_many, of_many, enough(independent), enough(dependent)];
    let pause = within / MEASUREMENTS as u32;
    std::array::from_fn(|number| {
        if number > 0 {
            std::thread::sleep(pause);
        }
        time(codes, &rounds)
    })
}

/// Medians of calls in turn.
fn time(codes: &[Rounds; CODES], rounds: &[u64; CODES]) -> Rounded {
    let mut times = [[0.0; CALLS]; CODES];
    for number in 0..CALLS {
        for ((code, rounds), times) in codes.iter().zip(rounds).zip(&mut times) {
            times[number] = call(code, *rounds).as_nanos() as f64 / *rounds as f64;
        }
    }
    times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        times[CALLS / 2]
    })
}

/// Duration of `rounds` rounds, in the child.
fn call(code: &Rounds, rounds: u64) -> Duration {
    let begun = Instant::now();
    // SAFETY: this is the child.
    unsafe { code.execute(rounds) };
    begun.elapsed()
}

/// What `measure` returns in a child process; `None` if the child did not come to its end.
///
/// The process may have other threads, so `measure` must not allocate memory or take locks.
fn in_child(measure: impl FnOnce() -> [Rounded; MEASUREMENTS]) -> Option<[Rounded; MEASUREMENTS]> {
    let (mut from, to) = std::io::pipe().ok()?;
    // SAFETY: the child makes system calls and executes `measure` only, and then ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        prepare_to_fail();
        let bytes = measure().map(|round| round.map(f64::to_ne_bytes));
        // Less than a pipe takes at once.
        let written = rustix::io::write(&to, bytes.as_flattened().as_flattened());
        // SAFETY: ends the process without its destructors, which are the parent's.
        unsafe { libc::_exit(i32::from(written.is_err())) };
    }
    drop(to);
    let child = rustix::process::Pid::from_raw(child).filter(|_| child > 0)?;
    let mut bytes = [[[0; 8]; CODES]; MEASUREMENTS];
    let read = from.read_exact(bytes.as_flattened_mut().as_flattened_mut());
    while let Err(Errno::INTR) = waitpid(Some(child), WaitOptions::empty()) {}
    read.ok()
        .map(|()| bytes.map(|round| round.map(f64::from_ne_bytes)))
}

/// Lets a fault or too long a time end this process, without a core dump.
fn prepare_to_fail() {
    for signal in [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGALRM,
        libc::SIGTRAP,
    ] {
        // SAFETY: the default actions touch no memory.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut alarm = MaybeUninit::uninit();
    // SAFETY: there is room for a set.
    unsafe { libc::sigemptyset(alarm.as_mut_ptr()) };
    // SAFETY: the set was made above.
    unsafe { libc::sigaddset(alarm.as_mut_ptr(), libc::SIGALRM) };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, alarm.as_ptr(), ptr::null_mut()) };
    // Where this is refused a fault leaves a core file, and nothing else changes.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // SAFETY: it touches no memory.
    unsafe { libc::alarm(TIMEOUT_S) };
}
