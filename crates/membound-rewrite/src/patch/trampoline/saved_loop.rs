//! A loop with [`LoopSaves`] around it, at the beginning of a trampoline.
//!
//! The loop's instructions run in the loop's frame, which every exit removes first. A thread that is moved
//! into the middle of the loop has the program's own state; it enters through a stub that sets up the frame.
//! There is a stub for the body of each instruction, and one for the instruction itself.

use std::iter::Peekable;

use super::super::body_context::BodyContext;
use super::super::cycle::TrampolineLoop;
use super::super::emit::Emitter;
use super::super::group::{FunctionContext, Group};
use super::super::loop_saves::LoopSaves;
use super::super::relocate;
use super::super::table::{DraftStep, RegisterOffsets, Resume};
use super::super::writer::Writer;
use super::{Chunk, Part, falls_through};

/// A place whose code has been written but whose steps are not final.
#[derive(Debug)]
struct OpenPlace {
    code: u32,
    original: u32,
    /// Offset of the displaced instruction.
    displaced: u32,
    steps: Vec<DraftStep>,
    /// True if it has a body that a thread may have to restart in the middle of the loop.
    has_body: bool,
}

/// A branch out of the loop.
#[derive(Clone, Copy, Debug)]
struct Exit {
    /// Offset of the branch's displacement field.
    field: u32,
    target: u64,
}

/// The copies of a loop's iteration, whose branches are still open.
#[derive(Debug, Default)]
struct Copies {
    /// One place for each instruction of each copy.
    places: Vec<OpenPlace>,
    exits: Vec<Exit>,
    /// Fields of the branches that leave the loop at the end of a copied iteration, which the next copy
    /// follows directly.
    ends: Vec<u32>,
}

impl Chunk {
    /// Writes the loop that `group` begins with, and its table entries. The caller writes the rest of the
    /// group.
    pub(super) fn saved_loop(
        &mut self,
        context: &FunctionContext<'_>,
        group: &Group,
        parts: &mut Peekable<impl Iterator<Item = Part>>,
        (trampoline_loop, saves): (&TrampolineLoop, LoopSaves),
    ) {
        let mut copies = self.copies(context, group, parts, trampoline_loop);
        let (mut behind, on) = self.ways_out(context, group, (trampoline_loop, saves), &copies);
        let overwritten = self.overwritten(context, group);
        let per_copy = trampoline_loop.end - group.first;
        self.ways_in(
            saves,
            overwritten,
            &mut copies.places,
            per_copy,
            &mut behind,
        );
        for place in copies.places.iter().chain(&behind) {
            let (code, original, displaced) = (place.code, place.original, place.displaced);
            self.tables.place(code, original, displaced, &place.steps);
        }
        if let Some(on) = on {
            self.out.land(on);
        }
    }

    /// Writes the copies of the iteration, and takes their bodies from `parts`.
    fn copies(
        &mut self,
        context: &FunctionContext<'_>,
        group: &Group,
        parts: &mut Peekable<impl Iterator<Item = Part>>,
        trampoline_loop: &TrampolineLoop,
    ) -> Copies {
        let mut copies = Copies::default();
        let mut again = None;
        let iterations = 1 << trampoline_loop.copies;
        for iteration in 0..iterations {
            for index in group.first..trampoline_loop.end {
                // Only the first copy of the iteration has bodies.
                let part = parts.next_if(|part| part.instruction == index);
                let is_head = iteration == 0 && index == group.first;
                let code = self.out.at();
                let comes_in = match part {
                    Some(part) => self.body(Some(part), Some((trampoline_loop, is_head))),
                    None => Some(self.bare(trampoline_loop, is_head)),
                };
                let again = *again.get_or_insert(comes_in.unwrap_or(code));
                let displaced = self.out.at();
                if index + 1 == trampoline_loop.end && iteration + 1 < iterations {
                    copies.ends.extend(self.leave_or_go_on(context, index));
                } else if !self.go_back(context, group, index, again) {
                    copies.exits.extend(self.leave_or_displace(context, index));
                }
                copies.places.push(OpenPlace {
                    code,
                    original: self.relative(context, index),
                    displaced,
                    steps: self.draft.take_steps(),
                    has_body: part.is_some() && !is_head,
                });
            }
        }
        copies
    }

