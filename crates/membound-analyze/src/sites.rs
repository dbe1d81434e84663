//! What each access cost, over the whole run.

use std::collections::BTreeMap;

use membound_model::stall::{self, Contended, Evidence, Executed, Mixture, Served, Stall, Stream};
use membound_run::{RunData, SiteId, SiteKind};
use rayon::prelude::*;

use crate::info;
use crate::machine::Machine;
use crate::places::{FunctionId, Places};
use crate::sharing::Fights;
use crate::tally::Tally;
use crate::time::Times;
use crate::touches::Touches;

/// Accesses of one thread that are looked at for an order.
const ADVANCE_ACCESSES: usize = 4096;

/// Steps of which this share fits in with an advance make a stream.
const REGULAR: f64 = 0.5;

/// What an access cost, over the whole run.
#[derive(Debug)]
pub(crate) struct SiteCost {
    pub stall: Stall,
    pub executed: Option<Executed>,
    pub mixture: Option<Mixture>,
    pub contended: Option<Contended>,
    pub is_stream: bool,
    pub time_ns: f64,
}

impl SiteCost {
    /// Whether most of its accesses are to lines that threads fight over.
    pub(crate) fn is_fought(&self) -> bool {
        self.contended
            .is_some_and(|contended| contended.share > 0.5)
    }
}

/// What counts and addresses tell of an access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    executed: Option<Executed>,
    stream: Option<Stream>,
}

/// That of all accesses, by [`SiteId`], from how often each was `executed`.
pub(crate) fn counted(
    run: &RunData,
    machine: &Machine<'_>,
    places: &Places<'_>,
    touches: &Touches<'_>,
    executed: &[Option<Executed>],
) -> Vec<Counted> {
    let busy = info::threads(run).min(run.meta.cpus.max(1) as usize) as u32;
    let mut streams: Vec<Option<Stream>> = (0..run.sites.len())
        .into_par_iter()
        .map(|index| stream(run, machine, touches, SiteId(index as u32), busy))
        .collect();
    put_together(run, places, executed, &mut streams);
    let both = executed.iter().zip(streams);
    both.map(|(&executed, stream)| Counted { executed, stream })
        .collect()
}

/// All of them, by [`SiteId`].
pub(crate) fn costs(
    run: &RunData,
    machine: &Machine<'_>,
    counted: Vec<Counted>,
    times: &Times,
    tally: &Tally,
    touches: &Touches<'_>,
    fights: &Fights,
) -> Vec<SiteCost> {
    // Mixtures are most of the work of a run with many sites.
    run.sites
        .par_iter()
        .zip(counted)
        .enumerate()
        .map(|(index, (site, Counted { executed, stream }))| {
            let id = SiteId(index as u32);
            let cells = tally.of(id);
            let time_ns: f64 = cells.iter().map(|cell| cell.time_ns).sum();
            let sure_ns: f64 = cells.iter().map(|cell| cell.sure_ns).sum();
            let fit = |select: &dyn Fn(u32) -> bool| {
                let mixer = machine.mixer.as_ref().ok()?;
                let histogram = touches.histogram(id, |position, _| select(position));
                mixer.fit_timed(&histogram, touches.timing(id))
            };
            let mixture = fit(&|_| true);
            let contended = fights.contended(id);
            // Where lines are fought over, latencies of the others tell of the rest only.
            let rest = contended.map(|_| fit(&|position| !fights.has(position)));
            let stall = Stall::of(
                &Evidence {
                    touch: touch(site.kind),
                    time_ns,
                    total_ns: times.total_ns,
                    samples: times.effective_samples,
                    confidence: if time_ns > 0.0 {
                        sure_ns / time_ns
                    } else {
                        0.0
                    },
                    executed,
                    mixture: rest.as_ref().unwrap_or(&mixture).as_ref(),
                    stream,
                    contended,
                },
                &machine.costs,
            );
            SiteCost {
                stall,
                executed,
                mixture,
                contended,
                is_stream: stream.is_some(),
                time_ns,
            }
        })
        .collect()
}

const fn touch(kind: SiteKind) -> stall::Touch {
    match kind {
        SiteKind::Load | SiteKind::Both => stall::Touch::Reads,
        SiteKind::Store => stall::Touch::Writes,
        SiteKind::Locked => stall::Touch::Locked,
    }
}

/// Executions of two accesses that belong to one loop are at most so many times apart: they are
/// counted in windows at different times.
const SAME_LOOP: f64 = 1.5;

/// Tells each stream what those move that go on beside it: accesses of the same function that
/// are executed as often.
fn put_together(
    run: &RunData,
    places: &Places<'_>,
    executed: &[Option<Executed>],
    streams: &mut [Option<Stream>],
) {
    let mut by_function: BTreeMap<FunctionId, Vec<(usize, f64, f64)>> = BTreeMap::new();
    for (index, stream) in streams.iter().enumerate() {
        let (Some(stream), Some(executed)) = (stream, executed[index]) else {
            continue;
        };
        if stream.served == Served::L1 {
            continue;
        }
        let function = places.function_of(run.sites[index].frame);
        by_function.entry(function).or_default().push((
            index,
            executed.count,
            stream.lines_per_execution * stream.line_ns,
        ));
    }
    for of_function in by_function.values() {
        for &(index, count, _) in of_function {
            let beside = of_function.iter().filter(|(other, of_other, _)| {
                *other != index && *of_other <= SAME_LOOP * count && count <= SAME_LOOP * of_other
            });
            let beside_ns = beside.map(|(_, _, ns)| ns).sum();
            if let Some(stream) = &mut streams[index] {
                stream.beside_ns = beside_ns;
            }
        }
    }
}

/// The stream that `site` is, by the accesses of the thread that most of them are of.
fn stream(
    run: &RunData,
    machine: &Machine<'_>,
    touches: &Touches<'_>,
    site: SiteId,
    busy: u32,
) -> Option<Stream> {
    let accesses: Vec<_> = touches.of(site).map(|(_, access)| access).collect();
    let longest = accesses
        .chunk_by(|a, b| a.thread == b.thread)
        .max_by_key(|of_thread| of_thread.len())?;
    let addresses: Vec<u64> = longest
        .iter()
        .take(ADVANCE_ACCESSES)
        .map(|access| access.address)
        .collect();
    let period = f64::from(run.meta.site_period.max(1));
    let advance =
        stall::advance(&addresses, period).filter(|advance| advance.regularity >= REGULAR)?;
    let served = machine.level_of(advance.span_bytes)?;
    let line_bytes = f64::from(machine.line_bytes);
    let lines = (advance.bytes_per_execution.abs() / line_bytes).min(1.0);
    let written_back = run.sites[site.index()].kind.stores();
    Some(Stream {
        lines_per_execution: if written_back { 2.0 * lines } else { lines },
        line_ns: machine.line_ns(served, busy)?,
        beside_ns: 0.0,
        served,
    })
}
