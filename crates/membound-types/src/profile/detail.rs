//! Data that pages, flame graphs and exports need in addition to the JSON document.

use crate::Share;

/// Samples by time, thread, call chain and object, which the page, flame graphs and exports need in
/// addition to a [`crate::Profile`]. Not part of the JSON document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// Names that frames and objects refer to.
    pub names: Vec<String>,
    /// Frames; inlined functions are frames of their own.
    pub frames: Vec<DetailFrame>,
    /// Call chains; parents come before their children.
    pub stacks: Vec<DetailStack>,
    /// For each thread of [`crate::Profile::threads`], its position there.
    pub threads: Vec<u32>,
    /// Objects: position in [`crate::Profile::objects`].
    pub objects: u32,
    /// Samples, sorted by time.
    pub samples: Vec<DetailSample>,
    /// Accesses that the processor sampled, sorted by time.
    pub accesses: Vec<DetailAccess>,
    /// Source and assembly of hot functions.
    pub listings: Vec<Listing>,
    /// Periods of equal length that the run is divided into, in order; empty except for pages.
    pub periods: Vec<Period>,
}

/// Figures of the profile's rows in one period of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Period {
    /// Start, in seconds since the run began.
    pub from_s: f64,
    /// End, in seconds since the run began.
    pub to_s: f64,
    /// Rows of [`crate::Profile::functions`].
    pub functions: Vec<PeriodRow>,
    /// Rows of [`crate::Profile::lines`].
    pub lines: Vec<PeriodRow>,
    /// Rows of [`crate::Profile::instructions`].
    pub instructions: Vec<PeriodRow>,
    /// Rows of [`crate::Profile::objects`].
    pub objects: Vec<PeriodRow>,
    /// Rows of [`crate::Profile::threads`].
    pub threads: Vec<PeriodRow>,
}

/// A row of a table in one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeriodRow {
    /// Position in the profile's table.
    pub row: u32,
    /// Figures of the row in the period; shares refer to the period's CPU time.
    pub share: Share,
}

/// Frame of a call chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DetailFrame {
    /// Name of the function: position in [`Detail::names`].
    pub function: u32,
    /// Source file: position in [`Detail::names`].
    pub file: Option<u32>,
    /// Source line, from 1.
    pub line: Option<u32>,
    /// Path of the module: position in [`Detail::names`].
    pub module: u32,
    /// Address in the module.
    pub address: u64,
    /// True if the function was inlined into its caller.
    pub inlined: bool,
}

/// Call chain, as a frame and the caller's chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DetailStack {
    /// Chain of the caller: position in [`Detail::stacks`].
    pub parent: Option<u32>,
    /// Innermost frame: position in [`Detail::frames`].
    pub frame: u32,
}

/// One timer sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetailSample {
    /// Time in seconds since the run began.
    pub t_s: f64,
    /// Position in [`crate::Profile::threads`].
    pub thread: u32,
    /// Call chain with the waited-for access innermost: position in [`Detail::stacks`].
    pub stack: u32,
    /// Position in [`crate::Profile::objects`]; `None` if unknown.
    pub object: Option<u32>,
    /// CPU time that the sample represents, in seconds.
    pub weight_s: f64,
    /// Stalled part of `weight_s`, in seconds.
    pub stall_s: f64,
    /// Level of the stalled part: position in [`crate::Profile::levels`].
    pub level: Option<u8>,
}

/// An access that the processor sampled. It represents no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetailAccess {
    /// Time in seconds since the run began.
    pub t_s: f64,
    /// Position in [`crate::Profile::threads`].
    pub thread: u32,
    /// Call chain: position in [`Detail::stacks`].
    pub stack: u32,
    /// Source of the line: position in [`crate::HardwareView::levels`].
    pub level: u32,
    /// Latency in core clock cycles, if measured.
    pub latency_cycles: Option<u32>,
    /// Accessed address, if the processor reports it.
    pub address: Option<u64>,
    /// Events of the processor's counter that the access represents.
    pub events: u64,
}

/// Source and assembly of one function, with figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Name of the function.
    pub function: String,
    /// Path of its module.
    pub module: String,
    /// Path of the source file, if it could be read.
    pub file: Option<String>,
    /// Source lines with their figures.
    pub source: Vec<ListedLine>,
    /// Instructions with their figures.
    pub assembly: Vec<ListedInstruction>,
}

/// Source line of a listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedLine {
    /// Line number, from 1.
    pub line: u32,
    /// Text of the line.
    pub text: String,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time stalled here.
    pub stall_fraction: f64,
}

/// Instruction of a listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedInstruction {
    /// Address in the module.
    pub address: u64,
    /// Text in Intel syntax.
    pub text: String,
    /// Source line of the instruction, if known.
    pub line: Option<u32>,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time stalled here.
    pub stall_fraction: f64,
    /// Executions, if counted.
    pub executions: Option<f64>,
    /// Lower end of the 95 % interval of `executions`.
    pub executions_low: Option<f64>,
    /// Upper end of the 95 % interval of `executions`.
    pub executions_high: Option<f64>,
}
