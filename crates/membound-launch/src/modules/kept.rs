//! Results about files that are computed once and stored on disk: plans, and the data from which they are
//! made.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use membound_rewrite::image::{self, Identity, Image, Unsupported};
use membound_rewrite::patch::{self, Groundwork, Outline, Plan, Wrapped};

use super::{Bytes, ModulePlan, Parsed, Plans, Refused};
use crate::allocators::{self, Allocators};
use crate::cache::{Cache, Cached};

/// A file's identity and plan, and what was computed for the plan. Nothing was if the plan came from disk.
pub(super) struct Planned {
    pub(super) identity: Option<Identity>,
    pub(super) plan: Result<Plan, Refused>,
    pub(super) image: OnceLock<Option<Parsed>>,
    pub(super) outline: OnceLock<Outline>,
}

impl Plans {
    /// True if the results that are stored last are on disk, so that the others were stored, too. A program waits for
    /// those that were evicted since.
    pub(super) fn keeps(&self, path: &Path, identity: &Identity) -> bool {
        let Some(cache) = &self.cache else {
            return false;
        };
        let has_wrapped = |allocators| cache.holds(&self.wrapped_key(allocators, path, identity));
        cache.holds(&self.key_of(identity, "unwind"))
            && self.allocators.as_ref().is_none_or(has_wrapped)
    }

    /// What distinguishes results about a file beside its identity and the options: this version of the
    /// planner, and the functions that are analysed.
    fn revision_of(&self, identity: &Identity) -> String {
        match self.around_in(identity) {
            [] => self.revision.clone(),
            around => format!("{} around {around:x?}", self.revision),
        }
    }

    /// Plans a file with this identity.
    pub(super) fn plan(
        &self,
        path: &Path,
        file: &Arc<Bytes>,
        identity: Result<Identity, image::Error>,
    ) -> Planned {
        let refused = |error: image::Error| Refused {
            taints: matches!(error, image::Error::Unsupported(Unsupported::Go)),
            reason: error.to_string(),
        };
        let identity = match identity {
            Ok(identity) => identity,
            Err(error) => {
                return Planned {
                    identity: None,
                    plan: Err(refused(error)),
                    image: OnceLock::new(),
                    outline: OnceLock::new(),
                };
            }
        };
        let parsed = OnceCell::new();
        let outline = OnceLock::new();
        let around = self.around_in(&identity);
        let image = || {
            let parsed = parsed.get_or_init(|| Parsed::of(Arc::clone(file), around));
            parsed.as_ref().map(Parsed::borrow_dependent)
        };
        let wrapped = match &self.allocators {
            Some(allocators) => self.wrapped(allocators, path, &identity, image),
            None => Ok(Vec::new()),
        };
        let plan = wrapped.and_then(|wrapped| {
            let mut options = self.options.clone();
            options.wrapped.extend(wrapped);
            let make = || {
                image().map(|image| {
                    let outline = || outline.get_or_init(|| Outline::of(image));
                    Plan::make_locally(image, &options, outline)
                })
            };
            kept_plan(
                &identity,
                &options,
                self.cache.as_ref(),
                &self.revision_of(&identity),
                make,
            )
        });
        let (identity, plan) = match plan.map_err(ToString::to_string) {
            Ok(plan) => (Some(identity), Ok(plan)),
            Err(reason) => {
                let taints = false;
                (None, Err(Refused { reason, taints }))
            }
        };
        let parsed = parsed.into_inner().map(Result::ok);
        Planned {
            identity,
            plan,
            image: parsed.map_or_else(OnceLock::new, OnceLock::from),
            outline,
        }
    }

