//! Matches the rows of several profiles that are the same function, line or object.
//!
//! A change that helps often renames rows: a padded block is larger, an edited line has moved. Objects are
//! therefore matched by name, then without their size, then by the functions that allocated them.

use membound_types::{InsightKind, ObjectRow, Profile, Share};
use rustc_hash::FxHashMap;

/// Most objects of a run that are matched by more than their name. The most stalled ones are kept, because
/// each is compared with each.
const MAX_OBJECTS: usize = 200;

/// Function, line or object with its row in each run.
pub(crate) struct Group<'a> {
    /// Kind of row: `function`, `line` or `object`.
    pub kind: &'static str,
    pub name: String,
    /// Its figures in each run; `None` for a run without the row.
    pub rows: Vec<Option<&'a Share>>,
}

/// Subject of a finding, over all runs.
pub(crate) struct Subject {
    /// Name of the object's group; empty if the finding is not about an object.
    pub name: String,
    pub text: String,
    /// Cost as a share of CPU time, by run; `None` for a run without the finding.
    pub costs: Vec<Option<f64>>,
}

/// Rows of several profiles, matched.
pub(crate) struct Matched<'a> {
    profiles: &'a [&'a Profile],
    /// For each profile, names of its objects mapped to the name in the first profile that has the object.
    names: Vec<FxHashMap<&'a str, &'a str>>,
}

impl<'a> Matched<'a> {
    pub(crate) fn new(profiles: &'a [&'a Profile]) -> Self {
        Self {
            profiles,
            names: object_names(profiles),
        }
    }

    /// All functions, lines and objects.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group<'a>> {
        let functions = self.by_key("function", |_, profile| {
            profile
                .functions
                .iter()
                .map(|row| ((row.name.as_str(), file_name(&row.module)), &row.share))
                .collect()
        });
        let lines = self.by_key("line", |_, profile| {
            profile
                .lines
                .iter()
                .map(|row| ((row.name.as_str(), row.function.as_str()), &row.share))
                .collect()
        });
        let objects = self.by_key("object", |run, profile| {
            profile
                .objects
                .iter()
                .map(|row| ((self.name(run, &row.name), ""), &row.share))
                .collect()
        });
        functions.into_iter().chain(lines).chain(objects)
    }

    /// All findings; those about objects are matched by object.
    pub(crate) fn findings(&self) -> Vec<(InsightKind, Subject)> {
        let mut order: Vec<(InsightKind, &'a str)> = Vec::new();
        let mut subjects: FxHashMap<(InsightKind, &'a str), Subject> = FxHashMap::default();
        for (run, profile) in self.profiles.iter().enumerate() {
            let lines = profile
                .false_sharing
                .iter()
                .map(|line| (InsightKind::FalseSharing, line));
            let shared = lines.chain(
                profile
                    .true_sharing
                    .iter()
                    .map(|line| (InsightKind::TrueSharing, line)),
            );
            let mut found: Vec<(InsightKind, &str, f64)> = shared
                .map(|(kind, line)| (kind, line.object.as_str(), line.stall_fraction))
                .collect();
            for insight in &profile.findings {
                match insight.kind {
                    InsightKind::FalseSharing | InsightKind::TrueSharing => {}
                    InsightKind::HotObject | InsightKind::Placement => {
                        let about = profile
                            .objects
                            .iter()
                            .filter(|object| insight.text.contains(&object.name))
                            .max_by_key(|object| object.name.len());
                        if let Some(object) = about {
                            found.push((insight.kind, &object.name, object.share.stall_fraction));
                        }
                    }
                    kind => found.push((kind, "", profile.memory_bound.fraction)),
                }
            }
            for (kind, name, cost) in found {
                let name = self.name(run, name);
                let subject = subjects.entry((kind, name)).or_insert_with(|| {
                    order.push((kind, name));
                    Subject {
                        name: name.to_owned(),
                        text: if name.is_empty() {
                            String::new()
                        } else {
                            format!("in {name}")
                        },
                        costs: vec![None; self.profiles.len()],
                    }
                });
                let of_run = &mut subject.costs[run];
                *of_run = Some(of_run.unwrap_or(0.0) + cost);
            }
        }
        order
            .into_iter()
            .filter_map(|key| Some((key.0, subjects.remove(&key)?)))
            .collect()
    }

    /// Name of the object `name` of profile `run` in the first profile that has it.
    pub(crate) fn name(&self, run: usize, name: &'a str) -> &'a str {
        self.names[run].get(name).copied().unwrap_or(name)
    }

    fn by_key(
        &self,
        kind: &'static str,
        rows: impl Fn(usize, &'a Profile) -> Vec<((&'a str, &'a str), &'a Share)>,
    ) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut places: FxHashMap<(&str, &str), usize> = FxHashMap::default();
        for (run, profile) in self.profiles.iter().enumerate() {
            for (key, share) in rows(run, profile) {
                let place = *places.entry(key).or_insert_with(|| {
                    groups.push(Group {
                        kind,
                        name: key.0.to_owned(),
                        rows: vec![None; self.profiles.len()],
                    });
                    groups.len() - 1
                });
                groups[place].rows[run].get_or_insert(share);
            }
        }
        groups
    }
}

/// For each profile, the names of its objects mapped to those in the first profile with the object.
fn object_names<'a>(profiles: &[&'a Profile]) -> Vec<FxHashMap<&'a str, &'a str>> {
    let mut names: Vec<FxHashMap<&str, &str>> = Vec::new();
    for (run, profile) in profiles.iter().enumerate() {
        let earlier: Vec<(&ObjectRow, &str)> = profiles[..run]
            .iter()
            .zip(&names)
            .flat_map(|(profile, names)| {
                profile.objects.iter().take(MAX_OBJECTS).map(|object| {
                    let name = object.name.as_str();
                    (object, names.get(name).copied().unwrap_or(name))
                })
            })
            .collect();
        let mut of_run: FxHashMap<&str, &str> = FxHashMap::default();
        let mut taken: Vec<&str> = Vec::new();
        // Apply each method to all objects before the next, less certain one.
        for same in [same_name, same_place, same_callers] {
            for object in profile.objects.iter().take(MAX_OBJECTS) {
                if of_run.contains_key(object.name.as_str()) {
                    continue;
                }
                let mut matches = earlier
                    .iter()
                    .filter(|(other, name)| !taken.contains(name) && same(object, other))
                    .map(|(_, name)| *name);
                let Some(first) = matches.next() else {
                    continue;
                };
                let unique = matches.all(|other| other == first);
                let rivals = profile
                    .objects
                    .iter()
                    .take(MAX_OBJECTS)
                    .filter(|other| !of_run.contains_key(other.name.as_str()))
                    .filter(|other| same(object, other))
                    .count();
                if unique && rivals == 1 {
                    of_run.insert(&object.name, first);
                    taken.push(first);
                }
            }
        }
        names.push(of_run);
    }
    names
}

