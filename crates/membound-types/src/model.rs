//! `membound model`: a topology, what was fitted to it, and what follows for other sizes.
//!
//! The model is that of S. Seidl, Access Delays Related to the Main Memory Hierarchy on
//! SGI Origin2000 (1997); equation numbers below are that paper's. A window of `w` bytes,
//! drawn at random from an area of `a` bytes, takes
//!
//! ```text
//! t(a, w) = t₁(w) + Σᵢ (tᵢ₊₁(w) − tᵢ(w)) · max(0, 1 − (Sᵢ/a)^γᵢ) + TLB + page table
//! ```
//!
//! with `Sᵢ` the bytes that levels 1…i hold together and `tᵢ(w)` the sum of the components
//! on the path to level i. With every γ equal to 1 this is the paper's expected value
//! (equation 5) in closed form; chases that visit a buffer in a cycle leave a cache faster
//! and have a γ of their own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{ExpectedHits, Figure, Kind, LevelKind, Outcome, WindowPoint};

/// One measured value that a model is fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// Window in bytes; `null` for a latency curve, where the value is that of one load.
    pub window_bytes: Option<u64>,
    /// Area that windows or loads fall into, in bytes.
    pub area_bytes: u64,
    /// Time of one window or one load in nanoseconds.
    pub ns: f64,
    /// Lower end of its 95 % interval, where one was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_low: Option<f64>,
    /// Upper end of its 95 % interval, where one was measured.
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
    /// What the fitted values are times of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FitData {
        /// Windows in areas.
        Window = "window",
        /// Loads of a chase.
        Latency = "latency",
    }
}

named! {
    /// What a residual is divided by.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Weights {
        /// The modelled value, iterated: unbiased at any relative noise.
        #[default]
        Model = "model",
        /// The measured value, as equation 8 has it: biased towards low values by about
        /// the square of the relative noise.
        Measured = "measured",
        /// Nothing: absolute errors.
        Equal = "equal",
    }
}

named! {
    /// Whether level sizes are given or fitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SizeMode {
        /// As the topology says.
        #[default]
        Fixed = "fixed",
        /// Effective sizes are fitted too, beginning at the topology's.
        Free = "free",
    }
}

named! {
    /// What the size of a level counts.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SizeMeaning {
        /// The level's own bytes: levels lie one after the other (equation 2).
        #[default]
        Own = "own",
        /// All bytes up to and including the level: where a measured curve leaves it.
        Reach = "reach",
    }
}

named! {
    /// What a parameter stands for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ParameterRole {
        /// The part of a component that every window costs once.
        Constant = "constant",
        /// The part of a component that every line of a window costs.
        PerLine = "per-line",
        /// A component's cost of one load (latency curves).
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

/// A hierarchy before anything is measured: components, and which of them lie on the path
/// to each level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// Name, as `--topology` takes it.
    pub name: String,
    /// A sentence for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What level sizes count.
    pub sizes: SizeMeaning,
    /// Components, in the order in which they are reported.
    pub components: Vec<Component>,
    /// Levels, innermost first.
    pub levels: Vec<TopologyLevel>,
    /// TLB terms, innermost first; none switches equation 6 off.
    #[serde(default)]
    pub tlb: Vec<TlbTerm>,
    /// Page-table term; `null` switches equation 7 off.
    #[serde(default)]
    pub page_table: Option<PageTableTerm>,
    /// Bytes that one operation of the attainable rate works on (Table 2: a sign change of
    /// a double, 8).
    pub bytes_per_operation: u32,
}

/// A piece of hardware (or the program itself) that takes time on the way to data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Component {
    /// Symbol of its per-line part, as in `t_s`; the constant part is the symbol with a 0
    /// after it, `t_s0`.
    pub symbol: String,
    /// What it is.
    pub name: String,
    /// Bytes that its per-line part is related to.
    pub line_bytes: u32,
    /// Belongs to the measuring program, not to the machine: left out of attainable rates.
    #[serde(default)]
    pub application: bool,
    /// Known per-line part in nanoseconds (a published table); used by `show` and by a fit
    /// only when `fixed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_line_ns: Option<f64>,
    /// Known constant part in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant_ns: Option<f64>,
    /// Whether a fit takes the known parts as they are.
    #[serde(default)]
    pub fixed: bool,
}

