//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use membound_types::{
    Access, BandwidthKernel, CpuId, Fence, Filler, NodeId, NodePolicy, PageKind, Pattern,
    TrafficMix, WindowKernel,
};

use crate::compare::CompareArgs;
use crate::completions::CompletionsArgs;
use crate::harvest::args::HarvestCommand;
use crate::import::args::ImportArgs;
use crate::lat_mem_rd::LatMemRdArgs;
use crate::manual::ManArgs;
use crate::measure::calibration::{ChaseArgs, PROGRAM};
use crate::model::args::ModelCommand;
use crate::profile::args::ProfileArgs;
use crate::report::ReportArgs;
use crate::rewrite::args::RewriteCommand;
use crate::tour::contention::Layout;
use crate::version;
use membound_input::parse_size;

/// Measures a machine's memory hierarchy, and shows where programs wait for it: no PMU, no
/// root, no recompiling.
#[derive(Debug, Parser)]
#[command(name = "membound", version, long_version = version::BUILD, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 could not do what was asked, 2 usage.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what this machine permits, how each thing will be measured, what to switch on.
    Doctor(DoctorArgs),
    /// Measure the memory hierarchy: everything, or the parts named.
    Measure(Box<MeasureArgs>),
    /// Load latency over sizes and strides, as lmbench's lat_mem_rd measures and prints it.
    #[command(name = "lat_mem_rd")]
    LatMemRd(LatMemRdArgs),
    /// Fit, show and ask a model of the memory hierarchy.
    #[command(subcommand)]
    Model(Box<ModelCommand>),
    /// Record where a program waits for memory, and on what.
    Profile(Box<ProfileArgs>),
    /// Make a run of what perf recorded: perf.data, or the text of perf script.
    Import(ImportArgs),
    /// Show what a run recorded.
    Report(Box<ReportArgs>),
    /// Set profiles or runs side by side, or find the outliers of a directory of profiles.
    Compare(CompareArgs),
    /// Show what can be patched in a binary; run a program with everything patched.
    #[command(subcommand)]
    Rewrite(Box<RewriteCommand>),
    /// Run other work in the time that a program waits for memory.
    #[command(subcommand)]
    Harvest(Box<HarvestCommand>),
    /// The newcomer's minute: a quick measure of everything, a program profiled before and
    /// after its mending, and their pages.
    Tour(TourArgs),
    /// Print the script with which a shell completes the command line of membound.
    Completions(CompletionsArgs),
    /// Print the manual page of membound or of one of its subcommands, in roff.
    Man(ManArgs),
    /// Put back what a killed membound had changed (started by membound itself).
    #[command(name = "__restore", hide = true)]
    Restore,
    /// Load from each level in turn (started by membound itself).
    #[command(name = PROGRAM, hide = true)]
    Chase(ChaseArgs),
    /// Run a shared object with `main` or `entry` (started by membound itself).
    #[command(name = "__run-object", hide = true)]
    RunObject {
        /// The object, and what it is called with.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Yield to scavengers until none is left (started by membound itself).
    #[command(name = "__harvest-host", hide = true)]
    HarvestHost {
        /// Threads that yield.
        threads: usize,
    },
    /// The program that the tour profiles (started by membound itself).
    #[command(name = "__contend", hide = true)]
    Contend {
        /// Where its records lie.
        #[arg(value_enum)]
        layout: Layout,
    },
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Write JSON to FILE, or to stdout for `-` or nothing.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `tour`.
#[derive(Args, Debug)]
pub(crate) struct TourArgs {
    /// Where the page goes.
    #[arg(long, value_name = "FILE", default_value = "membound-tour.html")]
    pub(crate) html: PathBuf,
    /// Write the machine profile to FILE as well (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A part of `measure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Part {
    /// Load latency by size, stride, pattern, pages, node and copies.
    Latency,
    /// Windows of the core and memory-level parallelism.
    Mlp,
    /// Random windows in an area, read and written (Seidl).
    Window,
    /// Bytes a second by kernel, level and threads.
    Bandwidth,
    /// Latency while other threads inject traffic.
    Loaded,
    /// Reach of the TLB, cost of its misses, and whether they overlap.
    Tlb,
    /// Access patterns that the hardware prefetches.
    Prefetch,
    /// Latency and bandwidth node by node.
    Numa,
    /// Latency from core to core.
    C2c,
    /// What the latency sampler's patch shows of loads from each level.
    Calibration,
}

/// How results are shown on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A summary for a person.
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
    /// One a core, as long as there are cores.
    Cores,
    /// All hardware threads of a core before the next core.
    Siblings,
}

