//! Linkage of procedures: which function each stub jumps to.

use std::collections::HashMap;

use crate::elf::{Elf, Section};

/// Sections of stubs.
const SECTIONS: [&str; 5] = [".plt", ".plt.sec", ".plt.got", ".iplt", ".plt.bnd"];

/// Bytes of a stub, where its section does not say.
const STUB: u64 = 16;

/// A stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// What it leads to; `None`: the loader's resolver.
    pub(crate) target: Option<String>,
}

/// Every stub of a file. `slots` are the addresses that the loader fills in and the functions
/// whose addresses it writes there; `order` their names as lazy stubs number them.
pub(crate) fn stubs(
    elf: &Elf<'_>,
    slots: &HashMap<u64, String>,
    order: &[Option<String>],
) -> Vec<Stub> {
    let mut stubs = Vec::new();
    // Of several sections of one name only the first is a linker's.
    let sections = SECTIONS.into_iter().filter_map(|name| elf.section(name));
    for section in sections.filter(|section| is_linkage(section)) {
        let Ok(bytes) = elf.contents(section) else {
            continue;
        };
        let size = match section.entry_size {
            8 | 16 => section.entry_size,
            _ => STUB,
        };
        let starts = (section.address..).step_by(size as usize);
        for (start, code) in starts.zip(bytes.chunks(size as usize)) {
            stubs.push(Stub {
                start,
                end: start.saturating_add(code.len() as u64),
                target: target(start, code, slots, order),
            });
        }
    }
    stubs
}

fn is_linkage(section: &Section) -> bool {
    // Addresses of stubs shall not wrap.
    section.executable() && section.address.checked_add(section.size).is_some()
}

/// By the slot that it jumps through, or the number that it pushes for the resolver.
fn target(
    start: u64,
    code: &[u8],
    slots: &HashMap<u64, String>,
    order: &[Option<String>],
) -> Option<String> {
    const ENDBR64: &[u8] = b"\xf3\x0f\x1e\xfa";
    const JUMP_THROUGH: &[u8] = b"\xff\x25";
    const PUSH: u8 = 0x68;
    let body = code.strip_prefix(ENDBR64).unwrap_or(code);
    let body = body.strip_prefix(b"\xf2").unwrap_or(body);
    let number = |bytes: &[u8]| {
        bytes
            .get(..4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(i32::from_le_bytes)
    };
    if let Some(rest) = body.strip_prefix(JUMP_THROUGH) {
        let behind = start.wrapping_add((code.len() - rest.len() + 4) as u64);
        let slot = behind.wrapping_add_signed(i64::from(number(rest)?));
        return slots.get(&slot).cloned();
    }
    let (first, rest) = body.split_first()?;
    if *first == PUSH {
        let position = usize::try_from(number(rest)?).ok()?;
        return order.get(position).cloned().flatten();
    }
    None
}
