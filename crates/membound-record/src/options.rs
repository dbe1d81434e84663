//! Options of a recording.

use std::path::PathBuf;
use std::time::Duration;

use membound_launch::{Cache, Harvest};
use membound_types::MachineProfile;

/// The source of timer samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimerChoice {
    /// perf events where they are permitted, else the agent's timers.
    #[default]
    Auto,
    /// perf events, or an error.
    Perf,
    /// The agent's timers.
    Agent,
}

/// Whether hot sites are patched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latencies {
    /// They are: the run has executions, addresses and latencies.
    #[default]
    On,
    /// The programs' text is not changed.
    Off,
}

/// Whether hardware watchpoints confirm that lines are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// Watchpoints are used.
    On,
    /// No watchpoints are used.
    #[default]
    Off,
}

/// Whether basic blocks of hot functions are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// Blocks are counted, in short windows.
    #[default]
    On,
    /// No blocks are counted.
    Off,
}

/// Whether all accesses of hot functions are recorded for short times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bursts {
    /// Bursts are recorded.
    #[default]
    On,
    /// No bursts are recorded.
    Off,
}

/// How a run is recorded.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source of timer samples.
    pub timer: TimerChoice,
    /// CPU time of a thread between two timer samples; `None`: as short as the cost of a sample permits.
    pub period: Option<Duration>,
    /// Whether hot sites are patched.
    pub latencies: Latencies,
    /// Size in bytes from which on every block is followed; `None`: allocations are not followed.
    pub objects: Option<u64>,
    /// Names of further functions: pairs of an allocating and a freeing one.
    pub allocators: Vec<(String, String)>,
    /// Whether hardware watchpoints are used.
    pub watch: Watch,
    /// Whether basic blocks are counted.
    pub blocks: Blocks,
    /// Whether bursts of accesses are recorded.
    pub bursts: Bursts,
    /// Upper limit of the CPU time that recording may cost the programs, as a share of theirs.
    pub max_overhead: f64,
    /// The machine profile that goes into the run.
    pub machine: Option<MachineProfile>,
    /// Time after which recording ends although the program goes on.
    pub duration: Option<Duration>,
    /// Path of the run file.
    pub output: PathBuf,
    /// Where plans are cached, if anywhere.
    pub cache: Option<Cache>,
    /// Distinguishes cached plans of different builds.
    pub revision: String,
    /// Directory in which the session's directory is made.
    pub directory: PathBuf,
    /// membound's version, for the run's metadata.
    pub membound_version: String,
    /// The scavengers, if a harvest begins while the program is recorded. Scavengers are not recorded.
    /// Programs then wait for the plans of all their files.
    pub harvest: Option<Harvest>,
}

impl Options {
    /// Default options, with the run file `output`.
    #[must_use]
    pub fn new(output: PathBuf) -> Self {
        Self {
            timer: TimerChoice::default(),
            period: None,
            latencies: Latencies::default(),
            objects: Some(DEFAULT_OBJECT_BYTES),
            allocators: Vec::new(),
            watch: Watch::default(),
            blocks: Blocks::default(),
            bursts: Bursts::default(),
            max_overhead: DEFAULT_OVERHEAD,
            machine: None,
            duration: None,
            output,
            cache: None,
            revision: String::new(),
            directory: std::env::temp_dir(),
            membound_version: String::new(),
            harvest: None,
        }
    }
}

/// Default size in bytes from which on every block is followed. Smaller blocks matter by their call chain,
/// for which a sample is enough.
pub const DEFAULT_OBJECT_BYTES: u64 = 4096;

/// Default upper limit of the cost, as a share of the programs' CPU time.
pub const DEFAULT_OVERHEAD: f64 = 0.05;
