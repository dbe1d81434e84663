//! Finds where patches can stand in an image, for the code that chooses yields and the plan.

use std::collections::{BTreeMap, BTreeSet};

use membound_rewrite::image::Image;
use membound_rewrite::patch::{Accesses, Body, Groundwork, Sites, Yield};

use crate::yields::groundwork_options;

/// Finds where patches can stand in an image.
pub(crate) struct Patches<'a> {
    image: &'a Image<'a>,
    groundwork: Groundwork,
}

impl<'a> Patches<'a> {
    pub(crate) fn of(image: &'a Image<'a>) -> Self {
        Self {
            image,
            groundwork: Groundwork::of(image, &groundwork_options()),
        }
    }

    /// The loads among `addresses` at which no yield can stand, with the reasons.
    pub(crate) fn loads(&self, addresses: Vec<u64>) -> BTreeMap<u64, String> {
        let mut options = groundwork_options();
        options.accesses = Accesses::Loads;
        let distinct: BTreeSet<u64> = addresses.iter().copied().collect();
        options.sites = Sites::At(addresses);
        let plan = self.groundwork.plan(self.image, &options);
        let mut refused: BTreeMap<u64, String> = distinct
            .into_iter()
            .map(|address| (address, "no such instruction".to_owned()))
            .collect();
        for site in plan.sites() {
            match site.number {
                Ok(_) => refused.remove(&site.address),
                Err(refusal) => refused.insert(site.address, refusal.to_string()),
            };
        }
        refused
    }

    /// The instructions among `addresses` at which a yield without a prefetch can stand, all at the same
    /// time.
    pub(crate) fn instructions(&self, addresses: Vec<u64>) -> BTreeSet<u64> {
        let mut options = groundwork_options();
        // This yield can stand wherever any yield can, and is short: with a longer one at each instruction of
        // a file, the plan would need more tables than it can have.
        options.body = Body::Yield(Yield::Base);
        options.sites = Sites::Instructions(addresses);
        let plan = self.groundwork.plan(self.image, &options);
        plan.sites()
            .filter(|site| site.number.is_ok())
            .map(|site| site.address)
            .collect()
    }
}
