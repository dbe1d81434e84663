//! Collects the same curve under all conditions of all profiles, to be drawn in one picture, like
//! document 000's figures 3.1 to 4.1 combined.
//!
//! [`super::curves`] pairs curves of one name; overlays compare the conditions that make names
//! differ (page kinds, nodes, processors). Sizes are in bytes, times in core clock
//! cycles or nanoseconds.

use std::collections::BTreeMap;

use membound_types::{
    Access, LoadsTime, NodePolicy, Overlay, OverlayCurve, OverlayPoint, PageKind, Pattern,
    PrefetchState,
};

use super::table::{Cells, condition};
use super::view::{MlpView, NamedProfile, ProfileView};

/// Every overlay that has curves of at least two conditions.
pub(super) fn overlays(profiles: &[NamedProfile], names: &[String]) -> Vec<Overlay> {
    let mut of_loads = [
        overlay("parallel", "T(N): loads at once", "loads", "cycles"),
        overlay("sequential", "T(n): loads in sequence", "loads", "cycles"),
        overlay(
            "throughput",
            "loads in flight, by independent chains",
            "chains",
            "loads",
        ),
        overlay(
            "placements",
            "T(N) on new pages each time",
            "loads",
            "cycles",
        ),
    ];
    let mut latency = overlay("latency", "random chase over sizes", "bytes", "ns");
    let mut loaded = overlay("loaded", "latency beside traffic", "GB/s", "ns");
    for (profile, name) in profiles.iter().zip(names) {
        let view = &profile.view;
        for part in view.mlp.conditions() {
            let head = || Head {
                profile: name,
                condition: condition(view, part.page, part.node),
            };
            add_loads(part, head, &mut of_loads);
        }
        for ((page, node, _), points) in plain_chases(view) {
            let head = Head {
                profile: name,
                condition: condition(view, page, node),
            };
            latency.curves.push(head.curve(points));
        }
        for chase in &view.chases {
            let head = Head {
                profile: name,
                condition: chase.series.clone(),
            };
            latency.curves.push(head.curve(chase.points.clone()));
        }
        for (mix, points) in by_mix(view) {
            let head = Head {
                profile: name,
                condition: mix.to_owned(),
            };
            loaded.curves.push(head.curve(points));
        }
    }
    of_loads
        .into_iter()
        .chain([latency, loaded])
        .filter_map(finished)
        .collect()
}

/// Adds the curves of one condition to the overlays of loads at once, in sequence, in chains and on new pages.
fn add_loads<'a>(
    part: &MlpView,
    head: impl Fn() -> Head<'a>,
    [parallel, sequential, chains, placements]: &mut [Overlay; 4],
) {
    let add = |overlay: &mut Overlay, points| overlay.curves.push(head().curve(points));
    let times = |times: &[LoadsTime]| {
        let points = times.iter();
        points
            .map(|time| around(time.loads, time.cycles, time.spread))
            .collect()
    };
    let cells = Cells::of(part);
    add(parallel, times(&cells.parallel));
    add(sequential, times(&cells.sequential));
    let points = part.throughput.iter();
    add(
        chains,
        points
            .map(|point| around(point.chains, point.parallelism, 0.0))
            .collect(),
    );
    if let Some(measured) = &part.placements {
        let points = measured.points.iter().map(|point| OverlayPoint {
            x: f64::from(point.loads),
            y: point.median_cycles,
            low: Some(point.low_cycles),
            high: Some(point.high_cycles),
        });
        add(placements, points.collect());
    }
}

/// Profile and condition of a curve.
struct Head<'a> {
    profile: &'a str,
    condition: String,
}

impl Head<'_> {
    fn curve(self, points: Vec<OverlayPoint>) -> OverlayCurve {
        OverlayCurve {
            profile: self.profile.to_owned(),
            condition: self.condition,
            label: String::new(),
            points,
        }
    }
}

fn overlay(name: &str, title: &str, x_unit: &str, y_unit: &str) -> Overlay {
    Overlay {
        name: name.to_owned(),
        title: title.to_owned(),
        x_unit: x_unit.to_owned(),
        y_unit: y_unit.to_owned(),
        curves: Vec::new(),
    }
}

fn around(place: u32, value: f64, half_width: f64) -> OverlayPoint {
    let scatters = half_width > 0.0 && half_width.is_finite();
    OverlayPoint {
        x: f64::from(place),
        y: value,
        low: scatters.then_some(value - half_width),
        high: scatters.then_some(value + half_width),
    }
}

