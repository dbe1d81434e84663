//! Turns a plan into patches: the bodies for each site in one of its files.
//!
//! In a primary, chosen loads yield to its scavengers. In a scavenger they yield to the next scavenger or
//! back to the primary, and bound yields limit the time until then; each yield has a cost ([`Costs`]) that is
//! subtracted from the credit of the time slice. When a scavenger resumes after a yield, the `fs` base may be
//! the primary's; where that matters, a body restores the scavenger's own ([`base`]).
//!
//! Whether one patch can stand depends on the others, so the result is found by planning repeatedly: refused
//! bodies are dropped or moved, until every body that is needed has a place.

mod base;
mod costs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use membound_rewrite::code::Function;
use membound_rewrite::image::Image;
use membound_rewrite::patch::{
    self, Body, Groundwork, Hooks, Plan, Refusal, Sites, Yield, YieldPart,
};
use membound_types::{HarvestPart, HarvestPlan, HarvestRole, HarvestSite, YieldKind, YieldReason};

use crate::binaries::identity;
use crate::options::{LIKELY, is_lasting, passes_recent};
use base::{Bodies, Flow, Leave};
use costs::Costs;

/// Rounds of planning in which refused bodies that restore a base are moved; after that, the yields of the
/// functions concerned restore it themselves.
const ROUNDS: usize = 24;

/// The patches for a file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Yields {
    /// Sites and bodies, for [`patch::Plan`]. Without sites if the plan has none in the file.
    pub options: patch::Options,
    /// Sorted addresses of the sites at which a context's own `fs` base is restored. If one of them cannot be
    /// installed after all, no yield of its function may be.
    pub bases: Vec<u64>,
    /// Whether the result may differ with [`Jumps::Sure`]: with [`Jumps::Any`] a base is restored by a jump
    /// that may turn out to have no place.
    pub unsure: bool,
    /// Sites of the plan without a yield, sorted by address.
    pub left_out: Vec<LeftOut>,
}

/// A site of a plan that has no yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its address in the file.
    pub address: u64,
    /// Kind of the yield that was planned there.
    pub kind: YieldKind,
    /// Why there is none.
    pub why: Obstacle,
}

/// Why a site has no yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// No instruction of a known function begins there.
    NoInstruction,
    /// No patch can stand there.
    Refused(Refusal),
    /// Its operand is relative to `fs`, whose base belongs to another context there.
    ForeignBase,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInstruction => out.write_str("no such instruction"),
            Self::Refused(refusal) => refusal.fmt(out),
            Self::ForeignBase => out.write_str("foreign-base"),
        }
    }
}

/// Options for patching every file of a harvest: yields, and nothing else. The [`Groundwork`] of a file must
/// be made with these.
#[must_use]
pub fn groundwork_options() -> patch::Options {
    patch::Options {
        body: Body::Yield(Yield::Primary),
        closes_loops: true,
        ..patch::Options::bare(Hooks::LeaveOut)
    }
}

/// Which jumps may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jumps {
    /// Jumps that are certain to find a place, wherever the file is mapped.
    Sure,
    /// Also jumps that may turn out to have no place when the program runs: the caller that installs them
    /// must check that all [`Yields::bases`] are installed.
    Any,
}

/// The yields of `plan` in the file of `image`, which is found by its identity; `without` lists parts of the
/// harvest that are switched off.
#[must_use]
pub fn yields(
    plan: &HarvestPlan,
    image: &Image<'_>,
    groundwork: &Groundwork,
    jumps: Jumps,
    without: &[HarvestPart],
) -> Yields {
    let identity = identity(image);
    let paths: BTreeSet<&str> = plan
        .modules
        .iter()
        .filter(|module| module.identity == identity)
        .map(|module| module.path.as_str())
        .collect();
    let start = |address| {
        let index = image.function_at(address)?;
        Some(image.functions()[index].range.start)
    };
    let costs = (plan.role == HarvestRole::Scavenger)
        .then(|| Costs::new(plan, |path: &str| paths.contains(path), start));
    let chosen = plan
        .sites
        .iter()
        .filter(|site| is_wanted(site, without) && paths.contains(site.module.as_str()));
    let mut work = Work::new(jumps, without);
    for site in chosen {
        let cost = match &costs {
            // A primary has no bound yields: it owns its thread.
            None if site.kind != YieldKind::Primary => continue,
            None => 0,
            Some(costs) => costs.units(site, start(site.offset).unwrap_or_default()),
        };
        work.add(site, cost, image, groundwork);
    }
    work.settle(plan.role, image, groundwork)
}

