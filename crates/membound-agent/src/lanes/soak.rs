//! Guests that are kept out of lanes for the idle time of the program's threads.
//!
//! A thread that waits for some microseconds at a time is found waiting by hardly any of the warden's looks,
//! and nobody runs while it waits: its guests lie parked in its ring. Where it does so for more of the
//! time than a guest has in its turns, one guest more is kept on its own thread, where the kernel runs it
//! whenever nobody else wants the processor; it stays there for as long as that is more than it would have
//! in a lane. A guest that the kernel has preempted cannot be had back before it runs again, so none is
//! passed between the two from one wait to the next.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use membound_wire::{Board, Idle};

use super::berth::Berth;
use super::block::lanes;
use super::ring::announce_room;
use super::{has_peers, idle, told};
use crate::{guest, sys};

/// From one judgement to the next.
const JUDGED_NS: u64 = 100_000_000;
/// Parts of the time in 1024 that are too little to be had: 2 %.
const LITTLE: u64 = 20;
/// What time in turns is worth less than the same time at home: each turn begins with what the thread has
/// left in the caches, and the thread loses some of what it would have done beside its miss.
const COLD: u64 = 2;
/// Judgements in a row by which a thread waits, before somebody is kept.
const WAITED: u32 = 3;
/// Judgements until the next try after one that did not pay; twice as many each time.
const FIRST_PAUSE: u32 = 2;
const LONGEST_PAUSE: u32 = 256;
/// Parts of the whole in which shares of the time are told.
const WHOLE: u64 = 1024;

/// What the warden knows of the last judgement. Shares are parts of the time in [`WHOLE`].
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// When it was.
    last_ns: u64,
    /// Turns by then.
    turns: u64,
    /// What a guest in a lane had of the time, lately.
    in_lanes: u64,
    /// Judgements in a row by which a thread waited.
    waited: u32,
    /// What those who are kept had before the last one was, and have to have with it.
    before: u64,
    wanted: u64,
    /// Judgements until one more may be tried, and how many they are the next time.
    pause: u32,
    next_pause: u32,
}

/// CPU time of a thread at the last judgement.
#[derive(Debug)]
pub(super) struct Seen(AtomicU64);

impl Seen {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// What the thread, which has had so much by now, has had since, as a share of `since_ns`; nothing at
    /// the first look.
    fn share(&self, cpu_ns: u64, since_ns: u64) -> Option<u64> {
        let before = self.0.swap(cpu_ns, Ordering::Relaxed);
        let share = cpu_ns.saturating_sub(before).saturating_mul(WHOLE) / since_ns.max(1);
        (before != 0).then(|| share.min(WHOLE))
    }

    /// The thread is another one.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Judge {
    /// Looks how guests fare, now and then.
    pub(super) fn look(&mut self, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.last_ns);
        if since_ns < JUDGED_NS {
            return;
        }
        self.last_ns = now_ns;
        if idle() != Idle::Harvest || has_peers() {
            return;
        }
        self.account_for_turns(since_ns);
        let kept = shares_of_kept(since_ns);
        let waits = longest_wait(since_ns, kept.is_none_or(|kept| kept.count > 0));
        let Some(kept) = kept else {
            // One has only begun.
            return;
        };
        match self.judge(kept.count, kept.share, waits) {
            Verdict::Stay => {}
            Verdict::LetGo => kept.let_one_go(),
            Verdict::Keep => {
                if keep_one() {
                    self.has_kept(kept.share);
                }
            }
        }
    }

    /// What is to be done where so many are kept, have this share of the time together, and a thread
    /// waits for that one.
    fn judge(&mut self, count: u32, share: u64, waits: u64) -> Verdict {
        self.waited = if waits > LITTLE { self.waited + 1 } else { 0 };
        if count > 0 && (share < self.wanted || waits < LITTLE) {
            self.wanted = if count > 1 { self.before } else { 0 };
            self.next_pause = (self.next_pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.pause = self.next_pause;
            return Verdict::LetGo;
        }
        self.pause = self.pause.saturating_sub(1);
        if self.pause == 0 && self.waited >= WAITED && waits > self.worth() {
            Verdict::Keep
        } else {
            Verdict::Stay
        }
    }

    /// One more is kept, where those before had this share. It is to be seen what they have together
    /// before there is another.
    fn has_kept(&mut self, share: u64) {
        self.before = self.wanted;
        // Where there is another processor with time to spare it is far more; without, shares differ by
        // chance from one judgement to the next.
        self.wanted = share + self.worth().max(share / 4);
        self.pause = FIRST_PAUSE;
    }

    /// What a guest would have in a lane, as time at home.
    fn worth(&self) -> u64 {
        (self.in_lanes / COLD).max(LITTLE)
    }

    /// What a guest in a lane has had of the time.
    fn account_for_turns(&mut self, since_ns: u64) {
        let so_far = |offset| told(offset).map_or(0, |word| word.load(Ordering::Relaxed));
        let begun = so_far(offset_of!(Board, turns_with));
        let turns = begun.saturating_sub(self.turns);
        self.turns = begun;
        let timed = so_far(offset_of!(Board, timed)) + so_far(offset_of!(Board, skipped));
        let members: u64 = lanes()
            .map(|block| u64::from(block.count.load(Ordering::Relaxed)))
            .sum();
        if members == 0 || timed == 0 {
            return;
        }
        let turn_ns = so_far(offset_of!(Board, timed_ns)) / timed;
        let turns_ns = turns.saturating_mul(turn_ns);
        let share = turns_ns.saturating_mul(WHOLE) / since_ns.max(1) / members;
        self.in_lanes = share.min(WHOLE);
    }
}

