//! Unwinds a thread's call chain, by compact tables that the launcher has made.
//!
//! It runs on every reported allocation and in the timers' handler, so it takes no lock, makes no system
//! call, reads only within the given bounds, and stops where it is in doubt. Tables of modules are
//! registered in slots with versions, like trampolines (see [`crate::areas`]); rules that were found are
//! cached for all threads.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_sync::{rule, version};
use membound_wire::{CallersFrame, Command, Refusal, UnwindHeader, UnwindKind, UnwindRule};

use crate::failure::Failure;
use crate::sys::Errno;
use crate::{assembly, memory};

const MODULES: usize = 1024;
const CACHED: usize = 4096;

/// A module's text with its table.
struct Slot {
    version: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    table: AtomicU64,
    base: AtomicU64,
}

static SLOTS: [Slot; MODULES] = [const {
    Slot {
        version: AtomicU64::new(0),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        table: AtomicU64::new(0),
        base: AtomicU64::new(0),
    }
}; MODULES];
/// Number of slots that were ever used, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Counts the changes of slots: cached rules of an older generation are invalid.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A cached rule: see [`rule::Entry`].
struct Cached {
    sum: AtomicU64,
    rule: AtomicU64,
}

static CACHE: [Cached; CACHED] = [const {
    Cached {
        sum: AtomicU64::new(0),
        rule: AtomicU64::new(0),
    }
}; CACHED];

/// A consistent copy of a slot.
#[derive(Clone, Copy)]
struct ModuleText {
    start: u64,
    end: u64,
    table: u64,
    base: u64,
}

fn snapshot(slot: &Slot) -> Option<ModuleText> {
    // A slot that is being changed is no module yet, or none any more.
    let module = version::read(&slot.version, || ModuleText {
        start: slot.start.load(Ordering::Relaxed),
        end: slot.end.load(Ordering::Relaxed),
        table: slot.table.load(Ordering::Relaxed),
        base: slot.base.load(Ordering::Relaxed),
    });
    module.ok().filter(|module| module.end != 0)
}

/// Changes a slot, unless another thread does so now or it is not eligible.
fn change(slot: &Slot, module: ModuleText, is_eligible: impl Fn(&Slot) -> bool) -> bool {
    let store = || {
        slot.start.store(module.start, Ordering::Relaxed);
        slot.end.store(module.end, Ordering::Relaxed);
        slot.table.store(module.table, Ordering::Relaxed);
        slot.base.store(module.base, Ordering::Relaxed);
    };
    version::change(&slot.version, || is_eligible(slot), store)
}

/// Registers the table of the text that `command` describes, in place of those of texts that overlap it.
pub(crate) fn register(command: &Command) -> Result<(), Failure> {
    let end = command
        .address
        .checked_add(command.length)
        .ok_or_else(Failure::malformed)?;
    if command.extra == 0 || command.length == 0 {
        return Err(Failure::malformed());
    }
    forget(command.address, end);
    let module = ModuleText {
        start: command.address,
        end,
        table: command.extra,
        base: command.base,
    };
    let free = |slot: &Slot| slot.end.load(Ordering::Relaxed) == 0;
    for (index, slot) in SLOTS.iter().enumerate() {
        if change(slot, module, free) {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            rule::advance(&GENERATION);
            return Ok(());
        }
    }
    Err(Failure::new(Errno::ENOSPC, Refusal::AreasFull))
}

/// Removes the tables of texts that overlap `start..end`. They stay mapped, since a thread may be reading
/// them.
pub(crate) fn forget(start: u64, end: u64) {
    let nothing = ModuleText {
        start: 0,
        end: 0,
        table: 0,
        base: 0,
    };
    let touched = |slot: &Slot| {
        slot.start.load(Ordering::Relaxed) < end && start < slot.end.load(Ordering::Relaxed)
    };
    for slot in SLOTS.iter().take(USED.load(Ordering::Acquire)) {
        if change(slot, nothing, touched) {
            rule::advance(&GENERATION);
        }
    }
}

