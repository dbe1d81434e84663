//! Windows of the core by bisection on the fillers between two loads.

use std::time::Duration;

use membound_platform::cpu;
use membound_types::{Basis, Figure, Filler, FillerCliff, Outcome, ReorderEvidence, WindowLimit};

use super::probe::Probe;
use super::reorder::{self, Agreement, LimitingStructure};
use super::sibling::{GATE_PATTERN, Sibling, Timing};
use crate::{Error, stats};

/// Fillers beyond the cliff at which a load is surely outside the window.
pub(super) const OUTSIDE_MARGIN_FILLERS: u32 = 16;

/// Maximum number of fillers tried.
const MAX_FILLERS: u32 = 4096;

/// The windows that were found, with evidence and notes.
pub(super) struct FoundWindows {
    pub(super) windows: Vec<WindowLimit>,
    /// Fillers by which the reorder buffer was found.
    pub(super) evidence: Outcome<ReorderEvidence>,
    pub(super) notes: Vec<String>,
}

impl FoundWindows {
    /// The window that shows the reorder buffer with one filler per entry: that of nops where they
    /// are not fused, else that of the mix. Without an agreement, the one that nops found.
    pub(super) fn reorder(&self) -> Option<&WindowLimit> {
        let of = |filler: Filler| self.windows.iter().find(|window| window.filler == filler);
        match of(Filler::Nop) {
            Some(nop) if nop.fillers_per_entry <= 1.0 => Some(nop),
            nop => of(Filler::Mixed).or(nop),
        }
    }
}

/// A cliff: the number of fillers between two loads at which their time steps up.
#[derive(Clone, Debug)]
struct Step {
    pattern: Vec<Filler>,
    /// Maximum number of fillers with which the loads still overlap, with the interval.
    fillers: (u32, u32, u32),
    inside_cycles: f64,
    outside_cycles: f64,
}

impl Step {
    const fn cliff(&self) -> u32 {
        self.fillers.0
    }

    const fn instructions(&self) -> u32 {
        self.cliff() + reorder::WINDOW_LOADS
    }

    /// Width of the step in fillers.
    fn width(&self) -> f64 {
        f64::from(self.fillers.2) - f64::from(self.fillers.1)
    }

    fn agrees(&self, other: &Self) -> bool {
        agree(self.instructions(), other.instructions())
    }

    fn window(&self, filler: Filler, ended: LimitingStructure, own_uops: u32) -> WindowLimit {
        let each = ended.fillers_per_entry();
        let entries =
            |fillers: u32| f64::from(fillers) / each + f64::from(ended.loads() + own_uops);
        let (cliff, low, high) = self.fillers;
        WindowLimit {
            filler,
            pattern: if filler == Filler::Mixed {
                self.pattern.clone()
            } else {
                Vec::new()
            },
            limited_by: ended.name(filler),
            cliff_fillers: cliff,
            fillers_per_entry: each,
            entries: Figure {
                value: entries(cliff),
                low: entries(low),
                high: entries(high),
                basis: Basis::Measured,
            },
            inside_cycles: self.inside_cycles,
            outside_cycles: self.outside_cycles,
        }
    }
}

