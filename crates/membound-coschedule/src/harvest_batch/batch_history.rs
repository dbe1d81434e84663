//! The record of earlier batches in the cache directory: how long programs take, and what running them
//! together in a harvest gained.
//!
//! A program is identified by its build-id and its first argument, of which only a hash is kept. Times are in
//! seconds, averaged with the most weight on the latest runs. The file is small and may be deleted at any
//! time; a file that cannot be read counts as empty.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::document_file;
use crate::environment::Environment;

/// Version of the file format: incremented when a field changes its meaning or is removed.
const VERSION: u32 = 1;
/// Days after its last run for which a program or a set is kept.
const MAX_AGE_DAYS: u64 = 60;
/// Maximum numbers of programs and sets that are kept; the latest are kept.
const MAX_PROGRAMS: usize = 2000;
const MAX_SETS: usize = 500;
/// Minimum weight of a run in an average.
const MIN_WEIGHT: f64 = 0.25;

/// The contents of the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// Number of times so far that an unmeasured set could have been tried; every eighth time one is.
    #[serde(default)]
    pub(super) chances: u64,
    programs: BTreeMap<String, Alone>,
    sets: BTreeMap<String, Together>,
}

/// Averages over ordinary runs of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Alone {
    runs: u64,
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    /// Day of the last run, counted from 1970.
    day: u64,
}

/// Averages over harvests of a set of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Together {
    runs: u64,
    /// Ordinary time over harvested time: above 1, harvesting gained.
    pub(super) gain: f64,
    day: u64,
}

impl Record {
    /// Averages of a program, by its key.
    pub(super) fn program(&self, key: &str) -> Option<Alone> {
        self.programs.get(key).copied()
    }

    /// Averages of a set, by its key.
    pub(super) fn set(&self, key: &str) -> Option<Together> {
        self.sets.get(key).copied()
    }

    /// Adds an ordinary run that succeeded, on this day since 1970.
    pub(super) fn ran(&mut self, key: &str, wall_s: f64, cpu_s: f64, day: u64) {
        let known = self.programs.entry(key.to_owned()).or_default();
        known.runs += 1;
        known.day = day;
        known.wall_s = averaged(known.wall_s, wall_s, known.runs);
        known.cpu_s = averaged(known.cpu_s, cpu_s, known.runs);
    }

    /// Adds a harvest of a set; a failed one has gain 0.
    pub(super) fn harvested(&mut self, key: &str, gain: f64, day: u64) {
        let known = self.sets.entry(key.to_owned()).or_default();
        known.runs += 1;
        known.day = day;
        known.gain = averaged(known.gain, gain, known.runs);
    }

    /// Removes entries that are too old or too many.
    fn prune(&mut self, today: u64) {
        let is_young = |day: u64| today.saturating_sub(day) <= MAX_AGE_DAYS;
        self.programs.retain(|_, it| is_young(it.day));
        self.sets.retain(|_, it| is_young(it.day));
        keep_latest(&mut self.programs, MAX_PROGRAMS, |it| it.day);
        keep_latest(&mut self.sets, MAX_SETS, |it| it.day);
    }
}

/// Exponential moving average after `runs` runs, the last of which took `found`; the plain mean for the first
/// few.
fn averaged(before: f64, found: f64, runs: u64) -> f64 {
    let weight = (1.0 / runs as f64).max(MIN_WEIGHT);
    before + (found - before) * weight
}

fn keep_latest<T>(all: &mut BTreeMap<String, T>, most: usize, day: impl Fn(&T) -> u64) {
    if all.len() <= most {
        return;
    }
    let mut days: Vec<u64> = all.values().map(&day).collect();
    days.sort_unstable_by(|a, b| b.cmp(a));
    let oldest = days[most - 1];
    let mut room = most - days.iter().filter(|day| **day > oldest).count();
    all.retain(|_, it| {
        let day = day(it);
        let kept = day > oldest || (day == oldest && room > 0);
        room -= usize::from(kept && day == oldest);
        kept
    });
}

/// Additions of this batch, and the path of the record. Other batches may write the file at the same time, so
/// it is read again and added to.
#[derive(Debug)]
pub(super) struct Keeper {
    path: Option<PathBuf>,
    /// The record including the additions of this batch.
    pub(super) known: Record,
    runs: HashMap<String, Vec<(f64, f64)>>,
    harvests: Vec<(String, f64)>,
    chances: u64,
}

impl Keeper {
    /// Reads the record from the user's cache directory.
    pub(super) fn open(environment: &Environment) -> Self {
        let cache = environment.cache.as_deref();
        Self::at(cache.map(|it| it.join("batch/record.json")))
    }

