//! `membound compare`: comparison of machine profiles, and outliers of a fleet.
//!
//! The first profile is the reference: every difference is between a later profile and the first. In a
//! fleet, the reference is the median of the profiles with the same processor.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, Kind, NodePolicy, Outcome, PageKind};

named! {
    /// Direction in which a change of a figure is a change for the worse.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Worse {
        /// An increase is worse: latencies, costs.
        Higher = "higher",
        /// A decrease is worse: bandwidths, sizes, parallelism.
        Lower = "lower",
        /// Neither direction is worse: windows of the core, line sizes.
        Neither = "neither",
    }
}

named! {
    /// Whether the difference of a figure exceeds noise.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FigureVerdict {
        /// No difference beyond noise.
        Same = "same",
        /// A difference beyond noise.
        Different = "different",
        /// The figure has no interval, so its noise is unknown.
        Unknown = "unknown",
    }
}

named! {
    /// Relation between two curves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CurveVerdict {
        /// No difference beyond noise.
        Same = "same",
        /// A constant added everywhere: a cost that occurs once per execution.
        Shift = "shift",
        /// A constant factor everywhere: each access costs more, or less.
        Slope = "slope",
        /// A constant added and a factor.
        Both = "both",
        /// Neither: the curves have different shapes.
        Other = "other",
        /// The curves differ, and a shift explains the difference as well as a factor.
        Undecided = "undecided",
    }
}

/// One of the compared profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedProfile {
    /// Short, unique name: from condition labels, host or file.
    pub name: String,
    /// File as given by the user; empty for the median of a fleet.
    pub file: String,
    /// Host name of the measured machine.
    pub host: String,
    /// Start of the measurement, RFC 3339 in UTC.
    pub date: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Hypervisor's name; `null` on bare metal.
    pub hypervisor: Option<String>,
    /// Labels given with `--cond NAME=VALUE`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// True if the measurement was cut short, or a part failed.
    #[serde(default)]
    pub incomplete: bool,
    /// Number of profiles that this one is the median of; absent for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_of: Option<usize>,
}

/// A value with the interval stated in its profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedValue {
    /// The value, in the unit of its context.
    pub value: f64,
    /// Lower end of the 95 % interval; `null` if there is none.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval; `null` if there is none.
    pub high: Option<f64>,
}

/// Difference of a figure between a later profile and the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureDifference {
    /// Later minus first value, in the figure's unit.
    pub absolute: f64,
    /// Later ÷ first − 1; `null` if the first value is not positive.
    pub relative: Option<f64>,
    /// Lower end of the 95 % interval of `relative`, including variation between runs.
    pub relative_low: Option<f64>,
    /// Upper end of the 95 % interval of `relative`.
    pub relative_high: Option<f64>,
    /// Probability of a difference at least this large by noise alone, corrected for the number of compared
    /// figures.
    pub p_value: Option<f64>,
    /// Whether the difference exceeds noise.
    pub verdict: FigureVerdict,
    /// True if the change is in the worse direction, whether or not it exceeds noise.
    pub worse: bool,
}

/// One figure in all profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedFigure {
    /// Stable name, as in `levels.L3.latency_ns`.
    pub name: String,
    /// Part of the profile that contains the figure.
    pub part: String,
    /// Readable title of the figure.
    pub title: String,
    /// `ns`, `cycles`, `bytes`, `GB/s`, `Hz`; empty for a dimensionless number.
    pub unit: String,
    /// Direction of a change for the worse.
    pub worse: Worse,
    /// Values in the order of the profiles; `null` for a profile without the figure.
    pub values: Vec<Option<ComparedValue>>,
    /// Differences from the first profile, in the order of the profiles; the first entry is `null`.
    pub differences: Vec<Option<FigureDifference>>,
}

/// Counts of figures by their difference between a later profile and the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonSummary {
    /// Name of the later profile.
    pub profile: String,
    /// Figures that both profiles have.
    pub compared: usize,
    /// Figures that do not differ beyond noise.
    pub same: usize,
    /// Figures that differ and are worse.
    pub worse: usize,
    /// Figures that differ and are better.
    pub better: usize,
    /// Figures that differ, where neither a higher nor a lower value is worse.
    pub neither: usize,
    /// Figures without an interval.
    pub unknown: usize,
    /// Figures that one of the two profiles lacks.
    pub missing: usize,
}

/// Values of two curves at one x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePair {
    /// Position on the x axis, in `x_unit`.
    pub x: f64,
    /// Value of the first profile, in `y_unit`.
    pub first: f64,
    /// Value of the later profile, in `y_unit`.
    pub later: f64,
}