/// Searches for the cliff of each kind of filler, in `rounds` rounds and up to three times as many
/// while the results differ; then for those of mixes, which show which window is the reorder buffer
/// ([`reorder`]).
///
/// A busy hardware thread on the same core takes its part of every window, often half, and in a
/// guest it may belong to another guest. So searches wait for moments without one, where these can be told
/// ([`Sibling`]); the largest window on which two searches agree counts, and smaller ones are noted. A search that
/// fails leaves its window out.
pub(super) fn find_all(probe: &mut Probe<'_, '_>, rounds: u32) -> FoundWindows {
    probe.sibling = watch_sibling(probe).unwrap_or(None);
    let kinds = probe.fillers();
    let patterns: Vec<Vec<Filler>> = kinds.iter().map(|kind| vec![*kind]).collect();
    let mut notes = Vec::new();
    let singles = search(probe, &patterns, rounds, &mut notes);
    let mut cliffs: Vec<FillerCliff> = singles
        .iter()
        .map(|step| FillerCliff {
            pattern: step.pattern.clone(),
            instructions: step.instructions(),
        })
        .collect();
    if let Some(levels) = singles.first() {
        cliffs.extend(mixed_cliffs(probe, levels, &reorder::mixes(&kinds)));
    }
    let agreed = reorder::agreement(&cliffs);
    let mixed = agreed
        .as_ref()
        .and_then(|agreed| refined(probe, agreed, rounds, &mut notes));
    let entries = agreed.as_ref().map(|agreed| agreed.instructions);
    let own_uops = probe.own_uops();
    let mut windows: Vec<WindowLimit> = singles
        .iter()
        .filter_map(|step| {
            let filler = *step.pattern.first()?;
            let ended = reorder::ended(filler, step.instructions(), entries, &cliffs);
            Some(step.window(filler, ended, own_uops))
        })
        .collect();
    windows.extend(mixed.map(|step| {
        step.window(
            Filler::Mixed,
            LimitingStructure::ReorderBuffer(1.0),
            own_uops,
        )
    }));
    FoundWindows {
        windows,
        evidence: evidence(agreed, cliffs),
        notes,
    }
}

/// `None` where the reorder buffer of this processor is not known.
fn watch_sibling(probe: &mut Probe<'_, '_>) -> Result<Option<Sibling>, Error> {
    let kinds = probe.fillers();
    match cpu::identify(probe.session.root).published_rob {
        Some(published) if GATE_PATTERN.iter().all(|filler| kinds.contains(filler)) => {
            let patience = Duration::from_secs(probe.session.effort.pick(12, 40, 120));
            Sibling::watch(published, patience, |fillers| {
                Ok(probe.parallel(2, fillers, &GATE_PATTERN, 1)?.ticks)
            })
        }
        _ => Ok(None),
    }
}

/// The windows in `known`, timed again under other conditions of memory, which change the times but
/// not the structures of the core: counts of fillers stay as they are.
pub(super) fn find_again(probe: &mut Probe<'_, '_>, known: &[WindowLimit]) -> Vec<WindowLimit> {
    let mut windows = known.to_vec();
    for window in &mut windows {
        if probe.session.cancelled() {
            break;
        }
        let pattern = if window.pattern.is_empty() {
            vec![window.filler]
        } else {
            window.pattern.clone()
        };
        if let Ok(Some(step)) = find(probe, &pattern) {
            window.inside_cycles = step.inside_cycles;
            window.outside_cycles = step.outside_cycles;
        }
    }
    windows
}

/// Searches for the cliff of each pattern; those without one are left out.
fn search(
    probe: &mut Probe<'_, '_>,
    patterns: &[Vec<Filler>],
    rounds: u32,
    notes: &mut Vec<String>,
) -> Vec<Step> {
    let mut found: Vec<Vec<Step>> = vec![Vec::new(); patterns.len()];
    for round in 0..3 * rounds {
        for (pattern, steps) in patterns.iter().zip(&mut found) {
            let settled = round >= rounds.min(2) && largest_two_agree(steps);
            if settled || probe.session.cancelled() {
                continue;
            }
            if let Ok(Some(step)) = find(probe, pattern) {
                steps.push(step);
            }
        }
    }
    found
        .iter()
        .filter_map(|steps| {
            let step = with_all_searches(largest_agreed(steps)?, steps);
            let smallest = steps.iter().map(Step::instructions).min()?;
            if f64::from(smallest) < 0.9 * f64::from(step.instructions()) {
                notes.push(format!(
                    "a search with {} fillers ended at {smallest} instructions instead of {}: another hardware thread had its part of the core, or something else disturbed it",
                    names(&step.pattern),
                    step.instructions()
                ));
            }
            Some(step)
        })
        .collect()
}

/// Names of the fillers, as in `branch, x87`.
fn names(pattern: &[Filler]) -> String {
    let names: Vec<&str> = pattern.iter().map(|filler| filler.name()).collect();
    names.join(", ")
}

