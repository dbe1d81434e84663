//! Model-specific registers through `/dev/cpu/N/msr`.
//!
//! A register is the eight bytes at the offset that equals its number. On a test tree the file is
//! an ordinary sparse file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use membound_types::{CpuId, NotMeasured};

use crate::{Error, Root};

/// The register files of the msr module.
#[derive(Clone, Debug)]
pub struct MsrFiles {
    root: Root,
}

impl MsrFiles {
    /// The register files under `root`.
    #[must_use]
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone() }
    }

    /// The register file of a CPU.
    #[must_use]
    pub fn path(&self, cpu: CpuId) -> PathBuf {
        self.root.path(format!("dev/cpu/{cpu}/msr"))
    }

    /// Whether registers of `cpu` can be opened for reading and writing.
    ///
    /// # Errors
    /// The reason why they cannot, and what would change that.
    pub fn access(&self, cpu: CpuId) -> Result<(), NotMeasured> {
        let path = self.path(cpu);
        match open(&path, Direction::Both) {
            Ok(_) => Ok(()),
            Err(source) => Err(refused(&path, &source)),
        }
    }
}

enum Direction {
    Read,
    Both,
}

fn open(path: &Path, direction: Direction) -> io::Result<File> {
    let write = matches!(direction, Direction::Both);
    OpenOptions::new().read(true).write(write).open(path)
}

/// Reads eight bytes of a register file.
pub(crate) fn read_at(path: &Path, offset: u64) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    open(path, Direction::Read)
        .and_then(|file| file.read_exact_at(&mut bytes, offset))
        .map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes eight bytes of a register file in one call, as the kernel requires.
pub(crate) fn write_at(path: &Path, offset: u64, value: u64) -> Result<(), Error> {
    open(path, Direction::Both)
        .and_then(|file| file.write_all_at(&value.to_le_bytes(), offset))
        .map_err(|source| Error::Write {
            path: path.to_owned(),
            value: format!("{value:#x} at {offset:#x}"),
            source,
        })
}

/// The reason and remedy for an error of opening, reading or writing a register file.
pub(crate) fn refused(path: &Path, source: &io::Error) -> NotMeasured {
    let path = path.display();
    let (reason, remedy) = match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => (
            format!("{path} is not there: the msr module is not loaded"),
            Some("as root: modprobe msr"),
        ),
        Some(libc::EACCES) => (
            format!("{path} may not be opened: model-specific registers are root's"),
            Some("run membound as root"),
        ),
        Some(libc::EPERM) => (
            format!("{path} is denied: no CAP_SYS_RAWIO, or the kernel is locked down"),
            Some("run membound as root, outside of a container, with lockdown off"),
        ),
        Some(libc::EIO) => (
            format!("{path} has no such register: the processor, or the hypervisor, refuses it"),
            Some("a bare-metal machine"),
        ),
        _ => (format!("cannot use {path}: {source}"), None),
    };
    NotMeasured {
        reason,
        remedy: remedy.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_register_is_eight_bytes_at_its_number() {
        let tree = Tree::new().file("dev/cpu/2/msr", vec![0u8; 0x1000]);
        let files = MsrFiles::new(&tree.root());
        files.access(CpuId(2)).unwrap();
        let path = files.path(CpuId(2));
        write_at(&path, 0x1a4, 0x0102_0304_0506_0708).unwrap();
        assert_eq!(read_at(&path, 0x1a4).unwrap(), 0x0102_0304_0506_0708);
        assert_eq!(read_at(&path, 0x1a4 + 8).unwrap(), 0);
        assert_eq!(read_at(&path, 0x1a4 - 1).unwrap(), 0x0203_0405_0607_0800);
    }

    #[test]
    fn a_high_register_is_in_a_sparse_file() {
        let tree = Tree::new().file("dev/cpu/0/msr", "");
        let path = MsrFiles::new(&tree.root()).path(CpuId(0));
        write_at(&path, 0xc000_0108, 0x2f).unwrap();
        assert_eq!(read_at(&path, 0xc000_0108).unwrap(), 0x2f);
    }

    #[test]
    fn absence_has_a_remedy() {
        let files = MsrFiles::new(&Tree::new().root());
        let missing = files.access(CpuId(0)).unwrap_err();
        assert_eq!(missing.remedy.as_deref(), Some("as root: modprobe msr"));
        assert!(matches!(
            read_at(&files.path(CpuId(0)), 0x1a4),
            Err(Error::Read { .. })
        ));
    }
}
