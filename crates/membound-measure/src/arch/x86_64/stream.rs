//! Loops that move bytes with the widest vectors.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, ptr, r8, r9, rax, rcx, rdi, rdx, registers, rsi, xmmword_ptr, ymmword_ptr,
    zmmword_ptr,
};
use membound_jit::{OwnedCode, assemble_owned};
use membound_types::{BandwidthKernel, VectorWidth};

use crate::Error;
use crate::arch::StreamLoop;

/// Widest vectors that processor and kernel offer together with fused multiply-add.
pub(super) fn widest() -> VectorWidth {
    if std::arch::is_x86_feature_detected!("avx512f") {
        VectorWidth::V512
    } else if std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
    {
        VectorWidth::V256
    } else {
        VectorWidth::V128
    }
}

pub(super) const fn bytes_of(vector: VectorWidth) -> usize {
    match vector {
        VectorWidth::V128 => 16,
        VectorWidth::V256 => 32,
        VectorWidth::V512 => 64,
    }
}

/// One kernel at one vector width.
pub(super) struct Stream {
    code: OwnedCode,
    bytes_per_iteration: usize,
}

impl Stream {
    const UNROLLED: usize = 8;

    pub(super) fn new(kernel: BandwidthKernel, vector: VectorWidth) -> Result<Self, Error> {
        if bytes_of(vector) > bytes_of(widest()) {
            return Err(Error::Invalid(format!(
                "this processor has no {}-bit vectors",
                bytes_of(vector) * 8
            )));
        }
        let bytes_per_iteration = bytes_of(vector) * Self::UNROLLED;
        let code = assemble_owned(|a| emit(a, kernel, vector))?;
        Ok(Self {
            code,
            bytes_per_iteration,
        })
    }
}

/// Emits the function. rdi: a, rsi: b, rdx: c, rcx: bytes, r8: passes; r9 is the offset in the
/// arrays.
fn emit(
    a: &mut CodeAssembler,
    kernel: BandwidthKernel,
    vector: VectorWidth,
) -> Result<(), IcedError> {
    let mut pass = a.create_label();
    let mut top = a.create_label();
    set_scalar(a, vector)?;
    a.set_label(&mut pass)?;
    a.xor(r9, r9)?;
    a.set_label(&mut top)?;
    for step in 0..Stream::UNROLLED {
        emit_step(a, kernel, vector, step)?;
    }
    a.add(r9, (bytes_of(vector) * Stream::UNROLLED) as i32)?;
    a.cmp(r9, rcx)?;
    a.jb(top)?;
    a.dec(r8)?;
    a.jnz(pass)?;
    if kernel == BandwidthKernel::NtWrite {
        a.sfence()?;
    }
    if vector != VectorWidth::V128 {
        a.vzeroupper()?;
    }
    a.ret()
}

/// Sets vector register 15 to 3.0 in every lane: the triad's scalar and the value that stores
/// write.
pub(super) fn set_scalar(a: &mut CodeAssembler, vector: VectorWidth) -> Result<(), IcedError> {
    a.mov(rax, 3.0_f64.to_bits())?;
    match vector {
        VectorWidth::V128 => {
            a.movq(registers::xmm15, rax)?;
            a.unpcklpd(registers::xmm15, registers::xmm15)
        }
        VectorWidth::V256 => {
            a.vmovq(registers::xmm15, rax)?;
            a.vbroadcastsd(registers::ymm15, registers::xmm15)
        }
        VectorWidth::V512 => {
            a.vmovq(registers::xmm15, rax)?;
            a.vbroadcastsd(registers::zmm15, registers::xmm15)
        }
    }
}

