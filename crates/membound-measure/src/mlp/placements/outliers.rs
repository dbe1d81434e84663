//! Placements that are far off the others, and the probable reason.
//!
//! The choice of pages changes times by some percent, in the worst case by some ten percent. A
//! placement that takes several times as long was perturbed, mostly by others that used the CPU. It
//! must not make the interval of the others look wide.

use membound_types::{Outcome, PlacementOutlier};

use super::placement::{Perturbation, Placement};
use crate::{Error, stats};

/// Multiple of the median of all placements from which on a placement is far off.
const OUTLIER_FACTOR: f64 = 3.0;

/// Minimum number of placements; with fewer, there is no majority to compare one with.
const MIN_PLACEMENTS: usize = 3;

/// Removes placements that are far off from `all` and measures each once more with `again` (`None`:
/// interrupted). A repetition that is near the others replaces the placement.
pub(super) fn set_apart(
    all: Vec<Placement>,
    mut again: impl FnMut() -> Result<Option<Placement>, Error>,
) -> Result<(Vec<Placement>, Vec<PlacementOutlier>), Error> {
    let usual = medians(&all);
    let far =
        |placement: &Placement| ratio(placement, &usual).filter(|ratio| *ratio > OUTLIER_FACTOR);
    if all.len() < MIN_PLACEMENTS {
        return Ok((all, Vec::new()));
    }
    let (mut kept, mut outliers) = (Vec::new(), Vec::new());
    for (index, placement) in all.into_iter().enumerate() {
        let Some(off) = far(&placement) else {
            kept.push(placement);
            continue;
        };
        let repeated = again()?;
        let repeated_ratio = repeated.as_ref().and_then(|it| ratio(it, &usual));
        outliers.push(PlacementOutlier {
            placement: u32::try_from(index + 1).unwrap_or(u32::MAX),
            ratio: off,
            repeated_ratio: repeated_ratio.map_or_else(
                || Outcome::missing("interrupted before it was repeated"),
                Outcome::Known,
            ),
            steal_ms: placement.perturbation.steal_ms,
            involuntary_switches: placement.perturbation.involuntary_switches,
            reason: reason(placement.perturbation, repeated_ratio),
        });
        kept.extend(repeated.filter(|it| far(it).is_none()));
    }
    Ok((kept, outliers))
}

/// Why a placement was probably slow.
fn reason(perturbation: Perturbation, repeated: Option<f64>) -> String {
    let again = match repeated {
        Some(ratio) if ratio > OUTLIER_FACTOR => "slow again on other pages",
        Some(_) => "as the others when repeated",
        None => "not repeated",
    };
    let cause = match (
        perturbation.steal_ms > 0.0,
        perturbation.involuntary_switches > 0,
    ) {
        (true, true) => "the hypervisor and other programs had the CPU",
        (true, false) => "the hypervisor had the CPU",
        (false, true) => "other programs had the CPU",
        (false, false) => {
            "nothing that the kernel counts: others used the memory or the caches, or these pages \
             are slow"
        }
    };
    format!("{cause}; {again}")
}

/// The median of each time over all placements.
fn medians(all: &[Placement]) -> Vec<f64> {
    let count = all.iter().map(|it| it.times.len()).min().unwrap_or(0);
    (0..count)
        .map(|index| {
            let cycles: Vec<f64> = all.iter().map(|it| it.times[index].2).collect();
            stats::median(&cycles).unwrap_or(0.0)
        })
        .collect()
}

/// The median over all times of a placement of time ÷ usual time.
fn ratio(placement: &Placement, usual: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = placement
        .times
        .iter()
        .zip(usual)
        .filter(|(_, usual)| **usual > 0.0)
        .map(|((.., cycles, _), usual)| cycles / usual)
        .collect();
    stats::median(&ratios)
}

#[cfg(test)]
mod tests {
    use membound_types::MlpMode;

    use super::*;

    fn placement(cycles: f64, perturbation: Perturbation) -> Placement {
        Placement {
            times: vec![
                (MlpMode::Parallel, 1, cycles, 5.0),
                (MlpMode::Parallel, 2, 1.1 * cycles, 5.0),
                (MlpMode::Sequential, 2, 2.0 * cycles, 5.0),
            ],
            perturbation,
        }
    }

    fn five(slow: f64, perturbation: Perturbation) -> Vec<Placement> {
        [600.0, 620.0, slow, 590.0, 610.0]
            .map(|cycles| {
                placement(
                    cycles,
                    if cycles == slow {
                        perturbation
                    } else {
                        Perturbation::default()
                    },
                )
            })
            .to_vec()
    }

    #[test]
    fn a_placement_that_others_had_the_cpu_of_is_an_outlier_and_repeated_once() {
        let perturbation = Perturbation {
            steal_ms: 340.0,
            involuntary_switches: 12,
        };
        let mut repeated = 0;
        let (kept, outliers) = set_apart(five(12_000.0, perturbation), || {
            repeated += 1;
            Ok(Some(placement(615.0, Perturbation::default())))
        })
        .unwrap();
        assert_eq!(repeated, 1);
        assert_eq!(kept.len(), 5);
        let [outlier] = outliers.as_slice() else {
            panic!("{outliers:?}")
        };
        assert_eq!(outlier.placement, 3);
        // The median of the five is 610.
        assert!((outlier.ratio - 12_000.0 / 610.0).abs() < 1e-9);
        assert_eq!(outlier.repeated_ratio, Outcome::Known(615.0 / 610.0));
        assert_eq!(
            (outlier.steal_ms, outlier.involuntary_switches),
            (340.0, 12)
        );
        assert!(outlier.reason.contains("hypervisor and other programs"));
        assert!(outlier.reason.contains("as the others when repeated"));
        let most = super::super::points(&kept)[0].high_cycles;
        assert_eq!(most, 620.0, "its times widen nothing");
    }

    #[test]
    fn pages_that_are_slow_again_are_left_out_and_reported() {
        let slow = || Ok(Some(placement(11_000.0, Perturbation::default())));
        let (kept, outliers) = set_apart(five(12_000.0, Perturbation::default()), slow).unwrap();
        assert_eq!(kept.len(), 4);
        assert!(
            outliers[0]
                .reason
                .contains("nothing that the kernel counts")
        );
        assert!(outliers[0].reason.contains("slow again"), "{outliers:?}");

        let (kept, outliers) =
            set_apart(five(12_000.0, Perturbation::default()), || Ok(None)).unwrap();
        assert_eq!(kept.len(), 4);
        assert!(outliers[0].repeated_ratio.why_missing().is_some());
    }

    #[test]
    fn usual_noise_and_two_placements_have_no_outliers() {
        let never = || panic!("nothing is to be repeated");
        let (kept, outliers) = set_apart(five(900.0, Perturbation::default()), never).unwrap();
        assert_eq!((kept.len(), outliers.len()), (5, 0));
        let two = five(12_000.0, Perturbation::default())[1..3].to_vec();
        let never = || panic!("which of two is slow cannot be told");
        let (kept, outliers) = set_apart(two, never).unwrap();
        assert_eq!((kept.len(), outliers.len()), (2, 0));
    }
}
