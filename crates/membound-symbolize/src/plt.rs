//! Procedure linkage table: finds which function each stub jumps to.

use std::collections::HashMap;

use crate::elf::{Elf, Section};
use crate::machine::Machine;

/// Sections with stubs.
const SECTIONS: [&str; 5] = [".plt", ".plt.sec", ".plt.got", ".iplt", ".plt.bnd"];

/// Bytes of a stub, if the section header does not say.
const STUB: u64 = 16;

/// A linkage stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The function that it jumps to; `None` for the loader's resolver.
    pub(crate) target: Option<String>,
}

/// All stubs of a file. `slots` maps the addresses that the loader fills in to the functions whose addresses
/// it writes there; `order` has the names in the order of the indices that lazy stubs push.
pub(crate) fn stubs(
    elf: &Elf<'_>,
    slots: &HashMap<u64, String>,
    order: &[Option<String>],
) -> Vec<Stub> {
    let mut stubs = Vec::new();
    // Of several sections with one name only the first is the linker's.
    let sections = SECTIONS.into_iter().filter_map(|name| elf.section(name));
    for section in sections.filter(|section| is_linkage(section)) {
        let Ok(bytes) = elf.contents(section) else {
            continue;
        };
        let size = match section.entry_size {
            8 | 16 | 24 => section.entry_size,
            _ => STUB,
        };
        let starts = (section.address..).step_by(size as usize);
        for (start, code) in starts.zip(bytes.chunks(size as usize)) {
            stubs.push(Stub {
                start,
                end: start.saturating_add(code.len() as u64),
                target: match elf.machine {
                    Machine::X86_64 => target(start, code, slots, order),
                    Machine::Aarch64 => {
                        slot_of_pages(start, code).and_then(|slot| slots.get(&slot).cloned())
                    }
                },
            });
        }
    }
    stubs
}

fn is_linkage(section: &Section) -> bool {
    // Addresses of stubs must not wrap.
    section.executable() && section.address.checked_add(section.size).is_some()
}

/// The slot that an aarch64 stub jumps through: `adrp x16, PAGE; ldr x17, [x16, #OFFSET]`.
fn slot_of_pages(start: u64, code: &[u8]) -> Option<u64> {
    const PAGE: u64 = 4096;
    let words = code
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes));
    let mut page = None;
    for (at, word) in (start..).step_by(4).zip(words) {
        if word & 0x9f00_001f == 0x9000_0010 {
            // A signed 21-bit immediate, whose lower two bits are stored separately.
            let pages = (word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3;
            let pages = i64::from((pages << 11).cast_signed() >> 11);
            page = Some((at & !(PAGE - 1)).wrapping_add_signed(pages << 12));
        } else if word & 0xffc0_03ff == 0xf940_0211 {
            return Some(page?.wrapping_add(u64::from(word >> 10 & 0xfff) * 8));
        }
    }
    None
}

/// The target of an x86-64 stub, from the slot that it jumps through or the index that it pushes for the
/// resolver.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_aarch64_lead_to_their_slots() {
        let bytes = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        // As objdump shows it: 5b0: adrp x16, 1f000; ldr x17, [x16, #4000]; add; br x17.
        let stub = bytes(&[0xf000_00f0, 0xf947_d211, 0x913e_8210, 0xd61f_0220]);
        assert_eq!(slot_of_pages(0x5b0, &stub), Some(0x1_ffa0));
        // A page below.
        assert_eq!(
            slot_of_pages(0x2_0000, &bytes(&[0xf0ff_fff0, 0xf947_d211])),
            Some(0x1_ffa0)
        );
        assert_eq!(slot_of_pages(0, &bytes(&[0xf947_d211])), None);
        assert_eq!(slot_of_pages(0, &[1, 2, 3]), None);
    }
}
