//! Windows in which hot sites are patched.
//!
//! A window opens when every program has exchanged its patches. Counts are read then, and again before the
//! window closes and the text is restored: so a count covers a time in which the patches were there
//! throughout. Times are taken where the counts are read, because on a busy machine milliseconds may pass
//! between any two lines of this file. Sites of a function are patched together.

mod counting;
mod opening;
mod progress;
mod window;

use std::time::Duration;

use membound_run::SiteId;

use self::progress::Progress;
pub(crate) use self::window::{Closed, Now};
use self::window::{Phase, Window};
use crate::budget::{Budget, EXCHANGE_NS, Threads, Work};
use crate::groups::{Groups, Wanted};
use crate::patcher::Patcher;
use crate::sites::Sites;

/// Share of the budget for bursts (windows in which everything is recorded); the rest is for other windows.
const BURST_SHARE: f64 = 0.5;
/// How long programs may take to exchange their patches: at first, and at most after timeouts. The outlines of their
/// files are made before, so plans take milliseconds, and twenty times as long where programs need all processors.
/// Some patches may be executed all this time.
const FIRST_EXCHANGE_TIMEOUT_NS: u64 = 3_000_000_000;
const MAX_EXCHANGE_TIMEOUT_NS: u64 = 6_000_000_000;
/// How long programs may take to remove their patches before they are asked again, at first.
const FIRST_CLEARING_NS: u64 = 500_000_000;
/// Pause between a closed window and the next.
const PAUSE_NS: u64 = 5_000_000;
/// The same after a failed window: at first, and at most after consecutive failures.
const PAUSE_AFTER_FAILURE_NS: u64 = 500_000_000;
const MAX_PAUSE_NS: u64 = 60_000_000_000;
/// Upper limit of what an exchange is charged: plans are made beside the program.
const MAX_TAKEN_NS: u64 = 10_000_000;
/// While programs exchange their patches, they are polled again after this fraction of the time that has
/// passed since the exchange began: if a file has to be planned, that takes seconds.
const OPENING_POLL_FRACTION: u64 = 8;
/// Share of the CPU time of programs that serve requests for which patches may stand in their text …
const SERVED_SHARE: f64 = 0.005;
/// … and nanoseconds of it before any was used: less shows nothing of a server that runs for seconds.
const SERVED_ADVANCE_NS: f64 = 25e6;
/// Assumed cost of sites of unknown rates, as a share of CPU time.
const UNKNOWN_COST: f64 = 1.0;

/// Data to be recorded in addition to latencies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) blocks: Wanted,
    pub(crate) bursts: Wanted,
}

/// How long patches have stood in the text of programs that serve requests, in CPU time of all programs.
#[derive(Debug)]
struct Limited {
    begun_cpu_ns: u64,
    stood_cpu_ns: u64,
    /// While they stand: since when.
    since_cpu_ns: Option<u64>,
    /// Whether the last window was a burst.
    has_recorded: bool,
}

impl Limited {
    /// The patches are out of the text.
    fn clear(&mut self, cpu_ns: u64) {
        if let Some(since) = self.since_cpu_ns.take() {
            self.stood_cpu_ns += cpu_ns.saturating_sub(since);
        }
    }

    /// Whether a window of the usual length may be opened.
    fn permits(&self, cpu_ns: u64) -> bool {
        let served_ns = cpu_ns.saturating_sub(self.begun_cpu_ns) as f64;
        self.stood_cpu_ns as f64 <= SERVED_ADVANCE_NS + SERVED_SHARE * served_ns
    }
}

/// An exchange that removes all patches. Programs are asked for it again until they have made it: patches that stay
/// slow them for as long as they run.
#[derive(Clone, Copy, Debug)]
struct Clearing {
    exchange: u64,
    patience_ns: u64,
    again_ns: u64,
}

impl Clearing {
    fn ask(patcher: &impl Patcher, now: Now, patience_ns: u64) -> Self {
        Self {
            exchange: patcher.exchange(Vec::new()),
            patience_ns,
            again_ns: now.t_ns + patience_ns,
        }
    }
}

