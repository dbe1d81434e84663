//! The registered trampolines: how threads enter and leave them.
//!
//! Signal handlers read the slots at any moment, so there is no lock but a version of each slot: see
//! [`membound_sync::version`].

use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

use membound_sync::version::{self, Changed};
use membound_wire::{
    AS_FOUND, Command, EDIT_BYTES, Found, Refusal, State, TableHeader, Tables, TrampolineEntry,
};

use crate::failure::Failure;
use crate::memory;
use crate::sys::{self, Errno};

const AREAS: usize = 4096;

/// A slot with a registered area. Debuggers read it in this layout.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    version: AtomicU64,
    code: AtomicU64,
    end: AtomicU64,
    table: AtomicU64,
    base: AtomicU64,
    text_start: AtomicU64,
    text_end: AtomicU64,
}

impl Slot {
    const fn free() -> Self {
        Self {
            version: AtomicU64::new(0),
            code: AtomicU64::new(0),
            end: AtomicU64::new(0),
            table: AtomicU64::new(0),
            base: AtomicU64::new(0),
            text_start: AtomicU64::new(0),
            text_end: AtomicU64::new(0),
        }
    }
}

static SLOTS: [Slot; AREAS] = [const { Slot::free() }; AREAS];
/// Number of slots that were ever used, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);

// With this note a debugger finds the slots, even without the agent's file: distances from these words to
// the slots and to the number of used ones, and the size of a slot in bytes.
global_asm!(
    ".pushsection .note.membound, \"a\", @note",
    ".p2align 2",
    ".long 9, 12, 1",
    ".asciz \"membound\"",
    ".p2align 2",
    ".long {slots} - .",
    ".long {used} - .",
    ".long {bytes}",
    ".popsection",
    slots = sym SLOTS,
    used = sym USED,
    bytes = const size_of::<Slot>(),
);

/// A consistent copy of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    /// First byte of the trampolines, and the byte behind their last one.
    pub(crate) code: u64,
    pub(crate) end: u64,
    /// Address of the [`TableHeader`].
    table: u64,
    /// Address that the table's original addresses are relative to.
    base: u64,
    /// The first original address with an entry, and an address behind the last.
    text_start: u64,
    text_end: u64,
}

fn snapshot(slot: &Slot) -> Option<Area> {
    let copy = || Area {
        code: slot.code.load(Ordering::Relaxed),
        end: slot.end.load(Ordering::Relaxed),
        table: slot.table.load(Ordering::Relaxed),
        base: slot.base.load(Ordering::Relaxed),
        text_start: slot.text_start.load(Ordering::Relaxed),
        text_end: slot.text_end.load(Ordering::Relaxed),
    };
    loop {
        match version::read(&slot.version, copy) {
            Ok(area) => return (area.end != 0).then_some(area),
            // It is no area yet, or none any more.
            Err(Changed::Now) => return None,
            Err(Changed::Meanwhile) => {}
        }
    }
}

/// Changes a slot, unless another thread does so now or it is not eligible.
fn change(slot: &Slot, area: Area, is_eligible: impl Fn(&Slot) -> bool) -> bool {
    let store = || {
        slot.code.store(area.code, Ordering::Relaxed);
        slot.end.store(area.end, Ordering::Relaxed);
        slot.table.store(area.table, Ordering::Relaxed);
        slot.base.store(area.base, Ordering::Relaxed);
        slot.text_start.store(area.text_start, Ordering::Relaxed);
        slot.text_end.store(area.text_end, Ordering::Relaxed);
    };
    version::change(&slot.version, || is_eligible(slot), store)
}

fn used() -> impl Iterator<Item = &'static Slot> {
    SLOTS.iter().take(USED.load(Ordering::Acquire))
}

/// Registers the trampolines that `command` describes.
pub(crate) fn register(command: &Command) -> Result<(), Failure> {
    let end = command
        .address
        .checked_add(command.length)
        .ok_or_else(Failure::malformed)?;
    if command.extra == 0 || command.length == 0 {
        return Err(Failure::malformed());
    }
    let mut area = Area {
        code: command.address,
        end,
        table: command.extra,
        base: command.base,
        text_start: 0,
        text_end: 0,
    };
    let tables = area.tables().ok_or_else(Failure::malformed)?;
    if let Some(last) = tables.entries().checked_sub(1) {
        // An instruction has at most 15 bytes.
        area.text_start = tables.entry(0).map_or(0, |place| area.original(place));
        area.text_end = tables
            .entry(last)
            .map_or(0, |place| area.original(place) + 15);
    }
    for (index, slot) in SLOTS.iter().enumerate() {
        if change(slot, area, |slot| slot.end.load(Ordering::Relaxed) == 0) {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            return Ok(());
        }
    }
    Err(Failure::new(Errno::ENOSPC, Refusal::AreasFull))
}

