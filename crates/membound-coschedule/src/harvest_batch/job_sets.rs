//! Chooses which jobs run together in a harvest: jobs whose plans promise a gain, where an earlier harvest of
//! the same programs gained. Has no side effects.

use std::collections::BTreeSet;

use membound_types::{BatchHarvest, BatchSetReason};

use super::batch_history::Record;

/// A waiting job that could be a scavenger.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    /// Its index.
    pub(super) job: usize,
    /// Key of its program in the record.
    pub(super) key: &'a str,
    /// Share of its CPU time that others can use, from its plan.
    pub(super) gain_fraction: f64,
}

/// Jobs to run together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JobSet {
    /// Their indices.
    pub(super) jobs: Vec<usize>,
    /// Key of the set in the record.
    pub(super) key: String,
    pub(super) why: BatchSetReason,
}

/// Result of looking for a set.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    /// No set: jobs run as ordinary processes.
    None,
    /// No set now: these jobs could be tried together, but only one chance in [`CHANCES_PER_TRIAL`] is used.
    NotYet(Vec<usize>),
    Set(JobSet),
}

/// Maximum number of jobs in a harvest.
const MAX_SCAVENGERS: usize = 16;
/// Minimum gain share of a plan: a program with less would have no time slices in a harvest.
const MIN_GAIN_FRACTION: f64 = 0.1;
/// Minimum predicted ratio of ordinary to harvested time for a trial.
const MIN_PROMISE: f64 = 1.3;
/// Minimum measured ratio for a set to be harvested again.
const MIN_MEASURED: f64 = 1.03;
/// One in this many chances to try an unmeasured set is used.
const CHANCES_PER_TRIAL: u64 = 8;

