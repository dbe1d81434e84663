//! The part of the analysis that all plans of one image share.
//!
//! Most of the work of a plan is finding out what functions need to know of each other. A caller that plans
//! different sites of the same file again and again does that once.

use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::function;
use super::plan::identity_bytes;
use super::planner::{Assembly, ModuleKnowledge, Part, bytes_of, origin_of};
use super::subject::Subject;
use super::trampoline::Chunk;
use super::views::FunctionView;
use super::{Hooks, Options, Plan, wraps};
use crate::code::{Function, ImageFacts, Tables};
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
        let addresses = match options.sites.addresses() {
            Some(addresses)
                if options.hooks == Hooks::LeaveOut && options.tables == self.tables =>
            {
                addresses
            }
            _ => return Plan::make(image, options),
        };
        let wrapped: Arc<[(u64, u32)]> = wraps::resolve(image, &options.wrapped).into();
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
        let assembly = Assembly {
            origin: origin_of(image),
            end: image.span().end,
            identity: identity_bytes(image.identity()),
            options,
        };
        assembly.plan(parts, |at, length| {
            let start = assembly.origin + u64::from(at);
            image.bytes(start..start.checked_add(length as u64)?)
        })
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
}
