//! The part of the analysis that all plans of one image share.
//!
//! Most of the work of a plan is finding out what functions need to know of each other. A caller that plans
//! different sites of the same file again and again does that once.

use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::assembly::{Part, assemble, origin_of};
use super::function;
use super::planner::{ModuleKnowledge, bytes_of};
use super::subject::Subject;
use super::trampoline::Chunk;
use super::views::FunctionView;
use super::{Hooks, Options, Plan, syscalls, wraps};
use crate::code::{self, Function, ImageFacts, Tables};
use crate::flow::{Analyst, Liveness, Summary};
use crate::image::Image;

/// Number of functions that one worker plans at a time.
const FUNCTIONS_PER_TASK: usize = 16;

/// The facts about an image that its plans share.
pub struct Groundwork {
    tables: Tables,
    module: ModuleKnowledge,
}

/// The serialized form of [`Groundwork`].
#[derive(Serialize, Deserialize)]
struct StoredGroundwork<K, S> {
    tables: Tables,
    knowledge: K,
    summaries: S,
}

impl std::fmt::Debug for Groundwork {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Groundwork").finish_non_exhaustive()
    }
}

impl Groundwork {
    /// Analyses every function of `image`.
    #[must_use]
    pub fn of(image: &Image<'_>, options: &Options) -> Self {
        Self {
            tables: options.tables,
            module: ModuleKnowledge::of(image, options),
        }
    }

    /// Like [`Self::of`], for plans of only the functions that contain one of `addresses`: takes milliseconds.
    /// Nothing is assumed of the other functions, so bodies of patches may save more.
    fn around(image: &Image<'_>, outline: &Outline, options: &Options, addresses: &[u64]) -> Self {
        Self {
            tables: options.tables,
            module: ModuleKnowledge::around(image, &outline.0, options, addresses),
        }
    }

    /// Serializes the result of [`Self::of`]. Store it together with the image's identity and the program's
    /// version.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let stored = StoredGroundwork {
            tables: self.tables,
            knowledge: &self.module.knowledge,
            summaries: self.module.summaries.iter().collect::<Vec<_>>(),
        };
        rmp_serde::to_vec(&stored).expect("memory is all that it needs")
    }

    /// Deserializes the result of [`Self::to_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let stored: StoredGroundwork<ImageFacts, Vec<(u64, Summary)>> =
            rmp_serde::from_slice(bytes).ok()?;
        Some(Self {
            tables: stored.tables,
            module: ModuleKnowledge {
                knowledge: stored.knowledge,
                summaries: stored.summaries.into_iter().collect(),
            },
        })
    }

    /// The function with this index in [`Image::functions`], decoded as plans decode it.
    ///
    /// # Panics
    /// If the image has no such function.
    #[must_use]
    pub fn function(&self, image: &Image<'_>, index: usize) -> Function {
        Function::decode(image, &self.module.knowledge, index)
    }

    /// Plans `image` like [`Plan::make`], but includes only functions that contain a selected site or are
    /// wrapped. If sites are not selected by address, or system calls are to be patched, it is the plan of
    /// [`Plan::make`].
    #[must_use]
    pub fn plan(&self, image: &Image<'_>, options: &Options) -> Plan {
        match options.sites.addresses() {
            Some(addresses)
                if options.hooks == Hooks::LeaveOut && options.tables == self.tables =>
            {
                let wrapped = wraps::resolve(image, &options.wrapped);
                self.plan_at(image, options, addresses, wrapped)
            }
            _ => Plan::make(image, options),
        }
    }

    /// Plans the functions of `image` that contain one of `addresses` or are wrapped.
    fn plan_at(
        &self,
        image: &Image<'_>,
        options: &Options,
        addresses: &[u64],
        wrapped: Vec<(u64, u32)>,
    ) -> Plan {
        let wrapped: Arc<[(u64, u32)]> = wrapped.into();
        let entries = wrapped.iter().map(|(address, _)| address);
        let mut functions: Vec<usize> = addresses
            .iter()
            .chain(entries)
            .filter_map(|address| image.function_at(*address))
            .collect();
        functions.sort_unstable();
        functions.dedup();
        let parts: Vec<Part> = functions
            .par_chunks(FUNCTIONS_PER_TASK)
            .map_init(Analyst::new, |analyst, functions| {
                let mut chunk = Chunk::new(origin_of(image));
                chunk.wrapped = Arc::clone(&wrapped);
                self.part(image, options, functions, chunk, analyst)
            })
            .collect();
        assemble(image, options, parts)
    }

    fn part(
        &self,
        image: &Image<'_>,
        options: &Options,
        functions: &[usize],
        mut chunk: Chunk,
        analyst: &mut Analyst,
    ) -> Part {
        let conventions = self.module.conventions(image);
        let found = functions.iter().map(|&index| {
            let function = self.function(image, index);
            let liveness = Liveness::of(&function, &conventions, analyst);
            let subject = Subject {
                function: &function,
                bytes: bytes_of(image, index),
                liveness: &liveness,
                unused: conventions.unused_vectors(&function),
            };
            let found = function::plan(&subject, options, analyst, &mut chunk);
            (FunctionView::of(&function), found)
        });
        let found = found.collect();
        Part { chunk, found }
    }
}