/// A level: how much it holds and what lies on the path to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyLevel {
    /// Name.
    pub name: String,
    /// Cache or a section of memory.
    pub kind: LevelKind,
    /// Size in bytes as [`Topology::sizes`] counts; `null` where it has to be given, and
    /// for an outermost level without end.
    pub size_bytes: Option<u64>,
    /// Component symbol → how many times it is passed.
    pub path: BTreeMap<String, u32>,
    /// Exponent γ with which accesses leave this level; 1 for independent random windows.
    pub steepness: f64,
}

/// A level of the TLB (equation 6).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbTerm {
    /// Symbol of the cost of a miss, `t_tlb`.
    pub symbol: String,
    /// Entries.
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
    /// Symbol of its factor, `t_pt`.
    pub symbol: String,
    /// Area from which it counts. The paper: 2²⁸.
    pub start_bytes: u64,
    /// Reference of the logarithms. The paper: 2²⁶, hence a jump of 2/26·t_pt at the start.
    pub reference_bytes: u64,
    /// Known factor in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_ns: Option<f64>,
}

/// A fitted parameter, or a given one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Parameter {
    /// Symbol, as in `t_hh`.
    pub symbol: String,
    /// Value; of a parameter that cannot be identified, the minimum-norm answer.
    pub value: f64,
    /// `ns`, `bytes` or `1`.
    pub unit: String,
    /// The operation that the value is related to: `128 Bytes`, `1 window`, `1 TLB miss`.
    pub related_to: String,
    /// Standard error; `null` for a given value and for one that cannot be identified.
    pub std_error: Option<f64>,
    /// Lower end of the 95 % interval; `null` where there is no standard error.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub high: Option<f64>,
    /// Whether the data determine this value by itself.
    pub identifiable: bool,
    /// Why not, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the value was given (`--fix`, or in the topology).
    #[serde(default)]
    pub fixed: bool,
    /// What it stands for.
    pub role: ParameterRole,
    /// What the component is, for people.
    pub name: String,
}

/// A sum of parameters that the data determine although they do not determine its terms.
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
    /// Standard error.
    pub std_error: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// A level as the model has it after the fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelLevel {
    /// Name.
    pub name: String,
    /// Cache or memory.
    pub kind: LevelKind,
    /// Size in bytes as the topology counts it; `null` for one without end.
    pub size_bytes: Option<u64>,
    /// Lower end of the size's interval, where the size was fitted or found.
    pub size_low_bytes: Option<u64>,
    /// Upper end of the size's interval.
    pub size_high_bytes: Option<u64>,
    /// Bytes that this level and those inside it hold together; `null` without end.
    pub reach_bytes: Option<u64>,
    /// Exponent γ with which accesses leave this level.
    pub steepness: f64,
    /// Bytes that `ns_per_line` is related to: the longest line on the path.
    pub line_bytes: u32,
    /// Hardware time of one line from this level, per-line parts only, in nanoseconds; for
    /// a latency curve the time of one load. Missing where the data do not determine it.
    pub ns_per_line: Outcome<Figure>,
    /// Time of one load from this level in nanoseconds, where the model is of a latency
    /// curve and the data determine it.
    #[serde(default)]
    pub latency_ns: Option<f64>,
    /// Rate that an infinitely fast processor would attain from this level, in 10⁶
    /// operations a second (Table 2: MFLOPS). Missing for a latency curve.
    pub rate_mops: Outcome<Figure>,
    /// The same as 10⁹ bytes a second.
    pub rate_gb_s: Outcome<Figure>,
    /// Bytes that the TLB reaches where that is less than this level holds, and the advice
    /// that follows; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tlb_note: Option<String>,
}

/// How well the model meets the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Residual {
    /// Median of |model ÷ measured − 1|.
    pub median_relative: f64,
    /// Largest |model ÷ measured − 1|.
    pub max_relative: f64,
    /// Root mean square of the weighted residuals over the degrees of freedom: with
    /// relative weights, the relative noise that the fit sees.
    pub sigma: f64,
    /// Median of |model ÷ measured − 1| at points that were left out of the fit, over
    /// five fits that each leave out every fifth area; `null` with too few points.
    pub left_out_median_relative: Option<f64>,
}

