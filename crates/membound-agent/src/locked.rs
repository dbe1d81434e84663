//! `mlockall`: the agent's own memory must not be locked with the program's.
//!
//! The rings have hundreds of megabytes, which take memory only as far as they are used. The kernel would
//! fill all of them, which takes a second, and would refuse the call if the program may lock only a few
//! megabytes. So the agent locks each mapping that is not its own by a separate call. Anonymous memory of
//! the agent looks like the program's and is locked with it.

use crate::sys::{self, Errno, Open, call, check, number};

const CURRENT: u64 = 1;
const FUTURE: u64 = 2;
const ON_FAULT: u64 = 4;

/// Prefix of the names of the agent's files in memory.
const OWN: &[u8] = b"/memfd:membound-";
/// Allowance for the agent's anonymous memory, in bytes; its exact size is not known.
const ANONYMOUS_BYTES: u64 = 32 << 20;

/// Makes the call with `flags`. `None`: the trampoline is to make it itself.
pub(crate) fn lock_all(flags: u64) -> Option<isize> {
    if flags & CURRENT == 0 || flags & !(CURRENT | FUTURE | ON_FAULT) != 0 {
        return None;
    }
    let mut total_bytes = 0;
    each_mapping(|start, end| total_bytes += end - start).ok()?;
    let limit_bytes = limit_bytes()?;
    let exceeds = limit_bytes == 0 || total_bytes.saturating_sub(ANONYMOUS_BYTES) > limit_bytes;
    if exceeds && !may_lock_more()? {
        // The kernel refuses the call, as it would without the agent.
        return None;
    }
    each_mapping(|start, end| {
        let length = end - start;
        let on_fault = usize::from(flags & ON_FAULT != 0);
        // `mlockall` does not report mappings that cannot be filled either.
        // SAFETY: memory is locked that the program asked to lock.
        let _ = unsafe {
            call(
                number::MLOCK2,
                [start as usize, length as usize, on_fault, 0, 0, 0],
            )
        };
    })
    .ok()?;
    if flags & FUTURE == 0 {
        return Some(0);
    }
    // SAFETY: the program asked for it.
    Some(unsafe {
        call(
            number::MLOCKALL,
            [(flags & !CURRENT) as usize, 0, 0, 0, 0, 0],
        )
    })
}

/// Calls `visit` with the addresses of every mapping that is not a file of the agent.
fn each_mapping(mut visit: impl FnMut(u64, u64)) -> Result<(), Errno> {
    let file = sys::open(c"/proc/self/maps", Open::Read)?;
    // Small, since the stack may be small.
    let mut room = [0_u8; 1024];
    let mut line = Mapping::default();
    loop {
        let filled = sys::read(&file, &mut room)?;
        if filled == 0 {
            return Ok(());
        }
        for &byte in room.get(..filled).unwrap_or_default() {
            if byte == b'\n' {
                if line.matched < OWN.len() && line.start < line.end {
                    visit(line.start, line.end);
                }
                line = Mapping::default();
            } else {
                line.byte(byte);
            }
        }
    }
}

/// State of parsing a line of the mappings: `start-end rwxp offset device inode name`.
#[derive(Default)]
struct Mapping {
    start: u64,
    end: u64,
    /// The field that the next byte belongs to; 0 and 1 are the addresses.
    field: u32,
    /// Number of bytes of [`OWN`] that the last bytes match.
    matched: usize,
}

impl Mapping {
    fn byte(&mut self, byte: u8) {
        if self.matched == OWN.len() {
            return;
        }
        // Only the first byte of it is a slash, so a match can begin only at a slash.
        self.matched = match OWN.get(self.matched) {
            Some(&next) if next == byte => self.matched + 1,
            _ => usize::from(byte == b'/'),
        };
        let number = match (self.field, byte) {
            (0, b'-') | (1, b' ') => {
                self.field += 1;
                return;
            }
            (0, _) => &mut self.start,
            (1, _) => &mut self.end,
            _ => return,
        };
        if let Some(digit) = char::from(byte).to_digit(16) {
            *number = *number << 4 | u64::from(digit);
        }
    }
}

/// Bytes that the process may lock without a capability.
fn limit_bytes() -> Option<u64> {
    const MEMLOCK: usize = 8;
    let mut limits = [0_u64; 2];
    // SAFETY: the kernel writes both numbers.
    let result = unsafe {
        call(
            number::PRLIMIT64,
            [0, MEMLOCK, 0, (&raw mut limits) as usize, 0, 0],
        )
    };
    check(result).ok().map(|_| limits[0])
}

/// True if the thread may lock more (CAP_IPC_LOCK).
fn may_lock_more() -> Option<bool> {
    const VERSION: u32 = 0x2008_0522;
    const IPC_LOCK: u32 = 14;
    let mut head = [VERSION, 0];
    // Two sets of effective, permitted and inheritable capabilities.
    let mut sets = [0_u32; 6];
    let (head, room) = ((&raw mut head) as usize, (&raw mut sets) as usize);
    // SAFETY: the kernel writes what there is room for.
    let result = unsafe { call(number::CAPGET, [head, room, 0, 0, 0, 0]) };
    check(result).ok().map(|_| sets[0] >> IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_agent_are_recognised() {
        let read = |text: &str| {
            let mut line = Mapping::default();
            text.bytes().for_each(|byte| line.byte(byte));
            (line.start, line.end, line.matched == OWN.len())
        };
        let own = "7f01000-7f03000 rw-s 00000000 00:01 5   /memfd:membound-rings (deleted)";
        assert_eq!(read(own), (0x7f0_1000, 0x7f0_3000, true));
        let foreign_line = "00400000-00500000 r-xp 00000000 fe:00 12   /x/memfd:membound";
        assert_eq!(read(foreign_line), (0x40_0000, 0x50_0000, false));
        assert_eq!(
            read("1000-2000 rw-p 00000000 00:00 0 "),
            (0x1000, 0x2000, false)
        );
    }

    #[test]
    fn every_mapping_is_visited() {
        let own_address = files_of_the_agent_are_recognised as fn() as usize as u64;
        let mut found = 0;
        each_mapping(|start, end| found += u32::from((start..end).contains(&own_address))).unwrap();
        assert_eq!(found, 1);
    }
}
