//! Decides which scavengers stay out of run queues for idle-time execution.
//!
//! A thread that waits for some microseconds at a time is found waiting by hardly any poll of the monitor
//! thread. While it waits, its scavengers are parked in its ring and do not run. If it waits for a larger
//! part of the time than a scavenger runs in time slices, one more scavenger is kept on its home thread,
//! where the kernel runs it whenever a processor is idle. It stays there as long as that gives it more time
//! than a run queue would. Scavengers do not move to and fro at each wait, since one that the kernel has
//! preempted cannot be taken back before it runs again.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{ControlPage, Idle};

use super::cpu_share::WHOLE;
use super::handover::HomeThread;
use super::page::{counter, has_peers, idle};
use super::ring::announce_room;
use super::thread_slot::thread_slots;
use crate::scavenger::table;
use crate::sys;

/// Nanoseconds between two judgements.
const JUDGEMENT_INTERVAL_NS: u64 = 100_000_000;
/// Share of the time, in parts of [`WHOLE`], that is too small to act on: 2 %.
const MIN_TIME_SHARE: u64 = 20;
/// Divisor that converts time in slices to time on the home thread of the same value: each slice begins with
/// the caches as the thread left them, and delays work that the thread would have done during its miss.
const SLICE_TIME_DISCOUNT: u64 = 2;
/// Consecutive judgements that must find a thread waiting before a scavenger is kept on its home thread.
const MIN_WAITING_JUDGEMENTS: u32 = 3;
/// Judgements until the next try after the first one that did not pay; doubles each time up to
/// [`MAX_PAUSE_JUDGEMENTS`].
const FIRST_PAUSE_JUDGEMENTS: u32 = 2;
const MAX_PAUSE_JUDGEMENTS: u32 = 256;

/// What the monitor thread remembers of the last judgement. Shares are in units of 1 / [`WHOLE`].
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// When it was, in nanoseconds of `CLOCK_MONOTONIC`.
    last_ns: u64,
    /// Time slices begun by then, on all run queues.
    slices: u64,
    /// Latest share of the time that a scavenger in a run queue had.
    run_queue_share: u64,
    /// Consecutive judgements that found a thread waiting.
    waiting_judgements: u32,
    /// Share that the scavengers kept on home threads needed before the last one was added.
    previous_min_share: u64,
    /// Share that they need now; with less, one goes back to run queues.
    min_share: u64,
    /// Judgements until one more may be kept on its home thread.
    pause: u32,
    next_pause: u32,
}

impl Judge {
    /// Judges every [`JUDGEMENT_INTERVAL_NS`] the scavengers' shares of the time, and keeps one more on
    /// its home thread or one fewer.
    pub(super) fn judge_if_due(&mut self, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.last_ns);
        if since_ns < JUDGEMENT_INTERVAL_NS {
            return;
        }
        self.last_ns = now_ns;
        if idle() != Idle::Harvest || has_peers() {
            return;
        }
        self.account_for_slices(since_ns);
        let kept = kept_shares(since_ns);
        let waits = longest_wait(since_ns, kept.is_none_or(|kept| kept.count > 0));
        let Some(kept) = kept else {
            // A scavenger has only just been kept: its share is known at the next judgement.
            return;
        };
        match self.judge(kept.count, kept.share, waits) {
            Verdict::Stay => {}
            Verdict::LetGo => kept.let_one_go(),
            Verdict::Keep => {
                if keep_one() {
                    self.raise_minimum(kept.share);
                }
            }
        }
    }

    /// Decides, where `count` kept scavengers have `share` of the time together and the longest-waiting
    /// thread waits for the share `waits`.
    fn judge(&mut self, count: u32, share: u64, waits: u64) -> Verdict {
        self.waiting_judgements = if waits > MIN_TIME_SHARE {
            self.waiting_judgements + 1
        } else {
            0
        };
        if count > 0 && (share < self.min_share || waits < MIN_TIME_SHARE) {
            self.min_share = if count > 1 {
                self.previous_min_share
            } else {
                0
            };
            self.next_pause =
                (self.next_pause * 2).clamp(FIRST_PAUSE_JUDGEMENTS, MAX_PAUSE_JUDGEMENTS);
            self.pause = self.next_pause;
            return Verdict::LetGo;
        }
        self.pause = self.pause.saturating_sub(1);
        if self.pause == 0
            && self.waiting_judgements >= MIN_WAITING_JUDGEMENTS
            && waits > self.min_home_share()
        {
            Verdict::Keep
        } else {
            Verdict::Stay
        }
    }

    /// One more scavenger is kept on its home thread; those before had `share`. The next one is tried only
    /// if these have clearly more together.
    fn raise_minimum(&mut self, share: u64) {
        self.previous_min_share = self.min_share;
        // With another idle processor the gain is far larger than a quarter; without one, shares differ by
        // chance from one judgement to the next.
        self.min_share = share + self.min_home_share().max(share / 4);
        self.pause = FIRST_PAUSE_JUDGEMENTS;
    }

    /// Share on a home thread that is worth a scavenger's share in a run queue.
    fn min_home_share(&self) -> u64 {
        (self.run_queue_share / SLICE_TIME_DISCOUNT).max(MIN_TIME_SHARE)
    }

    /// Measures the share of the time that a scavenger in a run queue has had.
    fn account_for_slices(&mut self, since_ns: u64) {
        let total = |offset| counter(offset).map_or(0, |word| word.load(Ordering::Relaxed));
        let begun = total(offset_of!(ControlPage, turns_with));
        let slices = begun.saturating_sub(self.slices);
        self.slices = begun;
        let timed = total(offset_of!(ControlPage, timed)) + total(offset_of!(ControlPage, skipped));
        let members: u64 = thread_slots()
            .map(|slot| u64::from(slot.count.load(Ordering::Relaxed)))
            .sum();
        if members == 0 || timed == 0 {
            return;
        }
        let slice_ns = total(offset_of!(ControlPage, timed_ns)) / timed;
        let slices_ns = slices.saturating_mul(slice_ns);
        let share = slices_ns.saturating_mul(WHOLE) / since_ns.max(1) / members;
        self.run_queue_share = share.min(WHOLE);
    }
}

