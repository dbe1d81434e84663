//! Windows of the core by bisection on the fillers between two loads.

use membound_types::{Basis, Figure, Filler, WindowLimit};

use super::probe::Probe;
use crate::{Error, stats};

/// Fillers beyond the cliff at which a load is surely outside the window.
pub(super) const MARGIN: u32 = 16;

/// Most fillers tried.
const MOST_FILLERS: u32 = 4096;

/// The windows that were found, and what else was seen.
pub(super) struct Found {
    pub(super) windows: Vec<WindowLimit>,
    pub(super) notes: Vec<String>,
}

/// Every window that shows a cliff, each searched for in `rounds` rounds, and up to three
/// times as many while the answers differ.
///
/// A busy hardware thread on the same core takes its part of every window, often half, and
/// in a guest it may be a stranger's. So the largest window that two searches agree on
/// counts, and smaller ones are noted. `known` are windows found under other conditions
/// of memory, which do not change what the core has. A search that fails leaves its
/// window out.
pub(super) fn find_all(probe: &mut Probe<'_, '_>, rounds: u32, known: &[WindowLimit]) -> Found {
    let mut candidates: Vec<WindowLimit> = Vec::new();
    for round in 0..3 * rounds {
        let settled = Filler::ALL
            .iter()
            .all(|filler| largest_two_agree(&candidates, *filler));
        if round >= rounds && settled {
            break;
        }
        for filler in Filler::ALL {
            if probe.session.cancelled() {
                break;
            }
            if let Ok(Some(window)) = find(probe, filler) {
                candidates.push(window);
            }
        }
    }
    choose(&candidates, known)
}

/// One window for each filler out of all that searches found.
fn choose(candidates: &[WindowLimit], known: &[WindowLimit]) -> Found {
    let mut windows: Vec<WindowLimit> = Vec::new();
    let mut notes = Vec::new();
    for filler in Filler::ALL {
        let of_filler = || candidates.iter().filter(|window| window.filler == filler);
        let here: Vec<WindowLimit> = of_filler().cloned().collect();
        let elsewhere = known.iter().find(|window| window.filler == filler);
        let Some(mut window) = largest_agreed(&here) else {
            continue;
        };
        if let Some(elsewhere) = elsewhere
            && !agree(elsewhere, &window)
            && elsewhere.cliff_fillers > window.cliff_fillers
        {
            window = elsewhere.clone();
        }
        if let Some(smallest) = of_filler()
            .map(|window| window.entries.value)
            .reduce(f64::min)
            && smallest < 0.9 * window.entries.value
        {
            notes.push(format!(
                "a search with {} fillers found {smallest:.0} entries instead of {:.0}: another hardware thread had its part of the core, or something else disturbed it",
                filler.name(),
                window.entries.value
            ));
        }
        let reorder = windows.iter().find(|window| window.filler == Filler::Nop);
        window.limited_by = limited_by(filler, &window, reorder).to_owned();
        windows.push(window);
    }
    Found { windows, notes }
}

/// Whether two searches found the same window.
fn agree(a: &WindowLimit, b: &WindowLimit) -> bool {
    const SAME: f64 = 0.02;
    (a.entries.value / b.entries.value).ln().abs() < SAME
}

/// Whether the two largest windows found with `filler` are the same, or there is none: a
/// search more would hardly change the answer.
fn largest_two_agree(found: &[WindowLimit], filler: Filler) -> bool {
    let mut sorted: Vec<&WindowLimit> = found
        .iter()
        .filter(|window| window.filler == filler)
        .collect();
    sorted.sort_by_key(|window| std::cmp::Reverse(window.cliff_fillers));
    match sorted.as_slice() {
        [] => true,
        [largest, second, ..] => agree(largest, second),
        [_] => false,
    }
}

