//! Objects that must precede the agent in `LD_PRELOAD`.
//!
//! The runtime of AddressSanitizer ends its program where another object comes before it in the loader's
//! list. Launcher and agent therefore name the runtime before the agent:
//! `LD_PRELOAD=libasan.so.8:/path/agent.so:users.so`. What precedes the agent is removed together with it before
//! the program reads its environment.

/// Most bytes of a runtime's name.
const NAME_BYTES: usize = 64;
/// Program headers, and entries of a dynamic section, that are read before the search is given up.
const MAX_ENTRIES: u64 = 256;

/// The name of a sanitizer's runtime, as the loader searches for it.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    bytes: [u8; NAME_BYTES],
    length: usize,
}

impl Runtime {
    /// The runtime that must precede the agent: the first object of the user's own `LD_PRELOAD`, or, if the
    /// user has none, the first object that the program needs. `read` fills a buffer from an offset of the
    /// program's file, and returns `None` on failure. `None` if this object is not such a runtime.
    pub fn of(
        users: Option<&[u8]>,
        read: impl FnMut(u64, &mut [u8]) -> Option<()>,
    ) -> Option<Self> {
        match users.map(first) {
            Some(entry) if !entry.is_empty() => Self::named(entry),
            _ => first_needed(read).and_then(|name| Self::named(&name)),
        }
    }

    /// The name, without a terminator.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// `name` up to its terminator, if it is a runtime's.
    fn named(name: &[u8]) -> Option<Self> {
        let length = name
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(name.len());
        let name = name.get(..length)?;
        if !is_runtime(name) {
            return None;
        }
        let mut bytes = [0; NAME_BYTES];
        bytes.get_mut(..length)?.copy_from_slice(name);
        Some(Self { bytes, length })
    }
}

/// Range of the agent's path in the value of `LD_PRELOAD` that a launcher or agent wrote.
#[must_use]
pub fn agent_in(preload: &[u8]) -> core::ops::Range<usize> {
    let before = first(preload);
    let start = if is_runtime(before) {
        before.len() + 1
    } else {
        0
    };
    let length = first(preload.get(start..).unwrap_or_default()).len();
    start..start + length
}

/// The first object of a list.
fn first(list: &[u8]) -> &[u8] {
    let end = list.iter().position(|&byte| byte == b':' || byte == b' ');
    list.get(..end.unwrap_or(list.len())).unwrap_or_default()
}

/// True if an object of this name is the runtime, by the runtime's own test.
fn is_runtime(name: &[u8]) -> bool {
    let holds = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    holds(b"libasan.so") || holds(b"libclang_rt.asan")
}

