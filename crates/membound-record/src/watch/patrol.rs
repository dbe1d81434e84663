//! Watches suspected lines in turn, for short windows and few hits, so that the program is hardly slowed
//! down.

use super::{Hit, Suspects, Watchpoints};
use crate::perf::Error;

/// Hits by one thread on one point in a window, at most. Each stops the thread for microseconds.
const HITS: u32 = 16;
/// Shortest length of a window; it ends at the first [`Patrol::step`] after that.
const WINDOW_NS: u64 = 5_000_000;
/// Time from the start of one window to the start of the next.
const EVERY_NS: u64 = 200_000_000;

/// Watches suspects in turn.
#[derive(Debug, Default)]
pub struct Patrol {
    state: State,
    next_ns: u64,
    lost: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Watching {
        points: Watchpoints,
        until_ns: u64,
    },
    /// Watchpoints are not available; none are tried any more.
    Over,
}

impl Patrol {
    /// Whether watchpoints are set.
    #[must_use]
    pub const fn is_watching(&self) -> bool {
        matches!(self.state, State::Watching { .. })
    }

    /// Advances; to be called every few milliseconds. `now_ns` is of the clock of [`crate::perf::now_ns`].
    /// Passes the hits of a window that is over to `tell`, and opens the next window when it is due.
    ///
    /// # Errors
    /// Once, when watchpoints are not available; then none are set any more. A process that has ended is no
    /// error.
    pub fn step(
        &mut self,
        now_ns: u64,
        suspects: &mut Suspects,
        report: &mut dyn FnMut(Hit<'_>),
    ) -> Result<(), Error> {
        match &mut self.state {
            State::Over => return Ok(()),
            State::Watching { until_ns, .. } if now_ns < *until_ns => return Ok(()),
            State::Watching { .. } => self.end(report),
            State::Idle => {}
        }
        if now_ns < self.next_ns {
            return Ok(());
        }
        let Some(plan) = suspects.next_plan() else {
            return Ok(());
        };
        self.next_ns = now_ns + EVERY_NS;
        let armed = Watchpoints::set(plan.pid, &plan.tids, &plan.points).and_then(|mut points| {
            points.arm(HITS)?;
            Ok(points)
        });
        match armed {
            Ok(points) => {
                self.state = State::Watching {
                    points,
                    until_ns: now_ns + WINDOW_NS,
                };
                Ok(())
            }
            Err(Error::Gone { pid }) => {
                suspects.gone(pid);
                Ok(())
            }
            Err(error) => {
                self.state = State::Over;
                Err(error)
            }
        }
    }

    /// Ends a window early, as at the end of a run, and passes its hits to `tell`.
    pub fn end(&mut self, report: &mut dyn FnMut(Hit<'_>)) {
        if let State::Watching { mut points, .. } = std::mem::take(&mut self.state) {
            points.disarm();
            self.lost += points.read(report);
        }
    }

    /// Number of hits that were lost for lack of room.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}