/// Whether a site of a plan should have a yield.
#[must_use]
pub fn is_wanted(site: &HarvestSite, without: &[HarvestPart]) -> bool {
    let lacks = |part| without.contains(&part);
    let possible = !matches!(
        site.reason,
        YieldReason::NotALoad | YieldReason::NoFile | YieldReason::CannotPatch
    );
    match site.kind {
        YieldKind::Primary => site.chosen || possible && lacks(HarvestPart::Choice),
        YieldKind::Scavenger => site.chosen && !lacks(HarvestPart::Distance),
    }
}

/// Share of the executions of a site's load that miss, if known.
fn likelihood(site: &HarvestSite) -> Option<f64> {
    let share = site.likelihood.as_ref().map(|share| share.value);
    share.filter(|_| site.kind == YieldKind::Primary)
}

/// Parts that yields leave out because of `without`.
fn yield_parts(without: &[HarvestPart]) -> Vec<YieldPart> {
    let parts = [
        (HarvestPart::Liveness, YieldPart::Liveness),
        (HarvestPart::Vectors, YieldPart::UnusedVectors),
        (HarvestPart::Prefetch, YieldPart::Prefetch),
        (HarvestPart::Companions, YieldPart::Companions),
        (HarvestPart::NonTemporal, YieldPart::NonTemporal),
        (HarvestPart::Recency, YieldPart::Recency),
        (HarvestPart::LoopSaves, YieldPart::LoopSaves),
        (HarvestPart::NextContext, YieldPart::NextContext),
        (HarvestPart::Switch, YieldPart::Passing),
    ];
    let lacking = parts.iter().filter(|(part, _)| without.contains(part));
    lacking.map(|(_, part)| *part).collect()
}

/// A yield that the plan wants.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlannedYield {
    kind: YieldKind,
    cost: u16,
    /// Share of the load's executions that miss.
    likelihood: Option<f64>,
    /// Whether the loop around it runs for long per entry.
    lasting: bool,
}

/// A function with yields.
struct Part {
    function: Function,
    flow: Flow,
    bodies: Bodies,
    /// Wanted yields by index of the instruction.
    planned: BTreeMap<usize, PlannedYield>,
}

/// All functions with yields, by their index in the image.
struct Work {
    jumps: Jumps,
    /// See [`Yields::unsure`].
    unsure: bool,
    without: Vec<YieldPart>,
    closes_loops: bool,
    parts: BTreeMap<usize, Part>,
    left_out: Vec<LeftOut>,
}

impl Work {
    fn new(jumps: Jumps, without: &[HarvestPart]) -> Self {
        Self {
            jumps,
            unsure: false,
            without: yield_parts(without),
            closes_loops: !without.contains(&HarvestPart::Loops),
            parts: BTreeMap::new(),
            left_out: Vec::new(),
        }
    }

    fn add(&mut self, site: &HarvestSite, cost: u16, image: &Image<'_>, groundwork: &Groundwork) {
        let address = site.offset;
        let found = image.function_at(address).and_then(|index| {
            let part = self.parts.entry(index).or_insert_with(|| {
                let function = groundwork.function(image, index);
                Part {
                    flow: Flow::of(&function),
                    function,
                    bodies: Bodies::default(),
                    planned: BTreeMap::new(),
                }
            });
            let instructions = &part.function.instructions;
            let at = instructions.binary_search_by_key(&address, iced_x86::Instruction::ip);
            at.ok().map(|at| (part, at))
        });
        let Some((part, at)) = found else {
            self.left_out.push(LeftOut {
                address,
                kind: site.kind,
                why: Obstacle::NoInstruction,
            });
            return;
        };
        let planned = PlannedYield {
            kind: site.kind,
            cost,
            likelihood: likelihood(site),
            lasting: site.lasts_ns.is_some_and(is_lasting),
        };
        // A miss yield also bounds the time, so it replaces a bound yield at the same instruction.
        let present = part.planned.entry(at).or_insert(planned);
        if present.kind == YieldKind::Scavenger {
            *present = planned;
        }
    }

    fn settle(mut self, role: HarvestRole, image: &Image<'_>, groundwork: &Groundwork) -> Yields {
        let mut round = 0;
        loop {
            for part in self.parts.values_mut() {
                if role == HarvestRole::Scavenger {
                    part.give_bases(&mut self.left_out);
                }
            }
            let options = self.options(role);
            let plan = groundwork.plan(image, &options);
            if !self.handle_refusals(&plan, round >= ROUNDS) {
                return self.finish(options);
            }
            round += 1;
        }
    }

