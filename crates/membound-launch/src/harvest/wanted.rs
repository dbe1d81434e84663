//! What a session is to harvest: yields, scavengers, and limits.

use std::path::PathBuf;
use std::time::Duration;

use membound_rewrite::image::Identity;
use membound_rewrite::patch::Sites;
use membound_wire::{Idle, ScavengerPlacement};

use crate::marks::RequestsBy;
use crate::planting::Planting;

/// Settings of a harvest.
#[derive(Clone, Debug)]
pub struct Harvest {
    /// The scavengers.
    pub scavengers: Vec<ScavengerCommand>,
    /// Yields of the command.
    pub primary: Vec<Planting>,
    /// Yields of the scavengers.
    pub scavenger_yields: Vec<Planting>,
    /// Time from a yield of the command until its data have arrived, in nanoseconds.
    pub span_ns: f64,
    /// True if the process stays, when the command ends it, until all scavengers have ended.
    pub finish: bool,
    /// Most scavengers in the run queue of one thread.
    pub per_thread: u32,
    /// True if memory that scavengers map may use huge pages.
    pub huge_pages: bool,
    /// Idle policy: what scavengers without a run queue do.
    pub idle: Idle,
    /// True if scavengers run in short waits of the command's threads; needs [`Idle::Harvest`].
    pub waits: bool,
    /// Share of the time, 0 to 1, in which scavengers are admitted; in the rest yields are only counted.
    pub share: f64,
    /// True if the command is [`crate::host()`]: then scavengers keep the priority of ordinary programs.
    pub peers: bool,
    /// Limit of the memory of all scavengers together, in bytes.
    pub memory_bytes: u64,
    /// Ticks of the time stamp counter in a nanosecond.
    pub ticks_per_ns: f64,
    /// How requests of the command are recognised; `None`: they are not measured.
    pub requests: Option<RequestsBy>,
    /// Longest time that the command waits for its scavengers to come to a yield.
    pub patience: Duration,
    /// Where scavengers start.
    pub begins: ScavengerPlacement,
}

impl Harvest {
    /// True if threads of the command yield in short waits.
    pub(crate) fn in_waits(&self) -> bool {
        self.waits && self.idle == Idle::Harvest
    }

    /// The files in which the launcher analyses only the functions that contain yields. Each comes with the addresses
    /// of these yields.
    pub(crate) fn alone(&self) -> Vec<(Identity, Vec<u64>)> {
        let all = || self.primary.iter().chain(&self.scavenger_yields);
        let alone = all().filter(|it| it.is_alone);
        let alone = alone.filter_map(|it| {
            let file = &it.choice.file;
            let others = all().filter(|other| other.choice.file == *file).count();
            let Sites::Instructions(addresses) = &it.choice.options.sites else {
                return None;
            };
            (others == 1).then(|| (file.clone(), addresses.clone()))
        });
        alone.collect()
    }
}

/// A scavenger: a program that runs inside another one.
#[derive(Clone, Debug)]
pub struct ScavengerCommand {
    /// Path of the executable.
    pub path: PathBuf,
    /// Its arguments, beginning with the name of the program.
    pub arguments: Vec<std::ffi::OsString>,
    /// Entries of its environment, `NAME=value` or any other text.
    pub environment: Vec<std::ffi::OsString>,
    /// File for standard output; `None`: discarded.
    pub output: Option<PathBuf>,
    /// File for standard error; `None`: discarded.
    pub errors: Option<PathBuf>,
    /// Bytes of addresses that it may map.
    pub memory_bytes: u64,
    /// Bytes of its stack.
    pub stack_bytes: u64,
}
