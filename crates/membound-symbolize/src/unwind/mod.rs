//! Computes call chains from registers and stack.
//!
//! Compilers write call frame information ([`crate::cfi`]) for every instruction, so a thread may be sampled
//! anywhere, also in a prologue, and no frame pointer is needed. All general registers are followed: signal
//! frames, realigned stacks and assembly find their callers through others than stack and frame pointer. Code
//! without such information is passed by following its instructions ([`walk`]), or by a possible frame
//! pointer; the rest of the chain is then marked as uncertain.

mod frames;
mod rule;
mod state;
mod stop;
mod walk;

use std::ops::Range;

use gimli::UnwindContext;

pub use self::frames::Frames;
use self::rule::Rule;
pub use self::state::Registers;
use self::state::{Memory, State};
use self::stop::Stop;
use crate::cfi::Signal;
use crate::machine::Machine;

/// Return addresses of a chain, at most.
const DEEPEST: usize = 256;

/// Slots of the cache of rules: at first few, since most processes of a program that forks do little; and at
/// most.
const KEPT: std::ops::RangeInclusive<usize> = 256..=8192;

/// How a call chain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The chain reaches the thread's first function.
    Complete,
    /// The copied stack ended, or the chain has the maximum depth.
    Cut,
    /// There is no rule for this code, or the values read make no sense.
    Lost,
}

/// Result of unwinding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// How the chain ended.
    pub end: End,
    /// Number of return addresses, from the innermost, that are certain: after them, code without
    /// call frame information was passed by a guess.
    pub certain: usize,
}

/// Unwinds the threads of one process.
#[derive(Debug, Default)]
pub struct Unwinder {
    /// Sorted by first address, without overlaps.
    modules: Vec<Mapped>,
    kept: RuleCache,
    context: Option<Box<UnwindContext<usize>>>,
}

#[derive(Clone, Debug)]
struct Mapped {
    range: Range<u64>,
    bias: u64,
    frames: Frames,
}

/// What a state's instruction pointer means for looking up its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The next instruction: the thread was interrupted before it.
    At,
    /// The instruction after a call, which may be the last one of its function.
    Behind,
}

impl Unwinder {
    /// An unwinder without modules.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module at addresses of the process. `bias` is added to the file's addresses (wrapping). Modules
    /// that overlap the range are removed.
    pub fn add(&mut self, range: Range<u64>, bias: u64, module: &Frames) {
        if range.is_empty() {
            return;
        }
        self.modules
            .retain(|old| old.range.end <= range.start || range.end <= old.range.start);
        let at = self
            .modules
            .partition_point(|old| old.range.start < range.start);
        let frames = module.clone();
        self.modules.insert(
            at,
            Mapped {
                range,
                bias,
                frames,
            },
        );
        self.kept.clear();
    }

    /// Removes the module whose range begins at `start`.
    pub fn remove(&mut self, start: u64) {
        self.modules.retain(|module| module.range.start != start);
        self.kept.clear();
    }

    /// Appends the return addresses of a thread to `out`, innermost first, at most 256, without the thread's
    /// current instruction. The address of an instruction that a signal interrupted is appended plus one, so
    /// that an address minus one is inside the call or the instruction in every case. `read` returns the
    /// eight bytes at an address of the thread's memory.
    pub fn unwind(
        &mut self,
        registers: &Registers,
        read: &mut dyn FnMut(u64) -> Option<u64>,
        out: &mut Vec<u64>,
    ) -> Chain {
        let first = out.len();
        let machine = self.modules.first();
        let machine = machine.map_or(Machine::native(), |module| module.frames.machine());
        let mut state = State::new(registers, machine);
        let mut standing = Standing::At;
        let mut certain = None;
        let end = loop {
            if out.len() - first == DEEPEST {
                break End::Cut;
            }
            let (caller, signal) = match self.step(&state, standing, read) {
                Ok(Step::Known(caller, signal)) => (caller, signal),
                Ok(Step::Guessed(caller)) => {
                    certain.get_or_insert(out.len() - first);
                    (caller, Signal::No)
                }
                Err(Stop::Outermost) => break End::Complete,
                Err(Stop::Unread) => break End::Cut,
                Err(Stop::Unknown) => break End::Lost,
            };
            // A thread's first function has no caller.
            if caller.ip == 0 {
                break End::Complete;
            }
            // Outer frames have higher addresses; a signal handler may have a stack of its own. On aarch64 an
            // innermost function with its return address in a register may have no frame.
            let may_have_none = standing == Standing::At && machine.link_register().is_some();
            let above = caller.sp() > state.sp() || may_have_none && caller.sp() == state.sp();
            if signal == Signal::No && !above {
                break End::Lost;
            }
            standing = match signal {
                Signal::Yes => Standing::At,
                Signal::No => Standing::Behind,
            };
            // A return address minus one is inside the call; make that hold here as well.
            let interrupted = u64::from(signal == Signal::Yes);
            out.push(caller.ip.wrapping_add(interrupted));
            state = caller;
        };
        Chain {
            end,
            certain: certain.unwrap_or(out.len() - first),
        }
    }

