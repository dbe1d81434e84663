//! Replacing text that threads may be running in, while they run.
//!
//! 1. The change is closed: no thread makes a child or blocks the signals of a change, and none is on its
//!    way to doing so ([`quiesce`]).
//! 2. `int3` is put on every instruction that begins inside the bytes to be overwritten, and every core is
//!    serialised. From now on no thread gets in: it traps, and continues in the trampoline.
//! 3. Every thread is seen once outside those bytes.
//! 4. The bytes behind the first are written, cores serialised, then the first byte, cores serialised.
//!    The trap on the first byte stays until every core has the new tail, so no core executes a mixture.
//!
//! A thread whose signal frame leads back inside a group is moved when its handler ends
//! ([`areas::inside`](crate::areas::inside)); such frames are the only places where such an address
//! can survive.
//!
//! A large batch is applied in parts, each a change of its own, so that each is closed for a short time.
//! A part that cannot be applied is tried again, and in the end left out.
//!
//! Removing a patch works the same without step 3: the overwritten bytes are one jump, inside which no
//! instruction begins.

use membound_wire::{Refusal, TextEdit};

use crate::failure::Failure;
use crate::loader;
use crate::quiesce::{self, Change};
use crate::sys;
use crate::sys::Errno;
use crate::text::{Batch, Edits, Mark, takes_back};
use crate::{own_signals, threads, trap};

const INT3: u8 = 0xcc;
/// Number of edits in a part; more if edits at its end share bytes.
const PART_EDITS: usize = 128;
/// Time for which parts that cannot be applied are tried again. No thread waits between two tries.
const RETRY_TIMEOUT_NS: u64 = 5_000_000_000;
/// The same while no part was applied and a thread blocks the signals of a change: most likely it always
/// does.
const BLOCKED_RETRY_TIMEOUT_NS: u64 = 20_000_000;
/// First pause between two tries; it doubles each time.
const FIRST_PAUSE_NS: u64 = 1_000_000;
/// Longest such pause.
const MAX_PAUSE_NS: u64 = 32_000_000;

/// A step of the change, by what the bytes of an edit are after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The old bytes, with `int3` on the instructions.
    Traps,
    /// The new bytes, with `int3` as the first.
    Tails,
    /// The new bytes.
    Heads,
    /// The old bytes again.
    Back,
}

/// Indices of edits, from the first to the one after the last.
type Part = (usize, usize);

/// Applies the batch. Returns the number of edits applied.
///
/// # Errors
/// Only where no edit was applied, and no thread can have been in a trampoline.
pub(crate) fn replace(batch: &Batch) -> Result<u64, Failure> {
    if threads::traced() {
        return Err(Failure::new(Errno::EBUSY, Refusal::Traced));
    }
    sys::register_barrier().map_err(|errno| Failure::new(errno, Refusal::NoBarrier))?;
    let mut change = Change::begin().ok_or(Failure::new(Errno::EBUSY, Refusal::Occupied))?;
    trap::install(&own_signals::OF_CHANGES)?;
    let mut edits = LiveEdits {
        edits: Edits::of(batch)?,
        unmappings: None,
    };
    edits.check_from(0)?;
    let mut begin_ns = sys::monotonic_ns();
    let mut trapped = false;
    let mut pause_ns = FIRST_PAUSE_NS;
    let mut part = part_from(batch, 0);
    while part.0 < part.1 {
        match edits.apply_part(&mut change, part, &mut trapped) {
            Ok(()) => {
                part = part_from(batch, part.1);
                begin_ns = sys::monotonic_ns();
            }
            Err(failure) => {
                let elapsed_ns = sys::monotonic_ns().saturating_sub(begin_ns);
                let patience_ns = match failure.refusal {
                    Refusal::TrapBlocked if !trapped => BLOCKED_RETRY_TIMEOUT_NS,
                    Refusal::TrapBlocked | Refusal::ThreadUnknown => RETRY_TIMEOUT_NS,
                    _ => 0,
                };
                if elapsed_ns < patience_ns {
                    sys::nap(pause_ns);
                    pause_ns = (2 * pause_ns).min(MAX_PAUSE_NS);
                    continue;
                }
                if !trapped {
                    return Err(failure);
                }
                // The launcher would unmap trampolines that a thread may be in.
                for index in part.0..batch.len() {
                    if edits.edits.is_wanted(index) {
                        edits.edits.put_mark(index, Mark::GivenUp);
                    }
                }
                break;
            }
        }
    }
    Ok(edits.edits.report())
}

/// The part of a batch that begins at `first`.
fn part_from(batch: &Batch, first: usize) -> Part {
    let mut end_address = 0;
    let mut last = first;
    while let Some(edit) = batch.get(last) {
        if last - first >= PART_EDITS && edit.address >= end_address {
            return (first, last);
        }
        end_address = end_address.max(edit.address + u64::from(edit.group));
        last += 1;
    }
    (first, batch.len())
}

fn barrier() -> Result<(), Failure> {
    sys::barrier().map_err(|errno| Failure::new(errno, Refusal::NoBarrier))
}

/// A batch that is being applied to running text.
struct LiveEdits<'a> {
    edits: Edits<'a>,
    /// How often modules had been unmapped when the text was last checked.
    unmappings: Option<u32>,
}

