//! What is to be recorded, and how.

use std::path::PathBuf;
use std::time::Duration;

use membound_launch::{Cache, Harvest};
use membound_types::MachineProfile;

/// What takes timer samples.
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
    /// They are: executions, addresses and latencies are known.
    #[default]
    On,
    /// The programs' text stays as it is.
    Off,
}

/// Whether hardware watchpoints confirm that lines are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// They do.
    On,
    /// They do not.
    #[default]
    Off,
}

/// Whether basic blocks of hot functions are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// They are, in short windows.
    #[default]
    On,
    /// They are not.
    Off,
}

/// Whether all accesses of hot functions are recorded for short whiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bursts {
    /// They are.
    #[default]
    On,
    /// They are not.
    Off,
}

/// CPU time of a thread between two timer samples. In a guest a sample takes some 20 µs of the
/// program's time, of which 2 % are not to be more. No round number: a program's own rhythm mostly
/// is one, and a sampler in step with it sees a few places only.
pub const DEFAULT_PERIOD: Duration = Duration::from_micros(1270);

/// How a run is recorded.
#[derive(Clone, Debug)]
pub struct Options {
    /// What takes timer samples.
    pub timer: TimerChoice,
    /// CPU time of a thread between two timer samples.
    pub period: Duration,
    /// Whether hot sites are patched.
    pub latencies: Latencies,
    /// Follow allocations, every block from so many bytes on; `None`: not at all.
    pub objects: Option<u64>,
    /// Functions beside the usual ones that allocate and free: pairs of names.
    pub allocators: Vec<(String, String)>,
    /// Whether watchpoints are used.
    pub watch: Watch,
    /// Whether basic blocks are counted.
    pub blocks: Blocks,
    /// Whether bursts of accesses are recorded.
    pub bursts: Bursts,
    /// Share of the program's time that patches may cost it.
    pub max_overhead: f64,
    /// The machine profile that goes into the run.
    pub machine: Option<MachineProfile>,
    /// When recording ends although the program goes on.
    pub duration: Option<Duration>,
    /// The run file.
    pub output: PathBuf,
    /// Where plans are kept, if anywhere.
    pub cache: Option<Cache>,
    /// Distinguishes plans in the cache that different builds made.
    pub revision: String,
    /// Where the session's directory is made.
    pub directory: PathBuf,
    /// Version that goes into the run.
    pub membound_version: String,
    /// What runs inside the program, if it is recorded for a harvest that begins while it runs. Scavengers are not
    /// recorded. Programs then wait for the plans of all their files.
    pub harvest: Option<Harvest>,
}

impl Options {
    /// The usual, into `output`.
    #[must_use]
    pub fn new(output: PathBuf) -> Self {
        Self {
            timer: TimerChoice::default(),
            period: DEFAULT_PERIOD,
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

/// From how many bytes on every block is followed, unless it is said otherwise: what is
/// smaller matters by its call chain, of which a part is enough.
pub const DEFAULT_OBJECT_BYTES: u64 = 4096;

/// What patches may cost, unless it is said otherwise.
pub const DEFAULT_OVERHEAD: f64 = 0.05;
