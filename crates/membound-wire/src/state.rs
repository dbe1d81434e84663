//! Computes the original program's registers from those of a thread in a trampoline or in the agent.
//!
//! A pure evaluation of the tables that [`crate::table`] describes, for both sides: the agent does it for
//! signals, the launcher for threads that it inspects from outside.

use crate::table::{Call, Shape, Step, TableHeader, TrampolineEntry, Undo, UndoKind};

/// Number of the stack pointer among the general registers.
pub const STACK_POINTER: usize = 4;

/// General registers, instruction pointer and flags of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// By their numbers in the instruction set: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15.
    pub general: [u64; 16],
    /// Instruction pointer (rip).
    pub ip: u64,
    /// The flags (rflags).
    pub flags: u64,
}

/// General registers by their numbers, in the order in which a stub of the agent pushes them, lowest
/// address first. Above them are the flags, the return address in the trampoline, and the words that the
/// trampoline had pushed before.
pub const CALL_FRAME: [u8; 15] = [15, 14, 13, 12, 3, 11, 10, 9, 8, 7, 6, 2, 1, 0, 5];
/// Offset of the flags in such a frame, in bytes.
pub const CALL_FRAME_FLAGS: u64 = CALL_FRAME.len() as u64 * 8;
/// Offset of the return address in such a frame, in bytes.
pub const CALL_FRAME_RETURN: u64 = CALL_FRAME_FLAGS + 8;
/// Offset of the stub's frame pointer, where it has pushed rbp, in bytes.
pub const CALL_FRAME_BASE: u64 = CALL_FRAME_FLAGS - 8;

impl State {
    fn register(&self, number: u8) -> Option<u64> {
        self.general.get(usize::from(number)).copied()
    }

    fn set_register(&mut self, number: u8, value: u64) {
        if let Some(register) = self.general.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    /// The stack pointer (rsp).
    #[must_use]
    pub fn stack_pointer(&self) -> u64 {
        self.general[STACK_POINTER]
    }

    fn set_arithmetic_flags(&mut self, image: u64) {
        // CF, PF, AF, ZF, SF, OF.
        const ARITHMETIC: u64 = 0x8d5;
        self.flags = self.flags & !ARITHMETIC | image & ARITHMETIC;
    }

    /// Sets the arithmetic flags from `image`, in the form that `lahf` and `seto al` give.
    fn set_flags_from_halves(&mut self, image: u64) {
        const OVERFLOW: u64 = 0x800;
        let overflow = if image & 1 != 0 { OVERFLOW } else { 0 };
        self.set_arithmetic_flags(image >> 8 & 0xff | overflow);
    }

    /// Applies `undo`; `found` is the state before the first undo.
    fn undo(&mut self, undo: Undo, found: &Self, load: impl Fn(u64) -> Option<u64>) -> Option<()> {
        let place = self
            .stack_pointer()
            .wrapping_add_signed(i64::from(undo.value));
        let kind = |wanted: UndoKind| undo.kind == wanted as u8;
        if kind(UndoKind::Load) {
            self.set_register(undo.register, load(place)?);
        } else if kind(UndoKind::LoadFlags) {
            self.set_arithmetic_flags(load(place)?);
        } else if kind(UndoKind::FlagsFromRegister) {
            // The register's value before all undos: an earlier undo may have restored rax.
            if let Some(image) = found.register(undo.register) {
                self.set_flags_from_halves(image);
            }
        } else if kind(UndoKind::FlagsFromStack) {
            self.set_flags_from_halves(load(place)?);
        } else if kind(UndoKind::Copy) {
            if let Some(copy) = found.register(undo.value as u8) {
                self.set_register(undo.register, copy);
            }
        } else if kind(UndoKind::Stack) {
            self.general[STACK_POINTER] = place;
        }
        Some(())
    }

    /// The state after all `undos`; `load` reads the stack. `None` if a word of the stack cannot be read.
    #[must_use]
    pub fn undone(
        &self,
        undos: impl Iterator<Item = Undo>,
        load: impl Fn(u64) -> Option<u64>,
    ) -> Option<Self> {
        let mut state = *self;
        for undo in undos {
            state.undo(undo, self, &load)?;
        }
        Some(state)
    }

    /// The registers that a trampoline had when it called the agent, as if the call had just returned.
    /// `self` is the state of the thread inside the agent, `frame` the address of the stub's frame.
    /// Registers that the stub has not pushed yet, or has popped already, are the thread's.
    #[must_use]
    pub fn of_call(&self, frame: u64, load: impl Fn(u64) -> Option<u64>) -> Option<Self> {
        let saved = |offset: u64, found: u64| {
            let place = frame.wrapping_add(offset);
            if place < self.stack_pointer() {
                Some(found)
            } else {
                load(place)
            }
        };
        let mut state = *self;
        for (offset, &register) in (0..).step_by(8).zip(&CALL_FRAME) {
            let found = self.register(register)?;
            state.set_register(register, saved(offset, found)?);
        }
        state.flags = saved(CALL_FRAME_FLAGS, self.flags)?;
        state.ip = saved(CALL_FRAME_RETURN, self.ip)?;
        state.general[STACK_POINTER] = frame.wrapping_add(CALL_FRAME_RETURN + 8);
        Some(state)
    }
}

/// A table record that can be read from bytes.
trait Item: Sized {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Option<Self>;
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*field))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*field))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*field))
}