impl ModuleText {
    /// The rule for the instruction at `ip`.
    fn rule(&self, ip: u64) -> UnwindRule {
        const ROW: u64 = 4;
        // SAFETY: the launcher mapped the table before it registered it, and never unmaps it.
        let header: UnwindHeader = unsafe { memory::get(self.table as usize) };
        let rows = self.table + size_of::<UnwindHeader>() as u64;
        let Ok(wanted) = u32::try_from(ip.wrapping_sub(self.base)) else {
            return UnwindRule::STOP;
        };
        let (mut low, mut high) = (0, u64::from(header.count));
        while low < high {
            let middle = low + (high - low) / 2;
            // SAFETY: as above; the row is below the header's count.
            let start: u32 = unsafe { memory::get((rows + middle * ROW) as usize) };
            if start <= wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        match low.checked_sub(1) {
            Some(row) => {
                let place = rows + (u64::from(header.count) + row) * ROW;
                // SAFETY: as above.
                UnwindRule(unsafe { memory::get(place as usize) })
            }
            None => UnwindRule::STOP,
        }
    }
}

/// A number that changes whenever rules may have changed.
pub(crate) fn generation() -> u32 {
    rule::generation(&GENERATION)
}

/// The rule for the instruction at `ip`.
fn rule_at(ip: u64) -> UnwindRule {
    let generation = generation();
    let index = (ip.wrapping_mul(rule::SPREAD) >> 52) as usize % CACHED;
    let Some(cached) = CACHE.get(index) else {
        return UnwindRule::STOP;
    };
    let cached = rule::Entry {
        rule: &cached.rule,
        sum: &cached.sum,
    };
    if let Some(found) = cached.get(ip, generation) {
        return UnwindRule(found);
    }
    let rule = SLOTS
        .iter()
        .take(USED.load(Ordering::Acquire))
        .filter_map(snapshot)
        .find(|module| (module.start..module.end).contains(&ip))
        .map_or(UnwindRule::STOP, |module| module.rule(ip));
    cached.put(ip, generation, rule.0);
    rule
}

/// The registers by which callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
}

/// Meaning of `Registers::ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// An instruction that is about to be executed.
    Instruction,
    /// A return address: the rule is that of the call before it.
    Return,
}

/// Addresses that may be read: a part of the thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Stack {
    /// The word at `address`, if all of it is within the bounds.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let inside = address >= self.low && address <= self.high.wrapping_sub(8);
        if !inside || self.high < 8 {
            return None;
        }
        // SAFETY: the code that made this `Stack` vouches for all addresses within its bounds.
        Some(unsafe { memory::get(address as usize) })
    }
}

/// Steps from frame to frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    registers: Registers,
    begin: Begin,
    stack: Stack,
    /// Address of the word behind the bounds that the last step would have needed.
    beyond: Option<u64>,
    /// Address of the return address that the last step has returned.
    slot: u64,
}

impl Walk {
    pub(crate) fn new(registers: Registers, begin: Begin, stack: Stack) -> Self {
        Self {
            registers,
            begin,
            stack,
            beyond: None,
            slot: 0,
        }
    }

    /// Address up to which the stack would have to be readable for the last step to succeed; `None` if it
    /// failed for another reason, such as the end of the chain.
    pub(crate) fn beyond(&self) -> Option<u64> {
        self.beyond
    }

    /// A word of the stack; an address behind the bounds is noted in `beyond`.
    fn word(&mut self, address: u64) -> Option<u64> {
        let found = self.stack.word(address);
        if found.is_none() && address >= self.stack.low {
            self.beyond = Some(address);
        }
        found
    }

    /// Sets another upper bound of the stack.
    pub(crate) fn reach(&mut self, high: u64) {
        self.stack.high = high;
    }

