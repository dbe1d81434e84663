//! Plans of what was chosen in a file while its programs run.

use std::sync::{Arc, OnceLock, PoisonError};

use membound_rewrite::patch;

use super::{Derived, Module, Plans, Refused, Slot};
use crate::background;

impl Plans {
    /// The file of `module` with a plan by `options`; whoever asks for one that is being made
    /// waits for it. Plans by choice are not kept on disk: there are too many of them. They are
    /// made in the background, since nothing but a window waits for them.
    pub(crate) fn derived(&self, module: &Arc<Module>, options: &patch::Options) -> Arc<Module> {
        let slot = self.slot(module, options);
        let make = || {
            let plan = background::run(|| {
                module.with_image(|image| {
                    let groundwork = || self.groundwork(image, options);
                    let groundwork = module.groundwork.get_or_init(groundwork);
                    groundwork.plan(image, options)
                })
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
