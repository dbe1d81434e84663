//! Confirms with hardware watchpoints that threads share a line.

use std::sync::Mutex;

use membound_launch::Remote;
use membound_run::Watched;

use crate::clock::Clock;
use crate::gaps::Gaps;
use crate::perf;
use crate::sampling::Seen;
use crate::watch::{self, Patrol, Suspects};
use crate::world::World;

/// Bytes of a line where the machine profile does not say.
const LINE_BYTES: u64 = 64;

/// Collects suspects and watches them in turn.
#[derive(Debug)]
pub(crate) struct Watching {
    suspects: Suspects,
    patrol: Patrol,
}

impl Watching {
    /// Nobody is suspected yet.
    pub(crate) fn new(line_bytes: Option<u64>) -> Self {
        Self {
            suspects: Suspects::new(line_bytes.unwrap_or(LINE_BYTES)),
            patrol: Patrol::default(),
        }
    }

    /// Takes an access into account.
    pub(crate) fn note(&mut self, seen: watch::Seen) {
        self.suspects.note(seen);
    }

    /// Whether watchpoints are set.
    pub(crate) const fn is_watching(&self) -> bool {
        self.patrol.is_watching()
    }

    /// Goes on; hits are appended.
    pub(crate) fn step(
        &mut self,
        world: &Mutex<World>,
        clock: &Clock,
        remote: Option<&Remote>,
        rows: &mut Vec<Watched>,
        gaps: &mut Gaps,
    ) {
        let mut tell = |hit: watch::Hit<'_>| rows.push(row(world, clock, remote, &hit));
        let stepped = self
            .patrol
            .step(perf::now_ns(), &mut self.suspects, &mut tell);
        if let Err(error) = stepped {
            gaps.note("watchpoints", error.to_string(), None);
        }
    }

    /// Ends what is being watched.
    pub(crate) fn end(
        &mut self,
        world: &Mutex<World>,
        clock: &Clock,
        remote: Option<&Remote>,
        rows: &mut Vec<Watched>,
        gaps: &mut Gaps,
    ) {
        self.patrol
            .end(&mut |hit| rows.push(row(world, clock, remote, &hit)));
        gaps.count(
            "watchpoints",
            "hits found no room",
            None,
            self.patrol.lost(),
        );
    }
}

/// A hit is placed as a sample is: the thread may stand in a trampoline.
fn row(
    world: &Mutex<World>,
    clock: &Clock,
    remote: Option<&Remote>,
    hit: &watch::Hit<'_>,
) -> Watched {
    let sample = &hit.sample;
    let seen = Seen {
        pid: sample.pid,
        tid: sample.tid,
        t_ns: clock.of_raw(sample.t_ns),
        cpu: u16::try_from(sample.cpu).ok(),
        weight_ns: 0,
        registers: sample.registers,
        ip: None,
        stack: sample.stack,
        in_kernel: false,
    };
    let taken = crate::lock(world).take_seen(&seen, remote);
    Watched {
        t_ns: taken.t_ns,
        thread: taken.thread,
        address: hit.point.address,
        bytes: hit.point.bytes,
        frame: taken.leaf,
    }
}
