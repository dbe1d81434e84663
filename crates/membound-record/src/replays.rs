//! Measures loops that took much of the time with their data in the first cache, once the program has ended.

use std::sync::Arc;

use membound_measure::replay;
use membound_run::{ModuleId, SiteId};
use rustc_hash::FxHashMap;

use crate::modules::CodeModule;
use crate::sites::Sites;

/// Part of all CPU time from which on a loop is measured.
const MIN_LOOP_SHARE: f64 = 0.03;
/// Most loops that are measured: each takes some milliseconds, for which the user waits.
const MAX_LOOPS: usize = 6;
/// Most bytes of a function whose loops are measured.
const FUNCTION_BYTES: u64 = 1 << 16;

/// Time in nanoseconds of an iteration, by the loop's module and first address.
pub(crate) type CachedLoops = FxHashMap<(ModuleId, u64), f64>;

/// Measures the innermost loops around the sites that samples waited for. `waited_ns` is the CPU time of these
/// samples, `all_ns` that of all.
pub(crate) fn measure(
    sites: &Sites,
    modules: &[Arc<CodeModule>],
    waited_ns: &FxHashMap<SiteId, f64>,
    all_ns: f64,
) -> CachedLoops {
    let mut times: FxHashMap<(ModuleId, u64), f64> = FxHashMap::default();
    for (site, time_ns) in waited_ns {
        let Some((module, address)) = sites.place(*site) else {
            continue;
        };
        let around = module.code().map(|code| code.loop_starts(address));
        if let Some(innermost) = around.and_then(|starts| starts.first().copied()) {
            *times.entry((module.id, innermost)).or_default() += time_ns;
        }
    }
    let mut hot: Vec<_> = times
        .into_iter()
        .filter(|(_, time_ns)| *time_ns >= MIN_LOOP_SHARE * all_ns)
        .collect();
    hot.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    hot.truncate(MAX_LOOPS);
    let measured = hot.into_iter().filter_map(|(place, _)| {
        let module = modules.get(place.0.index())?;
        let function = module.code()?.function(place.1)?;
        let length = function.end.saturating_sub(function.start);
        let code = module.bytes_at(function.start, length.min(FUNCTION_BYTES))?;
        Some((place, replay::iteration_ns(code, function.start, place.1)?))
    });
    measured.collect()
}
