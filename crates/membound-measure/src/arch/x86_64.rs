//! Kernels emitted for x86-64.
//!
//! Registers of the System V convention: arguments in rdi, rsi, rdx, rcx, result in rax;
//! kernels use caller-saved registers unless they say otherwise.

mod chase;
mod inject;
mod mlp;
mod stream;
mod window;

use iced_x86::code_asm::{rax, rcx, rdi};
use membound_jit::{OwnedCode, assemble_owned};
use membound_types::{Access, BandwidthKernel, TrafficMix, VectorWidth, WindowKernel};

use super::{
    AddChain, Backend, ChainsLoop, ChaseLoop, InjectLoop, Link, MlpLoop, StreamLoop, WindowLoop,
    check_mix,
};
use crate::Error;

/// The backend that emits its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Emitted;

impl Backend for Emitted {
    fn name(&self) -> &'static str {
        "x86-64, emitted"
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
        Ok(Box::new(inject::Inject::new(
            mix,
            delay_steps,
            stream::widest(),
        )?))
    }

    fn widest_vector(&self) -> VectorWidth {
        stream::widest()
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

/// `add rax, rcx` again and again.
struct Adds {
    code: OwnedCode,
}

impl Adds {
    const UNROLLED: u64 = 64;

    fn new() -> Result<Self, Error> {
        let code = assemble_owned(|a| {
            let mut top = a.create_label();
            a.mov(rax, 1_u64)?;
            a.mov(rcx, 3_u64)?;
            a.set_label(&mut top)?;
            for _ in 0..Self::UNROLLED {
                a.add(rax, rcx)?;
            }
            a.dec(rdi)?;
            a.jnz(top)?;
            a.ret()
        })?;
        Ok(Self { code })
    }
}

impl AddChain for Adds {
    fn run(&self, adds: u64) {
        // SAFETY: the code is a function of one integer that touches no memory.
        let run: extern "sysv64" fn(u64) -> u64 =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        run((adds / Self::UNROLLED).max(1));
    }
}
