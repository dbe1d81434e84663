//! Tracks which programs have done the latest exchange.
//!
//! The programs' control threads exchange patches, each at its own time. A caller that counts or times in a
//! window must know when all of them have done so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::stat::Stat;
use rustc_hash::FxHashMap;

use crate::live;
use crate::process_key::ProcessKey;

/// Times that a program is asked again for an exchange that found threads in the way. Each may stop its
/// threads for as long as the agent retries.
const MAX_RETRIES: u32 = 2;

/// Interval between two checks whether the programs that an exchange waits for still run. A caller that
/// waits for an exchange asks every millisecond, and reading `/proc` takes longer than the rest of that
/// call.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Number of checks after which one also reads the mappings of the programs that run, which takes longer: a
/// program may have executed another one, which cannot have the agent.
const AGENT_CHECKS: u32 = 16;

/// What is checked of a program that an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Runs,
    HasAgent,
}

/// What to do with a change that is refused for temporary reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Try it again.
    Again,
    /// Give it up.
    GivenUp,
}

/// Progress of each live program.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// Number of exchanges so far.
    number: AtomicU64,
    done: Mutex<Done>,
    /// The last refused exchange of each program, and how often it was refused.
    refused: Mutex<FxHashMap<ProcessKey, (u64, u32)>>,
}

/// The last exchange that each program with a control thread has done.
#[derive(Debug, Default)]
struct Done {
    last: FxHashMap<ProcessKey, u64>,
    /// When the programs were last checked for whether they still run.
    checked: Option<Instant>,
    /// Checks since an exchange was settled.
    checks: u32,
}

impl Done {
    /// True if every program has done `exchange`. Programs that do not pass a check are forgotten; one is made
    /// only if it is due at `now`.
    fn is_settled(
        &mut self,
        exchange: u64,
        now: Instant,
        passes: impl Fn(ProcessKey, Check) -> bool,
    ) -> bool {
        let is_settled =
            |last: &FxHashMap<ProcessKey, u64>| last.values().all(|it| *it >= exchange);
        if is_settled(&self.last) {
            self.checks = 0;
            return true;
        }
        let is_due = |checked: Instant| now.duration_since(checked) >= LIVENESS_CHECK_INTERVAL;
        if !self.checked.is_none_or(is_due) {
            return false;
        }
        self.checked = Some(now);
        self.checks += 1;
        let check = match self.checks % AGENT_CHECKS {
            0 => Check::HasAgent,
            _ => Check::Runs,
        };
        self.last
            .retain(|key, last| *last >= exchange || passes(*key, check));
        is_settled(&self.last)
    }
}