/// Removes the trampolines whose code begins at `code`.
pub(crate) fn forget(code: u64) {
    let free = Area {
        code: 0,
        end: 0,
        table: 0,
        base: 0,
        text_start: 0,
        text_end: 0,
    };
    let is_of_code = |slot: &Slot| {
        slot.end.load(Ordering::Relaxed) != 0 && slot.code.load(Ordering::Relaxed) == code
    };
    for slot in used() {
        change(slot, free, is_of_code);
    }
}

/// The area whose trampolines contain `ip`.
pub(crate) fn find(ip: u64) -> Option<Area> {
    used()
        .filter_map(snapshot)
        .find(|area| (area.code..area.end).contains(&ip))
}

/// True if a thread at `ip` is in a trampoline that may lead to a system call hooked by the agent.
pub(crate) fn may_lead_to_call(ip: u64) -> bool {
    find(ip).is_some_and(|area| area.header().hooks != 0)
}

/// True if text that has trampolines lies in `start..end`.
pub(crate) fn patched_text_in(start: u64, end: u64) -> bool {
    used()
        .filter_map(snapshot)
        .any(|area| area.text_start < end && start < area.text_end)
}

/// True if text that has trampolines is not mapped any more.
pub(crate) fn any_without_text() -> bool {
    used()
        .filter_map(snapshot)
        .any(|area| area.text_end != 0 && !sys::readable(area.text_start))
}

/// Number of the system call that the instruction at `ip` makes, in the text or displaced in a trampoline;
/// `None` if unknown.
pub(crate) fn call_at(ip: u64) -> Option<u64> {
    let number = match find(ip) {
        Some(area) => area.call_displaced(ip),
        None => used()
            .filter_map(snapshot)
            .find_map(|area| area.call_at(ip)),
    };
    number.map(u64::from)
}

/// Address in a trampoline of the original instruction at `ip`, if it has an entry.
pub(crate) fn entrance(ip: u64) -> Option<u64> {
    used()
        .filter_map(snapshot)
        .filter(|area| (area.text_start..area.text_end).contains(&ip))
        .find_map(|area| area.entrance(ip))
}

/// Where a thread continues that would execute the original instruction at `ip`, if that is overwritten now.
/// The first instruction of a group never counts as overwritten, since the jump there leads on by itself.
///
/// An area may be registered while its text is still original, or is another plan's, so the text itself
/// decides: before `ip` there must be a jump into the area, or the trap that precedes one. Any byte of
/// another plan's jump may look like that trap, so jumps are looked for first.
pub(crate) fn inside(ip: u64) -> Option<u64> {
    // Most handlers return to text without an entry.
    entrance(ip)?;
    loop {
        let first_bytes = first_bytes_before(ip);
        let entrance = inside_now(ip);
        // A trap that became a jump, or a jump that became a trap, may have been taken for neither: look
        // again.
        if first_bytes_before(ip) == first_bytes {
            return entrance;
        }
    }
}

/// Most bytes from an overwritten instruction back to the first byte of its group.
const MAX_DISTANCE_BYTES: usize = EDIT_BYTES - 1;

/// Addresses before `ip` at which a group may begin that overwrites the instruction at `ip`.
fn starts_before(ip: u64) -> impl Iterator<Item = u64> {
    (1..=MAX_DISTANCE_BYTES as u64).filter_map(move |distance| ip.checked_sub(distance))
}

/// The bytes at these addresses if they are in text with entries, else 0.
fn first_bytes_before(ip: u64) -> [u8; MAX_DISTANCE_BYTES] {
    let mut bytes = [0; MAX_DISTANCE_BYTES];
    for (byte, start) in bytes.iter_mut().zip(starts_before(ip)) {
        if entrance(start).is_some() {
            *byte = text_byte(start);
        }
    }
    bytes
}

/// As [`inside`], for text that does not change meanwhile.
fn inside_now(ip: u64) -> Option<u64> {
    let starts =
        |area: Area| starts_before(ip).filter(move |&start| area.entrance(start).is_some());
    let areas = || {
        used()
            .filter_map(snapshot)
            .filter(|area| (area.text_start..area.text_end).contains(&ip))
            .filter_map(|area| Some((area, area.entrance(ip)?)))
    };
    let mut with_jump = areas().filter(|(area, _)| {
        starts(*area)
            .filter_map(jump_target)
            .any(|target| (area.code..area.end).contains(&target))
    });
    let mut with_trap = areas().filter(|(area, _)| starts(*area).any(holds_int3));
    let (_, entrance) = with_jump.next().or_else(|| with_trap.next())?;
    Some(entrance)
}

