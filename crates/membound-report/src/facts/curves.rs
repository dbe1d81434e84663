//! Groups latency points into curves for drawings and columns of tables.

use std::collections::BTreeMap;

use membound_types::{
    Access, CpuId, Latency, LatencyPoint, NodePolicy, PageKind, Pattern, PrefetchState,
};

use super::titles::prefetch_state_title;
use crate::units;

/// Conditions that the points of one curve share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CurveKey {
    pub(crate) page: PageKind,
    pub(crate) pattern: Pattern,
    pub(crate) access: Access,
    pub(crate) node: NodePolicy,
    pub(crate) threads: u32,
    pub(crate) prefetch: String,
    pub(crate) cpu: CpuId,
    pub(crate) stride_bytes: u64,
}

impl CurveKey {
    fn of(point: &LatencyPoint) -> Self {
        Self {
            page: point.page,
            pattern: point.pattern,
            access: point.access,
            node: point.node,
            threads: point.threads,
            prefetch: match &point.prefetch {
                PrefetchState::Default => String::new(),
                other => prefetch_state_title(other),
            },
            cpu: point.cpu,
            stride_bytes: point.stride_bytes,
        }
    }

    fn without_stride(&self) -> Self {
        Self {
            stride_bytes: 0,
            ..self.clone()
        }
    }

    /// Number of conditions that differ from `other`, without the stride.
    fn distance(&self, other: &Self) -> usize {
        [
            self.page != other.page,
            self.pattern != other.pattern,
            self.access != other.access,
            self.node != other.node,
            self.threads != other.threads,
            self.prefetch != other.prefetch,
            self.cpu != other.cpu,
        ]
        .into_iter()
        .filter(|differs| *differs)
        .count()
    }
}

/// One curve over size; points are sorted by size.
#[derive(Clone, Debug)]
pub(crate) struct Curve<'a> {
    pub(crate) key: CurveKey,
    pub(crate) label: String,
    /// True if the curve is shown at first; the others are shown on demand.
    pub(crate) main: bool,
    pub(crate) points: Vec<&'a LatencyPoint>,
}

/// Curves that differ only in their stride.
#[derive(Clone, Debug)]
pub(crate) struct StrideFamily<'a> {
    pub(crate) label: String,
    /// Stride with its points by size, smallest stride first.
    pub(crate) strides: Vec<(u64, Vec<&'a LatencyPoint>)>,
}

/// Most curves that are shown at first.
const MAIN_CURVES: usize = 8;

/// Curves over size, the main one first.
///
/// If a combination of conditions was measured with several strides, only the stride nearest to
/// `line_bytes` is included: the others belong to [`stride_families`]. Labels name only conditions that
/// differ between the curves.
pub(crate) fn latency_curves(latency: &Latency, line_bytes: u64) -> Vec<Curve<'_>> {
    let mut by_key: BTreeMap<CurveKey, Vec<&LatencyPoint>> = BTreeMap::new();
    for point in &latency.points {
        by_key.entry(CurveKey::of(point)).or_default().push(point);
    }
    let mut chosen: BTreeMap<CurveKey, u64> = BTreeMap::new();
    for key in by_key.keys() {
        let best = chosen
            .entry(key.without_stride())
            .or_insert(key.stride_bytes);
        if key.stride_bytes.abs_diff(line_bytes) < best.abs_diff(line_bytes) {
            *best = key.stride_bytes;
        }
    }
    let mut curves: Vec<Curve<'_>> = by_key
        .into_iter()
        .filter(|(key, _)| chosen.get(&key.without_stride()) == Some(&key.stride_bytes))
        .map(|(key, mut points)| {
            points.sort_by_key(|point| point.size_bytes);
            Curve {
                key,
                label: String::new(),
                main: false,
                points,
            }
        })
        .collect();
    let Some(base) = base_curve(&curves) else {
        return Vec::new();
    };
    curves.sort_by_key(|curve| curve.key.distance(&base));
    let keys: Vec<CurveKey> = curves.iter().map(|curve| curve.key.clone()).collect();
    for (index, curve) in curves.iter_mut().enumerate() {
        curve.label = label(&curve.key, &keys);
        curve.main = index < MAIN_CURVES && curve.key.distance(&base) <= 1;
    }
    curves
}

