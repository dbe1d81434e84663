//! Which instructions move into a trampoline together.
//!
//! A jump needs five bytes. If the instruction to be patched is shorter, neighbours move along with it,
//! within the stretch of code that control enters only at its first instruction: first the instructions after
//! it, then those before it, then the padding after a block that control does not leave at its end. If that
//! is not enough, or if branches to the neighbours cannot be excluded, the last bytes of the jump are bytes
//! of the code that follows: a **punned** jump, which can reach only a few places (see `pun`).

use std::ops::Range;

use super::cycle;
use super::relocate::Form;
use super::{EDIT, Refusal};
use crate::code::{BlockEnd, Function, Unresolved};

/// Most instructions between two groups that are moved too, so that control need not leave one trampoline and
/// enter the next.
const MAX_BRIDGED_INSTRUCTIONS: usize = 3;
/// Most instructions of a group. All bytes of a group are compared before it is patched, so one changed byte
/// loses every site in it.
const MAX_GROUP_INSTRUCTIONS: usize = 48;

/// What is known of an instruction before groups are formed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    /// How the instruction can be moved; `None` if it cannot.
    pub form: Option<Form>,
    /// True if a body is to be put before it.
    pub has_site: bool,
    /// True if it is a call. A call is not moved; its body is executed after the instructions before it.
    pub call: bool,
    /// True if an earlier instruction of five bytes may be displaced for this one, even where control may
    /// enter after that instruction and so miss the body.
    pub at_any_price: bool,
}

/// Instructions that move into one trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Index of the first instruction.
    pub first: usize,
    /// Index after the last instruction.
    pub end: usize,
    /// True if the group ends with a body for the instruction at `end`, a call.
    pub tail: bool,
    /// Bytes of text that the jump may overwrite, at most five; a punned jump has fewer.
    pub room: u8,
}

impl Group {
    /// True if the group has nothing after the instructions before index `end`.
    pub(super) const fn is_over_at(&self, end: usize) -> bool {
        self.end == end && !self.tail
    }
}

/// The groups of a function, and the instructions that no group can be made for.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Sorted by address, without overlap.
    pub groups: Vec<Group>,
    /// Index and refusal of each instruction without a group.
    pub refused: Vec<(usize, Refusal)>,
}

/// A function with what is needed to form groups in it.
pub(super) struct FunctionContext<'a> {
    /// The decoded function.
    pub function: &'a Function,
    /// One item per instruction of the function.
    pub items: &'a [Item],
    /// Bytes from the function's start up to the next function.
    pub bytes: &'a [u8],
    /// True if a loop is to lie in one trampoline where possible.
    pub closes_loops: bool,
}

impl FunctionContext<'_> {
    fn length(&self, instructions: Range<usize>) -> usize {
        if instructions.is_empty() {
            return 0;
        }
        let all = &self.function.instructions;
        let end = all[instructions.end - 1].next_ip();
        usize::try_from(end - all[instructions.start].ip()).expect("a function is below 4 GiB")
    }

    /// Bytes of padding after block `index`, at most five. 0 if control may leave the block at its end.
    fn padding_behind(&self, index: usize) -> usize {
        let block = &self.function.blocks[index];
        let falls_out = match block.leaves_by {
            BlockEnd::Return | BlockEnd::Table | BlockEnd::TailCall => false,
            BlockEnd::Leaves { conditional, .. } => conditional,
            BlockEnd::Jump => block.successors.len() != 1 || !self.ends_in_jump(index),
            BlockEnd::FallsThrough
            | BlockEnd::Call { .. }
            | BlockEnd::Unresolved
            | BlockEnd::Stops => true,
        };
        if falls_out || block.end == block.first {
            return 0;
        }
        let base = self.function.bounds.range.start;
        let all = &self.function.instructions;
        let start = all[block.end as usize - 1].next_ip() - base;
        let limit = match self.function.blocks.get(index + 1) {
            Some(next) => all[next.first as usize].ip() - base,
            None => self.bytes.len() as u64,
        };
        let limit = limit.min(start + EDIT as u64);
        let gap = usize::try_from(start).ok().zip(usize::try_from(limit).ok());
        gap.and_then(|(start, limit)| self.bytes.get(start..limit))
            .map_or(0, |gap| {
                // `limit` may cut through a padding instruction, so decode from the bytes as a whole.
                let from = self.bytes.len().min(usize::try_from(start).unwrap_or(0));
                padding(&self.bytes[from..]).min(gap.len())
            })
    }

    /// Index after the last branch in a run that leads to the run's first instruction; `None` if loops are
    /// not to lie in one trampoline or this one has no room for a jump.
    fn loop_end(&self, run: Range<usize>) -> Option<usize> {
        if !self.closes_loops {
            return None;
        }
        let within = run.start..run.end.min(run.start + MAX_GROUP_INSTRUCTIONS);
        cycle::end(&self.function.instructions, within)
            .filter(|end| self.length(run.start..*end) >= EDIT)
    }

    fn ends_in_jump(&self, index: usize) -> bool {
        let last = self.function.blocks[index].end as usize - 1;
        self.function.instructions[last].is_jmp_short_or_near()
    }

    /// Calls `each` with every run of movable instructions in a block, and whether a wanted call follows the
    /// run.
    fn runs(&self, block: Range<usize>, mut each: impl FnMut(Range<usize>, bool)) {
        let mut first = block.start;
        for index in block.clone() {
            if self.items[index].form.is_none() {
                let item = self.items[index];
                each(first..index, item.call && item.has_site);
                first = index + 1;
            }
        }
        if first < block.end {
            each(first..block.end, false);
        }
    }

    fn indices_with_site(&self, instructions: Range<usize>) -> impl Iterator<Item = usize> {
        let items = self.items;
        instructions.filter(move |index| items[*index].has_site)
    }
}

