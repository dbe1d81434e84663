//! What the launcher tells, kept until the driver comes for it.
//!
//! The launcher's threads drain the programs' rings; they must not wait for whatever the
//! driver is doing. So everything is only put down here, up to a bound beyond which it is
//! counted and dropped.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use membound_launch::{
    Access, AllocationEvent, AllocationReceiver, Receiver, Source, TimerReceiver, TimerSample,
};
use rustc_hash::FxHashMap;

/// Most of each kind that wait. The driver comes every few milliseconds.
const MOST: usize = 2 << 20;

/// Everything that was told since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Accesses of patched sites.
    pub(crate) accesses: Vec<Access>,
    /// Files by [`Access::module`], those that are new.
    pub(crate) sources: Vec<PathBuf>,
    /// Programs that have begun to run: process, and since when.
    pub(crate) begun: Vec<(u32, Instant)>,
    /// CPU time of processes, whatever samples stand for.
    pub(crate) covered: FxHashMap<u32, u64>,
    /// Call chains of allocations: process, number, return addresses.
    pub(crate) chains: Vec<(u32, u32, Vec<u64>)>,
    /// Allocations and frees, each with its process.
    pub(crate) allocations: Vec<(u32, AllocationEvent)>,
    /// Longest interval, in bytes, at which small blocks are or were sampled; 0: none were.
    pub(crate) sampled_interval_bytes: u64,
    /// Timer samples of the agent's, each with its process.
    pub(crate) samples: Vec<(u32, TimerSample)>,
    /// Where the agent's timers cannot be had: process, thread, reason.
    pub(crate) refused: Vec<(u32, Option<u32>, String)>,
    /// What found no room.
    pub(crate) lost: Lost,
}

/// What was lost on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) accesses: u64,
    pub(crate) allocations: u64,
    pub(crate) samples: u64,
}

/// Takes what is told.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    told: Mutex<State>,
    /// See [`AllocationReceiver::spent_ns`].
    spent_on_allocations_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    told: Told,
    /// Files told so far.
    sources: usize,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much CPU time more was spent on allocations.
    pub(crate) fn spent_on_allocations(&self, cpu_ns: u64) {
        self.spent_on_allocations_ns
            .fetch_add(cpu_ns, Ordering::Relaxed);
    }

    /// What was spent on allocations until now, in nanoseconds of CPU time.
    pub(crate) fn spent_on_allocations_ns(&self) -> u64 {
        self.spent_on_allocations_ns.load(Ordering::Relaxed)
    }

    /// What was told since the last call.
    pub(crate) fn take(&self) -> Told {
        std::mem::take(&mut self.state().told)
    }
}

/// How many of `new` find room beside `waiting`.
fn room(waiting: usize, new: usize) -> usize {
    MOST.saturating_sub(waiting).min(new)
}

impl Receiver for Inbox {
    fn receive(&self, sources: &[Source], accesses: &[Access]) {
        let mut state = self.state();
        let State {
            told,
            sources: known,
        } = &mut *state;
        let new = sources
            .iter()
            .skip(*known)
            .map(|source| source.path.clone());
        told.sources.extend(new);
        *known = sources.len().max(*known);
        let fit = room(told.accesses.len(), accesses.len());
        told.accesses.extend_from_slice(&accesses[..fit]);
        told.lost.accesses += (accesses.len() - fit) as u64;
    }
}

impl AllocationReceiver for Inbox {
    fn begun(&self, pid: u32, since: Instant) {
        self.state().told.begun.push((pid, since));
    }

    fn chain(&self, pid: u32, chain: u32, addresses: &[u64]) {
        self.state()
            .told
            .chains
            .push((pid, chain, addresses.to_vec()));
    }

    fn receive(&self, pid: u32, events: &[AllocationEvent]) {
        let told = &mut self.state().told;
        let fit = room(told.allocations.len(), events.len());
        told.allocations
            .extend(events[..fit].iter().map(|event| (pid, *event)));
        told.lost.allocations += (events.len() - fit) as u64;
    }

    fn lost(&self, _: u32, events: u64) {
        self.state().told.lost.allocations += events;
    }

    fn sampled(&self, _: u32, interval_bytes: u64) {
        let told = &mut self.state().told;
        told.sampled_interval_bytes = told.sampled_interval_bytes.max(interval_bytes);
    }

    fn spent_ns(&self) -> u64 {
        self.spent_on_allocations_ns()
    }
}

impl TimerReceiver for Inbox {
    fn receive(&self, pid: u32, samples: &[TimerSample]) {
        let told = &mut self.state().told;
        let fit = room(told.samples.len(), samples.len());
        told.samples
            .extend(samples[..fit].iter().map(|sample| (pid, sample.clone())));
        told.lost.samples += (samples.len() - fit) as u64;
    }

    fn lost(&self, _: u32, samples: u64) {
        self.state().told.lost.samples += samples;
    }

    fn covered(&self, pid: u32, cpu_ns: u64, _: u64) {
        self.state().told.covered.insert(pid, cpu_ns);
    }

    fn refused(&self, pid: u32, thread: Option<u32>, reason: &str) {
        self.state()
            .told
            .refused
            .push((pid, thread, reason.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_once_and_accesses_in_order() {
        let inbox = Inbox::default();
        let access = |address| Access {
            pid: 1,
            thread: 1,
            module: 0,
            site: 0,
            address,
            ticks: None,
            hit: None,
            drain: None,
            tsc: 0,
            store: false,
            after_gap: false,
            burst: false,
        };
        let sources = ["a", "b"].map(|path| Source { path: path.into() });
        Receiver::receive(&inbox, &sources[..1], &[access(1), access(2)]);
        Receiver::receive(&inbox, &sources, &[access(3)]);
        let told = inbox.take();
        let addresses: Vec<u64> = told.accesses.iter().map(|access| access.address).collect();
        assert_eq!(addresses, [1, 2, 3]);
        assert_eq!(told.sources, [PathBuf::from("a"), PathBuf::from("b")]);
        Receiver::receive(&inbox, &sources, &[]);
        assert!(inbox.take().sources.is_empty());
        assert_eq!(room(MOST - 1, 5), 1);
        assert_eq!(room(MOST + 1, 5), 0);
    }
}
