//! Replaces text through `/proc/self/mem`. This needs no change of protection, so text is never writable,
//! and always executable for running threads.
//!
//! A batch is cut into spans of neighbouring pages; a span is read, checked, changed in a
//! copy and written back at once. Where a span has few edits, each is written by itself: threads may wait meanwhile.

use membound_wire::{Command, EDIT_BYTES, GIVEN_UP, Refusal, TextEdit, fingerprint};

use crate::failure::Failure;
use crate::memory;
use crate::sys::{self, Access, Descriptor, Errno, Open, Scratch};

/// Most edits of a span that are written one by one: reading the span and writing it back takes as long as two.
const FEW_EDITS: usize = 2;
/// Most bytes that are read and written at once.
const SPAN_BYTES: usize = 64 << 10;
const PAGE_BYTES: u64 = 4096;
const EDIT_SIZE: usize = size_of::<TextEdit>();

/// The edits of one command, in the launcher's descriptor.
#[derive(Debug)]
pub(crate) struct Batch {
    map: Scratch,
    offset: usize,
    count: usize,
    /// Offset of the list of edits that were left out, and its capacity in entries.
    skips: usize,
    skip_room: usize,
}

impl Batch {
    pub(crate) fn open(command: &Command, file: &Descriptor) -> Result<Self, Failure> {
        let size = usize::try_from(sys::size(file)?).map_err(|_| Failure::malformed())?;
        let offset = command.offset as usize;
        let count = command.count as usize;
        let bytes = count
            .checked_mul(EDIT_SIZE)
            .ok_or_else(Failure::malformed)?;
        let end = offset.checked_add(bytes).ok_or_else(Failure::malformed)?;
        if end > size || size == 0 {
            return Err(Failure::malformed());
        }
        let (map, access) = Scratch::file(file, size)?;
        let skips = command.extra as usize;
        let limit = if offset >= skips { offset } else { size };
        let skip_room = if skips == 0 || access == Access::Read {
            0
        } else {
            limit.saturating_sub(skips) / 4
        };
        Ok(Self {
            map,
            offset,
            count,
            skips,
            skip_room,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The edit at `index`, if there is one with valid lengths.
    pub(crate) fn get(&self, index: usize) -> Option<TextEdit> {
        if index >= self.count {
            return None;
        }
        let address = self.map.address() + self.offset + index * EDIT_SIZE;
        // SAFETY: the index is inside the batch, which was found to lie inside the mapping;
        // the launcher does not shorten the file meanwhile.
        let edit: TextEdit = unsafe { memory::get(address) };
        let sound = usize::from(edit.length) <= EDIT_BYTES
            && edit.length > 0
            && u16::from(edit.length) <= edit.group
            && edit.address.checked_add(u64::from(edit.group)).is_some();
        sound.then_some(edit)
    }

    /// Reports an edit as left out, as entry `nth` of the list: its index, and the reason in the upper
    /// bits.
    fn skip(&self, marked: u32, nth: usize) {
        if nth < self.skip_room {
            let address = self.map.address() + self.skips + nth * 4;
            // SAFETY: the place lies inside the mapping, which is writable if there is room.
            unsafe { memory::put(address, marked) };
        }
    }
}

/// Copies the bytes that `command` names in `file` into its mapping, which was just made.
pub(crate) fn fill(command: &Command, file: Option<&Descriptor>) -> Result<(), Failure> {
    let file = file.ok_or_else(|| Failure::new(Errno::EINVAL, Refusal::NoDescriptor))?;
    let size = usize::try_from(sys::size(file)?).map_err(|_| Failure::malformed())?;
    let offset = command.offset as usize;
    let length = command.length as usize;
    let end = offset.checked_add(length).ok_or_else(Failure::malformed)?;
    if end > size || size == 0 {
        return Err(Failure::malformed());
    }
    let memory = Memory::open()?;
    let (map, _) = Scratch::file(file, size)?;
    // SAFETY: the range is inside the mapping, and the launcher does not change the file.
    let bytes =
        unsafe { core::slice::from_raw_parts((map.address() + offset) as *const u8, length) };
    // SAFETY: no thread executes text that was just mapped.
    unsafe { memory.write(command.address, bytes) }
}

/// The process's memory as a file.
#[derive(Debug)]
struct Memory(Descriptor);

impl Memory {
    fn open() -> Result<Self, Failure> {
        sys::open(c"/proc/self/mem", Open::ReadWrite)
            .map(Self)
            .map_err(|errno| Failure::new(errno, Refusal::MemoryClosed))
    }

    fn read(&self, address: u64, room: &mut [u8]) -> Result<(), Failure> {
        sys::read_all_at(&self.0, room, address)
            .map_err(|errno| Failure::new(errno, Refusal::MemoryRefused))
    }

    /// Writes text.
    ///
    /// # Safety
    ///
    /// A thread that executes the text must be able to continue with the new bytes.
    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let written = unsafe { sys::write_all_at(&self.0, bytes, address) };
        written.map_err(|errno| Failure::new(errno, Refusal::MemoryRefused))
    }
}

/// A run of edits whose text is read and written in one piece.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Index of the first edit and of the one after the last.
    edits: (usize, usize),
    address: u64,
    length: usize,
}

/// Iterates over a batch's spans.
#[derive(Debug)]
struct Spans<'a> {
    batch: &'a Batch,
    next: usize,
    end: usize,
}

