//! Traffic at a chosen rate: lines read, lines written, then a wait that needs no memory.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeAssembler, r8, rax, rcx, rdi, rdx, registers, rsi, xmmword_ptr,
    ymmword_ptr, zmmword_ptr,
};
use membound_jit::{OwnedCode, assemble_owned};
use membound_types::{TrafficMix, VectorWidth};

use super::stream::{bytes_of, set_scalar};
use crate::Error;
use crate::arch::InjectLoop;

/// The loop for one mix.
pub(super) struct Inject {
    code: OwnedCode,
}

const LINE: i32 = 64;

impl Inject {
    /// Maximum number of unrolled wait steps; longer waits loop over this many.
    const STEPS_WRITTEN_OUT: u32 = 256;

    pub(super) fn new(
        mix: TrafficMix,
        delay_steps: u32,
        vector: VectorWidth,
    ) -> Result<Self, Error> {
        let (reads, writes) = (mix.reads as i32, mix.writes as i32);
        // rdi: address to read, rsi: address to write, rdx: rounds.
        let code = assemble_owned(|a| {
            let mut round = a.create_label();
            // Not zeroes: some caches drop zeroes that are written over zeroes.
            set_scalar(a, vector)?;
            a.mov(rcx, 3_u64)?;
            a.set_label(&mut round)?;
            for offset in (0..reads * LINE).step_by(bytes_of(vector)) {
                load(a, vector, rdi + offset)?;
            }
            for offset in (0..writes * LINE).step_by(bytes_of(vector)) {
                store(a, vector, rsi + offset)?;
            }
            a.add(rdi, reads * LINE)?;
            a.add(rsi, writes * LINE)?;
            wait(a, delay_steps)?;
            a.dec(rdx)?;
            a.jnz(round)?;
            if vector != VectorWidth::V128 {
                a.vzeroupper()?;
            }
            a.ret()
        })?;
        Ok(Self { code })
    }
}

/// Emits a chain of `steps` dependent additions, one core cycle each. It uses no memory, and not
/// `pause`, whose length depends on the processor and its hypervisor. The chain continues from
/// round to round, because independent waits would overlap. Short waits have no loop, because the
/// misprediction at a loop's end takes as long as a short wait.
fn wait(a: &mut CodeAssembler, steps: u32) -> Result<(), IcedError> {
    let (rounds, rest) = (
        steps / Inject::STEPS_WRITTEN_OUT,
        steps % Inject::STEPS_WRITTEN_OUT,
    );
    if rounds > 0 {
        let mut again = a.create_label();
        a.mov(r8, u64::from(rounds))?;
        a.set_label(&mut again)?;
        for _ in 0..Inject::STEPS_WRITTEN_OUT {
            a.add(rax, rcx)?;
        }
        a.dec(r8)?;
        a.jnz(again)?;
    }
    for _ in 0..rest {
        a.add(rax, rcx)?;
    }
    Ok(())
}

fn load(a: &mut CodeAssembler, vector: VectorWidth, at: AsmMemoryOperand) -> Result<(), IcedError> {
    match vector {
        VectorWidth::V128 => a.movaps(registers::xmm0, xmmword_ptr(at)),
        VectorWidth::V256 => a.vmovaps(registers::ymm0, ymmword_ptr(at)),
        VectorWidth::V512 => a.vmovaps(registers::zmm0, zmmword_ptr(at)),
    }
}

fn store(
    a: &mut CodeAssembler,
    vector: VectorWidth,
    at: AsmMemoryOperand,
) -> Result<(), IcedError> {
    match vector {
        VectorWidth::V128 => a.movaps(xmmword_ptr(at), registers::xmm15),
        VectorWidth::V256 => a.vmovaps(ymmword_ptr(at), registers::ymm15),
        VectorWidth::V512 => a.vmovaps(zmmword_ptr(at), registers::zmm15),
    }
}

impl InjectLoop for Inject {
    unsafe fn run(&self, read: *mut u8, write: *mut u8, rounds: u64) {
        // SAFETY: the code above is a function of these three arguments.
        let run: unsafe extern "sysv64" fn(*mut u8, *mut u8, u64) =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: the caller promises the lines of at least one round.
        unsafe { run(read, write, rounds.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::widest;
    use super::*;
    use crate::arch::tests::check_inject;

    #[test]
    fn narrower_vectors_write_exactly_the_lines_of_the_mix_too() {
        for (reads, writes) in [(1, 0), (2, 1), (1, 1), (0, 1), (3, 4)] {
            let mix = TrafficMix { reads, writes };
            for vector in VectorWidth::ALL {
                if bytes_of(vector) > bytes_of(widest()) {
                    println!(
                        "skipped: this processor has no {}-bit vectors",
                        bytes_of(vector) * 8
                    );
                    continue;
                }
                for delay_steps in [0, 5, 256, 600] {
                    let inject = Inject::new(mix, delay_steps, vector).unwrap();
                    check_inject(&inject, mix, 7, "emitted");
                }
            }
        }
    }
}