/// Looks for a set among the candidates, when `free` slots are to be filled with `waiting` jobs. The more
/// jobs there are per slot, the more of them may share one.
pub(super) fn choose(
    candidates: &[Candidate<'_>],
    waiting: usize,
    free: usize,
    harvest: BatchHarvest,
    record: &Record,
) -> Choice {
    let most = waiting.div_ceil(free.max(1)).min(MAX_SCAVENGERS);
    let gaining: Vec<&Candidate<'_>> = candidates
        .iter()
        .filter(|it| it.gain_fraction >= MIN_GAIN_FRACTION)
        .collect();
    if harvest == BatchHarvest::Off || most < 2 || gaining.len() < 2 {
        return Choice::None;
    }
    let mut sets: Vec<(JobSet, f64)> = Vec::new();
    let mut may_be_tried = None;
    for members in groups(&gaining, most) {
        let key = key(&members);
        let known = record.set(&key);
        let promise = promise(&members, record);
        let (why, gain) = match (harvest, known) {
            (BatchHarvest::On, _) => (BatchSetReason::Asked, promise),
            (_, Some(known)) if known.gain >= MIN_MEASURED => {
                (BatchSetReason::Measured, known.gain)
            }
            (_, Some(_)) => continue,
            // Without ordinary runs to compare with, the gain of a trial would be unknown.
            (_, None) if promise >= MIN_PROMISE && all_known(&members, record) => {
                (BatchSetReason::Trial, 0.0)
            }
            (_, None) => continue,
        };
        let jobs: Vec<usize> = members.iter().map(|it| it.job).collect();
        if why == BatchSetReason::Trial {
            may_be_tried.get_or_insert_with(|| jobs.clone());
        }
        sets.push((JobSet { jobs, key, why }, gain));
    }
    let allows_trial = (record.chances + 1).is_multiple_of(CHANCES_PER_TRIAL);
    sets.retain(|(set, gain)| match set.why {
        BatchSetReason::Trial => allows_trial,
        BatchSetReason::Asked => *gain > 1.0,
        BatchSetReason::Measured => true,
    });
    let best = sets
        .into_iter()
        .reduce(|best, other| if other.1 > best.1 { other } else { best });
    match (best, may_be_tried) {
        (Some((set, _)), _) => Choice::Set(set),
        (None, Some(jobs)) => Choice::NotYet(jobs),
        (None, None) => Choice::None,
    }
}

/// Whether this choice used up a chance for a trial.
pub(super) fn is_chance(choice: &Choice) -> bool {
    match choice {
        Choice::NotYet(_) => true,
        Choice::Set(set) => set.why == BatchSetReason::Trial,
        Choice::None => false,
    }
}

/// The sets that are considered: the first jobs of all programs, and the first jobs of each program by
/// itself.
fn groups<'a, 'b>(candidates: &[&'b Candidate<'a>], most: usize) -> Vec<Vec<&'b Candidate<'a>>> {
    let programs: BTreeSet<&str> = candidates.iter().map(|it| it.key).collect();
    let mut groups = vec![candidates.iter().copied().take(most).collect::<Vec<_>>()];
    if programs.len() > 1 {
        for program in programs {
            let own = candidates.iter().filter(|it| it.key == program);
            groups.push(own.copied().take(most).collect());
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Key of a set: its programs, however many jobs each has.
fn key(members: &[&Candidate<'_>]) -> String {
    let programs: BTreeSet<&str> = members.iter().map(|it| it.key).collect();
    programs.into_iter().collect::<Vec<_>>().join(" + ")
}

fn all_known(members: &[&Candidate<'_>], record: &Record) -> bool {
    members.iter().all(|it| record.program(it.key).is_some())
}

/// The predicted gain: CPU time of all jobs over the time that is left when each runs in the others' stalls,
/// which is at least that of the longest job. If a job's time is unknown, all count as equally long.
fn promise(members: &[&Candidate<'_>], record: &Record) -> f64 {
    let is_known = all_known(members, record);
    let cpu_s = |it: &Candidate<'_>| {
        let known = record.program(it.key).filter(|_| is_known);
        known.map_or(1.0, |known| known.cpu_s)
    };
    let all: f64 = members.iter().map(|it| cpu_s(it)).sum();
    let busy: f64 = members
        .iter()
        .map(|it| cpu_s(it) * (1.0 - it.gain_fraction.clamp(0.0, 1.0)))
        .sum();
    let longest = members.iter().map(|it| cpu_s(it)).fold(0.0, f64::max);
    let least = busy.max(longest);
    if least > 0.0 { all / least } else { 1.0 }
}

/// The measured gain of a harvest over ordinary runs: the smaller of the ratios of wall times and of CPU
/// times, each given as (ordinary, harvested).
pub(super) fn gain(wall_s: (f64, f64), cpu_s: (f64, f64)) -> Option<f64> {
    let ratio = |(alone, together): (f64, f64)| (together > 0.0).then_some(alone / together);
    Some(ratio(wall_s)?.min(ratio(cpu_s)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates<'a>(keys: &[(&'a str, f64)]) -> Vec<Candidate<'a>> {
        keys.iter()
            .enumerate()
            .map(|(job, (key, gain_fraction))| Candidate {
                job,
                key,
                gain_fraction: *gain_fraction,
            })
            .collect()
    }

    fn known(programs: &[&str]) -> Record {
        let mut record = Record::default();
        for program in programs {
            record.ran(program, 2.0, 2.0, 1);
        }
        record
    }

    fn chosen(choice: Choice) -> (Vec<usize>, BatchSetReason) {
        match choice {
            Choice::Set(set) => (set.jobs, set.why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn predicted_gain_is_limited_by_the_stalls() {
        let record = known(&["a", "b"]);
        let check = |keys: &[(&str, f64)], expected: f64| {
            let all = candidates(keys);
            let members: Vec<_> = all.iter().collect();
            let found = promise(&members, &record);
            assert!((found - expected).abs() < 1e-9, "{keys:?}: {found}");
        };
        check(&[("a", 0.8); 4], 4.0);
        check(&[("a", 0.5); 4], 2.0);
        // No shorter than the longest job.
        check(&[("a", 0.9); 2], 2.0);
        check(&[("a", 0.0); 4], 1.0);
        check(&[("a", 0.5), ("z", 0.5)], 2.0);
    }

    #[test]
    fn without_measurement_one_set_in_eight_is_tried() {
        let all = candidates(&[("a", 0.8); 8]);
        let mut record = known(&["a"]);
        let mut tried = 0;
        for _ in 0..24 {
            let choice = choose(&all, 8, 2, BatchHarvest::Auto, &record);
            assert!(is_chance(&choice));
            record.chances += 1;
            let jobs = vec![0, 1, 2, 3];
            if choice != Choice::NotYet(jobs.clone()) {
                assert_eq!(chosen(choice), (jobs, BatchSetReason::Trial));
                tried += 1;
            }
        }
        assert_eq!(tried, 3);
        // The plans promise little, or there are no ordinary runs to compare with.
        let few = candidates(&[("a", 0.2); 8]);
        let choice = choose(&few, 8, 2, BatchHarvest::Auto, &record);
        assert_eq!((is_chance(&choice), choice), (false, Choice::None));
        let unknown = Record::default();
        assert_eq!(
            choose(&all, 8, 2, BatchHarvest::Auto, &unknown),
            Choice::None
        );
    }

    #[test]
    fn measured_gain_overrides_predicted_gain() {
        let all = candidates(&[("a", 0.8); 8]);
        let mut record = known(&["a"]);
        record.harvested("a", 1.5, 1);
        let choice = choose(&all, 8, 4, BatchHarvest::Auto, &record);
        assert_eq!(chosen(choice), (vec![0, 1], BatchSetReason::Measured));
        let mut lost = known(&["a"]);
        lost.harvested("a", 0.9, 1);
        for chances in 0..8 {
            lost.chances = chances;
            assert_eq!(choose(&all, 8, 4, BatchHarvest::Auto, &lost), Choice::None);
        }
        assert_eq!(choose(&all, 8, 4, BatchHarvest::Off, &record), Choice::None);
        // The user may insist on it.
        let choice = choose(&all, 8, 4, BatchHarvest::On, &lost);
        assert_eq!(chosen(choice), (vec![0, 1], BatchSetReason::Asked));
    }

    #[test]
    fn of_several_sets_the_one_that_gained_most_is_chosen() {
        let all = candidates(&[("a", 0.8), ("b", 0.8), ("a", 0.8), ("b", 0.8)]);
        let mut record = known(&["a", "b"]);
        record.harvested("a + b", 0.8, 1);
        record.harvested("b", 1.4, 1);
        let choice = choose(&all, 4, 1, BatchHarvest::Auto, &record);
        assert_eq!(chosen(choice), (vec![1, 3], BatchSetReason::Measured));
        record.harvested("a", 2.0, 1);
        let choice = choose(&all, 4, 1, BatchHarvest::Auto, &record);
        assert_eq!(chosen(choice), (vec![0, 2], BatchSetReason::Measured));
    }

    #[test]
    fn jobs_that_have_slots_of_their_own_share_none() {
        let all = candidates(&[("a", 0.8); 2]);
        let choice = choose(&all, 2, 2, BatchHarvest::On, &known(&["a"]));
        assert_eq!(choice, Choice::None);
        let choice = choose(&all, 3, 2, BatchHarvest::On, &known(&["a"]));
        assert_eq!(chosen(choice), (vec![0, 1], BatchSetReason::Asked));
        let one = candidates(&[("a", 0.8), ("b", 0.0)]);
        let choice = choose(&one, 9, 1, BatchHarvest::On, &known(&["a"]));
        assert_eq!(choice, Choice::None);
    }

    #[test]
    fn a_gain_is_the_lesser_of_two_ratios() {
        assert_eq!(gain((8.0, 4.0), (6.0, 4.0)), Some(1.5));
        assert_eq!(gain((4.0, 4.0), (6.0, 2.0)), Some(1.0));
        assert_eq!(gain((4.0, 0.0), (6.0, 2.0)), None);
    }
}
