//! Decides whether a figure is worse than `--fail-on` allows.

use membound_types::{Comparison, FigureVerdict, FleetGroup, Guard, GuardHit, Worse};

/// Judges a comparison against a limit in percent.
///
/// A figure counts if it is worse than the reference by more than `limit_percent` and by more
/// than noise. In a fleet, more than noise means beyond the group's limit of robust standard
/// deviations.
#[must_use]
pub fn judge(comparison: &Comparison, limit_percent: f64) -> Guard {
    let limit = limit_percent / 100.0;
    let mut worst: Vec<GuardHit> = side_by_side(comparison, limit)
        .chain(
            comparison
                .fleets
                .iter()
                .flat_map(|group| in_fleet(group, limit)),
        )
        .collect();
    worst.sort_by(|a, b| severity(b).total_cmp(&severity(a)));
    Guard {
        limit_percent,
        exceeded: !worst.is_empty(),
        worst,
    }
}

/// Size of a change; half and double are equally severe.
fn severity(hit: &GuardHit) -> f64 {
    (1.0 + hit.relative).max(1e-9).ln().abs()
}

fn side_by_side(comparison: &Comparison, limit: f64) -> impl Iterator<Item = GuardHit> {
    comparison.figures.iter().flat_map(move |figure| {
        let first = figure.values.first().copied().flatten();
        figure
            .differences
            .iter()
            .zip(&figure.values)
            .zip(&comparison.profiles)
            .filter_map(move |((difference, value), profile)| {
                let (difference, value) = ((*difference)?, (*value)?);
                let relative = difference.relative?;
                let counts = difference.verdict == FigureVerdict::Different
                    && difference.worse
                    && exceeds_limit(figure.worse, relative, limit);
                counts.then(|| GuardHit {
                    profile: profile.name.clone(),
                    figure: figure.name.clone(),
                    title: figure.title.clone(),
                    unit: figure.unit.clone(),
                    value: value.value,
                    reference: first.map_or(f64::NAN, |first| first.value),
                    relative,
                })
            })
    })
}

fn in_fleet(group: &FleetGroup, limit: f64) -> impl Iterator<Item = GuardHit> {
    group.odd.iter().flat_map(move |profile| {
        profile
            .outliers
            .iter()
            .filter(move |outlier| outlier.worse && outlier.relative.abs() > limit)
            .map(|outlier| GuardHit {
                profile: profile.file.clone(),
                figure: outlier.name.clone(),
                title: outlier.title.clone(),
                unit: outlier.unit.clone(),
                value: outlier.value,
                reference: outlier.median,
                relative: outlier.relative,
            })
    })
}

fn exceeds_limit(worse: Worse, relative: f64, limit: f64) -> bool {
    match worse {
        Worse::Higher => relative > limit,
        Worse::Lower => relative < -limit,
        Worse::Neither => false,
    }
}
