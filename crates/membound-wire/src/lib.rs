//! The binary interface between the launcher and the agent inside the program.
//!
//! The launcher decides and the agent executes: the agent reports events ([`Hello`]), receives commands
//! ([`Command`]) that map pages, replace text and register tables, answers each ([`Reply`]), and lets the
//! program go on. Data that it needs later without asking (the way back from a trampoline to the original
//! code) is in tables ([`TrampolineEntry`], [`Shape`], [`Step`], [`Undo`]) that come with the trampolines.
//!
//! Everything here is `repr(C)`, without implicit padding, in the machine's byte order, since both sides
//! run on the same machine. No allocation, no standard library, no policy.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod numbered;

mod allocation;
mod data;
mod doorbell;
mod edit;
mod harvest;
mod hold;
mod message;
mod preload;
mod request;
mod ring;
mod scavenger;
mod state;
mod table;
mod tick;
mod times;
mod unwind;

pub use allocation::{
    ALLOCATION_EXTRA_BYTES, ALLOCATION_LEVELS, ALLOCATION_RECORDS, AllocationKind,
    AllocationRecord, AllocationRing, AllocationWhat, Allocations, WrapKind, allocation_interval,
    allocation_span, certain_from_bytes,
};
pub use data::{COUNT_APART, COUNT_WORDS, Entry, LEAD_IN, Probe, SLOTS_BYTES, Slots};
pub use doorbell::{DOORBELL_BYTES, own_word, waking_bits};
pub use edit::{EDIT_BYTES, TextEdit, fingerprint};
pub use harvest::{
    ASK, CREDIT_UNITS_PER_NS, Context, ControlPage, EVERY_BIT, Idle, LINE_BYTES, NO_EXCEPTIONS,
    RECENT_FACTOR, RECENT_LINES, RECENT_OFFSET, RunQueue,
};
pub use hold::{
    HOLD_BYTES, HOLD_FRAME_WORDS, HOLD_LIMIT_NS, HOLD_LINE_WORDS, HOLD_NONE, HOLD_REGISTERS,
    HOLD_SPANS, HOLD_STACK_WORDS, HOLD_THREADS, HOLD_WORDS, Progress, Span, Trial,
};
pub use message::{
    Action, CHAINED, Command, Event, GIVEN_UP, HELLO_MAGIC, Hello, HelloFlags, PROTOCOL_VERSION,
    Protection, Refusal, Reply, TextMode,
};
pub use preload::{Runtime, agent_in};
pub use request::{Mark, RequestTimes, Requests};
pub use ring::{RECORDS, Record, Ring, RingSet};
pub use scavenger::{ScavengerPlacement, ScavengerProcessState, ScavengerRequest};
pub use state::{
    CALL_FRAME, CALL_FRAME_BASE, CALL_FRAME_FLAGS, CALL_FRAME_RETURN, Found, STACK_POINTER, State,
    Tables,
};
pub use table::{AS_FOUND, Call, Shape, Step, TableHeader, TrampolineEntry, Undo, UndoKind};
pub use tick::{
    Refused, TICK_DEPTH, TICK_HEAD_WORDS, TICK_ORPHAN, TICK_REFUSALS, TICK_WORDS, TickHead,
    TickRing, TickSet,
};
pub use times::{
    REQUEST_CLASSES, TIME_CLASSES, class_begin, request_class, request_class_begin, time_class,
};
pub use unwind::{CallersFrame, UnwindHeader, UnwindKind, UnwindRule};

/// Environment variable that carries the path of the control socket into the program.
pub const CONTROL_VARIABLE: &str = "MEMBOUND_AGENT";

/// Set beside [`CONTROL_VARIABLE`], with any value, when `LD_PRELOAD` names the user's objects too, behind
/// the agent. So the agent always removes two variables from the environment (otherwise the second is
/// `LD_PRELOAD`): with an even number it can keep the layout of the initial stack that runtimes expect
/// which read it themselves.
pub const PADDING_VARIABLE: &str = "MEMBOUND_AGENT_PADDING";