impl<'a> Spans<'a> {
    /// The spans of the edits in an index range.
    fn of(batch: &'a Batch, (next, end): (usize, usize)) -> Self {
        Self { batch, next, end }
    }

    fn upcoming(&self) -> Option<TextEdit> {
        self.batch.get(self.next).filter(|_| self.next < self.end)
    }
}

impl Iterator for Spans<'_> {
    type Item = Result<Span, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let first = self.next;
        let Some(edit) = self.upcoming() else {
            self.next = self.end;
            return Some(Err(Failure::malformed()));
        };
        let address = edit.address;
        let mut end = address + u64::from(edit.group);
        let mut last = edit.address;
        self.next += 1;
        while let Some(edit) = self.upcoming() {
            let edit_end = edit.address + u64::from(edit.group);
            // A page without edits between two spans is not written, so that it stays shared with the file.
            let near = edit.address <= end.saturating_add(PAGE_BYTES);
            let fits = edit_end.saturating_sub(address) <= SPAN_BYTES as u64;
            if edit.address < last || !near || !fits {
                break;
            }
            last = edit.address;
            end = end.max(edit_end);
            self.next += 1;
        }
        Some(Ok(Span {
            edits: (first, self.next),
            address,
            length: (end - address) as usize,
        }))
    }
}

/// The part of a span's text that belongs to an edit's group.
fn group_of<'a>(text: &'a mut [u8], span: Span, edit: &TextEdit) -> Option<&'a mut [u8]> {
    let start = usize::try_from(edit.address.checked_sub(span.address)?).ok()?;
    text.get_mut(start..start + usize::from(edit.group))
}

/// Buffer for a span's text.
fn span_room() -> Result<Scratch, Errno> {
    // A single group may be longer than a span: its length has 16 bits.
    Scratch::new(SPAN_BYTES + usize::from(u16::MAX) + 1)
}

/// Applies the batch where no thread can be executing it. Returns the number of edits applied.
pub(crate) fn replace(batch: &Batch) -> Result<u64, Failure> {
    let mut edits = Edits::of(batch)?;
    edits.check(0)?;
    let all = (0, batch.len());
    // SAFETY: the launcher knows that no thread executes this text now.
    unsafe { edits.write(all, |edit| edit.new) }?;
    Ok(edits.report())
}

/// Whether an edit is applied, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    Wanted = 0,
    /// The text is not the one that was planned for.
    Differs = 1,
    /// As `Differs`, but the old bytes of the edit itself are there: for an edit that removes a jump, the
    /// jump may lead through bytes behind it.
    Standing = 2,
    /// It was retried until the time limit.
    GivenUp = 3,
}