/// Opens and closes windows.
#[derive(Debug)]
pub(crate) struct Windows {
    groups: Groups,
    wants: Wants,
    budget: Budget,
    phase: Phase,
    burst_due_ns: u64,
    /// The same in CPU time of all programs.
    burst_due_cpu_ns: u64,
    /// When the last burst was opened, until [`Self::take_burst`] fetches it.
    burst_since_ns: Option<u64>,
    /// The removal of patches, until programs have made it.
    clearing: Option<Clearing>,
    /// The last time without patches in any text: its start and its end.
    clear_ns: (u64, u64),
    /// See [`Self::limit`].
    limited: Option<Limited>,
    /// See [`Self::defer`].
    is_deferred: bool,
    /// Time that programs get for the next exchange.
    patience_ns: u64,
    /// CPU time that programs took during the last three exchanges.
    exchanges_ns: [u64; 3],
    /// Time of changes of text that was charged so far, and what programs lost to it.
    charged_ns: u64,
    lost_to_changes_ns: f64,
    /// Consecutive failed windows: not exchanged in time, or closed because programs made no progress.
    failures: u32,
    progress: Progress,
    /// Time until the next poll of the programs.
    until_look: Duration,
    /// Windows that were closed because programs made no progress.
    pub(crate) stuck: u64,
    /// Exchanges that were not finished in time.
    pub(crate) unsettled: u64,
    /// Parts of windows whose counts were read too late to be of use: the machine was busy.
    pub(crate) blurred: u64,
    /// Sites that could be patched in no program.
    pub(crate) given_up: u64,
}

impl Windows {
    /// No window yet; patches may cost `max_overhead`, a share of the programs' CPU time.
    pub(crate) fn new(max_overhead: f64, wants: Wants) -> Self {
        Self {
            groups: Groups::default(),
            wants,
            budget: Budget::new(max_overhead),
            phase: Phase::Closed { until_ns: 0 },
            burst_due_ns: 0,
            burst_due_cpu_ns: 0,
            burst_since_ns: None,
            clearing: None,
            clear_ns: (0, u64::MAX),
            limited: None,
            is_deferred: false,
            patience_ns: FIRST_EXCHANGE_TIMEOUT_NS,
            exchanges_ns: [0; 3],
            charged_ns: 0,
            lost_to_changes_ns: 0.0,
            failures: 0,
            progress: Progress::default(),
            until_look: Duration::ZERO,
            stuck: 0,
            unsettled: 0,
            blurred: 0,
            given_up: 0,
        }
    }

    /// From now on, patches stand in the text for a small share of the programs' CPU time: the programs serve
    /// requests, and only one in a hundred may take longer without a longer 99th percentile.
    pub(crate) fn limit(&mut self, cpu_ns: u64) {
        self.limited = Some(Limited {
            begun_cpu_ns: cpu_ns,
            stood_cpu_ns: 0,
            since_cpu_ns: None,
            has_recorded: false,
        });
    }

    /// The programs do not serve requests after all.
    pub(crate) const fn lift_limit(&mut self) {
        self.limited = None;
    }

    /// Opens no window while `yes`: programs may serve requests.
    pub(crate) const fn defer(&mut self, yes: bool) {
        self.is_deferred = yes;
    }

    /// Whether windows may be opened in programs that serve requests, or may do so.
    fn may_open(&self, cpu_ns: u64) -> bool {
        let limited = self.limited.as_ref();
        !self.is_deferred && limited.is_none_or(|limited| limited.permits(cpu_ns))
    }

    /// True after [`Self::limit`], until [`Self::lift_limit`].
    pub(crate) const fn is_limited(&self) -> bool {
        self.limited.is_some()
    }

    /// Adds the time of a sample that waited for `site`.
    pub(crate) fn lost(&mut self, site: SiteId, weight_ns: f64) {
        self.groups.lost(site, weight_ns);
    }

    /// Charges cost beyond what windows were charged.
    pub(crate) fn spend(&mut self, cost_ns: f64) {
        self.budget.spend(cost_ns);
    }

    /// Sets what the programs have lost to recording outside windows so far, in nanoseconds.
    pub(crate) const fn lost_otherwise(&mut self, lost_ns: f64) {
        self.budget.lost_otherwise(lost_ns);
    }

    /// The number of hot functions that had no window because their file was not ready.
    pub(crate) fn unready(&self) -> u64 {
        self.groups.unready()
    }

