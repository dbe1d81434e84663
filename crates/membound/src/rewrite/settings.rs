//! The command's options as the libraries take them.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use etcetera::BaseStrategy;
use membound_launch::{Bursts, Cache, Recording};
use membound_rewrite::code::Tables;
use membound_rewrite::patch::{self, Body};
use membound_types::PatchBody;

use super::args::PlanOptionArgs;

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
        return None;
    }
    let directories = etcetera::choose_base_strategy().ok()?;
    let directory = directories.cache_dir().join("membound").join("plans");
    Some(Cache::at(directory))
}

/// Tells plans of this build from those of another: its version, and when and how large it
/// was made, for those who build it twice a day.
pub(super) fn revision() -> String {
    let executable = std::env::current_exe().and_then(std::fs::metadata);
    let built = executable.map(|found| {
        let time = found.modified().unwrap_or(UNIX_EPOCH);
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        (found.len(), time.as_nanos())
    });
    format!(
        "{} {:?}",
        env!("CARGO_PKG_VERSION"),
        built.unwrap_or_default()
    )
}

/// Where a session puts its socket.
pub(super) fn directory() -> PathBuf {
    std::env::temp_dir()
}
