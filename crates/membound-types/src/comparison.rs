//! `membound compare`: machine profiles side by side, and a fleet's outliers.
//!
//! The first profile is the reference: every difference is that of a later one from it. In
//! a fleet the reference is the median of the profiles with the same processor.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, Kind, NodePolicy, Outcome, PageKind};

named! {
    /// Which change of a figure is a change for the worse.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Worse {
        /// More is worse: latencies, costs.
        Higher = "higher",
        /// Less is worse: bandwidths, sizes, parallelism.
        Lower = "lower",
        /// It should not change at all: windows of the core, line sizes.
        Any = "any",
    }
}

named! {
    /// Whether a difference is more than noise.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FigureVerdict {
        /// The same within noise.
        Same = "same",
        /// More than noise.
        Different = "different",
        /// A figure without interval: nothing says how much it scatters.
        Unknown = "unknown",
    }
}

named! {
    /// How one curve follows from another.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CurveVerdict {
        /// The same within noise.
        Same = "same",
        /// The same quantity added everywhere: a cost that every execution has once.
        Shift = "shift",
        /// The same factor everywhere: every access costs more, or less.
        Slope = "slope",
        /// A quantity added and a factor.
        Both = "both",
        /// Neither: the curves have different shapes.
        Other = "other",
        /// They differ, and a shift explains that as well as a factor does.
        Undecided = "undecided",
    }
}

/// One of the profiles compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedProfile {
    /// Short name, different for each: condition labels, host or file.
    pub name: String,
    /// File as it was named; empty for the median of a fleet.
    pub file: String,
    /// Host that was measured.
    pub host: String,
    /// When, RFC 3339 in UTC.
    pub date: String,
    /// Processor.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// Hypervisor's name; `null` on bare metal.
    pub hypervisor: Option<String>,
    /// `--cond NAME=VALUE` labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Cut short, or a part failed.
    #[serde(default)]
    pub incomplete: bool,
    /// Number of profiles that this one is the median of; absent for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_of: Option<usize>,
}

/// A value with the interval that its profile states.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedValue {
    /// The value.
    pub value: f64,
    /// Lower end of its 95 % interval, where it has one.
    pub low: Option<f64>,
    /// Upper end of its 95 % interval.
    pub high: Option<f64>,
}

/// A figure of a later profile against the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureDifference {
    /// Later minus first, in the figure's unit.
    pub absolute: f64,
    /// Later ÷ first − 1; `null` where the first is not positive.
    pub relative: Option<f64>,
    /// Lower end of the 95 % interval of `relative`, scatter between runs included.
    pub relative_low: Option<f64>,
    /// Upper end of that interval.
    pub relative_high: Option<f64>,
    /// Probability of so large a difference by noise alone, corrected for the number of
    /// figures compared.
    pub p_value: Option<f64>,
    /// Whether it is more than noise.
    pub verdict: FigureVerdict,
    /// Whether it is a change for the worse, noise or not.
    pub worse: bool,
}

/// A figure of all profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedFigure {
    /// Stable name, as in `levels.L3.latency_ns`.
    pub name: String,
    /// Part of the profile that it stands in.
    pub part: String,
    /// Name for people.
    pub title: String,
    /// `ns`, `cycles`, `bytes`, `GB/s`, `Hz`; empty for a pure number.
    pub unit: String,
    /// Which change is for the worse.
    pub worse: Worse,
    /// Values in the order of the profiles; `null` where a profile does not have it.
    pub values: Vec<Option<ComparedValue>>,
    /// Differences from the first profile, in the order of the profiles; the first is
    /// `null`.
    pub differences: Vec<Option<FigureDifference>>,
}

/// How many figures of a later profile are the same as the first's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonSummary {
    /// Name of the later profile.
    pub profile: String,
    /// Figures that both have.
    pub compared: usize,
    /// The same within noise.
    pub same: usize,
    /// Different and for the worse.
    pub worse: usize,
    /// Different and for the better.
    pub better: usize,
    /// Without interval.
    pub unknown: usize,
    /// Figures that one of the two does not have.
    pub missing: usize,
}

/// Two curves at one place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePair {
    /// Place.
    pub x: f64,
    /// The first profile's value.
    pub first: f64,
    /// The later one's.
    pub later: f64,
}