/// Whether constants that the paper found to vanish do so here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VanishingTest {
    /// Symbols of the constants tested together.
    pub symbols: Vec<String>,
    /// F statistic of the fit without them against the fit with them.
    pub f: f64,
    /// Probability of such an F when all of them are zero.
    pub p_value: f64,
    /// Largest share of any modelled time that they make up, 0 to 1.
    pub largest_share: f64,
    /// Whether they vanish: indistinguishable from zero, or below 2 % of every time.
    pub vanish: bool,
}

/// A measured value beside the model's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FittedPoint {
    /// What was measured.
    #[serde(flatten)]
    pub measured: Observation,
    /// What the model says, in nanoseconds.
    pub model_ns: f64,
}

/// Where the values come from that a model was fitted to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelSource {
    /// Files, as they were named; empty inside a machine profile.
    #[serde(default)]
    pub files: Vec<String>,
    /// Host, where the files say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Which of the curves in them: kernel, pages, node, …
    pub series: String,
}

/// How a fit was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FitMethod {
    /// What the data are.
    pub data: FitData,
    /// What residuals are divided by.
    pub weights: Weights,
    /// Whether sizes were fitted.
    pub sizes: SizeMode,
    /// Values fitted to.
    pub points: usize,
    /// Parameters that the data determine, combinations included.
    pub rank: usize,
    /// Iterations until the weights (and sizes) stood still.
    pub iterations: usize,
    /// Condition number of the scaled design in the directions that are determined.
    pub condition: f64,
    /// How the number of levels was chosen, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
}

/// A fitted hierarchy model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// Version of the schema of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Model`].
    pub kind: Kind,
    /// Where the data come from.
    pub source: ModelSource,
    /// The topology, with the sizes that the fit used.
    pub topology: Topology,
    /// How it was fitted.
    pub method: FitMethod,
    /// Every parameter, fitted or given.
    pub parameters: Vec<Parameter>,
    /// What is determined of the parameters that are not.
    pub combinations: Vec<Combination>,
    /// Covariance of `parameters` in their order and units, in the directions that the data
    /// determine; rows and columns of given parameters are zero.
    pub covariance: Vec<Vec<f64>>,
    /// Levels.
    pub levels: Vec<ModelLevel>,
    /// Fit against data; missing where the values show no level to fit.
    pub residual: Outcome<Residual>,
    /// Test of the constants; `null` where the data cannot tell or there are none.
    pub vanishing: Option<VanishingTest>,
    /// Every value with the model's.
    pub points: Vec<FittedPoint>,
    /// What the reader should know: areas beyond all levels, points left out and why.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A modelled time for a window or a load that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PredictedPoint {
    /// Window in bytes; `null` for a single load.
    pub window_bytes: Option<u64>,
    /// Area or buffer in bytes.
    pub area_bytes: u64,
    /// Distance between the elements of a chase; `null` for windows.
    pub stride_bytes: Option<u64>,
    /// Time of a window or a load in nanoseconds, with the 95 % interval in which a
    /// measurement would lie.
    pub ns: Outcome<Figure>,
    /// Share of the accesses that each level is expected to serve.
    pub expected: Vec<ExpectedHits>,
    /// Why this point is less certain than its interval says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caution: Option<String>,
}

/// `membound model predict`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Version of the schema of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Prediction`].
    pub kind: Kind,
    /// Where the model comes from.
    pub source: ModelSource,
    /// Name of its topology.
    pub topology: String,
    /// The points, in the order asked for.
    pub points: Vec<PredictedPoint>,
}

/// `membound model show`: a topology with its components and attainable rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyDocument {
    /// Version of the schema of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Topology`].
    pub kind: Kind,
    /// The topology.
    pub topology: Topology,
    /// Known values of its components (the paper's Table 1).
    pub parameters: Vec<Parameter>,
    /// Levels with their attainable rates (Table 2).
    pub levels: Vec<ModelLevel>,
}
