//! Tables with which the agent restores the program's state from any byte of a trampoline.
//!
//! Equal sequences are stored once. Each worker collects its own tables; they are joined at the end.

use membound_wire::{AS_FOUND, Shape, Step, TrampolineEntry, Undo, UndoKind};
use rustc_hash::FxHashMap;

use crate::Gpr;

/// Where the original value of a register is kept while a body uses the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// On the stack, this many bytes below the original stack pointer.
    Below(i32),
    /// In another register.
    In(Gpr),
}

/// How the registers of a thread differ from the original program's at one point of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RegisterOffsets {
    /// Bytes by which the stack pointer is below its original value.
    pub lowered: i32,
    /// Where the arithmetic flags are kept, in the form of `lahf; seto al`; `None` if the flags are
    /// unchanged.
    pub flags: Option<FlagsKept>,
    /// The `xmm` registers whose original values are on the stack.
    pub vectors: KeptVectors,
    kept: [Option<(Gpr, Kept)>; 15],
}

/// `xmm` registers stored contiguously on the stack, the first of them lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptVectors {
    /// Bit n is set if `xmm` n is stored.
    pub numbers: u16,
    /// Bytes from the first of them up to the original stack pointer.
    pub depth: i32,
}

impl KeptVectors {
    /// Bytes of an `xmm` register.
    pub(super) const EACH: i32 = 16;

    /// The numbers of the registers, each with its offset in bytes from the first.
    pub(super) fn places(self) -> impl Iterator<Item = (u8, i32)> {
        let numbers = (0..16).filter(move |number| self.numbers >> number & 1 != 0);
        numbers.zip((0..).step_by(Self::EACH as usize))
    }
}

/// Where the saved flags are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagsKept {
    /// In rax.
    InRax,
    /// This many bytes below the original stack pointer.
    Below(i32),
}

impl RegisterOffsets {
    /// A frame that differs only in the stack pointer, which is `bytes` below the original.
    pub(super) fn lowered_by(bytes: i32) -> Self {
        Self {
            lowered: bytes,
            ..Self::default()
        }
    }

    /// Notes that the original value of `register` is kept at `kept` from now on.
    pub(super) fn keep(&mut self, register: Gpr, kept: Kept) {
        let free = self
            .kept
            .iter_mut()
            .find(|slot| slot.is_none())
            .expect("all but the stack pointer find room");
        *free = Some((register, kept));
    }

    /// Notes that `register` has its original value again.
    pub(super) fn put_back(&mut self, register: Gpr) {
        for slot in &mut self.kept {
            if slot.is_some_and(|(kept, _)| kept == register) {
                *slot = None;
            }
        }
    }

    /// Where the original value of `register` is kept; `None` if it is in the register itself.
    pub(super) fn kept(&self, register: Gpr) -> Option<Kept> {
        self.kept
            .iter()
            .flatten()
            .find(|(kept, _)| *kept == register)
            .map(|(_, at)| *at)
    }

    fn undos(&self, list: &mut Vec<Undo>) {
        let undo = |kind: UndoKind, register: u8, value: i32| Undo {
            kind: kind as u8,
            register,
            reserved: 0,
            value,
        };
        // Flags first: they may be in rax, whose original value is restored later.
        match self.flags {
            None => {}
            Some(FlagsKept::InRax) => list.push(undo(UndoKind::FlagsFromRegister, 0, 0)),
            Some(FlagsKept::Below(depth)) => {
                list.push(undo(UndoKind::FlagsFromStack, 0, self.lowered - depth));
            }
        }
        for (register, kept) in self.kept.iter().flatten() {
            list.push(match kept {
                Kept::Below(depth) => undo(UndoKind::Load, register.number(), self.lowered - depth),
                Kept::In(other) => {
                    undo(UndoKind::Copy, register.number(), i32::from(other.number()))
                }
            });
        }
        for (number, above) in self.vectors.places() {
            let value = self.lowered - self.vectors.depth + above;
            list.push(undo(UndoKind::Vector, number, value));
        }
        if self.lowered != 0 {
            list.push(undo(UndoKind::Stack, 4, self.lowered));
        }
    }
}