/// The largest window that another search agrees with; without any two that agree, the
/// median of those with a sharp step, else of all.
fn largest_agreed(found: &[WindowLimit]) -> Option<WindowLimit> {
    let mut sorted: Vec<&WindowLimit> = found.iter().collect();
    sorted.sort_by_key(|window| window.cliff_fillers);
    let pair = sorted.windows(2).rev().find(|pair| agree(pair[0], pair[1]));
    if let Some([first, second]) = pair {
        return Some(
            if width(first) <= width(second) {
                first
            } else {
                second
            }
            .to_owned()
            .clone(),
        );
    }
    let sharp: Vec<&WindowLimit> = sorted
        .iter()
        .copied()
        .filter(|window| width(window) <= 0.03 * window.entries.value)
        .collect();
    let choice = if sharp.is_empty() { &sorted } else { &sharp };
    choice.get(choice.len() / 2).map(|window| (*window).clone())
}

fn width(window: &WindowLimit) -> f64 {
    window.entries.high - window.entries.low
}

/// Fillers that write a register meet the smaller of two limits: their register file when
/// its cliff comes clearly before the one of fillers that write none.
fn limited_by(filler: Filler, window: &WindowLimit, reorder: Option<&WindowLimit>) -> &'static str {
    const CLEARLY: f64 = 0.97;
    let earlier = reorder.is_none_or(|reorder| {
        f64::from(window.cliff_fillers) < CLEARLY * f64::from(reorder.cliff_fillers)
    });
    match filler {
        Filler::Integer if earlier => "integer registers",
        Filler::Vector if earlier => "vector registers",
        _ => "reorder buffer",
    }
}

/// Times of two loads with K fillers between them; `share` is how far a time has climbed
/// from the inner level to the outer.
struct Cliff<'p, 's, 'a> {
    probe: &'p mut Probe<'s, 'a>,
    filler: Filler,
    inside: f64,
    outside: f64,
}

impl Cliff<'_, '_, '_> {
    fn ticks(&mut self, fillers: u32, effort: u32) -> Result<f64, Error> {
        Ok(self.probe.parallel(2, fillers, self.filler, effort)?.ticks)
    }

    fn share(&mut self, fillers: u32, effort: u32) -> Result<f64, Error> {
        let ticks = self.ticks(fillers, effort)?;
        Ok((ticks - self.inside) / (self.outside - self.inside))
    }
}

fn find(probe: &mut Probe<'_, '_>, filler: Filler) -> Result<Option<WindowLimit>, Error> {
    let own_uops = probe.own_uops();
    let mut cliff = Cliff {
        probe,
        filler,
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
            Crossing::Above if found + AROUND < highest => (from, to) = (found + AROUND, highest),
            Crossing::Below if found > lowest + AROUND => (from, to) = (lowest, found - AROUND),
            Crossing::Above | Crossing::Below => break,
        }
    }
    let Some((cliff_fillers, low, high)) = crossed else {
        return Ok(None);
    };
    let entries = |fillers: u32| f64::from(fillers + 2 + own_uops);
    let cycles = |ticks: f64| cliff.probe.session.cycles(ticks);
    Ok(Some(WindowLimit {
        filler,
        limited_by: String::new(),
        cliff_fillers,
        entries: Figure {
            value: entries(cliff_fillers),
            low: entries(low),
            high: entries(high),
            basis: Basis::Measured,
        },
        inside_cycles: cycles(cliff.inside),
        outside_cycles: cycles(cliff.outside),
    }))
}

