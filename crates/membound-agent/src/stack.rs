//! Bounds of the stack that a thread uses, from the kernel's list of mappings.

use crate::sys::{self, Open};
use crate::unwind::Stack;

/// Bytes of a page: the page of the stack pointer is mapped in any case.
const PAGE: u64 = 4096;

/// The stack that holds `sp`; the rest of its page if the kernel does not list it.
///
/// It reads a file: call it once for each thread.
pub(crate) fn holding(sp: u64) -> Stack {
    find(sp).unwrap_or_else(|| page(sp))
}

/// The part of the page of `sp` that is mapped in any case.
pub(crate) fn page(sp: u64) -> Stack {
    Stack {
        low: sp,
        high: (sp | (PAGE - 1)).saturating_add(1),
    }
}

fn find(sp: u64) -> Option<Stack> {
    // Small, since it is on the stack of a thread that does not expect this call.
    let mut room = [0_u8; 768];
    let file = sys::open(c"/proc/self/maps", Open::Read).ok()?;
    let mut reader = Reader::new(sp);
    loop {
        let filled = sys::read(&file, &mut room).ok()?;
        if filled == 0 {
            return None;
        }
        for &byte in room.get(..filled)? {
            if let Some(found) = reader.byte(byte) {
                return found;
            }
        }
    }
}

/// Parses the list byte by byte: `start-end rwxp offset device inode name`.
struct Reader {
    sp: u64,
    before: u64,
    start: u64,
    number: u64,
    /// Index of the field in the line, and how many of its bytes were read.
    field: u32,
    in_field: u32,
    /// True if the last byte was between fields.
    space: bool,
    readable: bool,
    /// The line's addresses if the stack pointer is below their end.
    found: Option<Stack>,
    name: [u8; 7],
}

impl Reader {
    fn new(sp: u64) -> Self {
        Self {
            sp,
            before: 0,
            start: 0,
            number: 0,
            field: 0,
            in_field: 0,
            space: false,
            readable: false,
            found: None,
            name: [0; 7],
        }
    }

    /// Takes the next byte. `Some` at the end of the line that decides.
    fn byte(&mut self, byte: u8) -> Option<Option<Stack>> {
        if byte == b'\n' {
            let found = self.line();
            self.field = 0;
            self.in_field = 0;
            self.number = 0;
            self.space = false;
            self.name = [0; 7];
            return found;
        }
        if byte == b' ' && self.field < 5 {
            if self.field == 0 && !self.space {
                self.mapping();
            }
            self.space = true;
            return None;
        }
        if self.space {
            self.space = false;
            self.field += 1;
            self.in_field = 0;
        }
        match self.field {
            0 if byte == b'-' => {
                self.start = self.number;
                self.number = 0;
            }
            0 => self.number = self.number << 4 | hexadecimal(byte),
            1 if self.in_field == 0 => self.readable = byte == b'r',
            5 => {
                if let Some(place) = self.name.get_mut(self.in_field as usize) {
                    *place = byte;
                }
            }
            _ => {}
        }
        self.in_field = self.in_field.saturating_add(1);
        None
    }

    /// The addresses of a line are complete.
    fn mapping(&mut self) {
        let end = self.number;
        self.found = (end > self.sp).then_some(Stack {
            low: self.start,
            high: end,
        });
    }

    fn line(&mut self) -> Option<Option<Stack>> {
        let Some(mut found) = self.found else {
            self.before = self.number;
            return None;
        };
        // The initial stack may grow down to the mapping below it.
        if self.name == *b"[stack]" {
            found.low = self.before;
        }
        let holds = found.low <= self.sp && self.readable;
        Some(holds.then_some(found))
    }
}

fn hexadecimal(byte: u8) -> u64 {
    u64::from(match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"55a0000-55b0000 r-xp 00001000 fe:01 1234   /usr/bin/a b\n\
        7f00000-7f01000 ---p 00000000 00:00 0 \n\
        7f01000-7f40000 rw-p 00000000 00:00 0 \n\
        7ffd000-7fff000 rw-p 00000000 00:00 0                          [stack]\n\
        8000000-8001000 r-xp 00000000 00:00 0                          [vdso]\n";

    fn check(sp: u64, expected: Option<(u64, u64)>) {
        let mut reader = Reader::new(sp);
        let found = MAPS.iter().find_map(|byte| reader.byte(*byte)).flatten();
        let expected = expected.map(|(low, high)| Stack { low, high });
        assert_eq!(found, expected, "{sp:x}");
    }

    #[test]
    fn the_mapping_of_a_stack_pointer_is_found() {
        check(0x7f0_2000, Some((0x7f0_1000, 0x7f4_0000)));
        check(0x7f0_1000, Some((0x7f0_1000, 0x7f4_0000)));
        check(0x7f0_0800, None);
        // The initial stack may have grown since.
        check(0x7ff_e000, Some((0x7f4_0000, 0x7ff_f000)));
        check(0x7f5_0000, Some((0x7f4_0000, 0x7ff_f000)));
        check(0x900_0000, None);
        check(0x10, None);
    }

    #[test]
    fn the_stack_of_this_thread_holds_its_variables() {
        let variable = 0_u64;
        let place = (&raw const variable) as u64;
        let stack = holding(place);
        assert!(stack.low <= place && place + 8 <= stack.high);
        assert!(stack.high - stack.low > PAGE);
    }
}
