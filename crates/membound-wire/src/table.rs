//! Tables from a place in a trampoline back to the original code.
//!
//! A trampoline consists of **places**: for each displaced instruction its body (if any) and the
//! instruction itself, and at the end the jump back. A place names its original address. Its **shape**
//! (shared by all places with the same layout) says for each stretch of its bytes how to restore the
//! original registers (**undo**) and where execution goes on with them.
//!
//! For a thread at byte `b` of the code: take the last place with `code <= b`; of its shape's steps the
//! last with `offset <= b - code`; apply its undos in order. The thread's state is then that of the
//! original program at `original`, and it may go on at `code + resume`.

/// Head of the tables of one mapped trampoline area. Offsets are in bytes from this header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TableHeader {
    /// [`TrampolineEntry`]s, sorted by `code`.
    pub places_offset: u64,
    /// Number of places.
    pub places: u64,
    /// [`Shape`]s.
    pub shapes_offset: u64,
    /// Number of shapes.
    pub shapes: u64,
    /// [`Step`]s.
    pub steps_offset: u64,
    /// Number of steps.
    pub steps: u64,
    /// [`Undo`]s.
    pub undos_offset: u64,
    /// Number of undos.
    pub undos: u64,
    /// `u32` indices of the places at which a thread inside overwritten text goes on, sorted by `original`:
    /// one for every original instruction that begins inside overwritten bytes (the first of a group
    /// included).
    pub entries_offset: u64,
    /// Number of entries.
    pub entries: u64,
    /// [`Call`]s, sorted by `original`: system calls that are made again when a signal of the agent has
    /// interrupted them.
    pub calls_offset: u64,
    /// Number of calls.
    pub calls: u64,
    /// 1 if trampolines may lead to system calls that the agent hooks, else 0.
    pub hooks: u64,
}

impl TableHeader {
    /// The fields in their order in memory.
    #[must_use]
    pub const fn words(&self) -> [u64; 13] {
        [
            self.places_offset,
            self.places,
            self.shapes_offset,
            self.shapes,
            self.steps_offset,
            self.steps,
            self.undos_offset,
            self.undos,
            self.entries_offset,
            self.entries,
            self.calls_offset,
            self.calls,
            self.hooks,
        ]
    }
}

/// A system call in the original text whose number is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Call {
    /// Address of the `syscall` instruction, relative to the module's `base`.
    pub original: u32,
    /// The system call's number.
    pub number: u32,
}

/// One displaced instruction with its body, or the jump back at a trampoline's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TrampolineEntry {
    /// Offset of its first byte in the code.
    pub code: u32,
    /// Original address, relative to the module's `base`.
    pub original: u32,
    /// Index into the shapes.
    pub shape: u32,
}

/// Value of [`Step::resume`] that is no offset: the thread's registers cannot be rebuilt from the original
/// program's state, so the thread goes on where it was, with its own registers.
pub const AS_FOUND: u16 = u16::MAX;

/// A range of [`Step`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Shape {
    /// Index of the first step.
    pub first: u32,
    /// Number of steps; the first has offset 0.
    pub count: u32,
}

/// How to restore the original state at a stretch of a place's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Step {
    /// First byte, from the place's start. The step is valid up to the next step's first byte.
    pub offset: u16,
    /// Where execution goes on once the state is restored, from the place's start: 0 while the body has had
    /// no effect, the displaced instruction afterwards, [`AS_FOUND`] if the thread can go on only as it was
    /// found.
    pub resume: u16,
    /// Index of the first undo.
    pub undo: u16,
    /// Number of undos.
    pub undos: u16,
}

/// One change to a thread's registers. Undos are applied in order; offsets are from the thread's stack
/// pointer as it was found, until [`UndoKind::Stack`] moves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Undo {
    /// An [`UndoKind`] as its number.
    pub kind: u8,
    /// General register by its number in the instruction set (rax 0 … r15 15).
    pub register: u8,
    /// Reserved, 0.
    pub reserved: u16,
    /// Offset from the stack pointer, or the number of bytes to add to it.
    pub value: i32,
}

impl Undo {
    /// Number of the `xmm` register that is restored, and its offset in bytes from the stack pointer as it
    /// was found. `None` for undos of other kinds.
    #[must_use]
    pub fn vector(self) -> Option<(u8, i32)> {
        (self.kind == UndoKind::Vector as u8).then_some((self.register, self.value))
    }
}

/// The kinds of [`Undo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UndoKind {
    /// `register` = the 8 bytes at `rsp + value`.
    Load = 1,
    /// Arithmetic flags = the flags image (as `pushfq` writes it) at `rsp + value`.
    LoadFlags = 2,
    /// Arithmetic flags from `register` (rax) as `lahf` and `seto al` leave them: SF ZF AF
    /// PF CF in bits 15…8, OF in bit 0.
    FlagsFromRegister = 3,
    /// As [`UndoKind::FlagsFromRegister`], from the 8 bytes at `rsp + value`.
    FlagsFromStack = 4,
    /// `register` = the general register with the number `value` as it was found (a copy was kept there).
    Copy = 5,
    /// `rsp` += `value`.
    Stack = 6,
    /// The `xmm` register of this number = the 16 bytes at `rsp + value`. It does not affect general
    /// registers; see [`Undo::vector`].
    Vector = 7,
}
