//! What is looked at while a harvest runs: how far it has come, the CPU time of scavengers, the
//! slowdown of the command, its requests, and the time until it runs again, which are held to their
//! bounds; and where it runs, which decides where scavengers may.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use membound_launch::{GuestPlace, GuestState, GuestStatus, Harvested, Remote, RequestDurations};
use membound_platform::threads::Scheduled;
use membound_types::{HarvestSlots, SlowdownGuard};

use super::balance::{Balance, Found, Look};
use super::guard::{Guard, Limits};
use super::in_place::{Adopted, InPlace, Outcome};
use super::off::{Listening, Off, Switch};
use super::ordinary::Processes;
use super::slots::Slots;
use super::slowdown::Spans;
use super::span::SpanControl;
use super::times;
use super::worth::PlannedYield;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(50);
/// The same while turns of scavengers without a command are tried.
const TRIAL_PERIOD: Duration = Duration::from_millis(10);
/// Time for which looks come as often, to see when the first turn comes.
const FIRST_TURNS: Duration = Duration::from_secs(2);
/// Looks in a row at which nobody had a turn, after each so many of which they come half as often, and most
/// times that they do: whoever shares its processor with them loses some fifty microseconds to each.
const ENOUGH: u32 = 8;
const MOST_HALVINGS: u32 = 3;
/// Looks between two decisions on the slowdown.
const LOOKS: u32 = 5;
/// Decisions that are put off at most until yields stand as they are to: a program that was stopped
/// does not come to it.
const PUT_OFF: u32 = 20;
/// Requests of that many times the duration that most do not exceed fit into a phase with scavengers or
/// without: those that do not are in neither.
const REQUESTS_A_PHASE: f64 = 20.0;

/// What was seen last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) harvested: Harvested,
    /// The same by the looks that it was seen at.
    pub(super) spans: Spans,
    /// CPU time of each scavenger's own thread, in seconds.
    pub(super) own_thread_s: Vec<f64>,
    pub(super) guard: Option<SlowdownGuard>,
    pub(super) slots: HarvestSlots,
    /// What turns were worth, of scavengers without a command.
    pub(super) balance: Option<Found>,
    /// What came of switching it off.
    pub(super) off: Option<String>,
    /// From the beginning to the look at which a scavenger had had a turn.
    pub(super) first_turn: Option<Duration>,
    /// The plan that was made meanwhile, and from when on it was followed; or why there is none.
    pub(super) learned: Option<Result<(Box<Adopted>, Duration), String>>,
}

/// What somebody tells who follows a harvest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It is to be switched off.
    Off,
    /// It is over.
    End,
}

/// Looks at a session until it is told to end.
#[derive(Debug)]
pub(super) struct Follower {
    tell: mpsc::Sender<Told>,
    listening: Listening,
    thread: JoinHandle<(Seen, Processes)>,
}