/// Arguments of `measure`. Lists are comma-separated; sizes take K, M and G.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MeasureArgs {
    /// Parts to measure; none means everything.
    #[arg(value_enum, value_name = "PART")]
    pub(crate) parts: Vec<Part>,

    /// A complete picture of a small machine within a minute.
    #[arg(long, conflicts_with = "thorough")]
    pub(crate) quick: bool,
    /// Take the time that the figures deserve.
    #[arg(long)]
    pub(crate) thorough: bool,
    /// Write the document to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write one self-contained page to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// What stdout shows [default: text].
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Label the run with a condition that membound cannot detect, as in placement=noisy or
    /// placement=quiet; `compare` names it. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = condition)]
    pub(crate) cond: Vec<(String, String)>,

    /// CPU that measures; several are measured one after the other and shown side by side
    /// [default: the last one permitted].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cpu, help_heading = "Where")]
    pub(crate) cpu: Vec<CpuId>,
    /// Page kinds: 4k, thp, 2m, 1g [default: thp and 4k].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) page: Vec<PageKind>,
    /// Node policies: local, interleave or a node's number.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) node: Vec<NodePolicy>,
    /// Copies or threads at once, each pinned.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) threads: Vec<u32>,
    /// Where several copies are pinned [default: cores].
    #[arg(long, value_enum, help_heading = "Where")]
    pub(crate) spread: Option<SpreadArg>,
    /// Prefetchers during the whole run: `off`, or the names of those to switch off.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Where"
    )]
    pub(crate) prefetch_off: Vec<String>,
    /// Repeat the latencies in each of these prefetch settings, overlaid in one result: all;
    /// off or the name of one that is off; on POWER dscr=0 to dscr=7, dscr=15, dscr=16, dscr=31.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "prefetch_off",
        help_heading = "Where"
    )]
    pub(crate) prefetch_settings: Vec<String>,

    /// Sizes in bytes (latency, bandwidth) [default: a grid, denser where the curve bends].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "latency")]
    pub(crate) sizes: Vec<u64>,
    /// Largest size of the grid.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "latency")]
    pub(crate) max: Option<u64>,
    /// Distances between elements in bytes [default: 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "latency")]
    pub(crate) strides: Vec<u64>,
    /// random, stride, page-random, indexed [default: random].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "latency"
    )]
    pub(crate) pattern: Vec<Pattern>,
    /// clean, dirty [default: clean].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "latency"
    )]
    pub(crate) access: Vec<Access>,

    /// Loads (N).
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "mlp")]
    pub(crate) loads: Vec<u32>,
    /// Fillers before the last load (K) [default: a coarse grid around the cliff].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "mlp")]
    pub(crate) fillers: Vec<u32>,
    /// nop, integer, vector, flags, mask, move, zero, branch, x87, load, store, dependent, mixed
    /// (the kinds in turns that show the reorder buffer on this core) [default: nop where it
    /// shows the reorder buffer, else mixed].
    #[arg(long, value_name = "FILLER", help_heading = "mlp")]
    pub(crate) filler: Option<Filler>,
    /// cpuid (traps in a guest), lfence; on aarch64 isb [default: lfence, isb].
    #[arg(long, value_name = "FENCE", help_heading = "mlp")]
    pub(crate) fence: Option<Fence>,

    /// Measure a few loads again, so many times, on new pages each time: the scatter that
    /// the choice of pages makes.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(2..=1000), help_heading = "mlp")]
    pub(crate) placements: Option<u32>,

    /// Window sizes in bytes [default: 1K,2K,4K].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "window")]
    pub(crate) windows: Vec<u64>,
    /// Areas in bytes (window; the largest one for mlp) [default: half-octaves from 16K].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, help_heading = "window")]
    pub(crate) areas: Vec<u64>,
    /// scalar, scalar-prefetch, vector, vector-prefetch [default: scalar,scalar-prefetch].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "window"
    )]
    pub(crate) window_kernel: Vec<WindowKernel>,
    /// CPU that allocates and initialises the area, while `--cpu` accesses it.
    #[arg(long, value_name = "N", value_parser = cpu, help_heading = "window")]
    pub(crate) init_cpu: Option<CpuId>,
    /// Node on which the area is allocated and initialised.
    #[arg(long, value_name = "N", value_parser = node, conflicts_with = "init_cpu", help_heading = "window")]
    pub(crate) init_node: Option<NodeId>,

    /// read, write, nt-write, copy, triad [default: all].
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "bandwidth and loaded"
    )]
    pub(crate) kernel: Vec<BandwidthKernel>,
    /// Read:write mixes of the injected traffic, as in 1:0,2:1.
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