/// A batch that is being applied.
pub(crate) struct Edits<'a> {
    pub(crate) batch: &'a Batch,
    memory: Memory,
    room: Scratch,
    /// A [`Mark`] for each edit.
    marks: Scratch,
}

impl<'a> Edits<'a> {
    pub(crate) fn of(batch: &'a Batch) -> Result<Self, Failure> {
        Ok(Self {
            batch,
            memory: Memory::open()?,
            room: span_room()?,
            marks: Scratch::new(batch.len().max(1))?,
        })
    }

    /// True if the edit is to be applied.
    pub(crate) fn is_wanted(&mut self, index: usize) -> bool {
        is(self.marks.bytes(), index, Mark::Wanted)
    }

    pub(crate) fn put_mark(&mut self, index: usize, mark: Mark) {
        put_mark(self.marks.bytes(), index, mark);
    }

    /// Leaves out the edits from `first` on whose text is not as planned, and those that must not be made
    /// without them.
    pub(crate) fn check(&mut self, first: usize) -> Result<(), Failure> {
        for span in Spans::of(self.batch, (first, self.batch.len())) {
            let span = span?;
            let text = text_of(&mut self.room, span)?;
            let readable = self.memory.read(span.address, text).is_ok();
            for index in span.edits.0..span.edits.1 {
                let edit = self.batch.get(index);
                let group = edit.and_then(|edit| Some((group_of(text, span, &edit)?, edit)));
                let mark = match group {
                    Some((group, edit)) if readable => mark_of(group, &edit),
                    _ => Mark::Differs,
                };
                if mark != Mark::Wanted {
                    put_mark(self.marks.bytes(), index, mark);
                }
            }
        }
        let batch = self.batch;
        leave_out_together(
            |index| batch.get(index),
            (first, batch.len()),
            self.marks.bytes(),
        );
        Ok(())
    }