    /// Finds the functions of a file that are to be wrapped. The list is stored on disk, since parsing a
    /// large file takes long.
    fn wrapped<'image, E>(
        &self,
        allocators: &Allocators,
        path: &Path,
        identity: &Identity,
        image: impl FnOnce() -> Result<&'image Image<'image>, E>,
    ) -> Result<Vec<Wrapped>, E> {
        let make = || image().map(|image| allocators.of(image, path));
        let Some(cache) = &self.cache else {
            return make();
        };
        let key = self.wrapped_key(allocators, path, identity);
        let read = |bytes: Cached| allocators::from_bytes(bytes.as_ref());
        cache.get_or_make(&key, read, make, |it| allocators::to_bytes(it))
    }

    fn wrapped_key(&self, allocators: &Allocators, path: &Path, identity: &Identity) -> String {
        let own = crc32fast::hash(allocators.key(path).as_bytes());
        self.key_of(identity, &format!("wrapped {own:08x}"))
    }

    /// True if the unwind table of `module` is on disk.
    pub(crate) fn keeps_unwind_table(&self, module: &ModulePlan) -> bool {
        let kept = self.cache.as_ref().zip(module.identity());
        kept.is_some_and(|(cache, identity)| cache.holds(&self.key_of(identity, "unwind")))
    }

    /// The unwind table of `module`; stored on disk like plans.
    pub(crate) fn unwind_table(&self, module: &ModulePlan) -> Vec<u8> {
        let (Some(cache), Some(identity)) = (&self.cache, module.identity()) else {
            return module.unwind_table();
        };
        let key = self.key_of(identity, "unwind");
        let read = |bytes: Cached| Some(bytes.as_ref().to_vec());
        let make = || Ok(module.unwind_table());
        let Ok(table) = cache.get_or_make::<_, Infallible>(&key, read, make, Vec::clone);
        table
    }

    /// The common part of all plans of a file: stored on disk, since it takes 0.1 µs for each byte of text.
    pub(super) fn groundwork(&self, image: &Image<'_>, options: &patch::Options) -> Groundwork {
        let make = || Ok(Groundwork::of(image, options));
        let made = match &self.cache {
            Some(cache) => {
                let what = format!("groundwork {:?}", options.tables);
                let key = self.key_of(image.identity(), &what);
                let read = |bytes: Cached| Groundwork::from_bytes(bytes.as_ref());
                cache.get_or_make::<_, Infallible>(&key, read, make, Groundwork::to_bytes)
            }
            None => make(),
        };
        let Ok(groundwork) = made;
        groundwork
    }

    /// Key in the cache for the result `what` about a file.
    fn key_of(&self, identity: &Identity, what: &str) -> String {
        key(
            identity,
            &self.options,
            &format!("{} {what}", self.revision_of(identity)),
        )
    }
}

/// The plan for `image`: from `cache` if the same `revision` of the planner has made it before.
#[must_use]
pub fn plan(
    image: &Image<'_>,
    options: &patch::Options,
    cache: Option<&Cache>,
    revision: &str,
) -> Plan {
    let make = || Ok(Plan::make(image, options));
    let Ok(plan) = kept_plan::<Infallible>(image.identity(), options, cache, revision, make);
    plan
}

/// The plan of a file from the cache, else the result of `make`.
fn kept_plan<E>(
    identity: &Identity,
    options: &patch::Options,
    cache: Option<&Cache>,
    revision: &str,
    make: impl FnOnce() -> Result<Plan, E>,
) -> Result<Plan, E> {
    let Some(cache) = cache else {
        return make();
    };
    let read = |bytes: Cached| {
        let plan = Plan::from_bytes(bytes).ok()?;
        plan.is_for(identity, options).then_some(plan)
    };
    let key = key(identity, options, revision);
    cache.get_or_make(&key, read, make, |plan| plan.as_bytes().to_vec())
}

/// A file name that depends on everything that a plan depends on.
fn key(identity: &Identity, options: &patch::Options, revision: &str) -> String {
    let (kind, bytes): (_, &[u8]) = match identity {
        Identity::BuildId(id) => ("b", id),
        Identity::TextHash(hash) => ("t", hash),
    };
    let mut key = String::from(kind);
    for byte in bytes.iter().take(64) {
        let _ = write!(key, "{byte:02x}");
    }
    // The plan contains identity and options as well, and they are compared there; only the revision is
    // distinguished by this name alone.
    let options = options.key();
    let _ = write!(key, "-{:08x}", crc32fast::hash(&options));
    let _ = write!(key, "-{:08x}", crc32fast::hash(revision.as_bytes()));
    key
}
