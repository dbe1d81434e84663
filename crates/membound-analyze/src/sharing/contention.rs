//! Finds the lines that threads contend for, and the cost to each instruction.

use std::collections::BTreeSet;

use membound_model::stall::{Contended, Executed};
use membound_run::{RunData, SiteId};
use rustc_hash::FxHashSet;

use super::evidence::{Basis, Line, Sources, lines};
use super::judge::{Conflict, Contention, judge};
use crate::Thresholds;
use crate::machine::Machine;
use crate::recorded_accesses::{Counts, RecordedAccesses};
use crate::tally::Waits;

/// All contended lines of a run.
#[derive(Debug)]
pub(crate) struct ContendedLines {
    pub lines: Vec<(Line, Contention)>,
    /// Contention of each site; `None` where there is none, or where it was not timed.
    contended: Vec<Option<Contended>>,
    /// Accesses that conflict with another thread's, by their position in the run.
    accesses: FxHashSet<u32>,
}

impl ContendedLines {
    pub(crate) fn new(
        run: &RunData,
        machine: &Machine<'_>,
        waits: &Waits,
        touches: &RecordedAccesses<'_>,
        executed: &[Option<Executed>],
        thresholds: &Thresholds,
    ) -> Self {
        let sources = Sources {
            run,
            machine,
            waits,
            touches,
        };
        let lines: Vec<(Line, Contention)> = lines(&sources, thresholds.sharing_accesses)
            .into_iter()
            .filter_map(|line| {
                let contention = judge(run, &line, machine.line_bytes, thresholds)?;
                Some((line, contention))
            })
            .collect();
        let mut accesses = FxHashSet::default();
        let mut counts = vec![Counts::default(); run.sites.len()];
        for (line, contention) in &lines {
            for (one, conflict) in line.observations.iter().zip(&contention.conflicts) {
                if let (
                    Basis::Access {
                        position,
                        ticks,
                        weight,
                    },
                    true,
                ) = (one.basis, *conflict != Conflict::None)
                {
                    accesses.insert(position);
                    counts[one.site.index()].add(ticks, weight);
                }
            }
        }
        let hit_shares = hit_shares(&lines, executed);
        let contended = counts
            .iter()
            .zip(0_u32..)
            .map(|(counts, index)| {
                let all: f64 = touches
                    .of(SiteId(index))
                    .map(|(position, _)| touches.weight(position))
                    .sum();
                // Timed latency beyond a hit: the cost of transferring the line.
                let excess = counts.mean()? - machine.l1_ticks?;
                Some(Contended {
                    share: counts.represented / all,
                    excess_ns: machine.ticks_ns(excess.max(0.0)),
                    hit_share: hit_shares[index as usize],
                })
            })
            .collect();
        Self {
            lines,
            contended,
            accesses,
        }
    }

    /// True if the access at `position` in the run conflicts with another thread's.
    pub(crate) fn has(&self, position: u32) -> bool {
        self.accesses.contains(&position)
    }

    /// Contention at `site`: share and latency of its accesses to contended lines.
    pub(crate) fn contended(&self, site: SiteId) -> Option<Contended> {
        self.contended[site.index()]
    }
}

/// For each site, the share of a hit's latency that counts for its contended accesses. Of the sites on a
/// line, the most often executed one is assumed to wait while the others overlap with it.
fn hit_shares(lines: &[(Line, Contention)], executed: &[Option<Executed>]) -> Vec<f64> {
    let mut shares = vec![1.0_f64; executed.len()];
    for (line, contention) in lines {
        let observed = line.observations.iter().zip(&contention.conflicts);
        let sites: BTreeSet<usize> = observed
            .filter(|(_, conflict)| **conflict != Conflict::None)
            .map(|(one, _)| one.site.index())
            .collect();
        let counts = sites
            .iter()
            .map(|&site| executed[site].map_or(0.0, |it| it.count));
        let (most, sum) = counts.fold((0.0_f64, 0.0), |(most, sum), count| {
            (most.max(count), sum + count)
        });
        for site in sites.into_iter().filter(|_| sum > 0.0) {
            shares[site] = shares[site].min(most / sum);
        }
    }
    shares
}
