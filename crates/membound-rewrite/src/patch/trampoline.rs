//! The trampoline of a group: its code, its table entries, and the edit that jumps to it.

use std::sync::Arc;

use membound_wire::{TrampolineEntry, fingerprint};

use super::body::SettledBody;
use super::body_context::{BodyContext, Draft, SlowPath};
use super::cycle::{self, TrampolineLoop};
use super::edit::Edit;
use super::emit::Emitter;
use super::group::{FunctionContext, Group};
use super::relocate;
use super::table::Tables;
use super::wraps::{self, Wrap};
use iced_x86::FlowControl;

mod saved_loop;

/// Code, tables and edits that one worker has written so far.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Emitted code.
    pub out: Emitter,
    /// Tables; their code offsets are those of `out`.
    pub tables: Tables,
    /// Indices of the places at which a thread continues that is found in overwritten text.
    pub entries: Vec<u32>,
    /// Jumps to be installed.
    pub edits: Vec<Edit>,
    /// Number of sites that have a body.
    pub sites: u32,
    /// Addresses of the functions to be wrapped, sorted, with the numbers of their entry points.
    pub wrapped: Arc<[(u64, u32)]>,
    draft: Draft,
}

/// Bodies, each with the index of the instruction that it is executed before.
pub(super) type Bodies = [(usize, Work)];

/// Everything that is put before instructions of a function.
#[derive(Clone, Copy)]
pub(super) struct InsertedBodies<'a> {
    /// Bodies of sites and hooks.
    pub bodies: &'a Bodies,
    /// Wrapped entries; the code that calls the agent precedes a body of the same instruction.
    pub wraps: &'a [Wrap],
}

/// Something to put before an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// The body.
    pub body: SettledBody,
    /// Whether the body belongs to a site, which has a number, or to a hook of the agent.
    pub kind: WorkKind,
}

/// On whose behalf a body is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkKind {
    /// The user: the body has a site number and words of its own.
    Site,
    /// The agent: the body has no number.
    Hook,
}

/// A body of the trampoline that is being written.
#[derive(Clone, Copy, Debug)]
struct Part {
    instruction: usize,
    body: SettledBody,
    number: u32,
    slow: Option<(SlowPath, usize)>,
}

impl Chunk {
    /// An empty chunk, for a module whose first page is at `origin`.
    pub(super) fn new(origin: u64) -> Self {
        Self {
            out: Emitter {
                origin,
                ..Emitter::default()
            },
            ..Self::default()
        }
    }

    /// Writes the trampoline of `group`, which begins with the loop `cycle` if there is one, and adds the
    /// edit. Calls `numbered` with the instruction and number of every site.
    pub(super) fn trampoline(
        &mut self,
        context: &FunctionContext<'_>,
        group: &Group,
        before: &InsertedBodies<'_>,
        trampoline_loop: Option<&TrampolineLoop>,
        mut numbered: impl FnMut(usize, u32),
    ) {
        let first_site = self.sites;
        let parts = self.slow_paths(group, before.bodies, &mut numbered);
        let entry = self.out.at();
        let mut parts = parts.into_iter().peekable();
        let mut next = group.first;
        if let Some((trampoline_loop, saves)) = trampoline_loop
            .and_then(|trampoline_loop| Some((trampoline_loop, trampoline_loop.saves?)))
        {
            self.saved_loop(context, group, &mut parts, (trampoline_loop, saves));
            next = trampoline_loop.end;
            if group.is_over_at(next) {
                return self.edit(context, group, entry, first_site);
            }
        }
        let overwritten = self.overwritten(context, group);
        let mut again = None;
        for index in next..group.end {
            let original = self.relative(context, index);
            if original < overwritten {
                self.entries.push(self.next_place());
            }
            if let Some(wrap) = before.wraps.iter().find(|it| it.instruction == index) {
                wraps::write(wrap.view.number, original, &mut self.out, &mut self.tables);
            }
            let part = parts.next_if(|part| part.instruction == index);
            let code = self.out.at();
            let trampoline_loop =
                trampoline_loop.filter(|trampoline_loop| index < trampoline_loop.end);
            let around =
                trampoline_loop.map(|trampoline_loop| (trampoline_loop, index == group.first));
            let iteration = self.body(part, around);
            let again = again.get_or_insert(iteration.unwrap_or(code));
            let displaced = self.out.at();
            if trampoline_loop.is_none() || !self.go_back(context, group, index, *again) {
                self.displace(context, index);
            }
            self.close(part, code, original, displaced);
        }
        let after = context.function.instructions[group.end - 1].next_ip();
        let code = self.out.at();
        if group.tail {
            let part = parts.next();
            self.body(part, None);
            let displaced = self.out.at();
            self.out.jump(after);
            let original = self.relative(context, group.end);
            self.close(part, code, original, displaced);
        } else if falls_through(context, group.end - 1) {
            let original = self.behind_origin(after);
            self.tables.plain_place(code, original);
            self.out.jump(after);
        }
        self.edit(context, group, entry, first_site);
    }

