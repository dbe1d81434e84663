//! Wrapped functions: the jump at their entry leads to the agent, which calls the original function or
//! continues at its entry as if there were no patch.
//!
//! The jump at the entry leads to
//!
//! ```text
//! push r11
//! lea  r11, [displaced]
//! jmp  [slot]            ; membound_wire::Entry::Wrap
//! .long number
//! displaced:             ; the function's first instructions, and the jump back
//! ```
//!
//! This code changes no register, and because it jumps rather than calls, the processor's return stack stays
//! as it was.

use iced_x86::Code;
use membound_wire::Entry;

use super::emit::Emitter;
use super::group::Item;
use super::table::{RegisterOffsets, Resume, Tables};
use super::views::{HookState, WrapView};
use super::writer::Writer;
use super::{Refusal, Wrapped};
use crate::Gpr;
use crate::code::Function;
use crate::image::Image;

/// A wrapped entry in a function that is being planned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrap {
    /// The public part.
    pub view: WrapView,
    /// Index of the patched instruction in its function.
    pub instruction: usize,
}

/// Addresses of the functions of `image` to be wrapped, sorted, with their numbers. If several names have one
/// address, the first in `wrapped` counts.
pub(super) fn resolve(image: &Image<'_>, wrapped: &[Wrapped]) -> Vec<(u64, u32)> {
    if wrapped.is_empty() {
        return Vec::new();
    }
    let position = |name: &[u8]| wrapped.iter().position(|it| it.name.as_bytes() == name);
    let mut found: Vec<(u64, usize)> = image
        .functions_named(|name| position(name).is_some())
        .into_iter()
        .filter_map(|(address, name)| Some((address, position(name)?)))
        .collect();
    found.sort_unstable();
    found.dedup_by_key(|(address, _)| *address);
    found
        .into_iter()
        .map(|(address, position)| (address, wrapped[position].number))
        .collect()
}

/// The entries in `function` to be wrapped; marks them as wanted in `items`.
pub(super) fn plan(function: &Function, resolved: &[(u64, u32)], items: &mut [Item]) -> Vec<Wrap> {
    let range = &function.bounds.range;
    let first = resolved.partition_point(|(address, _)| *address < range.start);
    resolved[first..]
        .iter()
        .take_while(|(address, _)| *address < range.end)
        .filter_map(|(address, number)| {
            let entry = entry(function, *address)?;
            let item = items.get_mut(entry)?;
            let state = if item.form.is_some() {
                item.has_site = true;
                HookState::Hooked
            } else {
                HookState::Refused(Refusal::NotRelocatable)
            };
            Some(Wrap {
                view: WrapView {
                    address: function.instructions[entry].ip(),
                    number: *number,
                    state,
                },
                instruction: entry,
            })
        })
        .collect()
}

/// Index of the first instruction at `address` that may be moved: not `endbr64`, which must stay.
pub(super) fn entry(function: &Function, address: u64) -> Option<usize> {
    let all = &function.instructions;
    let entry = all
        .binary_search_by_key(&address, |instruction| instruction.ip())
        .ok()?;
    let marked = all[entry].code() == Code::Endbr64;
    let entry = entry + usize::from(marked);
    (entry < all.len()).then_some(entry)
}

/// Writes the code before the displaced entry, as a place of its own; the caller writes the entry.
pub(super) fn write(number: u32, original: u32, out: &mut Emitter, tables: &mut Tables) {
    /// Bytes of the jump and the number, which follow the `lea`.
    const BEHIND: u32 = 10;
    let code = out.at();
    let mut steps = Vec::new();
    let mut writer = Writer {
        out,
        tables,
        steps: &mut steps,
        frame: RegisterOffsets::default(),
        resume: Resume::Start,
    };
    writer.begin();
    writer.push(Gpr::new(11));
    writer.out.raw(&[0x4c, 0x8d, 0x1d]);
    writer.out.raw(&BEHIND.to_le_bytes());
    writer.out.jump_entry(Entry::Wrap);
    writer.out.raw(&number.to_le_bytes());
    let displaced = out.at();
    tables.place(code, original, displaced, &steps);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::{Hooks, Options, Placement, Plan};

    #[test]
    fn an_entry_leads_to_the_agent_and_on_to_what_was_displaced() {
        const NUMBER: u32 = 0x0007_0001;
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let mut options = Options::bare(Hooks::LeaveOut);
        options.wrapped = vec![Wrapped {
            name: "main".to_owned(),
            number: NUMBER,
        }];
        let plan = Plan::make(&image, &options);
        let plan = Plan::from_bytes(plan.as_bytes().to_vec()).unwrap();
        assert!(plan.is_for(image.identity(), &options));
        let wraps: Vec<WrapView> = plan.wraps().collect();
        let [main] = wraps[..] else {
            panic!("{wraps:?}");
        };
        assert_eq!((main.number, main.state), (NUMBER, HookState::Hooked));
        let named = image.functions_named(|name| name == b"main");
        let start = named[0].0;
        assert!(main.address == start || main.address == start + 4);
        let placed = plan
            .place(&Placement {
                bias: 0x5555_0000_0000,
                area: 0x5555_6000_0000,
            })
            .unwrap();
        let [edit] = placed.edits[..] else {
            panic!("{:?}", placed.edits);
        };
        assert_eq!(edit.address, main.address + 0x5555_0000_0000);
        let at = usize::try_from(edit.target - 0x5555_6000_0000).unwrap();
        let code = &placed.code[at..];
        // push r11; lea r11, [rip + 10]; jmp [rip + ...]; the number.
        assert_eq!(code[..9], [0x41, 0x53, 0x4c, 0x8d, 0x1d, 10, 0, 0, 0]);
        assert_eq!(code[9..11], [0xff, 0x25]);
        assert_eq!(code[15..19], NUMBER.to_le_bytes());
        let slot = i32::from_le_bytes(code[11..15].try_into().unwrap());
        let data = plan.layout().code_bytes + plan.layout().tables_bytes;
        let slot = (at as u64 + 15).wrapping_add_signed(i64::from(slot));
        assert_eq!(slot, data + Entry::Wrap as u64 * 8);
        let mut key = options.clone();
        key.wrapped[0].number += 1;
        assert_ne!(options.key(), key.key());
    }
}
