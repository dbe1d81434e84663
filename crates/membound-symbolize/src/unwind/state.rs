//! A thread's registers, as far as they are known on the way outwards.

use super::Registers;

/// Position of rsp among the general registers.
pub(super) const RSP: u8 = 4;
/// Position of rbp among the general registers.
pub(super) const RBP: u8 = 5;

/// Those that a called function gives back as it got them: rbx, rsp, rbp, r12–r15.
pub(super) const PRESERVED: u16 = 1 << 3 | 1 << RSP | 1 << RBP | 0xf000;

/// Memory of the thread, eight bytes at a time.
pub(super) type Memory<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

/// Registers at some call of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) ip: u64,
    general: [u64; 16],
    /// A bit for each register whose value is known.
    known: u16,
}

impl State {
    pub(super) const fn new(registers: &Registers) -> Self {
        Self {
            ip: registers.ip,
            general: registers.general,
            known: u16::MAX,
        }
    }

    pub(super) fn get(&self, number: u8) -> Option<u64> {
        let known = self.known >> number & 1 != 0;
        known.then(|| self.general[usize::from(number & 15)])
    }

    pub(super) fn set(&mut self, number: u8, value: Option<u64>) {
        match value {
            Some(value) => {
                self.general[usize::from(number & 15)] = value;
                self.known |= 1 << number;
            }
            None => self.known &= !(1 << number),
        }
    }

    /// Forgets all but these.
    pub(super) const fn keep(&mut self, registers: u16) {
        self.known &= registers;
    }

    pub(super) fn sp(&self) -> Option<u64> {
        self.get(RSP)
    }
}

/// The number that instructions use, of a register's number in DWARF.
pub(super) const fn hardware(dwarf: u16) -> Option<u8> {
    const FIRST: [u8; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
    match dwarf {
        0..8 => Some(FIRST[dwarf as usize]),
        8..16 => Some(dwarf as u8),
        _ => None,
    }
}
