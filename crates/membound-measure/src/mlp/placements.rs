//! What the choice of pages does to the figures: the same loads on new pages each time.
//!
//! Physical pages decide which cache sets, memory banks and channels the loads meet, and in
//! a guest which pages of the host. One mapping shows one draw of that; the scatter between
//! mappings is what two runs differ by although nothing was changed.

use membound_types::{Filler, MlpMode, PlacementPoint, Placements};

use super::probe::{Probe, Timed};
use super::{MlpConfig, unless_interrupted};
use crate::{Error, Session, room, stats};

/// Most loads at once that are measured again: beyond, their time is one of the queue.
const MOST_LOADS: u32 = 16;

/// Times of one placement, as many as there are points.
type Times = Vec<(MlpMode, u32, f64, f64)>;

/// Measures `config.placements` times on new pages; `None` where none are asked for. `first`
/// keeps its pages until the next are there, so that these are others, where there is room.
/// `outside` are the number and the kinds of fillers that keep two loads apart.
pub(super) fn measure(
    first: Probe<'_, '_>,
    config: &MlpConfig,
    outside: Option<(u32, &[Filler])>,
    progress: &dyn Fn(f64),
) -> Result<Option<Placements>, Error> {
    let session = first.session;
    let area_bytes = first.area_bytes();
    let (page, node) = (first.page(), first.node());
    let again = MlpConfig {
        area_bytes,
        ..config.clone()
    };
    let mut kept = Some(first);
    let mut all: Vec<Times> = Vec::new();
    for time in 0..config.placements {
        progress(f64::from(time) / f64::from(config.placements));
        if session.cancelled() {
            break;
        }
        if room::share_bytes(session, (page, node, session.cpu), 1) < area_bytes {
            kept = None;
        }
        let mut probe = Probe::new(session, &again, page, node)?;
        let Some(times) = times(session, &mut probe, config, outside)? else {
            break;
        };
        all.push(times);
        kept = Some(probe);
    }
    drop(kept);
    Ok((!all.is_empty()).then(|| Placements {
        times: u32::try_from(all.len()).unwrap_or(u32::MAX),
        area_bytes,
        points: points(&all),
    }))
}

/// The times of one placement; `None` when the session was cancelled meanwhile.
fn times(
    session: &Session<'_>,
    probe: &mut Probe<'_, '_>,
    config: &MlpConfig,
    outside: Option<(u32, &[Filler])>,
) -> Result<Option<Times>, Error> {
    let mut times = Times::new();
    let cycles = |timed: &Timed| {
        (
            session.cycles(timed.ticks),
            session.cycles(timed.spread_ticks),
        )
    };
    let loads = config.loads.iter().filter(|loads| **loads <= MOST_LOADS);
    for loads in loads {
        let Some(timed) = unless_interrupted(probe.parallel(*loads, 0, &[], 1))? else {
            return Ok(None);
        };
        let (cycles, spread) = cycles(&timed);
        times.push((MlpMode::Parallel, *loads, cycles, spread));
    }
    for loads in [1, 2] {
        let Some((fillers, pattern)) = outside else {
            break;
        };
        let Some(timed) = unless_interrupted(probe.sequential(loads, fillers, pattern))? else {
            return Ok(None);
        };
        let (cycles, spread) = cycles(&timed);
        times.push((MlpMode::Sequential, loads, cycles, spread));
    }
    Ok(Some(times))
}

/// Each time over all placements.
fn points(all: &[Times]) -> Vec<PlacementPoint> {
    let count = all.iter().map(Vec::len).min().unwrap_or(0);
    (0..count)
        .filter_map(|index| {
            let (mode, loads, ..) = all[0][index];
            let cycles: Vec<f64> = all.iter().map(|times| times[index].2).collect();
            let spreads: Vec<f64> = all.iter().map(|times| times[index].3).collect();
            let median = stats::median(&cycles).filter(|median| *median > 0.0)?;
            let off: Vec<f64> = cycles.iter().map(|it| (it - median).abs()).collect();
            /// From a median absolute deviation to a standard deviation.
            const TO_SIGMA: f64 = 1.4826;
            Some(PlacementPoint {
                mode,
                loads,
                median_cycles: median,
                low_cycles: cycles.iter().copied().fold(f64::INFINITY, f64::min),
                high_cycles: cycles.iter().copied().fold(0.0, f64::max),
                between: TO_SIGMA * stats::median(&off)? / median,
                within: stats::median(&spreads)? / median,
                cycles,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_between_placements_is_told_from_that_within_one() {
        let parallel = MlpMode::Parallel;
        let all: Vec<Times> = [580.0, 600.0, 620.0, 600.0, 900.0]
            .into_iter()
            .map(|cycles| {
                vec![
                    (parallel, 1, cycles, 12.0),
                    (parallel, 4, 2.0 * cycles, 6.0),
                ]
            })
            .collect();
        let points = points(&all);
        assert_eq!(points.len(), 2);
        let one = &points[0];
        assert_eq!((one.loads, one.median_cycles), (1, 600.0));
        assert_eq!((one.low_cycles, one.high_cycles), (580.0, 900.0));
        // The median of 20, 0, 20, 0 and 300.
        assert!((one.between - 1.4826 * 20.0 / 600.0).abs() < 1e-12);
        assert!((one.within - 0.02).abs() < 1e-12);
        assert!(points_are_empty_without_placements());
    }

    fn points_are_empty_without_placements() -> bool {
        points(&[]).is_empty()
    }
}