impl Item for TrampolineEntry {
    const BYTES: usize = size_of::<Self>();

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            code: word(bytes, 0)?,
            original: word(bytes, 4)?,
            shape: word(bytes, 8)?,
        })
    }
}

impl Item for Shape {
    const BYTES: usize = size_of::<Self>();

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            first: word(bytes, 0)?,
            count: word(bytes, 4)?,
        })
    }
}

impl Item for Step {
    const BYTES: usize = size_of::<Self>();

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            offset: half(bytes, 0)?,
            resume: half(bytes, 2)?,
            undo: half(bytes, 4)?,
            undos: half(bytes, 6)?,
        })
    }
}

impl Item for Undo {
    const BYTES: usize = size_of::<Self>();

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            kind: *bytes.first()?,
            register: *bytes.get(1)?,
            reserved: half(bytes, 2)?,
            value: word(bytes, 4)?.cast_signed(),
        })
    }
}

impl Item for Call {
    const BYTES: usize = size_of::<Self>();

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            original: word(bytes, 0)?,
            number: word(bytes, 4)?,
        })
    }
}

impl Item for u32 {
    const BYTES: usize = 4;

    fn read(bytes: &[u8]) -> Option<Self> {
        word(bytes, 0)
    }
}

impl TableHeader {
    /// Reads the header from the first bytes of tables; `None` if there are too few.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            places_offset: long(bytes, 0)?,
            places: long(bytes, 8)?,
            shapes_offset: long(bytes, 16)?,
            shapes: long(bytes, 24)?,
            steps_offset: long(bytes, 32)?,
            steps: long(bytes, 40)?,
            undos_offset: long(bytes, 48)?,
            undos: long(bytes, 56)?,
            entries_offset: long(bytes, 64)?,
            entries: long(bytes, 72)?,
            calls_offset: long(bytes, 80)?,
            calls: long(bytes, 88)?,
            hooks: long(bytes, 96)?,
        })
    }

    /// Length of all tables in bytes, including this header.
    #[must_use]
    pub fn tables_bytes(&self) -> u64 {
        let parts = [
            (
                self.places_offset,
                self.places,
                size_of::<TrampolineEntry>(),
            ),
            (self.shapes_offset, self.shapes, size_of::<Shape>()),
            (self.steps_offset, self.steps, size_of::<Step>()),
            (self.undos_offset, self.undos, size_of::<Undo>()),
            (self.entries_offset, self.entries, size_of::<u32>()),
            (self.calls_offset, self.calls, size_of::<Call>()),
        ];
        let ends = parts.map(|(offset, count, bytes)| {
            offset.saturating_add(count.saturating_mul(bytes as u64))
        });
        ends.into_iter().fold(size_of::<Self>() as u64, u64::max)
    }
}

/// The tables of one trampoline area.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    bytes: &'a [u8],
    header: TableHeader,
}

/// A place in a trampoline, and the step for one of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The place that has the byte.
    pub place: TrampolineEntry,
    /// The step that is valid at the byte.
    pub step: Step,
}