/// Doubles the fillers up to [`MOST_FILLERS`], twice, and looks for the step. The two
/// levels beside it become the cliff's; the first pass also warms the translations.
fn bracket(cliff: &mut Cliff<'_, '_, '_>) -> Result<Option<(u32, u32)>, Error> {
    let mut grid = vec![0];
    grid.extend(
        (4..)
            .map(|power| 1 << power)
            .take_while(|fillers| *fillers <= MOST_FILLERS),
    );
    let mut times = vec![f64::INFINITY; grid.len()];
    for _ in 0..3 {
        for (at, fillers) in grid.iter().enumerate() {
            // Whatever disturbs a kernel makes it slower.
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

/// The first index from which on every time is clearly above the median of those before;
/// a stray one before it does not hide the step.
fn step(times: &[f64]) -> Option<usize> {
    const CLEARLY: f64 = 1.35;
    (1..times.len()).find(|at| {
        let before = stats::median(&times[..*at]).unwrap_or(f64::INFINITY);
        let after = times[*at..].iter().copied().fold(f64::INFINITY, f64::min);
        after > CLEARLY * before && after > 1.2 * times[at - 1]
    })
}

/// The last K that lies inside, between one that does and one that does not. What disturbs
/// a kernel makes it slower, so a K is outside only when it is so three times.
fn bisect(cliff: &mut Cliff<'_, '_, '_>, mut low: u32, mut high: u32) -> Result<u32, Error> {
    while high - low > 1 {
        let middle = low.midpoint(high);
        let mut outside = true;
        for _ in 0..3 {
            outside = outside && cliff.share(middle, 1)? >= 0.5;
        }
        if outside { high = middle } else { low = middle }
    }
    Ok(low)
}

/// How far around a K that was found its neighbourhood is walked over.
const AROUND: u32 = 10;

/// Where the step lies that a neighbourhood was walked over for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    /// The last K below half the step, and the K at which the step begins and ends.
    At(u32, u32, u32),
    /// Every K lies inside the window.
    Above,
    /// Every K lies outside it.
    Below,
}

/// Walks over the neighbourhood of `found`, upwards and downwards, and keeps the faster
/// time of each K.
fn refine(cliff: &mut Cliff<'_, '_, '_>, found: u32) -> Result<Crossing, Error> {
    let range = found.saturating_sub(AROUND)..=found + AROUND;
    let mut shares: Vec<(u32, f64)> = Vec::new();
    for fillers in range {
        shares.push((fillers, cliff.share(fillers, 1)?));
    }
    for (fillers, share) in shares.iter_mut().rev() {
        *share = share.min(cliff.share(*fillers, 1)?);
    }
    Ok(crossing(&shares))
}

/// The split of `(K, share)` with the fewest points on the wrong side of one half.
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

    fn window(filler: Filler, cliff_fillers: u32) -> WindowLimit {
        let value = f64::from(cliff_fillers + 2);
        WindowLimit {
            filler,
            limited_by: String::new(),
            cliff_fillers,
            entries: Figure {
                value,
                low: value,
                high: value,
                basis: Basis::Measured,
            },
            inside_cycles: 0.0,
            outside_cycles: 0.0,
        }
    }

    #[test]
    fn a_search_goes_on_while_the_largest_stand_alone() {
        let found = |cliffs: &[u32]| -> Vec<WindowLimit> {
            cliffs
                .iter()
                .map(|cliff| window(Filler::Nop, *cliff))
                .collect()
        };
        assert!(largest_two_agree(&found(&[222, 446, 445]), Filler::Nop));
        assert!(!largest_two_agree(&found(&[222, 222, 446]), Filler::Nop));
        assert!(!largest_two_agree(&found(&[446]), Filler::Nop));
        assert!(largest_two_agree(&[], Filler::Nop));
    }

    #[test]
    fn a_shared_core_does_not_halve_the_window() {
        let found = [446, 222, 445, 222].map(|cliff| window(Filler::Nop, cliff));
        assert!((445..=446).contains(&largest_agreed(&found).unwrap().cliff_fillers));
        let stray = [446, 446, 2296].map(|cliff| window(Filler::Nop, cliff));
        assert_eq!(largest_agreed(&stray).unwrap().cliff_fillers, 446);
        let none_agree = [222, 446, 2296].map(|cliff| window(Filler::Nop, cliff));
        assert_eq!(largest_agreed(&none_agree).unwrap().cliff_fillers, 446);
        assert!(largest_agreed(&[]).is_none());
    }

    #[test]
    fn register_files_are_named_when_their_cliff_comes_first() {
        let reorder = window(Filler::Nop, 446);
        assert_eq!(limited_by(Filler::Nop, &reorder, None), "reorder buffer");
        let integer = window(Filler::Integer, 205);
        assert_eq!(
            limited_by(Filler::Integer, &integer, Some(&reorder)),
            "integer registers"
        );
        let vector = window(Filler::Vector, 445);
        assert_eq!(
            limited_by(Filler::Vector, &vector, Some(&reorder)),
            "reorder buffer"
        );
    }
}