/// Target of the jump at `start` in mapped text, if there is one.
fn jump_target(start: u64) -> Option<u64> {
    const JUMP: u8 = 0xe9;
    if text_byte(start) != JUMP {
        return None;
    }
    let displacement = [1, 2, 3, 4].map(|distance| text_byte(start + distance));
    let displacement = i64::from(i32::from_le_bytes(displacement));
    let behind = start.wrapping_add(EDIT_BYTES as u64);
    Some(behind.wrapping_add_signed(displacement))
}

/// True if a trap is at `start` in mapped text.
pub(crate) fn holds_int3(start: u64) -> bool {
    const INT3: u8 = 0xcc;
    text_byte(start) == INT3
}

/// The byte at an address in mapped text that has an entry, or in the jump that begins there. The control
/// thread may be changing it, and what is read afterwards must not be read before it: see [`inside`].
fn text_byte(address: u64) -> u8 {
    // SAFETY: an instruction with an entry lies in mapped text, and a jump is mapped with its first byte.
    let byte = unsafe { AtomicU8::from_ptr(address as *mut u8) };
    // Text is read-only memory, where an atomic load must be relaxed.
    let value = byte.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// Registers of the original program at one byte of a trampoline, and where it can continue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Original {
    /// The registers that the original program would have.
    pub(crate) state: State,
    /// Where a thread with these registers continues; `None` if it can only continue as it was found.
    pub(crate) resume: Option<u64>,
}

impl Area {
    fn header(&self) -> TableHeader {
        // SAFETY: the launcher mapped the table before it registered the area, and unmaps it
        // after it was forgotten.
        unsafe { memory::get(self.table as usize) }
    }