    /// True while patches are in the text or an exchange is putting them there.
    pub(crate) const fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Closed { .. } | Phase::Lent)
    }

    /// How long nothing needs to be done for the window that is open or opening. Each poll takes processor
    /// time that programs may want.
    pub(crate) const fn until_look(&self) -> Duration {
        self.until_look
    }

    /// Computes the value for [`Self::until_look`].
    fn look_after(&self, now: Now) -> Duration {
        Duration::from_nanos(match &self.phase {
            Phase::Opening { window, .. } => {
                now.t_ns.saturating_sub(window.since_ns) / OPENING_POLL_FRACTION
            }
            // Half of the expected time: the speed of programs changes, and a window must not last much
            // longer than planned.
            Phase::Open {
                until_cpu_ns,
                until_ns,
                ..
            } => {
                let left_ns = until_cpu_ns.saturating_sub(now.cpu_ns) as f64;
                let soon_ns = left_ns / (2.0 * self.progress.last_busy().max(1.0));
                (soon_ns as u64).min(until_ns.saturating_sub(now.t_ns))
            }
            Phase::Closed { .. } | Phase::Lent => 0,
        })
    }

    /// Since when no patch had been in any text, at a recent time; `None` if one was or may have been.
    pub(crate) fn clear_since_ns(&self, t_ns: u64) -> Option<u64> {
        let (since_ns, until_ns) = self.clear_ns;
        (since_ns..until_ns).contains(&t_ns).then_some(since_ns)
    }

    /// When the last burst was opened; each is returned once.
    pub(crate) const fn take_burst(&mut self) -> Option<u64> {
        self.burst_since_ns.take()
    }

    /// True if no patch is in the text or about to be.
    pub(crate) fn is_clear(&self) -> bool {
        self.clearing.is_none() && matches!(self.phase, Phase::Closed { .. })
    }

    /// Opens no window until [`Self::give_back`]. The text must be clear.
    pub(crate) fn lend(&mut self) {
        self.phase = Phase::Lent;
    }

    /// Opens windows again, after [`Self::lend`].
    pub(crate) fn give_back(&mut self, now: Now) {
        self.phase = Phase::Closed {
            until_ns: now.t_ns + PAUSE_NS,
        };
    }

    /// Advances the state machine; returns the results of a window that closed. `hot` are the sites worth
    /// patching.
    pub(crate) fn step(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        hot: &[(SiteId, f64)],
        sites: &mut Sites,
    ) -> Option<Closed> {
        self.charge_changes(patcher);
        let closed = self.go_on(patcher, now, hot, sites);
        self.until_look = self.look_after(now);
        closed
    }

    /// Charges the time that programs lost to changes of their text since the last call: all of their threads stood,
    /// or met traps.
    fn charge_changes(&mut self, patcher: &impl Patcher) {
        let changing_ns = patcher.changing_ns();
        let new_ns =
            changing_ns.saturating_sub(std::mem::replace(&mut self.charged_ns, changing_ns));
        let busy = match self.progress.last_busy() {
            0.0 => 1.0,
            known => known,
        };
        self.lost_to_changes_ns += busy * new_ns as f64;
        self.budget.spend(busy * new_ns as f64);
    }

    /// Nanoseconds that programs have lost to changes of their text so far.
    pub(crate) const fn lost_to_changes_ns(&self) -> f64 {
        self.lost_to_changes_ns
    }

    fn go_on(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        hot: &[(SiteId, f64)],
        sites: &mut Sites,
    ) -> Option<Closed> {
        self.follow_clearing(patcher, now);
        let is_clear = !self.is_open() && self.clearing.is_none();
        if self.progress.is_stuck(now, is_clear) && self.is_open() {
            self.stuck += 1;
            let closed = self.end_open(patcher, now);
            self.phase = self.fail(patcher, now);
            return closed;
        }
        match std::mem::replace(&mut self.phase, Phase::Closed { until_ns: 0 }) {
            Phase::Lent => self.phase = Phase::Lent,
            Phase::Closed { until_ns } if now.t_ns < until_ns => {
                self.phase = Phase::Closed { until_ns };
            }
            Phase::Closed { .. } => {
                self.groups.add(hot, sites);
                self.groups.ask_ready(patcher);
                self.phase = self.open(patcher, now, hot);
            }
            Phase::Opening { exchange, window } => {
                self.phase = self.begin_if_settled(patcher, now, exchange, window, sites);
            }
            Phase::Open {
                until_cpu_ns,
                until_ns,
                from,
                before,
                window,
            } if now.t_ns < until_ns && now.cpu_ns < until_cpu_ns => {
                self.phase = Phase::Open {
                    from,
                    until_cpu_ns,
                    until_ns,
                    before,
                    window,
                };
            }
            Phase::Open {
                from,
                before,
                window,
                ..
            } => {
                let closed = self.end(patcher, from, now, &before, &window);
                if window.work == Work::Record {
                    // Executions were recorded from when the first program had its patches. Where exchanges
                    // take long, that is far more than the window, and bursts would use up the whole budget.
                    let stood_ns = now.cpu_ns.saturating_sub(window.since_cpu_ns) as f64;
                    let spent_ns = stood_ns * UNKNOWN_COST;
                    let earned_ns = self.budget.earned_within_ns(spent_ns / BURST_SHARE);
                    self.burst_due_cpu_ns = now.cpu_ns.saturating_add(earned_ns);
                }
                self.phase = self.close(patcher, now);
                return Some(closed);
            }
        }
        None
    }

    /// Notes that programs have removed all patches, or asks them again after a time.
    fn follow_clearing(&mut self, patcher: &impl Patcher, now: Now) {
        match self.clearing {
            Some(clearing) if patcher.settled(clearing.exchange) => {
                self.clearing = None;
                self.clear_ns = (now.t_ns, u64::MAX);
                if let Some(limited) = &mut self.limited {
                    limited.clear(now.cpu_ns);
                }
            }
            Some(clearing) if now.t_ns >= clearing.again_ns => {
                self.clearing = Some(Clearing::ask(patcher, now, 2 * clearing.patience_ns));
            }
            _ => {}
        }
    }

    /// Ends the phase; returns the results of the window that was open in it, if one was.
    fn end_open(&mut self, patcher: &impl Patcher, now: Now) -> Option<Closed> {
        match std::mem::replace(&mut self.phase, Phase::Closed { until_ns: 0 }) {
            Phase::Open {
                from,
                before,
                window,
                ..
            } => Some(self.end(patcher, from, now, &before, &window)),
            Phase::Opening { .. } | Phase::Closed { .. } | Phase::Lent => None,
        }
    }

    /// Begins a window whose patches are requested, once they are in the text.
    fn begin_if_settled(
        &mut self,
        patcher: &impl Patcher,
        now: Now,
        exchange: u64,
        window: Window,
        sites: &mut Sites,
    ) -> Phase {
        if patcher.settled(exchange) {
            self.patience_ns = FIRST_EXCHANGE_TIMEOUT_NS;
            if now.threads == Threads::Several {
                // The thread that makes the exchange takes a processor from a thread that could run.
                let took_ns = now.t_ns.saturating_sub(window.since_ns).min(MAX_TAKEN_NS);
                self.budget.spend(took_ns as f64);
            }
            self.exchanges_ns.rotate_left(1);
            self.exchanges_ns[2] = now.cpu_ns.saturating_sub(window.since_cpu_ns);
            self.begin(patcher, now, window, sites)
        } else if now.t_ns < window.since_ns.saturating_add(self.patience_ns) {
            Phase::Opening { exchange, window }
        } else {
            // A program may stand still, or a large file may take long to plan. That is no fault of these groups:
            // the next timeout is longer.
            self.unsettled += 1;
            self.patience_ns = (2 * self.patience_ns).min(MAX_EXCHANGE_TIMEOUT_NS);
            self.fail(patcher, now)
        }
    }

    /// Removes all patches for good; returns the results of an open window.
    pub(crate) fn stop(&mut self, patcher: &impl Patcher, now: Now) -> Option<Closed> {
        let was_closed = matches!(self.phase, Phase::Closed { .. });
        let closed = self.end_open(patcher, now);
        self.phase = Phase::Closed { until_ns: u64::MAX };
        if !was_closed {
            patcher.exchange(Vec::new());
        }
        closed
    }

    /// Notes that patches are about to be put into the text.
    fn stand(&mut self, now: Now) {
        self.clearing = None;
        if let Some(limited) = &mut self.limited {
            limited.since_cpu_ns = Some(now.cpu_ns);
        }
        self.clear_ns.1 = self.clear_ns.1.min(now.t_ns);
    }

    /// Makes programs remove their patches. Charged twice: for this exchange and the one that installed them.
    fn clear(&mut self, patcher: &impl Patcher, now: Now) {
        self.budget.spend(2.0 * EXCHANGE_NS * now.processes as f64);
        self.clearing = Some(Clearing::ask(patcher, now, FIRST_CLEARING_NS));
    }

    fn close(&mut self, patcher: &impl Patcher, now: Now) -> Phase {
        self.clear(patcher, now);
        Phase::Closed {
            until_ns: now.t_ns + PAUSE_NS,
        }
    }

    /// The same after a failure: the pause doubles with each consecutive failure.
    fn fail(&mut self, patcher: &impl Patcher, now: Now) -> Phase {
        let pause_ns = PAUSE_AFTER_FAILURE_NS << self.failures.min(16);
        self.failures += 1;
        self.clear(patcher, now);
        Phase::Closed {
            until_ns: now.t_ns + pause_ns.min(MAX_PAUSE_NS),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use membound_launch::{Choice, Executed, Pace};
    use membound_rewrite::image::Identity;
    use membound_rewrite::patch::Refusal;

    use super::window::Window;
    use super::*;

    /// Programs that have settled all exchanges up to a number.
    #[derive(Default)]
    struct Programs {
        asked: Cell<u64>,
        done: Cell<u64>,
        changing_ns: Cell<u64>,
    }

    impl Patcher for Programs {
        fn is_ready(&self, _: &Identity) -> bool {
            true
        }

        fn exchange(&self, _: Vec<Choice>) -> u64 {
            self.asked.set(self.asked.get() + 1);
            self.asked.get()
        }

        fn settled(&self, exchange: u64) -> bool {
            self.done.get() >= exchange
        }

        fn executed(&self, _: &Choice) -> Option<Vec<Executed>> {
            None
        }

        fn changing_ns(&self) -> u64 {
            self.changing_ns.get()
        }

        fn refused(&self, _: &Choice) -> Option<Vec<(u64, Refusal)>> {
            None
        }

        fn arm(&self, _: &Choice, _: &[(u64, Pace)]) {}

        fn now_ns(&self) -> u64 {
            0
        }
    }

    /// Windows of latencies and counts, which may cost a twentieth.
    fn latencies_only() -> Windows {
        let wants = Wants {
            blocks: Wanted::No,
            bursts: Wanted::No,
        };
        Windows::new(0.05, wants)
    }

    #[test]
    fn patches_stand_for_a_small_share_of_the_time_of_servers() {
        let mut limited = Limited {
            begun_cpu_ns: 1_000_000_000,
            stood_cpu_ns: 0,
            since_cpu_ns: None,
            has_recorded: false,
        };
        assert!(limited.permits(1_000_000_000));
        limited.since_cpu_ns = Some(1_000_000_000);
        limited.clear(1_100_000_000);
        assert!(!limited.permits(1_100_000_000));
        // 75 ms too much are 0.5 % of 15 s.
        assert!(!limited.permits(15_900_000_000));
        assert!(limited.permits(16_100_000_000));
        limited.clear(16_200_000_000);
        assert_eq!(limited.stood_cpu_ns, 100_000_000, "none stood since");
    }

    #[test]
    fn the_time_in_which_text_is_changed_is_charged_once() {
        let programs = Programs::default();
        let mut windows = latencies_only();
        let left_ns = windows.budget.left_ns(0);
        programs.changing_ns.set(2_000_000);
        windows.charge_changes(&programs);
        windows.charge_changes(&programs);
        assert_eq!(left_ns - windows.budget.left_ns(0), 2e6);
        windows.progress.busy.fill(1.5);
        programs.changing_ns.set(4_000_000);
        windows.charge_changes(&programs);
        assert_eq!(
            left_ns - windows.budget.left_ns(0),
            5e6,
            "all threads lose it"
        );
    }

    #[test]
    fn a_window_is_looked_at_seldom_and_more_often_towards_its_end() {
        let mut windows = latencies_only();
        windows.progress.busy.fill(2.0);
        let at = |ms: u64| Now {
            processes: 1,
            t_ns: ms * 1_000_000,
            cpu_ns: 2 * ms * 1_000_000,
            threads: Threads::Several,
        };
        windows.phase = Phase::Open {
            from: at(0),
            until_cpu_ns: 40_000_000,
            until_ns: 80_000_000,
            before: Vec::new(),
            window: Window {
                work: Work::Time,
                parts: Vec::new(),
                since_ns: 0,
                since_cpu_ns: 0,
                length_ns: 40_000_000,
            },
        };
        // Two threads need 20 ms.
        let (mut t_ms, mut looks) = (0, 0);
        while t_ms < 20 {
            t_ms += windows.look_after(at(t_ms)).as_millis().max(1) as u64;
            looks += 1;
        }
        assert!(t_ms <= 21 && looks <= 8, "{looks} looks, {t_ms} ms");
        assert_eq!(windows.look_after(at(20)), Duration::ZERO);
    }

    #[test]
    fn what_fails_again_and_again_is_tried_ever_more_seldom() {
        let programs = Programs::default();
        let mut windows = latencies_only();
        let now = Now {
            processes: 1,
            t_ns: 0,
            cpu_ns: 0,
            threads: Threads::One,
        };
        let mut pause = || match windows.fail(&programs, now) {
            Phase::Closed { until_ns } => until_ns,
            Phase::Opening { .. } | Phase::Open { .. } | Phase::Lent => 0,
        };
        let pauses: Vec<u64> = (0..40).map(|_| pause()).collect();
        assert_eq!(pauses[0], PAUSE_AFTER_FAILURE_NS);
        assert_eq!(pauses[1], 2 * PAUSE_AFTER_FAILURE_NS);
        assert_eq!(pauses[39], MAX_PAUSE_NS);
        assert!(pauses.is_sorted());
    }

    #[test]
    fn programs_are_asked_again_for_patches_that_stay() {
        let at = |t_ms: u64| Now {
            processes: 1,
            t_ns: t_ms * 1_000_000,
            cpu_ns: t_ms * 1_000_000,
            threads: Threads::One,
        };
        let programs = Programs::default();
        let mut windows = latencies_only();
        let mut sites = Sites::default();
        windows.phase = windows.close(&programs, at(0));
        let mut asked_ms = Vec::new();
        for t_ms in (0..8_000).step_by(100) {
            let before = programs.asked.get();
            windows.step(&programs, at(t_ms), &[], &mut sites);
            if programs.asked.get() > before {
                asked_ms.push(t_ms);
            }
        }
        assert_eq!(asked_ms, [500, 1500, 3500, 7500]);
        programs.done.set(programs.asked.get());
        windows.step(&programs, at(8_000), &[], &mut sites);
        assert!(windows.is_clear());
    }

    #[test]
    fn text_is_clear_from_when_all_programs_took_their_patches_out() {
        let at = |t_ns: u64| Now {
            processes: 1,
            t_ns,
            cpu_ns: t_ns,
            threads: Threads::One,
        };
        let programs = Programs::default();
        let mut windows = latencies_only();
        let mut sites = Sites::default();
        assert!(windows.clear_since_ns(5).is_some());
        windows.stand(at(10));
        assert!(windows.clear_since_ns(9).is_some());
        assert!(windows.clear_since_ns(10).is_none());
        windows.phase = windows.close(&programs, at(20));
        windows.step(&programs, at(25), &[], &mut sites);
        assert!(
            windows.clear_since_ns(25).is_none(),
            "a program has them still"
        );
        programs.done.set(1);
        windows.step(&programs, at(30), &[], &mut sites);
        assert!(windows.clear_since_ns(29).is_none());
        assert!(windows.clear_since_ns(30).is_some());
        // The next window opens before all programs have settled that.
        windows.phase = windows.close(&programs, at(40));
        windows.stand(at(45));
        programs.done.set(2);
        windows.step(&programs, at(50), &[], &mut sites);
        assert!(windows.clear_since_ns(50).is_none());
    }
}