/// Where a thread continues after its state has been restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// At the start of the place: the body has had no effect yet.
    Start,
    /// At this offset of the code, which is not before the start of the place.
    At(u32),
    /// At the displaced instruction; its offset is not known yet.
    Displaced,
    /// Where it was found, with its state unchanged.
    AsFound,
}

/// A step whose offset for resuming may not be known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftStep {
    at: u32,
    resume: Resume,
    undo: u16,
    undos: u16,
}

impl DraftStep {
    /// The same step; a thread that has to restart continues at `code`.
    pub(super) fn started_at(&self, code: u32) -> Self {
        let resume = match self.resume {
            Resume::Start => Resume::At(code),
            other => other,
        };
        Self { resume, ..*self }
    }
}

/// The tables of one worker. Code offsets are relative to the worker's own code.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Places, sorted by code offset.
    pub places: Vec<TrampolineEntry>,
    shapes: Vec<Shape>,
    steps: Vec<Step>,
    undos: Vec<Undo>,
    known_shapes: FxHashMap<Box<[Step]>, u32>,
    known_undos: FxHashMap<Box<[Undo]>, u16>,
    /// True if there were more distinct sequences than an index can distinguish, or an offset did not fit.
    pub overflowed: bool,
    list: Vec<Undo>,
    final_steps: Vec<Step>,
    plain: Option<u32>,
}

impl Tables {
    fn undo_list(&mut self, frame: &RegisterOffsets) -> (u16, u16) {
        if *frame == RegisterOffsets::default() {
            return (0, 0);
        }
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        frame.undos(&mut list);
        let found = self.intern_undos(&list);
        self.list = list;
        found
    }

    fn intern_undos(&mut self, list: &[Undo]) -> (u16, u16) {
        let count = u16::try_from(list.len()).expect("a frame has a few undos");
        if count == 0 {
            return (0, 0);
        }
        if let Some(&known) = self.known_undos.get(list) {
            return (known, count);
        }
        let Ok(index) = u16::try_from(self.undos.len()) else {
            self.overflowed = true;
            return (0, 0);
        };
        self.undos.extend_from_slice(list);
        self.known_undos.insert(list.into(), index);
        (index, count)
    }

    /// Begins a place at the code offset `at`, in the state of `frame`, whatever steps other places have
    /// added.
    pub(super) fn begin(
        &mut self,
        steps: &mut Vec<DraftStep>,
        at: u32,
        frame: &RegisterOffsets,
        resume: Resume,
    ) {
        let (undo, undos) = self.undo_list(frame);
        steps.push(DraftStep {
            at,
            resume,
            undo,
            undos,
        });
    }

    /// Notes that the state is that of `frame` from the code offset `at` on.
    pub(super) fn mark(
        &mut self,
        steps: &mut Vec<DraftStep>,
        at: u32,
        frame: &RegisterOffsets,
        resume: Resume,
    ) {
        let (undo, undos) = self.undo_list(frame);
        if let Some(last) = steps.last_mut() {
            if (last.undo, last.undos, last.resume) == (undo, undos, resume) {
                return;
            }
            if last.at == at {
                (last.undo, last.undos, last.resume) = (undo, undos, resume);
                return;
            }
        }
        steps.push(DraftStep {
            at,
            resume,
            undo,
            undos,
        });
    }

    /// Adds a place without a body: the state is the original one throughout.
    pub(super) fn plain_place(&mut self, code: u32, original: u32) {
        let shape = match self.plain {
            Some(shape) => shape,
            None => {
                let shape = self.shape(&[Step::default()]);
                self.plain = Some(shape);
                shape
            }
        };
        self.places.push(TrampolineEntry {
            code,
            original,
            shape,
        });
    }

