//! Plans of what was chosen in a file while its programs run.
//!
//! A plan looks at the chosen functions only, with an outline of the file that takes a tenth of a second for a large one,
//! and five times that while programs need all processors; then milliseconds. Bodies that switch contexts need the
//! file's groundwork, a study of every function, which takes seconds.

use std::sync::{Arc, PoisonError};

use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{self, Groundwork};
use rustc_hash::FxHashSet;

use super::{Derived, ModulePlan, Plans, Refused, Slot};
use crate::background::{self, Planning};

impl Plans {
    /// The file of `module` with a plan by `options`. A caller waits while another caller makes the same
    /// plan. Chosen plans are not stored on disk, since there are too many. Background threads make them,
    /// since only windows wait for them.
    pub(crate) fn derived(
        &self,
        module: &Arc<ModulePlan>,
        options: &patch::Options,
    ) -> Arc<ModulePlan> {
        let slot = self.slot(module, options);
        let make = || {
            let plan = if options.body.switches() {
                self.with_groundwork(module, options, |image, groundwork| {
                    background::run_short(|| groundwork.plan(image, options))
                })
            } else {
                module.plan_locally(options)
            };
            let plan = plan.ok_or_else(|| Refused {
                reason: "its file cannot be read".to_owned(),
                taints: false,
            });
            Arc::new(ModulePlan {
                chosen: Some((Arc::clone(module), options.clone())),
                ..ModulePlan::new(
                    module.path.clone(),
                    module.headers.clone(),
                    Arc::clone(&module.file),
                    module.identity.clone(),
                    plan,
                )
            })
        };
        Arc::clone(slot.get_or_init(make))
    }

    /// The result of [`Self::derived`], if it was made before.
    pub(crate) fn derived_before(
        &self,
        module: &Arc<ModulePlan>,
        options: &patch::Options,
    ) -> Option<Arc<ModulePlan>> {
        self.slot(module, options).get().cloned()
    }

    /// Calls `work` with the groundwork of `module`; `None` if the file cannot be read. A caller waits
    /// while another caller makes the groundwork.
    ///
    /// Each cell is filled by the calling thread, which lends only the work to the background: a thread of the pool that
    /// waited for a cell could be the thread that fills it.
    fn with_groundwork<T>(
        &self,
        module: &ModulePlan,
        options: &patch::Options,
        work: impl FnOnce(&Image<'_>, &Groundwork) -> T,
    ) -> Option<T> {
        module.parse_in_background();
        module.with_image(|image| {
            let make = || background::run(|| self.groundwork(image, options));
            work(image, module.groundwork.get_or_init(make))
        })
    }

    /// True if chosen plans of `file` take milliseconds. If not, this starts to make its outline in the background.
    pub(crate) fn is_ready(&self, file: &Identity) -> bool {
        if self.is_pending(file) {
            return false;
        }
        let modules = self.of_file(file);
        let mut planned = modules.iter().filter(|module| module.plan.is_ok());
        planned.all(is_prepared)
    }

    /// The known modules of `file`: several if copies of it are in several places.
    pub(crate) fn of_file(&self, file: &Identity) -> Vec<Arc<ModulePlan>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = known.values().filter_map(|slot| slot.get());
        modules
            .filter(|module| module.identity.as_ref() == Some(file))
            .cloned()
            .collect()
    }

    /// Inodes of `files`, in all places of each.
    pub(crate) fn inodes(&self, files: &[&Identity]) -> FxHashSet<u64> {
        let is_of = |slot: &Slot| {
            let identity = slot.get().and_then(|module| module.identity.as_ref());
            identity.is_some_and(|identity| files.contains(&identity))
        };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_files = known.iter().filter(|(_, slot)| is_of(slot));
        of_files.map(|(key, _)| key.inode).collect()
    }

    fn slot(&self, module: &Arc<ModulePlan>, options: &patch::Options) -> Slot {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |it: &&Derived| Arc::ptr_eq(&it.origin, module) && it.options == *options;
        if let Some(known) = derived.iter().find(is_it) {
            return Arc::clone(&known.made);
        }
        let made = Slot::default();
        derived.push(Derived {
            origin: Arc::clone(module),
            options: options.clone(),
            made: Arc::clone(&made),
        });
        made
    }
}

/// True if `module` has an outline, or cannot be parsed: its plan is then refused. The first call starts a thread that
/// makes the outline.
fn is_prepared(module: &Arc<ModulePlan>) -> bool {
    let preparation = module.preparation.get_or_init(|| {
        let module = Arc::clone(module);
        let planning = Planning::of(module.headers.text_bytes());
        let work = move || {
            planning.wait();
            module.with_outline(|_, _| ());
        };
        let thread = std::thread::Builder::new().name("preparing".to_owned());
        thread.spawn(work).is_ok()
    });
    // Without a thread the caller that needs the plan makes the outline.
    !preparation || module.outline.get().is_some() || matches!(module.image.get(), Some(None))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use membound_rewrite::patch::{Body, Hooks, Sites};

    use super::*;
    use crate::maps;

    #[test]
    fn a_file_is_ready_once_it_has_an_outline_which_the_question_begins() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("it runs");
        let maps = loop {
            // Before the exec, the child has the files of this program. The loader maps libc last.
            let maps = maps::of(child.id()).expect("it runs");
            let is_mapped = |name: &str| {
                let mut names = maps.iter().map(|map| Path::new(&map.name));
                names.any(|path| path.ends_with(name))
            };
            if is_mapped("sleep") && is_mapped("libc.so.6") {
                break maps;
            }
            std::thread::yield_now();
        };
        let options = patch::Options::bare(Hooks::LeaveOut);
        let plans = Arc::new(Plans::new(options, None, "test".to_owned()));
        let loaded = plans.loaded(child.id(), &maps, &(0..0));
        child.kill().and_then(|()| child.wait()).expect("it runs");
        let is_sleep = |module: &ModulePlan| module.path.ends_with("sleep");
        let (sleep, others): (Vec<_>, Vec<_>) = loaded
            .iter()
            .map(|it| &it.module)
            .partition(|module| is_sleep(module));
        let [sleep] = sleep[..] else {
            panic!("{loaded:?}");
        };
        let file = sleep.identity().expect("files have identities");
        assert!(!plans.is_ready(file));
        while !plans.is_ready(file) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(sleep.outline.get().is_some());
        let begins = sleep.functions().into_iter().map(|it| it.range.start);
        let chosen = patch::Options {
            sites: Sites::Instructions(begins.collect()),
            body: Body::CountByStack,
            ..patch::Options::bare(Hooks::LeaveOut)
        };
        let derived = plans.derived(sleep, &chosen);
        let plan = derived.plan.as_ref().expect("it is planned");
        assert!(plan.sites().any(|site| site.number.is_ok()));
        // The same choice has the same plan for ever.
        assert!(Arc::ptr_eq(&derived, &plans.derived(sleep, &chosen)));
        assert!(sleep.groundwork.get().is_none());
        assert!(!others.is_empty());
        assert!(others.iter().all(|it| it.outline.get().is_none()));
    }
}
