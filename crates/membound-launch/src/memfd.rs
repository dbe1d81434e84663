//! Anonymous files: memory that can be shared with programs through descriptors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

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
    // A kernel may refuse execution of such files unless the flag requests it; an older kernel does not
    // know the flag.
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