fn same_name(a: &ObjectRow, b: &ObjectRow) -> bool {
    a.kind == b.kind && a.name == b.name
}

fn same_place(a: &ObjectRow, b: &ObjectRow) -> bool {
    a.kind == b.kind && without_size(&a.name) == without_size(&b.name)
}

fn same_callers(a: &ObjectRow, b: &ObjectRow) -> bool {
    let (a_stack, b_stack) = (a.alloc_stack.iter(), b.alloc_stack.iter());
    a.kind == b.kind
        && !a.alloc_stack.is_empty()
        && a_stack
            .map(|frame| &frame.function)
            .eq(b_stack.map(|frame| &frame.function))
}

/// Name without the size in parentheses at its end.
pub(crate) fn without_size(name: &str) -> &str {
    match name.rfind(" (") {
        Some(at) if name.ends_with("B)") => &name[..at],
        _ => name,
    }
}

fn file_name(path: &str) -> &str {
    crate::names::file_name(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_at_the_end_does_not_tell_objects_apart() {
        assert_eq!(without_size("stddefines.h:52 (512 B)"), "stddefines.h:52");
        assert_eq!(without_size("stddefines.h:52 (1.5 KiB)"), "stddefines.h:52");
        assert_eq!(without_size("table"), "table");
        assert_eq!(without_size("stack of main (12)"), "stack of main (12)");
    }
}
