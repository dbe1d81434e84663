//! Plans of what was chosen in a file while its programs run.
//!
//! All plans of a file can share its groundwork, a study of every function in the file. The study of a large file takes
//! seconds, and thirty times that while programs need all processors. Each plan that follows takes milliseconds. Until
//! the study is done, plans are made by looking at the chosen functions only, which takes a twentieth of a second for
//! each plan of a large file.

use std::sync::{Arc, PoisonError};

use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{self, Groundwork, Hooks, Plan};
use rustc_hash::FxHashSet;

use super::{Derived, ModulePlan, Plans, Refused, Slot};
use crate::background::{self, Planning, Work};

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
            let plan = if options.body.switches() || module.groundwork.get().is_some() {
                self.with_groundwork(module, options, |image, groundwork| {
                    background::run_short(|| groundwork.plan(image, options))
                })
            } else {
                module.parse_in_background();
                module.with_image(|image| {
                    background::run_short(|| Plan::make_locally(image, options))
                })
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

    /// True if chosen plans of `file` can be made at once. This starts the study of the file in the background.
    pub(crate) fn is_ready(self: &Arc<Self>, file: &Identity) -> bool {
        if self.is_pending(file) {
            return false;
        }
        let mut unready = self.of_file(file);
        unready.retain(|module| module.plan.is_ok() && module.groundwork.get().is_none());
        unready.iter().all(|module| self.is_prepared(module))
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

    /// True if `module` is parsed, or cannot be: its plan is then refused. The first call starts a thread that
    /// parses and studies it.
    fn is_prepared(self: &Arc<Self>, module: &Arc<ModulePlan>) -> bool {
        let preparation = module.preparation.get_or_init(|| {
            let (plans, module) = (Arc::clone(self), Arc::clone(module));
            let planning = Planning::of(module.headers.text_bytes(), Work::Study);
            let work = move || {
                module.parse_in_background();
                planning.wait();
                let options = patch::Options::bare(Hooks::LeaveOut);
                plans.with_groundwork(&module, &options, |_, _| ());
            };
            let thread = std::thread::Builder::new().name("preparing".to_owned());
            thread.spawn(work).ok()
        });
        // Without a thread the caller that needs the plan parses the file.
        preparation.is_none() || module.image.get().is_some()
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use membound_rewrite::patch::{Body, Sites};

    use super::*;
    use crate::maps;

    #[test]
    fn a_file_is_ready_once_it_is_parsed_and_its_study_goes_on() {
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
        assert!(sleep.image.get().is_some());
        let begins = sleep.functions().into_iter().map(|it| it.range.start);
        let chosen = patch::Options {
            sites: Sites::Instructions(begins.collect()),
            body: Body::CountByStack,
            ..patch::Options::bare(Hooks::LeaveOut)
        };
        let before = plans.derived(sleep, &chosen);
        while sleep.groundwork.get().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let numbered = |module: &ModulePlan| {
            let plan = module.plan.as_ref().expect("it is planned");
            plan.sites().filter(|site| site.number.is_ok()).count()
        };
        assert!(numbered(&before) > 0);
        // The same choice has the same plan for ever; a new one uses the study.
        assert!(Arc::ptr_eq(&before, &plans.derived(sleep, &chosen)));
        let again = plans.derived(
            sleep,
            &patch::Options {
                body: Body::Displace,
                ..chosen
            },
        );
        assert_eq!(numbered(&before), numbered(&again));
        assert!(!others.is_empty());
        assert!(others.iter().all(|it| it.groundwork.get().is_none()));
    }
}
