//! Dependent loads: one chain, or many at once.

use iced_x86::code_asm::{AsmRegister64, ptr, r8, r9, r10, r11, rax, rcx, rdi, rdx, rsi};
use membound_jit::{OwnedCode, assemble_owned};
use membound_types::Access;

use crate::Error;
use crate::arch::{ChainsLoop, ChaseLoop, Link};

/// One chain, its pointer in a register.
pub(super) struct Chase {
    code: OwnedCode,
    link: Link,
}

impl Chase {
    const UNROLLED: u64 = 32;

    pub(super) fn new(link: Link, access: Access) -> Result<Self, Error> {
        // rdi: element, rsi: iterations, rdx: base, rcx: key.
        let code = assemble_owned(|a| {
            let mut top = a.create_label();
            a.mov(rax, rdi)?;
            if link == Link::ScrambledOffset {
                a.sub(rax, rdx)?;
            }
            a.set_label(&mut top)?;
            for _ in 0..Self::UNROLLED {
                let element = match link {
                    Link::Pointer => {
                        a.mov(rax, ptr(rax))?;
                        ptr(rax + 8)
                    }
                    Link::ScrambledOffset => {
                        a.mov(rax, ptr(rax + rdx))?;
                        a.xor(rax, rcx)?;
                        ptr(rax + rdx + 8)
                    }
                };
                if access == Access::Dirty {
                    a.mov(element, rsi)?;
                }
            }
            a.dec(rsi)?;
            a.jnz(top)?;
            if link == Link::ScrambledOffset {
                a.add(rax, rdx)?;
            }
            a.ret()
        })?;
        Ok(Self { code, link })
    }
}

// SAFETY: every iteration reads the word of an element and, when dirty, writes the word
// behind it; nothing else is touched.
unsafe impl ChaseLoop for Chase {
    fn loads_per_iteration(&self) -> u64 {
        Self::UNROLLED
    }

    unsafe fn walk(&self, start: *mut u8, iterations: u64, base: *mut u8, key: u64) -> *mut u8 {
        // SAFETY: the code above is a function of these four arguments.
        let walk: unsafe extern "sysv64" fn(*mut u8, u64, *mut u8, u64) -> *mut u8 =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: the caller promises a closed chain; zero iterations would wrap around.
        unsafe { walk(start, iterations.max(1), base, key) }
    }

    fn arithmetic_cycles_per_load(&self) -> f64 {
        match self.link {
            Link::Pointer => 0.0,
            Link::ScrambledOffset => 1.0,
        }
    }
}

/// Several chains. Their pointers are in registers while there are enough, otherwise in the slots
/// of `heads`, where store forwarding adds a few cycles per round to a miss of hundreds.
pub(super) struct Chains {
    code: OwnedCode,
    chains: usize,
}

impl Chains {
    const IN_REGISTERS: [AsmRegister64; 7] = [rax, rcx, rdx, r8, r9, r10, r11];

    pub(super) fn new(chains: usize) -> Result<Self, Error> {
        // rdi: heads, rsi: rounds.
        let code = assemble_owned(|a| {
            let mut top = a.create_label();
            let slot = |chain: usize| ptr(rdi + (chain * 8) as i32);
            let in_registers = chains <= Self::IN_REGISTERS.len();
            let registers = &Self::IN_REGISTERS[..chains.min(Self::IN_REGISTERS.len())];
            if in_registers {
                for (chain, register) in registers.iter().enumerate() {
                    a.mov(*register, slot(chain))?;
                }
            }
            a.set_label(&mut top)?;
            if in_registers {
                for register in registers {
                    a.mov(*register, ptr(*register))?;
                }
            } else {
                for chain in 0..chains {
                    let register = registers[chain % registers.len()];
                    a.mov(register, slot(chain))?;
                    a.mov(register, ptr(register))?;
                    a.mov(slot(chain), register)?;
                }
            }
            a.dec(rsi)?;
            a.jnz(top)?;
            if in_registers {
                for (chain, register) in registers.iter().enumerate() {
                    a.mov(slot(chain), *register)?;
                }
            }
            a.ret()
        })?;
        Ok(Self { code, chains })
    }
}

impl ChainsLoop for Chains {
    fn chains(&self) -> usize {
        self.chains
    }

    unsafe fn walk(&self, heads: &mut [*mut u8], rounds: u64) {
        assert!(heads.len() >= self.chains, "one head a chain");
        // SAFETY: the code above is a function of these two arguments.
        let walk: unsafe extern "sysv64" fn(*mut *mut u8, u64) =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: there is a head for every chain, and the caller promises closed chains.
        unsafe { walk(heads.as_mut_ptr(), rounds.max(1)) };
    }
}