    fn step(
        &mut self,
        state: &State,
        standing: Standing,
        read: &mut Memory<'_>,
    ) -> Result<Step, Stop> {
        let place = match standing {
            Standing::At => state.ip,
            Standing::Behind => state.ip.wrapping_sub(1),
        };
        if let Some(rule) = self.kept.get(place) {
            return rule
                .apply(state, read)
                .map(|(caller, signal)| Step::Known(caller, signal));
        }
        let Some(module) = module_at(&self.modules, place) else {
            return self.guess(state, read);
        };
        let address = place.wrapping_sub(module.bias);
        let context = self.context.get_or_insert_default();
        if let Some(row) = module.frames.row(address, context) {
            let rule = Rule::of(row, &module.frames);
            let result = rule.apply(state, read);
            self.kept.insert(place, rule);
            return result.map(|(caller, signal)| Step::Known(caller, signal));
        }
        let gaps = &module.frames.tables().gaps;
        let here = state.ip.wrapping_sub(module.bias);
        if gaps.returns_from_signal(here) {
            return walk::from_signal(state, read).map(|caller| Step::Known(caller, Signal::Yes));
        }
        if let Some(caller) = gaps.walk(here, state, read)
            && module_at(&self.modules, caller.ip.wrapping_sub(1)).is_some()
        {
            return Ok(Step::Guessed(caller));
        }
        self.guess(state, read)
    }

    /// The caller according to the frame pointer, which may not be one.
    fn guess(&self, state: &State, read: &mut Memory<'_>) -> Result<Step, Stop> {
        let caller = walk::by_frame_pointer(state, read)?;
        // Code made at run time calls further such code; frame pointers then increase up to the first frame,
        // whose saved frame pointer is 0.
        let frame = caller.frame();
        let plausible = caller.ip == 0
            || module_at(&self.modules, caller.ip.wrapping_sub(1)).is_some()
            || frame == Some(0)
            || frame > state.frame();
        plausible
            .then_some(Step::Guessed(caller))
            .ok_or(Stop::Unknown)
    }
}

/// Cache of rules by address, direct-mapped.
#[derive(Debug, Default)]
struct RuleCache {
    slots: Vec<Option<(u64, Rule)>>,
    /// Entries displaced by others since the last growth.
    displaced: usize,
}

impl RuleCache {
    fn slot(&self, place: u64) -> usize {
        // The multiplication spreads addresses that differ by multiples of a page.
        let spread = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize & self.slots.len().wrapping_sub(1)
    }

    fn get(&self, place: u64) -> Option<&Rule> {
        let (kept, rule) = self.slots.get(self.slot(place))?.as_ref()?;
        (*kept == place).then_some(rule)
    }

    fn insert(&mut self, place: u64, rule: Rule) {
        let full = self.displaced > self.slots.len() && self.slots.len() < *KEPT.end();
        if self.slots.is_empty() || full {
            let more = (self.slots.len() * 2).max(*KEPT.start());
            self.slots.clear();
            self.slots.resize_with(more, || None);
            self.displaced = 0;
        }
        let slot = self.slot(place);
        if self.slots[slot].replace((place, rule)).is_some() {
            self.displaced += 1;
        }
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.displaced = 0;
    }
}

fn module_at(modules: &[Mapped], address: u64) -> Option<&Mapped> {
    let behind = modules.partition_point(|module| module.range.start <= address);
    let module = modules.get(behind.checked_sub(1)?)?;
    (address < module.range.end).then_some(module)
}

/// Result of unwinding one frame.
enum Step {
    /// By call frame information.
    Known(State, Signal),
    /// By a guess.
    Guessed(State),
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::frames::Tables;
    use super::walk::Gaps;
    use super::*;
    use crate::cfi::Cfi;

    /// Words on a stack.
    fn unwound(
        unwinder: &mut Unwinder,
        registers: &Registers,
        stack: &[(u64, u64)],
    ) -> (Vec<u64>, Chain) {
        let stack: HashMap<u64, u64> = stack.iter().copied().collect();
        let mut out = vec![7];
        let chain = unwinder.unwind(registers, &mut |at| stack.get(&at).copied(), &mut out);
        assert_eq!(out.remove(0), 7, "what was there stays");
        (out, chain)
    }