/// Parses the command line. Help and version go to stdout, also where a subcommand is missing; a usage error
/// becomes one line and exit code 2.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(args).map_err(|error| {
        let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        if error.use_stderr() && !is_help {
            let text = error.render().to_string();
            let line = text
                .lines()
                .take_while(|line| !line.is_empty())
                .collect::<Vec<_>>()
                .join(" ");
            let line = line.strip_prefix("error: ").unwrap_or(&line).trim();
            crate::output::complain(&format!("{line} (see `membound --help`)"));
            ExitCode::from(2)
        } else {
            crate::output::print(&error.render().to_string());
            ExitCode::SUCCESS
        }
    })
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

#[cfg(test)]
mod tests {
    use std::fmt;

    use clap::CommandFactory;
    use membound_types::Kind;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The option's help names `all` values, and the option understands every one.
    fn check<T: fmt::Display>(option: &str, all: &[T]) {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        let command = Cli::command();
        let measure = command.find_subcommand("measure").unwrap();
        let mut options = measure.get_arguments();
        let found = options.find(|arg| arg.get_long() == Some(option)).unwrap();
        let help = found.get_help().unwrap().to_string();
        assert!(help.contains(&names.join(", ")), "{option}: {help}");
        for name in &names {
            Cli::try_parse_from(["membound", "measure", &format!("--{option}"), name]).unwrap();
        }
    }

    #[test]
    fn names_of_values_are_helped_with_and_understood() {
        check("page", &PageKind::ALL);
        check("pattern", &Pattern::ALL);
        check("access", &Access::ALL);
        check("filler", &Filler::ALL);
        check("window-kernel", &WindowKernel::ALL);
        check("kernel", &BandwidthKernel::ALL);
        for part in Part::value_variants() {
            let name = part.to_possible_value().unwrap().get_name().to_owned();
            assert!(name.parse::<Kind>().is_ok(), "{name}");
        }
    }

    #[test]
    fn every_command_of_the_page_about_the_documents_is_understood() {
        let page = include_str!("../../../docs/documents.md");
        let commands: Vec<&str> = page
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| code.starts_with("membound "))
            .collect();
        assert!(commands.len() >= 15, "{commands:?}");
        for command in commands {
            if let Err(error) = Cli::try_parse_from(command.split_whitespace()) {
                let kind = error.kind();
                assert_eq!(kind, clap::error::ErrorKind::DisplayHelp, "{command}");
            }
        }
    }

    #[test]
    fn lists_and_sizes_of_the_contract_are_understood() {
        let line = "membound measure latency mlp --sizes 16K,1M --strides 64,128 --pattern \
                    random,page-random --access clean,dirty --page 4k,thp --node local,1,interleave \
                    --threads 1,2 --cpu 0 --loads 1,2 --fillers 0,100 --filler nop --fence lfence \
                    --quick --cond thp=off --cond host=a=b";
        let Ok(Cli {
            command: Command::Measure(args),
        }) = parse(line.split_whitespace().map(OsString::from))
        else {
            panic!("not understood")
        };
        assert_eq!(args.parts, [Part::Latency, Part::Mlp]);
        assert_eq!(args.sizes, [16 << 10, 1 << 20]);
        assert_eq!(
            args.node,
            [
                NodePolicy::LOCAL,
                NodePolicy::Node(NodeId(1)),
                NodePolicy::INTERLEAVE
            ]
        );
        assert_eq!(args.cond[1], ("host".to_owned(), "a=b".to_owned()));
        assert_eq!(args.used().len(), 11);
    }
}
