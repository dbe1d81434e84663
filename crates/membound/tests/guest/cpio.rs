//! The archive format of an initramfs: cpio, "new ASCII" (newc), as the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst` gives it.

use std::collections::BTreeSet;
use std::path::{Component, Path};

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;

/// An archive that grows file by file.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    /// Directories that are already in it.
    directories: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds an executable file at the absolute `path`, and the directories above it.
    pub(crate) fn file(&mut self, path: &Path, content: &[u8]) {
        let mut name = String::new();
        let mut parts = path
            .components()
            .filter_map(|part| match part {
                Component::Normal(part) => part.to_str(),
                _ => None,
            })
            .peekable();
        while let Some(part) = parts.next() {
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(part);
            if parts.peek().is_some() && self.directories.insert(name.clone()) {
                self.entry(&name, DIRECTORY, &[]);
            }
        }
        self.entry(&name, EXECUTABLE, content);
    }

    /// The archive with its trailer.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of a test is below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a name is short");
        self.bytes.extend_from_slice(b"070701");
        // ino, mode, uid, gid, nlink, mtime, filesize, dev, rdev (each major and minor),
        // namesize, check.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

#[test]
fn archive_has_each_directory_once_and_aligned_entries() {
    let mut archive = Archive::default();
    archive.file(Path::new("/bin/a"), b"first");
    archive.file(Path::new("/bin/b"), b"");
    let bytes = archive.finish();
    let text = String::from_utf8(bytes).unwrap();
    let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
    let names: Vec<&str> = starts
        .iter()
        .map(|start| text[start + 110..].split('\0').next().unwrap())
        .collect();
    assert_eq!(names, ["bin", "bin/a", "bin/b", "TRAILER!!!"]);
    assert!(starts.iter().all(|start| start % 4 == 0));
    // Size of the first file, the seventh field.
    assert_eq!(&text[starts[1] + 54..starts[1] + 62], "00000005");
}