/// Cliffs of many mixes between the times of two loads that a single kind has shown: the largest on
/// which two of up to three bisections agree, else the median.
fn mixed_cliffs(
    probe: &mut Probe<'_, '_>,
    levels: &Step,
    patterns: &[Vec<Filler>],
) -> Vec<FillerCliff> {
    const ROUNDS: u32 = 3;
    let ticks = 1.0 / probe.session.cycles(1.0);
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); patterns.len()];
    for _ in 0..ROUNDS {
        for (pattern, cliffs) in patterns.iter().zip(&mut found) {
            if probe.session.cancelled() {
                break;
            }
            if let [first, second] = cliffs[..]
                && agree(first, second)
            {
                continue;
            }
            let mut cliff = Cliff {
                probe,
                pattern,
                inside: levels.inside_cycles * ticks,
                outside: levels.outside_cycles * ticks,
            };
            if let Ok(fillers) = bisect(&mut cliff, 0, MAX_FILLERS / 2) {
                cliffs.push(fillers + reorder::WINDOW_LOADS);
            }
        }
    }
    patterns
        .iter()
        .zip(found)
        .filter_map(|(pattern, mut cliffs)| {
            cliffs.sort_unstable();
            let pair = cliffs.windows(2).rev().find(|pair| agree(pair[0], pair[1]));
            let instructions = match pair {
                Some(pair) => pair[1],
                None => *cliffs.get(cliffs.len() / 2)?,
            };
            Some(FillerCliff {
                pattern: pattern.clone(),
                instructions,
            })
        })
        .collect()
}

/// The step of the chosen mix, searched for like those of single kinds.
fn refined(
    probe: &mut Probe<'_, '_>,
    agreed: &Agreement,
    rounds: u32,
    notes: &mut Vec<String>,
) -> Option<Step> {
    search(probe, std::slice::from_ref(&agreed.mix), rounds, notes).pop()
}

fn evidence(agreed: Option<Agreement>, cliffs: Vec<FillerCliff>) -> Outcome<ReorderEvidence> {
    match agreed {
        Some(Agreement { agreeing, .. }) => Outcome::Known(ReorderEvidence {
            others: cliffs
                .into_iter()
                .filter(|cliff| !agreeing.contains(cliff))
                .collect(),
            agreeing,
        }),
        None => {
            Outcome::missing("no fillers of different kinds end at the same number of instructions")
        }
    }
}

/// Whether two searches found the same number of instructions, within 2 %.
fn agree(a: u32, b: u32) -> bool {
    const MAX_RELATIVE_DIFFERENCE: f64 = 0.02;
    (f64::from(a) / f64::from(b)).ln().abs() < MAX_RELATIVE_DIFFERENCE
}

/// Whether the two largest windows found are the same, or there is none: one more search would
/// hardly change the answer.
fn largest_two_agree(found: &[Step]) -> bool {
    let mut sorted: Vec<&Step> = found.iter().collect();
    sorted.sort_by_key(|step| std::cmp::Reverse(step.cliff()));
    match sorted.as_slice() {
        [] => true,
        [largest, second, ..] => largest.agrees(second),
        [_] => false,
    }
}

/// `step` with an interval that begins where the smallest window of all searches does: how much of the core
/// another hardware thread had is not known for the largest one either.
fn with_all_searches(step: Step, all: &[Step]) -> Step {
    let (cliff, low, high) = step.fillers;
    let lowest = all.iter().map(|it| it.fillers.1).fold(low, u32::min);
    Step {
        fillers: (cliff, lowest, high),
        ..step
    }
}

/// The largest window with which another search agrees; if no two agree, the median of those with a
/// sharp step, else of all.
fn largest_agreed(found: &[Step]) -> Option<Step> {
    let mut sorted: Vec<&Step> = found.iter().collect();
    sorted.sort_by_key(|step| step.cliff());
    let pair = sorted.windows(2).rev().find(|pair| pair[0].agrees(pair[1]));
    if let Some([first, second]) = pair {
        let sharper = if first.width() <= second.width() {
            first
        } else {
            second
        };
        return Some((*sharper).clone());
    }
    let sharp: Vec<&Step> = sorted
        .iter()
        .copied()
        .filter(|step| step.width() <= 0.03 * f64::from(step.instructions()))
        .collect();
    let choice = if sharp.is_empty() { &sorted } else { &sharp };
    choice.get(choice.len() / 2).map(|step| (*step).clone())
}

