//! Effect of the choice of pages on the figures: the same loads are measured on new pages each
//! time.
//!
//! Physical pages (in a guest, the host's) decide which cache sets, memory banks and channels the
//! loads meet. One mapping is one draw of them; the scatter between mappings is the difference
//! between two runs in which nothing was changed.

mod outliers;
mod placement;

use membound_types::{Filler, MlpMode, PlacementPoint, Placements};

use super::config::MlpConfig;
use super::probe::{Probe, Timed, unless_interrupted};
use crate::watch::PlacementWatch;
use crate::{Error, Session, room, stats};
use placement::{Perturbation, Placement, Times};

/// Maximum number of parallel loads that are measured again: with more, their time is that of the
/// queue.
const MAX_LOADS: u32 = 16;

/// Measures `config.placements` times on new pages; `None` if that is 0. `first` keeps its pages
/// until the next ones are mapped, so that the pages differ, where memory allows. `outside` is the
/// number and the kinds of fillers that keep two loads apart. A placement that is far off the
/// others is measured once more, and is an outlier regardless of the repetition.
pub(super) fn measure(
    first: Probe<'_, '_>,
    config: &MlpConfig,
    outside: Option<(u32, &[Filler])>,
    progress: &dyn Fn(f64),
) -> Result<Option<Placements>, Error> {
    let area_bytes = first.area_bytes();
    let mut series = Series {
        session: first.session,
        config: MlpConfig {
            area_bytes,
            ..config.clone()
        },
        outside,
        kept: Some(first),
    };
    let mut all: Vec<Placement> = Vec::new();
    for time in 0..config.placements {
        progress(f64::from(time) / f64::from(config.placements));
        let Some(placement) = series.next()? else {
            break;
        };
        all.push(placement);
    }
    let (kept, outliers) = outliers::set_apart(all, || series.next())?;
    Ok((!kept.is_empty()).then(|| Placements {
        times: u32::try_from(kept.len()).unwrap_or(u32::MAX),
        area_bytes,
        points: points(&kept),
        outliers,
    }))
}

/// Consecutive placements, each on other pages than the one before.
struct Series<'s, 'a, 'f> {
    session: &'s Session<'a>,
    config: MlpConfig,
    outside: Option<(u32, &'f [Filler])>,
    kept: Option<Probe<'s, 'a>>,
}

impl Series<'_, '_, '_> {
    /// The next placement; `None` when the session was cancelled.
    fn next(&mut self) -> Result<Option<Placement>, Error> {
        let session = self.session;
        let Some(last) = &self.kept else {
            return Ok(None);
        };
        let (page, node) = (last.page(), last.node());
        if session.cancelled() {
            return Ok(None);
        }
        if room::share_bytes(session, (page, node, session.cpu), 1) < self.config.area_bytes {
            self.kept = None;
        }
        let watch = PlacementWatch::begin(session.root, session.cpu);
        let mut probe = Probe::new(session, &self.config, page, node)?;
        let times = times(session, &mut probe, &self.config, self.outside)?;
        let (steal_ms, involuntary_switches) = watch.end(session.root);
        self.kept = Some(probe);
        Ok(times.map(|times| Placement {
            times,
            perturbation: Perturbation {
                steal_ms,
                involuntary_switches,
            },
        }))
    }
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
    let loads = config.loads.iter().filter(|loads| **loads <= MAX_LOADS);
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

/// Statistics of each time over all placements.
fn points(all: &[Placement]) -> Vec<PlacementPoint> {
    let count = all.iter().map(|it| it.times.len()).min().unwrap_or(0);
    (0..count)
        .filter_map(|index| {
            let (mode, loads, ..) = all[0].times[index];
            let cycles: Vec<f64> = all.iter().map(|it| it.times[index].2).collect();
            let spreads: Vec<f64> = all.iter().map(|it| it.times[index].3).collect();
            let median = stats::median(&cycles).filter(|median| *median > 0.0)?;
            let off: Vec<f64> = cycles.iter().map(|it| (it - median).abs()).collect();
            /// Factor from a median absolute deviation to a standard deviation.
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
    fn scatter_between_placements_is_separated_from_scatter_within_one() {
        let parallel = MlpMode::Parallel;
        let all: Vec<Placement> = [580.0, 600.0, 620.0, 600.0, 900.0]
            .into_iter()
            .map(|cycles| Placement {
                times: vec![
                    (parallel, 1, cycles, 12.0),
                    (parallel, 4, 2.0 * cycles, 6.0),
                ],
                ..Placement::default()
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