    /// The tables, valid only while the area is registered: to be used at once.
    fn tables(&self) -> Option<Tables<'static>> {
        let length = usize::try_from(self.header().tables_bytes()).ok()?;
        // SAFETY: as for the header, which has the tables' length; they are never written.
        let bytes = unsafe { core::slice::from_raw_parts(self.table as *const u8, length) };
        Tables::new(bytes)
    }

    /// The table's record for the trampoline byte at `ip`, with the tables.
    fn found(&self, ip: u64) -> Option<(Tables<'static>, Found)> {
        let byte = u32::try_from(ip.checked_sub(self.code)?).ok()?;
        let tables = self.tables()?;
        let found = tables.find(byte)?;
        Some((tables, found))
    }

    fn original(&self, place: TrampolineEntry) -> u64 {
        self.base.wrapping_add(u64::from(place.original))
    }

    fn entrance(&self, ip: u64) -> Option<u64> {
        let offset = u32::try_from(ip.checked_sub(self.base)?).ok()?;
        let place = self.tables()?.entrance(offset)?;
        Some(self.code.wrapping_add(u64::from(place.code)))
    }

    fn call_at(&self, ip: u64) -> Option<u32> {
        let original = u32::try_from(ip.checked_sub(self.base)?).ok()?;
        self.tables()?.call_at(original)
    }

    /// As [`Self::call_at`], for an instruction in a trampoline.
    fn call_displaced(&self, ip: u64) -> Option<u32> {
        let (tables, found) = self.found(ip)?;
        tables.call_at(found.place.original)
    }

    /// The `xmm` registers that a thread at `state` in a trampoline has saved on its stack: numbers and
    /// addresses.
    pub(crate) fn vectors_of(&self, state: &State) -> impl Iterator<Item = (u8, u64)> + use<> {
        let found = self.found(state.ip);
        let found = found.map(|(tables, found)| tables.undos(&found));
        let stack = state.stack_pointer();
        let vectors = found.into_iter().flatten().filter_map(|undo| undo.vector());
        vectors.map(move |(number, above)| (number, stack.wrapping_add_signed(i64::from(above))))
    }

    /// The original program's registers for a thread at `state` in a trampoline.
    pub(crate) fn original_of(&self, state: &State) -> Option<Original> {
        let (tables, found) = self.found(state.ip)?;
        let mut original = state.undone(tables.undos(&found), |address| {
            // SAFETY: the table describes stack words that the trampoline has written.
            Some(unsafe { memory::get(address as usize) })
        })?;
        original.ip = self.original(found.place);
        let place = self.code.wrapping_add(u64::from(found.place.code));
        let resume = (found.step.resume != AS_FOUND)
            .then(|| place.wrapping_add(u64::from(found.step.resume)));
        Some(Original {
            state: original,
            resume,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    const JUMP: u8 = 0xe9;
    const NOP: u8 = 0x90;

    /// Tables with entries for the instructions at these distances from the text's start, and
    /// nothing else; the trampoline of each is as far from the code's start.
    fn tables(entries: &[u32]) -> u64 {
        let header_bytes = size_of::<TableHeader>() as u64;
        let count = entries.len() as u64;
        let places_bytes = count * size_of::<TrampolineEntry>() as u64;
        let header = TableHeader {
            places_offset: header_bytes,
            places: count,
            entries_offset: header_bytes + places_bytes,
            entries: count,
            shapes_offset: header_bytes,
            steps_offset: header_bytes,
            undos_offset: header_bytes,
            calls_offset: header_bytes,
            ..TableHeader::default()
        };
        let words = header.words();
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for at in entries {
            bytes.extend([*at, *at, 0].iter().flat_map(|word| word.to_ne_bytes()));
        }
        for (index, _) in (0_u32..).zip(entries) {
            bytes.extend(index.to_ne_bytes());
        }
        // Whole words, so that the header is aligned.
        let mut aligned = Vec::with_capacity(bytes.len().div_ceil(8));
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            aligned.push(u64::from_ne_bytes(word));
        }
        Box::leak(aligned.into_boxed_slice()).as_ptr() as u64
    }

    /// Text of nops, which the agent reads by its address while the test changes it.
    fn nops() -> &'static [AtomicU8; 32] {
        Box::leak(Box::new([const { AtomicU8::new(NOP) }; 32]))
    }

    /// Writes a jump or a trap into text, followed by the displacement of a jump.
    fn write_edit(text: &[AtomicU8], first: u8, displacement: i32) {
        for (byte, new) in text[1..].iter().zip(displacement.to_le_bytes()) {
            byte.store(new, Ordering::Relaxed);
        }
        text[0].store(first, Ordering::Release);
    }

    fn area(code: u64, text: &[AtomicU8], entries: &[u32]) -> Command {
        Command {
            address: code,
            length: 0x100,
            extra: tables(entries),
            base: text.as_ptr() as u64,
            ..Command::default()
        }
    }

    /// An older plan has an entry for the same instruction, in a group that began elsewhere: a
    /// thread that was led into its trampoline, or left where it was, would execute the middle
    /// of the newer plan's jump.
    #[test]
    fn a_thread_inside_a_group_continues_by_the_plan_of_its_jump() {
        let text = nops();
        // The older plan's trampolines lie where no jump from here leads; the newer one's jump
        // has bytes that look like a jump and a trap where the older one's group began.
        let older = 0x7000_0000;
        let displacement = i32::from_le_bytes([0x10, JUMP, 0xcc, 0x10]);
        write_edit(&text[8..], JUMP, displacement);
        let behind = text.as_ptr() as u64 + 13;
        let newer = behind.wrapping_add_signed(i64::from(displacement));
        for plans in [[older, newer], [newer, older]] {
            for code in plans {
                // The older one's group: 10, 12 and 15. The newer one's: 8, 10 and 12.
                let entries: &[u32] = if code == older {
                    &[10, 12, 15]
                } else {
                    &[8, 10, 12]
                };
                register(&area(code, &text[..], entries)).unwrap();
            }
            let at = |distance: u64| text.as_ptr() as u64 + distance;
            assert_eq!(inside(at(10)), Some(newer + 10));
            assert_eq!(inside(at(12)), Some(newer + 12));
            // Behind the newer jump, where the older group continued, the text is original.
            assert_eq!(inside(at(15)), None);
            // The jump at a group's start leads on by itself.
            assert_eq!(inside(at(8)), None);
            plans.into_iter().for_each(forget);
            assert_eq!(inside(at(10)), None);
        }
    }

    /// A thread that slept in a handler while its group's trap was put in place may wake while the
    /// trap becomes the jump.
    #[test]
    fn a_thread_inside_a_group_continues_while_the_trap_becomes_a_jump() {
        use std::thread;

        const TRAP: u8 = 0xcc;
        // Miri needs few rounds to detect a data race, but long for each.
        const ROUNDS: usize = if cfg!(miri) { 10 } else { 20_000 };
        let text = nops();
        write_edit(&text[8..], TRAP, 0x100);
        let base = text.as_ptr() as u64;
        let code = base + 13 + 0x100;
        register(&area(code, &text[..], &[8, 10])).unwrap();
        let round = AtomicUsize::new(0);
        let first = &text[8];
        let mut missed = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                for wanted in 1..=ROUNDS {
                    while round.load(Ordering::Acquire) < wanted {
                        core::hint::spin_loop();
                    }
                    first.store(JUMP, Ordering::Release);
                }
            });
            for now in 1..=ROUNDS {
                first.store(TRAP, Ordering::Release);
                round.store(now, Ordering::Release);
                while first.load(Ordering::Acquire) == TRAP {
                    missed += usize::from(inside(base + 10) != Some(code + 10));
                }
            }
        });
        assert_eq!(missed, 0);
        forget(code);
    }
}