/// Times of two loads with K fillers between them; `share` is the position of a time between the
/// inner level (0) and the outer (1).
struct Cliff<'p, 's, 'a> {
    probe: &'p mut Probe<'s, 'a>,
    pattern: &'p [Filler],
    inside: f64,
    outside: f64,
}

impl Cliff<'_, '_, '_> {
    fn ticks(&mut self, fillers: u32, effort: u32) -> Result<f64, Error> {
        let sibling = self.probe.sibling.take();
        let mut pair = Pair {
            probe: self.probe,
            pattern: self.pattern,
            fillers,
            effort,
        };
        let Some(mut sibling) = sibling else {
            return pair.ticks();
        };
        let ticks = sibling.undisturbed(&mut pair);
        pair.probe.sibling = Some(sibling);
        ticks
    }

    fn share(&mut self, fillers: u32, effort: u32) -> Result<f64, Error> {
        let ticks = self.ticks(fillers, effort)?;
        Ok((ticks - self.inside) / (self.outside - self.inside))
    }
}

/// Two loads with fillers between them.
struct Pair<'p, 's, 'a> {
    probe: &'p mut Probe<'s, 'a>,
    pattern: &'p [Filler],
    fillers: u32,
    effort: u32,
}

impl Timing for Pair<'_, '_, '_> {
    fn ticks(&mut self) -> Result<f64, Error> {
        let timed = self
            .probe
            .parallel(2, self.fillers, self.pattern, self.effort);
        Ok(timed?.ticks)
    }

    fn gate_ticks(&mut self, fillers: u32) -> Result<f64, Error> {
        Ok(self.probe.parallel(2, fillers, &GATE_PATTERN, 1)?.ticks)
    }
}

fn find(probe: &mut Probe<'_, '_>, pattern: &[Filler]) -> Result<Option<Step>, Error> {
    let mut cliff = Cliff {
        probe,
        pattern,
        inside: 0.0,
        outside: f64::INFINITY,
    };
    let Some((lowest, highest)) = bracket(&mut cliff)? else {
        return Ok(None);
    };
    let (mut from, mut to) = (lowest, highest);
    let mut crossed = None;
    for _ in 0..4 {
        let found = bisect(&mut cliff, from, to)?;
        match refine(&mut cliff, found)? {
            Crossing::At(fillers, low, high) => {
                crossed = Some((fillers, low, high));
                break;
            }
            Crossing::Above if found + NEIGHBOURHOOD_FILLERS < highest => {
                (from, to) = (found + NEIGHBOURHOOD_FILLERS, highest)
            }
            Crossing::Below if found > lowest + NEIGHBOURHOOD_FILLERS => {
                (from, to) = (lowest, found - NEIGHBOURHOOD_FILLERS)
            }
            Crossing::Above | Crossing::Below => break,
        }
    }
    let cycles = |ticks: f64| cliff.probe.session.cycles(ticks);
    let (inside_cycles, outside_cycles) = (cycles(cliff.inside), cycles(cliff.outside));
    Ok(crossed.map(|fillers| Step {
        pattern: pattern.to_vec(),
        fillers,
        inside_cycles,
        outside_cycles,
    }))
}

/// Doubles the fillers up to [`MAX_FILLERS`], three times, and looks for the step. The levels on
/// both sides of it become the cliff's; the first pass also warms the translations.
fn bracket(cliff: &mut Cliff<'_, '_, '_>) -> Result<Option<(u32, u32)>, Error> {
    let mut grid = vec![0];
    grid.extend(
        (4..)
            .map(|power| 1 << power)
            .take_while(|fillers| *fillers <= MAX_FILLERS),
    );
    let mut times = vec![f64::INFINITY; grid.len()];
    for _ in 0..3 {
        for (at, fillers) in grid.iter().enumerate() {
            // Perturbation only makes a kernel slower, so the minimum counts.
            times[at] = times[at].min(cliff.ticks(*fillers, 1)?);
        }
    }
    let Some(at) = step(&times) else {
        return Ok(None);
    };
    cliff.inside = stats::median(&times[..at]).unwrap_or(times[0]);
    cliff.outside = times[at];
    Ok(Some((grid[at - 1], grid[at])))
}