impl<'a> Tables<'a> {
    /// Tables in memory, beginning with their header; `None` if the header is incomplete.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        Some(Self {
            bytes,
            header: TableHeader::read(bytes)?,
        })
    }

    fn item<T: Item>(&self, offset: u64, index: u64) -> Option<T> {
        let at = offset.checked_add(index.checked_mul(T::BYTES as u64)?)?;
        T::read(self.bytes.get(usize::try_from(at).ok()?..)?)
    }

    /// Finds place and step of the byte at offset `byte` of the code.
    #[must_use]
    pub fn find(&self, byte: u32) -> Option<Found> {
        let header = &self.header;
        let after = partition(header.places, |index| {
            self.item::<TrampolineEntry>(header.places_offset, index)
                .is_some_and(|place| place.code <= byte)
        });
        let place: TrampolineEntry = self.item(header.places_offset, after.checked_sub(1)?)?;
        if u64::from(place.shape) >= header.shapes {
            return None;
        }
        let shape: Shape = self.item(header.shapes_offset, u64::from(place.shape))?;
        let first = u64::from(shape.first);
        if first + u64::from(shape.count) > header.steps {
            return None;
        }
        let inside = byte - place.code;
        let after = partition(u64::from(shape.count), |index| {
            self.item::<Step>(header.steps_offset, first + index)
                .is_some_and(|step| u32::from(step.offset) <= inside)
        });
        let step = self.item(header.steps_offset, first + after.checked_sub(1)?)?;
        Some(Found { place, step })
    }

    /// Offset of the displaced instruction from the start of the place of `found`; 0 if no body precedes
    /// it.
    #[must_use]
    pub fn displaced(&self, found: &Found) -> Option<u16> {
        let shape: Shape = self.item(self.header.shapes_offset, u64::from(found.place.shape))?;
        let last = u64::from(shape.first) + u64::from(shape.count).checked_sub(1)?;
        let step: Step = self.item(self.header.steps_offset, last)?;
        Some(step.resume)
    }

    /// The undos that restore the original registers at `found`, in order.
    pub fn undos(&self, found: &Found) -> impl Iterator<Item = Undo> + use<'a> {
        let tables = *self;
        let first = u64::from(found.step.undo);
        (first..first + u64::from(found.step.undos))
            .take_while(move |&index| index < tables.header.undos)
            .map_while(move |index| tables.item(tables.header.undos_offset, index))
    }

    /// Number of original instructions that begin inside overwritten bytes.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.header.entries
    }

    /// The place at which the original instruction with this index among them goes on.
    #[must_use]
    pub fn entry(&self, index: u64) -> Option<TrampolineEntry> {
        let place: u32 = self.item(self.header.entries_offset, index)?;
        (u64::from(place) < self.header.places)
            .then(|| self.item(self.header.places_offset, u64::from(place)))?
    }

    /// The place of the original instruction at `original`, if it begins inside overwritten bytes.
    #[must_use]
    pub fn entrance(&self, original: u32) -> Option<TrampolineEntry> {
        let after = partition(self.header.entries, |index| {
            self.entry(index)
                .is_some_and(|place| place.original < original)
        });
        let place = (after < self.header.entries).then(|| self.entry(after))??;
        (place.original == original).then_some(place)
    }

    /// Number of system calls with a known number.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.header.calls
    }

    /// The system call with this index, in the order of addresses.
    #[must_use]
    pub fn call(&self, index: u64) -> Option<Call> {
        (index < self.header.calls).then(|| self.item(self.header.calls_offset, index))?
    }

    /// Number of the system call that the instruction at `original` makes, if it is known.
    #[must_use]
    pub fn call_at(&self, original: u32) -> Option<u32> {
        let after = partition(self.header.calls, |index| {
            self.call(index)
                .is_some_and(|call| call.original < original)
        });
        let call = self.call(after)?;
        (call.original == original).then_some(call.number)
    }
}

