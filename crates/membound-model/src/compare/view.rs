//! What is read of a profile: everything that is compared, and nothing else.
//!
//! A profile is mostly raw samples, which no comparison needs. These types leave them out,
//! so that a deserialiser passes over them without storing a number. Fields that a profile
//! does not have get their defaults; a field of the wrong type is an error.

use membound_types::{
    Access, BandwidthKernel, Conditions, Cpu, CpuId, Figure, Kind, Level, LineSize, MlpCell,
    NodeId, NodePolicy, NotMeasured, NumaPair, Outcome, OverlayPoint, PageKind, Pattern,
    Placements, PrefetchPattern, PrefetchState, ThroughputPoint, TlbLevel, TlbOverlap, TrafficMix,
    WindowKernel, WindowLimit,
};
use serde::{Deserialize, Deserializer};

/// A machine profile, or a document of one part, as `compare` sees it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct ProfileView {
    /// Version of the schema of the writer; `None` in what is no document of membound.
    pub schema_version: Option<u32>,
    /// What the document holds.
    pub kind: Option<Kind>,
    /// Cut short.
    pub incomplete: bool,
    /// The machine, in a document of one part.
    pub machine: Option<MachineView>,
    /// Host name, in a machine profile.
    pub host: String,
    /// When the run began.
    pub date: String,
    /// The processor.
    pub cpu: Cpu,
    /// What else can change a figure.
    pub conditions: Conditions,
    /// Levels of the hierarchy.
    pub levels: Vec<Level>,
    /// Line size.
    pub line: Outcome<LineSize>,
    /// Core clock over the run.
    pub core_clock_hz: Option<Figure>,
    /// Fitted model.
    pub model: ModelView,
    /// Latency.
    pub latency: LatencyView,
    /// Memory-level parallelism.
    pub mlp: MlpView,
    /// Seidl's windows.
    pub window: WindowView,
    /// Bandwidth.
    pub bandwidth: BandwidthView,
    /// Latency under load.
    pub loaded: LoadedView,
    /// Address translation.
    pub tlb: TlbView,
    /// Prefetchers.
    pub prefetch: PrefetchView,
    /// Nodes.
    pub numa: NumaView,
    /// Core to core.
    pub c2c: C2cView,
    /// Latencies over sizes that another program measured.
    #[serde(skip)]
    pub chases: Vec<ForeignChase>,
    /// What was converted, assumed or left out where the file is no document of membound.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Latency over sizes that another program measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignChase {
    /// What distinguishes it from the file's other curves; may be empty.
    pub series: String,
    /// Sizes in bytes and latencies in nanoseconds.
    pub points: Vec<OverlayPoint>,
}

impl ProfileView {
    /// Host name, wherever the document keeps it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.machine.as_ref().map_or(&self.host, |it| &it.host)
    }

    /// Date, wherever the document keeps it.
    #[must_use]
    pub fn date(&self) -> &str {
        self.machine.as_ref().map_or(&self.date, |it| &it.date)
    }

    /// The processor, wherever the document keeps it.
    #[must_use]
    pub fn cpu(&self) -> &Cpu {
        self.machine.as_ref().map_or(&self.cpu, |it| &it.cpu)
    }

    /// Conditions of the run, wherever the document keeps them.
    #[must_use]
    pub fn conditions(&self) -> &Conditions {
        let machine = self.machine.as_ref();
        machine.map_or(&self.conditions, |it| &it.conditions)
    }

    /// The processor's name for people, with its microarchitecture where one is known.
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
    /// When the run began.
    pub date: String,
    /// The processor.
    pub cpu: Cpu,
    /// What else can change a figure.
    pub conditions: Conditions,
}

/// A fitted model: what it says of the machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct ModelView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Parameters.
    pub parameters: Vec<ParameterView>,
    /// Determined sums of parameters.
    pub combinations: Vec<CombinationView>,
}

/// A parameter of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct ParameterView {
    /// Symbol.
    pub symbol: String,
    /// Value.
    pub value: f64,
    /// `ns`, `bytes` or `1`.
    pub unit: String,
    /// Lower end of the 95 % interval.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub high: Option<f64>,
    /// Whether the data determine it.
    pub identifiable: bool,
    /// Whether it was given.
    #[serde(default)]
    pub fixed: bool,
    /// What the component is.
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
    /// Value.
    pub value: f64,
    /// Unit.
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
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Points.
    pub points: Vec<LatencyPointView>,
}

/// A point of a latency curve.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct LatencyPointView {
    /// Bytes.
    pub size_bytes: u64,
    /// Distance between elements.
    pub stride_bytes: u64,
    /// Order of the visits.
    pub pattern: Pattern,
    /// Clean or dirty.
    pub access: Access,
    /// Pages.
    pub page: PageKind,
    /// Where the buffer lies.
    pub node: NodePolicy,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Copies at once.
    pub threads: u32,
    /// Latency in nanoseconds.
    pub ns: f64,
    /// Lower end of the interval.
    pub ns_low: f64,
    /// Upper end of the interval.
    pub ns_high: f64,
}

