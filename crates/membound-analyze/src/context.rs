//! Data that all views of a run are computed from, prepared once.

use membound_run::{RunData, SiteId, ThreadId};

use crate::Options;
use crate::executions::{self, Windows};
use crate::groups::Groups;
use crate::machine::Machine;
use crate::parts::Parts;
use crate::places::Places;
use crate::recorded_accesses::{self, RecordedAccesses};
use crate::sharing::ContendedLines;
use crate::sites::{self, SiteCost};
use crate::span::Span;
use crate::tally::{PlainTime, Tally, Waits};
use crate::time::Times;

/// Data that all views of a run are computed from.
pub(crate) struct Context<'a> {
    /// Records of the selected span.
    pub run: &'a RunData,
    /// The selected span.
    pub span: Span,
    /// By thread, whether it is selected; `None` if all threads are.
    pub selected_threads: Option<Vec<bool>>,
    pub options: &'a Options<'a>,
    pub machine: Machine<'a>,
    pub places: Places<'a>,
    pub groups: Groups,
    pub times: Times,
    pub waits: Waits,
    pub touches: RecordedAccesses<'a>,
    pub contended_lines: ContendedLines,
    /// Cost of each site.
    pub costs: Vec<SiteCost>,
    pub parts: Parts,
    /// Position in `parts` of the part that each access belongs to; `None` where there is none.
    pub part_of: Vec<Option<u32>>,
    pub plain: Vec<PlainTime>,
}

impl<'a> Context<'a> {
    /// Prepares the data of `run`, which is the part of `whole` in `span`.
    pub(crate) fn new(
        whole: &RunData,
        run: &'a RunData,
        span: Span,
        options: &'a Options<'a>,
    ) -> Self {
        let profile = options.machine.or(run.meta.machine.as_deref());
        let machine = Machine::new(run, profile);
        let places = Places::new(run);
        let groups = Groups::new(run, &places);
        let times = Times::new(run);
        let waits = Waits::new(run);
        let tally = Tally::new(run, &waits, &groups);
        let windows = Windows::new(run);
        let executed = if span.is_all() {
            executions::executed(run, &machine, span, &waits, &places, &windows)
        } else {
            // Where nothing was counted within the span, execution rates come from the whole run.
            let windows = Windows::new(whole);
            executions::executed(whole, &machine, span, &waits, &places, &windows)
        };
        let touches = RecordedAccesses::new(run, &windows, &executed, &machine);
        let thresholds = &options.thresholds;
        let contended_lines =
            ContendedLines::new(run, &machine, &waits, &touches, &executed, thresholds);
        let counted = sites::counted(
            run, &machine, &places, &groups, &touches, &windows, &executed,
        );
        let mut costs = sites::costs(
            run,
            &machine,
            counted,
            &times,
            &tally,
            &touches,
            &contended_lines,
        );
        let mut parts = Parts::new(run, &machine, &groups, &tally, &touches, &mut costs);
        parts.name_transfers(run, &machine, &groups, &mut costs);
        let part_of = part_of_accesses(run, &groups, &touches, &parts);
        Self {
            run,
            span,
            selected_threads: None,
            options,
            machine,
            places,
            groups,
            times,
            waits,
            touches,
            contended_lines,
            costs,
            parts,
            part_of,
            plain: tally.plain,
        }
    }

    /// True if `thread` is among the selected threads.
    pub(crate) fn is_selected(&self, thread: ThreadId) -> bool {
        (self.selected_threads.as_ref()).is_none_or(|selected| selected[thread.index()])
    }

    /// Computes `part_of` again, after `parts` changed.
    pub(crate) fn parts_of_accesses(&self) -> Vec<Option<u32>> {
        part_of_accesses(self.run, &self.groups, &self.touches, &self.parts)
    }

    /// True if the timer's resolution cannot separate the first two cache levels.
    pub(crate) fn l1_and_l2_together(&self) -> bool {
        self.machine
            .mixer
            .as_ref()
            .is_ok_and(membound_model::stall::Mixer::l1_and_l2_together)
    }
}

fn part_of_accesses(
    run: &RunData,
    groups: &Groups,
    touches: &RecordedAccesses<'_>,
    parts: &Parts,
) -> Vec<Option<u32>> {
    let mut part_of = vec![None; run.accesses.len()];
    for index in 0..run.sites.len() {
        let site = SiteId(index as u32);
        // Consecutive accesses mostly belong to the same part.
        let mut last = None;
        for (position, access) in touches.of(site) {
            let key = (access.thread, recorded_accesses::group_of(access, groups));
            let part = match last {
                Some((of, part)) if of == key => part,
                _ => parts.find(site, key.0, key.1).map(|part| part as u32),
            };
            last = Some((key, part));
            part_of[position as usize] = part;
        }
    }
    part_of
}
