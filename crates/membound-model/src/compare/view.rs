//! The part of a profile that comparisons read.
//!
//! A profile is mostly raw samples, which comparisons do not need. These types omit them,
//! so that a deserialiser skips them without storing a number. Fields that a profile
//! lacks get their defaults; a field of the wrong type is an error.

use membound_types::{
    Access, BandwidthKernel, Conditions, Cpu, CpuId, Figure, Kind, Level, LineSize, MlpCell,
    NodeId, NodePolicy, NotMeasured, NumaPair, Outcome, OverlayPoint, PageKind, Pattern,
    Placements, PrefetchPattern, PrefetchState, ThroughputPoint, TlbLevel, TlbOverlap, TrafficMix,
    WindowKernel, WindowLimit,
};
use serde::{Deserialize, Deserializer};

/// A profile and the file from which it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedProfile {
    /// File name as the user gave it.
    pub file: String,
    /// Contents of the profile.
    pub view: ProfileView,
}

/// A machine profile, or a document of one part, as `compare` reads it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct ProfileView {
    /// Version of the writer's schema; `None` in documents that membound did not write.
    pub schema_version: Option<u32>,
    /// Kind of the document.
    pub kind: Option<Kind>,
    /// True if the run was interrupted or a part failed.
    pub incomplete: bool,
    /// The machine, in a document of one part; a machine profile has its fields at the top.
    pub machine: Option<MachineView>,
    /// Host name, in a machine profile.
    pub host: String,
    /// Date and time when the run began.
    pub date: String,
    /// The processor.
    pub cpu: Cpu,
    /// Settings of machine and system that can change a figure.
    pub conditions: Conditions,
    /// Levels of the hierarchy.
    pub levels: Vec<Level>,
    /// Line size, or why it is not known.
    pub line: Outcome<LineSize>,
    /// Core clock over the run, in hertz.
    pub core_clock_hz: Option<Figure>,
    /// The fitted model.
    pub model: ModelView,
    /// Latency curves.
    pub latency: LatencyView,
    /// Memory-level parallelism.
    pub mlp: MlpView,
    /// Random windows, as in document 002.
    pub window: WindowView,
    /// Bandwidths by level and kernel.
    pub bandwidth: BandwidthView,
    /// Latency of memory under traffic.
    pub loaded: LoadedView,
    /// TLB levels and page walks.
    pub tlb: TlbView,
    /// Effect of prefetchers on patterns.
    pub prefetch: PrefetchView,
    /// Latency and bandwidth between nodes.
    pub numa: NumaView,
    /// Times to move a line from core to core.
    pub c2c: C2cView,
    /// Latencies over sizes that another program measured.
    #[serde(skip)]
    pub chases: Vec<ForeignChase>,
    /// Notes on conversion, assumptions and omissions if another program wrote the file.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Latency over sizes that another program measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignChase {
    /// Name that distinguishes it from the file's other curves; may be empty.
    pub series: String,
    /// Sizes in bytes and latencies in nanoseconds.
    pub points: Vec<OverlayPoint>,
}

impl ProfileView {
    /// Host name, from either kind of document.
    #[must_use]
    pub fn host(&self) -> &str {
        self.machine.as_ref().map_or(&self.host, |it| &it.host)
    }

    /// Date and time when the run began, from either kind of document.
    #[must_use]
    pub fn date(&self) -> &str {
        self.machine.as_ref().map_or(&self.date, |it| &it.date)
    }

    /// The processor, from either kind of document.
    #[must_use]
    pub fn cpu(&self) -> &Cpu {
        self.machine.as_ref().map_or(&self.cpu, |it| &it.cpu)
    }

    /// Conditions of the run, from either kind of document.
    #[must_use]
    pub fn conditions(&self) -> &Conditions {
        let machine = self.machine.as_ref();
        machine.map_or(&self.conditions, |it| &it.conditions)
    }

