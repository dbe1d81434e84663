//! Removes rows whose identifiers refer to rows that are missing, so that readers may index by
//! an identifier without a check. A run that was written in order loses nothing.

use crate::record::Record;
use crate::{Gap, ObjectId, RunData};

/// Number of rows in each table that identifiers refer to.
struct Present {
    processes: usize,
    threads: usize,
    modules: usize,
    frames: usize,
    stacks: usize,
    sites: usize,
    objects: usize,
}

/// Removes rows with missing references, and returns a gap for each table that lost rows.
pub(crate) fn keep_what_refers(run: &mut RunData) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut there = Present {
        processes: run.processes.len(),
        threads: 0,
        modules: run.modules.len(),
        frames: 0,
        stacks: 0,
        sites: 0,
        objects: 0,
    };
    // Tables come after the tables that they refer to. Tables with positions are cut off at the first bad
    // row, since removing one row would move the others.
    there.threads = cut(&mut run.threads, &mut gaps, |_, thread| {
        thread.process.index() < there.processes
    });
    there.frames = cut(&mut run.frames, &mut gaps, |_, frame| {
        frame
            .module
            .is_none_or(|module| module.index() < there.modules)
    });
    there.stacks = cut(&mut run.stacks, &mut gaps, |at, stack| {
        stack.frame.index() < there.frames && stack.parent.is_none_or(|parent| parent.index() < at)
    });
    there.sites = cut(&mut run.sites, &mut gaps, |_, site| {
        site.frame.index() < there.frames
    });
    there.objects = cut(&mut run.objects, &mut gaps, |_, object| {
        object.process.index() < there.processes
            && object
                .stack
                .is_none_or(|stack| stack.index() < there.stacks)
            && object
                .thread
                .is_none_or(|thread| thread.index() < there.threads)
    });
    rest(run, &there, &mut gaps);
    gaps
}

/// Filters the tables without positions.
fn rest(run: &mut RunData, there: &Present, gaps: &mut Vec<Gap>) {
    let object = |id: Option<ObjectId>| id.is_none_or(|id| id.index() < there.objects);
    pick(&mut run.mappings, gaps, |mapping| {
        mapping.process.index() < there.processes && mapping.module.index() < there.modules
    });
    pick(&mut run.samples, gaps, |sample| {
        sample.thread.index() < there.threads
            && sample.stack.index() < there.stacks
            && object(sample.object)
    });
    pick(&mut run.attributions, gaps, |attribution| {
        attribution.frame.index() < there.frames
            && attribution
                .site
                .is_none_or(|site| site.index() < there.sites)
    });
    pick(&mut run.executions, gaps, |executions| {
        executions.site.index() < there.sites
    });
    pick(&mut run.laps, gaps, |laps| {
        laps.site.index() < there.sites && laps.thread.index() < there.threads
    });
    pick(&mut run.loops, gaps, |around| {
        around.frame.index() < there.frames
    });
    pick(&mut run.accesses, gaps, |access| {
        access.thread.index() < there.threads
            && access.site.index() < there.sites
            && object(access.object)
    });
    pick(&mut run.bursts, gaps, |burst| {
        burst.thread.index() < there.threads
            && burst.sites.iter().all(|site| site.index() < there.sites)
            && burst
                .accesses
                .iter()
                .all(|&(site, ..)| usize::from(site) < burst.sites.len())
    });
    pick(&mut run.blocks, gaps, |block| {
        block.frame.index() < there.frames
    });
    pick(&mut run.allocations, gaps, |allocations| {
        allocations.stack.index() < there.stacks && allocations.process.index() < there.processes
    });
    pick(&mut run.live, gaps, |live| {
        live.stack.index() < there.stacks && live.process.index() < there.processes
    });
    pick(&mut run.locations, gaps, |location| {
        location.frame.index() < there.frames
    });
    pick(&mut run.code, gaps, |code| {
        code.module.index() < there.modules
    });
    pick(&mut run.pages, gaps, |page| {
        page.process.index() < there.processes
    });
    pick(&mut run.watched, gaps, |hit| {
        hit.thread.index() < there.threads && hit.frame.index() < there.frames
    });
    pick(&mut run.holds, gaps, |hold| {
        hold.thread.index() < there.threads
    });
    pick(&mut run.hardware_accesses, gaps, |access| {
        access.thread.index() < there.threads && access.stack.index() < there.stacks
    });
}

/// Cuts a table off at the first row that does not satisfy `sound`; returns the number of rows left.
fn cut<R: Record>(
    rows: &mut Vec<R>,
    gaps: &mut Vec<Gap>,
    sound: impl Fn(usize, &R) -> bool,
) -> usize {
    let before = rows.len();
    let broken = rows
        .iter()
        .enumerate()
        .position(|(at, row)| !sound(at, row));
    rows.truncate(broken.unwrap_or(before));
    say::<R>(before - rows.len(), gaps);
    rows.len()
}

fn pick<R: Record>(rows: &mut Vec<R>, gaps: &mut Vec<Gap>, sound: impl Fn(&R) -> bool) {
    let before = rows.len();
    rows.retain(sound);
    say::<R>(before - rows.len(), gaps);
}

fn say<R: Record>(lost: usize, gaps: &mut Vec<Gap>) {
    if lost > 0 {
        gaps.push(Gap {
            about: R::ABOUT.to_owned(),
            reason: format!(
                "rows of table {} refer to others that cannot be read",
                R::TABLE
            ),
            remedy: None,
            count: Some(lost as u64),
        });
    }
}
