//! Arguments of `measure`, `doctor` and `tour`, for the command line and for those commands.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use membound_input::parse_size;
use membound_types::{
    Access, BandwidthKernel, CpuId, Fence, Filler, NodeId, NodePolicy, PageKind, Pattern,
    TrafficMix, WindowKernel,
};

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Write JSON to FILE; without FILE or with `-`, to stdout.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `tour`.
#[derive(Args, Debug)]
pub(crate) struct TourArgs {
    /// Write the page to FILE.
    #[arg(long, value_name = "FILE", default_value = "membound-tour.html")]
    pub(crate) html: PathBuf,
    /// Also write the machine profile to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A part of `measure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Part {
    /// Load latency by size, stride, pattern, kind of page, node and number of copies.
    Latency,
    /// Size of the core's instruction windows, and memory-level parallelism.
    Mlp,
    /// Random windows of an area, read and written (Seidl's method).
    Window,
    /// Bandwidth by kernel, level and number of threads.
    Bandwidth,
    /// Latency while other threads inject traffic.
    Loaded,
    /// Reach of the TLB, cost of its misses, and whether page walks overlap.
    Tlb,
    /// Access patterns that the hardware prefetches.
    Prefetch,
    /// Latency and bandwidth between nodes.
    Numa,
    /// Latency between cores.
    C2c,
    /// Latencies that the profiler sees for loads of known levels.
    Calibration,
}

/// How results are shown on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Summary to read.
    Text,
    /// The document that `--json` writes.
    Json,
    /// Points as comma-separated values (latency, mlp and window).
    Csv,
    /// The two columns of lat_mem_rd (latency).
    #[value(name = "lat_mem_rd")]
    LatMemRd,
}

/// Where several copies are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpreadArg {
    /// One copy on each core, as long as there are free cores.
    Cores,
    /// All hardware threads of one core before the next core.
    Siblings,
}

/// Arguments of `measure`. Lists are comma-separated; sizes take K, M and G.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MeasureArgs {
    /// Parts to measure [default: all].
    #[arg(value_enum, value_name = "PART")]
    pub(crate) parts: Vec<Part>,

    /// Measure everything coarsely: within a minute on a small machine.
    #[arg(long, conflicts_with = "thorough")]
    pub(crate) quick: bool,
    /// Measure longer, for narrower intervals.
    #[arg(long)]
    pub(crate) thorough: bool,
    /// Write the results as JSON to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a self-contained HTML page to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Format of the results on stdout [default: text].
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Label the run with a condition that membound cannot detect, such as placement=noisy or
    /// placement=quiet; `compare` shows the label. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = condition)]
    pub(crate) cond: Vec<(String, String)>,

    /// CPUs to measure on, one after the other; the results are shown side by side [default: the last
    /// permitted CPU].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cpu, help_heading = "Where")]
    pub(crate) cpu: Vec<CpuId>,
    /// Kinds of pages: 4k, thp, 2m, 1g [default: thp and 4k].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) page: Vec<PageKind>,
    /// Memory nodes: local, interleave or a node's number.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) node: Vec<NodePolicy>,
    /// Numbers of copies or threads that run at the same time, each on a CPU of its own.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) threads: Vec<u32>,
    /// How copies are distributed over CPUs [default: cores].
    #[arg(long, value_enum, help_heading = "Where")]
    pub(crate) spread: Option<SpreadArg>,
    /// Hardware prefetchers to switch off during the whole run: `off` for all, or their names.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) prefetch_off: Vec<String>,
    /// Repeat the latency measurement with each of these prefetch settings and show the curves in one
    /// plot: all; off, or the name of one prefetcher to switch off; on POWER dscr=0 to dscr=7, dscr=15,
    /// dscr=16, dscr=31.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "prefetch_off",
        help_heading = "Where"
    )]
    pub(crate) prefetch_settings: Vec<String>,

    /// Sizes of the buffer in bytes (latency, bandwidth) [default: a grid that is denser where the
    /// curve bends].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "latency")]
    pub(crate) sizes: Vec<u64>,
    /// Largest size of that grid.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "latency")]
    pub(crate) max: Option<u64>,
    /// Distances between accessed elements in bytes [default: 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "latency")]
    pub(crate) strides: Vec<u64>,
    /// Access patterns: random, stride, page-random, indexed [default: random].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "latency"
    )]
    pub(crate) pattern: Vec<Pattern>,
    /// State of the accessed lines: clean, dirty [default: clean].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "latency"
    )]
    pub(crate) access: Vec<Access>,

    /// Numbers of loads (N).
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "mlp")]
    pub(crate) loads: Vec<u32>,
    /// Numbers of filler instructions before the last load (K) [default: a coarse grid around the
    /// cliff].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "mlp")]
    pub(crate) fillers: Vec<u32>,
    /// Filler instructions: nop, integer, vector, flags, mask, move, zero, branch, x87, load, store,
    /// dependent, mixed (alternates the kinds that show the reorder buffer on this core) [default: nop
    /// where it shows the reorder buffer, else mixed].
    #[arg(long, value_name = "FILLER", help_heading = "mlp")]
    pub(crate) filler: Option<Filler>,
    /// Serializing instruction: cpuid (traps in a virtual machine), lfence; on aarch64 isb [default:
    /// lfence, isb].
    #[arg(long, value_name = "FENCE", help_heading = "mlp")]
    pub(crate) fence: Option<Fence>,

    /// Repeat some of the measurements TIMES times, each time on new pages, to show how much the choice
    /// of pages matters.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(2..=1000), help_heading = "mlp")]
    pub(crate) placements: Option<u32>,

    /// Window sizes in bytes [default: 1K,2K,4K].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "window")]
    pub(crate) windows: Vec<u64>,
    /// Sizes of the area in bytes; mlp uses the largest one [default: half-octaves from 16K].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "window")]
    pub(crate) areas: Vec<u64>,
    /// Kernels: scalar, scalar-prefetch, vector, vector-prefetch [default: scalar,scalar-prefetch].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "window"
    )]
    pub(crate) window_kernel: Vec<WindowKernel>,
    /// CPU that allocates and initialises the area; `--cpu` accesses it.
    #[arg(long, value_name = "N", value_parser = cpu, help_heading = "window")]
    pub(crate) init_cpu: Option<CpuId>,
    /// Node that allocates and initialises the area.
    #[arg(long, value_name = "N", value_parser = node, conflicts_with = "init_cpu", help_heading = "window")]
    pub(crate) init_node: Option<NodeId>,

    /// Kernels: read, write, nt-write, copy, triad [default: all].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "bandwidth and loaded"
    )]
    pub(crate) kernel: Vec<BandwidthKernel>,
    /// Ratios of reads to writes in the injected traffic, for example 1:0,2:1.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "bandwidth and loaded"
    )]
    pub(crate) mix: Vec<TrafficMix>,
}

