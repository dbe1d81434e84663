//! Turns the command's options into those of the libraries.

use membound_launch::{Bursts, Cache, Recording};
use membound_rewrite::code::Tables;
use membound_rewrite::patch::{self, Body};
use membound_types::PatchBody;

use super::args::PlanOptionArgs;
use crate::launching;

/// The options for plans.
///
/// # Errors
/// A usage error if `--exact` is given with another body than count.
pub(super) fn plan(args: &PlanOptionArgs) -> Result<patch::Options, String> {
    let body = match args.body {
        PatchBody::Displace => Body::Displace,
        PatchBody::Count => Body::Count { exact: args.exact },
        PatchBody::Rubbish => Body::Rubbish,
        PatchBody::Sample => Body::Sample,
        PatchBody::Record => Body::Record,
        PatchBody::Yield => Body::PrefetchYield,
    };
    if args.exact && args.body != PatchBody::Count {
        return Err(format!("--exact means nothing to --body {}", args.body));
    }
    let mut options = patch::Options::new(body);
    if args.no_tables {
        options.tables = Tables::Ignore;
    }
    Ok(options)
}

/// Mean number of executions between two samples of a site, for the sampling body.
pub(super) const PERIOD: u32 = 1000;

/// How recorded accesses are collected; `None` for a body that does not record.
pub(super) fn recording(body: PatchBody) -> Option<Recording> {
    let bursts = match body {
        PatchBody::Sample => None,
        PatchBody::Record => Some(Bursts::default()),
        _ => return None,
    };
    Some(Recording {
        bursts,
        ..Recording::default()
    })
}

/// The cache of plans, unless it is disabled or there is no cache directory.
pub(super) fn cache(args: &PlanOptionArgs) -> Option<Cache> {
    if args.no_cache {
        None
    } else {
        launching::cache()
    }
}
