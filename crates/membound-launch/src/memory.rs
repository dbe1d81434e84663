//! Memory that is shared with programs: anonymous files, read and written through their
//! descriptors or, word by word, through a mapping of their own here. Nothing that is a
//! program's is ever mapped.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_wire::Protection;
use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::conversation::{Conversation, Failure};
use crate::live::map_near;
use crate::maps::Mapping;

const PAGE_BYTES: usize = 4096;

/// Memory of which both sides use every word as an atomic.
#[derive(Debug)]
pub(crate) struct Shared {
    file: File,
    /// By which the mappings are known in processes that inherit them.
    pub(crate) inode: u64,
    words: MmapRaw,
}

impl Shared {
    /// At least `length` zero bytes, in whole pages.
    pub(crate) fn zeroed(name: &str, length: usize) -> io::Result<Self> {
        let file = zeroed(name, length.next_multiple_of(PAGE_BYTES) as u64)?;
        Ok(Self {
            inode: file.metadata()?.ino(),
            words: MmapRaw::map_raw(&file)?,
            file,
        })
    }

    /// Maps it into the program that speaks, near its agent; where.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<u64, Failure> {
        let near = conversation.agent();
        let length = self.words.len() as u64;
        map_near(conversation, maps, &near, length, |range| {
            let shared = Protection::READ_WRITE | Protection::SHARED;
            conversation.map(range, self.file.as_fd(), 0, shared)
        })
    }

    /// Puts `bytes` at `offset`, before anybody else has it.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Fills `bytes` from `offset`.
    #[cfg(test)]
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        read(&self.file, offset, bytes)
    }

    /// The word of 32 bits at `offset`.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.words.len());
        // SAFETY: the offset is inside the mapping, as was just looked at.
        let word = unsafe { self.words.as_mut_ptr().add(offset) };
        // SAFETY: pages are aligned and the offset is; the mapping lives as long as `self`,
        // and both sides use its words as atomics.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// The word of 64 bits at `offset`.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.words.len());
        // SAFETY: the offset is inside the mapping, as was just looked at.
        let word = unsafe { self.words.as_mut_ptr().add(offset) };
        // SAFETY: as for 32 bits.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// What was counted in so many `classes`, in words of 64 bits from `offset`: where each class with
    /// any begins by `begin`, where the next one does, and its count.
    pub(crate) fn classes(
        &self,
        offset: usize,
        classes: usize,
        begin: fn(usize) -> u64,
    ) -> Vec<(u64, u64, u64)> {
        let counted = |class: usize| {
            let word = self.word64(offset + size_of::<u64>() * class);
            let count = word.load(Ordering::Relaxed);
            (count > 0).then(|| (begin(class), begin(class + 1), count))
        };
        (0..classes).filter_map(counted).collect()
    }
}

/// An anonymous file that holds `bytes`.
pub(crate) fn with(name: &str, bytes: &[u8]) -> io::Result<File> {
    let file = File::from(create(name)?);
    file.set_len(bytes.len() as u64)?;
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

/// An anonymous file of `length` zero bytes.
pub(crate) fn zeroed(name: &str, length: u64) -> io::Result<File> {
    let file = File::from(create(name)?);
    file.set_len(length)?;
    Ok(file)
}

fn create(name: &str) -> io::Result<std::os::fd::OwnedFd> {
    // A kernel may be set up to refuse execution of such files unless it is asked for;
    // an older one does not know the flag.
    match memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => Ok(memfd_create(name, MemfdFlags::CLOEXEC)?),
        other => Ok(other?),
    }
}

/// Fills `bytes` from `offset`.
pub(crate) fn read(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(bytes, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_had_back() {
        let file = with("test", b"abcdef").unwrap();
        let mut part = [0; 3];
        read(&file, 2, &mut part).unwrap();
        assert_eq!(&part, b"cde");
        assert!(read(&file, 4, &mut part).is_err());
        let file = zeroed("test", 4096).unwrap();
        read(&file, 4093, &mut part).unwrap();
        assert_eq!(part, [0; 3]);
    }
}
