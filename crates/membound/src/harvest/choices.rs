//! From plans to what is patched where: the yields of each file, and what a plan says of those of the
//! command.

use std::collections::BTreeMap;

use anyhow::Context;
use membound_harvest::{Jumps, Yields, is_wanted};
use membound_launch::{Choice, Live, Planting, YieldPlace};
use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{Groundwork, Sites};
use membound_types::{HarvestPart, HarvestPlan, HarvestRole};

use super::worth::PlannedYield;

/// What is patched where.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub(super) primary: Vec<Planting>,
    pub(super) scavengers: Vec<Planting>,
    /// Sites without a yield: whose, path, address, reason.
    pub(super) left_out: Vec<(HarvestRole, String, u64, String)>,
    /// Yields of the command.
    pub(super) yields: Vec<PlannedYield>,
}

impl Choices {
    /// The yields of all plans. Where they may be taken out of the command's `live` text, no loop of it
    /// is to stay where its text does not count.
    pub(super) fn of(
        plans: &[HarvestPlan],
        without: &[HarvestPart],
        live: Live,
    ) -> anyhow::Result<Self> {
        let mut choices = Self::default();
        let mut of_command = without.to_vec();
        if live == Live::On {
            of_command.push(HarvestPart::Loops);
        }
        // What two plans say of one file, the first one has: they are of the same program.
        let mut known = BTreeMap::new();
        for plan in plans {
            let without = match plan.role {
                HarvestRole::Primary => &of_command,
                HarvestRole::Scavenger => without,
            };
            for module in &plan.modules {
                let key = (plan.role as u8, module.identity.clone());
                let planned = plan
                    .sites
                    .iter()
                    .any(|site| is_wanted(site, without) && site.module == module.path);
                if !planned || known.insert(key, ()).is_some() {
                    continue;
                }
                choices.add(plan, &module.path, without)?;
            }
        }
        Ok(choices)
    }

    fn add(
        &mut self,
        plan: &HarvestPlan,
        path: &str,
        without: &[HarvestPart],
    ) -> anyhow::Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
        membound_harvest::check(plan, path, &bytes)?;
        let image = Image::parse(&bytes).with_context(|| path.to_owned())?;
        let groundwork = Groundwork::of(&image, &membound_harvest::groundwork_options());
        let settle = |jumps| membound_harvest::yields(plan, &image, &groundwork, jumps, without);
        let yields = settle(Jumps::Any);
        let left_out = yields.left_out.iter().map(|left| {
            (
                plan.role,
                path.to_owned(),
                left.address,
                left.why.to_string(),
            )
        });
        self.left_out.extend(left_out);
        if matches!(&yields.options.sites, Sites::Instructions(sites) if sites.is_empty()) {
            return Ok(());
        }
        let choice = |yields: Yields| Choice {
            file: image.identity().clone(),
            options: yields.options,
        };
        match plan.role {
            HarvestRole::Primary => {
                if let Sites::Instructions(stand) = &yields.options.sites {
                    let planned = planned(plan, path, image.identity());
                    let stands = |it: &PlannedYield| stand.contains(&it.place.address);
                    self.yields.extend(planned.filter(stands));
                }
                self.primary.push(Planting {
                    choice: choice(yields),
                    otherwise: None,
                });
            }
            HarvestRole::Scavenger => {
                // It takes its time, and where every jump is sure comes to the same.
                let sure = yields.unsure.then(|| settle(Jumps::Sure));
                self.scavengers.push(Planting {
                    otherwise: sure.map(choice),
                    choice: choice(yields),
                });
            }
        }
        Ok(())
    }
}

/// What a plan says of the sites in one of its files.
fn planned<'a>(
    plan: &'a HarvestPlan,
    path: &'a str,
    file: &'a Identity,
) -> impl Iterator<Item = PlannedYield> + 'a {
    let sites = plan.sites.iter();
    let of_file = sites.filter(move |site| site.module == path);
    of_file.map(|site| PlannedYield {
        module: path.to_owned(),
        place: YieldPlace {
            file: file.clone(),
            address: site.offset,
        },
        gain: site.predicted_gain,
        hit_cost: site.hit_cost,
        rate: site
            .executions
            .map(|executions| executions / plan.totals.cpu_s)
            .filter(|rate| rate.is_finite()),
    })
}

/// The yield of a program that does nothing else.
pub(super) fn host_yield() -> anyhow::Result<Planting> {
    let bytes = membound_launch::own_file().context("membound cannot read itself")?;
    let image = Image::parse(&bytes).context("membound cannot read itself")?;
    let load = membound_launch::host_load().context("membound does not find itself in memory")?;
    let mut options = membound_harvest::groundwork_options();
    options.sites = Sites::Instructions(vec![load]);
    Ok(Planting {
        choice: Choice {
            file: image.identity().clone(),
            options,
        },
        otherwise: None,
    })
}