/// The curve that describes the caches best: random, clean, one copy, local, prefetchers as found, on the
/// largest pages, and the longest of those.
fn base_curve(curves: &[Curve<'_>]) -> Option<CurveKey> {
    curves
        .iter()
        .max_by_key(|curve| {
            let key = &curve.key;
            (
                key.threads == 1,
                key.prefetch.is_empty(),
                key.access == Access::Clean,
                key.node == NodePolicy::LOCAL,
                key.pattern == Pattern::Random,
                curve.points.len() >= 8,
                key.page,
                curve.points.len(),
                std::cmp::Reverse(key.cpu),
            )
        })
        .map(|curve| curve.key.clone())
}

/// Families with at least two strides and two sizes, largest first.
pub(crate) fn stride_families(latency: &Latency) -> Vec<StrideFamily<'_>> {
    let mut families: BTreeMap<CurveKey, BTreeMap<u64, Vec<&LatencyPoint>>> = BTreeMap::new();
    for point in &latency.points {
        let key = CurveKey::of(point);
        families
            .entry(key.without_stride())
            .or_default()
            .entry(key.stride_bytes)
            .or_default()
            .push(point);
    }
    families.retain(|_, strides| strides.len() > 1);
    let keys: Vec<CurveKey> = families.keys().cloned().collect();
    let mut out: Vec<StrideFamily<'_>> = families
        .into_iter()
        .map(|(key, strides)| StrideFamily {
            label: label_always(&key, &keys),
            strides: strides
                .into_iter()
                .map(|(stride, mut points)| {
                    points.sort_by_key(|point| point.size_bytes);
                    (stride, points)
                })
                .collect(),
        })
        .collect();
    out.sort_by_key(|family| {
        std::cmp::Reverse(
            family
                .strides
                .iter()
                .map(|(_, points)| points.len())
                .sum::<usize>(),
        )
    });
    out
}

/// Curves that differ only in the prefetch setting.
#[derive(Clone, Debug)]
pub(crate) struct SettingFamily<'a> {
    pub(crate) label: String,
    /// Title of each setting with its points by size, in the order of the document: as found comes first.
    pub(crate) settings: Vec<(String, Vec<&'a LatencyPoint>)>,
}

/// Families with at least two prefetch settings, by stride.
pub(crate) fn setting_families(latency: &Latency) -> Vec<SettingFamily<'_>> {
    let mut families: BTreeMap<CurveKey, Vec<(String, Vec<&LatencyPoint>)>> = BTreeMap::new();
    for point in &latency.points {
        let key = CurveKey {
            prefetch: String::new(),
            ..CurveKey::of(point)
        };
        let title = prefetch_state_title(&point.prefetch);
        let settings = families.entry(key).or_default();
        match settings.iter_mut().find(|(known, _)| *known == title) {
            Some((_, points)) => points.push(point),
            None => settings.push((title, vec![point])),
        }
    }
    families.retain(|_, settings| settings.len() > 1);
    let keys: Vec<CurveKey> = families.keys().cloned().collect();
    families
        .into_iter()
        .map(|(key, mut settings)| {
            for (_, points) in &mut settings {
                points.sort_by_key(|point| point.size_bytes);
            }
            let stride = units::bytes(key.stride_bytes);
            SettingFamily {
                label: format!("stride {stride}, {}", label_always(&key, &keys)),
                settings,
            }
        })
        .collect()
}

