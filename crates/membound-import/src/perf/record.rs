//! Records other than samples: events of processes and threads.

use super::about::digits;
use super::sample::Sample;
use crate::bytes::{ByteOrder, Cursor, until_zero};

/// Record types.
pub(super) mod number {
    pub(in super::super) const MMAP: u32 = 1;
    pub(in super::super) const LOST: u32 = 2;
    pub(in super::super) const COMM: u32 = 3;
    pub(in super::super) const EXIT: u32 = 4;
    pub(in super::super) const FORK: u32 = 7;
    pub(in super::super) const SAMPLE: u32 = 9;
    pub(in super::super) const MMAP2: u32 = 10;
    pub(in super::super) const LOST_SAMPLES: u32 = 13;
    /// The largest known type of the kernel's records.
    pub(in super::super) const LAST_OF_KERNEL: u32 = 21;
    /// From here on, types of perf's own records.
    pub(in super::super) const FIRST_OF_PERF: u32 = 64;
    pub(in super::super) const ATTR: u32 = 64;
    pub(in super::super) const TRACING_DATA: u32 = 66;
    pub(in super::super) const BUILD_ID: u32 = 67;
    pub(in super::super) const TRACE_INFO: u32 = 70;
    pub(in super::super) const TRACE: u32 = 71;
    pub(in super::super) const EVENT_UPDATE: u32 = 78;
    pub(in super::super) const TIME_CONVERSION: u32 = 79;
    pub(in super::super) const FEATURE: u32 = 80;
    pub(in super::super) const COMPRESSED: u32 = 81;
    pub(in super::super) const COMPRESSED_2: u32 = 83;
    /// The largest known type of perf's own records.
    pub(in super::super) const LAST_OF_PERF: u32 = 83;
}

/// A record of a recording.
#[derive(Clone, Debug)]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// A file or memory was mapped.
    Map(Map<'a>),
    /// A thread has a new name.
    Comm(Comm<'a>),
    /// A thread has started.
    Fork(Fork),
    /// A thread has ended.
    Exit(Exit),
}

/// A mapping of a file or of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map<'a> {
    /// Time in nanoseconds; `None` if before the recording.
    pub t_ns: Option<u64>,
    /// Number of the process; -1 for the kernel.
    pub pid: i32,
    /// First address.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Offset of the mapping in the file.
    pub offset: u64,
    /// Inode of the file, if recorded.
    pub inode: Option<u64>,
    /// Build-id of the file in hexadecimal digits, if recorded.
    pub build_id: Option<String>,
    /// True if it is executable.
    pub is_code: bool,
    /// Path, or a name in brackets.
    pub name: &'a [u8],
}

/// A new name of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comm<'a> {
    /// Time in nanoseconds; `None` if before the recording.
    pub t_ns: Option<u64>,
    /// Number of the process.
    pub pid: i32,
    /// Number of the thread.
    pub tid: i32,
    /// The new name.
    pub name: &'a [u8],
    /// True if the process executes another program from now on.
    pub is_exec: bool,
}

/// The start of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// Time in nanoseconds; `None` if before the recording.
    pub t_ns: Option<u64>,
    /// Number of the thread's process.
    pub pid: i32,
    /// Number of the thread.
    pub tid: i32,
    /// Number of the process that started it.
    pub parent_pid: i32,
}

/// The end of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Time in nanoseconds, if recorded.
    pub t_ns: Option<u64>,
    /// Number of the thread's process.
    pub pid: i32,
    /// Number of the thread.
    pub tid: i32,
}

/// Losses during the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Records that were lost for lack of room.
    pub records: u64,
    /// Samples that the processor could not store.
    pub samples: u64,
}