/// The part `mlp`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct MlpView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// The N × K plane and the sequential series.
    pub cells: Vec<MlpCell>,
    /// Entries of the reorder buffer.
    pub rob_size: Outcome<f64>,
    /// Windows found.
    pub windows: Vec<WindowLimit>,
    /// Parallelism by the rule.
    pub mlp_rule: Outcome<f64>,
    /// The same with its interval.
    pub mlp_rule_interval: Outcome<Figure>,
    /// Parallelism by throughput.
    pub mlp_throughput: Outcome<f64>,
    /// The same with its interval.
    pub mlp_throughput_interval: Outcome<Figure>,
    /// Parallel chases.
    pub throughput: Vec<ThroughputPoint>,
    /// Cycles of two loads in sequence.
    pub sequential_pair_cycles: Outcome<f64>,
    /// Pages behind the main area.
    pub page: PageKind,
    /// Where it lies.
    pub node: NodePolicy,
    /// The same on new pages each time.
    pub placements: Option<Placements>,
    /// The same under other conditions.
    pub others: Vec<MlpView>,
}

impl Default for MlpView {
    fn default() -> Self {
        Self {
            not_measured: None,
            cells: Vec::new(),
            rob_size: Outcome::default(),
            windows: Vec::new(),
            mlp_rule: Outcome::default(),
            mlp_rule_interval: Outcome::default(),
            mlp_throughput: Outcome::default(),
            mlp_throughput_interval: Outcome::default(),
            throughput: Vec::new(),
            sequential_pair_cycles: Outcome::default(),
            page: PageKind::Base,
            node: NodePolicy::LOCAL,
            placements: None,
            others: Vec::new(),
        }
    }
}

impl MlpView {
    /// This condition and the others, where anything was measured.
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
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Points.
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
    /// Time of a window.
    pub seconds_per_window: f64,
    /// Lower end of the interval.
    pub seconds_low: f64,
    /// Upper end of the interval.
    pub seconds_high: f64,
    /// Kernel.
    pub kernel: WindowKernel,
    /// Pages.
    pub page: PageKind,
    /// Where the area lies.
    pub node: NodePolicy,
}

/// The part `bandwidth`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct BandwidthView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Points.
    pub points: Vec<BandwidthPointView>,
}

/// A bandwidth.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct BandwidthPointView {
    /// Kernel.
    pub kernel: BandwidthKernel,
    /// Bytes that each thread works on.
    pub size_bytes: u64,
    /// Level that they fit into.
    #[serde(default)]
    pub level: Option<String>,
    /// Threads.
    pub threads: u32,
    /// 10⁹ bytes a second.
    pub gb_s: f64,
    /// Lower end of the interval.
    pub gb_s_low: f64,
    /// Upper end of the interval.
    pub gb_s_high: f64,
}

/// The part `loaded`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct LoadedView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Points.
    pub points: Vec<LoadedPointView>,
}

/// A latency under load.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct LoadedPointView {
    /// Mix of the traffic: reads to writes, or words for what another program calls otherwise.
    #[serde(deserialize_with = "mix")]
    pub mix: String,
    /// Traffic in 10⁹ bytes a second.
    pub gb_s: f64,
    /// Latency in nanoseconds.
    pub ns: f64,
    /// Lower end of the interval.
    pub ns_low: f64,
    /// Upper end of the interval.
    pub ns_high: f64,
}

fn mix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    TrafficMix::deserialize(deserializer).map(|mix| mix.to_string())
}

/// The part `tlb`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct TlbView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Levels found.
    pub levels: Vec<TlbLevel>,
    /// Overlap of misses.
    pub overlap: Vec<TlbOverlap>,
    /// Page walks at once.
    pub parallel_walks: Outcome<f64>,
}

/// The part `prefetch`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct PrefetchView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Patterns.
    pub points: Vec<PrefetchPointView>,
}

/// A pattern.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct PrefetchPointView {
    /// Pattern.
    pub pattern: PrefetchPattern,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Time of a load in nanoseconds.
    pub ns: f64,
    /// Time of a random load.
    pub random_ns: f64,
    /// `ns ÷ random_ns`.
    pub ratio: f64,
    /// The batches of `ns`.
    #[serde(default)]
    pub batches: RawView,
}

/// The few batches that an interval is computed from where a document states none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct RawView {
    /// Batch means.
    pub raw: Vec<f64>,
}

/// The part `numa`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct NumaView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Nodes.
    pub nodes: Vec<NodeId>,
    /// Pairs.
    pub pairs: Vec<NumaPair>,
}

/// The part `c2c`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct C2cView {
    /// Why there is none.
    pub not_measured: Option<NotMeasured>,
    /// Pairs.
    pub pairs: Vec<CorePairView>,
}

/// Two CPUs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(expecting = "an object")]
pub struct CorePairView {
    /// CPU that starts.
    pub from: CpuId,
    /// CPU that answers.
    pub to: CpuId,
    /// One way in nanoseconds.
    pub one_way_ns: f64,
    /// Lower end of the interval.
    pub one_way_low_ns: f64,
    /// Upper end of the interval.
    pub one_way_high_ns: f64,
}
