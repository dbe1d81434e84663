//! `membound model`: a topology, the model fitted to it, and predictions for other sizes.
//!
//! The model is that of S. Seidl, Access Delays Related to the Main Memory Hierarchy on
//! SGI Origin2000 (1997); equation numbers below are that paper's. A window of `w` bytes,
//! drawn at random from an area of `a` bytes, takes
//!
//! ```text
//! t(a, w) = t₁(w) + Σᵢ (tᵢ₊₁(w) − tᵢ(w)) · max(0, 1 − (Sᵢ/a)^γᵢ) + TLB + page table
//! ```
//!
//! with `Sᵢ` the bytes that levels 1…i hold together and `tᵢ(w)` the sum of the components on the path to
//! level i. With every γ equal to 1 this is the paper's expected value (equation 5) in closed form; chases
//! that visit a buffer in a cycle leave a cache faster and have a different γ.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{ExpectedHits, Figure, Kind, LevelKind, Outcome, WindowPoint};

/// A measured value that a model is fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// Window size in bytes; `null` for a latency curve, where the value is that of one load.
    pub window_bytes: Option<u64>,
    /// Size of the area that windows or loads fall into, in bytes.
    pub area_bytes: u64,
    /// Time of one window or one load in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_low: Option<f64>,
    /// Upper end of the 95 % interval of `ns`, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_high: Option<f64>,
}

impl From<&WindowPoint> for Observation {
    fn from(point: &WindowPoint) -> Self {
        Self {
            window_bytes: Some(point.window_bytes),
            area_bytes: point.area_bytes,
            ns: point.seconds_per_window * 1e9,
            ns_low: Some(point.seconds_low * 1e9),
            ns_high: Some(point.seconds_high * 1e9),
        }
    }
}

named! {
    /// Kind of operation whose times are fitted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FitData {
        /// Windows in areas of memory.
        Window = "window",
        /// Loads of a chase.
        Latency = "latency",
    }
}

named! {
    /// Divisor of residuals in a fit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Weights {
        /// The modelled value, iterated: unbiased at any relative noise.
        #[default]
        Model = "model",
        /// The measured value, as in equation 8: biased towards low values by about the square of the
        /// relative noise.
        Measured = "measured",
        /// No divisor: absolute errors.
        Equal = "equal",
    }
}

named! {
    /// Whether level sizes are given or fitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SizeMode {
        /// Sizes are taken from the topology.
        #[default]
        Fixed = "fixed",
        /// Effective sizes are fitted too, starting from the topology's.
        Free = "free",
    }
}

named! {
    /// Meaning of the size of a level.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SizeMeaning {
        /// The level's own bytes: levels follow each other (equation 2).
        #[default]
        Own = "own",
        /// All bytes up to and including the level, which is where a measured curve leaves it.
        Reach = "reach",
    }
}

named! {
    /// Meaning of a parameter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ParameterRole {
        /// Cost of a component once per window.
        Constant = "constant",
        /// Cost of a component per line of a window.
        PerLine = "per-line",
        /// Cost of a component per load (latency curves).
        PerLoad = "per-load",
        /// Cost of a TLB miss (equation 6).
        TlbMiss = "tlb-miss",
        /// Factor of the page-table term (equation 7).
        PageTable = "page-table",
        /// Effective size of a level, in bytes.
        Size = "size",
        /// Exponent γ with which accesses leave a level.
        Steepness = "steepness",
    }
}

/// A memory hierarchy before measurement: components, and which of them are on the path to each level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// Name, as accepted by `--topology`.
    pub name: String,
    /// One sentence that describes the topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Meaning of level sizes.
    pub sizes: SizeMeaning,
    /// Components, in the order of the report.
    pub components: Vec<Component>,
    /// Levels of the hierarchy, innermost first.
    pub levels: Vec<TopologyLevel>,
    /// TLB terms, innermost first; empty disables equation 6.
    #[serde(default)]
    pub tlb: Vec<TlbTerm>,
    /// Page-table term; `null` disables equation 7.
    #[serde(default)]
    pub page_table: Option<PageTableTerm>,
    /// Bytes per operation of the attainable rate (Table 2: the sign change of a double, 8).
    pub bytes_per_operation: u32,
}

/// A part of the hardware (or the program itself) that takes time on the path to data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Component {
    /// Symbol of its per-line part, as in `t_s`; the constant part has the symbol followed by a 0, `t_s0`.
    pub symbol: String,
    /// Name for the reader.
    pub name: String,
    /// Number of bytes that the per-line part refers to.
    pub line_bytes: u32,
    /// True if it belongs to the measuring program rather than the machine: it is left out of attainable
    /// rates.
    #[serde(default)]
    pub application: bool,
    /// Known per-line part in nanoseconds (from a published table); used by `show`, and by a fit only if
    /// `fixed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_line_ns: Option<f64>,
    /// Known constant part in nanoseconds, used likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant_ns: Option<f64>,
    /// True if a fit uses the known parts unchanged.
    #[serde(default)]
    pub fixed: bool,
}