/// Parses a record that is no sample; `t_ns` is from the record's trailer, which `body` does not include.
/// `None` if the record is too short.
pub(super) fn read<'a>(
    number: u32,
    misc: u16,
    body: &'a [u8],
    t_ns: Option<u64>,
    order: ByteOrder,
) -> Option<Record<'a>> {
    /// Flag: the name was changed by `execve`.
    const EXEC: u16 = 1 << 13;
    /// Flag: the mapping is not executable.
    const DATA: u16 = 1 << 13;
    let mut at = Cursor::new(body, order);
    match number {
        number::MMAP => {
            let (pid, _tid) = (at.i32()?, at.i32()?);
            let (start, length, offset) = (at.u64()?, at.u64()?, at.u64()?);
            Some(Record::Map(Map {
                t_ns,
                pid,
                start,
                end: start.saturating_add(length),
                offset,
                inode: None,
                build_id: None,
                is_code: misc & DATA == 0,
                name: until_zero(at.rest()),
            }))
        }
        number::MMAP2 => map2(&mut at, misc, t_ns).map(Record::Map),
        number::COMM => Some(Record::Comm(Comm {
            t_ns,
            pid: at.i32()?,
            tid: at.i32()?,
            name: until_zero(at.rest()),
            is_exec: misc & EXEC != 0,
        })),
        number::FORK => {
            let (pid, parent_pid, tid, _) = (at.i32()?, at.i32()?, at.i32()?, at.i32()?);
            Some(Record::Fork(Fork {
                t_ns: at.u64().or(t_ns).filter(|t_ns| *t_ns > 0),
                pid,
                tid,
                parent_pid,
            }))
        }
        number::EXIT => {
            let (pid, _, tid, _) = (at.i32()?, at.i32()?, at.i32()?, at.i32()?);
            Some(Record::Exit(Exit {
                t_ns: at.u64().or(t_ns).filter(|t_ns| *t_ns > 0),
                pid,
                tid,
            }))
        }
        _ => None,
    }
}

/// True if these 24 bytes are a build-id: its length, three zeros, then 20 bytes padded with zeros. Needed
/// because the kernel sets the build-id flag also in records with device and inode numbers, if another perf
/// session requests build-ids at the same time.
fn is_build_id(file: &[u8]) -> bool {
    let size = usize::from(file[0]);
    let rest = file.get(4 + size..);
    let has_rest = rest.is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
    // Here the record has the minor device number, which is small.
    let is_minor = size == 8 && file[6..8] == [0; 2];
    matches!(size, 0 | 8 | 16 | 20) && file[1..4] == [0; 3] && has_rest && !is_minor
}

fn map2<'a>(at: &mut Cursor<'a>, misc: u16, t_ns: Option<u64>) -> Option<Map<'a>> {
    /// Flag: the record has a build-id instead of device and inode numbers.
    const HAS_BUILD_ID: u16 = 1 << 14;
    /// Bit in the protection of the memory.
    const EXECUTABLE: u32 = 4;
    let (pid, _tid) = (at.i32()?, at.i32()?);
    let (start, length, offset) = (at.u64()?, at.u64()?, at.u64()?);
    let file = at.take(24)?;
    let (mut inode, mut build_id) = (None, None);
    if misc & HAS_BUILD_ID != 0 && is_build_id(file) {
        let size = usize::from(file[0]);
        build_id = (size > 0).then(|| digits(&file[4..4 + size]));
    } else {
        let mut numbers = Cursor::new(file, at.order());
        numbers.skip(8)?;
        inode = numbers.u64().filter(|inode| *inode != 0);
    }
    let (rights, _flags) = (at.u32()?, at.u32()?);
    Some(Map {
        t_ns,
        pid,
        start,
        end: start.saturating_add(length),
        offset,
        inode,
        build_id,
        is_code: rights & EXECUTABLE != 0,
        name: until_zero(at.rest()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_numbers_are_distinguished_from_a_build_id() {
        let mut id = [0; 24];
        id[0] = 20;
        id[4..24].fill(0xab);
        assert!(is_build_id(&id));
        id[0] = 8;
        id[12..24].fill(0);
        assert!(is_build_id(&id));
        // Major and minor number, inode and its generation.
        let numbers = |major: u8| {
            let mut numbers = [0; 24];
            numbers[0] = major;
            numbers[8] = 77;
            numbers[16..20].fill(0x5a);
            numbers
        };
        assert!(!is_build_id(&numbers(254)));
        assert!(!is_build_id(&numbers(8)));
    }
}