/// Length of the no-operations and `int3` at the start of `bytes`; stops counting at five bytes.
fn padding(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < EDIT && at < bytes.len() {
        if bytes[at] == 0xcc {
            at += 1;
            continue;
        }
        let instruction =
            iced_x86::Decoder::new(64, &bytes[at..], iced_x86::DecoderOptions::NONE).decode();
        let idle = instruction.mnemonic() == iced_x86::Mnemonic::Nop
            || instruction.code() == iced_x86::Code::Xchg_rm16_r16
                && instruction.op0_register() == instruction.op1_register();
        if !idle {
            break;
        }
        at += instruction.len();
    }
    at
}

/// Forms groups for all wanted instructions of a function.
pub(super) fn find(context: &FunctionContext<'_>) -> Groups {
    let mut groups = Groups::default();
    if matches!(
        context.function.unresolved,
        Some(Unresolved::Undecodable(_))
    ) {
        groups.refused.extend(
            context
                .indices_with_site(0..context.items.len())
                .map(|index| (index, Refusal::Undecodable)),
        );
        return groups;
    }
    let resolved = context.function.unresolved.is_none();
    let blocks = &context.function.blocks;
    let falls_in = fall_in(context.function);
    let mut next = 0;
    while next < blocks.len() {
        let first = next;
        next += 1;
        while resolved && next < blocks.len() && falls_in[next] {
            next += 1;
        }
        let stretch = blocks[first].first as usize..blocks[next - 1].end as usize;
        if context.indices_with_site(stretch.clone()).next().is_none() {
            continue;
        }
        let padding = if resolved {
            context.padding_behind(next - 1)
        } else {
            0
        };
        context.runs(stretch.clone(), |run, call| {
            let padding = if run.end == stretch.end { padding } else { 0 };
            if resolved {
                in_run(context, run, call, padding, &mut groups);
            } else {
                one_by_one(context, run, call, &mut groups);
            }
        });
        // Wanted instructions that cannot be moved and are not calls.
        groups.refused.extend(
            context
                .indices_with_site(stretch)
                .filter(|index| {
                    let item = context.items[*index];
                    item.form.is_none() && !item.call
                })
                .map(|index| (index, Refusal::NotRelocatable)),
        );
    }
    groups
}

/// For each block, true if control reaches it only from the end of the block before it.
fn fall_in(function: &Function) -> Vec<bool> {
    let blocks = &function.blocks;
    let mut entries = vec![0_u32; blocks.len()];
    for block in blocks {
        for to in block.successors.iter().chain(&block.landing_pad) {
            entries[to.index()] += 1;
        }
    }
    let follows = |number: usize| {
        let (before, block) = (&blocks[number - 1], &blocks[number]);
        if before.first == before.end || before.end != block.first {
            return false;
        }
        let (last, next) = (
            &function.instructions[before.end as usize - 1],
            &function.instructions[block.first as usize],
        );
        let falls_through = match before.leaves_by {
            BlockEnd::FallsThrough => true,
            BlockEnd::Jump | BlockEnd::Leaves { .. } => {
                last.is_jcc_short_or_near() && last.near_branch_target() != next.ip()
            }
            _ => false,
        };
        falls_through
            && last.next_ip() == next.ip()
            && before.successors.iter().any(|to| to.index() == number)
    };
    (0..blocks.len())
        .map(|number| {
            number > 0
                && entries[number] == 1
                && !blocks[number].entered_from_outside
                && follows(number)
        })
        .collect()
}

