//! Replacing text through `/proc/self/mem`, which needs no change of protection and so
//! never makes text writable or takes it away from a running thread.
//!
//! A batch is cut into spans of neighbouring pages; a span is read, checked, changed in a
//! copy and written back at once.

use membound_wire::{Command, EDIT_BYTES, Refusal, TextEdit, fingerprint};

use crate::control::Failure;
use crate::memory;
use crate::sys::{self, Access, Descriptor, Errno, Open, Scratch};

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
    /// Where the indices of edits left out go, and how many there is room for.
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

    /// The edit at `index`, if there is one and its lengths make sense.
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

    /// Notes that the edit at `index` was left out, as the `nth` one.
    pub(crate) fn skip(&self, index: usize, nth: usize) {
        self.skip_marked(index as u32, nth);
    }

    /// The same with what else there is to say of it in the index's upper bits.
    pub(crate) fn skip_marked(&self, marked: u32, nth: usize) {
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
    // SAFETY: the stretch lies inside the mapping, and the launcher does not change the file.
    let bytes =
        unsafe { core::slice::from_raw_parts((map.address() + offset) as *const u8, length) };
    // SAFETY: nobody executes what was just mapped.
    unsafe { memory.write(command.address, bytes) }
}

/// The process's memory as a file.
#[derive(Debug)]
pub(crate) struct Memory(Descriptor);

impl Memory {
    pub(crate) fn open() -> Result<Self, Failure> {
        sys::open(c"/proc/self/mem", Open::ReadWrite)
            .map(Self)
            .map_err(|errno| Failure::new(errno, Refusal::MemoryClosed))
    }

    pub(crate) fn read(&self, address: u64, room: &mut [u8]) -> Result<(), Failure> {
        sys::read_all_at(&self.0, room, address)
            .map_err(|errno| Failure::new(errno, Refusal::MemoryRefused))
    }

    /// Writes text.
    ///
    /// # Safety
    ///
    /// Whoever executes the text must be able to go on with the new bytes.
    pub(crate) unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let written = unsafe { sys::write_all_at(&self.0, bytes, address) };
        written.map_err(|errno| Failure::new(errno, Refusal::MemoryRefused))
    }
}

/// A run of edits whose text is read and written in one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Index of the first edit and of the one after the last.
    pub(crate) edits: (usize, usize),
    pub(crate) address: u64,
    pub(crate) length: usize,
}

/// Iterates over a batch's spans.
#[derive(Debug)]
pub(crate) struct Spans<'a> {
    batch: &'a Batch,
    next: usize,
    end: usize,
}

impl<'a> Spans<'a> {
    pub(crate) fn new(batch: &'a Batch) -> Self {
        Self::of(batch, (0, batch.len()))
    }

    /// Those of the edits from an index to before another.
    pub(crate) fn of(batch: &'a Batch, (next, end): (usize, usize)) -> Self {
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
            // A page without edits between two spans stays the file's own.
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
pub(crate) fn group_of<'a>(
    text: &'a mut [u8],
    span: Span,
    edit: &TextEdit,
) -> Option<&'a mut [u8]> {
    let start = usize::try_from(edit.address.checked_sub(span.address)?).ok()?;
    text.get_mut(start..start + usize::from(edit.group))
}

/// Whether `group` is what the edit was planned for.
pub(crate) fn as_planned(group: &[u8], edit: &TextEdit) -> bool {
    let length = usize::from(edit.length);
    fingerprint(group) == edit.fingerprint && group.get(..length) == edit.old.get(..length)
}

/// Room for a span's text.
pub(crate) fn span_room() -> Result<Scratch, Errno> {
    // One group longer than a span is possible: its length is 16 bits.
    Scratch::new(SPAN_BYTES + usize::from(u16::MAX) + 1)
}

/// Applies the batch where nobody can be executing it. Returns the number of edits applied.
pub(crate) fn replace(batch: &Batch) -> Result<u64, Failure> {
    let memory = Memory::open()?;
    let mut room = span_room()?;
    let mut applied = 0;
    let mut skipped = 0;
    for span in Spans::new(batch) {
        let span = span?;
        let text = room
            .bytes()
            .get_mut(..span.length)
            .ok_or_else(Failure::malformed)?;
        let Ok(()) = memory.read(span.address, text) else {
            // Unmapped since it was planned: the same as text that is not as planned.
            for index in span.edits.0..span.edits.1 {
                batch.skip(index, skipped);
                skipped += 1;
            }
            continue;
        };
        let before = applied;
        for index in span.edits.0..span.edits.1 {
            let fitting = batch.get(index).and_then(|edit| {
                let group = group_of(text, span, &edit)?;
                as_planned(group, &edit).then_some(())?;
                let length = usize::from(edit.length);
                group
                    .get_mut(..length)?
                    .copy_from_slice(edit.new.get(..length)?);
                Some(())
            });
            if fitting.is_some() {
                applied += 1;
            } else {
                batch.skip(index, skipped);
                skipped += 1;
            }
        }
        if applied != before {
            // SAFETY: the launcher knows that nobody executes this text now.
            unsafe { memory.write(span.address, text) }?;
        }
    }
    Ok(applied)
}
