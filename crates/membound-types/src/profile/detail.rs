//! What pages, flame graphs and exports need beside the JSON document.

use crate::Share;

/// What the page, flame graphs and exports need beside a [`crate::Profile`]: samples by time,
/// thread, call chain and object. Not part of the JSON document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// Names that frames and objects refer to.
    pub names: Vec<String>,
    /// Frames, inlined ones apart.
    pub frames: Vec<DetailFrame>,
    /// Call chains; a parent stands before its children.
    pub stacks: Vec<DetailStack>,
    /// Threads in the order of [`crate::Profile::threads`]: position there.
    pub threads: Vec<u32>,
    /// Objects: position in [`crate::Profile::objects`].
    pub objects: u32,
    /// Samples, by time.
    pub samples: Vec<DetailSample>,
    /// Accesses that a processor sampled itself, by time.
    pub accesses: Vec<DetailAccess>,
    /// Source and assembly of hot functions.
    pub listings: Vec<Listing>,
    /// The run divided into periods of equal length, in order; only pages have them, elsewhere it is empty.
    pub periods: Vec<Period>,
}

/// What rows of the profile's tables did in one period of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Period {
    /// When it begins, in seconds since the run began.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// Of [`crate::Profile::functions`].
    pub functions: Vec<PeriodRow>,
    /// Of [`crate::Profile::lines`].
    pub lines: Vec<PeriodRow>,
    /// Of [`crate::Profile::instructions`].
    pub instructions: Vec<PeriodRow>,
    /// Of [`crate::Profile::objects`].
    pub objects: Vec<PeriodRow>,
    /// Of [`crate::Profile::threads`].
    pub threads: Vec<PeriodRow>,
}

/// A row of a table in one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeriodRow {
    /// Position in the profile's table.
    pub row: u32,
    /// What it did in the period; shares are of the period's CPU time.
    pub share: Share,
}

/// A frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DetailFrame {
    /// Function, in [`Detail::names`].
    pub function: u32,
    /// Source file, in [`Detail::names`].
    pub file: Option<u32>,
    /// Line.
    pub line: Option<u32>,
    /// Module, in [`Detail::names`].
    pub module: u32,
    /// Address in the module.
    pub address: u64,
    /// Whether its caller is the function that it was inlined into.
    pub inlined: bool,
}

/// A call chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DetailStack {
    /// The caller's, in [`Detail::stacks`].
    pub parent: Option<u32>,
    /// The frame, in [`Detail::frames`].
    pub frame: u32,
}

/// A sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetailSample {
    /// When, in seconds since the run began.
    pub t_s: f64,
    /// Position in [`crate::Profile::threads`].
    pub thread: u32,
    /// Its call chain, in [`Detail::stacks`], the waited-for access innermost.
    pub stack: u32,
    /// Position in [`crate::Profile::objects`].
    pub object: Option<u32>,
    /// CPU time that it stands for, in seconds.
    pub weight_s: f64,
    /// The part of it that was stalled.
    pub stall_s: f64,
    /// The stalled part's level, as a position in [`crate::Profile::levels`].
    pub level: Option<u8>,
}

/// An access that a processor sampled itself. It stands for no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetailAccess {
    /// When, in seconds since the run began.
    pub t_s: f64,
    /// Position in [`crate::Profile::threads`].
    pub thread: u32,
    /// Its call chain, in [`Detail::stacks`].
    pub stack: u32,
    /// Where the line came from: position in [`crate::HardwareView::levels`].
    pub level: u32,
    /// Core clock cycles that it took, where that was measured.
    pub latency_cycles: Option<u32>,
    /// The address that was accessed, where the processor says it.
    pub address: Option<u64>,
    /// Events of the processor's counter that it stands for.
    pub events: u64,
}

/// Source or assembly with figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Function.
    pub function: String,
    /// Module.
    pub module: String,
    /// Source file, when it could be read.
    pub file: Option<String>,
    /// Its lines: number, text, share of all CPU time, share stalled.
    pub source: Vec<ListedLine>,
    /// Instructions: address, text, shares, source line.
    pub assembly: Vec<ListedInstruction>,
}

/// A line of source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedLine {
    /// Number, from 1.
    pub line: u32,
    /// Text.
    pub text: String,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time stalled here.
    pub stall_fraction: f64,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedInstruction {
    /// Address in the module.
    pub address: u64,
    /// Text in Intel's syntax.
    pub text: String,
    /// Source line.
    pub line: Option<u32>,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time stalled here.
    pub stall_fraction: f64,
    /// Executions, where they were counted.
    pub executions: Option<f64>,
    /// Lower end of their 95 % interval.
    pub executions_low: Option<f64>,
    /// Upper end of it.
    pub executions_high: Option<f64>,
}