/// Result of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stay,
    /// Keep one more scavenger on its home thread.
    Keep,
    /// Let one go back to run queues.
    LetGo,
}

/// The scavengers that are kept on their home threads.
#[derive(Clone, Copy)]
struct KeptScavengers {
    count: u32,
    /// Share of the time that they have together.
    share: u64,
    /// One of them, with the number of its home thread.
    one: Option<(u32, &'static HomeThread)>,
}

/// `None` if one of them has no share yet.
fn kept_shares(since_ns: u64) -> Option<KeptScavengers> {
    let mut kept = KeptScavengers {
        count: 0,
        share: 0,
        one: None,
    };
    let mut is_known = true;
    table::visit_home_threads(|thread, home_thread| {
        if !home_thread.is_kept() {
            return;
        }
        kept.count += 1;
        kept.one = Some((thread, home_thread));
        let share =
            sys::cpu_ns(thread).and_then(|cpu_ns| home_thread.judged.share(cpu_ns, since_ns));
        match share {
            Some(share) => kept.share += share,
            None => is_known = false,
        }
    });
    is_known.then_some(kept)
}

impl KeptScavengers {
    fn let_one_go(self) {
        if let Some((thread, home_thread)) = self.one {
            home_thread.release(thread);
        }
    }
}

/// Longest share of the time that a thread with a run queue did not run. A thread counts if it had
/// scavengers, also for its short waits ([`super::wait`]), or if any scavenger is kept on its home thread
/// already.
fn longest_wait(since_ns: u64, any_kept: bool) -> u64 {
    let mut longest = 0;
    for slot in thread_slots() {
        let thread = slot.thread.load(Ordering::Acquire);
        let has = slot.count.load(Ordering::Relaxed) > 0;
        let had = slot.had_scavengers.swap(u32::from(has), Ordering::Relaxed) != 0;
        // Current: the monitor thread polls this thread before it judges.
        let cpu_ns = slot.counted_cpu_ns.load(Ordering::Relaxed);
        if let Some(share) = slot.judged.share(cpu_ns, since_ns)
            && slot.open.load(Ordering::Relaxed) != 0
            && (has && had || any_kept)
        {
            longest = longest.max(WHOLE - share);
        }
        slot.judge_waits(thread, since_ns);
    }
    longest
}

/// Keeps one more scavenger on its home thread; `false` if none is left.
fn keep_one() -> bool {
    let mut found = false;
    table::visit_home_threads(|_, home_thread| {
        if !found && !home_thread.is_kept() && home_thread.is_in_run_queue() {
            found = true;
            home_thread.keep();
        }
    });
    if found {
        // The thread whose run queue has it returns it to its home thread.
        for slot in thread_slots() {
            slot.ask();
        }
        announce_room();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scavenger_is_kept_where_a_thread_waits_long_enough() {
        let mut judge = Judge {
            run_queue_share: 200,
            ..Judge::default()
        };
        // Less than half of the waiting time could be had in a run queue.
        let verdicts = [300; 3].map(|waits| judge.judge(0, 0, waits));
        assert_eq!(verdicts, [Verdict::Stay, Verdict::Stay, Verdict::Keep]);
        judge.raise_minimum(0);
        assert_eq!(judge.judge(1, 150, 800), Verdict::Stay);
        let mut judge = Judge {
            run_queue_share: 200,
            ..Judge::default()
        };
        assert!((0..9).all(|_| judge.judge(0, 0, 90) == Verdict::Stay));
    }

    #[test]
    fn a_scavenger_with_less_time_than_in_a_run_queue_is_let_go_and_tries_back_off() {
        let mut judge = Judge::default();
        let mut pauses = [0; 4];
        for pause in &mut pauses {
            while judge.judge(0, 0, 500) != Verdict::Keep {
                *pause += 1;
            }
            judge.raise_minimum(0);
            assert_eq!(judge.judge(1, 5, 500), Verdict::LetGo);
        }
        assert_eq!(pauses, [2, 1, 3, 7]);
    }

    #[test]
    fn another_scavenger_stays_only_if_the_total_share_grows() {
        let mut judge = Judge {
            waiting_judgements: MIN_WAITING_JUDGEMENTS,
            ..Judge::default()
        };
        judge.raise_minimum(0);
        assert_eq!(judge.judge(1, 600, 600), Verdict::Stay);
        assert_eq!(judge.judge(1, 600, 600), Verdict::Keep);
        judge.raise_minimum(600);
        assert_eq!(judge.judge(2, 640, 600), Verdict::LetGo);
        // The first scavenger's share is sufficient again.
        assert_eq!(judge.judge(1, 600, 600), Verdict::Stay);
    }
}