/// The first index from which on every time is clearly above the median of those before; a single
/// high time before it does not hide the step.
fn step(times: &[f64]) -> Option<usize> {
    const MIN_STEP_FACTOR: f64 = 1.35;
    (1..times.len()).find(|at| {
        let before = stats::median(&times[..*at]).unwrap_or(f64::INFINITY);
        let after = times[*at..].iter().copied().fold(f64::INFINITY, f64::min);
        after > MIN_STEP_FACTOR * before && after > 1.2 * times[at - 1]
    })
}

/// Bisects for the largest K inside the window; `low` is inside and `high` outside. Perturbation
/// only makes a kernel slower, so a K is outside only if three measurements say so, or two that nothing else on the
/// core lengthened.
fn bisect(cliff: &mut Cliff<'_, '_, '_>, mut low: u32, mut high: u32) -> Result<u32, Error> {
    while high - low > 1 {
        let middle = low.midpoint(high);
        let mut outside = true;
        let is_trusted = cliff
            .probe
            .sibling
            .as_ref()
            .is_some_and(Sibling::is_trusted);
        let tries = if is_trusted { 2 } else { 3 };
        for _ in 0..tries {
            outside = outside && cliff.share(middle, 1)? >= 0.5;
        }
        if outside { high = middle } else { low = middle }
    }
    Ok(low)
}

/// How far on each side of a K its neighbourhood is measured.
const NEIGHBOURHOOD_FILLERS: u32 = 10;

/// Where the step lies relative to the measured neighbourhood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    /// The last K below half the step, and the K at which the step begins and ends.
    At(u32, u32, u32),
    /// Every K lies inside the window.
    Above,
    /// Every K lies outside it.
    Below,
}

/// Measures the neighbourhood of `found`, upwards and downwards, and keeps the faster time of each
/// K.
fn refine(cliff: &mut Cliff<'_, '_, '_>, found: u32) -> Result<Crossing, Error> {
    let range = found.saturating_sub(NEIGHBOURHOOD_FILLERS)..=found + NEIGHBOURHOOD_FILLERS;
    let mut shares: Vec<(u32, f64)> = Vec::new();
    for fillers in range {
        shares.push((fillers, cliff.share(fillers, 1)?));
    }
    for (fillers, share) in shares.iter_mut().rev() {
        *share = share.min(cliff.share(*fillers, 1)?);
    }
    Ok(crossing(&shares))
}

