//! Finds the rows of runs that an expression names.

use membound_types::{GateSubject, Profile, Share};

use super::expression::Expression;
use crate::compare::matching::{Matched, without_size};
use crate::spread::Observation;

/// Most similar names in an error message.
const MAX_NEAR: usize = 3;

/// Smallest similarity to the given name (Jaro and Winkler, 0 to 1) for a suggestion.
const MIN_NAME_SIMILARITY: f64 = 0.8;

/// Stalled share of the subject of `expression`, by run; `None` if no run has it.
pub(super) fn observations(
    expression: &Expression,
    runs: &[&Profile],
    matched: &Matched<'_>,
) -> Option<Vec<Observation>> {
    if expression.subject == GateSubject::MemoryBound {
        return Some(runs.iter().map(|run| Observation::of_bound(run)).collect());
    }
    let accepted_names = guarded_names(expression, runs, matched);
    let rows: Vec<Option<Observation>> = runs
        .iter()
        .enumerate()
        .map(|(number, run)| {
            let of_run: Vec<Observation> = named_rows(expression.subject, run)
                .filter(|row| match expression.subject {
                    GateSubject::Object => accepted_names.contains(&matched.name(number, row.name)),
                    _ => row.is(expression),
                })
                .map(|row| Observation::of_row(row.share, run))
                .collect();
            Observation::sum(&of_run)
        })
        .collect();
    rows.iter().any(Option::is_some).then(|| {
        rows.into_iter()
            .zip(runs)
            .map(|(row, run)| row.unwrap_or_else(|| Observation::without_row(run)))
            .collect()
    })
}

/// Row with its name.
struct Named<'a> {
    subject: GateSubject,
    name: &'a str,
    /// Source file and line.
    place: Option<(&'a str, u32)>,
    share: &'a Share,
}

impl Named<'_> {
    fn is(&self, expression: &Expression) -> bool {
        let guarded_name = expression.name.as_str();
        if self.name == guarded_name {
            return true;
        }
        match self.subject {
            GateSubject::Object => without_size(self.name) == guarded_name,
            GateSubject::Function => {
                let arguments = self.name.strip_prefix(guarded_name);
                arguments.is_some_and(|rest| rest.starts_with('('))
            }
            GateSubject::Line => self.is_line(guarded_name),
            GateSubject::MemoryBound | GateSubject::FalseSharing => false,
        }
    }

    /// True if `guarded_name` is the end of the row's path with its line.
    fn is_line(&self, guarded_name: &str) -> bool {
        let (Some((path, line)), Some((file, number))) =
            (self.place, guarded_name.rsplit_once(':'))
        else {
            return false;
        };
        let before = path.strip_suffix(file.trim_start_matches("./"));
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
            && number.parse() == Ok(line)
    }
}

fn named_rows(subject: GateSubject, run: &Profile) -> impl Iterator<Item = Named<'_>> {
    let code = match subject {
        GateSubject::Line => run.lines.as_slice(),
        GateSubject::Function => run.functions.as_slice(),
        _ => &[],
    };
    let objects = match subject {
        GateSubject::Object => run.objects.as_slice(),
        _ => &[],
    };
    let code = code.iter().map(move |row| Named {
        subject,
        name: &row.name,
        place: row.file.as_deref().zip(row.line),
        share: &row.share,
    });
    code.chain(objects.iter().map(move |row| Named {
        subject,
        name: &row.name,
        place: None,
        share: &row.share,
    }))
}

/// Names that the requested objects have in the first run with them: a padded block is the same object
/// under another name.
fn guarded_names<'a>(
    expression: &Expression,
    runs: &[&'a Profile],
    matched: &Matched<'a>,
) -> Vec<&'a str> {
    if expression.subject != GateSubject::Object {
        return Vec::new();
    }
    let mut names = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        for row in named_rows(GateSubject::Object, run).filter(|row| row.is(expression)) {
            let name = matched.name(number, row.name);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Names that may have been meant, most similar first; if none is similar, the most stalled ones.
pub(super) fn near_names<'a>(expression: &Expression, runs: &[&'a Profile]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for run in runs {
        for row in named_rows(expression.subject, run) {
            if !names.contains(&row.name) {
                names.push(row.name);
            }
        }
    }
    let guarded_name = expression.name.to_lowercase();
    let mut alike: Vec<(f64, &str)> = names
        .iter()
        .map(|name| (likeness(&guarded_name, &name.to_lowercase()), *name))
        .filter(|(likeness, _)| *likeness >= MIN_NAME_SIMILARITY)
        .collect();
    // The sort is stable: names that are equally similar stay sorted by stall.
    alike.sort_by(|a, b| b.0.total_cmp(&a.0));
    if !alike.is_empty() {
        names = alike.into_iter().map(|(_, name)| name).collect();
    }
    names.truncate(MAX_NEAR);
    names
}

fn likeness(guarded_name: &str, name: &str) -> f64 {
    if name.contains(guarded_name) {
        return 1.0;
    }
    strsim::jaro_winkler(guarded_name, name)
}
