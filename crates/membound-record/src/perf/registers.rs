//! Which registers the kernel is to report on each architecture, and in which order it reports them: by their
//! numbers in `asm/perf_regs.h`.

/// Marks the instruction pointer in [`RegisterSet::order`].
const IP: usize = usize::MAX;

/// The registers of one architecture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegisterSet {
    /// A bit for each reported register.
    pub(crate) mask: u64,
    /// Index in `Registers::general` of each register, in the kernel's order.
    order: &'static [usize],
}

/// Order: rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, rip; after flags and segments r8 to r15.
const X86_64: RegisterSet = RegisterSet {
    mask: 0x1ff | 0xff << 16,
    order: &[0, 3, 1, 2, 6, 7, 5, 4, IP, 8, 9, 10, 11, 12, 13, 14, 15],
};

/// Order: x0 to x30, sp, pc.
const AARCH64: RegisterSet = RegisterSet {
    mask: (1 << 33) - 1,
    order: &[
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        25, 26, 27, 28, 29, 30, 31, IP,
    ],
};

impl RegisterSet {
    /// The set of this architecture; `None` where it is not supported.
    pub(crate) const fn native() -> Option<&'static Self> {
        if cfg!(target_arch = "x86_64") {
            Some(&X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(&AARCH64)
        } else {
            None
        }
    }

    /// The set of this architecture, or another one where it is not supported; the kernel then refuses the
    /// events.
    pub(crate) const fn native_or_any() -> &'static Self {
        match Self::native() {
            Some(set) => set,
            None => &X86_64,
        }
    }

    /// Reads registers in the kernel's order, calling `next` for each.
    pub(crate) fn read(
        &self,
        mut next: impl FnMut() -> Option<u64>,
    ) -> Option<membound_launch::Registers> {
        let mut registers = membound_launch::Registers::default();
        for place in self.order {
            match *place {
                IP => registers.ip = next()?,
                number => registers.general[number] = next()?,
            }
        }
        Some(registers)
    }

    /// Reads registers by their numbers; `None` where a reported one is missing.
    pub(crate) fn by_number(
        &self,
        get: impl Fn(u32) -> Option<u64>,
    ) -> Option<membound_launch::Registers> {
        let mut numbers = (0..u64::BITS).filter(|number| self.mask >> number & 1 != 0);
        self.read(|| get(numbers.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_register_that_is_asked_for_has_a_place_of_its_own() {
        for set in [X86_64, AARCH64] {
            assert_eq!(set.mask.count_ones() as usize, set.order.len());
            let mut places = set.order.to_vec();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), set.order.len());
            let mut count = 0..;
            assert!(set.read(|| count.next()).is_some());
            assert_eq!(count.next(), Some(set.order.len() as u64));
            assert_eq!(set.read(|| None), None);
        }
    }

    #[test]
    fn registers_of_aarch64_come_by_their_numbers() {
        let mut values = 100..;
        let registers = AARCH64.read(|| values.next()).unwrap();
        let expected: Vec<u64> = (100..132).collect();
        assert_eq!(registers.general.as_slice(), expected);
        assert_eq!(registers.ip, 132);
    }
}
