//! From plans to patches: the yields of each file, and the planned figures of the command's yields.

use std::collections::BTreeMap;

use membound_control::YieldFigures;
use membound_harvest::{Jumps, Yields, is_wanted};
use membound_launch::{Choice, Live, Planting, YieldPlace};
use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{Groundwork, Sites};
use membound_types::{HarvestPart, HarvestPlan, HarvestRole, HarvestSite};

use crate::error::{At as _, Error};

/// The patches of a harvest.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub(super) primary: Vec<Planting>,
    pub(super) scavengers: Vec<Planting>,
    /// Sites without a yield: role of the program, path, address, reason.
    pub(super) left_out: Vec<(HarvestRole, String, u64, String)>,
    /// Planned yields of the command.
    pub(super) yields: Vec<PlannedYield>,
}

impl Choices {
    /// The yields of all plans. Where yields may be removed from the command's `live` text, loops are not
    /// patched as a whole, because a thread would stay in the copied loop after its yield was removed from
    /// the text.
    pub(super) fn of(
        plans: &[HarvestPlan],
        without: &[HarvestPart],
        live: Live,
    ) -> Result<Self, Error> {
        let mut choices = Self::default();
        let mut of_command = without.to_vec();
        if live == Live::On {
            of_command.push(HarvestPart::Loops);
        }
        for (plan, path) in by_file(plans, without) {
            let without = match plan.role {
                HarvestRole::Primary => &of_command,
                HarvestRole::Scavenger => without,
            };
            choices.add(&plan, &path, without)?;
        }
        Ok(choices)
    }

    fn add(
        &mut self,
        plan: &HarvestPlan,
        path: &str,
        without: &[HarvestPart],
    ) -> Result<(), Error> {
        let bytes = std::fs::read(path).at(|| format!("cannot read {path}"))?;
        membound_harvest::check(plan, path, &bytes)?;
        let image = Image::parse(&bytes).at(|| path.to_owned())?;
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
                    is_alone: false,
                });
            }
            HarvestRole::Scavenger => {
                // Computed only where needed, since it takes time: if every jump is sure, the result is the
                // same.
                let sure = yields.unsure.then(|| settle(Jumps::Sure));
                self.scavengers.push(Planting {
                    otherwise: sure.map(choice),
                    choice: choice(yields),
                    is_alone: false,
                });
            }
        }
        Ok(())
    }
}

/// A yield of the command, with its figures from the plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedYield {
    /// Path of its file.
    pub(super) module: String,
    pub(super) place: YieldPlace,
    pub(super) figures: YieldFigures,
}

/// The files of all plans, each with its plan. Plans of one file with the same role are merged: loads that
/// miss in one run may be hits in another. Where yields bound time slices, distances are valid only within
/// one plan, so the first plan of the file is kept as it is.
fn by_file(plans: &[HarvestPlan], without: &[HarvestPart]) -> Vec<(HarvestPlan, String)> {
    let mut found: Vec<(HarvestPlan, String)> = Vec::new();
    let mut known = BTreeMap::new();
    for plan in plans {
        for module in &plan.modules {
            let here = |site: &&HarvestSite| site.module == module.path;
            let sites = plan.sites.iter().filter(here);
            if !sites.clone().any(|site| is_wanted(site, without)) {
                continue;
            }
            let key = (plan.role as u8, module.identity.clone());
            let Some(&at) = known.get(&key) else {
                known.insert(key, found.len());
                found.push((plan.clone(), module.path.clone()));
                continue;
            };
            let (first, path): &mut (HarvestPlan, String) = &mut found[at];
            let is_bound = plan.options.bound_ns.or(first.options.bound_ns).is_some();
            if is_bound {
                continue;
            }
            for site in sites {
                let same = |it: &&mut HarvestSite| it.module == *path && it.offset == site.offset;
                match first.sites.iter_mut().find(same) {
                    Some(other) if !other.chosen && site.chosen => *other = site.clone(),
                    Some(_) => {}
                    None => first.sites.push(site.clone()),
                }
            }
        }
    }
    found
}

/// The planned figures of the sites in one file.
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
        figures: YieldFigures {
            gain: site.predicted_gain,
            hit_cost: site.hit_cost,
            rate: site
                .executions
                .map(|executions| executions / plan.totals.cpu_s)
                .filter(|rate| rate.is_finite()),
        },
    })
}

/// The yield of the host program, which stands in for a command in harvests without one.
pub(super) fn host_yield() -> Result<Planting, Error> {
    let unreadable = || "membound cannot read itself".to_owned();
    let bytes = membound_launch::own_file().at(unreadable)?;
    let file = Image::identify(&bytes).at(unreadable)?;
    let load = membound_launch::host_load();
    let load =
        load.ok_or_else(|| Error::Refused("membound does not find itself in memory".to_owned()))?;
    let mut options = membound_harvest::groundwork_options();
    options.sites = Sites::Instructions(vec![load]);
    Ok(Planting {
        choice: Choice { file, options },
        otherwise: None,
        // Its text is hand-written, and nothing jumps into it.
        is_alone: true,
    })
}

#[cfg(test)]
mod tests {
    use membound_rewrite::patch::Placement;
    use membound_types::YieldKind;

    use super::*;

    /// A plan of this program with yields before these instructions.
    fn plan(offsets: &[u64], bound_ns: Option<f64>) -> HarvestPlan {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let path = path.display().to_string();
        let role = HarvestRole::Scavenger;
        let mut plan = membound_harvest::by_hand(&path, &bytes, role, &[]).unwrap();
        plan.options.bound_ns = bound_ns;
        let site = |offset: &u64| HarvestSite::chosen(path.clone(), *offset, YieldKind::Primary, 1);
        plan.sites = offsets.iter().map(site).collect();
        plan
    }

    #[test]
    fn the_host_s_yield_needs_no_other_function_of_its_program() {
        let choice = host_yield().unwrap().choice;
        let Sites::Instructions(loads) = &choice.options.sites else {
            panic!("{:?}", choice.options.sites);
        };
        let bytes = membound_launch::own_file().unwrap();
        let image = Image::parse_around(&bytes, loads).unwrap();
        assert_eq!(image.identity(), &choice.file);
        assert!((1..=3).contains(&image.functions().len()));
        let plan = Groundwork::of(&image, &choice.options).plan(&image, &choice.options);
        let sites = plan.sites().map(|site| (site.address, site.number.is_ok()));
        assert_eq!(sites.collect::<Vec<_>>(), [(loads[0], true)]);
        let placement = Placement {
            bias: 0x5555_5555_0000,
            area: 0x5555_6000_0000 + image.span().end.next_multiple_of(0x1000),
        };
        let text = plan.place(&placement).unwrap().edits;
        let function = &image.functions()[image.function_at(loads[0]).unwrap()];
        let is_inside = |address: u64| function.range.contains(&(address - placement.bias));
        assert!(!text.is_empty() && text.iter().all(|edit| is_inside(edit.address)));
    }

    #[test]
    fn plans_of_one_file_with_other_arguments_are_put_together() {
        let offsets = |plans: &[HarvestPlan]| {
            let files = by_file(plans, &[]);
            assert_eq!(files.len(), 1);
            let sites = files[0].0.sites.iter();
            sites.map(|site| site.offset).collect::<Vec<_>>()
        };
        assert_eq!(
            offsets(&[plan(&[16, 32], None), plan(&[32, 64], None)]),
            [16, 32, 64]
        );
        // Distances that hold for one plan's yields do not for those of two.
        let bound = [plan(&[16], Some(200.0)), plan(&[64], Some(200.0))];
        assert_eq!(offsets(&bound), [16]);
    }
}
