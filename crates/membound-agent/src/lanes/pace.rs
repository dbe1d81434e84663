//! When the warden looks at lanes again, and for which of its looks contexts are let in. All in units of
//! [`UNIT_NS`], which is as often as it ever looks.
//!
//! A look takes a thread that shares its processor with the warden some fifty microseconds in a virtual
//! machine, and whoever waits for that thread longer still, so that looks are rare where there is little to
//! see.

/// From one look to the next where there is something to be seen.
pub(super) const UNIT_NS: u64 = 2_000_000;
/// Looks in a row at which nobody yields or waits, after each so many of which they come half as often, as a
/// power of two: a program that only computes is not to be disturbed. Also, at first, those at which turns
/// ended by themselves.
const ENOUGH: u32 = 5;
/// Most times that they come half as often: where nobody yields, and where turns end by themselves.
const MOST_HALVINGS_AT_REST: u32 = 4;
const MOST_HALVINGS_IN_TURNS: u32 = 3;
/// The same at most for turns that ended by themselves, where some did not.
const MOST_ENOUGH: u32 = 10;
/// Parts of the whole that [`membound_wire::Board::share`] counts in.
pub(super) const WHOLE: u32 = 1024;
/// Looks at first after each of which turns are timed, those up to which every fourth one is followed by
/// that, and later every which one: a turn that is timed lets nothing before it overlap with it. Looks that
/// find no turns are not counted.
const ALL_TIMED: u32 = 64;
const OFTEN_TIMED: u32 = 1024;
const TIMED: u32 = 16;

/// What the warden found in a lane, or in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    /// Its thread computes, and nobody else has to do with it.
    Rest,
    /// Its thread waits, and there is nobody to be taken from it.
    Waits,
    /// Turns, which end by themselves; whether one was under way.
    Turns { open: bool },
    /// One has its turn and does not end it, or its thread waits with others in its ring, or has ended.
    Motion,
    /// One was called out of its turn.
    Overdue,
}

impl Seen {
    /// What was found in two lanes.
    pub(super) fn and(self, other: Self) -> Self {
        self.max(other)
    }
}

/// How often lanes are looked at.
#[derive(Debug)]
pub(super) struct Pace {
    /// Looks in a row that found nobody, and those that found turns that ended by themselves.
    rest: u32,
    turns: u32,
    /// Of the latter, those after which looks come half as often, as a power of two.
    enough: u32,
    /// Whether the turn that was under way is to be seen to end.
    open: bool,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self {
            rest: 0,
            turns: 0,
            enough: ENOUGH,
            open: false,
        }
    }

    /// Units until the next look.
    pub(super) fn units(&self) -> u32 {
        1 << self.halvings()
    }

    /// How many times looks come half as often.
    fn halvings(&self) -> u32 {
        let at_rest = (self.rest >> ENOUGH).min(MOST_HALVINGS_AT_REST);
        let in_turns = (self.turns >> self.enough).min(MOST_HALVINGS_IN_TURNS);
        if self.open { 0 } else { at_rest.max(in_turns) }
    }

    /// Whether nobody has yielded or waited for long.
    pub(super) const fn is_at_rest(&self) -> bool {
        self.rest >> ENOUGH > 0
    }

    pub(super) fn has_seen(&mut self, seen: Seen) {
        self.open = self.halvings() > 0 && seen == Seen::Turns { open: true };
        match seen {
            Seen::Rest => (self.rest, self.turns) = (self.rest.saturating_add(1), 0),
            Seen::Turns { .. } => (self.rest, self.turns) = (0, self.turns.saturating_add(1)),
            Seen::Waits | Seen::Motion | Seen::Overdue => (self.rest, self.turns) = (0, 0),
        }
        if seen == Seen::Overdue {
            self.enough = (self.enough + 1).min(MOST_ENOUGH);
        }
    }

    /// Whether turns are timed after a look that so many with turns were before: as often by time, later,
    /// however often looks come.
    pub(super) fn is_timed_after(&self, looks: u32) -> bool {
        let every = match looks {
            0..ALL_TIMED => 1,
            ALL_TIMED..OFTEN_TIMED => TIMED / 4,
            _ => TIMED,
        };
        looks.is_multiple_of((every >> self.halvings()).max(1))
    }
}

/// Which part of the time contexts are let in.
#[derive(Debug)]
pub(super) struct Phases {
    lets_in: bool,
    parts: u32,
    /// Units for which it stays as it is.
    left: u32,
}

impl Phases {
    pub(super) const fn new() -> Self {
        Self {
            lets_in: true,
            parts: 0,
            left: 0,
        }
    }

    /// Begins with a phase in which they are.
    pub(super) const fn begin(&mut self) {
        self.parts = WHOLE;
        self.left = 0;
    }

