//! Replacing text that threads may be running in.
//!
//! 1. Every other thread is shown to be outside: it stands in a handler of ours (it was called
//!    by a signal), or the kernel says that it is blocked and where.
//! 2. `int3` is put on every instruction that begins inside the bytes to be overwritten, and every core is
//!    serialised. From now on nobody gets in: a thread that is woken meanwhile traps, and goes on
//!    in the trampoline.
//! 3. The threads are looked at once more, for one that was woken between 1 and 2.
//! 4. The bytes behind the first are written, cores serialised, then the first byte, cores serialised.
//!
//! A thread that stood at an instruction inside a group when it was stopped, or whose
//! handler returns there, is moved when its handler ends ([`areas::inside`]); the kernel's
//! signal frames are the only places where such an address can survive.
//!
//! A thread that is woken between 1 and 4 and meets an `int3` must be able to take its signal, and
//! a child that it makes would keep such text for ever. Both wait for the end of the change
//! ([`threads::wait_for_change`]).
//!
//! Taking back is the same: what is overwritten is then a jump, inside which no instruction begins.

use membound_wire::{Refusal, TextEdit};

use crate::control::Failure;
use crate::sys;
use crate::sys::{Errno, Scratch};
use crate::text::{Batch, Memory, Span, Spans, as_planned, group_of, span_room};
use crate::threads::{self, Lineup};
use crate::trap;

const INT3: u8 = 0xcc;

/// A step of the change, as what it writes into an edit's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// `int3` on the instructions.
    Traps,
    /// All but the first byte.
    Tails,
    /// The first byte.
    Heads,
    /// What was there before.
    Back,
}

/// A change under way.
struct Change<'a> {
    batch: &'a Batch,
    memory: Memory,
    room: Scratch,
    /// A byte for each edit: 0 as long as it is to be applied.
    left_out: Scratch,
}

/// Applies the batch. Returns the number of edits applied.
pub(crate) fn replace(batch: &Batch) -> Result<u64, Failure> {
    if threads::traced() {
        return Err(Failure::new(Errno::EBUSY, Refusal::Traced));
    }
    sys::register_barrier().map_err(|errno| Failure::new(errno, Refusal::NoBarrier))?;
    let mut lineup = Lineup::take().ok_or(Failure::new(Errno::EBUSY, Refusal::Occupied))?;
    trap::install(&trap::OF_CHANGES)?;
    let mut change = Change {
        batch,
        memory: Memory::open()?,
        room: span_room()?,
        left_out: Scratch::new(batch.len().max(1))?,
    };
    change.check()?;
    if change.is_empty() {
        // Whoever asks for what stands there already is not to have threads stopped for it.
        return Ok(change.report());
    }
    threads::check_reachable()?;
    // Nothing has been written yet, so a thread that cannot be stopped costs nothing.
    lineup.stop(|_| true)?;
    if let Err(failure) = change.close(&mut lineup) {
        // Best effort: what cannot be written now could be written a moment ago.
        change.write(Stage::Back)?;
        barrier()?;
        return Err(failure);
    }
    change.write(Stage::Tails)?;
    barrier()?;
    change.write(Stage::Heads)?;
    barrier()?;
    drop(lineup);
    Ok(change.report())
}

fn barrier() -> Result<(), Failure> {
    sys::barrier().map_err(|errno| Failure::new(errno, Refusal::NoBarrier))
}

