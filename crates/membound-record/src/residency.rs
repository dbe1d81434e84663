//! CPU residency: which CPU a thread was on, by its samples. Times in nanoseconds since the run began.
//!
//! Samples are lost where the recorder is too slow for them. A thread that was on the same CPU before and
//! after a gap is assumed to have been there throughout.

use membound_run::ThreadId;
use rustc_hash::FxHashMap;

/// Before the first and after the last sample of a residency, the thread is assumed to be on that CPU for
/// this long.
const NEAR_NS: u64 = 50_000_000;
/// Two samples on one CPU that are further apart than this are two residencies.
const FAR_NS: u64 = 2_000_000_000;
/// Residencies that ended this long ago are forgotten.
const OLD_NS: u64 = 10_000_000_000;
/// Residencies kept for each thread: requests come a little late.
const MAX_RESIDENCIES_OF_THREAD: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Residency {
    cpu: u16,
    first_ns: u64,
    last_ns: u64,
}

impl Residency {
    const fn distance_ns(&self, t_ns: u64) -> u64 {
        let before = self.first_ns.saturating_sub(t_ns);
        let after = t_ns.saturating_sub(self.last_ns);
        before + after
    }
}

/// The latest residencies of all threads, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Residencies(FxHashMap<ThreadId, Vec<Residency>>);

impl Residencies {
    /// Notes that a sample found a thread on a CPU.
    pub(crate) fn note(&mut self, thread: ThreadId, t_ns: u64, cpu: u16) {
        let residencies = self.0.entry(thread).or_default();
        if let Some(residency) = residencies.last_mut()
            && residency.cpu == cpu
            && residency.distance_ns(t_ns) <= FAR_NS
        {
            residency.first_ns = residency.first_ns.min(t_ns);
            residency.last_ns = residency.last_ns.max(t_ns);
            return;
        }
        if residencies.len() == MAX_RESIDENCIES_OF_THREAD {
            residencies.remove(0);
        }
        residencies.push(Residency {
            cpu,
            first_ns: t_ns,
            last_ns: t_ns,
        });
    }

    /// The CPU that a thread was on; `None` when no sample is near.
    pub(crate) fn cpu(&self, thread: ThreadId, t_ns: u64) -> Option<u16> {
        let residencies = self.0.get(&thread)?;
        let nearest = residencies
            .iter()
            .min_by_key(|residency| residency.distance_ns(t_ns))?;
        (nearest.distance_ns(t_ns) < NEAR_NS).then_some(nearest.cpu)
    }

    /// Forgets residencies that ended long ago.
    pub(crate) fn tidy(&mut self, now_ns: u64) {
        self.0.retain(|_, residencies| {
            residencies.retain(|residency| now_ns.saturating_sub(residency.last_ns) < OLD_NS);
            !residencies.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_where_it_was_before_and_after() {
        let ms = |ms: u64| ms * 1_000_000;
        let thread = ThreadId(3);
        let mut residencies = Residencies::default();
        assert_eq!(residencies.cpu(thread, 0), None);
        residencies.note(thread, ms(100), 1);
        residencies.note(thread, ms(700), 1);
        residencies.note(thread, ms(710), 2);
        assert_eq!(residencies.cpu(thread, ms(400)), Some(1));
        assert_eq!(residencies.cpu(thread, ms(60)), Some(1));
        assert_eq!(residencies.cpu(thread, ms(40)), None);
        assert_eq!(residencies.cpu(thread, ms(740)), Some(2));
        assert_eq!(residencies.cpu(thread, ms(800)), None);
        // It comes back to the same CPU after it was not seen for long.
        residencies.note(thread, ms(5000), 2);
        assert_eq!(residencies.cpu(thread, ms(3000)), None);
        assert_eq!(residencies.cpu(ThreadId(4), ms(400)), None);
        residencies.tidy(ms(10_705));
        assert_eq!(residencies.cpu(thread, ms(400)), None);
        assert_eq!(residencies.cpu(thread, ms(710)), Some(2));
        residencies.tidy(ms(20_000));
        assert!(residencies.0.is_empty());
    }
}
