//! Kernels emitted for aarch64.
//!
//! Registers of the AAPCS64: arguments in x0 to x4, result in x0. Kernels use x0 to x17 and
//! v0 to v7 and v16 to v31, which a called function may change, unless they say otherwise.
//!
//! Emission is independent of the machine, so tests check it everywhere. The code runs on aarch64
//! only.

mod chase;
mod inject;
mod mlp;
mod stream;
mod window;

use membound_jit::OwnedCode;
use membound_jit::a64::{self, Assembler, Condition, Instruction as I, X};
use membound_types::{Access, BandwidthKernel, TrafficMix, VectorWidth, WindowKernel};

use super::{
    AddChain, Backend, ChainsLoop, ChaseLoop, InjectLoop, Link, MlpLoop, StreamLoop, WindowLoop,
    check_mix,
};
use crate::Error;

/// Line size by which kernels count, in bytes, regardless of the machine's line size.
const LINE: u32 = 64;
/// Bytes of a vector register.
const VECTOR: u32 = 16;

/// The backend that emits its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Emitted;

impl Backend for Emitted {
    fn name(&self) -> &'static str {
        "aarch64, emitted"
    }

    fn add_chain(&self) -> Result<Box<dyn AddChain>, Error> {
        Ok(Box::new(Adds::new()?))
    }

    fn chase(&self, link: Link, access: Access) -> Result<Box<dyn ChaseLoop>, Error> {
        Ok(Box::new(chase::Chase::new(link, access)?))
    }

    fn chains(&self, chains: usize) -> Result<Box<dyn ChainsLoop>, Error> {
        Ok(Box::new(chase::Chains::new(chains)?))
    }

    fn stream(
        &self,
        kernel: BandwidthKernel,
        vector: VectorWidth,
    ) -> Result<Box<dyn StreamLoop>, Error> {
        Ok(Box::new(stream::Stream::new(kernel, vector)?))
    }

    fn inject(&self, mix: TrafficMix, delay_steps: u32) -> Result<Box<dyn InjectLoop>, Error> {
        check_mix(mix)?;
        Ok(Box::new(inject::Inject::new(mix, delay_steps)?))
    }

    fn widest_vector(&self) -> VectorWidth {
        // Advanced SIMD, which every such processor has. SVE is not used.
        VectorWidth::V128
    }

    fn mlp(&self) -> Result<Box<dyn MlpLoop>, Error> {
        Ok(Box::new(mlp::MlpKernel::new()?))
    }

    fn window(
        &self,
        kernel: WindowKernel,
        window_bytes: u64,
    ) -> Result<Box<dyn WindowLoop>, Error> {
        Ok(Box::new(window::Window::new(kernel, window_bytes)?))
    }
}

/// Emits a decrement of `counter` and a branch to `top` until it is zero.
fn repeat(a: &mut Assembler, counter: X, top: a64::Label) {
    a.push(I::SubtractImmediateFlags {
        to: counter,
        from: counter,
        immediate: 1,
    });
    a.branch_if(Condition::NotEqual, top);
}

/// Emits `to = to + by`: a step of a chain that takes a core cycle.
fn add(a: &mut Assembler, to: X, by: X) {
    a.push(I::Add {
        to,
        left: to,
        right: by,
        shift: 0,
    });
}

/// `add x1, x1, x2` again and again.
struct Adds {
    code: OwnedCode,
}

impl Adds {
    const UNROLLED: u64 = 64;

    fn new() -> Result<Self, Error> {
        Ok(Self {
            code: a64::assemble_owned(Self::emit)?,
        })
    }

    fn emit(a: &mut Assembler) {
        let (rounds, sum, addend) = (X(0), X(1), X(2));
        a.constant(sum, 1);
        a.constant(addend, 3);
        let top = a.here();
        for _ in 0..Self::UNROLLED {
            add(a, sum, addend);
        }
        repeat(a, rounds, top);
        a.push(I::Return);
    }
}

impl AddChain for Adds {
    fn run(&self, adds: u64) {
        // SAFETY: the code is a function of one integer that touches no memory.
        let run: extern "C" fn(u64) = unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        run((adds / Self::UNROLLED).max(1));
    }
}

/// Disassembly of an emitted kernel, for tests on any machine.
#[cfg(test)]
fn text(emit: impl FnOnce(&mut Assembler)) -> Vec<String> {
    let mut assembler = Assembler::new();
    emit(&mut assembler);
    assembler.encode().expect("every operand fits");
    let instructions = assembler.instructions().iter();
    instructions.map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adds_depend_on_each_other_and_nothing_else_is_in_the_loop() {
        let text = text(Adds::emit);
        assert_eq!(text[..2], ["movz x1, #1, lsl #0", "movz x2, #3, lsl #0"]);
        assert!(text[2..66].iter().all(|line| line == "add x1, x1, x2"));
        assert_eq!(text[66..], ["subs x0, x0, #1", "b.ne .-260", "ret"]);
    }

    #[test]
    fn every_kernel_can_be_emitted() {
        let backend = Emitted;
        assert_eq!(backend.name(), "aarch64, emitted");
        backend.add_chain().unwrap();
        backend.mlp().unwrap();
        for access in Access::ALL {
            for link in [Link::Pointer, Link::ScrambledOffset] {
                backend.chase(link, access).unwrap();
            }
        }
        for kernel in BandwidthKernel::ALL {
            backend.stream(kernel, backend.widest_vector()).unwrap();
        }
        for kernel in WindowKernel::ALL {
            backend.window(kernel, 4096).unwrap();
        }
        backend.chains(64).unwrap();
        let mix = TrafficMix {
            reads: 40,
            writes: 24,
        };
        backend.inject(mix, 1000).unwrap();
    }
}