/// Comparison of a curve with the first profile's: later = slope · first + shift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedCurve {
    /// Stable name, as in `latency.random.thp.64.clean.1.local`.
    pub name: String,
    /// Part of the profile that contains the curve.
    pub part: String,
    /// Readable title of the curve.
    pub title: String,
    /// Unit of the x axis: `bytes`, `loads`.
    pub x_unit: String,
    /// Unit of the y axis: `ns`, `cycles`.
    pub y_unit: String,
    /// Name of the later profile.
    pub profile: String,
    /// Shift in the unit of the y axis with its 95 % interval; for the verdict "shift" it is fitted with a
    /// slope of 1. Missing if the curves have too few common points.
    pub shift: Outcome<Figure>,
    /// Slope with its 95 % interval; for the verdict "slope" it is fitted with a shift of 0.
    pub slope: Outcome<Figure>,
    /// Relation of the curves; `null` if they have too few common points.
    pub verdict: Option<CurveVerdict>,
    /// Smallest x at which the curves differ beyond noise.
    pub differs_from: Option<f64>,
    /// Largest x at which the curves differ beyond noise.
    pub differs_to: Option<f64>,
    /// Median of |later ÷ first − 1| over the common points.
    pub median_relative: Option<f64>,
    /// Points that both curves have.
    pub points: Vec<CurvePair>,
}

/// A measured time with its scatter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadsTime {
    /// Number of loads at once.
    pub loads: u32,
    /// Core clock cycles for all loads.
    pub cycles: f64,
    /// Half the interquartile range of the batches, in cycles.
    pub spread: f64,
}

/// Row of document 000's Table 6.1: effect of one condition on parallel loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConditionRow {
    /// Name of the profile.
    pub profile: String,
    /// The condition in words: labels of the run, pages and node.
    pub condition: String,
    /// Page kind of the area.
    pub page: PageKind,
    /// Node of the area.
    pub node: NodePolicy,
    /// Memory-level parallelism by the two-load rule, interpolated between whole numbers.
    pub effective_mlp: Outcome<ComparedValue>,
    /// Memory-level parallelism by throughput.
    pub throughput_mlp: Outcome<f64>,
    /// `throughput_mlp` with its 95 % interval, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_interval: Option<ComparedValue>,
    /// Time of one load, in core clock cycles.
    pub one_load_cycles: Outcome<ComparedValue>,
    /// Time of two loads in sequence, in core clock cycles.
    pub pair_cycles: Outcome<ComparedValue>,
    /// Most loads at once that take less time than two in sequence.
    pub below: Option<LoadsTime>,
    /// Fewest loads at once that take as long as two in sequence: MLP + 1 loads.
    pub reached: Option<LoadsTime>,
    /// Variation between placements of the area, as a share of their median: the median over the numbers of
    /// loads. Absent if no placements were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_noise: Option<f64>,
    /// Time of one load minus that in the first row, in core clock cycles; missing in the first row itself.
    pub overhead_cycles: Outcome<ComparedValue>,
}

/// Point of an overlaid curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverlayPoint {
    /// Position on the x axis.
    pub x: f64,
    /// Value at `x`.
    pub y: f64,
    /// Lower end of the scatter, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end of the scatter, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// Curve under one condition of one profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverlayCurve {
    /// Name of the profile.
    pub profile: String,
    /// The condition in words: labels of the run, pages and node.
    pub condition: String,
    /// Short name, unique within the overlay.
    pub label: String,
    /// Points, by rising x.
    pub points: Vec<OverlayPoint>,
}

/// One curve under every condition of all profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overlay {
    /// `parallel`, `sequential`, `throughput`, `placements`, `latency` or `loaded`.
    pub name: String,
    /// Readable title of the overlay.
    pub title: String,
    /// Unit of the x axis: `loads`, `chains`, `bytes`, `GB/s`.
    pub x_unit: String,
    /// Unit of the y axis: `cycles`, `loads`, `ns`.
    pub y_unit: String,
    /// Curves, in the order of the profiles.
    pub curves: Vec<OverlayCurve>,
}

/// Distribution of a figure over profiles with the same processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetFigure {
    /// Stable name of the figure.
    pub name: String,
    /// Part of the profile that contains the figure.
    pub part: String,
    /// Readable title of the figure.
    pub title: String,
    /// Unit of the figure.
    pub unit: String,
    /// Direction of a change for the worse.
    pub worse: Worse,
    /// Number of profiles with the figure.
    pub count: usize,
    /// Median over the profiles.
    pub median: f64,
    /// Robust standard deviation (1.4826 · median absolute deviation), in `unit`.
    pub robust_sigma: f64,
    /// 5th percentile over the profiles.
    pub p5: f64,
    /// 95th percentile over the profiles.
    pub p95: f64,
}