impl SettingFamily<'_> {
    /// Sizes that were measured with every setting.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let has = |points: &[&LatencyPoint], size| points.iter().any(|p| p.size_bytes == size);
        let (_, first) = &self.settings[0];
        let sizes = first.iter().map(|point| point.size_bytes);
        sizes
            .filter(|size| self.settings.iter().all(|(_, points)| has(points, *size)))
            .collect()
    }

    /// Point of each setting at a size that all settings have.
    pub(crate) fn at(&self, size_bytes: u64) -> Vec<(&str, &LatencyPoint)> {
        let at = self.settings.iter();
        at.filter_map(|(title, points)| {
            let point = points.iter().find(|point| point.size_bytes == size_bytes)?;
            Some((title.as_str(), *point))
        })
        .collect()
    }

    /// Sentence about the largest size: which settings differ from the first by more than both intervals.
    pub(crate) fn reading(&self) -> String {
        let Some(size) = self.sizes().last().copied() else {
            return "no size was measured in every setting".to_owned();
        };
        let all = self.at(size);
        let (first_title, first) = all[0];
        let slower = |(_, point): &&(&str, &LatencyPoint)| point.ns_low > first.ns_high;
        let faster = |(_, point): &&(&str, &LatencyPoint)| point.ns_high < first.ns_low;
        let by_time =
            |a: &&(&str, &LatencyPoint), b: &&(&str, &LatencyPoint)| a.1.ns.total_cmp(&b.1.ns);
        let sentence = |found: Option<&(&str, &LatencyPoint)>, what: &str| {
            found.map(|(title, point)| {
                let part = units::number(point.ns / first.ns);
                format!("{title} is the {what}, {part} of {first_title}")
            })
        };
        let fastest = sentence(all.iter().filter(faster).min_by(by_time), "fastest");
        let slowest = sentence(all.iter().filter(slower).max_by(by_time), "slowest");
        let sentences: Vec<String> = [fastest, slowest].into_iter().flatten().collect();
        let place = units::bytes(size);
        if sentences.is_empty() {
            return format!(
                "at {place} no setting differs from {first_title} beyond the intervals"
            );
        }
        format!("at {place} {}", sentences.join("; "))
    }
}

/// Label with pattern and page kind, and the other conditions that differ within `all`.
fn label_always(key: &CurveKey, all: &[CurveKey]) -> String {
    let mut words = vec![
        format!("{} order", key.pattern),
        format!("{} pages", key.page),
    ];
    words.extend(other_conditions(key, all));
    words.join(", ")
}

/// Label with the conditions that differ within `all`; pattern and page kind if none does.
fn label(key: &CurveKey, all: &[CurveKey]) -> String {
    let mut words = Vec::new();
    if differs(all, |k| k.pattern) || !differs(all, |k| k.page) {
        words.push(key.pattern.to_string());
    }
    if differs(all, |k| k.page) || !differs(all, |k| k.pattern) {
        words.push(key.page.to_string());
    }
    words.extend(other_conditions(key, all));
    if differs(all, |k| k.stride_bytes) {
        words.push(format!("stride {}", units::bytes(key.stride_bytes)));
    }
    words.join(", ")
}

fn other_conditions(key: &CurveKey, all: &[CurveKey]) -> Vec<String> {
    let mut words = Vec::new();
    if differs(all, |k| k.access) {
        words.push(key.access.to_string());
    }
    if differs(all, |k| k.threads) {
        let noun = if key.threads == 1 { "copy" } else { "copies" };
        words.push(format!("{} {noun}", key.threads));
    }
    if differs(all, |k| k.node) {
        words.push(match key.node {
            NodePolicy::Node(node) => format!("node {node}"),
            named => named.to_string(),
        });
    }
    if differs(all, |k| k.cpu) {
        words.push(format!("CPU {}", key.cpu));
    }
    if !key.prefetch.is_empty() {
        words.push(format!("prefetchers {}", key.prefetch));
    }
    words
}

fn differs<T: PartialEq>(all: &[CurveKey], field: impl Fn(&CurveKey) -> T) -> bool {
    all.windows(2)
        .any(|pair| field(&pair[0]) != field(&pair[1]))
}
