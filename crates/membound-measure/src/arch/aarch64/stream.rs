//! Loops that move bytes by pairs of vectors.

use membound_jit::OwnedCode;
use membound_jit::a64::{Assembler, Condition, Instruction as I, V, X, assemble_owned};
use membound_types::{BandwidthKernel, VectorWidth};

use super::{LINE, VECTOR, repeat};
use crate::Error;
use crate::arch::StreamLoop;

/// Holds 3.0 in every lane: the triad's scalar and the value that stores write.
const SCALAR: V = V(31);

/// The emitted loop of one kernel.
pub(super) struct Stream {
    code: OwnedCode,
}

impl Stream {
    /// Bytes of an array that one iteration covers.
    const BYTES: u32 = 2 * LINE;

    pub(super) fn new(kernel: BandwidthKernel, vector: VectorWidth) -> Result<Self, Error> {
        if vector != VectorWidth::V128 {
            return Err(Error::Invalid(
                "the kernels for aarch64 have vectors of 128 bits only".to_owned(),
            ));
        }
        let code = assemble_owned(|a| Self::emit(a, kernel))?;
        Ok(Self { code })
    }

    /// Emits the function. x0: a, x1: b, x2: c, x3: bytes, x4: passes.
    fn emit(a: &mut Assembler, kernel: BandwidthKernel) {
        let (to, left, right, end) = (X(5), X(6), X(7), X(8));
        set_scalar(a, X(9));
        let pass = a.here();
        a.push(I::Move { to, from: X(0) });
        a.push(I::Move {
            to: left,
            from: X(1),
        });
        a.push(I::Move {
            to: right,
            from: X(2),
        });
        a.push(I::Add {
            to: end,
            left: X(0),
            right: X(3),
            shift: 0,
        });
        let top = a.here();
        for step in 0..Self::BYTES / (2 * VECTOR) {
            emit_pair(a, kernel, (to, left, right), step);
        }
        a.add_bytes(to, to, Self::BYTES);
        if matches!(kernel, BandwidthKernel::Copy | BandwidthKernel::Triad) {
            a.add_bytes(left, left, Self::BYTES);
        }
        if kernel == BandwidthKernel::Triad {
            a.add_bytes(right, right, Self::BYTES);
        }
        a.push(I::Compare {
            left: to,
            right: end,
        });
        a.branch_if(Condition::Lower, top);
        repeat(a, X(4), pass);
        a.push(I::Return);
    }
}

/// Sets [`SCALAR`] to 3.0 in every lane.
pub(super) fn set_scalar(a: &mut Assembler, scratch: X) {
    a.constant(scratch, 3.0_f64.to_bits());
    a.push(I::Broadcast {
        to: SCALAR,
        from: scratch,
    });
}

/// Emits the instructions for two vectors of every array that the kernel uses.
fn emit_pair(a: &mut Assembler, kernel: BandwidthKernel, (to, left, right): (X, X, X), step: u32) {
    let bytes = 2 * VECTOR * step;
    // Separate registers for each step, so that no step waits for the one before.
    let first = [0, 4, 16, 20][step as usize];
    let (v0, v1, v2, v3) = (V(first), V(first + 1), V(first + 2), V(first + 3));
    let load = |first, second, base| I::LoadVectors {
        first,
        second,
        base,
        bytes,
    };
    let store = |first, second| I::StoreVectors {
        first,
        second,
        base: to,
        bytes,
    };
    match kernel {
        BandwidthKernel::Read => a.push(load(v0, v1, to)),
        BandwidthKernel::Write => a.push(store(SCALAR, SCALAR)),
        BandwidthKernel::NtWrite => a.push(I::StoreVectorsPast {
            first: SCALAR,
            second: SCALAR,
            base: to,
            bytes,
        }),
        BandwidthKernel::Copy => {
            a.push(load(v0, v1, left));
            a.push(store(v0, v1));
        }
        BandwidthKernel::Triad => {
            a.push(load(v0, v1, left));
            a.push(load(v2, v3, right));
            for (sum, factor) in [(v0, v2), (v1, v3)] {
                a.push(I::MultiplyAddDoubles {
                    to: sum,
                    left: factor,
                    right: SCALAR,
                });
            }
            a.push(store(v0, v1));
        }
    }
}

