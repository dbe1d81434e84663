//! The time that is charged to a scavenger at each of its yields.

use std::collections::BTreeMap;

use membound_types::{HarvestPlan, HarvestSite, YieldKind};
use membound_wire::CREDIT_UNITS_PER_NS;

/// Costs of the yields of a file.
pub(super) struct Costs {
    bound_ns: f64,
    switch_ns: f64,
    /// Time per taken yield of each function, in nanoseconds, by the function's first address.
    each_ns: BTreeMap<u64, f64>,
    /// Longest distance in each function, in nanoseconds, by the function's first address.
    distance_ns: BTreeMap<u64, f64>,
}

impl Costs {
    /// Costs in the file of `plan` whose paths `is_file` accepts. Without a bound, the mean time between two
    /// of the plan's loads takes its place. `start` returns the first address of the function that contains
    /// an address.
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

    /// The cost of a yield at `site` in the function that begins at `function`, in [`CREDIT_UNITS_PER_NS`].
    ///
    /// A miss yield costs a switch and the function's time per taken yield, without the stalls that those
    /// hide. A bound yield that is taken at every k-th execution is executed often: each execution costs a
    /// k-th of the bound. A bound yield that is taken each time costs the longest time that may have passed
    /// since the last one. An unknown cost is the bound, which no cost exceeds.
    pub(super) fn units(&self, site: &HarvestSite, function: u64) -> u16 {
        let cost_ns = match site.kind {
            YieldKind::Primary => self.each_ns.get(&function).map(|ns| self.switch_ns + ns),
            YieldKind::Scavenger if site.every > 1 => Some(self.bound_ns / f64::from(site.every)),
            YieldKind::Scavenger => self.distance_ns.get(&function).copied(),
        };
        let ns = cost_ns.unwrap_or(self.bound_ns).min(self.bound_ns);
        let units = ns * f64::from(CREDIT_UNITS_PER_NS);
        // The cast saturates.
        units.round().max(1.0) as u16
    }
}

/// Mean time between two executions of a plan's yielding loads, without the stalls that the yields hide, in
/// nanoseconds.
fn between_ns(plan: &HarvestPlan) -> f64 {
    let sites = plan.sites.iter().filter(|site| site.chosen);
    let executions: f64 = sites.filter_map(|site| site.executions).sum();
    let works_ns = plan.totals.cpu_s * 1e9 * (1.0 - plan.totals.covered_fraction).max(0.0);
    plan.options.switch_ns + works_ns / executions.max(1.0)
}