    /// Steps to the caller and returns its registers, if they are known; `ip` is the return address, or the
    /// interrupted instruction behind a signal handler.
    pub(crate) fn step(&mut self) -> Option<Registers> {
        self.beyond = None;
        let Registers { ip, sp, bp } = self.registers;
        let at = match self.begin {
            Begin::Instruction => ip,
            Begin::Return => ip.wrapping_sub(1),
        };
        let rule = rule_at(at);
        let kind = rule.kind();
        if kind == UnwindKind::Signal as u32 {
            return self.interrupted();
        }
        let frame = if kind == UnwindKind::Stack as u32 {
            sp.wrapping_add_signed(rule.offset())
        } else if kind == UnwindKind::Frame as u32 {
            bp.wrapping_add_signed(rule.offset())
        } else if kind == UnwindKind::Kept as u32 {
            self.word(bp.wrapping_add_signed(rule.offset()))?
        } else {
            return None;
        };
        if frame <= sp {
            return None;
        }
        let callers = match rule.frame() {
            CallersFrame::Same => bp,
            CallersFrame::Below(bytes) => self.word(frame.wrapping_sub(u64::from(bytes)))?,
            CallersFrame::AtFrame => self.word(bp)?,
        };
        self.slot = frame.wrapping_sub(8);
        self.registers = Registers {
            ip: self.word(self.slot)?,
            sp: frame,
            bp: callers,
        };
        self.begin = Begin::Return;
        (self.registers.ip != 0).then_some(self.registers)
    }

    /// Registers in the kernel's signal frame. A handler on an alternate stack ends the walk.
    fn interrupted(&mut self) -> Option<Registers> {
        // In a `ucontext`: 40 bytes, then r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp,
        // rip.
        const BP: u64 = 40 + 10 * 8;
        const SP: u64 = 40 + 15 * 8;
        const IP: u64 = 40 + 16 * 8;
        let context = self.registers.sp;
        self.slot = context.wrapping_add(IP);
        let registers = Registers {
            ip: self.word(self.slot)?,
            sp: self.word(context.wrapping_add(SP))?,
            bp: self.word(context.wrapping_add(BP))?,
        };
        if registers.sp <= context {
            return None;
        }
        self.registers = registers;
        self.begin = Begin::Instruction;
        (registers.ip != 0).then_some(registers)
    }
}