impl Settling {
    /// Begins another exchange and returns its number. The state that it publishes must be set before:
    /// Release, with the Acquire of [`Self::number`].
    pub(crate) fn begin(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Release) + 1
    }

    /// Number of the last exchange. To be read before the state that it published.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Records that the program in `key` has done everything up to this exchange.
    pub(crate) fn done(&self, key: ProcessKey, exchange: u64) {
        let mut done = self.programs();
        let last = done.last.entry(key).or_default();
        *last = exchange.max(*last);
    }

    /// What to do if this exchange is refused in `key` now.
    pub(crate) fn if_refused(&self, key: ProcessKey, exchange: u64) -> Refused {
        match self.refused().get(&key) {
            Some((number, times)) if *number == exchange && *times >= MAX_RETRIES => {
                Refused::GivenUp
            }
            _ => Refused::Again,
        }
    }

    /// Records that this exchange was refused in `key` for temporary reasons.
    pub(crate) fn refuse(&self, key: ProcessKey, exchange: u64) {
        let mut refused = self.refused();
        let (number, times) = refused.entry(key).or_default();
        if *number != exchange {
            (*number, *times) = (exchange, 0);
        }
        *times += 1;
    }

    fn refused(&self) -> MutexGuard<'_, FxHashMap<ProcessKey, (u64, u32)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a program that will do no exchange any more.
    pub(crate) fn forget(&self, key: ProcessKey) {
        self.refused().remove(&key);
        self.programs().last.remove(&key);
    }

    /// True if any program does exchanges. One that is being started does none yet.
    pub(crate) fn any(&self) -> bool {
        !self.programs().last.is_empty()
    }

    /// True if every program that still runs, with the agent, has done `exchange`. The end of a program is
    /// noticed within [`LIVENESS_CHECK_INTERVAL`], the loss of its agent within [`AGENT_CHECKS`] of these.
    pub(crate) fn is_settled(&self, exchange: u64) -> bool {
        let passes = |key: ProcessKey, check| {
            runs(key) && (check == Check::Runs || live::has_control_thread(key.pid))
        };
        self.programs().is_settled(exchange, Instant::now(), passes)
    }

    fn programs(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if a program runs: one that has ended, and whose parent has not waited for it yet, does not.
pub(crate) fn runs(key: ProcessKey) -> bool {
    Stat::of(key.pid).is_ok_and(|stat| stat.started() == Some(key.started) && !stat.has_ended())
}

#[cfg(test)]
mod tests {
    use membound_platform::stat;

    use super::*;

    #[test]
    fn programs_that_run_are_waited_for_and_those_that_are_gone_are_not() {
        let settling = Settling::default();
        let pid = std::process::id();
        let here = ProcessKey {
            pid,
            started: stat::started(pid).unwrap(),
        };
        let gone = ProcessKey {
            started: here.started + 1,
            ..here
        };
        assert!(settling.is_settled(0));
        assert!(!settling.any());
        settling.done(here, settling.number());
        assert!(settling.any());
        settling.done(gone, settling.number());
        let exchange = settling.begin();
        assert!(!settling.is_settled(exchange));
        settling.done(here, settling.number());
        assert!(settling.is_settled(exchange));
        // A late answer to an earlier exchange does not undo a later one.
        settling.done(here, 0);
        assert!(settling.is_settled(exchange));
        let exchange = settling.begin();
        settling.forget(here);
        assert!(settling.is_settled(exchange));
        assert!(!settling.any());
    }

    #[test]
    fn the_kernel_is_asked_seldom_whether_programs_run() {
        let begun = Instant::now();
        let asked = std::cell::Cell::new(0);
        let mut done = Done::default();
        done.last.insert(ProcessKey { pid: 1, started: 2 }, 0);
        let looked = std::cell::Cell::new(0);
        let mut is_settled = |ms: u64, runs: bool| {
            let now = begun + Duration::from_millis(ms);
            done.is_settled(1, now, |_, check| {
                asked.set(asked.get() + 1);
                looked.set(looked.get() + u32::from(check == Check::HasAgent));
                runs
            })
        };
        assert!((0..100).all(|ms| !is_settled(ms, true)));
        assert_eq!(asked.get(), 10);
        let settled_ms = (100..200).find(|ms| is_settled(*ms, false));
        assert!(settled_ms.is_some_and(|ms| ms <= 110), "{settled_ms:?}");
        // No exchange is waited for any more.
        assert!(is_settled(201, true));
        assert_eq!((asked.get(), looked.get()), (11, 0));
    }

    #[test]
    fn who_has_lost_the_agent_is_not_waited_for() {
        let begun = Instant::now();
        let mut done = Done::default();
        done.last.insert(ProcessKey { pid: 1, started: 2 }, 0);
        let settled_ms = (0..1000).find(|ms| {
            let now = begun + Duration::from_millis(*ms);
            done.is_settled(1, now, |_, check| check == Check::Runs)
        });
        assert_eq!(settled_ms, Some(150));
    }

    #[test]
    fn an_exchange_is_asked_for_again_a_few_times() {
        let settling = Settling::default();
        let key = ProcessKey { pid: 1, started: 2 };
        for exchange in [1, 2] {
            for _ in 0..MAX_RETRIES {
                assert_eq!(settling.if_refused(key, exchange), Refused::Again);
                settling.refuse(key, exchange);
            }
            assert_eq!(settling.if_refused(key, exchange), Refused::GivenUp);
        }
        assert_eq!(settling.if_refused(key, 3), Refused::Again);
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_over() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let key = ProcessKey {
            pid: child.id(),
            started: stat::started(child.id()).unwrap(),
        };
        while runs(key) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
