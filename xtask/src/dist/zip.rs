//! As much of the ZIP format as a wheel needs: deflated files, in 32-bit sizes.
//!
//! By PKWARE's APPNOTE 6.3, sections 4.3.7 (a file's header), 4.3.12 (the directory) and
//! 4.3.16 (its end). Files are all of 1980, so that the same content makes the same archive.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::DeflateEncoder;

/// Version of the format that an extractor must know, and that made the file: 2.0 on Unix.
const NEEDED: u16 = 20;
const MADE_BY: u16 = 3 << 8 | NEEDED;
const DEFLATED: u16 = 8;
/// The first of January 1980 in the format of MS-DOS.
const DATE: u16 = 0x21;

/// An archive under way.
#[derive(Default)]
pub(super) struct Archive {
    files: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

/// Who may do what with a file that is unpacked.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    /// Read by everyone.
    Plain = 0o100_644,
    /// Also executed.
    Executable = 0o100_755,
}

impl Archive {
    /// Adds a file.
    ///
    /// # Errors
    /// When the archive becomes larger than the format's 32-bit numbers allow.
    pub(super) fn add(&mut self, name: &str, data: &[u8], mode: Mode) -> Result<()> {
        let packed = deflate(data).context("cannot compress")?;
        let offset = narrow(self.files.len())?;
        let common = common(name, data, &packed)?;
        self.files.extend(b"PK\x03\x04");
        self.files.extend(&common);
        self.files.extend(name.as_bytes());
        self.files.extend(packed);

        self.directory.extend(b"PK\x01\x02");
        self.directory.extend(MADE_BY.to_le_bytes());
        self.directory.extend(common);
        // No comment, first disk, no internal attributes.
        self.directory.extend([0; 6]);
        self.directory.extend(((mode as u32) << 16).to_le_bytes());
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.count = self.count.checked_add(1).context("too many files")?;
        Ok(())
    }

    /// The whole archive.
    ///
    /// # Errors
    /// As for [`Archive::add`].
    pub(super) fn finish(self) -> Result<Vec<u8>> {
        let (offset, length) = (narrow(self.files.len())?, narrow(self.directory.len())?);
        let mut whole = self.files;
        whole.extend(self.directory);
        whole.extend(b"PK\x05\x06\0\0\0\0");
        whole.extend([self.count.to_le_bytes(); 2].concat());
        whole.extend(length.to_le_bytes());
        whole.extend(offset.to_le_bytes());
        // No comment.
        whole.extend([0; 2]);
        Ok(whole)
    }
}

/// The fields that a file's header and its entry in the directory share.
fn common(name: &str, data: &[u8], packed: &[u8]) -> Result<Vec<u8>> {
    let mut fields = Vec::new();
    // No flags; a time of 0.
    for short in [NEEDED, 0, DEFLATED, 0, DATE] {
        fields.extend(short.to_le_bytes());
    }
    for long in [
        crc32fast::hash(data),
        narrow(packed.len())?,
        narrow(data.len())?,
    ] {
        fields.extend(long.to_le_bytes());
    }
    let length = u16::try_from(name.len()).context("a name is too long")?;
    fields.extend(length.to_le_bytes());
    // No extra field.
    fields.extend([0; 2]);
    Ok(fields)
}

fn narrow(length: usize) -> Result<u32> {
    u32::try_from(length).context("the archive is too large")
}

fn deflate(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use membound_testkit::{is_there, skipped};

    use super::*;
    use crate::run::{program, stdout_of};

    #[test]
    fn another_implementation_reads_what_was_written() {
        if !is_there("python3") {
            return skipped("no python3");
        }
        let mut archive = Archive::default();
        archive.add("a/plain", b"text\n", Mode::Plain).unwrap();
        let large = b"0123456789".repeat(10_000);
        archive.add("program", &large, Mode::Executable).unwrap();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x.zip");
        std::fs::write(&path, archive.finish().unwrap()).unwrap();
        let read = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\n\
                    assert z.testzip() is None\nfor i in z.infolist():\n \
                    print(i.filename, oct(i.external_attr >> 16), len(z.read(i)))";
        let told = stdout_of(program("python3").args(["-c", read]).arg(&path)).unwrap();
        assert_eq!(told, "a/plain 0o100644 5\nprogram 0o100755 100000\n");
    }
}
