//! What sampled instructions waited for, found out for many of them at once by as many threads as there are CPUs.
//!
//! A recording of a whole machine holds samples of tens of thousands of functions. To decode and study these takes
//! longer than everything else that an import does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use membound_rewrite::stall::Wait;
use membound_run::{FrameId, ModuleId};
use rustc_hash::FxHashMap;

use crate::modules::Module;

/// Instructions that a thread takes at once: neighbours, which mostly lie in few functions.
const AT_ONCE: usize = 64;

/// A sampled instruction: its frame, the file that holds it, its address there.
pub(super) type Leaf = (FrameId, Arc<Module>, u64);

/// What each of `leaves` waited for; those without code are left out.
pub(super) fn study(mut leaves: Vec<Leaf>) -> FxHashMap<FrameId, Vec<Wait>> {
    let place = |(_, module, address): &Leaf| -> (ModuleId, u64) { (module.id, *address) };
    leaves.sort_unstable_by_key(place);
    leaves.dedup_by_key(|(frame, ..)| *frame);
    let pieces: Vec<&[Leaf]> = leaves.chunks(AT_ONCE).collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(FxHashMap::default());
    let work = || {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let waits = piece.iter().filter_map(|(frame, module, address)| {
                Some((*frame, module.code()?.waits(*address)))
            });
            let waits: Vec<_> = waits.collect();
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.extend(waits);
        }
    };
    let helpers = thread::available_parallelism().map_or(1, usize::from);
    let helpers = helpers.min(pieces.len()).saturating_sub(1);
    thread::scope(|scope| {
        for _ in 0..helpers {
            // Where no thread can be had, this one does it all.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use membound_run::ProcessId;

    use super::*;
    use crate::modules::Modules;

    #[test]
    fn many_at_once_say_what_each_says_alone() {
        let mut modules = Modules::default();
        let here = study as *const () as u64;
        let maps = membound_launch::maps_of(std::process::id()).unwrap();
        let map = maps.iter().find(|map| map.range.contains(&here)).unwrap();
        let (module, bias) = modules.of(std::process::id(), ProcessId(0), map);
        assert!(Path::new(&module.path).is_absolute());
        let start = here - bias;
        let leaves: Vec<Leaf> = (0..500)
            .map(|at| (FrameId(at), Arc::clone(&module), start + u64::from(at)))
            .collect();
        // Some twice, and in another order than that of their addresses.
        let asked = leaves.iter().rev().chain(&leaves[..100]).cloned().collect();
        let found = study(asked);
        assert_eq!(found.len(), leaves.len());
        for (frame, module, address) in leaves {
            assert_eq!(found[&frame], module.code().unwrap().waits(address));
        }
        assert!(found.values().any(|waits| !waits.is_empty()));
    }

    #[test]
    fn what_has_no_code_waits_for_nothing_that_is_known() {
        let module = Modules::default().named(b"/no/such/file");
        assert!(study(vec![(FrameId(0), module, 0x1000)]).is_empty());
        assert!(study(Vec::new()).is_empty());
    }
}
