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
const MOST: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Stay {
    cpu: u16,
    first_ns: u64,
    last_ns: u64,
}

impl Stay {
    const fn distance_ns(&self, t_ns: u64) -> u64 {
        let before = self.first_ns.saturating_sub(t_ns);
        let after = t_ns.saturating_sub(self.last_ns);
        before + after
    }
}

/// The latest residencies of all threads, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Stays(FxHashMap<ThreadId, Vec<Stay>>);

impl Stays {
    /// Notes that a sample found a thread on a CPU.
    pub(crate) fn seen(&mut self, thread: ThreadId, t_ns: u64, cpu: u16) {
        let stays = self.0.entry(thread).or_default();
        if let Some(stay) = stays.last_mut()
            && stay.cpu == cpu
            && stay.distance_ns(t_ns) <= FAR_NS
        {
            stay.first_ns = stay.first_ns.min(t_ns);
            stay.last_ns = stay.last_ns.max(t_ns);
            return;
        }
        if stays.len() == MOST {
            stays.remove(0);
        }
        stays.push(Stay {
            cpu,
            first_ns: t_ns,
            last_ns: t_ns,
        });
    }

    /// The CPU that a thread was on; `None` when no sample is near.
    pub(crate) fn cpu(&self, thread: ThreadId, t_ns: u64) -> Option<u16> {
        let stays = self.0.get(&thread)?;
        let nearest = stays.iter().min_by_key(|stay| stay.distance_ns(t_ns))?;
        (nearest.distance_ns(t_ns) < NEAR_NS).then_some(nearest.cpu)
    }

    /// Forgets residencies that ended long ago.
    pub(crate) fn tidy(&mut self, now_ns: u64) {
        self.0.retain(|_, stays| {
            stays.retain(|stay| now_ns.saturating_sub(stay.last_ns) < OLD_NS);
            !stays.is_empty()
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
        let mut stays = Stays::default();
        assert_eq!(stays.cpu(thread, 0), None);
        stays.seen(thread, ms(100), 1);
        stays.seen(thread, ms(700), 1);
        stays.seen(thread, ms(710), 2);
        assert_eq!(stays.cpu(thread, ms(400)), Some(1));
        assert_eq!(stays.cpu(thread, ms(60)), Some(1));
        assert_eq!(stays.cpu(thread, ms(40)), None);
        assert_eq!(stays.cpu(thread, ms(740)), Some(2));
        assert_eq!(stays.cpu(thread, ms(800)), None);
        // It comes back to the same CPU after it was not seen for long.
        stays.seen(thread, ms(5000), 2);
        assert_eq!(stays.cpu(thread, ms(3000)), None);
        assert_eq!(stays.cpu(ThreadId(4), ms(400)), None);
        stays.tidy(ms(10_705));
        assert_eq!(stays.cpu(thread, ms(400)), None);
        assert_eq!(stays.cpu(thread, ms(710)), Some(2));
        stays.tidy(ms(20_000));
        assert!(stays.0.is_empty());
    }
}