    fn at(path: Option<PathBuf>) -> Self {
        Self {
            known: path.as_deref().map(read).unwrap_or_default(),
            path,
            runs: HashMap::new(),
            harvests: Vec::new(),
            chances: 0,
        }
    }

    /// Adds an ordinary run that succeeded.
    pub(super) fn ran(&mut self, key: &str, wall_s: f64, cpu_s: f64) {
        self.known.ran(key, wall_s, cpu_s, today());
        let runs = self.runs.entry(key.to_owned()).or_default();
        // More runs of one batch would hardly change the average.
        if runs.len() < 16 {
            runs.push((wall_s, cpu_s));
        }
    }

    /// Adds a harvest that was measured or failed.
    pub(super) fn harvested(&mut self, key: &str, gain: f64) {
        self.known.harvested(key, gain, today());
        self.harvests.push((key.to_owned(), gain));
    }

    /// Counts a set that could be tried.
    pub(super) fn chance(&mut self) {
        self.known.chances += 1;
        self.chances += 1;
    }

    /// Writes the additions. Errors are ignored: times are then learned again.
    pub(super) fn keep(self) {
        let Some(path) = self.path else { return };
        if self.runs.is_empty() && self.harvests.is_empty() && self.chances == 0 {
            return;
        }
        let mut record = read(&path);
        for (key, runs) in &self.runs {
            for (wall_s, cpu_s) in runs {
                record.ran(key, *wall_s, *cpu_s, today());
            }
        }
        for (key, gain) in &self.harvests {
            record.harvested(key, *gain, today());
        }
        record.chances += self.chances;
        record.version = VERSION;
        record.prune(today());
        if let Some(directory) = path.parent() {
            let _ = fs::create_dir_all(directory);
        }
        let _ = document_file::write(&path, &record);
    }
}

fn read(path: &Path) -> Record {
    let text = fs::read(path).unwrap_or_default();
    let record: Record = serde_json::from_slice(&text).unwrap_or_default();
    if record.version == VERSION {
        record
    } else {
        Record::default()
    }
}

/// Days since 1970.
fn today() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_follow_the_latest_runs() {
        let mut record = Record::default();
        for wall_s in [4.0, 2.0, 3.0] {
            record.ran("a", wall_s, 1.0, 10);
        }
        let known = record.program("a").unwrap();
        assert!((known.wall_s - 3.0).abs() < 1e-12);
        assert!((known.cpu_s - 1.0).abs() < 1e-12);
        for _ in 0..40 {
            record.ran("a", 8.0, 1.0, 10);
        }
        assert!((record.program("a").unwrap().wall_s - 8.0).abs() < 1e-3);
        assert_eq!(record.program("b"), None);
    }

    #[test]
    fn old_and_excess_entries_are_dropped() {
        let mut record = Record::default();
        record.ran("old", 1.0, 1.0, 100);
        record.ran("young", 1.0, 1.0, 150);
        record.harvested("old", 2.0, 100);
        record.prune(100 + MAX_AGE_DAYS + 1);
        assert!(record.program("old").is_none() && record.program("young").is_some());
        assert!(record.set("old").is_none());
        for number in 0..MAX_PROGRAMS {
            record.ran(&format!("{number}"), 1.0, 1.0, 160);
        }
        record.prune(160);
        assert_eq!(record.programs.len(), MAX_PROGRAMS);
        assert!(record.program("young").is_none());
        record.ran("more", 1.0, 1.0, 160);
        record.prune(160);
        assert_eq!(record.programs.len(), MAX_PROGRAMS);
    }

    #[test]
    fn two_batches_that_end_at_the_same_time_lose_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("batch/record.json");
        let mut one = Keeper::at(Some(path.clone()));
        let mut other = Keeper::at(Some(path.clone()));
        one.ran("a", 1.0, 1.0);
        one.chance();
        other.ran("b", 2.0, 1.0);
        other.harvested("a b", 1.5);
        one.keep();
        other.keep();
        let record = read(&path);
        assert!(record.program("a").is_some() && record.program("b").is_some());
        assert!((record.set("a b").unwrap().gain - 1.5).abs() < 1e-12);
        assert_eq!(record.chances, 1);
        fs::write(&path, "{").unwrap();
        assert_eq!(read(&path), Record::default());
        fs::write(&path, r#"{"version":9,"programs":{},"sets":{}}"#).unwrap();
        assert_eq!(read(&path), Record::default());
    }
}