/// What plans of a few functions of an image need of its other functions.
#[derive(Debug)]
pub struct Outline(code::Outline);

impl Outline {
    /// Searches all text for references to functions, without decoding it: takes a fiftieth of the time of
    /// [`Groundwork::of`].
    #[must_use]
    pub fn of(image: &Image<'_>) -> Self {
        Self(code::Outline::of(image))
    }
}

impl Plan {
    /// Plans a module like [`Self::make`], in milliseconds: examines only the functions that may get patches, and
    /// the functions that refer to these. Of every other function it assumes the worst that the calling convention
    /// permits; so a patch may save registers that nobody reads. Where bodies switch to other contexts, this is the
    /// plan of [`Self::make`]. Calls `outline` if the plan needs it.
    #[must_use]
    pub fn make_locally<'o>(
        image: &Image<'_>,
        options: &Options,
        outline: impl FnOnce() -> &'o Outline,
    ) -> Self {
        let wrapped = wraps::resolve(image, &options.wrapped);
        match patched_places(image, options, &wrapped) {
            Some(places) if places.is_empty() => assemble(image, options, vec![Part::empty(image)]),
            Some(places) => {
                let groundwork = Groundwork::around(image, outline(), options, &places);
                groundwork.plan_at(image, options, &places, wrapped)
            }
            None => Self::make(image, options),
        }
    }
}

