//! Decisions of an earlier plan of the same files.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::{HarvestPlan, YieldKind, YieldReason};

/// An earlier decision about a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlierDecision {
    /// Whether its figures passed all thresholds.
    pub pays: bool,
    /// Whether it was chosen; a load that passed the thresholds may still have exceeded the overhead.
    pub chosen: bool,
}

/// Earlier decisions by file and address.
#[derive(Debug, Default)]
pub(crate) struct EarlierPlan<'a> {
    /// Key: identity of the file, and address in it.
    by_place: BTreeMap<(&'a str, u64), EarlierDecision>,
}

impl<'a> EarlierPlan<'a> {
    /// The decisions of `plan`; loads without figures were not decided.
    pub(crate) fn of(plan: &'a HarvestPlan) -> Self {
        let identities: BTreeMap<&str, &str> = plan
            .modules
            .iter()
            .map(|module| (module.path.as_str(), module.identity.as_str()))
            .collect();
        let by_figures: BTreeSet<&str> = [
            YieldReason::Pays,
            YieldReason::LittleStall,
            YieldReason::Hits,
            YieldReason::ShortStall,
            YieldReason::Overhead,
        ]
        .map(YieldReason::name)
        .into();
        let loads = plan.sites.iter().filter(|site| {
            site.kind == YieldKind::Primary && by_figures.contains(site.reason.name())
        });
        let by_place = loads.filter_map(|site| {
            let identity = identities.get(site.module.as_str())?;
            let earlier = EarlierDecision {
                pays: site.chosen || site.reason == YieldReason::Overhead,
                chosen: site.chosen,
            };
            Some(((*identity, site.offset), earlier))
        });
        Self {
            by_place: by_place.collect(),
        }
    }

    /// The earlier decision about the load at `address` in the file of this identity.
    pub(crate) fn at(&self, identity: &str, address: u64) -> Option<EarlierDecision> {
        self.by_place.get(&(identity, address)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{plan_for, site};

    #[test]
    fn decisions_are_found_by_file_identity() {
        let mut plan = plan_for("/bin/store", "build-id:01".to_owned());
        plan.sites = vec![
            site("/bin/store", 16, YieldKind::Primary, 1),
            site("/bin/store", 32, YieldKind::Primary, 1),
            site("/bin/store", 48, YieldKind::Primary, 1),
            site("/bin/store", 64, YieldKind::Scavenger, 1),
            site("/bin/store", 80, YieldKind::Primary, 1),
        ];
        for (index, reason) in [
            (1, YieldReason::Overhead),
            (2, YieldReason::Hits),
            (4, YieldReason::NotTimed),
        ] {
            plan.sites[index].chosen = false;
            plan.sites[index].reason = reason;
        }
        let decided = EarlierPlan::of(&plan);
        let earlier = |pays, chosen| Some(EarlierDecision { pays, chosen });
        let at = |address| decided.at("build-id:01", address);
        assert_eq!(at(16), earlier(true, true));
        assert_eq!(at(32), earlier(true, false));
        assert_eq!(at(48), earlier(false, false));
        assert_eq!((at(64), at(80), at(96)), (None, None, None));
        assert_eq!(decided.at("build-id:02", 16), None);
    }
}
