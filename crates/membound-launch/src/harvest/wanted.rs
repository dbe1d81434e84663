//! What a session is asked to harvest: yields, guests, and within which limits.

use std::path::PathBuf;
use std::time::Duration;

use membound_wire::{GuestPlace, Idle};

use crate::marks::RequestsBy;
use crate::planting::Planting;

/// What a session harvests.
#[derive(Clone, Debug)]
pub struct Harvest {
    /// The programs that run in the command's stalls.
    pub guests: Vec<Guest>,
    /// Yields of the command.
    pub primary: Vec<Planting>,
    /// Yields of the guests.
    pub scavengers: Vec<Planting>,
    /// Time from a yield of the command until its data are there, in nanoseconds.
    pub span_ns: f64,
    /// Whether the process stays, when the command ends it, until all guests have ended.
    pub finish: bool,
    /// Most guests that a thread is given at one time.
    pub per_thread: u32,
    /// Whether what guests map may have huge pages.
    pub huge_pages: bool,
    /// What becomes of guests without a thread.
    pub idle: Idle,
    /// Whether guests run in short waits of the command's threads, where they may in idle time.
    pub waits: bool,
    /// Share of the time in which guests are let in; in the rest yields are only counted.
    pub share: f64,
    /// Whether the command is [`crate::host()`]: then guests keep the priority of ordinary programs.
    pub peers: bool,
    /// Bytes of memory that all guests together may have.
    pub memory_bytes: u64,
    /// Ticks of the time stamp counter in a nanosecond.
    pub ticks_per_ns: f64,
    /// How requests of the command are told, if they are to be.
    pub requests: Option<RequestsBy>,
    /// How long the command waits for its guests to come to a yield.
    pub patience: Duration,
    /// Where guests begin.
    pub begins: GuestPlace,
}

impl Harvest {
    /// Whether threads of the command's yield where they would wait.
    pub(crate) fn in_waits(&self) -> bool {
        self.waits && self.idle == Idle::Harvest
    }
}

/// A program that runs inside another one.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments, the name that it is called by first.
    pub arguments: Vec<std::ffi::OsString>,
    /// `NAME=value` and whatever else stands in an environment.
    pub environment: Vec<std::ffi::OsString>,
    /// Where standard output goes; nowhere if there is none.
    pub output: Option<PathBuf>,
    /// Where standard error goes.
    pub errors: Option<PathBuf>,
    /// Bytes of addresses that it may map.
    pub memory_bytes: u64,
    /// Bytes of its stack.
    pub stack_bytes: u64,
}
