//! Compares several profiles with the first one.

use std::collections::{BTreeMap, HashMap};

use membound_types::{
    ComparedFigure, ComparedProfile, ComparedValue, Comparison, ComparisonSummary,
    FigureDifference, FigureVerdict, Kind, PageKind, SCHEMA_VERSION, Worse,
};

use super::figures::{ProfileFigure, figures};
use super::noise::{Test, Uncertain, benjamini_hochberg, test};
use super::view::NamedProfile;
use super::{FALSE_DISCOVERY_RATE, curves, method, overlays, table};

/// Compares every profile with the first.
///
/// If `reference` is given, all profiles are compared with it instead: a fleet's median, whose
/// figures have the fleet's scatter as intervals and which has no curves.
#[must_use]
pub fn compare(
    profiles: &[NamedProfile],
    reference: Option<(ComparedProfile, Vec<ProfileFigure>)>,
) -> Comparison {
    let names = short_names(profiles);
    let mut heads: Vec<ComparedProfile> = profiles
        .iter()
        .zip(&names)
        .map(|(profile, name)| head(profile, name))
        .collect();
    let mut tables: Vec<Vec<ProfileFigure>> = profiles
        .iter()
        .map(|profile| figures(&profile.view))
        .collect();
    let compared_curves = match (&reference, profiles.split_first()) {
        (None, Some((first, others))) => {
            let first = curves::curves(&first.view);
            others
                .iter()
                .zip(&names[1..])
                .flat_map(|(other, name)| {
                    curves::compare(&first, &curves::curves(&other.view), name)
                })
                .collect()
        }
        _ => Vec::new(),
    };
    let mut conditions: Vec<_> = profiles
        .iter()
        .zip(&names)
        .flat_map(|(profile, name)| table::rows(name, &profile.view))
        .collect();
    table::finish(&mut conditions);
    let overlays = overlays::overlays(profiles, &names);
    if let Some((profile, figures)) = reference {
        heads.insert(0, profile);
        tables.insert(0, figures);
    }
    let compared = columns(&tables);
    let mut notes = notes(&heads, &compared);
    for (profile, name) in profiles.iter().zip(&names) {
        let own = profile.view.notes.iter();
        notes.extend(own.map(|note| format!("{name}: {note}")));
        let mut rows = conditions.iter().filter(|row| row.profile == *name);
        if table::lacks_thp(&profile.view.conditions().labels)
            && rows.any(|row| row.page == PageKind::Thp)
        {
            notes.push(format!(
                "{name} is labelled guest-thp=off and has times on thp pages: the label did not \
                 switch them off"
            ));
        }
    }
    Comparison {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Comparison,
        summaries: summaries(&heads, &compared),
        profiles: heads,
        method: method(),
        figures: compared,
        curves: compared_curves,
        conditions,
        overlays,
        fleets: Vec::new(),
        skipped: Vec::new(),
        guard: None,
        notes,
    }
}

fn head(profile: &NamedProfile, name: &str) -> ComparedProfile {
    let view = &profile.view;
    let conditions = view.conditions();
    ComparedProfile {
        name: name.to_owned(),
        file: profile.file.clone(),
        host: view.host().to_owned(),
        date: view.date().to_owned(),
        cpu: view.cpu_name(),
        kernel: conditions.kernel.clone(),
        hypervisor: conditions.hypervisor.clone(),
        labels: conditions.labels.clone(),
        incomplete: view.incomplete,
        median_of: None,
    }
}