    /// Of so many units until the next look, those that it may stay as it is.
    pub(super) fn units(&self, units: u32) -> u32 {
        units.min(self.left.max(1))
    }

    /// Whether contexts are let in, so many units later, where that has `share` of the time, in phases of
    /// `length`. Phases that follow each other without a change are one, up to `most` units.
    pub(super) fn after(&mut self, units: u32, share: u32, length: u32, most: u32) -> bool {
        self.left = self.left.saturating_sub(units);
        if self.left == 0 {
            let (share, length) = (share.min(WHOLE), length.max(1));
            self.parts += share;
            self.lets_in = self.parts >= WHOLE;
            self.parts -= if self.lets_in { WHOLE } else { 0 };
            self.left = length;
            while self.lets_in && self.left < most && self.parts + share >= WHOLE {
                self.parts = self.parts + share - WHOLE;
                self.left += length;
            }
        }
        self.lets_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: Seen = Seen::Turns { open: false };
    const OPEN: Seen = Seen::Turns { open: true };

    fn seen(pace: &mut Pace, what: Seen, times: u32) -> u32 {
        for _ in 0..times {
            pace.has_seen(what);
        }
        pace.units()
    }

    #[test]
    fn looks_are_rare_where_turns_end_by_themselves() {
        let mut pace = Pace::new();
        assert_eq!(seen(&mut pace, OPEN, 31), 1);
        assert_eq!(seen(&mut pace, CLOSED, 1), 2);
        assert_eq!(seen(&mut pace, CLOSED, 1000), 8);
        assert_eq!(seen(&mut pace, Seen::Motion, 1), 1);
        assert_eq!(seen(&mut pace, CLOSED.and(Seen::Waits), 1000), 8);
        assert_eq!(seen(&mut pace, Seen::Waits, 1), 1);
        assert_eq!(seen(&mut pace, Seen::Rest, 1000), 16);
        assert!(pace.is_at_rest());
        assert_eq!(seen(&mut pace, CLOSED, 1), 1);
        assert!(!pace.is_at_rest());
    }

    #[test]
    fn a_turn_under_way_at_a_late_look_is_looked_at_again_soon() {
        let mut pace = Pace::new();
        assert_eq!(seen(&mut pace, CLOSED, 1000), 8);
        assert_eq!(seen(&mut pace, OPEN, 1), 1);
        // It has ended, though another is under way.
        assert_eq!(seen(&mut pace, OPEN, 1), 8);
        assert_eq!(seen(&mut pace, OPEN, 1), 1);
        // It has not.
        assert_eq!(seen(&mut pace, Seen::Motion, 1), 1);
        assert_eq!(seen(&mut pace, CLOSED, 1), 1);
    }

    #[test]
    fn who_had_to_be_called_out_is_watched_for_longer() {
        let mut pace = Pace::new();
        assert_eq!(seen(&mut pace, Seen::Overdue, 1), 1);
        assert_eq!(seen(&mut pace, CLOSED, 63), 1);
        assert_eq!(seen(&mut pace, CLOSED, 1), 2);
        assert_eq!(seen(&mut pace, Seen::Overdue, 100), 1);
        assert_eq!(seen(&mut pace, CLOSED, 1023), 1);
        assert_eq!(seen(&mut pace, CLOSED, 1), 2);
    }

    /// Units with contexts and without, and looks, of so many units.
    fn phases(share: u32, length: u32, pace: u32, units: u32) -> (u32, u32, u32) {
        let mut phases = Phases::new();
        phases.begin();
        let (mut with, mut without, mut looks) = (0, 0, 0);
        let mut next = 1;
        while with + without < units {
            let lets_in = phases.after(next, share, length, pace);
            next = phases.units(pace);
            *(if lets_in { &mut with } else { &mut without }) += next;
            looks += 1;
        }
        (with, without, looks)
    }

    #[test]
    fn contexts_have_their_share_however_rare_looks_are() {
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
                let wanted = f64::from(share) / f64::from(WHOLE);
                let found = f64::from(with) / f64::from(with + without);
                // Phases are whole.
                assert!(
                    (found - wanted).abs() < 0.02,
                    "{share}, {length}: {found} is not {wanted}"
                );
            }
            assert!(often.2 >= 4096);
            // Where nearly all have a turn all the time, it takes few looks.
            assert!(share < 1000 || rare.2 < 4096 / 5, "{share}: {}", rare.2);
        }
    }

    #[test]
    fn turns_are_timed_as_often_by_time() {
        let mut pace = Pace::new();
        let timed = |pace: &Pace| {
            (0..3200)
                .filter(|it| pace.is_timed_after(2048 + it))
                .count()
        };
        assert_eq!(timed(&pace), 200);
        seen(&mut pace, CLOSED, 1000);
        assert_eq!(timed(&pace), 8 * 200);
    }
}
