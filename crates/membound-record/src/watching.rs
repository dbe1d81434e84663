//! Confirms with hardware watchpoints that threads share a line.

use std::sync::Mutex;

use membound_launch::Remote;
use membound_run::Watched;

use crate::clock::Clock;
use crate::gaps::Gaps;
use crate::perf;
use crate::sampling::RawSample;
use crate::watch::{self, Patrol, Suspects};
use crate::world::World;

/// Bytes of a line where there is no machine profile.
const LINE_BYTES: u64 = 64;

/// Collects suspected lines and watches them in turn.
#[derive(Debug)]
pub(crate) struct Watching {
    suspects: Suspects,
    patrol: Patrol,
}

impl Watching {
    /// No suspected line yet.
    pub(crate) fn new(line_bytes: Option<u64>) -> Self {
        Self {
            suspects: Suspects::new(line_bytes.unwrap_or(LINE_BYTES)),
            patrol: Patrol::default(),
        }
    }

    /// Notes an access.
    pub(crate) fn note(&mut self, sample: watch::ObservedAccess) {
        self.suspects.note(sample);
    }

    /// True while watchpoints are armed.
    pub(crate) const fn is_watching(&self) -> bool {
        self.patrol.is_watching()
    }

    /// Advances; appends the hits of a finished window to `rows`.
    pub(crate) fn step(
        &mut self,
        world: &Mutex<World>,
        clock: &Clock,
        remote: Option<&Remote>,
        rows: &mut Vec<Watched>,
        gaps: &mut Gaps,
    ) {
        let mut report = |hit: watch::Hit<'_>| rows.push(row(world, clock, remote, &hit));
        let stepped = self
            .patrol
            .step(perf::now_ns(), &mut self.suspects, &mut report);
        if let Err(error) = stepped {
            gaps.note("watchpoints", error.to_string(), None);
        }
    }

    /// Ends the current window; appends its hits to `rows`, and reports lost hits.
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

/// Turns a hit into a row. It is resolved like a sample, as the thread may be in a trampoline.
fn row(
    world: &Mutex<World>,
    clock: &Clock,
    remote: Option<&Remote>,
    hit: &watch::Hit<'_>,
) -> Watched {
    let sample = &hit.sample;
    let sample = RawSample {
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
    let resolved = crate::lock(world).resolve_perf_sample(&sample, remote);
    Watched {
        t_ns: resolved.t_ns,
        thread: resolved.thread,
        address: hit.point.address,
        bytes: hit.point.bytes,
        frame: resolved.leaf,
    }
}