/// Fills `out` with the return addresses above `registers`, innermost first, without those inside the
/// agent, and `slots` with their addresses on the stack; returns their number.
pub(crate) fn unwind(
    registers: Registers,
    begin: Begin,
    stack: Stack,
    out: &mut [u64],
    slots: &mut [u64],
) -> usize {
    // Frames of the agent that may be skipped.
    const OWN: usize = 16;
    let own = assembly::own_range();
    let mut walk = Walk::new(registers, begin, stack);
    let mut filled = 0;
    for _ in 0..out.len() + OWN {
        let Some(caller) = walk.step() else {
            break;
        };
        if (own[0]..own[1]).contains(&caller.ip) {
            continue;
        }
        let Some(place) = out.get_mut(filled) else {
            break;
        };
        *place = caller.ip;
        if let Some(place) = slots.get_mut(filled) {
            *place = walk.slot;
        }
        filled += 1;
    }
    filled
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A table of `N` rows.
    #[repr(C)]
    struct Table<const N: usize> {
        header: UnwindHeader,
        starts: [u32; N],
        rules: [UnwindRule; N],
    }

    impl<const N: usize> Table<N> {
        fn of(rows: [(u32, UnwindRule); N]) -> Self {
            Self {
                header: UnwindHeader {
                    count: N as u32,
                    reserved: 0,
                },
                starts: rows.map(|(start, _)| start),
                rules: rows.map(|(_, rule)| rule),
            }
        }

        fn address(&self) -> u64 {
            core::hint::black_box(&raw const *self) as u64
        }
    }

    fn registered(start: u64, length: u64, table: u64) {
        let command = Command {
            address: start,
            length,
            extra: table,
            base: start,
            ..Command::default()
        };
        assert!(register(&command).is_ok());
    }

    #[test]
    fn frames_of_every_kind_are_walked_and_doubt_ends_it() {
        const TEXT: u64 = 0x7777_0000_0000;
        let stack_rule = UnwindRule::new(UnwindKind::Stack, 16, CallersFrame::Same);
        let frame_rule = UnwindRule::new(UnwindKind::Frame, 16, CallersFrame::Below(16));
        let saved_rule = UnwindRule::new(UnwindKind::Kept, -8, CallersFrame::AtFrame);
        let table = Table::of([
            (0x100, stack_rule),
            (0x200, frame_rule),
            (0x300, saved_rule),
            (0x400, UnwindRule::SIGNAL),
            (0x500, stack_rule),
            (0x600, UnwindRule::STOP),
        ]);
        registered(TEXT, 0x1000, table.address());
        // Cells: the walk reads them by their addresses between writes.
        let words = [const { Cell::new(0_u64) }; 64];
        let base = words.as_ptr() as u64;
        let at = |index: usize| base + index as u64 * 8;
        // Leaf at 0x110: returns into 0x210, whose rbp is word 4.
        words[1].set(TEXT + 0x210);
        words[4].set(at(10));
        words[5].set(TEXT + 0x310);
        // 0x310: rbp is word 10, the frame address is kept at word 9.
        words[9].set(at(14));
        words[10].set(77);
        words[13].set(TEXT + 0x410);
        // Interrupted at 0x500: an instruction, not a return address.
        let context = 14;
        words[context + 15].set(88);
        words[context + 20].set(at(50));
        words[context + 21].set(TEXT + 0x500);
        words[51].set(TEXT + 0x610);
        let stack = Stack {
            low: base,
            high: at(64),
        };
        let begin = Registers {
            ip: TEXT + 0x110,
            sp: at(0),
            bp: at(4),
        };
        let mut out = [0; 16];
        let mut slots = [0; 16];
        let found = unwind(begin, Begin::Instruction, stack, &mut out, &mut slots);
        let expected = [0x210, 0x310, 0x410, 0x500, 0x610].map(|offset| TEXT + offset);
        assert_eq!(out[..found], expected);
        for (address, slot) in expected.iter().zip(slots) {
            assert_eq!(stack.word(slot), Some(*address));
        }
        let mut walk = Walk::new(begin, Begin::Instruction, stack);
        for (sp, bp) in [(at(2), at(4)), (at(6), at(10)), (at(14), 77), (at(50), 88)] {
            let step = walk.step().unwrap();
            assert_eq!((step.sp, step.bp), (sp, bp));
        }
        // Room for two.
        assert_eq!(
            unwind(begin, Begin::Instruction, stack, &mut out[..2], &mut []),
            2
        );
        // Memory beyond the bounds is not read.
        let short = Stack {
            low: base,
            high: at(5),
        };
        assert_eq!(
            unwind(begin, Begin::Instruction, short, &mut out, &mut []),
            1
        );
        // Only a frame that the bounds cut off asks for more: one without a caller does not,
        // however far the stack continues above it.
        let mut walk = Walk::new(begin, Begin::Instruction, short);
        assert!(walk.step().is_some() && walk.beyond().is_none());
        assert_eq!((walk.step(), walk.beyond()), (None, Some(at(5))));
        let mut walk = Walk::new(begin, Begin::Instruction, stack);
        while walk.step().is_some() {}
        assert_eq!(walk.beyond(), None);
        // Rules of a removed module are not used from the cache.
        forget(TEXT, TEXT + 1);
        assert_eq!(
            unwind(begin, Begin::Instruction, stack, &mut out, &mut []),
            0
        );
    }

    #[test]
    fn a_frame_that_does_not_grow_ends_the_walk() {
        const TEXT: u64 = 0x7777_1000_0000;
        let rule = UnwindRule::new(UnwindKind::Frame, 16, CallersFrame::Below(16));
        let table = Table::of([(0, rule)]);
        registered(TEXT, 0x1000, table.address());
        let words = [0_u64, TEXT + 8, 0, 0];
        let base = words.as_ptr() as u64;
        let registers = Registers {
            ip: TEXT + 1,
            sp: base + 16,
            bp: base,
        };
        let stack = Stack {
            low: base,
            high: base + 32,
        };
        let found = unwind(registers, Begin::Instruction, stack, &mut [0; 4], &mut []);
        assert_eq!(found, 0);
    }
}
