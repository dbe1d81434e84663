//! Watching suspected lines in turn, for short windows and few hits, so that the program hardly
//! notices.

use super::{Hit, Suspects, Watchpoints};
use crate::perf::Error;

/// Hits of a point by a thread in one window. Each stops the thread for microseconds.
const HITS: u32 = 16;
/// How long a window lasts at least; it is the caller who looks when it is over.
const WINDOW_NS: u64 = 5_000_000;
/// From the beginning of one window to that of the next.
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
    /// They cannot be had.
    Over,
}

impl Patrol {
    /// Whether watchpoints are set.
    #[must_use]
    pub const fn is_watching(&self) -> bool {
        matches!(self.state, State::Watching { .. })
    }

    /// Goes on: to be called every few milliseconds. `now_ns` is of the clock of
    /// [`crate::perf::now_ns`]. Tells the hits of a window that is over, and begins one when
    /// it is time.
    ///
    /// # Errors
    /// Once, when watchpoints cannot be had: then there will be none any more. A process
    /// that has ended is no error.
    pub fn step(
        &mut self,
        now_ns: u64,
        suspects: &mut Suspects,
        tell: &mut dyn FnMut(Hit<'_>),
    ) -> Result<(), Error> {
        match &mut self.state {
            State::Over => return Ok(()),
            State::Watching { until_ns, .. } if now_ns < *until_ns => return Ok(()),
            State::Watching { .. } => self.end(tell),
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

    /// Ends a window early, as at the end of a run, and tells its hits.
    pub fn end(&mut self, tell: &mut dyn FnMut(Hit<'_>)) {
        if let State::Watching { mut points, .. } = std::mem::take(&mut self.state) {
            points.disarm();
            self.lost += points.read(tell);
        }
    }

    /// Hits for which there was no room.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}
