//! Jobs of a batch that run together in a harvest: they end and print as they do alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use membound_types::{BatchSetReason, HarvestBatch, HarvestRole};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::plan;
use crate::suite::{ProgramResult, finish, machine, output_of, scavenger};

/// A batch whose jobs have a plan in the cache.
struct Batch {
    room: TempDir,
    program: PathBuf,
}

impl Batch {
    /// A batch of the scavenger fixture in these modes; `change` modifies the plan before it is stored.
    fn of(modes: &[&str], change: impl Fn(&mut Value)) -> Option<Self> {
        let program = scavenger()?;
        let program = std::fs::canonicalize(program).expect("it was built");
        let room = tempfile::tempdir().expect("there is room for a directory");
        let lines: String = modes
            .iter()
            .map(|mode| format!("{} {mode}\n", program.display()))
            .collect();
        std::fs::write(room.path().join("list"), lines).expect("the directory is ours");
        let plan = plan::of(&program, HarvestRole::Scavenger);
        let mut plan = serde_json::to_value(plan).expect("a plan is a document");
        plan["totals"]["gain_fraction"] = json!(0.6);
        plan["totals"]["stall_fraction"] = json!(0.7);
        change(&mut plan);
        let cache = room.path().join("cache/membound/harvest");
        std::fs::create_dir_all(&cache).expect("the directory is ours");
        std::fs::write(cache.join("plan.json"), plan.to_string()).expect("the directory is ours");
        Some(Self { room, program })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    fn run(&self, options: &str) -> (ProgramResult, HarvestBatch) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
        command.args(["harvest", "batch", "list", "--json", "batch.json"]);
        command.arg("--machine").arg(machine());
        command.args(options.split_whitespace());
        let left = finish(&mut command, self.room.path());
        let text = std::fs::read_to_string(self.path("batch.json")).unwrap_or_default();
        let document = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("no document: {error}\n{left:#?}"));
        (left, document)
    }

    fn record(&self) -> (PathBuf, Value) {
        let path = self.path("cache/membound/batch/record.json");
        let text = std::fs::read_to_string(&path).expect("a batch keeps a record");
        (path, serde_json::from_str(&text).expect("it is JSON"))
    }
}

/// Exit codes by job.
fn codes(document: &HarvestBatch) -> Vec<Option<i32>> {
    let mut results: Vec<_> = document.results.iter().collect();
    results.sort_by_key(|it| it.number);
    results.into_iter().map(|it| it.exit_code).collect()
}

fn untouched(_: &mut Value) {}

#[test]
fn jobs_of_a_set_end_and_print_as_they_do_alone() {
    let Some(batch) = Batch::of(&["work", "exit", "tls", "work"], untouched) else {
        return;
    };
    let (alone, document) = batch.run("-j 1 --keep-order --harvest off");
    assert!(document.sets.is_empty());
    let (left, document) = batch.run("-j 1 --keep-order --harvest on --joblog log");
    assert_eq!(left, alone);
    assert_eq!(left.end, Ok(1));
    assert_eq!(document.sets.len(), 1, "{document:#?}");
    let set = &document.sets[0];
    assert_eq!(
        (set.jobs.as_slice(), set.why),
        (&[1, 2, 3, 4][..], BatchSetReason::Asked)
    );
    // A job failed, so the gain is not known.
    assert_eq!(set.gain, None);
    assert_eq!(codes(&document), [Some(0), Some(7), Some(0), Some(0)]);
    assert!(document.results.iter().all(|it| it.set == Some(0)));
    let log = std::fs::read_to_string(batch.path("log")).expect("it was asked for");
    assert_eq!(log.lines().count(), 5);
    // The second half of the record: a set that failed is not tried again automatically.
    let (_, record) = batch.record();
    let sets = record["sets"].as_object().expect("it has sets");
    assert_eq!(sets.len(), 1);
    assert!(
        sets.values().all(|set| set["gain"] == json!(0.0)),
        "{record}"
    );
}

#[test]
fn outputs_of_a_set_go_to_the_files_that_others_go_to() {
    let Some(batch) = Batch::of(&["work", "work"], untouched) else {
        return;
    };
    let (left, document) = batch.run("-j 1 --harvest on --output out");
    assert_eq!((left.end, left.stdout.as_str()), (Ok(0), ""));
    assert_eq!(document.sets.len(), 1, "{document:#?}");
    let expected = output_of(&batch.program, "work");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(batch.path("out")).expect("it was made") {
        let path = entry.expect("it can be read").path();
        if path.extension().is_some_and(|ending| ending == "out") {
            assert_eq!(read(&path), expected);
        }
        names.push(path.file_name().expect("it has a name").to_owned());
    }
    names.sort();
    assert_eq!(names, ["1.err", "1.out", "2.err", "2.out"]);
}

#[test]
fn jobs_that_a_harvest_refuses_run_as_ordinary_processes() {
    let spoil = |plan: &mut Value| plan["sites"] = json!("none");
    let Some(batch) = Batch::of(&["work", "exit", "work"], spoil) else {
        return;
    };
    let (alone, _) = batch.run("-j 1 --harvest off");
    let (left, document) = batch.run("-j 1 --harvest on");
    assert_eq!(left, alone);
    assert_eq!(document.sets.len(), 1);
    assert!(document.results.iter().all(|it| it.set.is_none()));
    let note = document.notes.first().expect("it says why");
    assert!(
        note.starts_with("3 of 3 jobs") && note.contains("plan.json"),
        "{note}"
    );
    assert_eq!(codes(&document), [Some(0), Some(7), Some(0)]);
}

#[test]
fn by_default_a_batch_harvests_only_sets_that_gained() {
    let Some(batch) = Batch::of(&["work", "work", "work"], untouched) else {
        return;
    };
    // Nothing is known, and then ordinary runs are: neither is a reason, and one chance of eight is used up.
    for _ in 0..2 {
        let (left, document) = batch.run("-j 1");
        assert_eq!(left.end, Ok(0), "{left:#?}");
        assert!(document.sets.is_empty(), "{document:#?}");
    }
    let (path, mut record) = batch.record();
    let known = record["programs"].as_object().expect("it has programs");
    let key = known.keys().next().expect("of one").clone();
    let mut sets = |gain: f64| {
        record["sets"] = json!({ &key: { "runs": 1, "gain": gain, "day": 30_000 } });
        std::fs::write(&path, record.to_string()).expect("the directory is ours");
        let (left, document) = batch.run("-j 1");
        assert_eq!(left.end, Ok(0), "{left:#?}");
        document.sets
    };
    let gained = sets(1.5);
    assert_eq!(gained.len(), 1);
    assert_eq!(gained[0].why, BatchSetReason::Measured);
    assert!(gained[0].gain.is_some(), "{gained:#?}");
    assert!(sets(0.9).is_empty());
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("it was listed")
}
