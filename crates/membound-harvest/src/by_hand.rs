//! Plans with given sites, made without a profile: for tests of the runtime, which need yields everywhere,
//! not only where they pay.

use membound_rewrite::image::Image;
use membound_rewrite::patch::{Accesses, Body, Plan, Sites, Yield};
use membound_types::{
    DistanceRule, HarvestModule, HarvestOptions, HarvestPlan, HarvestRole, HarvestSite,
    HarvestTotals, Kind, SCHEMA_VERSION, YieldKind,
};

use crate::Error;
use crate::binaries::identity;
use crate::yields::groundwork_options;

/// Bound on the time between two yields of a scavenger, in nanoseconds.
const BOUND_NS: f64 = 200.0;
/// A scavenger's bound yield is taken at every this many executions.
const EVERY: u32 = 10;

fn image<'a>(path: &str, bytes: &'a [u8]) -> Result<Image<'a>, Error> {
    Image::parse(bytes).map_err(|error| Error::Image {
        path: path.to_owned(),
        error,
    })
}

/// A plan for the file at `path` with these `bytes`, in which all of `sites` are chosen. A site is an address
/// in the file and the kind of its yield; sites are sorted by address.
///
/// # Errors
/// If the file is no binary.
pub fn by_hand(
    path: &str,
    bytes: &[u8],
    role: HarvestRole,
    sites: &[(u64, YieldKind)],
) -> Result<HarvestPlan, Error> {
    let identity = identity(&image(path, bytes)?);
    let mut plan = without_sites(path, identity, role);
    let chosen = sites.iter().map(|&(offset, kind)| {
        let every = match kind {
            YieldKind::Primary => 1,
            YieldKind::Scavenger => EVERY,
        };
        HarvestSite::chosen(path.to_owned(), offset, kind, every)
    });
    plan.sites.extend(chosen);
    Ok(plan)
}

/// A plan without sites for the file at `path` with this identity.
pub(crate) fn without_sites(path: &str, identity: String, role: HarvestRole) -> HarvestPlan {
    HarvestPlan {
        schema_version: SCHEMA_VERSION,
        kind: Kind::HarvestPlan,
        incomplete: false,
        membound_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: vec![path.to_owned()],
        date: "2026-01-01T00:00:00Z".to_owned(),
        host: String::new(),
        cpu: String::new(),
        role,
        options: HarvestOptions {
            max_overhead: 1.0,
            min_stall_share: 0.0,
            min_likelihood: 0.0,
            bound_ns: (role == HarvestRole::Scavenger).then_some(BOUND_NS),
            distance: DistanceRule::Max,
            switch_ns: 10.0,
            counter_ns: 1.0,
            costs_measured: false,
        },
        totals: HarvestTotals::default(),
        modules: vec![HarvestModule {
            path: path.to_owned(),
            identity,
        }],
        sites: Vec::new(),
        functions: Vec::new(),
        missing: Vec::new(),
    }
}

/// Sorted addresses of the loads at which a yield can stand, in the file at `path` with these `bytes`. Only
/// loads in functions that `is_selected` accepts are returned; it is called with the name in the file, or
/// `None` for a function without a name.
///
/// # Errors
/// If the file is no binary.
pub fn loads(
    path: &str,
    bytes: &[u8],
    is_selected: impl Fn(Option<&str>) -> bool,
) -> Result<Vec<u64>, Error> {
    let image = image(path, bytes)?;
    let mut options = groundwork_options();
    options.accesses = Accesses::Loads;
    options.sites = Sites::All;
    // The shortest kind of yield: with a longer one at each load, the plan would need more tables than it can
    // have.
    options.body = Body::Yield(Yield::Base);
    let plan = Plan::make(&image, &options);
    let mut addresses: Vec<u64> = plan
        .sites()
        .filter(|site| site.number.is_ok())
        .map(|site| site.address)
        .filter(|address| {
            let function = image.function_at(*address);
            is_selected(function.and_then(|at| image.functions()[at].name.as_deref()))
        })
        .collect();
    addresses.sort_unstable();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    #[test]
    fn a_plan_of_named_loads_holds_for_their_file() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let sites = [(16, YieldKind::Primary), (32, YieldKind::Scavenger)];
        let plan = by_hand("/bin/store", &bytes, HarvestRole::Scavenger, &sites).unwrap();
        check(&plan, "/bin/store", &bytes).unwrap();
        let found: Vec<_> = plan
            .sites
            .iter()
            .map(|site| (site.offset, site.kind, site.every, site.chosen))
            .collect();
        assert_eq!(
            found,
            [
                (16, YieldKind::Primary, 1, true),
                (32, YieldKind::Scavenger, EVERY, true)
            ]
        );
        assert!(by_hand("/bin/sh", b"#!", HarvestRole::Primary, &[]).is_err());
    }

    #[test]
    fn loads_are_sorted_and_those_of_a_file() {
        // A small file, since the test program itself would take long.
        let bytes = std::fs::read("/bin/true").unwrap();
        let all = loads("/bin/true", &bytes, |_| true).unwrap();
        assert!(all.len() > 10 && all.is_sorted(), "{all:?}");
        assert!(loads("/bin/true", &bytes, |_| false).unwrap().is_empty());
        assert!(loads("/bin/sh", b"#!", |_| true).is_err());
    }
}
