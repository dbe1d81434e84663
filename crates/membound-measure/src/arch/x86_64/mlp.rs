//! Document 000's kernel: serialise, N−1 loads, K fillers, one load, stop.
//!
//! Every address is a base register plus a displacement that is part of the instruction,
//! so nothing but the loads and the fillers stands inside the window. The base moves by a
//! generator step between executions, outside the timed part.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, dword_ptr, eax, ebp, ecx, edx, k1, k2, k3, k4, ptr, qword_ptr, r8, r8d, r9, r10,
    r11, r12, r13, r14, r15, r15d, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp, xmm0, xmm1, xmm2, xmm3,
    xmm4, xmm5, xmm6, xmm7, xmm15,
};
use membound_jit::{CodeBuffer, assemble};
use membound_types::{Fence, Filler};

use crate::Error;
use crate::arch::{Counter, MlpLoop, MlpSpec};
use crate::random::{INCREMENT, MULTIPLIER};

/// The kernel, loaded into a buffer that is used again for the next one.
#[derive(Debug)]
pub(super) struct MlpKernel {
    buffer: CodeBuffer,
}

/// Parameters and results of the kernel, which emitted code reads and writes by offset.
#[repr(C)]
struct KernelArguments {
    /// Lowest base address.
    area: *mut u8,
    /// Number of lines on which the base may lie.
    base_lines: u64,
    /// Generator state, updated by the kernel.
    seed: u64,
    /// Number of executions.
    executions: u64,
    /// Sum of the ticks between the two readings.
    ticks: u64,
    /// Where the next execution's ticks are stored; null if the kernel keeps none.
    each: *mut u32,
}

impl MlpKernel {
    pub(super) fn new() -> Result<Self, Error> {
        if !has_rdtscp() {
            return Err(Error::Invalid(
                "this processor, or its hypervisor, has no rdtscp, with which the kernel ends"
                    .to_owned(),
            ));
        }
        Ok(Self {
            buffer: CodeBuffer::new(256 << 10)?,
        })
    }
}

impl MlpLoop for MlpKernel {
    fn own_uops(&self) -> u32 {
        // Nothing but the fillers stands between the first load and the last; the test
        // below counts.
        0
    }

    fn fence(&self) -> Fence {
        Fence::Lfence
    }

    fn fillers(&self) -> Vec<Filler> {
        let has_mask = std::arch::is_x86_feature_detected!("avx512f");
        Filler::ALL
            .into_iter()
            .filter(|filler| match filler {
                Filler::Mask => has_mask,
                Filler::Mixed => false,
                _ => true,
            })
            .collect()
    }

    fn counter(&self) -> u64 {
        Counter::Tsc { invariant: false }.read()
    }

    fn load(&mut self, spec: &MlpSpec<'_>) -> Result<(), Error> {
        if spec.fence == Fence::Isb {
            return Err(Error::Invalid(format!(
                "{} is no instruction of this processor: use --fence {} or {}",
                spec.fence,
                Fence::Lfence,
                Fence::Cpuid
            )));
        }
        assemble(&mut self.buffer, |a| emit(a, spec))?;
        Ok(())
    }

    unsafe fn run(
        &mut self,
        area: *mut u8,
        base_lines: u64,
        seed: &mut u64,
        executions: u64,
    ) -> f64 {
        let frame = KernelArguments {
            area,
            base_lines,
            seed: *seed,
            executions,
            ticks: 0,
            each: std::ptr::null_mut(),
        };
        // SAFETY: the caller promises the area and a loaded kernel that keeps no ticks.
        let ticks = unsafe { self.enter(frame, seed) };
        ticks as f64 / executions as f64
    }

    unsafe fn run_each(
        &mut self,
        area: *mut u8,
        base_lines: u64,
        seed: &mut u64,
        ticks: &mut [u32],
    ) {
        if ticks.is_empty() {
            return;
        }
        let frame = KernelArguments {
            area,
            base_lines,
            seed: *seed,
            executions: ticks.len() as u64,
            ticks: 0,
            each: ticks.as_mut_ptr(),
        };
        // SAFETY: the caller promises the area and a loaded kernel that keeps as many ticks
        // as there are executions.
        unsafe { self.enter(frame, seed) };
    }
}