/// Figure of one profile that is far from the fleet's median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outlier {
    /// Stable name of the figure.
    pub name: String,
    /// Readable title of the figure.
    pub title: String,
    /// Unit of `value` and `median`.
    pub unit: String,
    /// Value in this profile.
    pub value: f64,
    /// Median of the fleet, in `unit`.
    pub median: f64,
    /// Distance from the median in robust standard deviations.
    pub sigmas: f64,
    /// Value ÷ median − 1.
    pub relative: f64,
    /// True if the value deviates in the worse direction.
    pub worse: bool,
    /// True if neither direction is worse.
    pub neutral: bool,
}

/// Condition of a profile that differs from most of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OddCondition {
    /// Name of the condition: `thp`, `governor`, `kernel`, …
    pub name: String,
    /// Its value in this profile.
    pub value: String,
    /// Its value in most profiles.
    pub usual: String,
}

/// Profile with outliers in its fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OddProfile {
    /// File as found in the directory.
    pub file: String,
    /// Host name of the measured machine.
    pub host: String,
    /// Its outliers, the farthest first.
    pub outliers: Vec<Outlier>,
    /// Figures that nearly all other profiles have and this one lacks.
    pub missing: Vec<String>,
    /// Conditions that differ from most of the fleet.
    pub conditions: Vec<OddCondition>,
    /// Probable causes, if the pattern of outliers suggests any.
    pub hints: Vec<String>,
}

/// Profiles with the same processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetGroup {
    /// Model name of the processor.
    pub cpu: String,
    /// Number of profiles.
    pub profiles: usize,
    /// Robust standard deviations beyond which a value is an outlier; `null` if there are too few profiles
    /// to find outliers.
    pub limit_sigmas: Option<f64>,
    /// Share of the median beyond which a value is an outlier.
    pub limit_relative: f64,
    /// Distributions of all figures.
    pub figures: Vec<FleetFigure>,
    /// Profiles with outliers; the one with most outliers for the worse comes first.
    pub odd: Vec<OddProfile>,
}

/// A file that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedFile {
    /// File as found in the directory.
    pub file: String,
    /// Why it was not compared.
    pub reason: String,
}

/// A figure that is worse than `--fail-on` allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuardHit {
    /// Profile: its name, or in a fleet its file.
    pub profile: String,
    /// Stable name of the figure.
    pub figure: String,
    /// Readable title of the figure.
    pub title: String,
    /// Unit of `value` and `reference`.
    pub unit: String,
    /// Value in the profile.
    pub value: f64,
    /// Value of the first profile, or the fleet's median.
    pub reference: f64,
    /// `value ÷ reference − 1`.
    pub relative: f64,
}

/// Result of `--fail-on`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Guard {
    /// Change for the worse that is allowed, in per cent.
    pub limit_percent: f64,
    /// True if a figure is worse by more than the limit and by more than noise.
    pub exceeded: bool,
    /// The figures beyond the limit, the worst first.
    pub worst: Vec<GuardHit>,
}

/// Variation between runs that is assumed, whatever intervals the files state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoiseFloor {
    /// Figures that the assumption applies to.
    pub figures: String,
    /// Standard deviation between runs as a share of the value.
    pub relative: f64,
    /// Standard deviation between runs in the figure's unit, in addition to `relative`.
    pub absolute: f64,
}

/// Statistical methods of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonMethod {
    /// Test of one figure.
    pub test: String,
    /// Correction for the number of figures.
    pub correction: String,
    /// Share of the reported differences that may be noise.
    pub false_discovery_rate: f64,
    /// Method by which curves are compared.
    pub curves: String,
    /// Assumed variation between runs.
    pub floors: Vec<NoiseFloor>,
}

/// Document of `membound compare` for machine profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Version of the writer's schema.
    pub schema_version: u32,
    /// Always [`Kind::Comparison`].
    pub kind: Kind,
    /// The profiles, reference first; empty if only a directory was given.
    pub profiles: Vec<ComparedProfile>,
    /// Statistical methods of the comparison.
    pub method: ComparisonMethod,
    /// Counts of differences, for each profile after the first.
    pub summaries: Vec<ComparisonSummary>,
    /// All figures of any of the profiles.
    pub figures: Vec<ComparedFigure>,
    /// Curves of each later profile, compared with the first profile's.
    pub curves: Vec<ComparedCurve>,
    /// Document 000's Table 6.1 over all profiles.
    pub conditions: Vec<ConditionRow>,
    /// Curves of all conditions, for drawing over each other.
    #[serde(default)]
    pub overlays: Vec<Overlay>,
    /// Fleets found in directories, one for each processor.
    #[serde(default)]
    pub fleets: Vec<FleetGroup>,
    /// Files in a directory that were not compared.
    #[serde(default)]
    pub skipped: Vec<SkippedFile>,
    /// Result of `--fail-on`; absent without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// Notes for the reader: profiles of different processors, no common figure.
    #[serde(default)]
    pub notes: Vec<String>,
}
