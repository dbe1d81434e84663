//! The patch at the function that the dynamic loader calls when its list of modules has changed.

use super::assembly::{Assembly, Part};
use super::body::SettledBody;
use super::function::PlannedFunction;
use super::group::{self, FunctionContext, Item};
use super::relocate;
use super::trampoline::{Chunk, InsertedBodies, Work, WorkKind};
use super::views::FunctionView;
use super::{Body, EDIT, Options, Plan, Refusal};
use crate::code::Function;

/// A plan that calls [`membound_wire::Entry::Modules`] at the entry of a small function. `original` holds the
/// function's first bytes as they are at the address `at` of the process.
///
/// Place the plan with a bias of 0. Such a function usually consists of `ret` alone, so the padding after it
/// is overwritten too. It must be called directly or begin with `endbr64`.
///
/// # Errors
/// If there is no room for a jump, or the entry cannot be moved.
pub fn entry_hook(original: &[u8], at: u64) -> Result<Plan, Refusal> {
    let mut function = Function::from_code(original, at);
    // Whatever follows the function's return is not part of it, even if it decodes.
    function.unresolved = None;
    function.blocks.truncate(1);
    let block = function.blocks.first().ok_or(Refusal::Undecodable)?;
    function.instructions.truncate(block.end as usize);
    let mut items: Vec<Item> = function
        .instructions
        .iter()
        .map(|instruction| {
            let start = (instruction.ip() - at) as usize;
            let bytes = original.get(start..start + instruction.len());
            Item {
                form: bytes.and_then(|bytes| relocate::form(instruction, bytes)),
                ..Item::default()
            }
        })
        .collect();
    let entry = items
        .iter()
        .position(|item| item.form.is_some())
        .filter(|entry| *entry <= 1)
        .ok_or(Refusal::NotRelocatable)?;
    items[entry].has_site = true;
    let work = Work {
        body: SettledBody::modules(),
        kind: WorkKind::Hook,
    };
    let origin = at & !4095;
    let context = FunctionContext {
        function: &function,
        items: &items,
        bytes: original,
        closes_loops: false,
    };
    let groups = group::find(&context);
    let group = groups.groups.first().ok_or(Refusal::NoRoom)?;
    if usize::from(group.room) < EDIT || group.first != entry {
        return Err(Refusal::NoRoom);
    }
    let mut chunk = Chunk::new(origin);
    let before = InsertedBodies {
        bodies: &[(entry, work)],
        wraps: &[],
    };
    chunk.trampoline(&context, group, &before, None, |_, _| {});
    let part = Part {
        chunk,
        found: vec![(FunctionView::of(&function), PlannedFunction::default())],
    };
    let assembly = Assembly {
        origin,
        end: at.saturating_add(original.len() as u64),
        identity: Vec::new(),
        options: &Options::new(Body::Displace),
    };
    Ok(assembly.plan(vec![part], |_, _| None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::Placement;

    const AT: u64 = 0x7f00_0000_1230;

    /// Address of the jump, and number of bytes overwritten.
    fn check(original: &[u8], expected: Result<u64, Refusal>) {
        let mut bytes = [0x55; 16];
        bytes[..original.len()].copy_from_slice(original);
        let edit = entry_hook(&bytes, AT).map(|plan| {
            let placed = plan
                .place(&Placement {
                    bias: 0,
                    area: 0x7f00_1000_0000,
                })
                .unwrap();
            assert_eq!(placed.edits.len(), 1);
            assert_eq!(placed.base, AT & !4095);
            placed.edits[0].address - AT
        });
        assert_eq!(edit, expected, "{original:x?}");
    }

    #[test]
    fn the_padding_behind_a_return_gives_room() {
        check(&[0xc3, 0x90, 0x90, 0x90, 0x90], Ok(0));
        check(&[0xc3, 0x0f, 0x1f, 0x44, 0, 0], Ok(0));
        check(
            &[0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x66, 0x90, 0xcc, 0xcc],
            Ok(4),
        );
        check(&[0xc3], Err(Refusal::NoRoom));
        check(&[0xc3, 0x90, 0x90], Err(Refusal::NoRoom));
    }
}
