//! Buffers everything that the launcher reports until the driver fetches it.
//!
//! The launcher's threads drain the programs' rings, and must not wait for the driver. So they only append
//! here; beyond a limit, events are counted and dropped.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use membound_launch::{
    Access, AllocationEvent, AllocationReceiver, Receiver, Source, TimerReceiver, TimerSample,
};
use rustc_hash::FxHashMap;

/// Events of each kind that are buffered at most. The driver fetches them every few milliseconds.
const MAX_WAITING: usize = 2 << 20;

/// Everything that was reported since the last fetch.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Accesses of patched sites.
    pub(crate) accesses: Vec<Access>,
    /// Paths of new files; [`Access::module`] is an index into all paths so far.
    pub(crate) sources: Vec<PathBuf>,
    /// Programs that have begun to run: process, and since when.
    pub(crate) begun: Vec<(u32, Instant)>,
    /// Latest CPU time of each process, which the agent's samples should account for.
    pub(crate) covered: FxHashMap<u32, u64>,
    /// Call chains of allocations: process, number, return addresses.
    pub(crate) chains: Vec<(u32, u32, Vec<u64>)>,
    /// Allocations and frees, each with its process.
    pub(crate) allocations: Vec<(u32, AllocationEvent)>,
    /// Longest interval, in bytes, at which small blocks are or were sampled; 0: none were.
    pub(crate) sampled_interval_bytes: u64,
    /// Timer samples of the agent's, each with its process.
    pub(crate) samples: Vec<(u32, TimerSample)>,
    /// Failures to set up the agent's timers: process, thread, reason.
    pub(crate) refused: Vec<(u32, Option<u32>, String)>,
    /// Events that were dropped.
    pub(crate) lost: Lost,
}

/// Numbers of dropped events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) accesses: u64,
    pub(crate) allocations: u64,
    pub(crate) samples: u64,
}

/// The receiving end for all of the launcher's reports.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// CPU time for [`AllocationReceiver::spent_ns`].
    spent_on_allocations_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    reports: Reports,
    /// Number of files reported so far.
    sources: usize,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds CPU time that was spent on allocations.
    pub(crate) fn spent_on_allocations(&self, cpu_ns: u64) {
        self.spent_on_allocations_ns
            .fetch_add(cpu_ns, Ordering::Relaxed);
    }

    /// CPU time in nanoseconds spent on allocations so far.
    pub(crate) fn spent_on_allocations_ns(&self) -> u64 {
        self.spent_on_allocations_ns.load(Ordering::Relaxed)
    }

    /// Fetches everything since the last call.
    pub(crate) fn take(&self) -> Reports {
        std::mem::take(&mut self.state().reports)
    }
}

/// How many of `new` events may be added to `waiting` ones.
fn room(waiting: usize, new: usize) -> usize {
    MAX_WAITING.saturating_sub(waiting).min(new)
}

impl Receiver for Inbox {
    fn receive(&self, sources: &[Source], accesses: &[Access]) {
        let mut state = self.state();
        let State {
            reports,
            sources: known,
        } = &mut *state;
        let new = sources
            .iter()
            .skip(*known)
            .map(|source| source.path.clone());
        reports.sources.extend(new);
        *known = sources.len().max(*known);
        let fit = room(reports.accesses.len(), accesses.len());
        reports.accesses.extend_from_slice(&accesses[..fit]);
        reports.lost.accesses += (accesses.len() - fit) as u64;
    }
}

impl AllocationReceiver for Inbox {
    fn begun(&self, pid: u32, since: Instant) {
        self.state().reports.begun.push((pid, since));
    }

    fn chain(&self, pid: u32, chain: u32, addresses: &[u64]) {
        self.state()
            .reports
            .chains
            .push((pid, chain, addresses.to_vec()));
    }

    fn receive(&self, pid: u32, events: &[AllocationEvent]) {
        let reports = &mut self.state().reports;
        let fit = room(reports.allocations.len(), events.len());
        reports
            .allocations
            .extend(events[..fit].iter().map(|event| (pid, *event)));
        reports.lost.allocations += (events.len() - fit) as u64;
    }

    fn lost(&self, _: u32, events: u64) {
        self.state().reports.lost.allocations += events;
    }

    fn sampled(&self, _: u32, interval_bytes: u64) {
        let reports = &mut self.state().reports;
        reports.sampled_interval_bytes = reports.sampled_interval_bytes.max(interval_bytes);
    }

    fn spent_ns(&self) -> u64 {
        self.spent_on_allocations_ns()
    }
}

impl TimerReceiver for Inbox {
    fn receive(&self, pid: u32, samples: &[TimerSample]) {
        let reports = &mut self.state().reports;
        let fit = room(reports.samples.len(), samples.len());
        reports
            .samples
            .extend(samples[..fit].iter().map(|sample| (pid, sample.clone())));
        reports.lost.samples += (samples.len() - fit) as u64;
    }

    fn lost(&self, _: u32, samples: u64) {
        self.state().reports.lost.samples += samples;
    }

    fn covered(&self, pid: u32, cpu_ns: u64, _: u64) {
        self.state().reports.covered.insert(pid, cpu_ns);
    }

    fn refused(&self, pid: u32, thread: Option<u32>, reason: &str) {
        self.state()
            .reports
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
        let reports = inbox.take();
        let addresses: Vec<u64> = reports
            .accesses
            .iter()
            .map(|access| access.address)
            .collect();
        assert_eq!(addresses, [1, 2, 3]);
        assert_eq!(reports.sources, [PathBuf::from("a"), PathBuf::from("b")]);
        Receiver::receive(&inbox, &sources, &[]);
        assert!(inbox.take().sources.is_empty());
        assert_eq!(room(MAX_WAITING - 1, 5), 1);
        assert_eq!(room(MAX_WAITING + 1, 5), 0);
    }
}
