//! Plans of what was chosen in a file while its programs run.
//!
//! What they have in common, the groundwork, takes as long as a look at all of the file's functions:
//! seconds where it is large, and far more while programs need all processors. With it, a plan takes
//! milliseconds.

use std::sync::{Arc, OnceLock, PoisonError};

use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{self, Groundwork, Hooks};

use super::{Derived, Module, Plans, Refused, Slot};
use crate::background;

impl Plans {
    /// The file of `module` with a plan by `options`; whoever asks for one that is being made
    /// waits for it. Plans by choice are not kept on disk: there are too many of them. They are
    /// made in the background, since nothing but a window waits for them, and beside whatever is
    /// planned there for longer.
    pub(crate) fn derived(&self, module: &Arc<Module>, options: &patch::Options) -> Arc<Module> {
        let slot = self.slot(module, options);
        let make = || {
            let plan = module.with_image(|image| {
                let groundwork = self.groundwork_of(module, image, options);
                background::run_short(|| groundwork.plan(image, options))
            });
            let plan = plan.ok_or_else(|| Refused {
                reason: "its file cannot be read".to_owned(),
                taints: false,
            });
            Arc::new(Module {
                path: module.path.clone(),
                headers: module.headers.clone(),
                file: Arc::clone(&module.file),
                identity: module.identity.clone(),
                chosen: Some((Arc::clone(module), options.clone())),
                late: false,
                plan,
                numbered: OnceLock::new(),
                image: OnceLock::new(),
                groundwork: OnceLock::new(),
                preparation: OnceLock::new(),
                exceptions: OnceLock::new(),
            })
        };
        Arc::clone(slot.get_or_init(make))
    }

    /// What [`Self::derived`] gives, where that was made before.
    pub(crate) fn derived_before(
        &self,
        module: &Arc<Module>,
        options: &patch::Options,
    ) -> Option<Arc<Module>> {
        self.slot(module, options).get().cloned()
    }

    /// The groundwork of `module`; whoever asks for one that is being made waits for it.
    fn groundwork_of<'a>(
        &self,
        module: &'a Module,
        image: &Image<'_>,
        options: &patch::Options,
    ) -> &'a Groundwork {
        let make = || background::run(|| self.groundwork(image, options));
        module.groundwork.get_or_init(make)
    }

    /// Whether plans by choice of a file take milliseconds by now. Where they do not, its groundwork is made
    /// in the background from now on.
    pub(crate) fn is_ready(self: &Arc<Self>, file: &Identity) -> bool {
        if self.is_pending(file) {
            return false;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = known.values().filter_map(|slot| slot.get());
        let unready: Vec<Arc<Module>> = modules
            .filter(|module| module.identity.as_ref() == Some(file))
            .filter(|module| module.plan.is_ok() && module.groundwork.get().is_none())
            .cloned()
            .collect();
        drop(known);
        // A file that cannot be read any more has no groundwork, and is refused when it is asked for.
        unready.into_iter().all(|module| self.is_prepared(module))
    }

    /// Whether it was tried to make the groundwork of `module`, which begins it.
    fn is_prepared(self: &Arc<Self>, module: Arc<Module>) -> bool {
        if let Some(preparation) = module.preparation.get() {
            return preparation.is_finished();
        }
        let plans = Arc::clone(self);
        let prepared = Arc::clone(&module);
        let work = move || {
            let options = patch::Options::bare(Hooks::LeaveOut);
            prepared.with_image(|image| {
                plans.groundwork_of(&prepared, image, &options);
            });
        };
        let thread = std::thread::Builder::new().name("preparing".to_owned());
        match thread.spawn(work) {
            Ok(thread) => {
                // Who was faster has begun the same work, which is done once.
                let _ = module.preparation.set(thread);
                false
            }
            // Whoever asks for a plan makes it.
            Err(_) => true,
        }
    }

    fn slot(&self, module: &Arc<Module>, options: &patch::Options) -> Slot {
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
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::maps;

    #[test]
    fn a_file_is_ready_when_all_its_functions_were_looked_at_which_the_question_begins() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("it runs");
        let maps = loop {
            // Until the child is that program, it is this one.
            let maps = maps::of(child.id()).expect("it runs");
            if maps
                .iter()
                .any(|map| map.name.as_encoded_bytes().ends_with(b"sleep"))
            {
                break maps;
            }
            std::thread::yield_now();
        };
        let options = patch::Options::bare(Hooks::LeaveOut);
        let plans = Arc::new(Plans::new(options, None, "test".to_owned()));
        let loaded = plans.loaded(child.id(), &maps, &(0..0));
        child.kill().and_then(|()| child.wait()).expect("it runs");
        let is_sleep = |module: &Module| module.path.ends_with("sleep");
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
        assert!(sleep.groundwork.get().is_some());
        assert!(!others.is_empty());
        assert!(others.iter().all(|it| it.groundwork.get().is_none()));
    }
}