/// A curve of a later profile against the first's: later = slope · first + shift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedCurve {
    /// Stable name, as in `latency.random.thp.64.clean.1.local`.
    pub name: String,
    /// Part of the profile that it stands in.
    pub part: String,
    /// Name for people.
    pub title: String,
    /// Unit of the places: `bytes`, `loads`.
    pub x_unit: String,
    /// Unit of the values: `ns`, `cycles`.
    pub y_unit: String,
    /// Name of the later profile.
    pub profile: String,
    /// Shift in the unit of the values, with its 95 % interval; with a slope of 1 where the
    /// verdict is a shift. Missing where too few places are common.
    pub shift: Outcome<Figure>,
    /// Slope, with its 95 % interval; with a shift of 0 where the verdict is a slope.
    pub slope: Outcome<Figure>,
    /// What the two come to; `null` where too few places are common.
    pub verdict: Option<CurveVerdict>,
    /// Smallest place at which the two differ by more than noise.
    pub differs_from: Option<f64>,
    /// Largest such place.
    pub differs_to: Option<f64>,
    /// Median of |later ÷ first − 1| over the common places.
    pub median_relative: Option<f64>,
    /// Common places.
    pub points: Vec<CurvePair>,
}

/// A measured time with the range it scatters over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadsTime {
    /// Loads at once.
    pub loads: u32,
    /// Core clock cycles for all of them.
    pub cycles: f64,
    /// Half the width of the middle half of the batches.
    pub spread: f64,
}

/// A row of document 000's Table 6.1: one condition, and what it does to parallel loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConditionRow {
    /// Name of the profile.
    pub profile: String,
    /// The condition in words: labels of the run, pages and node.
    pub condition: String,
    /// Pages behind the area.
    pub page: PageKind,
    /// Where it lies.
    pub node: NodePolicy,
    /// Memory-level parallelism by the two-load rule, with the fraction between.
    pub effective_mlp: Outcome<ComparedValue>,
    /// The same by throughput.
    pub throughput_mlp: Outcome<f64>,
    /// The same with its 95 % interval, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_interval: Option<ComparedValue>,
    /// One load, in core clock cycles.
    pub one_load_cycles: Outcome<ComparedValue>,
    /// Two loads in sequence, in core clock cycles.
    pub pair_cycles: Outcome<ComparedValue>,
    /// The most loads at once that take less time than the pair.
    pub below: Option<LoadsTime>,
    /// The fewest loads at once that take as long as the pair: MLP + 1 of them.
    pub reached: Option<LoadsTime>,
    /// What placements of the area differ by, as a share of their median: the median over the
    /// numbers of loads; absent where no placements were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_noise: Option<f64>,
    /// One load here minus one load in the first row, in core clock cycles; missing in the
    /// first row, which the others are measured against.
    pub overhead_cycles: Outcome<ComparedValue>,
}

/// A point of an overlaid curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverlayPoint {
    /// Place.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// Lower end of what it scatters over, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// A curve under one condition of one profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverlayCurve {
    /// Name of the profile.
    pub profile: String,
    /// The condition in words: labels of the run, pages and node.
    pub condition: String,
    /// Short name, different for each curve of an overlay.
    pub label: String,
    /// Points, by place.
    pub points: Vec<OverlayPoint>,
}

/// The same curve under every condition of all profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overlay {
    /// `parallel`, `sequential`, `throughput`, `placements`, `latency` or `loaded`.
    pub name: String,
    /// Name for people.
    pub title: String,
    /// Unit of the places: `loads`, `chains`, `bytes`, `GB/s`.
    pub x_unit: String,
    /// Unit of the values: `cycles`, `loads`, `ns`.
    pub y_unit: String,
    /// Curves, in the order of the profiles.
    pub curves: Vec<OverlayCurve>,
}

/// The distribution of a figure over profiles with the same processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetFigure {
    /// Stable name.
    pub name: String,
    /// Part of the profile.
    pub part: String,
    /// Name for people.
    pub title: String,
    /// Unit.
    pub unit: String,
    /// Which change is for the worse.
    pub worse: Worse,
    /// Profiles that have it.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// Robust standard deviation (1.4826 · median absolute deviation), in the unit.
    pub robust_sigma: f64,
    /// 5th percentile.
    pub p5: f64,
    /// 95th percentile.
    pub p95: f64,
}

