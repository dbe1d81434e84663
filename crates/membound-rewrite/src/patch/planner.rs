//! Makes the plan of an image: rayon's threads plan the functions in chunks, which [`super::assembly`] joins.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::assembly::{Part, assemble, origin_of};
use super::function;
use super::plan::Plan;
use super::subject::Subject;
use super::syscalls;
use super::trampoline::Chunk;
use super::views::FunctionView;
use super::wraps;
use super::{Hooks, Options, Sites};
use crate::code::{Function, ImageFacts, Outline};
use crate::flow::{Analyst, Conventions, Liveness, Summaries, Summary};
use crate::image::Image;

/// Bytes of text that one worker plans at a time.
const CHUNK_BYTES: u64 = 64 << 10;
/// Bytes after a function's end that are examined as its padding.
const PADDING_SEARCH_BYTES: u64 = 16;
/// Most decoded instructions kept between the two passes over the functions, at 40 bytes each; functions
/// beyond this are decoded twice.
const MAX_KEPT_INSTRUCTIONS: usize = 6 << 20;

/// What is known of the whole module before its functions are planned.
pub(super) struct ModuleKnowledge {
    /// What the decoder of one function has to know of others.
    pub knowledge: ImageFacts,
    /// Which registers each function reads and writes.
    pub summaries: Summaries,
}

impl ModuleKnowledge {
    pub(super) fn of(image: &Image<'_>, options: &Options) -> Self {
        Self::with_functions(image, options, 0).0
    }

    /// Like [`Self::of`], for plans of only the functions that contain one of `addresses`.
    pub(super) fn around(
        image: &Image<'_>,
        outline: &Outline,
        options: &Options,
        addresses: &[u64],
    ) -> Self {
        let mut selected: Vec<usize> = addresses
            .iter()
            .filter_map(|address| image.function_at(*address))
            .collect();
        selected.sort_unstable();
        selected.dedup();
        let knowledge = ImageFacts::gather_for(image, outline, options.tables, &selected);
        let summaries: Summaries = selected
            .into_par_iter()
            .map_init(Analyst::new, |analyst, index| {
                let function = Function::decode(image, &knowledge, index);
                (function.bounds.range.start, Summary::of(&function, analyst))
            })
            .collect::<Vec<_>>()
            .into_iter()
            .collect();
        Self {
            knowledge,
            summaries: summaries.of_some(),
        }
    }

    /// Like [`Self::of`], and also returns the decoded functions, one entry per function of the image; `None`
    /// once the kept ones would exceed `most` instructions together.
    fn with_functions(
        image: &Image<'_>,
        options: &Options,
        most: usize,
    ) -> (Self, Vec<Option<Function>>) {
        let knowledge = ImageFacts::gather(image, options.tables);
        let budget = AtomicUsize::new(most);
        let (summaries, functions): (Vec<(u64, Summary)>, Vec<Option<Function>>) =
            (0..image.functions().len())
                .into_par_iter()
                .map_init(Analyst::new, |analyst, index| {
                    let function = Function::decode(image, &knowledge, index);
                    let summary = Summary::of(&function, analyst);
                    let length = function.instructions.len();
                    let is_within_budget = budget
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |budget| {
                            budget.checked_sub(length)
                        })
                        .is_ok();
                    let start = function.bounds.range.start;
                    ((start, summary), is_within_budget.then_some(function))
                })
                .unzip();
        let module = Self {
            knowledge,
            summaries: summaries.into_iter().collect(),
        };
        (module, functions)
    }

    pub(super) fn conventions(&self, image: &Image<'_>) -> Conventions<'_> {
        Conventions {
            convention: image.convention(),
            summaries: &self.summaries,
        }
    }
}

/// The bytes of a function and of what follows it, up to the next function or [`PADDING_SEARCH_BYTES`] bytes.
pub(super) fn bytes_of<'data>(image: &Image<'data>, index: usize) -> &'data [u8] {
    let functions = image.functions();
    let range = &functions[index].range;
    let next = functions
        .get(index + 1)
        .map_or(u64::MAX, |next| next.range.start);
    let limit = next
        .min(range.end.saturating_add(PADDING_SEARCH_BYTES))
        .max(range.end);
    (range.end..=limit)
        .rev()
        .find_map(|end| image.bytes(range.start..end))
        .unwrap_or_default()
}

