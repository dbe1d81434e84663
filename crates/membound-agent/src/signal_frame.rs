//! The kernel's signal frame: the registers and the mask in its `ucontext`, and a signal as it arrives.

use membound_wire::State;

use crate::{memory, sys};

/// The general registers in a signal frame's `ucontext`, as the kernel orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Registers {
    /// r8 to r15.
    high: [u64; 8],
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    pub(crate) rip: u64,
    flags: u64,
}

/// Offset of the registers in a `ucontext`, in bytes.
pub(crate) const REGISTERS_OFFSET: usize = 40;
/// Offset of the signal mask, which lies behind the registers and the fields that belong to them.
pub(crate) const MASK_OFFSET: usize = REGISTERS_OFFSET + 256;

impl Registers {
    pub(crate) fn state(&self) -> State {
        let low = [
            self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi,
        ];
        let mut state = State {
            ip: self.rip,
            flags: self.flags,
            ..State::default()
        };
        for (register, value) in state.general.iter_mut().zip(low.iter().chain(&self.high)) {
            *register = *value;
        }
        state
    }

    /// The system call in these registers: its number and arguments.
    pub(crate) fn call(&self) -> (usize, [usize; 6]) {
        let [r8, r9, r10, ..] = self.high;
        let arguments = [self.rdi, self.rsi, self.rdx, r10, r8, r9];
        (self.rax as usize, arguments.map(|it| it as usize))
    }

    /// Stores a system call's result.
    pub(crate) fn answer(&mut self, result: isize) {
        self.rax = result.cast_unsigned() as u64;
    }

    /// Makes the thread execute the system call `number` again, with the instruction at `at`.
    pub(crate) fn call_again(&mut self, at: u64, number: u64) {
        self.rip = at;
        self.rax = number;
    }

    pub(crate) fn of_state(state: &State) -> Self {
        let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, high @ ..] = state.general;
        Self {
            high,
            rdi,
            rsi,
            rbp,
            rbx,
            rdx,
            rax,
            rcx,
            rsp,
            rip: state.ip,
            flags: state.flags,
        }
    }
}

/// A signal as the kernel delivers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: u64,
    /// Address of its `siginfo_t`.
    pub(crate) information: usize,
    /// Address of the `ucontext`.
    pub(crate) context: usize,
}

impl Arrived {
    /// Why it was sent (`si_code`).
    pub(crate) fn code(self) -> i32 {
        // SAFETY: handlers are installed with SA_SIGINFO; this is a siginfo's field, as are the next two.
        unsafe { memory::get(self.information + 8) }
    }

    /// The process that has sent it.
    pub(crate) fn process(self) -> u32 {
        // SAFETY: as above.
        unsafe { memory::get(self.information + 16) }
    }

    /// The value that was sent with it.
    pub(crate) fn value(self) -> u64 {
        // SAFETY: as above.
        unsafe { memory::get(self.information + 24) }
    }

    /// Where the kernel put the thread's registers, and takes them back from.
    pub(crate) const fn registers_place(self) -> usize {
        self.context + REGISTERS_OFFSET
    }

    pub(crate) fn registers(self) -> Registers {
        // SAFETY: the kernel put the registers there.
        unsafe { memory::get(self.registers_place()) }
    }

    /// Lets the thread go on with these registers.
    pub(crate) fn go_on_with(self, registers: Registers) {
        // SAFETY: the kernel takes them back from there.
        unsafe { memory::put(self.registers_place(), registers) };
    }

    pub(crate) fn mask(self) -> u64 {
        // SAFETY: the mask lies behind the registers and what belongs to them.
        unsafe { memory::get(self.context + MASK_OFFSET) }
    }

    /// Sends the signal to the calling thread again.
    pub(crate) fn send_again(self) {
        sys::send_again(sys::thread(), self.signal as u32, self.information);
    }
}

#[cfg(test)]
mod tests {
    use membound_wire::STACK_POINTER;

    use super::*;

    #[test]
    fn a_state_has_every_register_at_its_number() {
        let registers = Registers {
            high: [8, 9, 10, 11, 12, 13, 14, 15],
            rdi: 7,
            rsi: 6,
            rbp: 5,
            rbx: 3,
            rdx: 2,
            rax: 0,
            rcx: 1,
            rsp: 4,
            rip: 16,
            flags: 17,
        };
        let state = registers.state();
        assert!(state.general.iter().copied().eq(0..16));
        assert_eq!((state.ip, state.flags), (16, 17));
        assert_eq!(state.stack_pointer(), state.general[STACK_POINTER]);
        assert_eq!(Registers::of_state(&state), registers);
    }
}
