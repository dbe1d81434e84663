//! Seidl's loop: draw an aligned window, change the sign of every double in it.

use membound_jit::OwnedCode;
use membound_jit::a64::{Assembler, Instruction as I, V, X, assemble_owned};
use membound_types::WindowKernel;

use super::{LINE, VECTOR, repeat};
use crate::Error;
use crate::arch::{WindowLoop, check_window};
use crate::random::{INCREMENT, MULTIPLIER};

/// The loop for one window size.
pub(super) struct Window {
    code: OwnedCode,
}

impl Window {
    /// Prefetch distance ahead of the loads, in lines.
    const LINES_AHEAD: u32 = 4;

    pub(super) fn new(kernel: WindowKernel, window_bytes: u64) -> Result<Self, Error> {
        check_window(window_bytes)?;
        let code = assemble_owned(|a| Self::emit(a, kernel, window_bytes))?;
        Ok(Self { code })
    }

    /// Emits the function. x0: area, x1: windows in it, x2: windows to draw, x3: generator state.
    fn emit(a: &mut Assembler, kernel: WindowKernel, window_bytes: u64) {
        let (area, windows, left, state) = (X(0), X(1), X(2), X(3));
        let (at, lines) = (X(4), X(5));
        let (multiplier, increment, bytes) = (X(6), X(7), X(8));
        a.constant(multiplier, MULTIPLIER);
        a.constant(increment, INCREMENT);
        a.constant(bytes, window_bytes);
        let draw = a.here();
        a.push(I::MultiplyAdd {
            to: state,
            left: state,
            right: multiplier,
            addend: increment,
        });
        a.push(I::MultiplyHigh {
            to: at,
            left: state,
            right: windows,
        });
        a.push(I::MultiplyAdd {
            to: at,
            left: at,
            right: bytes,
            addend: area,
        });
        a.constant(lines, window_bytes / u64::from(LINE));
        let line = a.here();
        if matches!(
            kernel,
            WindowKernel::ScalarPrefetch | WindowKernel::VectorPrefetch
        ) {
            a.push(I::Prefetch {
                base: at,
                bytes: LINE * Self::LINES_AHEAD,
            });
        }
        match kernel {
            WindowKernel::Scalar | WindowKernel::ScalarPrefetch => negate_doubles(a, at),
            WindowKernel::Vector | WindowKernel::VectorPrefetch => negate_vectors(a, at),
        }
        a.add_bytes(at, at, LINE);
        repeat(a, lines, line);
        repeat(a, left, draw);
        a.push(I::Move {
            to: X(0),
            from: state,
        });
        a.push(I::Return);
    }
}

/// Emits the sign change of the eight doubles at `at`, one by one.
fn negate_doubles(a: &mut Assembler, at: X) {
    let value = V(0);
    for bytes in (0..LINE).step_by(8) {
        a.push(I::LoadDouble {
            to: value,
            base: at,
            bytes,
        });
        a.push(I::NegateDouble {
            to: value,
            from: value,
        });
        a.push(I::StoreDouble {
            from: value,
            base: at,
            bytes,
        });
    }
}

/// Emits the sign change of the eight doubles at `at`, by vectors.
fn negate_vectors(a: &mut Assembler, at: X) {
    let value = V(0);
    for bytes in (0..LINE).step_by(VECTOR as usize) {
        a.push(I::LoadVector {
            to: value,
            base: at,
            bytes,
        });
        a.push(I::NegateDoubles {
            to: value,
            from: value,
        });
        a.push(I::StoreVector {
            from: value,
            base: at,
            bytes,
        });
    }
}

impl WindowLoop for Window {
    unsafe fn run(&self, area: *mut u8, area_windows: u64, windows: u64, seed: u64) -> u64 {
        // SAFETY: the code above is a function of these four arguments.
        let run: unsafe extern "C" fn(*mut u8, u64, u64, u64) -> u64 =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: every drawn window lies inside the area that the caller promises.
        unsafe { run(area, area_windows, windows.max(1), seed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_doubles_a_line_are_loaded_negated_and_stored() {
        for (kernel, load, asks) in [
            (WindowKernel::Scalar, "ldr d0, [x4", 0),
            (WindowKernel::ScalarPrefetch, "ldr d0, [x4", 1),
            (WindowKernel::Vector, "ldr q0, [x4", 0),
            (WindowKernel::VectorPrefetch, "ldr q0, [x4", 1),
        ] {
            let text = super::super::text(|a| Window::emit(a, kernel, 4096));
            let count = |start: &str| text.iter().filter(|line| line.starts_with(start)).count();
            let each = if load.contains('d') && !load.contains('q') {
                8
            } else {
                4
            };
            assert_eq!(count(load), each, "{kernel:?}");
            assert_eq!(count("fneg"), each, "{kernel:?}");
            assert_eq!(count("str"), each, "{kernel:?}");
            assert_eq!(count("prfm pldl1keep, [x4, #256]"), asks, "{kernel:?}");
        }
    }

    #[test]
    fn odd_windows_are_refused() {
        assert!(Window::new(WindowKernel::Scalar, 100).is_err());
        assert!(Window::new(WindowKernel::Scalar, 0).is_err());
    }
}