/// The shortest names that distinguish the profiles: differing condition labels, hosts, file stems,
/// or whole file names.
fn short_names(profiles: &[NamedProfile]) -> Vec<String> {
    let labelled = profiles
        .iter()
        .any(|profile| !distinguishing_labels(profile, profiles).is_empty());
    let labels = |profile: &NamedProfile| {
        let words = table::label_words(&distinguishing_labels(profile, profiles));
        if labelled && words.is_empty() {
            // One run may be the only one without a label.
            "no label".to_owned()
        } else {
            words.join(",")
        }
    };
    let host = |profile: &NamedProfile| profile.view.host().to_owned();
    let stem = |profile: &NamedProfile| {
        let file = profile.file.rsplit('/').next().unwrap_or_default();
        let endings = [".json", ".txt", ".csv"];
        let stem = endings.iter().find_map(|ending| file.strip_suffix(ending));
        stem.unwrap_or(file).to_owned()
    };
    let distinct = |names: &[String]| {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        sorted.dedup();
        sorted.len() == names.len() && names.iter().all(|name| !name.is_empty())
    };
    let namings: [&dyn Fn(&NamedProfile) -> String; 4] =
        [&labels, &host, &stem, &|profile| profile.file.clone()];
    for naming in namings {
        let names: Vec<String> = profiles.iter().map(naming).collect();
        if distinct(&names) {
            return names;
        }
    }
    // The same file was given twice.
    profiles
        .iter()
        .enumerate()
        .map(|(index, profile)| format!("{} ({})", stem(profile), index + 1))
        .collect()
}

