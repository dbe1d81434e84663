//! What sampled instructions waited for, found out for many of them at once by other threads, while the samples
//! behind them are read.
//!
//! A recording of a whole machine holds samples of tens of thousands of functions. To decode and study these takes
//! longer than everything else that an import does.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use membound_run::{FrameId, ModuleId};
use rustc_hash::FxHashMap;

use crate::modules::Module;
use crate::sites::Studied;

/// Instructions that a thread takes at once: neighbours, which mostly lie in few functions.
const AT_ONCE: usize = 64;

/// A sampled instruction: its frame, the file that holds it, its address there.
pub(super) type Leaf = (FrameId, Arc<Module>, u64);

/// Instructions that are being studied.
pub(super) struct Study {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a study share.
struct Shared {
    /// By module and address, each once.
    leaves: Vec<Leaf>,
    /// How many were taken.
    taken: AtomicUsize,
    found: Mutex<FxHashMap<FrameId, Studied>>,
}

impl Shared {
    /// Studies instructions until all are taken.
    fn work(&self) {
        loop {
            let from = self.taken.fetch_add(AT_ONCE, Ordering::Relaxed);
            let until = from.saturating_add(AT_ONCE).min(self.leaves.len());
            let Some(piece) = self.leaves.get(from..until).filter(|it| !it.is_empty()) else {
                return;
            };
            let studied = piece.iter().filter_map(|(frame, module, address)| {
                Some((*frame, Studied::of(module.code()?, *address)))
            });
            let studied: Vec<_> = studied.collect();
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.extend(studied);
        }
    }
}

impl Study {
    /// Has `leaves` studied by one thread less than there are CPUs: the one that asks has something else to do until
    /// it calls [`Self::end`].
    pub(super) fn begin(mut leaves: Vec<Leaf>) -> Self {
        let place = |(_, module, address): &Leaf| -> (ModuleId, u64) { (module.id, *address) };
        leaves.sort_unstable_by_key(place);
        leaves.dedup_by_key(|(frame, ..)| *frame);
        let helpers = thread::available_parallelism().map_or(1, usize::from);
        let helpers = helpers
            .saturating_sub(1)
            .min(leaves.len().div_ceil(AT_ONCE));
        let shared = Arc::new(Shared {
            leaves,
            taken: AtomicUsize::new(0),
            found: Mutex::default(),
        });
        // Where no thread can be had, the one that asks does it all.
        let threads = (0..helpers).filter_map(|_| {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name("study".to_owned());
            thread.spawn(move || shared.work()).ok()
        });
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// What each of the instructions may have waited for; those without code are left out. What is still to be done
    /// for that is done by this thread too.
    pub(super) fn end(self) -> FxHashMap<FrameId, Studied> {
        self.shared.work();
        for thread in self.threads {
            thread.join().unwrap_or_else(|why| resume_unwind(why));
        }
        let mut found = self
            .shared
            .found
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *found)
    }
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
        let here = Study::begin as *const () as u64;
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
        let found = Study::begin(asked).end();
        assert_eq!(found.len(), leaves.len());
        for (frame, module, address) in leaves {
            let code = module.code().unwrap();
            assert_eq!(found[&frame].waits, code.waits(address));
            for (site, info) in &found[&frame].sites {
                assert_eq!(code.site(*site).as_ref(), Some(info));
            }
        }
        assert!(found.values().any(|studied| !studied.sites.is_empty()));
    }

    #[test]
    fn what_has_no_code_waits_for_nothing_that_is_known() {
        let module = Modules::default().named(b"/no/such/file");
        let leaves = vec![(FrameId(0), module, 0x1000)];
        assert!(Study::begin(leaves).end().is_empty());
        assert!(Study::begin(Vec::new()).end().is_empty());
    }
}