impl Change<'_> {
    /// Leaves out the edits whose text is not as planned.
    fn check(&mut self) -> Result<(), Failure> {
        for span in Spans::new(self.batch) {
            let span = span?;
            let text = text_of(&mut self.room, span)?;
            let readable = self.memory.read(span.address, text).is_ok();
            for index in span.edits.0..span.edits.1 {
                let edit = self.batch.get(index);
                let fits = readable
                    && edit.is_some_and(|edit| {
                        group_of(text, span, &edit).is_some_and(|group| as_planned(group, &edit))
                    });
                if !fits {
                    mark(&mut self.left_out, index);
                }
            }
        }
        Ok(())
    }

    /// Whether every edit is left out.
    fn is_empty(&mut self) -> bool {
        let marks = self.left_out.bytes().iter();
        marks.take(self.batch.len()).all(|&mark| mark != 0)
    }

    /// Puts the traps up, and makes sure that nobody is behind them.
    fn close(&mut self, lineup: &mut Lineup) -> Result<(), Failure> {
        self.write(Stage::Traps)?;
        barrier()?;
        let batch = self.batch;
        lineup.stop(|ip| !inside(batch, ip))
    }

    /// Writes one stage for all edits that are not left out.
    fn write(&mut self, stage: Stage) -> Result<(), Failure> {
        for span in Spans::new(self.batch) {
            let span = span?;
            let text = text_of(&mut self.room, span)?;
            let marks = self.left_out.bytes();
            let wanted = |index: usize| marks.get(index) == Some(&0);
            if !(span.edits.0..span.edits.1).any(wanted) {
                continue;
            }
            self.memory.read(span.address, text)?;
            for index in (span.edits.0..span.edits.1).filter(|&index| wanted(index)) {
                if let Some(edit) = self.batch.get(index)
                    && let Some(group) = group_of(text, span, &edit)
                {
                    apply(group, &edit, stage);
                }
            }
            // SAFETY: the stages are so ordered that a thread finds, at every moment, either
            // an instruction or a trap; that the cores agree is seen to between them.
            unsafe { self.memory.write(span.address, text) }?;
        }
        Ok(())
    }

    /// Reports what was left out; returns the number of the others.
    fn report(&mut self) -> u64 {
        let mut skipped = 0;
        for (index, &mark) in self
            .left_out
            .bytes()
            .iter()
            .take(self.batch.len())
            .enumerate()
        {
            if mark != 0 {
                self.batch.skip(index, skipped);
                skipped += 1;
            }
        }
        (self.batch.len() - skipped) as u64
    }
}

fn mark(marks: &mut Scratch, index: usize) {
    if let Some(mark) = marks.bytes().get_mut(index) {
        *mark = 1;
    }
}

fn text_of(room: &mut Scratch, span: Span) -> Result<&mut [u8], Failure> {
    room.bytes()
        .get_mut(..span.length)
        .ok_or_else(Failure::malformed)
}

/// Whether an instruction of the text before the edit begins at byte `at`. A jump that is
/// taken back is one instruction.
fn begins(edit: &TextEdit, at: usize) -> bool {
    at == 0 || (edit.target != edit.address && edit.starts >> at & 1 != 0)
}

fn apply(group: &mut [u8], edit: &TextEdit, stage: Stage) {
    let bytes = group.iter_mut().zip(edit.old.iter().zip(&edit.new));
    for (at, (byte, (&old, &new))) in bytes.take(usize::from(edit.length)).enumerate() {
        match stage {
            Stage::Traps if begins(edit, at) => *byte = INT3,
            Stage::Tails if at > 0 => *byte = new,
            Stage::Heads if at == 0 => *byte = new,
            Stage::Back => *byte = old,
            _ => {}
        }
    }
}

/// Whether `ip` lies behind the first byte of what an edit overwrites.
fn inside(batch: &Batch, ip: u64) -> bool {
    let (mut low, mut high) = (0, batch.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if batch.get(middle).is_some_and(|edit| edit.address < ip) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
        .and_then(|index| batch.get(index))
        .is_some_and(|edit| ip < edit.address + u64::from(edit.length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDIT: TextEdit = TextEdit {
        address: 0x1000,
        target: 0x9000,
        fingerprint: 0,
        group: 7,
        length: 5,
        starts: 0b01001,
        old: [1, 2, 3, 4, 5, 0, 0, 0],
        new: [0xe9, 8, 7, 6, 5, 0, 0, 0],
    };

    fn staged(edit: &TextEdit, stages: &[Stage]) -> [u8; 7] {
        let mut group = [1, 2, 3, 4, 5, 6, 7];
        for &stage in stages {
            apply(&mut group, edit, stage);
        }
        group
    }

    #[test]
    fn stages_lead_from_the_old_text_to_the_new_and_back() {
        use Stage::{Back, Heads, Tails, Traps};
        assert_eq!(staged(&EDIT, &[Traps]), [0xcc, 2, 3, 0xcc, 5, 6, 7]);
        assert_eq!(staged(&EDIT, &[Traps, Tails]), [0xcc, 8, 7, 6, 5, 6, 7]);
        assert_eq!(
            staged(&EDIT, &[Traps, Tails, Heads]),
            [0xe9, 8, 7, 6, 5, 6, 7]
        );
        assert_eq!(staged(&EDIT, &[Traps, Back]), [1, 2, 3, 4, 5, 6, 7]);
        let removal = TextEdit {
            target: 0x1000,
            ..EDIT
        };
        assert_eq!(staged(&removal, &[Traps]), [0xcc, 2, 3, 4, 5, 6, 7]);
    }
}
