//! Starts programs with the agent in them, and serves the agent.
//!
//! A [`Session`] makes a private directory with the agent and a control socket, starts the command with the
//! agent preloaded, and answers every conversation that an agent begins: it reads the mappings of the
//! process, plans each file (or finds the plan in a [`Cache`]), finds room for the trampolines, and sends
//! the orders. All decisions are made here; the agent only executes. A [`Report`] has the results of a run.
//!
//! This crate does not print, read the environment or handle signals: the command does. A program is never
//! made to fail: where something is not possible the program stays as it is, and the report has the reason.

mod adopt;
mod allocation_memory;
mod allocations;
mod allocators;
mod area;
mod background;
mod cache;
mod channel;
mod choice;
mod codec;
mod collecting;
mod conversation;
mod elf;
mod exchange;
mod following;
mod harvest;
mod hold;
mod hook;
mod host;
mod identities;
mod ledger;
mod live;
mod maps;
mod marks;
mod memfd;
mod memory;
mod modules;
mod object;
mod orders;
mod pace;
mod patching;
mod perf_map;
mod planting;
mod preload;
mod process_key;
mod program;
mod records;
mod report;
mod requested;
mod requests;
mod rings;
mod room;
mod samples;
mod server;
mod session;
mod settling;
mod short_lived;
pub mod slice;
mod spawn;
mod standing;
mod stops;
mod texts;
mod tick_memory;
mod ticks;
mod timers;
mod trials;
mod unwind;
mod withdraw;
mod withdrawn;

pub use allocations::{
    AllocationAction, AllocationEvent, AllocationFunction, AllocationReceiver, Objects,
};
pub use background::{
    Hold, finish_plans, hold_planning, lack_processors, programs_ended, spawn, spawn_idle,
};
pub use cache::{Cache, LIMIT_BYTES};
pub use choice::{Choice, Pace};
pub use elf::{Headers, map_file, map_open_file};
pub use exchange::Executed;
pub use harvest::{Harvest, Harvested, ScavengerCommand, ScavengerStatus, Turns};
pub use host::{host, host_load, own_file};
pub use identities::remembered_identity;
pub use ledger::Program as RanProgram;
pub use maps::{Mapping, of as maps_of};
pub use marks::RequestsBy;
pub use membound_wire::{Idle, ScavengerPlacement, ScavengerProcessState, certain_from_bytes};
pub use modules::plan as plan_of;
pub use object::{ObjectError, run_object};
pub use pace::Processors;
pub use perf_map::PerfMap;
pub use planting::Planting;
pub use preload::load_agent;
pub use program::{CannotRun, Unpatched, examine, find};
pub use records::{Bursts, RecordTotals, Recording};
pub use report::{ModuleReport, Patched, Report, SiteReport};
pub use requested::{RequestDurations, Requested};
pub use samples::{Access, LINE_BYTES, Receiver, Samples, Source};
pub use server::{Live, Wanted};
pub use session::{Change, Error, Options, Program, Remote, Session};
pub use short_lived::ShortLived;
pub use spawn::environment;
pub use stops::Stops;
pub use timers::{Registers, Standing, TimerReceiver, TimerSample, Timers};
pub use trials::{HOLD_LINE_WORDS, HOLD_SPANS, HOLD_THREADS, Held, HeldSpan, Holding};
pub use withdrawn::YieldPlace;

/// A script with which gdb shows the original program in a patched one.
pub const GDB_SCRIPT: &str = include_str!("gdb.py");

/// The agent as a shared object; empty on machines without one.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));
