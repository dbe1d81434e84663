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

/// Several chains: pointers in registers as long as these last, else in their slots of
/// `heads`, where a forwarded store adds a few cycles a round to a miss of hundreds.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of 64 bytes in a ring of `count`, each linked to the next but two.
    fn ring(count: usize, link: Link, key: u64) -> Vec<[u64; 8]> {
        let mut elements = vec![[0_u64; 8]; count];
        let base = elements.as_ptr() as u64;
        for (index, element) in elements.iter_mut().enumerate() {
            let offset = ((index + 3) % count * 64) as u64;
            element[0] = match link {
                Link::Pointer => base + offset,
                Link::ScrambledOffset => offset ^ key,
            };
        }
        elements
    }

    #[test]
    fn every_kind_of_chase_ends_where_the_chain_says() {
        const KEY: u64 = 0x5555_0000_1234;
        for link in [Link::Pointer, Link::ScrambledOffset] {
            for access in Access::ALL {
                let chase = Chase::new(link, access).unwrap();
                let mut elements = ring(101, link, KEY);
                let base = elements.as_mut_ptr().cast::<u8>();
                // SAFETY: the ring is closed, alive and only ours.
                let end = unsafe { chase.walk(base, 7, base, KEY) };
                let hops = 7 * chase.loads_per_iteration() as usize;
                assert_eq!(
                    (end as usize - base as usize) / 64,
                    hops * 3 % 101,
                    "{link:?} {access:?}"
                );
                let written = elements.iter().filter(|element| element[1] != 0).count();
                match access {
                    Access::Clean => assert_eq!(written, 0),
                    Access::Dirty => assert_eq!(written, 101),
                }
            }
        }
    }

    #[test]
    fn chains_in_registers_and_in_slots_all_advance() {
        let mut elements = ring(101, Link::Pointer, 0);
        let base = elements.as_mut_ptr().cast::<u8>();
        for count in [1, 2, 7, 8, 13, 64] {
            let chains = Chains::new(count).unwrap();
            let mut heads: Vec<*mut u8> = (0..count)
                .map(|chain| base.wrapping_add(chain * 64))
                .collect();
            // SAFETY: every head lies in the closed ring.
            unsafe { chains.walk(&mut heads, 5) };
            for (chain, head) in heads.iter().enumerate() {
                assert_eq!((*head as usize - base as usize) / 64, (chain + 15) % 101);
            }
        }
    }
}