impl MlpKernel {
    /// Executes the loaded kernel and returns the ticks of all executions.
    ///
    /// # Safety
    /// As for [`MlpLoop::run`]; `frame.each` must have room for a value an execution where the
    /// kernel keeps them.
    unsafe fn enter(&mut self, mut frame: KernelArguments, seed: &mut u64) -> u64 {
        let entry = self.buffer.address() as *const u8;
        // SAFETY: the loaded code is a function of one pointer to a frame.
        let run: unsafe extern "sysv64" fn(*mut KernelArguments) =
            unsafe { std::mem::transmute(entry) };
        // SAFETY: the caller promises the area and a loaded kernel; the frame is alive.
        unsafe { run(&raw mut frame) };
        *seed = frame.seed;
        frame.ticks
    }
}

/// True if CPUID 8000_0001 EDX bit 27 (`rdtscp`) is set.
fn has_rdtscp() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0001 && __cpuid(0x8000_0001).edx & (1 << 27) != 0
}

fn emit(a: &mut CodeAssembler, spec: &MlpSpec<'_>) -> Result<(), IcedError> {
    let saved = [rbx, rbp, r12, r13, r14, r15];
    for register in saved {
        a.push(register)?;
    }
    // rdi: frame, rsi: base lines, r8: scratch of the fillers, r9: base, r10: generator
    // state, r11: multiplier, r12: executions left, r13: first reading, r14: sum.
    a.mov(rsi, ptr(rdi + 8))?;
    a.mov(r10, ptr(rdi + 16))?;
    a.mov(r12, ptr(rdi + 24))?;
    a.mov(r11, MULTIPLIER)?;
    a.xor(r14, r14)?;
    a.mov(rbp, 1_u64)?;
    a.pxor(xmm15, xmm15)?;
    let mut top = a.create_label();
    a.set_label(&mut top)?;
    a.imul_2(r10, r11)?;
    a.mov(rax, INCREMENT)?;
    a.add(r10, rax)?;
    a.mov(rax, r10)?;
    a.mul(rsi)?;
    a.shl(rdx, 6)?;
    a.mov(r9, ptr(rdi))?;
    a.add(r9, rdx)?;
    serialise(a, spec.fence)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(r13, rax)?;
    if spec.fence == Fence::Lfence {
        a.lfence()?;
    }
    let last = spec.displacements.len().saturating_sub(1);
    for (index, displacement) in spec.displacements.iter().enumerate() {
        if index > 0 && (spec.separate_all || index == last) {
            emit_fillers(a, spec)?;
        }
        a.mov(r15d, dword_ptr(r9 + *displacement as i32))?;
    }
    if last == 0 {
        emit_fillers(a, spec)?;
    }
    a.rdtscp()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.sub(rax, r13)?;
    a.add(r14, rax)?;
    if spec.each {
        a.mov(rcx, ptr(rdi + 40))?;
        a.mov(dword_ptr(rcx), eax)?;
        a.add(qword_ptr(rdi + 40), 4)?;
    }
    serialise(a, spec.fence)?;
    a.dec(r12)?;
    a.jnz(top)?;
    a.mov(ptr(rdi + 16), r10)?;
    a.mov(ptr(rdi + 32), r14)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// `cpuid` overwrites rax, rbx, rcx and rdx, none of which is live here.
fn serialise(a: &mut CodeAssembler, fence: Fence) -> Result<(), IcedError> {
    match fence {
        Fence::Cpuid => {
            a.xor(eax, eax)?;
            a.cpuid()
        }
        Fence::Lfence | Fence::Isb => a.lfence(),
    }
}

/// `jc` to the next instruction; nothing between the reading of the counter and the last load
/// sets the carry flag.
const BRANCH_NEVER_TAKEN: [u8; 2] = [0x72, 0x00];

fn emit_fillers(a: &mut CodeAssembler, spec: &MlpSpec<'_>) -> Result<(), IcedError> {
    let pattern = if spec.pattern.is_empty() {
        &[Filler::Nop]
    } else {
        spec.pattern
    };
    let mut emitted = [0_usize; Filler::ALL.len()];
    for &filler in pattern.iter().cycle().take(spec.fillers as usize) {
        let index = &mut emitted[filler as usize];
        emit_filler(a, filler, *index)?;
        *index += 1;
    }
    Ok(())
}

/// Emits the `index`th filler of its kind. Results rotate over several registers, so that no
/// filler waits for another.
fn emit_filler(a: &mut CodeAssembler, filler: Filler, index: usize) -> Result<(), IcedError> {
    let integer = [rax, rcx, rdx, r8][index % 4];
    let half = [eax, ecx, edx, r8d][index % 4];
    let vector = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7][index % 8];
    // The red zone: 128 bytes below the stack pointer belong to a function that calls nothing.
    let slot = [-64, -60, -56, -52][index % 4];
    match filler {
        Filler::Nop | Filler::Mixed => a.nop(),
        // An address computation writes a register and no flags.
        Filler::Integer => a.lea(integer, ptr(integer + rbp)),
        Filler::Vector => a.paddd(vector, xmm15),
        // rbp is 1, so that the carry flag is clear afterwards.
        Filler::Flags => a.test(rbp, rbp),
        Filler::Mask => a.kandw([k2, k3, k4][index % 3], k1, k1),
        Filler::Move => a.mov(integer, rbp),
        Filler::Zero => a.xor(half, half),
        Filler::Branch => a.db(&BRANCH_NEVER_TAKEN),
        Filler::X87 => a.fnop(),
        Filler::Load => a.mov(half, dword_ptr(rsp + slot)),
        Filler::Store => a.mov(dword_ptr(rsp + slot), ebp),
        Filler::Dependent => a.add(integer, r15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_runs_with_every_filler_and_fence_and_carries_its_generator_on() {
        let mut kernel = MlpKernel::new().unwrap();
        let mut area = vec![0_u8; 1 << 16];
        for fence in [Fence::Lfence, Fence::Cpuid] {
            for filler in kernel.fillers() {
                for (displacements, separate_all) in [
                    (&[][..], false),
                    (&[0, 4096][..], false),
                    (&[0, 64, 128][..], true),
                ] {
                    let spec = MlpSpec {
                        displacements,
                        fillers: 11,
                        pattern: &[filler, Filler::Nop],
                        separate_all,
                        fence,
                        each: false,
                    };
                    let mut seed = 5;
                    kernel.load(&spec).unwrap();
                    // SAFETY: 64 lines and 4096 bytes more are well inside the area.
                    let ticks = unsafe { kernel.run(area.as_mut_ptr(), 64, &mut seed, 30) };
                    assert!(ticks > 0.0);
                    let mut expected = crate::random::Random::new(5);
                    for _ in 0..30 {
                        expected.below(64);
                    }
                    assert_eq!(seed, expected.state(), "{fence:?} {filler:?}");
                }
            }
        }
    }

    #[test]
    fn the_window_has_only_loads_and_fillers() {
        let mut assembler = CodeAssembler::new(64).unwrap();
        let spec = MlpSpec {
            displacements: &[64, 128, 192],
            fillers: 5,
            pattern: &[],
            separate_all: false,
            fence: Fence::Lfence,
            each: false,
        };
        emit(&mut assembler, &spec).unwrap();
        let text: Vec<String> = assembler
            .instructions()
            .iter()
            .map(|instruction| format!("{instruction}"))
            .collect();
        let first = text.iter().position(|line| line.contains("r15d,")).unwrap();
        let last = text
            .iter()
            .rposition(|line| line.contains("r15d,"))
            .unwrap();
        let window = &text[first..=last];
        assert_eq!(window.len(), 3 + 5);
        assert_eq!(window.iter().filter(|line| *line == "nop").count(), 5);
        assert_eq!(text[first - 1], "lfence");
        assert_eq!(text[last + 1], "rdtscp");
    }

    #[test]
    fn kinds_of_filler_alternate() {
        let mut assembler = CodeAssembler::new(64).unwrap();
        let spec = MlpSpec {
            displacements: &[64, 128],
            fillers: 5,
            pattern: &[Filler::X87, Filler::Integer, Filler::Vector],
            separate_all: false,
            fence: Fence::Lfence,
            each: false,
        };
        emit(&mut assembler, &spec).unwrap();
        let text: Vec<String> = assembler
            .instructions()
            .iter()
            .map(|instruction| format!("{instruction}"))
            .collect();
        let first = text.iter().position(|line| line.contains("r15d,")).unwrap();
        assert_eq!(
            text[first + 1..first + 6],
            [
                "fnop",
                "lea rax,[rax+rbp]",
                "paddd xmm0,xmm15",
                "fnop",
                "lea rcx,[rcx+rbp]",
            ]
        );
    }

    #[test]
    fn each_execution_leaves_its_ticks() {
        let mut kernel = MlpKernel::new().unwrap();
        let mut area = vec![0_u8; 1 << 16];
        let spec = MlpSpec {
            displacements: &[64],
            fillers: 0,
            pattern: &[],
            separate_all: false,
            fence: Fence::Lfence,
            each: true,
        };
        kernel.load(&spec).unwrap();
        let mut ticks = [0; 33];
        // SAFETY: 64 lines and 64 bytes more are well inside the area.
        unsafe { kernel.run_each(area.as_mut_ptr(), 64, &mut 5, &mut ticks[..32]) };
        assert!(ticks[..32].iter().all(|ticks| *ticks > 0), "{ticks:?}");
        assert_eq!(ticks[32], 0);
    }
}