/// The labels of a profile without those that all profiles have in common. The labels of the host's
/// and the guest's huge pages both stay if either differs: the document's short form needs both.
fn distinguishing_labels(profile: &NamedProfile, all: &[NamedProfile]) -> BTreeMap<String, String> {
    let labels = &profile.view.conditions().labels;
    let differs = |name: &str| {
        all.iter()
            .any(|other| other.view.conditions().labels.get(name) != labels.get(name))
    };
    let huge = ["host-thp", "guest-thp"];
    let huge_differ = huge.into_iter().any(differs);
    labels
        .iter()
        .filter(|(name, _)| differs(name) || (huge_differ && huge.contains(&name.as_str())))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The figures of all profiles by name, in order of first occurrence within each part.
fn columns(tables: &[Vec<ProfileFigure>]) -> Vec<ComparedFigure> {
    let mut order: Vec<&ProfileFigure> = Vec::new();
    let mut rows: HashMap<&str, Vec<Option<Uncertain>>> = HashMap::new();
    for (column, table) in tables.iter().enumerate() {
        for figure in table {
            let row = rows.entry(&figure.name).or_insert_with(|| {
                order.push(figure);
                vec![None; tables.len()]
            });
            row[column] = Some(figure.uncertain);
        }
    }
    // A figure that only a later profile has is sorted to the others of its part.
    let mut parts: Vec<&str> = Vec::new();
    for figure in &order {
        if !parts.contains(&figure.part) {
            parts.push(figure.part);
        }
    }
    order.sort_by_key(|figure| parts.iter().position(|part| *part == figure.part));
    let mut figures: Vec<ComparedFigure> = order
        .iter()
        .map(|figure| ComparedFigure {
            name: figure.name.clone(),
            part: figure.part.to_owned(),
            title: figure.title.clone(),
            unit: figure.unit.to_owned(),
            worse: figure.worse,
            values: rows[figure.name.as_str()]
                .iter()
                .map(|value| value.map(compared_value))
                .collect(),
            differences: vec![None; tables.len()],
        })
        .collect();
    for column in 1..tables.len() {
        differences(&mut figures, &order, &rows, column);
    }
    figures
}

fn compared_value(value: Uncertain) -> ComparedValue {
    ComparedValue {
        value: value.value,
        low: value.interval.map(|(low, _)| low),
        high: value.interval.map(|(_, high)| high),
    }
}

/// Fills the differences of one profile, with p-values corrected for their number.
fn differences(
    figures: &mut [ComparedFigure],
    order: &[&ProfileFigure],
    rows: &HashMap<&str, Vec<Option<Uncertain>>>,
    column: usize,
) {
    let tests: Vec<Option<(Uncertain, Uncertain, Test)>> = order
        .iter()
        .map(|figure| {
            let row = &rows[figure.name.as_str()];
            let (first, later) = (row[0]?, row[column]?);
            Some((first, later, test(&first, &later)))
        })
        .collect();
    let p_values: Vec<f64> = tests
        .iter()
        .flatten()
        .filter_map(|(_, _, test)| test.p_value)
        .collect();
    let mut corrected = benjamini_hochberg(&p_values).into_iter();
    for (figure, test) in figures.iter_mut().zip(tests) {
        figure.differences[column] = test.map(|(first, later, test)| {
            let p_value = test.p_value.and_then(|_| corrected.next());
            let absolute = later.value - first.value;
            FigureDifference {
                absolute,
                relative: test.relative.map(|(change, ..)| change),
                relative_low: test.relative.map(|(_, low, _)| low),
                relative_high: test.relative.map(|(.., high)| high),
                p_value,
                verdict: match p_value {
                    None => FigureVerdict::Unknown,
                    Some(p) if p <= FALSE_DISCOVERY_RATE => FigureVerdict::Different,
                    Some(_) => FigureVerdict::Same,
                },
                worse: is_worse(figure.worse, absolute),
            }
        });
    }
}

/// True if a change by `absolute` is a change for the worse.
pub(super) fn is_worse(worse: Worse, absolute: f64) -> bool {
    match worse {
        Worse::Higher => absolute > 0.0,
        Worse::Lower => absolute < 0.0,
        Worse::Neither => false,
    }
}

fn summaries(profiles: &[ComparedProfile], figures: &[ComparedFigure]) -> Vec<ComparisonSummary> {
    profiles
        .iter()
        .enumerate()
        .skip(1)
        .map(|(column, profile)| {
            let mut summary = ComparisonSummary {
                profile: profile.name.clone(),
                compared: 0,
                same: 0,
                worse: 0,
                better: 0,
                neither: 0,
                unknown: 0,
                missing: 0,
            };
            for figure in figures {
                let Some(difference) = figure.differences[column] else {
                    let any = figure.values[0].is_some() || figure.values[column].is_some();
                    summary.missing += usize::from(any);
                    continue;
                };
                summary.compared += 1;
                match difference.verdict {
                    FigureVerdict::Same => summary.same += 1,
                    FigureVerdict::Unknown => summary.unknown += 1,
                    FigureVerdict::Different if difference.worse => summary.worse += 1,
                    FigureVerdict::Different if figure.worse == Worse::Neither => {
                        summary.neither += 1;
                    }
                    FigureVerdict::Different => summary.better += 1,
                }
            }
            summary
        })
        .collect()
}

fn notes(profiles: &[ComparedProfile], figures: &[ComparedFigure]) -> Vec<String> {
    let mut notes = Vec::new();
    let Some((first, others)) = profiles.split_first() else {
        return notes;
    };
    for (column, other) in others.iter().enumerate() {
        let known = !other.cpu.is_empty() && !first.cpu.is_empty();
        if known && other.cpu != first.cpu {
            notes.push(format!(
                "{} is another processor than {}: {} and {}",
                other.name, first.name, other.cpu, first.cpu
            ));
        }
        if figures
            .iter()
            .all(|figure| figure.differences[column + 1].is_none())
        {
            notes.push(format!(
                "{} and {} have no figure in common",
                first.name, other.name
            ));
            continue;
        }
        for (name, mine, with, theirs) in [
            (&other.name, column + 1, &first.name, 0),
            (&first.name, 0, &other.name, column + 1),
        ] {
            let absent = absent_parts(figures, mine, theirs);
            if !absent.is_empty() {
                notes.push(format!(
                    "{name} has no {}, which {with} has",
                    absent.join(", ")
                ));
            }
        }
    }
    for profile in profiles.iter().filter(|profile| profile.incomplete) {
        notes.push(format!(
            "{} is incomplete: the run was cut short or a part failed",
            profile.name
        ));
    }
    notes
}

/// Parts of which the profile in column `theirs` has figures and the one in `mine` has none.
fn absent_parts(figures: &[ComparedFigure], mine: usize, theirs: usize) -> Vec<&str> {
    let has = |part: &str, column: usize| {
        figures
            .iter()
            .any(|figure| figure.part == part && figure.values[column].is_some())
    };
    let mut parts: Vec<&str> = figures.iter().map(|figure| figure.part.as_str()).collect();
    parts.dedup();
    parts.retain(|part| has(part, theirs) && !has(part, mine));
    parts
}
