//! Reduces the number of values for searches whose time grows with a power of it: neighbours in
//! size are merged into their median. The fit itself uses all values.

use std::collections::BTreeMap;

use membound_types::Observation;

use crate::stats::median;

/// Most sizes of a latency curve in a search for levels.
const MAX_SIZES: usize = 250;

/// Most areas of each window size in a search for levels.
const MAX_AREAS: usize = 100;

/// Merges a latency curve to at most [`MAX_SIZES`] sizes.
pub(super) fn thin_curve(observations: &[Observation]) -> Vec<Observation> {
    thin(observations, MAX_SIZES)
}

/// Merges windows to at most [`MAX_AREAS`] distinct areas per window size.
pub(super) fn thin_windows(observations: &[Observation]) -> Vec<Observation> {
    let mut by_window: BTreeMap<Option<u64>, Vec<Observation>> = BTreeMap::new();
    for point in observations {
        by_window
            .entry(point.window_bytes)
            .or_default()
            .push(*point);
    }
    let windows = by_window.values();
    windows.flat_map(|points| thin(points, MAX_AREAS)).collect()
}

/// Merges `observations` to at most `most` values, in bins of equal width in ln(area).
///
/// With at most `most` distinct areas only observations of the same area are merged.
fn thin(observations: &[Observation], most: usize) -> Vec<Observation> {
    let mut areas: Vec<u64> = observations.iter().map(|point| point.area_bytes).collect();
    areas.sort_unstable();
    areas.dedup();
    let (Some(&least), Some(&largest)) = (areas.first(), areas.last()) else {
        return Vec::new();
    };
    if areas.len() <= most && areas.len() == observations.len() {
        return observations.to_vec();
    }
    let by_area = areas.len() <= most;
    let extent = (largest as f64 / least.max(1) as f64).ln();
    let mut bins: BTreeMap<u64, Vec<&Observation>> = BTreeMap::new();
    for point in observations {
        let bin = if by_area {
            point.area_bytes
        } else {
            let place = (point.area_bytes as f64 / least.max(1) as f64).ln() / extent;
            ((place * most as f64) as u64).min(most as u64 - 1)
        };
        bins.entry(bin).or_default().push(point);
    }
    bins.values().filter_map(|bin| bin_median(bin)).collect()
}

/// The medians of a bin as one observation; `None` for an empty bin or times that are NaN.
fn bin_median(bin: &[&Observation]) -> Option<Observation> {
    let of = |value: fn(&Observation) -> f64| {
        let values: Vec<f64> = bin.iter().map(|point| value(point)).collect();
        median(&values)
    };
    Some(Observation {
        window_bytes: bin.first()?.window_bytes,
        area_bytes: of(|point| point.area_bytes as f64)?.round() as u64,
        ns: of(|point| point.ns)?,
        ns_low: Some(of(|point| point.ns_low.unwrap_or(point.ns))?),
        ns_high: Some(of(|point| point.ns_high.unwrap_or(point.ns))?),
    })
}