    fn registers(ip: u64, sp: u64, frame: u64) -> Registers {
        let mut registers = Registers {
            ip,
            ..Registers::default()
        };
        let machine = Machine::native();
        registers.general[usize::from(machine.stack_pointer())] = sp;
        registers.general[usize::from(machine.frame_pointer())] = frame;
        registers
    }

    #[test]
    fn code_that_nothing_is_known_of_is_passed_by_frame_pointers_and_marked() {
        let mut unwinder = Unwinder::new();
        let stack = [
            (0x1010, 0x1040),
            (0x1018, 0xa001),
            (0x1040, 0),
            (0x1048, 0xa002),
        ];
        let (out, chain) = unwound(&mut unwinder, &registers(0xa000, 0x1000, 0x1010), &stack);
        assert_eq!(out, [0xa001, 0xa002]);
        let expected = Chain {
            end: End::Complete,
            certain: 0,
        };
        assert_eq!(chain, expected);
        // rbp is no frame pointer: it points below the stack, or the chain would go down it.
        for frame in [0x0ff8, 0x1011] {
            let (out, chain) = unwound(&mut unwinder, &registers(0xa000, 0x1000, frame), &stack);
            assert_eq!((out.len(), chain.end), (0, End::Lost));
        }
        let stack = [(0x1010, 0x1008), (0x1018, 0xa001)];
        let (out, chain) = unwound(&mut unwinder, &registers(0xa000, 0x1000, 0x1010), &stack);
        assert_eq!((out.len(), chain.end), (0, End::Lost));
        // A stack that was not copied.
        let (out, chain) = unwound(&mut unwinder, &registers(0xa000, 0x1000, 0x1010), &[]);
        assert_eq!((out.len(), chain.end), (0, End::Cut));
    }

    #[test]
    fn a_chain_has_an_end() {
        let mut unwinder = Unwinder::new();
        let stack: Vec<(u64, u64)> = (0..2000)
            .flat_map(|at| {
                let frame = 0x1000 + 16 * at;
                [(frame, frame + 16), (frame + 8, 0xa000)]
            })
            .collect();
        let (out, chain) = unwound(&mut unwinder, &registers(0xa000, 0x1000, 0x1000), &stack);
        assert_eq!((out.len(), chain.end), (DEEPEST, End::Cut));
    }

    #[test]
    fn on_aarch64_the_interrupted_frame_is_found_in_the_kernels_frame() {
        // mov x8, #139; svc #0, to which handlers return.
        let code = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];
        let gaps = Gaps::of_code(Machine::Aarch64, 0x40, &code);
        let cfi = Cfi::default();
        let frames = Frames::with_tables(Machine::Aarch64, Tables { cfi, gaps });
        let mut unwinder = Unwinder::new();
        unwinder.add(0x7000..0x8000, 0x7000, &frames);
        // After 128 bytes of siginfo and 176 of the context: the fault's address, x0 to x30, sp and pc.
        let saved = 0x1000 + 128 + 176 + 8;
        let stack = [
            (saved + 8 * 29, 0x3000),
            (saved + 8 * 30, 0x7_0001),
            (saved + 8 * 31, 0x2f00),
            (saved + 8 * 32, 0xb000),
            // The interrupted function's frame, and an address with a signature above it.
            (0x3000, 0),
            (0x3008, 0x5a_0000_0000_c000),
        ];
        let mut registers = Registers {
            ip: 0x7044,
            ..Registers::default()
        };
        registers.general[31] = 0x1000;
        let (out, chain) = unwound(&mut unwinder, &registers, &stack);
        assert_eq!(out, [0xb001, 0xc000]);
        let expected = Chain {
            end: End::Complete,
            certain: 1,
        };
        assert_eq!(chain, expected);
    }

    #[test]
    fn modules_take_each_other_s_place() {
        let frames = Frames::with_tables(Machine::X86_64, Tables::empty(Machine::X86_64));
        let mut unwinder = Unwinder::new();
        unwinder.add(0x1000..0x3000, 0, &frames);
        unwinder.add(0x3000..0x4000, 0, &frames);
        unwinder.add(0x5000..0x5000, 0, &frames);
        assert_eq!(unwinder.modules.len(), 2);
        assert!(module_at(&unwinder.modules, 0x2fff).is_some());
        unwinder.add(0x2000..0x3800, 0x10, &frames);
        assert_eq!(unwinder.modules.len(), 1);
        assert!(module_at(&unwinder.modules, 0x1fff).is_none());
        unwinder.remove(0x1000);
        assert!(module_at(&unwinder.modules, 0x2000).is_some_and(|it| it.bias == 0x10));
        unwinder.remove(0x2000);
        assert!(unwinder.modules.is_empty());
    }
}