/// The overlay with labels for its curves; `None` if too few curves have points.
fn finished(mut overlay: Overlay) -> Option<Overlay> {
    for curve in &mut overlay.curves {
        curve
            .points
            .retain(|point| point.x.is_finite() && point.y.is_finite());
        curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    overlay.curves.retain(|curve| !curve.points.is_empty());
    // The picture of placements is informative for a single condition too.
    let least = if overlay.name == "placements" { 1 } else { 2 };
    if overlay.curves.len() < least {
        return None;
    }
    label(&mut overlay.curves);
    Some(overlay)
}

/// Sets the shortest labels that distinguish the curves: conditions, profiles, or both.
fn label(curves: &mut [OverlayCurve]) {
    let distinct = |names: &[String]| {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        sorted.dedup();
        sorted.len() == names.len()
    };
    let namings: [&dyn Fn(&OverlayCurve) -> String; 3] = [
        &|curve| short(&curve.condition),
        &|curve| curve.profile.clone(),
        &|curve| format!("{}: {}", curve.profile, short(&curve.condition)),
    ];
    let names = namings
        .into_iter()
        .map(|way| curves.iter().map(way).collect::<Vec<_>>())
        .find(|names| distinct(names));
    for (index, curve) in curves.iter_mut().enumerate() {
        curve.label = match &names {
            Some(names) => names[index].clone(),
            None => format!("{} {}", curve.profile, index + 1),
        };
    }
}

/// A condition without the word that all conditions have.
fn short(condition: &str) -> String {
    condition.replace(" pages", "")
}

/// Latencies under traffic by mix, in the order of the profile.
fn by_mix(view: &ProfileView) -> Vec<(&str, Vec<OverlayPoint>)> {
    let mut found: Vec<(&str, Vec<OverlayPoint>)> = Vec::new();
    for point in &view.loaded.points {
        let known = found.iter().position(|(mix, _)| *mix == point.mix);
        let at = known.unwrap_or_else(|| {
            found.push((&point.mix, Vec::new()));
            found.len() - 1
        });
        found[at].1.push(OverlayPoint {
            x: point.gb_s,
            y: point.ns,
            low: Some(point.ns_low),
            high: Some(point.ns_high),
        });
    }
    found
}

/// Condition of a plain chase: page kind, node, stride in bytes.
type ChaseSetting = (PageKind, NodePolicy, u64);

/// Random clean chases of one copy; for each page kind and node the stride with most points.
fn plain_chases(view: &ProfileView) -> BTreeMap<ChaseSetting, Vec<OverlayPoint>> {
    let mut found: BTreeMap<ChaseSetting, Vec<OverlayPoint>> = BTreeMap::new();
    for point in &view.latency.points {
        let plain = point.pattern == Pattern::Random
            && point.access == Access::Clean
            && point.threads == 1
            && point.prefetch == PrefetchState::Default;
        if plain {
            let key = (point.page, point.node, point.stride_bytes);
            found.entry(key).or_default().push(OverlayPoint {
                x: point.size_bytes as f64,
                y: point.ns,
                low: Some(point.ns_low),
                high: Some(point.ns_high),
            });
        }
    }
    let best: BTreeMap<(PageKind, NodePolicy), u64> = found
        .iter()
        .map(|((page, node, stride), points)| ((*page, *node), (points.len(), *stride)))
        .fold(BTreeMap::new(), |mut best, (place, (points, stride))| {
            let known = best.entry(place).or_insert((0, stride));
            if points > known.0 {
                *known = (points, stride);
            }
            best
        })
        .into_iter()
        .map(|(place, (_, stride))| (place, stride))
        .collect();
    found.retain(|(page, node, stride), _| best.get(&(*page, *node)) == Some(stride));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(profile: &str, condition: &str) -> OverlayCurve {
        OverlayCurve {
            profile: profile.to_owned(),
            condition: condition.to_owned(),
            label: String::new(),
            points: vec![around(1, 200.0, 4.0)],
        }
    }

    #[test]
    fn curves_have_the_shortest_distinct_names() {
        let check = |mut curves: Vec<OverlayCurve>, expected: &[&str]| {
            label(&mut curves);
            let names: Vec<&str> = curves.iter().map(|curve| curve.label.as_str()).collect();
            assert_eq!(names, expected);
        };
        check(
            vec![curve("a", "H0G0, thp pages"), curve("b", "H0G1, 4k pages")],
            &["H0G0, thp", "H0G1, 4k"],
        );
        check(
            vec![curve("a", "thp pages"), curve("b", "thp pages")],
            &["a", "b"],
        );
        check(
            vec![
                curve("a", "thp pages"),
                curve("a", "4k pages"),
                curve("b", "thp pages"),
            ],
            &["a: thp", "a: 4k", "b: thp"],
        );
    }

    #[test]
    fn one_condition_is_no_overlay() {
        let mut one = overlay("parallel", "", "loads", "cycles");
        one.curves = vec![curve("a", "thp pages")];
        assert_eq!(finished(one.clone()), None);
        one.curves.push(curve("a", "4k pages"));
        assert_eq!(finished(one).map(|it| it.curves.len()), Some(2));
    }
}