    fn slow_paths(
        &mut self,
        group: &Group,
        bodies: &Bodies,
        numbered: &mut impl FnMut(usize, u32),
    ) -> Vec<Part> {
        self.draft.clear();
        let end = group.end + usize::from(group.tail);
        let first = bodies.partition_point(|(index, _)| *index < group.first);
        let mut parts = Vec::new();
        for (instruction, work) in &bodies[first..] {
            if *instruction >= end {
                break;
            }
            let number = self.sites;
            if work.kind == WorkKind::Site {
                numbered(*instruction, number);
                self.sites += 1;
            }
            let Self {
                out, tables, draft, ..
            } = self;
            let slow = work.body.slow_path(number, out, tables, draft).map(|slow| {
                // A placeholder until the place that the slow path belongs to is closed.
                tables.places.push(TrampolineEntry::default());
                (slow, tables.places.len() - 1)
            });
            parts.push(Part {
                instruction: *instruction,
                body: work.body,
                number,
                slow,
            });
        }
        parts
    }

    fn next_place(&self) -> u32 {
        u32::try_from(self.tables.places.len()).expect("fewer places than bytes of code")
    }

    fn relative(&self, context: &FunctionContext<'_>, index: usize) -> u32 {
        self.behind_origin(context.function.instructions[index].ip())
    }

    fn behind_origin(&self, address: u64) -> u32 {
        u32::try_from(address - self.out.origin).expect("an image spans at most 1 GiB")
    }

    /// End of the text that the jump to the trampoline overwrites.
    fn overwritten(&self, context: &FunctionContext<'_>, group: &Group) -> u32 {
        self.relative(context, group.first) + u32::from(group.room)
    }

    /// Writes a body. `around` is the loop that contains it, and whether the body is before its first
    /// instruction. Returns the offset at which iterations enter, if that is not the body's beginning.
    fn body(&mut self, part: Option<Part>, around: Option<(&TrampolineLoop, bool)>) -> Option<u32> {
        let part = part?;
        let Self {
            out, tables, draft, ..
        } = self;
        let within = BodyContext {
            site: part.number,
            slow: part.slow.map(|(slow, _)| slow),
            trampoline_loop: around.map(|it| it.0),
            is_head: around.is_some_and(|it| it.1),
        };
        part.body.write(within, out, tables, draft)
    }

    /// Writes a branch to the group's first instruction as a branch to `again`; false if the instruction is
    /// not one.
    fn go_back(
        &mut self,
        context: &FunctionContext<'_>,
        group: &Group,
        index: usize,
        again: u32,
    ) -> bool {
        let all = &context.function.instructions;
        cycle::leads_to(&all[index], all[group.first].ip())
            && context.items[index]
                .form
                .is_some_and(|form| relocate::write_back(form, again, &mut self.out))
    }

    fn displace(&mut self, context: &FunctionContext<'_>, index: usize) {
        let instruction = &context.function.instructions[index];
        let at = offset(context, index);
        let bytes = &context.bytes[at..at + instruction.len()];
        let form = context.items[index]
            .form
            .expect("only movable instructions are in groups");
        relocate::write(form, instruction, bytes, &mut self.out);
    }

    fn close(&mut self, part: Option<Part>, code: u32, original: u32, displaced: u32) {
        let Some(part) = part else {
            self.tables.plain_place(code, original);
            return;
        };
        let slow = part.slow.map(|(slow, _)| slow);
        let place = SettledBody::close(
            code,
            original,
            displaced,
            slow,
            &mut self.tables,
            &self.draft,
        );
        if let (Some(place), Some((_, index))) = (place, part.slow) {
            self.tables.places[index] = place;
        }
    }

    fn edit(&mut self, context: &FunctionContext<'_>, group: &Group, code: u32, first_site: u32) {
        let from = offset(context, group.first);
        let last = &context.function.instructions[group.end - 1];
        let to = (last.next_ip() - context.function.bounds.range.start) as usize;
        let bytes = &context.bytes[from..to.max(from + usize::from(group.room))];
        let mut starts = 0_u8;
        for index in group.first..group.end {
            let at = offset(context, index) - from;
            if at < usize::from(group.room) {
                starts |= 1 << at;
            }
        }
        let rest = &context.bytes[from..];
        let mut old = [0; 8];
        let available = rest.len().min(8);
        old[..available].copy_from_slice(&rest[..available]);
        self.edits.push(Edit {
            text: self.relative(context, group.first),
            code,
            fingerprint: fingerprint(bytes),
            group: u16::try_from(bytes.len()).expect("a group is short"),
            length: group.room,
            starts,
            first_site,
            sites: u16::try_from(self.sites - first_site).expect("a group is short"),
            limit: u8::try_from(rest.len()).unwrap_or(u8::MAX),
            unresolved: context.function.unresolved.is_some(),
            old,
        });
    }
}

fn offset(context: &FunctionContext<'_>, index: usize) -> usize {
    let start = context.function.bounds.range.start;
    usize::try_from(context.function.instructions[index].ip() - start)
        .expect("a function is below 4 GiB")
}

/// True if control may continue at the instruction that follows.
fn falls_through(context: &FunctionContext<'_>, index: usize) -> bool {
    !matches!(
        context.function.instructions[index].flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}