/// Emits the instructions for one vector of every array that the kernel uses.
fn emit_step(
    a: &mut CodeAssembler,
    kernel: BandwidthKernel,
    vector: VectorWidth,
    step: usize,
) -> Result<(), IcedError> {
    let offset = (step * bytes_of(vector)) as i32;
    let (to, left, right) = (rdi + r9 + offset, rsi + r9 + offset, rdx + r9 + offset);
    match vector {
        VectorWidth::V128 => {
            use registers::{xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm15};
            let register = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7][step];
            match kernel {
                BandwidthKernel::Read => a.movaps(register, xmmword_ptr(to)),
                BandwidthKernel::Write => a.movaps(xmmword_ptr(to), xmm15),
                BandwidthKernel::NtWrite => a.movntps(xmmword_ptr(to), xmm15),
                BandwidthKernel::Copy => {
                    a.movaps(register, xmmword_ptr(left))?;
                    a.movaps(xmmword_ptr(to), register)
                }
                BandwidthKernel::Triad => {
                    a.movaps(xmm8, ptr(right))?;
                    a.mulpd(xmm8, xmm15)?;
                    a.addpd(xmm8, ptr(left))?;
                    a.movaps(xmmword_ptr(to), xmm8)
                }
            }
        }
        VectorWidth::V256 => {
            use registers::{ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm15};
            let register = [ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7][step];
            match kernel {
                BandwidthKernel::Read => a.vmovaps(register, ymmword_ptr(to)),
                BandwidthKernel::Write => a.vmovaps(ymmword_ptr(to), ymm15),
                BandwidthKernel::NtWrite => a.vmovntps(ymmword_ptr(to), ymm15),
                BandwidthKernel::Copy => {
                    a.vmovaps(register, ymmword_ptr(left))?;
                    a.vmovaps(ymmword_ptr(to), register)
                }
                BandwidthKernel::Triad => {
                    a.vmovaps(register, ymmword_ptr(left))?;
                    a.vfmadd231pd(register, ymm15, ymmword_ptr(right))?;
                    a.vmovaps(ymmword_ptr(to), register)
                }
            }
        }
        VectorWidth::V512 => {
            use registers::{zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm15};
            let register = [zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7][step];
            match kernel {
                BandwidthKernel::Read => a.vmovaps(register, zmmword_ptr(to)),
                BandwidthKernel::Write => a.vmovaps(zmmword_ptr(to), zmm15),
                BandwidthKernel::NtWrite => a.vmovntps(zmmword_ptr(to), zmm15),
                BandwidthKernel::Copy => {
                    a.vmovaps(register, zmmword_ptr(left))?;
                    a.vmovaps(zmmword_ptr(to), register)
                }
                BandwidthKernel::Triad => {
                    a.vmovaps(register, zmmword_ptr(left))?;
                    a.vfmadd231pd(register, zmm15, zmmword_ptr(right))?;
                    a.vmovaps(zmmword_ptr(to), register)
                }
            }
        }
    }
}

impl StreamLoop for Stream {
    fn bytes_per_iteration(&self) -> usize {
        self.bytes_per_iteration
    }

    unsafe fn run(&self, a: *mut u8, b: *mut u8, c: *mut u8, bytes: usize, passes: u64) {
        // SAFETY: the code above is a function of these five arguments.
        let run: unsafe extern "sysv64" fn(*mut u8, *mut u8, *mut u8, usize, u64) =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: the caller promises arrays of `bytes` bytes, a multiple of an iteration.
        unsafe { run(a, b, c, bytes, passes.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{OpKind, Register};

    use super::*;
    use crate::arch::tests::check_stream;

    /// An array and an offset into it.
    type ArrayOffset = (char, u64);

    /// Places that an iteration reads, and those that it writes.
    fn accesses(
        kernel: BandwidthKernel,
        vector: VectorWidth,
    ) -> (Vec<ArrayOffset>, Vec<ArrayOffset>) {
        let mut assembler = CodeAssembler::new(64).unwrap();
        emit(&mut assembler, kernel, vector).unwrap();
        let (mut loads, mut stores) = (Vec::new(), Vec::new());
        for instruction in assembler.instructions() {
            let array = match instruction.memory_base() {
                Register::RDI => 'a',
                Register::RSI => 'b',
                Register::RDX => 'c',
                _ => continue,
            };
            let place = (array, instruction.memory_displacement64());
            if instruction.op0_kind() == OpKind::Memory {
                stores.push(place);
            } else {
                loads.push(place);
            }
        }
        (loads, stores)
    }

    #[test]
    fn every_vector_of_every_array_is_loaded_or_stored_once_an_iteration() {
        for vector in VectorWidth::ALL {
            let all = |array: char| -> Vec<ArrayOffset> {
                let width = bytes_of(vector);
                (0..Stream::UNROLLED)
                    .map(|step| (array, (step * width) as u64))
                    .collect()
            };
            for (kernel, read, written) in [
                (BandwidthKernel::Read, "a", ""),
                (BandwidthKernel::Write, "", "a"),
                (BandwidthKernel::NtWrite, "", "a"),
                (BandwidthKernel::Copy, "b", "a"),
                (BandwidthKernel::Triad, "bc", "a"),
            ] {
                let (mut loads, stores) = accesses(kernel, vector);
                loads.sort_unstable();
                let expected = |arrays: &str| arrays.chars().flat_map(all).collect::<Vec<_>>();
                assert_eq!(loads, expected(read), "{kernel:?} {vector:?}");
                assert_eq!(stores, expected(written), "{kernel:?} {vector:?}");
            }
        }
    }

    #[test]
    fn narrower_vectors_write_the_expected_values_too() {
        for vector in VectorWidth::ALL {
            if bytes_of(vector) > bytes_of(widest()) {
                println!(
                    "skipped: this processor has no {}-bit vectors",
                    bytes_of(vector) * 8
                );
                continue;
            }
            for kernel in BandwidthKernel::ALL {
                let stream = Stream::new(kernel, vector).unwrap();
                check_stream(&stream, kernel, &format!("{vector:?}"));
            }
        }
    }
}