impl LiveEdits<'_> {
    /// Checks the text of the edits from `first` on, unless no module was unmapped since it was last checked.
    ///
    /// # Errors
    /// [`Refusal::ThreadUnknown`] while the loader unmaps modules.
    fn check_from(&mut self, first: usize) -> Result<(), Failure> {
        let unmappings = loader::unmappings();
        if unmappings.is_none() {
            return Err(Failure::new(Errno::EBUSY, Refusal::ThreadUnknown));
        }
        if self.unmappings != unmappings {
            self.edits.check(first)?;
            self.unmappings = unmappings;
        }
        Ok(())
    }

    /// True if threads may be at instructions inside the bytes that the part overwrites.
    fn has_inside(&mut self, part: Part) -> bool {
        (part.0..part.1).any(|index| {
            let is_wanted = self.edits.is_wanted(index);
            let edit = self.edits.batch.get(index).filter(|_| is_wanted);
            edit.is_some_and(|edit| (1..usize::from(edit.length)).any(|at| begins(&edit, at)))
        })
    }

    /// Applies a part, unless threads cannot all be seen now. Sets `trapped` once threads may have gone
    /// into trampolines.
    fn apply_part(
        &mut self,
        change: &mut Change,
        part: Part,
        trapped: &mut bool,
    ) -> Result<(), Failure> {
        // Edits that are made already need no check of threads.
        if !(part.0..part.1).any(|index| self.edits.is_wanted(index)) {
            return Ok(());
        }
        quiesce::check_reachable()?;
        change.close();
        let result = self
            .check_from(part.0)
            .and_then(|()| self.apply_closed(change, part, trapped));
        change.open();
        result
    }

    fn apply_closed(
        &mut self,
        change: &mut Change,
        part: Part,
        trapped: &mut bool,
    ) -> Result<(), Failure> {
        change.gather(|_| true)?;
        change.commit()?;
        *trapped = true;
        if let Err(failure) = self.close(change, part) {
            // Best effort: text that cannot be written now could be written a moment ago.
            self.write(part, Stage::Back)?;
            barrier()?;
            return Err(failure);
        }
        self.write(part, Stage::Tails)?;
        barrier()?;
        // Only now: a first byte leads threads into the tail, which every core must have.
        self.write(part, Stage::Heads)?;
        barrier()
    }

    /// Writes the traps, and waits until every thread was seen outside the text behind them.
    fn close(&mut self, change: &mut Change, part: Part) -> Result<(), Failure> {
        // Threads are seen after the barrier: from then on no core enters the text behind a trap.
        self.write(part, Stage::Traps)?;
        barrier()?;
        if !self.has_inside(part) {
            return Ok(());
        }
        let batch = self.edits.batch;
        change.gather(|ip| !inside(batch, part, ip))
    }

    /// Writes one stage for all edits of a part that are not left out.
    fn write(&mut self, part: Part, stage: Stage) -> Result<(), Failure> {
        // SAFETY: the stages are in such an order that a thread finds, at every moment, either an
        // instruction or a trap; the caller serialises the cores between them.
        unsafe { self.edits.write(part, |edit| bytes_after(edit, stage)) }
    }
}

/// True if an instruction of the text before the edit begins at byte `at`. A jump that is removed is one
/// instruction.
fn begins(edit: &TextEdit, at: usize) -> bool {
    at == 0 || (!takes_back(edit) && edit.starts >> at & 1 != 0)
}

/// The bytes of an edit after `stage`; those beyond its length mean nothing.
fn bytes_after(edit: &TextEdit, stage: Stage) -> [u8; 8] {
    let mut bytes = match stage {
        Stage::Traps | Stage::Back => edit.old,
        Stage::Tails | Stage::Heads => edit.new,
    };
    for (at, byte) in bytes.iter_mut().enumerate() {
        let is_trap = match stage {
            Stage::Traps => begins(edit, at),
            Stage::Tails => at == 0,
            Stage::Heads | Stage::Back => false,
        };
        if is_trap {
            *byte = INT3;
        }
    }
    bytes
}

/// True if `ip` is behind the first byte that an edit of the part overwrites, but within its bytes.
fn inside(batch: &Batch, part: Part, ip: u64) -> bool {
    let (mut low, mut high) = part;
    while low < high {
        let middle = low + (high - low) / 2;
        if batch.get(middle).is_some_and(|edit| edit.address < ip) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
        .filter(|index| *index >= part.0)
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

    #[test]
    fn stages_lead_from_the_old_text_to_the_new_and_back() {
        use Stage::{Back, Heads, Tails, Traps};
        let after = |edit: &TextEdit, stage| -> [u8; 5] {
            bytes_after(edit, stage)[..5].try_into().unwrap()
        };
        assert_eq!(after(&EDIT, Traps), [0xcc, 2, 3, 0xcc, 5]);
        assert_eq!(after(&EDIT, Tails), [0xcc, 8, 7, 6, 5]);
        assert_eq!(after(&EDIT, Heads), [0xe9, 8, 7, 6, 5]);
        assert_eq!(after(&EDIT, Back), [1, 2, 3, 4, 5]);
        let removal = TextEdit {
            target: 0x1000,
            ..EDIT
        };
        assert_eq!(after(&removal, Traps), [0xcc, 2, 3, 4, 5]);
    }
}
