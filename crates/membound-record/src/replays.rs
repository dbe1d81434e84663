//! Measures loops that took much of the time with their data in the first cache, once the program has ended.

use std::time::Duration;

use membound_measure::replay::{IterationTime, iteration_time};
use membound_run::{ModuleId, SiteId};
use rustc_hash::FxHashMap;

use crate::modules::CodeModule;
use crate::sites::Sites;

/// Part of all CPU time from which on a loop is measured.
const MIN_LOOP_SHARE: f64 = 0.03;
/// Most loops that are measured: each takes some milliseconds, for which the user waits.
const MAX_LOOPS: usize = 6;

/// Duration over which the measurements of all loops are distributed: another guest of the machine may use the
/// same core for some milliseconds.
const WITHIN: Duration = Duration::from_millis(48);

/// Time of an iteration, by the loop's module and first address.
pub(crate) type CachedLoops = FxHashMap<(ModuleId, u64), IterationTime>;

/// Measures the innermost loops around the sites that samples waited for. `waited_ns` is the CPU time of these
/// samples, `all_ns` that of all.
pub(crate) fn measure(
    sites: &Sites,
    waited_ns: &FxHashMap<SiteId, f64>,
    all_ns: f64,
) -> CachedLoops {
    let mut times: FxHashMap<(ModuleId, u64), (&CodeModule, f64)> = FxHashMap::default();
    for (site, time_ns) in waited_ns {
        let Some((module, address)) = sites.place(*site) else {
            continue;
        };
        let around = module.code().map(|code| code.loop_starts(address));
        if let Some(innermost) = around.and_then(|starts| starts.first().copied()) {
            let of_loop = times.entry((module.id, innermost));
            of_loop.or_insert((module, 0.0)).1 += time_ns;
        }
    }
    let mut hot: Vec<_> = times
        .into_iter()
        .filter(|(_, (_, time_ns))| *time_ns >= MIN_LOOP_SHARE * all_ns)
        .collect();
    hot.sort_by(|(a, (_, a_ns)), (b, (_, b_ns))| b_ns.total_cmp(a_ns).then(a.cmp(b)));
    hot.truncate(MAX_LOOPS);
    let bodies = hot.into_iter().filter_map(|(place, (module, _))| {
        let body = module.code()?.loop_body(place.1)?;
        Some((place, body))
    });
    let bodies: Vec<_> = bodies.collect();
    let within = WITHIN / bodies.len().max(1) as u32;
    let measured = bodies
        .into_iter()
        .filter_map(|(place, body)| Some((place, iteration_time(&body, within)?)));
    measured.collect()
}
