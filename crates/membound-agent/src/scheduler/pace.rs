//! Decides when the monitor thread polls next, and during which polls scavengers are admitted. Times are in
//! units of [`UNIT_NS`], the shortest poll interval.
//!
//! A poll costs a thread that shares its processor with the monitor thread some fifty microseconds in a
//! virtual machine, and threads that wait for that thread even more. So polls are rare where there is
//! little to see.

use membound_wire::ControlPage;

/// Shortest poll interval, in nanoseconds: used while there is something to observe.
pub(super) const UNIT_NS: u64 = 2_000_000;
/// Consecutive idle polls (no thread yields or waits) after which the poll interval doubles, as a power of
/// two: a program that only computes must not be disturbed. It is also the initial value for polls that
/// find only slices that ended by themselves.
const LOG2_POLLS_BEFORE_BACK_OFF: u32 = 5;
/// How often the poll interval doubles at most: where no thread yields, and where slices end by themselves.
const MAX_DOUBLINGS_WHEN_IDLE: u32 = 4;
const MAX_DOUBLINGS_IN_SLICES: u32 = 3;
/// Upper limit of [`Pace::log2_polls_before_back_off`], which grows with every overdue slice.
const MAX_LOG2_POLLS_BEFORE_BACK_OFF: u32 = 10;
/// All of the time, in the units of [`ControlPage::share`].
pub(super) const WHOLE: u32 = ControlPage::SHARE_WHOLE;
/// Slices are timed after each of the first `POLLS_ALL_TIMED` polls, then after every fourth up to
/// `POLLS_OFTEN_TIMED`, then after every `POLLS_PER_TIMED_SLICE`th: a timed slice keeps the loads before it
/// from overlapping with it. Polls that find no slices are not counted.
const POLLS_ALL_TIMED: u32 = 64;
const POLLS_OFTEN_TIMED: u32 = 1024;
const POLLS_PER_TIMED_SLICE: u32 = 16;

/// What the monitor thread found at one run queue, or at all of them; later variants outweigh earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// Its thread computes, and no scavenger needs anything.
    Rest,
    /// Its thread waits, and has no contexts that could be taken from it.
    Waits,
    /// Slices that end by themselves; `open`: one was under way.
    Slices { open: bool },
    /// A slice does not end, or the thread waits with contexts in its ring, or the thread has ended.
    Motion,
    /// A scavenger was called out of its slice.
    Overdue,
}

impl Activity {
    /// Combines what was found at two run queues.
    pub(super) fn and(self, other: Self) -> Self {
        self.max(other)
    }
}

/// Poll interval of the monitor thread, from what its last polls found.
#[derive(Debug)]
pub(super) struct Pace {
    /// Consecutive polls that found nothing.
    idle_polls: u32,
    /// Consecutive polls that found slices that ended by themselves.
    polls_with_slices: u32,
    /// Value of `polls_with_slices` at which the poll interval doubles, as a power of two.
    log2_polls_before_back_off: u32,
    /// True while the next poll must show that the slice that was under way has ended.
    open: bool,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self {
            idle_polls: 0,
            polls_with_slices: 0,
            log2_polls_before_back_off: LOG2_POLLS_BEFORE_BACK_OFF,
            open: false,
        }
    }

    /// Poll interval, in units.
    pub(super) fn units(&self) -> u32 {
        1 << self.doublings()
    }

    /// How often the poll interval is doubled now.
    fn doublings(&self) -> u32 {
        let at_rest = (self.idle_polls >> LOG2_POLLS_BEFORE_BACK_OFF).min(MAX_DOUBLINGS_WHEN_IDLE);
        let in_slices = (self.polls_with_slices >> self.log2_polls_before_back_off)
            .min(MAX_DOUBLINGS_IN_SLICES);
        if self.open { 0 } else { at_rest.max(in_slices) }
    }

    /// True if no thread has yielded or waited for long.
    pub(super) const fn is_at_rest(&self) -> bool {
        self.idle_polls >> LOG2_POLLS_BEFORE_BACK_OFF > 0
    }

    /// Takes note of what the last poll found.
    pub(super) fn record(&mut self, activity: Activity) {
        self.open = self.doublings() > 0 && activity == Activity::Slices { open: true };
        match activity {
            Activity::Rest => {
                (self.idle_polls, self.polls_with_slices) = (self.idle_polls.saturating_add(1), 0)
            }
            Activity::Slices { .. } => {
                (self.idle_polls, self.polls_with_slices) =
                    (0, self.polls_with_slices.saturating_add(1))
            }
            Activity::Waits | Activity::Motion | Activity::Overdue => {
                (self.idle_polls, self.polls_with_slices) = (0, 0)
            }
        }
        if activity == Activity::Overdue {
            self.log2_polls_before_back_off =
                (self.log2_polls_before_back_off + 1).min(MAX_LOG2_POLLS_BEFORE_BACK_OFF);
        }
    }

    /// True if slices are timed after this poll; `polls` polls with slices were before it. Doubled poll
    /// intervals leave the number of timed slices a second as it is.
    pub(super) fn is_timed_after(&self, polls: u32) -> bool {
        let every = match polls {
            0..POLLS_ALL_TIMED => 1,
            POLLS_ALL_TIMED..POLLS_OFTEN_TIMED => POLLS_PER_TIMED_SLICE / 4,
            _ => POLLS_PER_TIMED_SLICE,
        };
        polls.is_multiple_of((every >> self.doublings()).max(1))
    }
}

/// Divides time into phases in which scavengers are admitted and phases in which they are not.
#[derive(Debug)]
pub(super) struct Phases {
    are_admitted: bool,
    /// Share of admitted time that is due, in parts of [`WHOLE`].
    parts: u32,
    /// Units that are left of the present phase.
    left: u32,
}

