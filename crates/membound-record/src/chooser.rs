//! Chooses the accesses worth a patch: those at which time was recently lost.

use membound_run::SiteId;
use rustc_hash::FxHashMap;

/// Time after which a sample's weight has halved.
const HALF_LIFE_NS: f64 = 1e9;
/// Share of the time lost at memory that the chosen sites have together.
const TARGET_LOST_TIME_SHARE: f64 = 0.95;
/// Share of it below which a site is not chosen.
const MIN_SITE_SHARE: f64 = 0.003;
/// Sites chosen at most.
const MAX_SITES: usize = 256;
/// Share of the sampled time at block beginnings with no access to wait for, above which timer interrupts are
/// assumed to be put off until a block begins, as emulators do. Processors take interrupts after any
/// instruction.
const PUT_OFF: f64 = 0.8;
/// Weight in nanoseconds below which a site is forgotten.
const COLD_NS: f64 = 1e3;

/// Sums the time that samples waited for each site, with exponential decay.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    heat: FxHashMap<SiteId, f64>,
    /// The same without decay.
    waited_ns: FxHashMap<SiteId, f64>,
    /// The same for accesses in the blocks before sampled block beginnings.
    before: FxHashMap<SiteId, f64>,
    /// Decayed time of samples at block beginnings.
    before_ns: f64,
    /// Decayed time of all samples of the program's own code.
    all_ns: f64,
    cooled_ns: u64,
}

impl Chooser {
    /// Adds the part of a sample that waited for `site`.
    pub(crate) fn add(&mut self, site: SiteId, weight_ns: f64) {
        *self.heat.entry(site).or_default() += weight_ns;
        *self.waited_ns.entry(site).or_default() += weight_ns;
    }

    /// CPU time that samples waited for each site in the whole recording.
    pub(crate) const fn waited_ns(&self) -> &FxHashMap<SiteId, f64> {
        &self.waited_ns
    }

    /// Adds a sample of the program's own code.
    pub(crate) fn sampled(&mut self, weight_ns: f64) {
        self.all_ns += weight_ns;
    }

    /// Adds a sample at a block's beginning, which shows no access; `sites` are those of the blocks before
    /// it.
    pub(crate) fn add_before(&mut self, sites: &[SiteId], weight_ns: f64) {
        self.before_ns += weight_ns;
        for site in sites {
            *self.before.entry(*site).or_default() += weight_ns / sites.len() as f64;
        }
    }

    /// True if interrupts are put off until a block begins, so that samples only show blocks.
    pub(crate) fn puts_off(&self) -> bool {
        self.before_ns > PUT_OFF * self.all_ns
    }

    /// Applies the decay since the last call.
    pub(crate) fn cool(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.cooled_ns) as f64;
        self.cooled_ns = now_ns;
        let factor = (-passed / HALF_LIFE_NS).exp2();
        for heat in [&mut self.heat, &mut self.before] {
            heat.retain(|_, heat| {
                *heat *= factor;
                *heat > COLD_NS
            });
        }
        self.before_ns *= factor;
        self.all_ns *= factor;
    }

    /// The sites that have nearly all of the lost time, hottest first, with their shares. Where interrupts
    /// are put off, all accesses of a hot block count alike.
    pub(crate) fn hot(&self) -> Vec<(SiteId, f64)> {
        let mut all = self.heat.clone();
        if self.puts_off() {
            for (site, heat) in &self.before {
                *all.entry(*site).or_default() += heat;
            }
        }
        let total: f64 = all.values().sum();
        let mut sites: Vec<(SiteId, f64)> = all
            .iter()
            .map(|(site, heat)| (*site, heat / total))
            .collect();
        sites.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut sum = 0.0;
        let wanted = sites.iter().take_while(|(_, share)| {
            let more = sum < TARGET_LOST_TIME_SHARE;
            sum += share;
            more && *share >= MIN_SITE_SHARE
        });
        let count = wanted.count().min(MAX_SITES);
        sites.truncate(count);
        sites
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_sites_are_chosen_until_they_hold_enough() {
        let mut chooser = Chooser::default();
        assert!(chooser.hot().is_empty());
        for (site, heat) in [(0, 60.0), (1, 36.0), (2, 3.0), (3, 1.0)] {
            chooser.add(SiteId(site), heat * 1e6);
        }
        let hot: Vec<u32> = chooser.hot().iter().map(|(site, _)| site.0).collect();
        assert_eq!(hot, [0, 1]);
        // Very many equal sites are all too cold.
        let mut chooser = Chooser::default();
        for site in 0..1000 {
            chooser.add(SiteId(site), 1e6);
        }
        assert!(chooser.hot().is_empty());
    }

    #[test]
    fn accesses_of_the_block_before_count_where_nearly_all_samples_lie_at_beginnings() {
        let mut chooser = Chooser::default();
        for _ in 0..70 {
            chooser.sampled(1e6);
            chooser.add_before(&[SiteId(5), SiteId(6)], 1e6);
        }
        for _ in 0..30 {
            chooser.sampled(1e6);
            chooser.add(SiteId(1), 1e6);
        }
        // On every processor some samples lie after a loop's branch.
        assert!(!chooser.puts_off());
        assert_eq!(chooser.hot(), [(SiteId(1), 1.0)]);
        for _ in 0..300 {
            chooser.sampled(1e6);
            chooser.add_before(&[SiteId(5), SiteId(6)], 1e6);
        }
        assert!(chooser.puts_off());
        let hot: Vec<u32> = chooser.hot().iter().map(|(site, _)| site.0).collect();
        assert_eq!(hot, [5, 6, 1]);
        chooser.cool(100_000_000_000);
        assert!(chooser.before.is_empty());
    }

    #[test]
    fn what_was_hot_long_ago_gives_way() {
        let mut chooser = Chooser::default();
        chooser.cool(0);
        chooser.add(SiteId(0), 100e6);
        chooser.cool(20_000_000_000);
        chooser.add(SiteId(1), 10e6);
        assert_eq!(chooser.hot()[0].0, SiteId(1));
        chooser.cool(200_000_000_000);
        assert!(chooser.heat.is_empty());
    }
}