/// A level: its size, and the components on the path to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyLevel {
    /// Name of the level.
    pub name: String,
    /// Cache or a section of memory.
    pub kind: LevelKind,
    /// Size in bytes, with the meaning of [`Topology::sizes`]; `null` if it has to be given, and for an
    /// unlimited outermost level.
    pub size_bytes: Option<u64>,
    /// Number of times that each component is passed, by symbol.
    pub path: BTreeMap<String, u32>,
    /// Exponent γ of the transition out of this level; 1 for independent random windows.
    pub steepness: f64,
}

/// Term of one level of the TLB (equation 6).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbTerm {
    /// Symbol of the cost of a miss, as in `t_tlb`.
    pub symbol: String,
    /// Number of entries.
    pub entries: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Known cost of a miss in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ns: Option<f64>,
}

/// The page-table term (equation 7): `t_pt · (log₂ a − log₂ reference) / log₂ reference`
/// from `start_bytes` on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageTableTerm {
    /// Symbol of its factor, as in `t_pt`.
    pub symbol: String,
    /// Area in bytes from which on the term applies. The paper: 2²⁸.
    pub start_bytes: u64,
    /// Reference size of the logarithms in bytes. The paper: 2²⁶, hence a jump of 2/26·t_pt at the start.
    pub reference_bytes: u64,
    /// Known factor in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_ns: Option<f64>,
}

/// A fitted or given parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Parameter {
    /// Symbol, as in `t_hh`.
    pub symbol: String,
    /// Value; for a parameter that cannot be identified, the minimum-norm solution.
    pub value: f64,
    /// Unit of the value: `ns`, `bytes` or `1`.
    pub unit: String,
    /// Operation that the value refers to: `128 Bytes`, `1 window`, `1 TLB miss`.
    pub related_to: String,
    /// Standard error; `null` for a given value and for a value that cannot be identified.
    pub std_error: Option<f64>,
    /// Lower end of the 95 % interval; `null` without standard error.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval; `null` without standard error.
    pub high: Option<f64>,
    /// True if the data determine this value by itself.
    pub identifiable: bool,
    /// Why the data do not determine it; absent if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if the value was given (`--fix`, or in the topology).
    #[serde(default)]
    pub fixed: bool,
    /// Meaning of the parameter.
    pub role: ParameterRole,
    /// Readable name of the component.
    pub name: String,
}

/// A sum of parameters that the data determine, although they do not determine its terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Combination {
    /// Symbols of the terms.
    pub symbols: Vec<String>,
    /// Factor of each term.
    pub coefficients: Vec<f64>,
    /// Value of the sum.
    pub value: f64,
    /// Unit of the value.
    pub unit: String,
    /// Standard error of the value.
    pub std_error: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// A level after the fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelLevel {
    /// Name of the level.
    pub name: String,
    /// Whether the level is a cache or memory.
    pub kind: LevelKind,
    /// Size in bytes, with the topology's meaning; `null` for an unlimited level.
    pub size_bytes: Option<u64>,
    /// Lower end of the interval of `size_bytes`, if the size was fitted or found.
    pub size_low_bytes: Option<u64>,
    /// Upper end of the interval of `size_bytes`.
    pub size_high_bytes: Option<u64>,
    /// Bytes that this level and all inner levels hold together; `null` for an unlimited level.
    pub reach_bytes: Option<u64>,
    /// Exponent γ of the transition out of this level.
    pub steepness: f64,
    /// Number of bytes that `ns_per_line` refers to: the longest line on the path.
    pub line_bytes: u32,
    /// Hardware time of one line from this level in nanoseconds, only per-line parts; for a latency curve,
    /// the time of one load. Missing if the data do not determine it.
    pub ns_per_line: Outcome<Figure>,
    /// Time of one load from this level in nanoseconds, if the model is of a latency curve and the data
    /// determine it.
    #[serde(default)]
    pub latency_ns: Option<f64>,
    /// Rate that an infinitely fast processor would reach from this level, in 10⁶ operations per second
    /// (Table 2: MFLOPS). Missing for a latency curve.
    pub rate_mops: Outcome<Figure>,
    /// The same rate in 10⁹ bytes per second.
    pub rate_gb_s: Outcome<Figure>,
    /// Bytes that the TLB reaches if that is less than this level holds, with advice; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tlb_note: Option<String>,
}