/// Forms groups in a run that control enters only at its first instruction.
fn in_run(
    context: &FunctionContext<'_>,
    run: Range<usize>,
    call: bool,
    padding: usize,
    groups: &mut Groups,
) {
    let floor = groups.groups.len();
    let loop_end = context.loop_end(run.clone());
    for index in context.indices_with_site(run.clone()) {
        let last = groups.groups[floor..].last();
        if last.is_some_and(|last| index < last.end) {
            continue;
        }
        if let Some(end) = loop_end.filter(|end| index < *end) {
            add(context, groups, floor, group(run.start, end, false, EDIT));
            continue;
        }
        let mut end = index + 1;
        while context.length(index..end) < EDIT && end < run.end {
            end += 1;
        }
        let slack = if end == run.end { padding } else { 0 };
        let mut first = index;
        while context.length(first..end) + slack < EDIT && first > run.start {
            first -= 1;
        }
        let room = (context.length(first..end) + slack).min(EDIT);
        add(context, groups, floor, group(first, end, false, room));
    }
    if !call {
        return;
    }
    if run.is_empty() {
        groups.refused.push((run.end, Refusal::CallAtBlockStart));
        return;
    }
    let mut first = run.end - 1;
    while context.length(first..run.end) < EDIT && first > run.start {
        first -= 1;
    }
    let room = context.length(first..run.end).min(EDIT);
    add(context, groups, floor, group(first, run.end, true, room));
}

fn group(first: usize, end: usize, tail: bool, room: usize) -> Group {
    Group {
        first,
        end,
        tail,
        room: u8::try_from(room).expect("at most five"),
    }
}

/// Adds a group, merged with the previous one if they overlap or nearly touch.
fn add(context: &FunctionContext<'_>, groups: &mut Groups, floor: usize, new: Group) {
    if let Some(last) = groups.groups[floor..].last_mut() {
        let overlap = new.first < last.end;
        let short = new.end - last.first <= MAX_GROUP_INSTRUCTIONS;
        if overlap || short && new.first <= last.end + MAX_BRIDGED_INSTRUCTIONS {
            last.first = last.first.min(new.first);
            last.end = last.end.max(new.end);
            last.tail |= new.tail;
            let own = context.length(last.first..last.end).min(EDIT);
            last.room = last.room.max(u8::try_from(own).expect("at most five"));
            return;
        }
    }
    groups.groups.push(new);
}