impl Phases {
    pub(super) const fn new() -> Self {
        Self {
            are_admitted: true,
            parts: 0,
            left: 0,
        }
    }

    /// Starts with a phase in which scavengers are admitted.
    pub(super) const fn begin(&mut self) {
        self.parts = WHOLE;
        self.left = 0;
    }

    /// Units until the next poll: `units`, but no longer than the present phase.
    pub(super) fn units(&self, units: u32) -> u32 {
        units.min(self.left.max(1))
    }

    /// Returns whether scavengers are admitted `units` later, where they are for `share` of the time, in
    /// phases of `length` units. Consecutive phases without a change are merged, up to `most` units.
    pub(super) fn after(&mut self, units: u32, share: u32, length: u32, most: u32) -> bool {
        self.left = self.left.saturating_sub(units);
        if self.left == 0 {
            let (share, length) = (share.min(WHOLE), length.max(1));
            self.parts += share;
            self.are_admitted = self.parts >= WHOLE;
            self.parts -= if self.are_admitted { WHOLE } else { 0 };
            self.left = length;
            while self.are_admitted && self.left < most && self.parts + share >= WHOLE {
                self.parts = self.parts + share - WHOLE;
                self.left += length;
            }
        }
        self.are_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: Activity = Activity::Slices { open: false };
    const OPEN: Activity = Activity::Slices { open: true };

    fn units_after(pace: &mut Pace, activity: Activity, times: u32) -> u32 {
        for _ in 0..times {
            pace.record(activity);
        }
        pace.units()
    }

    #[test]
    fn polls_are_rare_where_slices_end_by_themselves() {
        let mut pace = Pace::new();
        assert_eq!(units_after(&mut pace, OPEN, 31), 1);
        assert_eq!(units_after(&mut pace, CLOSED, 1), 2);
        assert_eq!(units_after(&mut pace, CLOSED, 1000), 8);
        assert_eq!(units_after(&mut pace, Activity::Motion, 1), 1);
        assert_eq!(units_after(&mut pace, CLOSED.and(Activity::Waits), 1000), 8);
        assert_eq!(units_after(&mut pace, Activity::Waits, 1), 1);
        assert_eq!(units_after(&mut pace, Activity::Rest, 1000), 16);
        assert!(pace.is_at_rest());
        assert_eq!(units_after(&mut pace, CLOSED, 1), 1);
        assert!(!pace.is_at_rest());
    }

    #[test]
    fn a_slice_under_way_at_a_late_poll_is_polled_again_soon() {
        let mut pace = Pace::new();
        assert_eq!(units_after(&mut pace, CLOSED, 1000), 8);
        assert_eq!(units_after(&mut pace, OPEN, 1), 1);
        // The observed slice has ended, though another one is under way.
        assert_eq!(units_after(&mut pace, OPEN, 1), 8);
        assert_eq!(units_after(&mut pace, OPEN, 1), 1);
        // The observed slice has not ended.
        assert_eq!(units_after(&mut pace, Activity::Motion, 1), 1);
        assert_eq!(units_after(&mut pace, CLOSED, 1), 1);
    }

    #[test]
    fn an_overdue_slice_delays_the_back_off() {
        let mut pace = Pace::new();
        assert_eq!(units_after(&mut pace, Activity::Overdue, 1), 1);
        assert_eq!(units_after(&mut pace, CLOSED, 63), 1);
        assert_eq!(units_after(&mut pace, CLOSED, 1), 2);
        assert_eq!(units_after(&mut pace, Activity::Overdue, 100), 1);
        assert_eq!(units_after(&mut pace, CLOSED, 1023), 1);
        assert_eq!(units_after(&mut pace, CLOSED, 1), 2);
    }

    /// Of `units` units: those with contexts and without, and the number of polls.
    fn phases(share: u32, length: u32, pace: u32, units: u32) -> (u32, u32, u32) {
        let mut phases = Phases::new();
        phases.begin();
        let (mut with, mut without, mut polls) = (0, 0, 0);
        let mut next = 1;
        while with + without < units {
            let are_admitted = phases.after(next, share, length, pace);
            next = phases.units(pace);
            *(if are_admitted {
                &mut with
            } else {
                &mut without
            }) += next;
            polls += 1;
        }
        (with, without, polls)
    }

    #[test]
    fn contexts_have_their_share_at_any_poll_interval() {
        for (share, length) in [
            (WHOLE, 1),
            (1000, 1),
            (512, 1),
            (100, 1),
            (1000, 25),
            (0, 4),
        ] {
            let (often, rare) = (
                phases(share, length, 1, 4096),
                phases(share, length, 8, 4096),
            );
            for (with, without, _) in [often, rare] {
                let expected_share = f64::from(share) / f64::from(WHOLE);
                let share_found = f64::from(with) / f64::from(with + without);
                // A phase is never cut short.
                assert!(
                    (share_found - expected_share).abs() < 0.02,
                    "{share}, {length}: {share_found} is not {expected_share}"
                );
            }
            assert!(often.2 >= 4096);
            // Where contexts are admitted nearly always, few polls are needed.
            assert!(share < 1000 || rare.2 < 4096 / 5, "{share}: {}", rare.2);
        }
    }

    #[test]
    fn slices_are_timed_at_the_same_rate_at_any_poll_interval() {
        let mut pace = Pace::new();
        let timed = |pace: &Pace| {
            (0..3200)
                .filter(|it| pace.is_timed_after(2048 + it))
                .count()
        };
        assert_eq!(timed(&pace), 200);
        units_after(&mut pace, CLOSED, 1000);
        assert_eq!(timed(&pace), 8 * 200);
    }
}
