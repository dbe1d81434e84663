//! Reads `/proc/PID/maps` and other data of the kernel about a process.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;

use membound_platform::kernel_file;
use membound_platform::stat::Stat;
use rustc_hash::FxHashSet;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address range.
    pub range: Range<u64>,
    /// Readable.
    pub readable: bool,
    /// Writable.
    pub writable: bool,
    /// Executable.
    pub executable: bool,
    /// Shared: writes reach other processes, or the file.
    pub shared: bool,
    /// Offset of its first byte in its file.
    pub offset: u64,
    /// Device of its file: major and minor number.
    pub device: (u32, u32),
    /// Inode of its file, 0 without one.
    pub inode: u64,
    /// Path, name in brackets, or nothing.
    pub name: OsString,
}

impl Mapping {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let start = rest.iter().position(|byte| *byte != b' ')?;
            rest = &rest[start..];
            let end = rest
                .iter()
                .position(|byte| *byte == b' ')
                .unwrap_or(rest.len());
            let (field, after) = rest.split_at(end);
            rest = after;
            std::str::from_utf8(field).ok()
        };
        let (start, end) = field()?.split_once('-')?;
        let flags = field()?.as_bytes();
        let offset = field()?;
        let (major, minor) = field()?.split_once(':')?;
        let inode = field()?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let number = |text| u32::from_str_radix(text, 16).ok();
        let name = rest.trim_ascii_start();
        Some(Self {
            range: hex(start)?..hex(end)?,
            readable: *flags.first()? == b'r',
            writable: *flags.get(1)? == b'w',
            executable: *flags.get(2)? == b'x',
            shared: *flags.get(3)? == b's',
            offset: hex(offset)?,
            device: (number(major)?, number(minor)?),
            inode: inode.parse().ok()?,
            name: OsString::from_vec(unescape(name)),
        })
    }

    /// True if it maps a file that still has its name.
    #[must_use]
    pub fn file(&self) -> bool {
        self.inode != 0 && self.name.as_encoded_bytes().starts_with(b"/") && !self.deleted()
    }

    /// True if it is text that is writable, or shared so that writing to it would reach other processes.
    pub(crate) fn exposes_text(&self) -> bool {
        self.executable && (self.writable || self.shared)
    }

    /// True if its file has been deleted.
    #[must_use]
    pub fn deleted(&self) -> bool {
        self.name.as_encoded_bytes().ends_with(b" (deleted)")
    }
}

/// The kernel writes a newline in a path as `\012`.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(byte);
            rest = after;
        }
    }
    out
}

/// Everything mapped in a process, in the order of addresses.
///
/// # Errors
/// If the process has ended, or may not be inspected.
pub fn of(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(parse(&kernel_file::read(format!("/proc/{pid}/maps"))?))
}

/// Adds memory that the agent has just mapped, of the launcher's nameless file with this inode, to the
/// known mappings of its process. Reading all mappings again takes a millisecond in a program with a few
/// hundred libraries, and such a program maps as many parts.
pub(crate) fn add(maps: &mut Vec<Mapping>, range: Range<u64>, inode: u64) {
    let place = maps.partition_point(|map| map.range.start < range.start);
    let added = Mapping {
        range,
        readable: true,
        writable: false,
        executable: false,
        shared: true,
        offset: 0,
        device: (0, 0),
        inode,
        name: OsString::from("/memfd: (deleted)"),
    };
    maps.insert(place, added);
}

fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|byte| *byte == b'\n')
        .filter_map(Mapping::parse)
        .collect()
}

/// Start of the heap that `brk` moves; 0 if it cannot be read.
pub(crate) fn heap_start(pid: u32) -> u64 {
    let stat = Stat::of(pid).ok();
    stat.and_then(|stat| stat.heap_start()).unwrap_or(0)
}

/// Inodes of all nameless files that are mapped shared in any process that can be inspected.
pub(crate) fn used_inodes() -> FxHashSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| of(pid).ok())
        .flatten()
        .filter(|map| map.shared && map.deleted())
        .map(|map| map.inode)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let text = b"55a0-55b0 r-xp 00001000 fe:01 1234   /usr/bin/a b (deleted)\n\
            7ff0-7ff8 rw-s 00000000 00:01 77 /memfd:x\\012y (deleted)\n\
            7fff0000-7fff1000 rw-p 00000000 00:00 0                          [stack]\n\
            nonsense\n\
            f000-f001 ---p 00000000 00:00 0 \n";
        let maps = parse(text);
        assert_eq!(maps.len(), 4);
        assert_eq!(maps[0].range, 0x55a0..0x55b0);
        assert!(maps[0].executable && !maps[0].writable && maps[0].readable);
        assert_eq!(
            (maps[0].offset, maps[0].device, maps[0].inode),
            (0x1000, (0xfe, 1), 1234)
        );
        assert!(maps[0].deleted() && !maps[0].file());
        assert!(maps[1].shared && !maps[0].shared);
        assert_eq!(maps[1].name, "/memfd:x\ny (deleted)");
        assert_eq!(maps[2].name, "[stack]");
        assert_eq!(maps[3].name, "");
    }

    #[test]
    fn what_was_just_mapped_is_put_in_the_order_of_addresses() {
        let mut maps = parse(b"10-20 r--p 0 0:0 0\n40-50 r--p 0 0:0 0\n");
        add(&mut maps, 0x30..0x38, 7);
        add(&mut maps, 0x60..0x61, 8);
        let starts: Vec<u64> = maps.iter().map(|map| map.range.start).collect();
        assert_eq!(starts, [0x10, 0x30, 0x40, 0x60]);
        assert!(maps[1].inode == 7 && maps[1].shared && maps[1].deleted() && !maps[1].file());
    }

    #[test]
    fn this_process_is_found_as_it_is() {
        let pid = std::process::id();
        let maps = of(pid).unwrap();
        let here = this_process_is_found_as_it_is as *const () as u64;
        let text = maps.iter().find(|map| map.range.contains(&here)).unwrap();
        assert!(text.executable && text.file());
        let heap = maps.iter().find(|map| map.name == "[heap]");
        if let Some(heap) = heap {
            assert_eq!(heap_start(pid), heap.range.start);
        }
    }
}