impl Follower {
    /// Begins.
    pub(super) fn begin(
        (remote, pid): (Remote, u32),
        (limits, yields): (Limits, Vec<PlannedYield>),
        mut span: Option<SpanControl>,
        mut slots: Slots,
        mut together: Together,
        (switch, mut off): (Switch, Off),
        (begun, mut in_place): (Instant, Option<InPlace>),
    ) -> Self {
        let (tell, heard) = mpsc::channel();
        let switched = tell.clone();
        let listening = switch.begin(move || {
            // Whoever has ended needs no word.
            let _ = switched.send(Told::Off);
        });
        let thread = std::thread::spawn(move || {
            let mut guard = Guard::new(limits, yields);
            let mut seen = Seen::default();
            let mut changing = None;
            let mut looks = 0_u32;
            let mut rest = Rest::default();
            loop {
                let awaits_first = seen.first_turn.is_none() && begun.elapsed() < FIRST_TURNS;
                let period = if together.is_watchful() || in_place.is_some() || awaits_first {
                    TRIAL_PERIOD
                } else if slots.are_followed() || together.balance.is_some() {
                    PERIOD
                } else {
                    rest.period()
                };
                let told = heard.recv_timeout(period);
                let over = matches!(told, Ok(Told::End) | Err(RecvTimeoutError::Disconnected));
                if told == Ok(Told::Off) && seen.off.is_none() {
                    // What was not planned yet is not planned any more.
                    if let Some(planning) = in_place.take() {
                        planning.give_up();
                    }
                    seen.off = Some(off.take_away(&remote));
                }
                if let Some(harvested) = remote.harvested() {
                    rest.has_seen(&harvested, &seen.harvested);
                    seen.look(harvested, pid, begun);
                }
                if let Some(outcome) = in_place.as_mut().and_then(|it| it.look(&remote)) {
                    in_place = None;
                    seen.learned = Some(match outcome {
                        Outcome::Adopted(adopted) => {
                            off.is_of(&adopted.choices.yields);
                            guard = Guard::new(limits, adopted.choices.yields.clone());
                            Ok((adopted, begun.elapsed()))
                        }
                        Outcome::NoPlan(why) => Err(why),
                    });
                    if let Some(guard) = &mut guard {
                        guard.pass_over(&seen.harvested);
                    }
                }
                if in_place.is_some() && !over {
                    // There is nothing to be held to bounds yet.
                    together.processes.look();
                    continue;
                }
                if seen.off.is_some() && !over {
                    together.processes.look();
                    continue;
                }
                looks += 1;
                let decides = looks.is_multiple_of(LOOKS);
                let held = guard.as_ref().is_some_and(Guard::holds_back);
                let beside = decides && slots.decide(&seen.harvested, held);
                slots.look(&remote, pid, &seen.harvested, &seen.own_thread_s);
                together.look(&remote, &mut seen);
                if let Some(guard) = &mut guard
                    && decides
                {
                    if beside {
                        guard.pass_over(&seen.harvested);
                    } else {
                        changing = guarded(guard, changing, &remote, &seen.harvested);
                    }
                }
                if decides && let Some(p99) = p99_ns(&seen.harvested) {
                    remote.lengthen_phases(REQUESTS_A_PHASE * p99);
                }
                if let Some(control) = &mut span
                    && let Some(turns) = control.decide(&seen.harvested)
                {
                    remote.set_turns(turns.span_ns, turns.skips);
                }
                if over {
                    seen.guard = guard.map(|guard| guard.said());
                    seen.slots = slots.said();
                    return (seen, together.processes);
                }
            }
        });
        Self {
            tell,
            listening,
            thread,
        }
    }

    /// What was seen.
    pub(super) fn end(self) -> (Seen, Processes) {
        // It ends by itself only in a panic.
        let _ = self.tell.send(Told::End);
        self.listening.end();
        self.thread.join().unwrap_or_default()
    }
}

/// Scavengers that run under the kernel's scheduler, and, where there is no command, what is decided of the
/// others.
#[derive(Debug)]
pub(super) struct Together {
    balance: Option<Balance>,
    processes: Processes,
    processors: usize,
    places: Vec<GuestPlace>,
    begun: Instant,
}

impl Together {
    /// `balance` where there is no command, on so many processors.
    pub(super) fn new(balance: Option<Balance>, processes: Processes, processors: usize) -> Self {
        Self {
            balance,
            processes,
            processors,
            places: Vec::new(),
            begun: Instant::now(),
        }
    }

    fn is_watchful(&self) -> bool {
        self.balance.as_ref().is_some_and(Balance::is_watchful)
    }

    fn look(&mut self, remote: &Remote, seen: &mut Seen) {
        self.processes.look();
        let Some(balance) = &mut self.balance else {
            return;
        };
        balance.set_processors(self.processors.saturating_sub(self.processes.running()));
        let places = balance.step(Look {
            now: self.begun.elapsed(),
            progress: &progress(&seen.harvested),
        });
        if places != self.places {
            remote.set_places(&places);
            self.places = places;
        }
        seen.balance = Some(balance.found());
    }
}

impl Seen {
    /// Why the command was not begun, where its requests could not be told.
    pub(super) fn prevented(&self) -> Option<&str> {
        let requested = self.harvested.requested.as_ref()?;
        let why = requested.refused.as_deref();
        why.filter(|_| requested.prevented)
    }

    fn look(&mut self, harvested: Harvested, pid: u32, begun: Instant) {
        if self.first_turn.is_none() && harvested.with.count + harvested.waits.count > 0 {
            self.first_turn = Some(begun.elapsed());
        }
        self.own_thread_s.resize(harvested.guests.len(), 0.0);
        for (guest, seconds) in harvested.guests.iter().zip(&mut self.own_thread_s) {
            let own = if guest.cpu_ns > 0 {
                Some(guest.cpu_ns as f64 * 1e-9)
            } else {
                thread_cpu_s(pid, guest.thread)
            };
            // One that has ended keeps what it had.
            *seconds = own.unwrap_or(*seconds).max(*seconds);
        }
        self.spans.look(&harvested);
        self.harvested = harvested;
    }
}