impl MeasureArgs {
    /// The options that were given, each with the parts that use it.
    pub(crate) fn used(&self) -> Vec<(&'static str, &'static [Part])> {
        use Part::{Bandwidth, Latency, Loaded, Mlp, Numa, Prefetch, Tlb, Window};
        let given = [
            ("--sizes", !self.sizes.is_empty(), &[Latency, Bandwidth][..]),
            ("--max", self.max.is_some(), &[Latency]),
            ("--strides", !self.strides.is_empty(), &[Latency]),
            ("--pattern", !self.pattern.is_empty(), &[Latency]),
            ("--access", !self.access.is_empty(), &[Latency]),
            (
                "--page",
                !self.page.is_empty(),
                &[Latency, Mlp, Window, Bandwidth, Loaded, Tlb, Prefetch, Numa],
            ),
            (
                "--node",
                !self.node.is_empty(),
                &[Latency, Mlp, Window, Bandwidth, Loaded],
            ),
            ("--threads", !self.threads.is_empty(), &[Latency, Bandwidth]),
            ("--spread", self.spread.is_some(), &[Latency, Bandwidth]),
            (
                "--prefetch-settings",
                !self.prefetch_settings.is_empty(),
                &[Latency],
            ),
            ("--loads", !self.loads.is_empty(), &[Mlp]),
            ("--fillers", !self.fillers.is_empty(), &[Mlp]),
            ("--filler", self.filler.is_some(), &[Mlp]),
            ("--fence", self.fence.is_some(), &[Mlp]),
            ("--placements", self.placements.is_some(), &[Mlp]),
            ("--windows", !self.windows.is_empty(), &[Window]),
            ("--areas", !self.areas.is_empty(), &[Window, Mlp]),
            ("--window-kernel", !self.window_kernel.is_empty(), &[Window]),
            ("--init-cpu", self.init_cpu.is_some(), &[Window]),
            ("--init-node", self.init_node.is_some(), &[Window]),
            ("--kernel", !self.kernel.is_empty(), &[Bandwidth]),
            ("--mix", !self.mix.is_empty(), &[Loaded]),
        ];
        given
            .into_iter()
            .filter(|(_, given, _)| *given)
            .map(|(name, _, parts)| (name, parts))
            .collect()
    }
}

fn condition(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no condition: use NAME=VALUE")),
    }
}

pub(crate) fn cpu(text: &str) -> Result<CpuId, String> {
    text.parse()
        .map(CpuId)
        .map_err(|_| format!("`{text}` is no CPU number"))
}

fn node(text: &str) -> Result<NodeId, String> {
    text.parse()
        .map(NodeId)
        .map_err(|_| format!("`{text}` is no node number"))
}