    fn options(&self, role: HarvestRole) -> patch::Options {
        let mut options = groundwork_options();
        options.closes_loops = self.closes_loops;
        options.without.clone_from(&self.without);
        if role == HarvestRole::Scavenger {
            options.body = Body::Yield(Yield::Base);
        }
        let mut sites = Vec::new();
        for part in self.parts.values() {
            let address = |index: usize| part.function.instructions[index].ip();
            sites.extend(part.bodies.bases.iter().map(|&index| address(index)));
            for (&index, planned) in &part.planned {
                sites.push(address(index));
                // Lines that caches lose before they are read again need not be put into the outer caches,
                // where they would evict others.
                if planned.likelihood.is_some_and(|share| share >= LIKELY) {
                    options.non_temporal.push(address(index));
                }
                if planned
                    .likelihood
                    .is_some_and(|share| passes_recent(role, share))
                {
                    options.recalled.push(address(index));
                }
                if planned.lasting {
                    options.long_loops.push(address(index));
                }
                let own_base = part.bodies.yields.get(&index).is_some_and(|it| it.own_base);
                let cost = planned.cost;
                let body = match (role, planned.kind) {
                    (HarvestRole::Primary, _) => continue,
                    (_, YieldKind::Primary) => Yield::Miss { cost, own_base },
                    (_, YieldKind::Scavenger) => Yield::Bound { cost, own_base },
                };
                options.bodies.push((address(index), Body::Yield(body)));
            }
        }
        sites.sort_unstable();
        options.bodies.sort_unstable_by_key(|it| it.0);
        options.non_temporal.sort_unstable();
        options.recalled.sort_unstable();
        options.long_loops.sort_unstable();
        options.sites = Sites::Instructions(sites);
        options
    }

    /// Handles the refusals of a plan; returns whether there were any, so that planning must be repeated. At
    /// the `end`, yields restore bases themselves in functions where a body could not.
    fn handle_refusals(&mut self, plan: &Plan, end: bool) -> bool {
        let unsure = plan.unsure_sites();
        let mut changed = false;
        for site in plan.sites() {
            let refusal = site.number.err();
            // A patch that may be missing when the program runs cannot always be relied on.
            let unsure = site
                .number
                .is_ok_and(|number| unsure.binary_search(&number).is_ok());
            changed |= self.handle_site(site.address, refusal, unsure, end);
        }
        changed
    }

    fn handle_site(
        &mut self,
        address: u64,
        refusal: Option<Refusal>,
        unsure: bool,
        end: bool,
    ) -> bool {
        if refusal.is_none() && !unsure {
            return false;
        }
        for part in self.parts.values_mut() {
            let instructions = &part.function.instructions;
            let at = instructions.binary_search_by_key(&address, iced_x86::Instruction::ip);
            let Ok(index) = at else { continue };
            if part.bodies.bases.contains(&index) {
                if refusal.is_none() && self.jumps == Jumps::Any {
                    self.unsure = true;
                    return false;
                }
                part.bodies.forbidden.insert(index);
                part.flow.opaque |= end;
                return true;
            }
            let refused_yield = refusal.and_then(|why| Some((why, part.planned.remove(&index)?)));
            if let Some((why, planned)) = refused_yield {
                self.left_out.push(LeftOut {
                    address,
                    kind: planned.kind,
                    why: Obstacle::Refused(why),
                });
                return true;
            }
        }
        false
    }

    fn finish(mut self, options: patch::Options) -> Yields {
        let mut bases = Vec::new();
        for part in self.parts.values() {
            let address = |&index: &usize| part.function.instructions[index].ip();
            bases.extend(part.bodies.bases.iter().map(address));
        }
        bases.sort_unstable();
        self.left_out.sort_by_key(|it| it.address);
        Yields {
            options,
            bases,
            unsure: self.unsure,
            left_out: self.left_out,
        }
    }
}

impl Part {
    /// Finds where a base must be restored, for the yields that are still wanted.
    fn give_bases(&mut self, left_out: &mut Vec<LeftOut>) {
        let yields = self.planned.iter().map(|(&index, planned)| {
            let leave = Leave {
                always: planned.kind == YieldKind::Primary,
                own_base: false,
            };
            (index, leave)
        });
        self.bodies.yields = yields.collect();
        self.flow.settle(&mut self.bodies);
        for index in std::mem::take(&mut self.bodies.given_up) {
            if let Some(planned) = self.planned.remove(&index) {
                left_out.push(LeftOut {
                    address: self.function.instructions[index].ip(),
                    kind: planned.kind,
                    why: Obstacle::ForeignBase,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