/// A figure of one profile that is far from the fleet's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outlier {
    /// Stable name.
    pub name: String,
    /// Name for people.
    pub title: String,
    /// Unit.
    pub unit: String,
    /// Value in this profile.
    pub value: f64,
    /// Median of the fleet.
    pub median: f64,
    /// Distance from the median in robust standard deviations.
    pub sigmas: f64,
    /// Value ÷ median − 1.
    pub relative: f64,
    /// Whether it is off to the bad side.
    pub worse: bool,
}

/// A condition in which a profile is not like most of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OddCondition {
    /// Which condition: `thp`, `governor`, `kernel`, …
    pub name: String,
    /// What it is here.
    pub value: String,
    /// What it is in most profiles.
    pub usual: String,
}

/// A profile that stands out of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OddProfile {
    /// File as it was found.
    pub file: String,
    /// Host that was measured.
    pub host: String,
    /// Its outliers, the farthest first.
    pub outliers: Vec<Outlier>,
    /// Figures that nearly all others have and this one has not.
    pub missing: Vec<String>,
    /// Conditions in which it differs.
    pub conditions: Vec<OddCondition>,
    /// What the pattern of its outliers points to, where it is telling.
    pub hints: Vec<String>,
}

/// Profiles with the same processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetGroup {
    /// Processor.
    pub cpu: String,
    /// Profiles.
    pub profiles: usize,
    /// Robust standard deviations beyond which a value is an outlier; `null` with too few
    /// profiles to name any.
    pub limit_sigmas: Option<f64>,
    /// Share of the median beyond which a value is an outlier.
    pub limit_relative: f64,
    /// Every figure.
    pub figures: Vec<FleetFigure>,
    /// Profiles that stand out, the one with most outliers for the worse first.
    pub odd: Vec<OddProfile>,
}

/// A file that was not compared, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedFile {
    /// File as it was found.
    pub file: String,
    /// Why.
    pub reason: String,
}

/// A figure that is worse than `--fail-on` allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuardHit {
    /// Profile: its name, or its file in a fleet.
    pub profile: String,
    /// Stable name of the figure.
    pub figure: String,
    /// Name for people.
    pub title: String,
    /// Unit.
    pub unit: String,
    /// Value.
    pub value: f64,
    /// The first profile's value, or the fleet's median.
    pub reference: f64,
    /// `value ÷ reference − 1`.
    pub relative: f64,
}

/// What `--fail-on` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Guard {
    /// Change for the worse that is allowed, in per cent.
    pub limit_percent: f64,
    /// Whether a figure is worse by more, and by more than noise.
    pub exceeded: bool,
    /// The figures that are, the worst first.
    pub worst: Vec<GuardHit>,
}

/// Scatter between runs that is taken for granted, whatever intervals the files state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoiseFloor {
    /// Figures that it is taken for.
    pub figures: String,
    /// Standard deviation between runs as a share of the value.
    pub relative: f64,
    /// Standard deviation between runs in the figure's unit, added to that.
    pub absolute: f64,
}

/// How differences were judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonMethod {
    /// The test of one figure.
    pub test: String,
    /// The correction for the number of figures.
    pub correction: String,
    /// Share of the differences found that may be noise.
    pub false_discovery_rate: f64,
    /// How curves are set against each other.
    pub curves: String,
    /// Scatter between runs.
    pub floors: Vec<NoiseFloor>,
}

/// `membound compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Version of the schema of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Comparison`].
    pub kind: Kind,
    /// The profiles, the reference first; empty where only a directory was given.
    pub profiles: Vec<ComparedProfile>,
    /// How differences were judged.
    pub method: ComparisonMethod,
    /// One entry for each profile after the first.
    pub summaries: Vec<ComparisonSummary>,
    /// Every figure that any of the profiles has.
    pub figures: Vec<ComparedFigure>,
    /// Curves of each later profile against the first's.
    pub curves: Vec<ComparedCurve>,
    /// Document 000's Table 6.1 over all profiles.
    pub conditions: Vec<ConditionRow>,
    /// Curves of all conditions, to be drawn over each other.
    #[serde(default)]
    pub overlays: Vec<Overlay>,
    /// Fleets of directories, one for each processor.
    #[serde(default)]
    pub fleets: Vec<FleetGroup>,
    /// Files that were found in a directory and not compared.
    #[serde(default)]
    pub skipped: Vec<SkippedFile>,
    /// What `--fail-on` found; absent without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// What the reader should know: profiles of different processors, no common figure.
    #[serde(default)]
    pub notes: Vec<String>,
}
