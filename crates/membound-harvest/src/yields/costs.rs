//! What a scavenger is taken to have used when it comes to a yield.

use std::collections::BTreeMap;

use membound_types::{HarvestPlan, HarvestSite, YieldKind};
use membound_wire::CREDIT_UNITS_PER_NS;

/// What yields of a file cost.
pub(super) struct Costs {
    bound_ns: f64,
    switch_ns: f64,
    /// By where a function begins: time for each yield that is taken in it, in nanoseconds.
    each_ns: BTreeMap<u64, f64>,
    /// By the same: the longest distance in the function, in nanoseconds.
    distance_ns: BTreeMap<u64, f64>,
}

impl Costs {
    /// Those of the file of `plan` that `is_file` tells by its path. Where no bound was asked for, a yield
    /// costs what passes between two of the plan's loads on average. `start` says where the function of an
    /// address begins.
    pub(super) fn new(
        plan: &HarvestPlan,
        is_file: impl Fn(&str) -> bool,
        start: impl Fn(u64) -> Option<u64>,
    ) -> Self {
        let mut taken: BTreeMap<u64, f64> = BTreeMap::new();
        let sites = plan.sites.iter();
        for site in sites.filter(|site| site.chosen && is_file(&site.module)) {
            if let Some(function) = start(site.offset) {
                let executions = site.executions.unwrap_or_default();
                *taken.entry(function).or_default() += executions / f64::from(site.every.max(1));
            }
        }
        let cpu_ns = plan.totals.cpu_s * 1e9;
        let mut costs = Self {
            bound_ns: plan.options.bound_ns.unwrap_or_else(|| between_ns(plan)),
            switch_ns: plan.options.switch_ns,
            each_ns: BTreeMap::new(),
            distance_ns: BTreeMap::new(),
        };
        for function in plan.functions.iter().filter(|it| is_file(&it.module)) {
            let at = function.offset;
            let taken = taken.get(&at).copied().unwrap_or_default();
            if taken > 0.0 {
                let each_ns = function.time_fraction * cpu_ns / taken;
                costs.each_ns.insert(at, each_ns);
            }
            costs
                .distance_ns
                .extend(function.distance_ns.map(|ns| (at, ns)));
        }
        costs
    }

    /// The cost of a yield at `site` in the function that begins at `function`, in
    /// [`CREDIT_UNITS_PER_NS`].
    ///
    /// Before a load it is a switch and the time that the function runs for each of its yields, what
    /// those hide left out. A yield that bounds the time and is wanted each k-th time stands where
    /// control comes often: each time costs its part of the bound. One that is wanted each time
    /// costs what may have passed since the last one. What is not known costs as much as the
    /// bound, which nothing exceeds.
    pub(super) fn units(&self, site: &HarvestSite, function: u64) -> u16 {
        let known_ns = match site.kind {
            YieldKind::Primary => self.each_ns.get(&function).map(|ns| self.switch_ns + ns),
            YieldKind::Scavenger if site.every > 1 => Some(self.bound_ns / f64::from(site.every)),
            YieldKind::Scavenger => self.distance_ns.get(&function).copied(),
        };
        let ns = known_ns.unwrap_or(self.bound_ns).min(self.bound_ns);
        let units = ns * f64::from(CREDIT_UNITS_PER_NS);
        // Saturates.
        units.round().max(1.0) as u16
    }
}

/// From one load of a plan that yields to the next, on average and without what the yields hide, in
/// nanoseconds.
fn between_ns(plan: &HarvestPlan) -> f64 {
    let sites = plan.sites.iter().filter(|site| site.chosen);
    let executions: f64 = sites.filter_map(|site| site.executions).sum();
    let works_ns = plan.totals.cpu_s * 1e9 * (1.0 - plan.totals.covered_fraction).max(0.0);
    plan.options.switch_ns + works_ns / executions.max(1.0)
}