    /// The processor's name for readers, with its microarchitecture if known.
    #[must_use]
    pub fn cpu_name(&self) -> String {
        let cpu = self.cpu();
        let mut name = cpu.model_name.trim().to_owned();
        if name.is_empty() {
            name = format!("{} {}", cpu.vendor, cpu.architecture)
                .trim()
                .to_owned();
        }
        match &cpu.microarchitecture {
            Some(core) => format!("{name} ({core})"),
            None => name,
        }
    }
}

/// The machine of a document of one part.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct MachineView {
    /// Host name.
    pub host: String,
    /// Date and time when the run began.
    pub date: String,
    /// The processor.
    pub cpu: Cpu,
    /// Settings of machine and system that can change a figure.
    pub conditions: Conditions,
}

/// Parameters and determined sums of a fitted model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct ModelView {
    /// Reason if the model is missing.
    pub not_measured: Option<NotMeasured>,
    /// Single parameters, determined or not.
    pub parameters: Vec<ParameterView>,
    /// Determined sums of undetermined parameters.
    pub combinations: Vec<CombinationView>,
}

/// A parameter of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct ParameterView {
    /// Symbol of the parameter.
    pub symbol: String,
    /// Value in `unit`.
    pub value: f64,
    /// Unit: `ns`, `bytes` or `1`.
    pub unit: String,
    /// Lower end of the 95 % interval.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub high: Option<f64>,
    /// True if the data determine the parameter.
    pub identifiable: bool,
    /// True if the value was given, not fitted.
    #[serde(default)]
    pub fixed: bool,
    /// Description of the hardware that the parameter belongs to.
    #[serde(default)]
    pub name: String,
}

/// A determined sum of parameters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct CombinationView {
    /// Symbols of the terms.
    pub symbols: Vec<String>,
    /// Factors of the terms.
    pub coefficients: Vec<f64>,
    /// Value of the sum in `unit`.
    pub value: f64,
    /// Unit of the sum, such as `ns`.
    pub unit: String,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// The part `latency`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct LatencyView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Points of all curves.
    pub points: Vec<LatencyPointView>,
}

/// A point of a latency curve.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct LatencyPointView {
    /// Size of the buffer in bytes.
    pub size_bytes: u64,
    /// Distance between elements in bytes.
    pub stride_bytes: u64,
    /// Order in which elements are visited.
    pub pattern: Pattern,
    /// Whether the lines are clean or dirty.
    pub access: Access,
    /// Kind of the buffer's pages.
    pub page: PageKind,
    /// Node of the buffer, relative to the CPU.
    pub node: NodePolicy,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Number of copies that ran at once.
    pub threads: u32,
    /// Latency in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
}

/// The part `mlp`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct MlpView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// The N × K plane and the sequential series.
    pub cells: Vec<MlpCell>,
    /// Entries of the reorder buffer.
    pub rob_size: Outcome<f64>,
    /// Limits of the core's windows.
    pub windows: Vec<WindowLimit>,
    /// Parallelism by the rule of document 000.
    pub mlp_rule: Outcome<f64>,
    /// Parallelism by the rule, with its interval.
    pub mlp_rule_interval: Outcome<Figure>,
    /// Parallelism by the throughput of chases.
    pub mlp_throughput: Outcome<f64>,
    /// Parallelism by throughput, with its interval.
    pub mlp_throughput_interval: Outcome<Figure>,
    /// Points of the parallel chases.
    pub throughput: Vec<ThroughputPoint>,
    /// Cycles of two loads in sequence.
    pub sequential_pair_cycles: Outcome<f64>,
    /// Kind of pages of the main area.
    pub page: PageKind,
    /// Node of the main area, relative to the CPU.
    pub node: NodePolicy,
    /// Repetitions on new pages each time.
    pub placements: Option<Placements>,
    /// The same part under other conditions.
    pub others: Vec<MlpView>,
}

impl MlpView {
    /// This condition and the others, without those in which nothing was measured.
    pub fn conditions(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self)
            .chain(&self.others)
            .filter(|part| !part.cells.is_empty() || !part.throughput.is_empty())
    }
}

/// The part `window`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct WindowView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Points of all curves.
    pub points: Vec<WindowPointView>,
}