/// Addresses in all functions that may have something to patch; `None` if any function may, or if bodies need
/// to know what is alive.
fn patched_places(
    image: &Image<'_>,
    options: &Options,
    wrapped: &[(u64, u32)],
) -> Option<Vec<u64>> {
    if options.body.switches() || options.hooks == Hooks::Waiting {
        return None;
    }
    let sites = options.sites.addresses()?.iter().copied();
    let mut places: Vec<u64> = sites.chain(wrapped.iter().map(|(at, _)| *at)).collect();
    if options.hooks != Hooks::LeaveOut {
        places.extend(syscalls::candidates(image));
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::{Body, Placement, Sites};

    #[test]
    fn a_few_places_are_planned_as_in_a_plan_of_everything() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let mut options = Options::new(Body::Sample);
        options.hooks = Hooks::LeaveOut;
        let everything = Plan::make(&image, &options);
        let addresses: Vec<u64> = everything
            .sites()
            .map(|site| site.address)
            .step_by(997)
            .collect();
        assert!(addresses.len() > 20, "{}", addresses.len());
        options.sites = Sites::At(addresses.clone());
        let whole = Plan::make(&image, &options);
        let groundwork = Groundwork::of(&image, &options).to_bytes();
        let groundwork = Groundwork::from_bytes(&groundwork).unwrap();
        let few = groundwork.plan(&image, &options);
        assert!(few.is_for(image.identity(), &options));
        let sites = |plan: &Plan| -> Vec<_> {
            let sites = plan.sites();
            sites.map(|site| (site.address, site.number)).collect()
        };
        assert_eq!(sites(&few), sites(&whole));
        assert_eq!(
            sites(&few).iter().map(|(at, _)| *at).collect::<Vec<_>>(),
            addresses
        );
        assert!(few.as_bytes().len() < whole.as_bytes().len());
        let placement = Placement {
            bias: 0x5555_5555_0000,
            area: 0x5555_6000_0000,
        };
        let edits = |plan: &Plan| plan.place(&placement).unwrap().edits;
        assert_eq!(edits(&few), edits(&whole));
    }

    /// Of this program and of the C library, which makes the system calls.
    #[test]
    fn a_local_plan_has_the_sites_and_hooks_of_a_plan_of_everything() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut paths = maps.lines().filter_map(|it| Some(&it[it.find('/')?..]));
        let libc = paths.find(|path| path.contains("libc.so")).unwrap();
        for path in ["/proc/self/exe", libc] {
            let bytes = std::fs::read(path).unwrap();
            let image = Image::parse(&bytes).unwrap();
            let mut options = Options::new(Body::Sample);
            options.hooks = Hooks::Timed;
            let everything = Plan::make(&image, &options);
            let accepted = |plan: &Plan| -> Vec<u64> {
                let sites = plan.sites().filter(|site| site.number.is_ok());
                sites.map(|site| site.address).collect()
            };
            let addresses: Vec<u64> = accepted(&everything).into_iter().step_by(997).collect();
            assert!(addresses.len() > 20, "{}", addresses.len());
            options.sites = Sites::At(addresses.clone());
            let outline = Outline::of(&image);
            let local = Plan::make_locally(&image, &options, || &outline);
            assert!(local.is_for(image.identity(), &options));
            // Without the tables of all functions, the end of one may stay unknown.
            let found = accepted(&local);
            assert!(found.iter().all(|at| addresses.contains(at)));
            assert!(10 * found.len() >= 9 * addresses.len(), "{}", found.len());
            let hooks = |plan: &Plan| -> Vec<_> {
                let hooks = plan.hooks().filter(|hook| hook.number.is_some());
                hooks.map(|hook| (hook.address, hook.number)).collect()
            };
            assert_eq!(hooks(&local), hooks(&everything));
            assert!(path != libc || hooks(&local).len() > 100);
            // A body that switches contexts saves what is alive: then all functions count.
            options.sites = Sites::At(addresses[..1].to_vec());
            options.body = Body::PrefetchYield;
            let local = Plan::make_locally(&image, &options, || &outline);
            let whole = Plan::make(&image, &options);
            assert_eq!(local.as_bytes(), whole.as_bytes());
        }
    }

    #[test]
    fn locally_at_least_as_much_is_alive_as_in_a_study_of_everything() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let options = Options::bare(Hooks::LeaveOut);
        let whole = Groundwork::of(&image, &options);
        let selected: Vec<usize> = (0..image.functions().len()).step_by(7).collect();
        let starts: Vec<u64> = selected
            .iter()
            .map(|index| image.functions()[*index].range.start)
            .collect();
        let outline = Outline::of(&image);
        let local = Groundwork::around(&image, &outline, &options, &starts);
        let mut analyst = Analyst::new();
        let (mut compared, mut more) = (0, 0);
        for index in selected {
            let [here, there] = [&local, &whole].map(|it| it.function(&image, index));
            if here.unresolved != there.unresolved {
                continue;
            }
            let [here, there] = [(&local, here), (&whole, there)].map(|(groundwork, function)| {
                let conventions = groundwork.module.conventions(&image);
                let liveness = Liveness::of(&function, &conventions, &mut analyst);
                let unused = conventions.unused_vectors(&function);
                let alive =
                    (0..function.instructions.len()).map(|at| liveness.before(at).without(unused));
                (alive.collect::<Vec<_>>(), liveness.red_zone())
            });
            assert!(here.1 || !there.1, "{index}");
            assert_eq!(here.0.len(), there.0.len(), "{index}");
            for (here, there) in here.0.iter().zip(&there.0) {
                assert!(here.contains(*there), "{index}: {here:?} {there:?}");
                compared += 1;
                more += u32::from(here != there);
            }
        }
        assert!(compared > 1000 && more > 0, "{compared} {more}");
    }
}