/// Since when nobody has had a turn: looks in a row.
#[derive(Debug, Default)]
struct Rest(u32);

impl Rest {
    /// What was seen at a look, and at the one before.
    fn has_seen(&mut self, harvested: &Harvested, before: &Harvested) {
        let turns = |it: &Harvested| [it.with, it.without, it.waits].map(|turns| turns.count);
        // Yields that were taken out are to come back in time.
        let rests = turns(harvested) == turns(before)
            && harvested.requested == before.requested
            && harvested.withdrawn.is_empty();
        self.0 = if rests { self.0.saturating_add(1) } else { 0 };
    }

    /// Until the next look.
    fn period(&self) -> Duration {
        PERIOD * (1 << (self.0 / ENOUGH).min(MOST_HALVINGS))
    }
}

/// A change of the command's yields that is not done yet.
#[derive(Clone, Copy, Debug)]
struct Changing {
    /// The exchange that makes it.
    exchange: u64,
    /// Decisions that were put off for it.
    put_off: u32,
}

/// Decides, and does what was decided; `changing` is what is not done yet. Returns that.
fn guarded(
    guard: &mut Guard,
    changing: Option<Changing>,
    remote: &Remote,
    harvested: &Harvested,
) -> Option<Changing> {
    if let Some(Changing { exchange, put_off }) = changing {
        if put_off < PUT_OFF && !remote.settled(exchange) {
            let put_off = put_off + 1;
            return Some(Changing { exchange, put_off });
        }
        guard.begin_anew(harvested);
        return None;
    }
    let decision = guard.decide(harvested);
    if let Some(share) = decision.share {
        remote.let_in(share);
    }
    decision.withdrawn.map(|yields| Changing {
        exchange: remote.withdraw(yields),
        put_off: 0,
    })
}

/// The duration that 99 in 100 requests so far do not exceed, in nanoseconds: the longer of those with
/// scavengers and without.
fn p99_ns(harvested: &Harvested) -> Option<f64> {
    let requested = harvested.requested.as_ref()?;
    let of = |durations: &RequestDurations| times::quantile(&durations.times, 0.99);
    [&requested.with, &requested.without]
        .into_iter()
        .filter_map(of)
        .reduce(f64::max)
}

/// CPU time of a thread, in seconds, by the kernel's scheduler.
fn thread_cpu_s(pid: u32, thread: u32) -> Option<f64> {
    let scheduled = (thread != 0).then(|| Scheduled::of(pid, thread))??;
    Some(scheduled.cpu_ns as f64 * 1e-9)
}

/// By scavenger: the loads with a yield that it has come by; `None` of one that has not begun, or has ended.
fn progress(harvested: &Harvested) -> Vec<Option<u64>> {
    let guests = harvested.guests.iter();
    let of =
        |guest: &GuestStatus| (guest.state == Some(GuestState::Runs)).then_some(guest.progress);
    guests.map(of).collect()
}

#[cfg(test)]
mod tests {
    use membound_launch::{Requested, Turns};

    use super::super::worth::planned;
    use super::*;

    #[test]
    fn looks_come_seldom_where_nobody_has_a_turn_and_often_again_where_somebody_has() {
        let ran = |turns: u64, spanning: u64| Harvested {
            with: Turns {
                count: turns,
                cpu_ns: 0,
            },
            requested: Some(Requested {
                spanning,
                ..Requested::default()
            }),
            ..Harvested::default()
        };
        let mut rest = Rest::default();
        let (idle, turned, asked) = (ran(7, 0), ran(8, 0), ran(8, 1));
        let mut periods = Vec::new();
        for _ in 0..40 {
            rest.has_seen(&idle, &idle);
            periods.push(rest.period());
        }
        assert_eq!(periods[6], PERIOD);
        assert_eq!(periods[7], 2 * PERIOD);
        assert_eq!(periods[39], 8 * PERIOD);
        let without_a_yield = Harvested {
            withdrawn: vec![planned(1, 1.0, 1.0, None).place],
            ..ran(7, 0)
        };
        for (now, before) in [
            (&turned, &idle),
            (&asked, &turned),
            (&without_a_yield, &idle),
        ] {
            rest.has_seen(now, before);
            assert_eq!(rest.period(), PERIOD);
            rest = Rest(100);
        }
    }
}
