//! Traffic at a chosen rate: lines read, lines written, then a wait that needs no memory.

use membound_jit::OwnedCode;
use membound_jit::a64::{Assembler, Instruction as I, V, X, assemble_owned};
use membound_types::TrafficMix;

use super::stream::set_scalar;
use super::{LINE, VECTOR, add, repeat};
use crate::Error;
use crate::arch::InjectLoop;

/// The loop for one mix.
pub(super) struct Inject {
    code: OwnedCode,
}

impl Inject {
    /// Maximum number of unrolled wait steps; longer waits loop over this many.
    const STEPS_WRITTEN_OUT: u32 = 256;

    pub(super) fn new(mix: TrafficMix, delay_steps: u32) -> Result<Self, Error> {
        let code = assemble_owned(|a| Self::emit(a, mix, delay_steps))?;
        Ok(Self { code })
    }

    /// Emits the function. x0: address to read, x1: address to write, x2: rounds.
    fn emit(a: &mut Assembler, mix: TrafficMix, delay_steps: u32) {
        let (read, write) = (X(0), X(1));
        let (read_bytes, written_bytes) = (mix.reads * LINE, mix.writes * LINE);
        // Not zeroes: some caches drop zeroes that are written over zeroes.
        set_scalar(a, X(3));
        a.constant(X(4), 3);
        let round = a.here();
        for bytes in (0..read_bytes).step_by(VECTOR as usize) {
            a.push(I::LoadVector {
                to: V(0),
                base: read,
                bytes,
            });
        }
        for bytes in (0..written_bytes).step_by(VECTOR as usize) {
            a.push(I::StoreVector {
                from: V(31),
                base: write,
                bytes,
            });
        }
        a.add_bytes(read, read, read_bytes);
        a.add_bytes(write, write, written_bytes);
        Self::wait(a, delay_steps);
        repeat(a, X(2), round);
        a.push(I::Return);
    }

    /// Emits a chain of `steps` dependent additions, one core cycle each. It continues from round
    /// to round, because independent waits would overlap. Short waits have no loop, because the
    /// misprediction at a loop's end takes as long as a short wait.
    fn wait(a: &mut Assembler, steps: u32) {
        let (sum, addend, left) = (X(3), X(4), X(5));
        let rounds = steps / Self::STEPS_WRITTEN_OUT;
        if rounds > 0 {
            a.constant(left, u64::from(rounds));
            let again = a.here();
            (0..Self::STEPS_WRITTEN_OUT).for_each(|_| add(a, sum, addend));
            repeat(a, left, again);
        }
        (0..steps % Self::STEPS_WRITTEN_OUT).for_each(|_| add(a, sum, addend));
    }
}

impl InjectLoop for Inject {
    unsafe fn run(&self, read: *mut u8, write: *mut u8, rounds: u64) {
        // SAFETY: the code above is a function of these three arguments.
        let run: unsafe extern "C" fn(*mut u8, *mut u8, u64) =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: the caller promises the lines of at least one round.
        unsafe { run(read, write, rounds.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_the_lines_of_the_mix_and_the_steps_of_the_wait() {
        let count = |text: &[String], start: &str| {
            text.iter().filter(|line| line.starts_with(start)).count()
        };
        for (reads, writes, delay_steps) in [(1, 0, 0), (40, 24, 5), (2, 1, 600)] {
            let mix = TrafficMix { reads, writes };
            let text = super::super::text(|a| Inject::emit(a, mix, delay_steps));
            assert_eq!(count(&text, "ldr q0, [x0,"), 4 * reads as usize);
            assert_eq!(count(&text, "str q31, [x1,"), 4 * writes as usize);
            // Of 600 steps, 256 are unrolled in a loop of two iterations, and 88 follow the loop.
            let written = if delay_steps == 600 {
                256 + 88
            } else {
                delay_steps
            };
            assert_eq!(count(&text, "add x3, x3, x4"), written as usize);
        }
    }
}
