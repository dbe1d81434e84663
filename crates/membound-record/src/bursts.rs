//! Assembles accesses that were recorded without gaps into stretches, one thread at a time.

use membound_run::{Burst, SiteId, ThreadId};
use rustc_hash::FxHashMap;

/// Accesses below which a stretch is dropped.
const MIN_STRETCH_ACCESSES: usize = 64;
/// Accesses after which a stretch ends.
const MAX_STRETCH_ACCESSES: usize = 1 << 20;
/// Distinct sites after which a stretch ends: their numbers have 16 bits.
const MAX_SITES: usize = 60_000;
/// A stretch without a new access for this long has ended.
const OVER_NS: u64 = 500_000_000;

/// The stretches that are being assembled.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// Times at which windows were opened that record everything.
    windows: Vec<u64>,
    open: FxHashMap<ThreadId, Stretch>,
}

#[derive(Debug)]
struct Stretch {
    burst: Burst,
    numbers: FxHashMap<SiteId, u16>,
}

/// A recorded access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    pub(crate) t_ns: u64,
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) address: u64,
    pub(crate) store: bool,
    /// True if accesses before it are missing.
    pub(crate) after_gap: bool,
}

impl Collector {
    /// Notes that a window opened at about `since_ns`; accesses before and after it are different stretches.
    pub(crate) fn window(&mut self, since_ns: u64) {
        self.windows.push(since_ns);
    }

    /// Adds an access; each thread's accesses come in time order.
    pub(crate) fn add(&mut self, access: Recorded, out: &mut Vec<Burst>) {
        let over = self.open.get(&access.thread).is_some_and(|it| {
            let last = it.burst.to_ns;
            let another = |since: &u64| (last + 1..=access.t_ns).contains(since);
            it.burst.accesses.len() >= MAX_STRETCH_ACCESSES
                || it.numbers.len() > MAX_SITES
                || self.windows.iter().any(another)
        });
        if access.after_gap || over {
            self.end_of(access.thread, out);
        }
        let stretch = self.open.entry(access.thread).or_insert_with(|| Stretch {
            burst: Burst {
                from_ns: access.t_ns,
                to_ns: access.t_ns,
                thread: access.thread,
                sites: Vec::new(),
                accesses: Vec::new(),
            },
            numbers: FxHashMap::default(),
        });
        let next = u16::try_from(stretch.numbers.len()).unwrap_or(u16::MAX);
        let number = *stretch.numbers.entry(access.site).or_insert(next);
        if usize::from(number) == stretch.burst.sites.len() {
            stretch.burst.sites.push(access.site);
        }
        stretch.burst.to_ns = access.t_ns;
        stretch
            .burst
            .accesses
            .push((number, access.address, access.store));
    }

    fn end_of(&mut self, thread: ThreadId, out: &mut Vec<Burst>) {
        if let Some(stretch) = self.open.remove(&thread)
            && stretch.burst.accesses.len() >= MIN_STRETCH_ACCESSES
        {
            out.push(stretch.burst);
        }
    }

    /// Ends stretches to which nothing was added for long.
    pub(crate) fn settle(&mut self, horizon_ns: u64, out: &mut Vec<Burst>) {
        let old = |last: u64| last.saturating_add(OVER_NS) < horizon_ns;
        let open = self.open.iter().filter(|(_, it)| old(it.burst.to_ns));
        let over: Vec<ThreadId> = open.map(|(thread, _)| *thread).collect();
        for thread in over {
            self.end_of(thread, out);
        }
        let first = self.open.values().map(|it| it.burst.to_ns).min();
        self.windows
            .retain(|since| first.is_some_and(|first| *since > first) || !old(*since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(t_ns: u64, site: u32, after_gap: bool) -> Recorded {
        Recorded {
            t_ns,
            thread: ThreadId(1),
            site: SiteId(site),
            address: t_ns * 8,
            store: site == 7,
            after_gap,
        }
    }

    #[test]
    fn a_gap_ends_a_stretch_and_short_ones_are_left_out() {
        let mut collector = Collector::default();
        let mut out = Vec::new();
        collector.window(100);
        for t_ns in 100..200 {
            let site = if t_ns % 2 == 0 { 3 } else { 7 };
            collector.add(access(t_ns, site, false), &mut out);
        }
        collector.add(access(200, 3, true), &mut out);
        assert_eq!(out.len(), 1);
        let burst = &out[0];
        assert_eq!(
            (burst.from_ns, burst.to_ns, burst.accesses.len()),
            (100, 199, 100)
        );
        assert_eq!(burst.sites, [SiteId(3), SiteId(7)]);
        assert_eq!(burst.accesses[..2], [(0, 800, false), (1, 808, true)]);
        for t_ns in 201..300 {
            collector.add(access(t_ns, 3, false), &mut out);
        }
        // Between two windows the thread may have done anything.
        collector.window(310);
        collector.add(access(320, 3, false), &mut out);
        assert_eq!((out.len(), out[1].accesses.len()), (2, 100));
        collector.settle(OVER_NS, &mut out);
        assert_eq!(collector.open.len(), 1, "it may go on");
        collector.settle(u64::MAX, &mut out);
        assert_eq!(out.len(), 2, "a stretch of one says nothing");
        assert!(collector.open.is_empty() && collector.windows.is_empty());
    }
}