impl Plan {
    /// Plans a module. Sites that cannot be patched are listed with the reason.
    #[must_use]
    pub fn make(image: &Image<'_>, options: &Options) -> Self {
        let wrapped: Arc<[(u64, u32)]> = wraps::resolve(image, &options.wrapped).into();
        let parts = match is_empty(image, options, &wrapped) {
            true => vec![Part::empty(image)],
            false => Self::parts(image, options, &wrapped),
        };
        assemble(image, options, parts)
    }

    /// Plans every function.
    fn parts(image: &Image<'_>, options: &Options, wrapped: &Arc<[(u64, u32)]>) -> Vec<Part> {
        let (module, decoded) =
            ModuleKnowledge::with_functions(image, options, MAX_KEPT_INSTRUCTIONS);
        let mut decoded = decoded.into_iter();
        let chunks: Vec<(usize, Vec<Option<Function>>)> = chunks(image)
            .into_iter()
            .map(|chunk| (chunk.start, decoded.by_ref().take(chunk.len()).collect()))
            .collect();
        chunks
            .into_par_iter()
            .map_init(Analyst::new, |analyst, (first, decoded)| {
                let mut chunk = Chunk::new(origin_of(image));
                chunk.wrapped = Arc::clone(wrapped);
                part(image, &module, options, chunk, first, decoded, analyst)
            })
            .collect()
    }
}

/// True if there is nothing to patch, so that the image need not be analysed: the program waits for its plan.
fn is_empty(image: &Image<'_>, options: &Options, wrapped: &[(u64, u32)]) -> bool {
    matches!(&options.sites, Sites::At(addresses) if addresses.is_empty())
        && wrapped.is_empty()
        && (options.hooks == Hooks::LeaveOut || syscalls::candidates(image).next().is_none())
}

/// Consecutive functions divided into ranges of about [`CHUNK_BYTES`] each.
fn chunks(image: &Image<'_>) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (index, function) in image.functions().iter().enumerate() {
        bytes += function.range.end - function.range.start;
        if bytes >= CHUNK_BYTES {
            chunks.push(start..index + 1);
            start = index + 1;
            bytes = 0;
        }
    }
    chunks.push(start..image.functions().len());
    chunks
}

/// Plans the functions from number `first` on into `chunk`; `decoded` has an entry for each of them.
fn part(
    image: &Image<'_>,
    module: &ModuleKnowledge,
    options: &Options,
    mut chunk: Chunk,
    first: usize,
    decoded: Vec<Option<Function>>,
    analyst: &mut Analyst,
) -> Part {
    let conventions = module.conventions(image);
    let found = (first..)
        .zip(decoded)
        .map(|(index, decoded)| {
            let function =
                decoded.unwrap_or_else(|| Function::decode(image, &module.knowledge, index));
            let liveness = Liveness::of(&function, &conventions, analyst);
            let subject = Subject {
                function: &function,
                bytes: bytes_of(image, index),
                liveness: &liveness,
                unused: conventions.unused_vectors(&function),
            };
            let found = function::plan(&subject, options, analyst, &mut chunk);
            (FunctionView::of(&function), found)
        })
        .collect();
    Part { chunk, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files that this test is linked to: some make system calls, others do not.
    #[test]
    fn what_need_not_be_planned_has_nothing_to_patch() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut paths: Vec<&str> = maps
            .lines()
            .filter_map(|it| it.find('/').map(|at| &it[at..]))
            .collect();
        paths.dedup();
        let options = Options::bare(Hooks::Plant);
        let nothing_wrapped: Arc<[(u64, u32)]> = Arc::from([]);
        let mut counts = [0; 2];
        for path in paths {
            let Ok(bytes) = std::fs::read(path) else {
                continue;
            };
            let Ok(image) = Image::parse(&bytes) else {
                continue;
            };
            let is_empty = is_empty(&image, &options, &nothing_wrapped);
            let parts = Plan::parts(&image, &options, &nothing_wrapped);
            let found = parts.iter().flat_map(|part| &part.found);
            let hooks: usize = found.map(|(_, found)| found.hooks.len()).sum();
            assert!(!is_empty || hooks == 0, "{path}: {hooks}");
            counts[usize::from(is_empty)] += 1;
            let plan = Plan::make(&image, &options);
            assert_eq!(plan.hooks().count(), hooks, "{path}");
            assert!(plan.is_for(image.identity(), &options));
        }
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }
}