    /// Adds a place with the steps of its body; the displaced instruction is at the code offset `displaced`.
    pub(super) fn place(&mut self, code: u32, original: u32, displaced: u32, steps: &[DraftStep]) {
        let mut list = std::mem::take(&mut self.final_steps);
        list.clear();
        for step in steps {
            let resume = match step.resume {
                Resume::Start => code,
                Resume::At(at) => at,
                Resume::Displaced => displaced,
                Resume::AsFound => code + u32::from(AS_FOUND),
            };
            let (Ok(offset), Ok(resume)) =
                (u16::try_from(step.at - code), u16::try_from(resume - code))
            else {
                self.overflowed = true;
                continue;
            };
            self.overflowed |= resume == AS_FOUND && step.resume != Resume::AsFound;
            list.push(Step {
                offset,
                resume,
                undo: step.undo,
                undos: step.undos,
            });
        }
        let shape = self.shape(&list);
        self.final_steps = list;
        self.places.push(TrampolineEntry {
            code,
            original,
            shape,
        });
    }

    fn shape(&mut self, steps: &[Step]) -> u32 {
        if let Some(&known) = self.known_shapes.get(steps) {
            return known;
        }
        let count = |length: usize| u32::try_from(length).expect("a worker has a few shapes");
        let shape = count(self.shapes.len());
        self.shapes.push(Shape {
            first: count(self.steps.len()),
            count: count(steps.len()),
        });
        self.steps.extend_from_slice(steps);
        self.known_shapes.insert(steps.into(), shape);
        shape
    }

    /// Adds `other`'s shapes; returns for each of them its number in these tables.
    pub(super) fn join(&mut self, other: &Self) -> Vec<u32> {
        self.overflowed |= other.overflowed;
        let mut list = Vec::new();
        other
            .shapes
            .iter()
            .map(|shape| {
                list.clear();
                let first = shape.first as usize;
                for step in &other.steps[first..first + shape.count as usize] {
                    let undo = usize::from(step.undo);
                    let undos = &other.undos[undo..undo + usize::from(step.undos)];
                    let (undo, undos) = self.intern_undos(undos);
                    list.push(Step {
                        undo,
                        undos,
                        ..*step
                    });
                }
                self.shape(&list)
            })
            .collect()
    }

    /// The shapes, steps and undo operations.
    pub(super) fn parts(&self) -> (&[Shape], &[Step], &[Undo]) {
        (&self.shapes, &self.steps, &self.undos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sequences_are_stored_once_also_after_joining() {
        let mut frame = RegisterOffsets {
            lowered: 136,
            ..RegisterOffsets::default()
        };
        frame.keep(Gpr::RAX, Kept::Below(136));
        let mut tables = Tables::default();
        for place in 0..3_u32 {
            let mut steps = Vec::new();
            let code = place * 100;
            tables.mark(&mut steps, code, &RegisterOffsets::default(), Resume::Start);
            tables.mark(&mut steps, code + 5, &frame, Resume::Start);
            tables.mark(&mut steps, code + 9, &frame, Resume::Displaced);
            tables.place(code, 7 * place, code + 20, &steps);
        }
        let (shapes, steps, undos) = tables.parts();
        assert_eq!((shapes.len(), steps.len(), undos.len()), (1, 3, 2));
        assert_eq!((steps[2].offset, steps[2].resume), (9, 20));

        let mut whole = Tables::default();
        assert_eq!(whole.join(&tables), [0]);
        assert_eq!(whole.join(&tables), [0]);
        assert_eq!(whole.parts(), tables.parts());
    }

    #[test]
    fn undos_come_in_the_order_in_which_they_hold() {
        let mut frame = RegisterOffsets {
            lowered: 16,
            flags: Some(FlagsKept::Below(16)),
            ..RegisterOffsets::default()
        };
        frame.keep(Gpr::RAX, Kept::Below(8));
        let mut undos = Vec::new();
        frame.undos(&mut undos);
        let read: Vec<(u8, u8, i32)> = undos
            .iter()
            .map(|undo| (undo.kind, undo.register, undo.value))
            .collect();
        assert_eq!(
            read,
            [
                (UndoKind::FlagsFromStack as u8, 0, 0),
                (UndoKind::Load as u8, 0, 8),
                (UndoKind::Stack as u8, 4, 16),
            ]
        );
    }
}
