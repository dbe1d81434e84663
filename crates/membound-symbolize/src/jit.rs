//! Maps of code made at run time, as compilers write them to `/tmp/perf-PID.map`: a start
//! and a size in hexadecimal digits, and a name, on each line.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Bytes of a line that are read; the rest of a longer line is left out.
const MAX_LINE_BYTES: usize = 64 << 10;

/// A named piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitEntry {
    /// The name, demangled if the compiler wrote it mangled.
    pub name: String,
    /// Address of the first byte in the process.
    pub start: u64,
    /// Length in bytes.
    pub size: u64,
}

/// All named pieces of code of a process. Where pieces overlap, the last written one has the addresses:
/// compilers reuse memory of discarded code.
#[derive(Clone, Debug, Default)]
pub struct JitMap {
    entries: Vec<JitEntry>,
    /// For each first address: one past the last, and index in `entries`.
    pieces: BTreeMap<u64, (u64, usize)>,
    damaged: u64,
}

impl JitMap {
    /// Parses a map. Malformed lines are skipped and counted. The map may be long, may not be UTF-8, and may
    /// end within a line.
    ///
    /// # Errors
    /// When reading fails.
    pub fn read(mut from: impl BufRead) -> io::Result<Self> {
        let mut map = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let whole = read_line(&mut from, &mut line)?;
            if line.is_empty() && !whole {
                return Ok(map);
            }
            map.add_line(&String::from_utf8_lossy(&line));
        }
    }

    /// The piece of code that contains `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&JitEntry> {
        let (_, &(end, entry)) = self.pieces.range(..=address).next_back()?;
        (address < end).then(|| &self.entries[entry])
    }

    /// Number of malformed lines.
    #[must_use]
    pub const fn damaged(&self) -> u64 {
        self.damaged
    }

    fn add_line(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let Some(entry) = entry(line) else {
            self.damaged += 1;
            return;
        };
        let (start, end) = (entry.start, entry.start + entry.size);
        self.cut_out(start, end);
        self.pieces.insert(start, (end, self.entries.len()));
        self.entries.push(entry);
    }

    /// Removes `start..end` from all pieces that overlap it.
    fn cut_out(&mut self, start: u64, end: u64) {
        // At most one piece begins before `start` and reaches into the range; the others begin inside.
        if let Some((&first, &(last, entry))) = self.pieces.range(..start).next_back()
            && last > start
        {
            self.pieces.insert(first, (start, entry));
            if last > end {
                self.pieces.insert(end, (last, entry));
            }
        }
        while let Some((&first, &(last, entry))) = self.pieces.range(start..end).next() {
            self.pieces.remove(&first);
            if last > end {
                self.pieces.insert(end, (last, entry));
            }
        }
    }
}

fn entry(line: &str) -> Option<JitEntry> {
    let (start, rest) = line.trim_start().split_once(char::is_whitespace)?;
    let (size, name) = rest.trim_start().split_once(char::is_whitespace)?;
    let (start, size) = (hexadecimal(start)?, hexadecimal(size)?);
    let name = name.trim();
    if size == 0 || name.is_empty() || start.checked_add(size).is_none() {
        return None;
    }
    Some(JitEntry {
        name: crate::demangle(name).into_owned(),
        start,
        size,
    })
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // `from_str_radix` takes a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// Reads a line without its end, at most [`MAX_LINE_BYTES`] bytes of it. False if the input ended before the
/// line did.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let line_bytes = end.unwrap_or(bytes.len());
        let room = MAX_LINE_BYTES.saturating_sub(line.len());
        line.extend_from_slice(&bytes[..line_bytes.min(room)]);
        from.consume(line_bytes + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> JitMap {
        JitMap::read(text.as_bytes()).expect("memory can be read")
    }

    #[test]
    fn lines_are_read_and_damage_is_counted() {
        let text = "7f00 20 LazyCompile:~add /a b.js:1\n0x8000 0x10 _ZN3foo3barEi\n\n\
                    xyz 10 no\n9000 0 empty\n9000\n-1 10 sign\nffffffffffffffff 2 wraps\n9100 10\n";
        let map = parse(text);
        assert_eq!(map.entries.len(), 2);
        assert_eq!(map.damaged(), 6);
        let name = |address| map.find(address).map(|entry| entry.name.as_str());
        assert_eq!(name(0x7eff), None);
        assert_eq!(name(0x7f00), Some("LazyCompile:~add /a b.js:1"));
        assert_eq!(name(0x7f1f), Some("LazyCompile:~add /a b.js:1"));
        assert_eq!(name(0x7f20), None);
        assert_eq!(name(0x8004), Some("foo::bar(int)"));
    }

    #[test]
    fn the_last_writer_holds_the_addresses() {
        let map = parse("1000 100 old\n1040 20 inside\n10f0 40 over the end\n");
        let name = |address| map.find(address).map(|entry| entry.name.as_str());
        assert_eq!(name(0x1000), Some("old"));
        assert_eq!(name(0x1040), Some("inside"));
        assert_eq!(name(0x1060), Some("old"));
        assert_eq!(name(0x10ef), Some("old"));
        assert_eq!(name(0x10f0), Some("over the end"));
        assert_eq!(name(0x112f), Some("over the end"));
        assert_eq!(name(0x1130), None);
    }

    #[test]
    fn a_reader_ends_within_a_line_and_may_hold_any_bytes() {
        let mut bytes = b"1000 10 a\xff\n2000 10 ".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', 200_000));
        bytes.extend_from_slice(b"\n3000 10 last");
        let map = JitMap::read(bytes.as_slice()).expect("memory can be read");
        assert_eq!(map.entries.len(), 3);
        assert_eq!(map.find(0x1000).map(|e| e.name.as_str()), Some("a\u{fffd}"));
        assert!(
            map.find(0x2000)
                .is_some_and(|e| e.name.len() < MAX_LINE_BYTES)
        );
        assert_eq!(map.find(0x300f).map(|e| e.name.as_str()), Some("last"));
    }

    proptest! {
        #[test]
        fn overlaps_are_resolved_as_if_each_byte_were_written(
            pieces in prop::collection::vec((0_u64..64, 1_u64..16), 0..40)
        ) {
            use std::fmt::Write as _;
            let mut bytes = [None; 96];
            let mut text = String::new();
            for (at, (start, size)) in pieces.iter().enumerate() {
                writeln!(text, "{start:x} {size:x} n{at}").expect("strings grow");
                for byte in *start..start + size {
                    bytes[usize::try_from(byte).expect("it is small")] = Some(at);
                }
            }
            let map = parse(&text);
            for (address, expected) in bytes.iter().enumerate() {
                let found = map.find(address as u64).map(|entry| entry.name.clone());
                prop_assert_eq!(found, expected.map(|at| format!("n{at}")));
            }
        }
    }
}
