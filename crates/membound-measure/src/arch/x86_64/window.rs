//! Seidl's loop: draw an aligned window, change the sign of every double in it.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, ptr, r8, r9, r10, r11, rax, rcx, rdi, rdx, rsi, xmm0, xmm1, ymm0, ymm1, zmm0,
    zmm1,
};
use membound_jit::{OwnedCode, assemble_owned};
use membound_types::{VectorWidth, WindowKernel};

use super::stream::widest;
use crate::Error;
use crate::arch::{WindowLoop, check_window};
use crate::random::{INCREMENT, MULTIPLIER};

/// The loop for one window size.
pub(super) struct Window {
    code: OwnedCode,
}

impl Window {
    /// Prefetch distance ahead of the loads, in lines.
    const LINES_AHEAD: i32 = 4;

    pub(super) fn new(kernel: WindowKernel, window_bytes: u64) -> Result<Self, Error> {
        check_window(window_bytes)?;
        let vector =
            matches!(kernel, WindowKernel::Vector | WindowKernel::VectorPrefetch).then(widest);
        let prefetches = matches!(
            kernel,
            WindowKernel::ScalarPrefetch | WindowKernel::VectorPrefetch
        );
        // rdi: area, rsi: windows in it, rdx: windows to draw, rcx: generator state.
        let code = assemble_owned(|a| {
            let mut draw = a.create_label();
            let mut line = a.create_label();
            a.mov(r10, rdx)?;
            a.mov(r8, MULTIPLIER)?;
            a.mov(r9, INCREMENT)?;
            a.mov(rax, 1_u64 << 63)?;
            set_sign(a, vector)?;
            a.set_label(&mut draw)?;
            a.imul_2(rcx, r8)?;
            a.add(rcx, r9)?;
            a.mov(rax, rcx)?;
            a.mul(rsi)?;
            a.imul_3(rdx, rdx, window_bytes as i32)?;
            a.add(rdx, rdi)?;
            a.mov(r11, window_bytes / 64)?;
            a.set_label(&mut line)?;
            if prefetches {
                a.prefetcht0(ptr(rdx + 64 * Self::LINES_AHEAD))?;
            }
            negate_line(a, vector)?;
            a.add(rdx, 64)?;
            a.dec(r11)?;
            a.jnz(line)?;
            a.dec(r10)?;
            a.jnz(draw)?;
            if matches!(vector, Some(VectorWidth::V256 | VectorWidth::V512)) {
                a.vzeroupper()?;
            }
            a.mov(rax, rcx)?;
            a.ret()
        })?;
        Ok(Self { code })
    }
}

/// Sets vector register 1 to the sign bits of all doubles negated at once; rax holds one sign
/// bit.
fn set_sign(a: &mut CodeAssembler, vector: Option<VectorWidth>) -> Result<(), IcedError> {
    match vector {
        None => a.movq(xmm1, rax),
        Some(VectorWidth::V128) => {
            a.movq(xmm1, rax)?;
            a.unpcklpd(xmm1, xmm1)
        }
        Some(VectorWidth::V256) => {
            a.vmovq(xmm1, rax)?;
            a.vbroadcastsd(ymm1, xmm1)
        }
        Some(VectorWidth::V512) => {
            a.vmovq(xmm1, rax)?;
            a.vbroadcastsd(zmm1, xmm1)
        }
    }
}

/// Emits the sign change of the eight doubles at rdx, one by one or by vectors.
fn negate_line(a: &mut CodeAssembler, vector: Option<VectorWidth>) -> Result<(), IcedError> {
    match vector {
        None => {
            for offset in (0..64).step_by(8) {
                a.movsd_2(xmm0, ptr(rdx + offset))?;
                a.xorpd(xmm0, xmm1)?;
                a.movsd_2(ptr(rdx + offset), xmm0)?;
            }
        }
        Some(VectorWidth::V128) => {
            for offset in (0..64).step_by(16) {
                a.movapd(xmm0, ptr(rdx + offset))?;
                a.xorpd(xmm0, xmm1)?;
                a.movapd(ptr(rdx + offset), xmm0)?;
            }
        }
        Some(VectorWidth::V256) => {
            for offset in (0..64).step_by(32) {
                a.vxorpd(ymm0, ymm1, ptr(rdx + offset))?;
                a.vmovapd(ptr(rdx + offset), ymm0)?;
            }
        }
        Some(VectorWidth::V512) => {
            // The integer form, because `vxorpd` on 512 bits needs AVX-512DQ.
            a.vpxorq(zmm0, zmm1, ptr(rdx))?;
            a.vmovapd(ptr(rdx), zmm0)?;
        }
    }
    Ok(())
}

impl WindowLoop for Window {
    unsafe fn run(&self, area: *mut u8, area_windows: u64, windows: u64, seed: u64) -> u64 {
        // SAFETY: the code above is a function of these four arguments.
        let run: unsafe extern "sysv64" fn(*mut u8, u64, u64, u64) -> u64 =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: every drawn window lies inside the area that the caller promises.
        unsafe { run(area, area_windows, windows.max(1), seed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_windows_are_refused() {
        assert!(Window::new(WindowKernel::Scalar, 100).is_err());
        assert!(Window::new(WindowKernel::Scalar, 0).is_err());
    }
}