/// Quality of a fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Residual {
    /// Median of |model ÷ measured − 1|.
    pub median_relative: f64,
    /// Largest |model ÷ measured − 1|.
    pub max_relative: f64,
    /// Root mean square of the weighted residuals over the degrees of freedom: with relative weights, the
    /// relative noise of the data.
    pub sigma: f64,
    /// Median of |model ÷ measured − 1| at points left out of the fit, over five fits that each leave out
    /// every fifth area; `null` with too few points.
    pub left_out_median_relative: Option<f64>,
}

/// Test whether the constants that vanish in the paper also vanish here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VanishingTest {
    /// Symbols of the constants that are tested together.
    pub symbols: Vec<String>,
    /// F statistic of the fit without the constants against the fit with them.
    pub f: f64,
    /// Probability of an F at least this large if all constants are zero.
    pub p_value: f64,
    /// Largest share of any modelled time due to the constants, 0 to 1.
    pub largest_share: f64,
    /// True if they vanish: not significantly different from zero, or below 2 % of every time.
    pub vanish: bool,
}

/// A measured value with the model's value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FittedPoint {
    /// The measured value.
    #[serde(flatten)]
    pub measured: Observation,
    /// Value of the model, in nanoseconds.
    pub model_ns: f64,
}

/// Origin of the values that a model was fitted to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelSource {
    /// Files as given by the user; empty within a machine profile.
    #[serde(default)]
    pub files: Vec<String>,
    /// Host name, if the files contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The fitted curve within the files: kernel, pages, node, …
    pub series: String,
}

/// Method of a fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FitMethod {
    /// Kind of the data.
    pub data: FitData,
    /// Divisor of the residuals.
    pub weights: Weights,
    /// Whether sizes were fitted.
    pub sizes: SizeMode,
    /// Number of values in the fit.
    pub points: usize,
    /// Number of parameters that the data determine, including combinations.
    pub rank: usize,
    /// Iterations until the weights (and sizes) converged.
    pub iterations: usize,
    /// Condition number of the scaled design matrix in the determined directions.
    pub condition: f64,
    /// How the number of levels was chosen; absent if it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
}

/// A fitted hierarchy model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// Version of the writer's schema.
    pub schema_version: u32,
    /// Always [`Kind::Model`].
    pub kind: Kind,
    /// Origin of the data.
    pub source: ModelSource,
    /// The topology, with the sizes used by the fit.
    pub topology: Topology,
    /// Method of the fit.
    pub method: FitMethod,
    /// All parameters, fitted or given.
    pub parameters: Vec<Parameter>,
    /// Sums that are determined although their terms are not.
    pub combinations: Vec<Combination>,
    /// Covariance of `parameters`, in their order and units, in the directions that the data determine;
    /// rows and columns of given parameters are zero.
    pub covariance: Vec<Vec<f64>>,
    /// Levels with their fitted values, innermost first.
    pub levels: Vec<ModelLevel>,
    /// Quality of the fit; missing if the values show no level to fit.
    pub residual: Outcome<Residual>,
    /// Test of the constants; `null` if the data cannot decide or there are none.
    pub vanishing: Option<VanishingTest>,
    /// All measured values with the model's values.
    pub points: Vec<FittedPoint>,
    /// Notes for the reader: areas beyond all levels, points left out and why.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Predicted time of a window or a load that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PredictedPoint {
    /// Window size in bytes; `null` for a single load.
    pub window_bytes: Option<u64>,
    /// Size of the area or buffer in bytes.
    pub area_bytes: u64,
    /// Distance between the elements of a chase in bytes; `null` for windows.
    pub stride_bytes: Option<u64>,
    /// Time of a window or a load in nanoseconds, with the 95 % interval for a measurement of it.
    pub ns: Outcome<Figure>,
    /// Share of the accesses that each level is expected to serve.
    pub expected: Vec<ExpectedHits>,
    /// Why this point is less certain than its interval suggests; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caution: Option<String>,
}

/// Document of `membound model predict`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Version of the writer's schema.
    pub schema_version: u32,
    /// Always [`Kind::Prediction`].
    pub kind: Kind,
    /// Origin of the model.
    pub source: ModelSource,
    /// Name of the model's topology.
    pub topology: String,
    /// Predicted points, in the requested order.
    pub points: Vec<PredictedPoint>,
}

/// Document of `membound model show`: a topology with its components and attainable rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyDocument {
    /// Version of the writer's schema.
    pub schema_version: u32,
    /// Always [`Kind::Topology`].
    pub kind: Kind,
    /// The topology, as given or built in.
    pub topology: Topology,
    /// Known values of the components (the paper's Table 1).
    pub parameters: Vec<Parameter>,
    /// Levels with their attainable rates (Table 2).
    pub levels: Vec<ModelLevel>,
}