/// Forms groups where control may enter anywhere: each jump overwrites bytes of one instruction only.
fn one_by_one(context: &FunctionContext<'_>, run: Range<usize>, call: bool, groups: &mut Groups) {
    let floor = groups.groups.len();
    for index in context.indices_with_site(run.clone()) {
        let room = context.length(index..index + 1).min(EDIT);
        let anchor = (run.start..index)
            .rev()
            .find(|index| context.length(*index..index + 1) >= EDIT);
        match anchor {
            Some(anchor) if context.items[index].at_any_price && room < EDIT => {
                while groups.groups.len() > floor
                    && groups.groups.last().is_some_and(|last| anchor < last.end)
                {
                    groups.groups.pop();
                }
                groups.groups.push(group(anchor, index + 1, false, EDIT));
            }
            _ => groups.groups.push(group(index, index + 1, false, room)),
        }
    }
    if !call {
        return;
    }
    let Some(before) = run.end.checked_sub(1).filter(|before| *before >= run.start) else {
        groups.refused.push((run.end, Refusal::CallAtBlockStart));
        return;
    };
    match groups.groups[floor..].last_mut() {
        Some(last) if last.end == run.end => last.tail = true,
        _ => {
            let room = context.length(before..run.end).min(EDIT);
            groups.groups.push(group(before, run.end, true, room));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::relocate;

    /// Groups of `bytes`, in which the instructions at `wanted` are wanted, as
    /// `first..end` with the room and `t` for a tail.
    fn groups_of(bytes: &[u8], wanted: &[usize], unresolved: bool) -> (Vec<String>, usize) {
        groups_with(bytes, wanted, unresolved, false)
    }

    fn groups_with(
        bytes: &[u8],
        wanted: &[usize],
        unresolved: bool,
        closes_loops: bool,
    ) -> (Vec<String>, usize) {
        let mut function = Function::from_code(bytes, 0x1000);
        if unresolved {
            function.unresolved = Some(Unresolved::EnteredInside(0x1001));
        }
        let items: Vec<Item> = function
            .instructions
            .iter()
            .enumerate()
            .map(|(index, instruction)| {
                let at = (instruction.ip() - 0x1000) as usize;
                let bytes = &bytes[at..at + instruction.len()];
                Item {
                    form: relocate::form(instruction, bytes),
                    has_site: wanted.contains(&index),
                    call: instruction.is_call_near_indirect(),
                    at_any_price: false,
                }
            })
            .collect();
        let groups = find(&FunctionContext {
            function: &function,
            items: &items,
            bytes,
            closes_loops,
        });
        let text = groups
            .groups
            .iter()
            .map(|group| {
                let tail = if group.tail { "t" } else { "" };
                format!("{}..{} {}{tail}", group.first, group.end, group.room)
            })
            .collect();
        (text, groups.refused.len())
    }

    #[track_caller]
    fn check(bytes: &[u8], wanted: &[usize], expected: &[&str]) {
        let (groups, refused) = groups_of(bytes, wanted, false);
        assert_eq!(groups, expected);
        assert_eq!(refused, 0);
    }

    // mov rax,[rdi] / add rax,rcx / ret, each as bytes.
    const LOAD: [u8; 3] = [0x48, 0x8b, 0x07];
    const ADD: [u8; 3] = [0x48, 0x01, 0xc8];
    const LONG: [u8; 7] = [0x48, 0x8b, 0x87, 0x00, 0x10, 0x00, 0x00];

    #[test]
    fn neighbours_behind_move_first_then_those_before_then_padding() {
        let code = [&LOAD[..], &ADD, &ADD, &[0xc3]].concat();
        check(&code, &[0], &["0..2 5"]);
        let code = [&ADD[..], &LOAD, &[0xc3]].concat();
        check(&code, &[1], &["0..3 5"]);
        let code = [&LOAD[..], &[0xc3, 0x90]].concat();
        check(&code, &[0], &["0..2 5"]);
        // The function that follows does not belong to it.
        let code = [&LOAD[..], &[0xc3]].concat();
        check(&code, &[0], &["0..2 4"]);
    }

    #[test]
    fn near_groups_are_one() {
        let code = [&LONG[..], &ADD, &ADD, &LONG, &[0xc3]].concat();
        check(&code, &[0, 3], &["0..4 5"]);
        let code = [&LONG[..], &ADD, &ADD, &ADD, &ADD, &LONG, &[0xc3]].concat();
        check(&code, &[0, 5], &["0..1 5", "5..6 5"]);
    }

    #[test]
    fn a_call_has_its_body_behind_its_predecessors() {
        // call [rdi]
        let code = [&ADD[..], &ADD, &[0xff, 0x17], &[0xc3]].concat();
        check(&code, &[2], &["0..2 5t"]);
        let code = [&[0xff, 0x17][..], &[0xc3]].concat();
        assert_eq!(groups_of(&code, &[0], false), (vec![], 1));
    }

    #[test]
    fn only_one_instruction_moves_where_control_may_enter_anywhere() {
        let code = [&LONG[..], &LOAD, &ADD, &[0xc3]].concat();
        let (groups, refused) = groups_of(&code, &[0, 1], true);
        assert_eq!(groups, ["0..1 5", "1..2 3"]);
        assert_eq!(refused, 0);
    }

    #[test]
    fn code_behind_a_branch_not_taken_moves_along() {
        // L: mov rax,[rdi]; add rax,rcx; jnz L; add rax,rcx; ret
        let code = [&LOAD[..], &ADD, &[0x75, 0xf8], &ADD, &[0xc3]].concat();
        check(&code, &[4], &["2..5 5"]);
        check(&code, &[0, 4], &["0..5 5"]);
        // An instruction must not move across a branch target: jz L; add rax,rcx; L: mov rax,[rdi]; ret
        let code = [&[0x74, 0x03][..], &ADD, &LOAD, &[0xc3]].concat();
        let (groups, _) = groups_of(&code, &[2], false);
        assert_eq!(groups, ["2..4 4"]);
        // Nor across a branch to the instruction after it.
        let code = [&ADD[..], &[0x74, 0x00], &LOAD, &[0xc3]].concat();
        let (groups, _) = groups_of(&code, &[2], false);
        assert_eq!(groups, ["2..4 4"]);
    }

    #[test]
    fn a_branch_target_stays_where_it_is() {
        // mov rax,[rdi]; L: add rax,rcx; jnz L; ret
        let code = [&LOAD[..], &ADD, &[0x75, 0xfb], &[0xc3]].concat();
        let (groups, _) = groups_of(&code, &[0], false);
        assert_eq!(groups, ["0..1 3"], "a punned jump is the only one");
    }

    #[test]
    fn code_behind_a_loop_is_in_its_trampoline() {
        // L: mov rax,[rdi]; add rax,rcx; jnz L; add rax,rcx; ret
        let code = [&LOAD[..], &ADD, &[0x75, 0xf8], &ADD, &[0xc3]].concat();
        let groups = |wanted: &[usize]| groups_with(&code, wanted, false, true).0;
        assert_eq!(groups(&[0]), ["0..3 5"]);
        assert_eq!(groups(&[0, 4]), ["0..5 5"]);
    }
}