/// The first index below `count` for which `before` is false; `before` must be true for a prefix only.
fn partition(count: u64, before: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const RSP: usize = STACK_POINTER;

    fn undone(kind: UndoKind, register: u8, value: i32, from: &State) -> State {
        let undo = Undo {
            kind: kind as u8,
            register,
            reserved: 0,
            value,
        };
        let undos = core::iter::once(undo);
        from.undone(undos, |address| Some(address + 1)).unwrap()
    }

    fn empty() -> State {
        let mut state = State {
            flags: 0x202,
            ..State::default()
        };
        state.general[RSP] = 0x1000;
        state
    }

    #[test]
    fn undos_give_registers_back() {
        assert_eq!(undone(UndoKind::Load, 3, 8, &empty()).general[3], 0x1009);
        assert_eq!(undone(UndoKind::Load, 13, -8, &empty()).general[13], 0xff9);
        assert_eq!(
            undone(UndoKind::Stack, 0, 128, &empty()).general[RSP],
            0x1080
        );
        let mut copied = empty();
        copied.general[6] = 77;
        assert_eq!(undone(UndoKind::Copy, 8, 6, &copied).general[8], 77);
    }

    #[test]
    fn flags_come_back_in_all_forms() {
        // SF, ZF and CF by lahf, OF by seto.
        let mut halves = empty();
        halves.general[0] = 0xc301;
        let flags = undone(UndoKind::FlagsFromRegister, 0, 0, &halves).flags;
        assert_eq!(flags, 0x202 | 0xc1 | 0x800);
        // The image at 0x1000 is 0x1001: CF and a bit that is not arithmetic.
        assert_eq!(undone(UndoKind::LoadFlags, 0, 0, &empty()).flags, 0x203);
    }

    #[test]
    fn a_stack_that_cannot_be_read_leaves_no_half_truth() {
        let undo = Undo {
            kind: UndoKind::Load as u8,
            ..Undo::default()
        };
        assert_eq!(empty().undone(core::iter::once(undo), |_| None), None);
    }

    #[test]
    fn a_call_is_undone_where_it_has_saved_and_no_further() {
        let mut inside = empty();
        for (number, register) in inside.general.iter_mut().enumerate() {
            *register = number as u64;
        }
        // The frame is to begin at 0x8000 and is pushed down to rcx, number 12 of it.
        inside.general[RSP] = 0x8000 + 12 * 8;
        let state = inside.of_call(0x8000, Some).unwrap();
        assert_eq!(state.general[15], 15);
        assert_eq!(state.general[1], 0x8000 + 12 * 8);
        assert_eq!(state.general[5], 0x8000 + CALL_FRAME_BASE);
        assert_eq!(state.flags, 0x8000 + 120);
        assert_eq!(state.ip, 0x8000 + 128);
        assert_eq!(state.general[RSP], 0x8000 + 136);
    }

    #[test]
    fn partition_finds_the_first_that_is_not_before() {
        let sorted = [1, 3, 3, 7];
        for (wanted, index) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (7, 3), (8, 4)] {
            assert_eq!(partition(4, |at| sorted[at as usize] < wanted), index);
        }
    }

    /// Two places, the second with a body; shapes, steps, undos, entries and calls follow each other.
    fn tables() -> Vec<u8> {
        let mut body: Vec<u8> = Vec::new();
        let start = size_of::<TableHeader>();
        let mut offsets = [start; 6];
        for word in [0_u32, 0x40, 0, 7, 0x44, 1] {
            body.extend(word.to_ne_bytes());
        }
        offsets[1] = start + body.len();
        for word in [0_u32, 1, 1, 2] {
            body.extend(word.to_ne_bytes());
        }
        offsets[2] = start + body.len();
        for field in [0_u16, 0, 0, 0, 0, 0, 0, 0, 5, 9, 0, 1] {
            body.extend(field.to_ne_bytes());
        }
        offsets[3] = start + body.len();
        body.extend([UndoKind::Stack as u8, 4, 0, 0]);
        body.extend(128_i32.to_ne_bytes());
        offsets[4] = start + body.len();
        for word in [0_u32, 1] {
            body.extend(word.to_ne_bytes());
        }
        offsets[5] = start + body.len();
        for word in [0x10_u32, 7, 0x44, 35] {
            body.extend(word.to_ne_bytes());
        }
        let mut bytes = Vec::new();
        for (offset, count) in offsets.into_iter().zip([2_u64, 2, 3, 1, 2, 2]) {
            bytes.extend((offset as u64).to_ne_bytes());
            bytes.extend(count.to_ne_bytes());
        }
        bytes.extend(0_u64.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn each_byte_has_its_place_and_step() {
        let bytes = tables();
        let tables = Tables::new(&bytes).unwrap();
        let header = TableHeader::read(&bytes).unwrap();
        assert_eq!(header.tables_bytes(), bytes.len() as u64);
        let at = |byte| {
            let found = tables.find(byte).unwrap();
            let undos = tables.undos(&found).count();
            (found.place.original, found.step.resume, undos)
        };
        assert_eq!(at(0), (0x40, 0, 0));
        assert_eq!(at(6), (0x40, 0, 0));
        assert_eq!(at(7), (0x44, 0, 0));
        assert_eq!(at(11), (0x44, 0, 0));
        assert_eq!(at(12), (0x44, 9, 1));
        assert_eq!(at(4000), (0x44, 9, 1));
        assert_eq!(tables.entrance(0x44).map(|place| place.code), Some(7));
        assert_eq!(tables.entrance(0x42), None);
        let numbers = [0xf, 0x10, 0x11, 0x44, 0x45].map(|at| tables.call_at(at));
        assert_eq!(numbers, [None, Some(7), None, Some(35), None]);
    }

    #[test]
    fn cut_tables_are_unknown_and_nothing_else() {
        let bytes = tables();
        for length in 0..bytes.len() {
            let Some(cut) = Tables::new(&bytes[..length]) else {
                continue;
            };
            for byte in 0..20 {
                let found = cut.find(byte);
                let _ = found.map(|found| cut.undos(&found).count());
            }
            let _ = (cut.entrance(0x44), cut.call_at(0x44));
        }
    }
}
