//! The command's options as the libraries take them.

use membound_launch::{Bursts, Cache, Recording};
use membound_rewrite::code::Tables;
use membound_rewrite::patch::{self, Body};
use membound_types::PatchBody;

use super::args::PlanOptionArgs;
use crate::launching;

/// What plans are made with; a usage error otherwise.
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

/// Mean executions between two samples of a site, for the body that samples.
pub(super) const PERIOD: u32 = 1000;

/// How recorded accesses are collected, with a body that records.
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

/// Where plans are kept, unless that is not wanted or there is no place for it.
pub(super) fn cache(args: &PlanOptionArgs) -> Option<Cache> {
    if args.no_cache {
        None
    } else {
        launching::cache()
    }
}
