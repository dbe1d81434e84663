//! Which lines threads fight over, and what that means for each instruction.

use std::collections::BTreeSet;

use membound_model::stall::{Contended, Executed};
use membound_run::{RunData, SiteId};
use rustc_hash::FxHashSet;

use super::evidence::{Basis, Line, Sources, lines};
use super::judge::{Conflict, Fight, judge};
use crate::Thresholds;
use crate::machine::Machine;
use crate::tally::Waits;
use crate::touches::{Counts, Touches};

/// All fights of a run.
#[derive(Debug)]
pub(crate) struct Fights {
    pub lines: Vec<(Line, Fight)>,
    /// By site.
    contended: Vec<Option<Contended>>,
    /// Accesses that are in another thread's way, by their position in the run.
    accesses: FxHashSet<u32>,
}

impl Fights {
    pub(crate) fn new(
        run: &RunData,
        machine: &Machine<'_>,
        waits: &Waits,
        touches: &Touches<'_>,
        executed: &[Option<Executed>],
        thresholds: &Thresholds,
    ) -> Self {
        let sources = Sources {
            run,
            machine,
            waits,
            touches,
        };
        let lines: Vec<(Line, Fight)> = lines(&sources, thresholds.sharing_accesses)
            .into_iter()
            .filter_map(|line| {
                let fight = judge(run, &line, machine.line_bytes, thresholds)?;
                Some((line, fight))
            })
            .collect();
        let mut accesses = FxHashSet::default();
        let mut counts = vec![Counts::default(); run.sites.len()];
        for (line, fight) in &lines {
            for (one, conflict) in line.seen.iter().zip(&fight.conflicts) {
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
                let excess = counts.mean()? - machine.l1_ticks?;
                Some(Contended {
                    share: counts.seen / all,
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

    /// Whether the access at `position` in the run is in another thread's way.
    pub(crate) fn has(&self, position: u32) -> bool {
        self.accesses.contains(&position)
    }

    /// How far `site` accesses lines that are fought over.
    pub(crate) fn contended(&self, site: SiteId) -> Option<Contended> {
        self.contended[site.index()]
    }
}

/// By site, the part of a hit's cost that it has when of all accesses to a line those that are
/// executed most often wait, and the others beside them.
fn hit_shares(lines: &[(Line, Fight)], executed: &[Option<Executed>]) -> Vec<f64> {
    let mut shares = vec![1.0_f64; executed.len()];
    for (line, fight) in lines {
        let fighting = line.seen.iter().zip(&fight.conflicts);
        let sites: BTreeSet<usize> = fighting
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
