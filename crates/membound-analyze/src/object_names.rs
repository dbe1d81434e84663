//! Names of objects.
//!
//! A block is named after the line that allocated it: the innermost line that belongs neither to the
//! allocator nor to a language's library. Where several chains share that line (a wrapper like `xmalloc`),
//! the name adds the first caller that distinguishes the chain from all others.

use membound_run::{ObjectClass, RunData};
use rustc_hash::FxHashMap;

use crate::allocation_chain::allocation_chain;
use crate::object_group::Group;
use crate::places::Places;
use crate::{alloc_frames, names};

/// Gives each of `groups` a unique name.
pub(crate) fn name(run: &RunData, places: &Places<'_>, groups: &mut [Group]) {
    let chains: Vec<Vec<String>> = groups
        .iter()
        .map(|group| {
            group.stack.map_or_else(Vec::new, |stack| {
                if matches!(group.kind, ObjectClass::Heap | ObjectClass::Mapped) {
                    labels(run, places, stack)
                } else {
                    Vec::new()
                }
            })
        })
        .collect();
    let distinguishing_labels = distinguishing_labels(&chains);
    for ((group, chain), label) in groups.iter_mut().zip(&chains).zip(distinguishing_labels) {
        group.name = match chain.first() {
            Some(line) => {
                let caller = label.map(|at| format!(" from {}", chain[at]));
                let size = names::size(group.size_bytes);
                format!("{line}{} ({size})", caller.unwrap_or_default())
            }
            None => without_chain(run, places, group),
        };
    }
    let mut uses: FxHashMap<String, u32> = FxHashMap::default();
    for group in groups {
        let count = uses.entry(group.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            group.name = format!("{} #{count}", group.name);
        }
    }
}

/// Labels of a chain's frames, from the one that names the object outwards.
fn labels(run: &RunData, places: &Places<'_>, stack: membound_run::StackId) -> Vec<String> {
    let chain = allocation_chain(run, places, stack);
    let first = chain
        .iter()
        .position(|frame| {
            let file = frame.file.as_deref().unwrap_or_default();
            !alloc_frames::is_library(&frame.function) && !alloc_frames::is_library_file(file)
        })
        .unwrap_or(0);
    chain[first..]
        .iter()
        .map(|frame| match (&frame.file, frame.line) {
            (Some(file), Some(line)) => format!("{}:{line}", places.short_file(file)),
            _ => frame.function.clone(),
        })
        .collect()
}

/// For each chain, the index of the label that distinguishes it from all others with the same first label;
/// `None` if no label is needed or none suffices.
fn distinguishing_labels(chains: &[Vec<String>]) -> Vec<Option<usize>> {
    // Number each prefix of a chain: a prefix's number is found from the number of the prefix that is one
    // label shorter.
    let mut numbers: FxHashMap<(u32, &str), u32> = FxHashMap::default();
    let mut shared: Vec<u32> = vec![0];
    let beginnings: Vec<Vec<u32>> = chains
        .iter()
        .map(|chain| {
            let mut number = 0;
            chain
                .iter()
                .map(|label| {
                    let next = shared.len() as u32;
                    number = *numbers.entry((number, label)).or_insert(next);
                    if number == next {
                        shared.push(0);
                    }
                    shared[number as usize] += 1;
                    number
                })
                .collect()
        })
        .collect();
    beginnings
        .iter()
        .map(|chain| {
            chain
                .iter()
                .position(|&number| shared[number as usize] == 1)
                .filter(|&at| at > 0)
        })
        .collect()
}

fn without_chain(run: &RunData, places: &Places<'_>, group: &Group) -> String {
    let Some(object) = group.objects.first().map(|id| &run.objects[id.index()]) else {
        return "unknown memory".to_owned();
    };
    let named = |unnamed: &str| {
        if object.name.is_empty() {
            unnamed.to_owned()
        } else {
            object.name.clone()
        }
    };
    match group.kind {
        ObjectClass::Heap => format!("heap blocks ({})", names::size(group.size_bytes)),
        ObjectClass::Mapped => format!("mapped memory ({})", names::size(group.size_bytes)),
        ObjectClass::File => {
            if object.name.is_empty() {
                "mapped file".to_owned()
            } else {
                names::file_name(&object.name).to_owned()
            }
        }
        ObjectClass::Global => {
            let mapping = run.mappings.iter().find(|mapping| {
                mapping.process == object.process
                    && (mapping.start..mapping.end).contains(&object.address)
            });
            let path = places.module_path(mapping.map(|mapping| mapping.module));
            named(&if path.is_empty() {
                "data".to_owned()
            } else {
                format!("data of {}", names::file_name(path))
            })
        }
        ObjectClass::Stack => match object.thread.map(|id| &run.threads[id.index()]) {
            Some(thread) if thread.name.is_empty() => format!("stack of thread {}", thread.tid),
            Some(thread) => format!("stack of {} ({})", thread.name, thread.tid),
            None => named("stack"),
        },
        ObjectClass::Unknown => "unknown memory".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chains: &[&[&str]], expected: &[Option<usize>]) {
        let chains: Vec<Vec<String>> = chains
            .iter()
            .map(|chain| chain.iter().map(|&label| label.to_owned()).collect())
            .collect();
        assert_eq!(distinguishing_labels(&chains), expected);
    }

    #[test]
    fn a_line_of_its_own_needs_no_caller() {
        check(
            &[&["a.c:1", "main.c:1"], &["b.c:1", "main.c:1"]],
            &[None, None],
        );
    }

    #[test]
    fn wrappers_are_looked_through_to_the_first_difference() {
        check(
            &[
                &["x.c:1", "y.c:2", "main.c:3"],
                &["x.c:1", "y.c:2", "main.c:4"],
                &["x.c:1", "z.c:9", "main.c:5"],
            ],
            &[Some(2), Some(2), Some(1)],
        );
    }

    #[test]
    fn a_chain_that_begins_another_has_no_distinguishing_caller() {
        check(
            &[&["x.c:1", "y.c:2"], &["x.c:1", "y.c:2", "m.c:1"]],
            &[None, Some(2)],
        );
    }
}