    /// Writes the exits of the loop. Returns them, and the open field of a jump to the rest of the group.
    fn ways_out(
        &mut self,
        context: &FunctionContext<'_>,
        group: &Group,
        (trampoline_loop, saves): (&TrampolineLoop, LoopSaves),
        copies: &Copies,
    ) -> (Vec<OpenPlace>, Option<u32>) {
        let mut behind = Vec::new();
        let mut on = None;
        if falls_through(context, trampoline_loop.end - 1) {
            let after = context.function.instructions[trampoline_loop.end - 1].next_ip();
            for end in &copies.ends {
                self.out.land(*end);
            }
            behind.push(self.way_out(saves, after, |out| {
                if group.is_over_at(trampoline_loop.end) {
                    out.jump(after);
                } else {
                    on = Some(out.jump_ahead());
                }
            }));
        }
        for exit in &copies.exits {
            self.out.land(exit.field);
            behind.push(self.way_out(saves, exit.target, |out| out.jump(exit.target)));
        }
        (behind, on)
    }

    /// Writes the stubs through which threads enter the loop, after those `behind` it, and lets the `places`
    /// of all copies, each of `per_copy` instructions, continue there.
    fn ways_in(
        &mut self,
        saves: LoopSaves,
        overwritten: u32,
        places: &mut [OpenPlace],
        per_copy: usize,
        behind: &mut Vec<OpenPlace>,
    ) {
        // The head is entered from the program's text, in the program's own state.
        let first = self.next_place();
        let stubs = first + length(places);
        let (of_first, copies) = places.split_at_mut(per_copy);
        for (at, place) in of_first.iter_mut().enumerate() {
            let entry = if at == 0 {
                first
            } else {
                stubs + length(behind)
            };
            if place.original < overwritten {
                self.entries.push(entry);
            }
            if place.has_body {
                let stub = self.way_in(saves, place.original, place.code);
                for step in &mut place.steps {
                    *step = step.started_at(stub.code);
                }
                behind.push(stub);
            }
            let stub = self.way_in(saves, place.original, place.displaced);
            place.displaced = stub.code;
            behind.push(stub);
        }
        // A thread that is moved into the middle of a copy continues in the first copy.
        for (copy, place) in copies.iter_mut().zip(of_first.iter().cycle()) {
            copy.displaced = place.displaced;
        }
    }

    /// Writes the branch at the end of a copy that another copy follows: it leaves the loop on the opposite
    /// condition. Returns its open field.
    fn leave_or_go_on(&mut self, context: &FunctionContext<'_>, index: usize) -> Option<u32> {
        relocate::write_opposite_ahead(context.items[index].form?, &mut self.out)
    }

    /// Writes the code before an instruction without a body; returns the offset at which iterations enter.
    fn bare(&mut self, trampoline_loop: &TrampolineLoop, is_head: bool) -> u32 {
        let within = BodyContext {
            site: 0,
            slow: None,
            trampoline_loop: Some(trampoline_loop),
            is_head,
        };
        let Self {
            out, tables, draft, ..
        } = self;
        within.write(out, tables, draft)
    }

    /// Writes an instruction; returns the open field of a branch.
    fn leave_or_displace(&mut self, context: &FunctionContext<'_>, index: usize) -> Option<Exit> {
        let form = context.items[index].form?;
        let Some(field) = relocate::write_ahead(form, &mut self.out) else {
            self.displace(context, index);
            return None;
        };
        let target = context.function.instructions[index].near_branch_target();
        Some(Exit { field, target })
    }

    /// Writes an exit of the loop to `target`: removes the loop's frame, then continues with `jump` in the
    /// program's own state.
    fn way_out(
        &mut self,
        saves: LoopSaves,
        target: u64,
        jump: impl FnOnce(&mut Emitter),
    ) -> OpenPlace {
        let original = self.behind_origin(target);
        self.stub(original, saves.frame(), Resume::Displaced, |writer| {
            saves.leave(writer);
            let displaced = writer.out.at();
            jump(writer.out);
            displaced
        })
    }

    /// Writes a stub that sets up the loop's frame and enters the loop at `to`.
    fn way_in(&mut self, saves: LoopSaves, original: u32, to: u32) -> OpenPlace {
        self.stub(
            original,
            RegisterOffsets::default(),
            Resume::Start,
            |writer| {
                saves.enter(writer);
                let displaced = writer.out.at();
                writer.out.jump_back(to);
                displaced
            },
        )
    }

    fn stub(
        &mut self,
        original: u32,
        frame: RegisterOffsets,
        resume: Resume,
        write: impl FnOnce(&mut Writer<'_>) -> u32,
    ) -> OpenPlace {
        let code = self.out.at();
        let mut steps = Vec::new();
        let mut writer = Writer {
            out: &mut self.out,
            tables: &mut self.tables,
            steps: &mut steps,
            frame,
            resume,
        };
        writer.begin();
        let displaced = write(&mut writer);
        OpenPlace {
            code,
            original,
            displaced,
            steps,
            has_body: false,
        }
    }
}

fn length(places: &[OpenPlace]) -> u32 {
    u32::try_from(places.len()).expect("a group is short")
}
