//! Dependent loads: one chain, or many at once.

use membound_jit::OwnedCode;
use membound_jit::a64::{Assembler, Instruction as I, X, assemble_owned};
use membound_types::Access;

use super::repeat;
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
        let code = assemble_owned(|a| Self::emit(a, link, access))?;
        Ok(Self { code, link })
    }

    fn emit(a: &mut Assembler, link: Link, access: Access) {
        let (at, rounds, base, key, element) = (X(0), X(1), X(2), X(3), X(4));
        if link == Link::ScrambledOffset {
            a.push(I::Subtract {
                to: at,
                left: at,
                right: base,
            });
        }
        let top = a.here();
        for _ in 0..Self::UNROLLED {
            let written = match link {
                Link::Pointer => {
                    a.push(I::Load {
                        to: at,
                        base: at,
                        bytes: 0,
                    });
                    at
                }
                Link::ScrambledOffset => {
                    a.push(I::LoadIndexed {
                        to: at,
                        base,
                        index: at,
                    });
                    a.push(I::Xor {
                        to: at,
                        left: at,
                        right: key,
                    });
                    element
                }
            };
            if access == Access::Dirty {
                if link == Link::ScrambledOffset {
                    a.push(I::Add {
                        to: element,
                        left: base,
                        right: at,
                        shift: 0,
                    });
                }
                a.push(I::Store {
                    from: rounds,
                    base: written,
                    bytes: 8,
                });
            }
        }
        repeat(a, rounds, top);
        if link == Link::ScrambledOffset {
            super::add(a, at, base);
        }
        a.push(I::Return);
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
        let walk: unsafe extern "C" fn(*mut u8, u64, *mut u8, u64) -> *mut u8 =
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
    /// Number of registers for pointers: x2 to x17.
    const IN_REGISTERS: usize = 16;

    pub(super) fn new(chains: usize) -> Result<Self, Error> {
        let code = assemble_owned(|a| Self::emit(a, chains))?;
        Ok(Self { code, chains })
    }

    fn emit(a: &mut Assembler, chains: usize) {
        let (heads, rounds) = (X(0), X(1));
        let register = |chain: usize| X(2 + (chain % Self::IN_REGISTERS) as u8);
        let in_registers = chains <= Self::IN_REGISTERS;
        let slot = |chain: usize| I::Load {
            to: register(chain),
            base: heads,
            bytes: (8 * chain) as u32,
        };
        let put = |chain: usize| I::Store {
            from: register(chain),
            base: heads,
            bytes: (8 * chain) as u32,
        };
        let step = |chain: usize| I::Load {
            to: register(chain),
            base: register(chain),
            bytes: 0,
        };
        if in_registers {
            (0..chains).for_each(|chain| a.push(slot(chain)));
        }
        let top = a.here();
        for chain in 0..chains {
            if in_registers {
                a.push(step(chain));
            } else {
                a.push(slot(chain));
                a.push(step(chain));
                a.push(put(chain));
            }
        }
        repeat(a, rounds, top);
        if in_registers {
            (0..chains).for_each(|chain| a.push(put(chain)));
        }
        a.push(I::Return);
    }
}

impl ChainsLoop for Chains {
    fn chains(&self) -> usize {
        self.chains
    }

    unsafe fn walk(&self, heads: &mut [*mut u8], rounds: u64) {
        assert!(heads.len() >= self.chains, "one head a chain");
        // SAFETY: the code above is a function of these two arguments.
        let walk: unsafe extern "C" fn(*mut *mut u8, u64) =
            unsafe { std::mem::transmute(self.code.entry().as_ptr()) };
        // SAFETY: there is a head for every chain, and the caller promises closed chains.
        unsafe { walk(heads.as_mut_ptr(), rounds.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    #[test]
    fn nothing_but_dependent_loads_is_in_the_loop() {
        let unrolled = Chase::UNROLLED as usize;
        let clean = text(|a| Chase::emit(a, Link::Pointer, Access::Clean));
        assert_eq!(clean[..unrolled], vec!["ldr x0, [x0, #0]"; unrolled]);
        assert_eq!(clean[unrolled..], ["subs x1, x1, #1", "b.ne .-132", "ret"]);
        let dirty = text(|a| Chase::emit(a, Link::Pointer, Access::Dirty));
        assert_eq!(dirty[..2], ["ldr x0, [x0, #0]", "str x1, [x0, #8]"]);
        let scrambled = text(|a| Chase::emit(a, Link::ScrambledOffset, Access::Dirty));
        assert_eq!(
            scrambled[..5],
            [
                "sub x0, x0, x2",
                "ldr x0, [x2, x0]",
                "eor x0, x0, x3",
                "add x4, x2, x0",
                "str x1, [x4, #8]"
            ]
        );
        assert_eq!(scrambled[scrambled.len() - 2..], ["add x0, x0, x2", "ret"]);
    }

    #[test]
    fn chains_stay_in_registers_as_long_as_there_are_some() {
        let few = text(|a| Chains::emit(a, 2));
        assert_eq!(
            few,
            [
                "ldr x2, [x0, #0]",
                "ldr x3, [x0, #8]",
                "ldr x2, [x2, #0]",
                "ldr x3, [x3, #0]",
                "subs x1, x1, #1",
                "b.ne .-12",
                "str x2, [x0, #0]",
                "str x3, [x0, #8]",
                "ret"
            ]
        );
        let many = text(|a| Chains::emit(a, 17));
        assert_eq!(many.len(), 3 * 17 + 3);
        assert_eq!(
            many[48..51],
            [
                "ldr x2, [x0, #128]",
                "ldr x2, [x2, #0]",
                "str x2, [x0, #128]"
            ]
        );
    }
}
