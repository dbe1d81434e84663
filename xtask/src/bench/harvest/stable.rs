//! Whether plans choose the same loads whatever the sampling period of the profile.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use membound_types::HarvestRole;
use serde_json::{Value, json};

use super::super::common::verdict;
use super::arithmetic::agreement;
use super::bed::{Bed, Words, chosen};
use super::failure::failed;
use super::kv;
use crate::run::{program, say, stdout_of};

/// CPU time between two samples in milliseconds: a hundredfold range. The others are compared with
/// the first.
const PERIODS_MS: [&str; 4] = ["0.25", "1.27", "5", "25"];
/// Option by which `harvest plan` receives the previous plan.
const PREVIOUS: &str = "--previous";

/// A plan at one period.
struct Planned {
    plan: PathBuf,
    sites: BTreeSet<(String, u64)>,
}

pub(super) fn run(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let help = stdout_of(program(bed.membound).args(["harvest", "plan", "--help"]))?;
    let ways: &[bool] = if help.contains(PREVIOUS) {
        &[false, true]
    } else {
        say("this membound's `harvest plan` has no --previous: plans stand for themselves");
        &[false]
    };
    let repeats = bed.amount(16);
    let primaries = [
        ("kv", kv::store(bed, 1000, 0)),
        (
            "join",
            bed.words("join", ["4194304", "8388608", "1", &repeats]),
        ),
    ];
    say("primary  period      plan       yields  in both  in either  the same");
    let mut summary = Vec::new();
    for (name, words) in &primaries {
        for previous in ways {
            let mut first: Option<Planned> = None;
            for period in PERIODS_MS {
                let before = first.as_ref().filter(|_| *previous);
                let found = match planned(bed, words, period, before) {
                    Ok(found) => found,
                    Err(error) => {
                        say(format_args!("{name:<9}{period:>5} ms"));
                        let failed = failed(&error);
                        let row = json!({ "primary": name, "period_ms": period, "failed": failed });
                        summary.push(row);
                        continue;
                    }
                };
                let base = first.as_ref().map_or(&found.sites, |first| &first.sites);
                let share = agreement(base, &found.sites);
                let how = if before.is_some() {
                    "after one"
                } else {
                    "by itself"
                };
                let both = base.intersection(&found.sites).count();
                let either = base.union(&found.sites).count();
                say(format_args!(
                    "{name:<9}{period:>5} ms   {how:<11}{:>6}{both:>9}{either:>11}{:>8.0} % {}",
                    found.sites.len(),
                    share * 100.0,
                    judged(first.is_some(), both, either),
                ));
                summary.push(json!({
                    "primary": name, "period_ms": period, "previous": before.is_some(),
                    "yields": found.sites.len(), "both": both, "either": either,
                    "agreement": share,
                    "sites": found.sites.iter().map(|(_, at)| at).collect::<Vec<_>>(),
                }));
                first.get_or_insert(found);
            }
        }
    }
    Ok(summary)
}

/// Verdict on a choice: empty for the first, with which others are compared, and `no yields` if
/// neither plan has any.
const fn judged(compared: bool, both: usize, either: usize) -> &'static str {
    match (compared, either) {
        (_, 0) => "no yields",
        (false, _) => "",
        (true, _) => verdict(both == either),
    }
}

/// The plan of a run that was sampled every `period` milliseconds, given the plan before.
fn planned(
    bed: &Bed<'_>,
    words: &Words,
    period: &str,
    before: Option<&Planned>,
) -> Result<Planned> {
    let run = bed.recorded(words, &["--period", period])?;
    let before = before.map(|before| before.plan.display().to_string());
    let options: Vec<&str> = before
        .iter()
        .flat_map(|path| [PREVIOUS, path.as_str()])
        .collect();
    let plan = bed.planned(&run, HarvestRole::Primary, &options)?;
    let sites = chosen(&plan)?;
    Ok(Planned { plan, sites })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_nothing_do_not_agree() {
        assert_eq!(judged(true, 0, 0), "no yields");
        assert_eq!(judged(false, 2, 2), "");
        assert_eq!(judged(true, 2, 2), verdict(true));
        assert_eq!(judged(true, 1, 2), verdict(false));
    }
}
