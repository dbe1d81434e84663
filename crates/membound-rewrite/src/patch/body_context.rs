//! Where a body is written: its place in the trampoline, its slow path, and the steps that undo it.

use super::cycle::TrampolineLoop;
use super::emit::Emitter;
use super::loop_saves::LoopSaves;
use super::table::{DraftStep, RegisterOffsets, Resume, Tables};
use super::writer::Writer;

/// A slow path that has been written.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowPath {
    pub start: u32,
    /// Field of the jump that returns to the fast path.
    pub back: u32,
    pub steps: (usize, usize),
}

/// Where a body is written, relative to its trampoline.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyContext<'a> {
    /// The number of the body's site.
    pub site: u32,
    /// The body's slow path, if it has one.
    pub slow: Option<SlowPath>,
    /// The loop at the start of the trampoline, if the body is part of it.
    pub trampoline_loop: Option<&'a TrampolineLoop>,
    /// True if the body is written before the first instruction of that loop.
    pub is_head: bool,
}

impl BodyContext<'_> {
    pub(super) fn saves(&self) -> Option<LoopSaves> {
        self.trampoline_loop
            .and_then(|trampoline_loop| trampoline_loop.saves)
    }

    /// Begins the place of an instruction, with the frame of the loop if the loop saves registers around it.
    pub(super) fn begin<'a>(
        &self,
        out: &'a mut Emitter,
        tables: &'a mut Tables,
        steps: &'a mut Vec<DraftStep>,
    ) -> Writer<'a> {
        steps.clear();
        let saves = self.saves();
        let mut writer = Writer {
            out,
            tables,
            steps,
            frame: saves
                .filter(|_| !self.is_head)
                .map_or_else(RegisterOffsets::default, LoopSaves::frame),
            resume: Resume::Start,
        };
        writer.begin();
        if let Some(saves) = saves.filter(|_| self.is_head) {
            saves.enter(&mut writer);
        }
        writer
    }

    /// Writes the place of an instruction without a body, up to the instruction; returns the offset at which
    /// iterations of the loop enter.
    pub(super) fn write(&self, out: &mut Emitter, tables: &mut Tables, draft: &mut Draft) -> u32 {
        let mut writer = self.begin(out, tables, &mut draft.steps);
        writer.resume = Resume::Displaced;
        writer.mark();
        writer.out.at()
    }
}

/// Scratch space for one trampoline.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub steps: Vec<DraftStep>,
    pub slow_steps: Vec<DraftStep>,
}

impl Draft {
    /// Clears what the previous trampoline has left.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.slow_steps.clear();
    }

    /// Takes the undo steps of the place that was written last.
    pub(super) fn take_steps(&mut self) -> Vec<DraftStep> {
        std::mem::take(&mut self.steps)
    }
}