/// The first object that the dynamic section of a file needs (`DT_NEEDED`).
fn first_needed(mut read: impl FnMut(u64, &mut [u8]) -> Option<()>) -> Option<[u8; NAME_BYTES]> {
    const LOAD: u32 = 1;
    const DYNAMIC: u32 = 2;
    const HEADER_BYTES: u64 = 56;
    const END: u64 = 0;
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    let mut word = |offset: u64| {
        let mut bytes = [0; 8];
        read(offset, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let table = word(0x20)?;
    // The third of four 16-bit numbers: size and number of program headers, size of a section header.
    let sizes = word(0x36)?;
    let (size, count) = (sizes & 0xffff, sizes >> 16 & 0xffff);
    if size != HEADER_BYTES || count > MAX_ENTRIES {
        return None;
    }
    let header = |index: u64| table.checked_add(index * HEADER_BYTES);
    let mut dynamic = None;
    for index in 0..count {
        let at = header(index)?;
        if word(at)? as u32 == DYNAMIC {
            dynamic = Some(word(at.checked_add(8)?)?);
        }
    }
    let (mut needed, mut strings) = (None, None);
    for index in 0..MAX_ENTRIES {
        let at = dynamic?.checked_add(index * 16)?;
        let value = word(at.checked_add(8)?)?;
        match word(at)? {
            END => break,
            NEEDED => needed = needed.or(Some(value)),
            STRINGS => strings = Some(value),
            _ => {}
        }
        if needed.is_some() && strings.is_some() {
            break;
        }
    }
    let (needed, strings) = (needed?, strings?);
    for index in 0..count {
        let at = header(index)?;
        let (offset, address) = (word(at.checked_add(8)?)?, word(at.checked_add(16)?)?);
        let length = word(at.checked_add(32)?)?;
        if word(at)? as u32 == LOAD && (address..address.checked_add(length)?).contains(&strings) {
            let mut name = [0; NAME_BYTES];
            let start = offset.checked_add(strings - address)?.checked_add(needed)?;
            read(start, &mut name)?;
            return Some(name);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn nothing(_: u64, _: &mut [u8]) -> Option<()> {
        None
    }

    #[test]
    fn the_runtime_of_the_users_list_is_named_only_where_it_is_first() {
        let of = |users: &[u8]| Runtime::of(Some(users), nothing).map(|it| it.name().to_vec());
        assert_eq!(
            of(b"/usr/lib/libasan.so.8 x.so").unwrap(),
            b"/usr/lib/libasan.so.8"
        );
        assert_eq!(
            of(b"libclang_rt.asan-x86_64.so").unwrap(),
            b"libclang_rt.asan-x86_64.so"
        );
        assert_eq!(of(b"x.so:libasan.so.8"), None);
        assert_eq!(of(b""), None);
        assert_eq!(of(&[b"libasan.so".as_slice(), &[b'8'; 64]].concat()), None);
    }

    #[test]
    fn the_agent_is_found_behind_a_runtime() {
        let agent = |list: &'static str| &list[agent_in(list.as_bytes())];
        assert_eq!(agent("/t/agent.so"), "/t/agent.so");
        assert_eq!(agent("/t/agent.so:libasan.so.8"), "/t/agent.so");
        assert_eq!(agent("libasan.so.8:/t/agent.so:x.so"), "/t/agent.so");
        assert_eq!(
            agent("libasan.so.8:/t/agent.so:libasan.so.8 x"),
            "/t/agent.so"
        );
    }

    /// A file of one program header of each kind, whose dynamic section needs `name`.
    fn file(name: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 0x400];
        let mut put =
            |at: usize, value: u64| file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0x20, 0x40);
        put(0x36, 56 | 2 << 16);
        // A segment of the whole file at 0x10000, and the dynamic section.
        for (at, value) in [(0x40, 1), (0x48, 0), (0x50, 0x10000), (0x60, 0x400)] {
            put(at, value);
        }
        for (at, value) in [(0x78, 2), (0x80, 0x200)] {
            put(at, value);
        }
        // DT_NEEDED 5 and 1, then DT_STRTAB.
        for (at, value) in [
            (0x200, 1),
            (0x208, 5),
            (0x210, 1),
            (0x218, 1),
            (0x220, 5),
            (0x228, 0x10300),
        ] {
            put(at, value);
        }
        file[0x305..][..name.len()].copy_from_slice(name);
        file
    }

    #[test]
    fn the_runtime_that_a_program_needs_first_is_named() {
        let of = |users: Option<&[u8]>, name: &[u8]| {
            let file = file(name);
            let read = |offset: u64, room: &mut [u8]| {
                let start = offset as usize;
                room.copy_from_slice(file.get(start..start + room.len())?);
                Some(())
            };
            Runtime::of(users, read).map(|it| it.name().to_vec())
        };
        assert_eq!(of(None, b"libasan.so.8\0").unwrap(), b"libasan.so.8");
        assert_eq!(of(Some(b""), b"libasan.so.8\0").unwrap(), b"libasan.so.8");
        assert_eq!(of(None, b"libc.so.6\0"), None);
        // The program would end without the agent too.
        assert_eq!(of(Some(b"x.so"), b"libasan.so.8\0"), None);
        assert_eq!(
            Runtime::of(None, nothing).map(|it| it.name().to_vec()),
            None
        );
    }
}