    /// Writes what `bytes_of` returns over the bytes of every edit of a part that is not left out.
    ///
    /// # Safety
    ///
    /// A thread that executes the text must be able to continue with these bytes.
    pub(crate) unsafe fn write(
        &mut self,
        part: (usize, usize),
        bytes_of: impl Fn(&TextEdit) -> [u8; 8],
    ) -> Result<(), Failure> {
        for span in Spans::of(self.batch, part) {
            let span = span?;
            let marks = self.marks.bytes();
            let wanted = |index: &usize| is(marks, *index, Mark::Wanted);
            let indices = (span.edits.0..span.edits.1).filter(wanted);
            let edits = indices.filter_map(|index| self.batch.get(index));
            if span.edits.1 - span.edits.0 <= FEW_EDITS {
                for edit in edits {
                    let bytes = bytes_of(&edit);
                    let bytes = bytes.get(..usize::from(edit.length)).unwrap_or_default();
                    // SAFETY: the caller's promise.
                    unsafe { self.memory.write(edit.address, bytes) }?;
                }
                continue;
            }
            let mut edits = edits.peekable();
            if edits.peek().is_none() {
                continue;
            }
            let text = text_of(&mut self.room, span)?;
            self.memory.read(span.address, text)?;
            for edit in edits {
                if let Some(group) = group_of(text, span, &edit) {
                    let bytes = group.iter_mut().zip(bytes_of(&edit));
                    for (byte, new) in bytes.take(usize::from(edit.length)) {
                        *byte = new;
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { self.memory.write(span.address, text) }?;
        }
        Ok(())
    }

    /// Reports the edits that were left out; returns the number of the others.
    pub(crate) fn report(&mut self) -> u64 {
        let mut skipped = 0;
        let marks = self.marks.bytes().iter();
        for (index, &mark) in marks.take(self.batch.len()).enumerate() {
            let marked = match mark {
                mark if mark == Mark::Wanted as u8 => continue,
                mark if mark == Mark::GivenUp as u8 => index as u32 | GIVEN_UP,
                _ => index as u32,
            };
            self.batch.skip(marked, skipped);
            skipped += 1;
        }
        (self.batch.len() - skipped) as u64
    }
}

fn is(marks: &[u8], index: usize, mark: Mark) -> bool {
    marks.get(index) == Some(&(mark as u8))
}

fn put_mark(marks: &mut [u8], index: usize, mark: Mark) {
    if let Some(byte) = marks.get_mut(index) {
        *byte = mark as u8;
    }
}

fn mark_of(group: &[u8], edit: &TextEdit) -> Mark {
    let length = usize::from(edit.length);
    let is_as_expected = group.get(..length) == edit.old.get(..length);
    match is_as_expected {
        true if fingerprint(group) == edit.fingerprint => Mark::Wanted,
        true => Mark::Standing,
        false => Mark::Differs,
    }
}

/// If an edit's group reaches into the next edits, it leads through their bytes once they are made: it is
/// installed only with all of them, and they are removed only with it.
///
/// The edits are sorted by address.
fn leave_out_together(
    get: impl Fn(usize) -> Option<TextEdit>,
    (first, end): (usize, usize),
    marks: &mut [u8],
) {
    let is_taken_back = |index: usize| get(index).is_some_and(|edit| takes_back(&edit));
    let reaches = |index: usize, later: usize| {
        let edits = get(index).zip(get(later));
        edits.is_some_and(|(edit, later)| later.address < edit.address + u64::from(edit.group))
    };
    // The edits that an edit leads through are behind it.
    for index in (first..end).rev() {
        if is_taken_back(index) || !is(marks, index, Mark::Wanted) {
            continue;
        }
        let mut behind = (index + 1..end).take_while(|&later| reaches(index, later));
        if behind.any(|later| !is(marks, later, Mark::Wanted)) {
            put_mark(marks, index, Mark::Differs);
        }
    }
    for index in first..end {
        if !is_taken_back(index) || !is(marks, index, Mark::Standing) {
            continue;
        }
        for later in (index + 1..end).take_while(|&later| reaches(index, later)) {
            if is(marks, later, Mark::Wanted) {
                put_mark(marks, later, Mark::Standing);
            }
        }
    }
}

/// True if the edit restores the original text.
pub(crate) const fn takes_back(edit: &TextEdit) -> bool {
    edit.target == edit.address
}

fn text_of(room: &mut Scratch, span: Span) -> Result<&mut [u8], Failure> {
    room.bytes()
        .get_mut(..span.length)
        .ok_or_else(Failure::malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Edits of groups of seven bytes at these addresses, and the resulting marks.
    fn excluded_marks<const N: usize>(
        addresses: [u64; N],
        target: u64,
        marks: [Mark; N],
    ) -> [u8; N] {
        let get = |index: usize| {
            let address = *addresses.get(index)?;
            Some(TextEdit {
                address,
                target: if target == 0 { address } else { target },
                group: 7,
                length: 5,
                ..TextEdit::default()
            })
        };
        let mut marks = marks.map(|mark| mark as u8);
        leave_out_together(get, (0, N), &mut marks);
        marks
    }

    #[test]
    fn a_group_over_unchanged_edits_is_not_installed() {
        use Mark::{Differs, Wanted};
        // The first two lead on through the next; the last stands alone.
        let found = excluded_marks([0, 5, 10, 20], 0x9000, [Wanted, Wanted, Differs, Wanted]);
        assert_eq!(
            found,
            [Differs, Differs, Differs, Wanted].map(|mark| mark as u8)
        );
        let found = excluded_marks([0, 5, 12], 0x9000, [Differs, Wanted, Wanted]);
        assert_eq!(found, [Differs, Wanted, Wanted].map(|mark| mark as u8));
    }

    #[test]
    fn an_installed_group_keeps_the_edits_below_it() {
        use Mark::{Differs, Standing, Wanted};
        let found = excluded_marks([0, 5, 10, 20], 0, [Standing, Wanted, Wanted, Wanted]);
        assert_eq!(
            found,
            [Standing, Standing, Standing, Wanted].map(|mark| mark as u8)
        );
        // An edit that is not installed leads nowhere.
        let found = excluded_marks([0, 5], 0, [Differs, Wanted]);
        assert_eq!(found, [Differs, Wanted].map(|mark| mark as u8));
    }
}