impl StreamLoop for Stream {
    fn bytes_per_iteration(&self) -> usize {
        Self::BYTES as usize
    }

    unsafe fn run(&self, a: *mut u8, b: *mut u8, c: *mut u8, bytes: usize, passes: u64) {
        // SAFETY: the code above is a function of these five arguments.
        let run: unsafe extern "C" fn(*mut u8, *mut u8, *mut u8, usize, u64) =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: the caller promises arrays of `bytes` bytes, a multiple of an iteration.
        unsafe { run(a, b, c, bytes, passes.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An array and an offset into it.
    type ArrayOffset = (char, u32);

    /// Places that an iteration loads, and those that it stores.
    fn accesses(kernel: BandwidthKernel) -> (Vec<ArrayOffset>, Vec<ArrayOffset>) {
        let mut assembler = Assembler::new();
        Stream::emit(&mut assembler, kernel);
        let array = |base: X| match base.0 {
            5 => 'a',
            6 => 'b',
            7 => 'c',
            other => panic!("x{other} leads through no array"),
        };
        let (mut loads, mut stores) = (Vec::new(), Vec::new());
        for instruction in assembler.instructions() {
            let (places, base, bytes, registers) = match *instruction {
                I::LoadVectors {
                    first,
                    second,
                    base,
                    bytes,
                } => (&mut loads, base, bytes, [first, second]),
                I::StoreVectors {
                    first,
                    second,
                    base,
                    bytes,
                }
                | I::StoreVectorsPast {
                    first,
                    second,
                    base,
                    bytes,
                } => (&mut stores, base, bytes, [first, second]),
                _ => continue,
            };
            // The lower halves of v8 to v15 are the caller's.
            assert!(
                registers.iter().all(|it| !(8..16).contains(&it.0)),
                "{instruction}"
            );
            places.extend([(array(base), bytes), (array(base), bytes + VECTOR)]);
        }
        (loads, stores)
    }

    #[test]
    fn every_vector_of_every_array_is_loaded_or_stored_once_an_iteration() {
        let all = |array: char| (0..Stream::BYTES).step_by(16).map(move |at| (array, at));
        for (kernel, read, written) in [
            (BandwidthKernel::Read, "a", ""),
            (BandwidthKernel::Write, "", "a"),
            (BandwidthKernel::NtWrite, "", "a"),
            (BandwidthKernel::Copy, "b", "a"),
            (BandwidthKernel::Triad, "bc", "a"),
        ] {
            let (mut loads, stores) = accesses(kernel);
            loads.sort_unstable();
            let expected = |arrays: &str| arrays.chars().flat_map(all).collect::<Vec<_>>();
            assert_eq!(loads, expected(read), "{kernel:?}");
            assert_eq!(stores, expected(written), "{kernel:?}");
        }
    }

    #[test]
    fn the_non_temporal_kernel_has_non_temporal_stores() {
        let text = super::super::text(|a| Stream::emit(a, BandwidthKernel::NtWrite));
        let stores = text.iter().filter(|line| line.starts_with("st"));
        let stores: Vec<&String> = stores.collect();
        assert_eq!(stores.len(), 4);
        assert!(
            stores
                .iter()
                .all(|line| line.starts_with("stnp q31, q31, [x5"))
        );
    }

    #[test]
    fn vectors_that_there_are_none_of_are_refused() {
        let error = Stream::new(BandwidthKernel::Read, VectorWidth::V256).err();
        assert!(error.unwrap().to_string().contains("128 bits only"));
    }
}