/// Splits `(K, share)` so that the fewest points are on the wrong side of one half.
fn crossing(shares: &[(u32, f64)]) -> Crossing {
    let wrong = |at: usize| {
        let below = shares[..at]
            .iter()
            .filter(|(_, share)| *share >= 0.5)
            .count();
        let above = shares[at..]
            .iter()
            .filter(|(_, share)| *share < 0.5)
            .count();
        below + above
    };
    let at = (0..=shares.len()).min_by_key(|at| wrong(*at)).unwrap_or(0);
    if at == 0 {
        return Crossing::Below;
    }
    if at == shares.len() {
        return Crossing::Above;
    }
    let last_inside = shares[..at]
        .iter()
        .rposition(|(_, share)| *share < 0.25)
        .unwrap_or(0);
    let first_outside = shares[at..]
        .iter()
        .position(|(_, share)| *share > 0.75)
        .map_or(shares.len() - 1, |offset| at + offset);
    Crossing::At(
        shares[at - 1].0,
        shares[last_inside].0,
        shares[first_outside].0.saturating_sub(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_where_everything_after_lies_above_everything_before() {
        assert_eq!(
            step(&[650.0, 652.0, 660.0, 1300.0, 1350.0, 1500.0]),
            Some(3)
        );
        assert_eq!(step(&[650.0, 655.0, 660.0, 700.0, 760.0, 900.0]), None);
        assert_eq!(step(&[650.0, 1300.0, 660.0, 1300.0]), Some(3));
        assert_eq!(step(&[]), None);
    }

    #[test]
    fn a_sharp_step_is_found_to_the_filler() {
        let shares: Vec<(u32, f64)> = (436..=456)
            .map(|k| (k, if k <= 446 { 0.02 } else { 0.98 }))
            .collect();
        assert_eq!(crossing(&shares), Crossing::At(446, 446, 446));
        assert_eq!(crossing(&shares[..10]), Crossing::Above);
        assert_eq!(crossing(&shares[12..]), Crossing::Below);
    }

    #[test]
    fn a_soft_step_has_a_wider_interval() {
        let shares: Vec<(u32, f64)> = (100..=120)
            .map(|k| (k, ((f64::from(k) - 105.0) / 8.0).clamp(0.0, 1.0)))
            .collect();
        let Crossing::At(cliff, low, high) = crossing(&shares) else {
            panic!("the step is in the middle")
        };
        assert!((108..=109).contains(&cliff), "{cliff}");
        assert!(low < cliff && cliff < high, "{low} {cliff} {high}");
    }

    #[test]
    fn one_stray_point_does_not_move_the_step() {
        let mut shares: Vec<(u32, f64)> = (180..=200)
            .map(|k| (k, if k <= 190 { 0.0 } else { 1.0 }))
            .collect();
        shares[2].1 = 0.9;
        shares[18].1 = 0.1;
        assert!(
            matches!(crossing(&shares), Crossing::At(190, ..)),
            "{shares:?}"
        );
    }

    fn found(cliffs: &[u32]) -> Vec<Step> {
        let step = |cliff: &u32| Step {
            pattern: vec![Filler::Nop],
            fillers: (*cliff, *cliff, *cliff),
            inside_cycles: 650.0,
            outside_cycles: 1300.0,
        };
        cliffs.iter().map(step).collect()
    }

    #[test]
    fn a_search_goes_on_while_the_largest_stand_alone() {
        assert!(largest_two_agree(&found(&[222, 446, 445])));
        assert!(!largest_two_agree(&found(&[222, 222, 446])));
        assert!(!largest_two_agree(&found(&[446])));
        assert!(largest_two_agree(&[]));
    }

    #[test]
    fn a_shared_core_does_not_halve_the_window() {
        let largest = |cliffs: &[u32]| largest_agreed(&found(cliffs)).map(|step| step.cliff());
        assert!(matches!(largest(&[446, 222, 445, 222]), Some(445 | 446)));
        assert_eq!(largest(&[446, 446, 2296]), Some(446));
        assert_eq!(largest(&[222, 446, 2296]), Some(446));
        assert_eq!(largest(&[]), None);
    }

    #[test]
    fn the_interval_holds_what_every_search_found() {
        let all = found(&[446, 222, 445]);
        let step = with_all_searches(all[0].clone(), &all);
        assert_eq!(step.fillers, (446, 222, 446));
    }

    #[test]
    fn entries_count_the_loads_where_they_take_one_and_fused_fillers_together() {
        let step = &found(&[1272])[0];
        let fused = step.window(Filler::Nop, LimitingStructure::ReorderBuffer(4.0), 0);
        assert_eq!(fused.entries.value, 320.0);
        assert_eq!(fused.cliff_fillers, 1272);
        let stores = found(&[64])[0].window(Filler::Store, LimitingStructure::StoreQueue, 0);
        assert_eq!(stores.entries.value, 64.0);
    }

    #[test]
    fn the_reorder_buffer_is_the_nops_unless_the_core_fuses_them() {
        let window = |filler, each, fillers: u32| {
            found(&[fillers])[0].window(filler, LimitingStructure::ReorderBuffer(each), 0)
        };
        let of = |windows| FoundWindows {
            windows,
            evidence: Outcome::default(),
            notes: Vec::new(),
        };
        let plain = of(vec![
            window(Filler::Nop, 1.0, 222),
            window(Filler::Mixed, 1.0, 221),
        ]);
        assert_eq!(plain.reorder().unwrap().filler, Filler::Nop);
        let fused = of(vec![
            window(Filler::Nop, 4.0, 1272),
            window(Filler::Mixed, 1.0, 318),
        ]);
        assert_eq!(fused.reorder().unwrap().entries.value, 320.0);
        assert!(of(Vec::new()).reorder().is_none());
    }
}
