//! From a plan to patches: which bodies stand where in one of its files.
//!
//! In a primary, chosen loads yield to its scavengers. In a scavenger they yield to the next one or
//! back, and further yields bound the time until then; each has a cost ([`Costs`]) that is
//! counted down. A scavenger that has yielded may find the primary's base of `fs`: where that
//! matters it gets its own again ([`base`]).
//!
//! Where patches can stand depends on each other, so it is settled by planning: what is refused is
//! given up or put elsewhere, and planned again, until everything that must stand does.

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

/// Rounds of planning in which bodies that give a base back are put elsewhere when they are
/// refused; after that, yields of the functions that are still open give it back themselves.
const ROUNDS: usize = 24;

/// What is to be patched in a file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Yields {
    /// Sites and bodies, for [`patch::Plan`]. No site, when the plan has none in the file.
    pub options: patch::Options,
    /// Those of the sites at which a context gets its own base of `fs` again, sorted. Where one of
    /// them cannot be planted after all, no yield of its function may be.
    pub bases: Vec<u64>,
    /// Whether there may be others with [`Jumps::Sure`]: with [`Jumps::Any`] a base was to be given back
    /// by a jump that may turn out to have no place.
    pub unsure: bool,
    /// Sites of the plan at which there is no yield, sorted by address.
    pub left_out: Vec<LeftOut>,
}

/// A site of a plan at which there is no yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its address in the file.
    pub address: u64,
    /// What a yield there was for.
    pub kind: YieldKind,
    /// Why there is none.
    pub why: Obstacle,
}

/// Why there is no yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// No instruction of a function begins there.
    NoInstruction,
    /// No patch can stand there.
    Refused(Refusal),
    /// Its operand lies at `fs`, whose base is another's there.
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

/// What is put into every file: yields, and nothing that is not asked for. The [`Groundwork`] of a
/// file is to be made with these.
#[must_use]
pub fn groundwork_options() -> patch::Options {
    patch::Options {
        body: Body::Yield(Yield::Primary),
        closes_loops: true,
        ..patch::Options::bare(Hooks::LeaveOut)
    }
}

/// Which jumps are relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jumps {
    /// Those that are certain to find their place, wherever the file is mapped.
    Sure,
    /// Also those that may turn out to have none when the program runs: whoever plants them is to
    /// look whether all [`Yields::bases`] are there.
    Any,
}

/// The yields of `plan` in the file that `image` is, by its identity; `without` some of what makes
/// them good.
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
            // Others' yields are of no use to one who owns its thread.
            None if site.kind != YieldKind::Primary => continue,
            None => 0,
            Some(costs) => costs.units(site, start(site.offset).unwrap_or_default()),
        };
        work.add(site, cost, image, groundwork);
    }
    work.settle(plan.role, image, groundwork)
}

/// Whether there is to be a yield at `site` of a plan.
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

/// Share of the executions of the load that `site` is at that miss, where that is known.
fn likelihood(site: &HarvestSite) -> Option<f64> {
    let known = site.likelihood.as_ref().map(|share| share.value);
    known.filter(|_| site.kind == YieldKind::Primary)
}

/// What yields themselves do without.
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

/// A yield that is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wanted {
    kind: YieldKind,
    cost: u16,
    /// Share of the executions that miss, of a load.
    likelihood: Option<f64>,
    /// Whether the loop around it runs for long.
    lasting: bool,
}

/// A function with yields.
struct Part {
    function: Function,
    flow: Flow,
    bodies: Bodies,
    /// By instruction.
    wanted: BTreeMap<usize, Wanted>,
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
                    wanted: BTreeMap::new(),
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
        let wanted = Wanted {
            kind: site.kind,
            cost,
            likelihood: likelihood(site),
            lasting: site.lasts_ns.is_some_and(is_lasting),
        };
        // A load that yields bounds the time too.
        let known = part.wanted.entry(at).or_insert(wanted);
        if known.kind == YieldKind::Scavenger {
            *known = wanted;
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
            if !self.learn(&plan, round >= ROUNDS) {
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
            for (&index, wanted) in &part.wanted {
                sites.push(address(index));
                // What caches have lost when it is read again need not be put into the outer ones, where it
                // takes the place of others.
                if wanted.likelihood.is_some_and(|share| share >= LIKELY) {
                    options.non_temporal.push(address(index));
                }
                if wanted
                    .likelihood
                    .is_some_and(|share| passes_recent(role, share))
                {
                    options.recalled.push(address(index));
                }
                if wanted.lasting {
                    options.lasting.push(address(index));
                }
                let own_base = part.bodies.yields.get(&index).is_some_and(|it| it.own_base);
                let cost = wanted.cost;
                let body = match (role, wanted.kind) {
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
        options.lasting.sort_unstable();
        options.sites = Sites::Instructions(sites);
        options
    }

    /// Takes in what a plan has refused; whether anything was, so that it is to be planned again.
    /// At the `end`, functions in which a base could not be given back do without.
    fn learn(&mut self, plan: &Plan, end: bool) -> bool {
        let unsure = plan.unsure_sites();
        let mut changed = false;
        for site in plan.sites() {
            let refusal = site.number.err();
            // What is perhaps not there when the program runs cannot always be relied on.
            let unsure = site
                .number
                .is_ok_and(|number| unsure.binary_search(&number).is_ok());
            changed |= self.take(site.address, refusal, unsure, end);
        }
        changed
    }

    fn take(&mut self, address: u64, refusal: Option<Refusal>, unsure: bool, end: bool) -> bool {
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
            let given_up = refusal.and_then(|why| Some((why, part.wanted.remove(&index)?)));
            if let Some((why, wanted)) = given_up {
                self.left_out.push(LeftOut {
                    address,
                    kind: wanted.kind,
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
    /// Finds where a base must be given back, for the yields that are wanted now.
    fn give_bases(&mut self, left_out: &mut Vec<LeftOut>) {
        let yields = self.wanted.iter().map(|(&index, wanted)| {
            let leave = Leave {
                always: wanted.kind == YieldKind::Primary,
                own_base: false,
            };
            (index, leave)
        });
        self.bodies.yields = yields.collect();
        self.flow.settle(&mut self.bodies);
        for index in std::mem::take(&mut self.bodies.given_up) {
            if let Some(wanted) = self.wanted.remove(&index) {
                left_out.push(LeftOut {
                    address: self.function.instructions[index].ip(),
                    kind: wanted.kind,
                    why: Obstacle::ForeignBase,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