/// Windows of one size in an area.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct WindowPointView {
    /// Window in bytes.
    pub window_bytes: u64,
    /// Area in bytes.
    pub area_bytes: u64,
    /// Time of a window in seconds.
    pub seconds_per_window: f64,
    /// Lower end of the 95 % interval of the time.
    pub seconds_low: f64,
    /// Upper end of the 95 % interval of the time.
    pub seconds_high: f64,
    /// Kernel that accessed the windows.
    pub kernel: WindowKernel,
    /// Kind of the area's pages.
    pub page: PageKind,
    /// Node of the area, relative to the CPU.
    pub node: NodePolicy,
}

/// The part `bandwidth`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct BandwidthView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Measured bandwidths.
    pub points: Vec<BandwidthPointView>,
}

/// One measured bandwidth.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct BandwidthPointView {
    /// Kernel that moved the data.
    pub kernel: BandwidthKernel,
    /// Bytes of each thread's working set.
    pub size_bytes: u64,
    /// Level into which the working set fits.
    #[serde(default)]
    pub level: Option<String>,
    /// Number of threads.
    pub threads: u32,
    /// Bandwidth in 10⁹ bytes per second.
    pub gb_s: f64,
    /// Lower end of the 95 % interval of `gb_s`.
    pub gb_s_low: f64,
    /// Upper end of the 95 % interval of `gb_s`.
    pub gb_s_high: f64,
}

/// The part `loaded`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct LoadedView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Points of all mixes.
    pub points: Vec<LoadedPointView>,
}

/// One latency under traffic.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct LoadedPointView {
    /// Mix of the traffic: reads to writes, or another program's name for it.
    #[serde(deserialize_with = "mix")]
    pub mix: String,
    /// Traffic in 10⁹ bytes per second.
    pub gb_s: f64,
    /// Latency in nanoseconds.
    pub ns: f64,
    /// Lower end of the 95 % interval of `ns`.
    pub ns_low: f64,
    /// Upper end of the 95 % interval of `ns`.
    pub ns_high: f64,
}

fn mix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    TrafficMix::deserialize(deserializer).map(|mix| mix.to_string())
}

/// The part `tlb`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct TlbView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// TLB levels of all page kinds.
    pub levels: Vec<TlbLevel>,
    /// Overlap of TLB misses.
    pub overlap: Vec<TlbOverlap>,
    /// Number of concurrent page walks.
    pub parallel_walks: Outcome<f64>,
}

/// The part `prefetch`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct PrefetchView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Measured patterns.
    pub points: Vec<PrefetchPointView>,
}

/// One pattern under one state of the prefetchers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct PrefetchPointView {
    /// Order of the accesses.
    pub pattern: PrefetchPattern,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Time of a load in nanoseconds.
    pub ns: f64,
    /// Time of a random load in nanoseconds.
    pub random_ns: f64,
    /// `ns ÷ random_ns`.
    pub ratio: f64,
    /// The batches of `ns`.
    #[serde(default)]
    pub batches: RawView,
}

/// The few batches from which an interval is computed if a document states none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct RawView {
    /// Means of the batches, in the unit of the value that they belong to.
    pub raw: Vec<f64>,
}

/// The part `numa`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct NumaView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Nodes of the machine.
    pub nodes: Vec<NodeId>,
    /// Pairs of CPU node and memory node.
    pub pairs: Vec<NumaPair>,
}

/// The part `c2c`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct C2cView {
    /// Reason if the part was not measured.
    pub not_measured: Option<NotMeasured>,
    /// Measured pairs of CPUs.
    pub pairs: Vec<CorePairView>,
}

/// Transfer of a line between two CPUs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct CorePairView {
    /// CPU that sends first.
    pub from: CpuId,
    /// CPU that answers.
    pub to: CpuId,
    /// Time of one direction in nanoseconds.
    pub one_way_ns: f64,
    /// Lower end of the 95 % interval of the time.
    pub one_way_low_ns: f64,
    /// Upper end of the 95 % interval of the time.
    pub one_way_high_ns: f64,
}