/// What comes of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stay,
    /// One more is to be kept.
    Keep,
    /// One less.
    LetGo,
}

/// How guests that are kept fare.
#[derive(Clone, Copy)]
struct Kept {
    count: u32,
    /// What they have of the time together.
    share: u64,
    /// One of them with its own thread.
    one: Option<(u32, &'static Berth)>,
}

/// `None` where one has not been seen before.
fn shares_of_kept(since_ns: u64) -> Option<Kept> {
    let mut kept = Kept {
        count: 0,
        share: 0,
        one: None,
    };
    let mut is_known = true;
    guest::each_berth(|thread, berth| {
        if !berth.is_kept() {
            return;
        }
        kept.count += 1;
        kept.one = Some((thread, berth));
        let share = sys::cpu_ns(thread).and_then(|cpu_ns| berth.judged.share(cpu_ns, since_ns));
        match share {
            Some(share) => kept.share += share,
            None => is_known = false,
        }
    });
    is_known.then_some(kept)
}

impl Kept {
    fn let_one_go(self) {
        if let Some((thread, berth)) = self.one {
            berth.let_go(thread);
        }
    }
}

/// The most that one of the threads with lanes did not run, for which somebody may be kept: it had guests, to
/// run in its short waits too ([`super::wait`]), or somebody is kept already.
fn longest_wait(since_ns: u64, any_kept: bool) -> u64 {
    let mut longest = 0;
    for block in lanes() {
        let thread = block.thread.load(Ordering::Acquire);
        let has = block.count.load(Ordering::Relaxed) > 0;
        let had = block.had_guests.swap(u32::from(has), Ordering::Relaxed) != 0;
        // The warden has just looked.
        let cpu_ns = block.seen_cpu_ns.load(Ordering::Relaxed);
        if let Some(share) = block.judged.share(cpu_ns, since_ns)
            && block.open.load(Ordering::Relaxed) != 0
            && (has && had || any_kept)
        {
            longest = longest.max(WHOLE - share);
        }
        block.judge_waits(thread, since_ns);
    }
    longest
}

/// Has one guest more run in idle time; `false` where there is none.
fn keep_one() -> bool {
    let mut found = false;
    guest::each_berth(|_, berth| {
        if !found && !berth.is_kept() && berth.is_away() {
            found = true;
            berth.keep();
        }
    });
    if found {
        // The thread that has it sends it home.
        for block in lanes() {
            block.ask();
        }
        announce_room();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_kept_where_a_thread_waits_for_long_enough_to_pay() {
        let mut judge = Judge {
            in_lanes: 200,
            ..Judge::default()
        };
        // Of what is waited for less than half is to be had in a lane.
        let verdicts = [300; 3].map(|waits| judge.judge(0, 0, waits));
        assert_eq!(verdicts, [Verdict::Stay, Verdict::Stay, Verdict::Keep]);
        judge.has_kept(0);
        assert_eq!(judge.judge(1, 150, 800), Verdict::Stay);
        let mut judge = Judge {
            in_lanes: 200,
            ..Judge::default()
        };
        assert!((0..9).all(|_| judge.judge(0, 0, 90) == Verdict::Stay));
    }

    #[test]
    fn who_has_less_than_in_a_lane_is_let_go_and_the_next_try_comes_later_each_time() {
        let mut judge = Judge::default();
        let mut pauses = [0; 4];
        for pause in &mut pauses {
            while judge.judge(0, 0, 500) != Verdict::Keep {
                *pause += 1;
            }
            judge.has_kept(0);
            assert_eq!(judge.judge(1, 5, 500), Verdict::LetGo);
        }
        assert_eq!(pauses, [2, 1, 3, 7]);
    }

    #[test]
    fn another_one_stays_only_where_they_have_far_more_together() {
        let mut judge = Judge {
            waited: WAITED,
            ..Judge::default()
        };
        judge.has_kept(0);
        assert_eq!(judge.judge(1, 600, 600), Verdict::Stay);
        assert_eq!(judge.judge(1, 600, 600), Verdict::Keep);
        judge.has_kept(600);
        assert_eq!(judge.judge(2, 640, 600), Verdict::LetGo);
        // What the first one had is enough again.
        assert_eq!(judge.judge(1, 600, 600), Verdict::Stay);
    }
}
