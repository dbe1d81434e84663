//! Writers that are killed, and files that they leave in the middle of a write.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use membound_run::{Error, RunData, Writer};
use membound_testkit::skipped;

/// Path of the helper program.
pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_membound-run-helper");
/// Rows that come with each flush of the helper.
pub(crate) const ROWS: usize = 300;

/// Compares a file that the helper wrote with what it writes: whole flushes, at least `least`.
#[track_caller]
pub(crate) fn check(path: &Path, least: usize) {
    let run = RunData::open(path).expect("it can be read");
    assert!(!run.meta.complete);
    assert_eq!(run.gaps, []);
    let flushes = run.threads.len();
    assert!(flushes >= least, "{flushes} of {least}");
    let rows = flushes * ROWS;
    assert_eq!(
        [run.frames.len(), run.stacks.len(), run.sites.len()],
        [rows; 3]
    );
    assert_eq!([run.samples.len(), run.accesses.len()], [rows; 2]);
    assert_eq!(run.bursts.len(), flushes);
    for (number, sample) in (0..).zip(&run.samples) {
        assert_eq!(sample.t_ns, number * 1_000_003);
    }
    let last = run.bursts.last().map(|burst| burst.accesses.len());
    assert!(last.is_none_or(|count| count == ROWS));
}

#[test]
fn a_writer_that_is_killed_leaves_whole_flushes() {
    let home = tempfile::tempdir().unwrap();
    for round in 0..25_u64 {
        let path = home.path().join("run");
        let mut child = Command::new(HELPER)
            .arg("write")
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let enough = round as usize % 7;
        for _ in 0..=enough {
            said.next().unwrap().unwrap();
        }
        // Anywhere between two flushes or within one.
        std::thread::sleep(Duration::from_micros(round * 397 % 2900));
        child.kill().unwrap();
        child.wait().unwrap();
        let told = said.map_while(Result::ok).count();
        check(&path, enough + 1 + told);
        // And it can be written again.
        drop(Writer::create(&path, &membound_run::Meta::default()).unwrap());
    }
}

/// A file during a commit, with its journal; and the run that it had before.
fn in_the_middle(home: &Path) -> (std::path::PathBuf, RunData) {
    let path = home.join("whole");
    let run = RunData {
        processes: (0..5000)
            .map(|pid| membound_run::Process {
                pid,
                path: "a path of some length".to_owned(),
                ..membound_run::Process::default()
            })
            .collect(),
        ..RunData::default()
    };
    membound_run::write(&path, &run).expect("it can be written");
    let connection = rusqlite::Connection::open(&path).expect("it can be opened");
    // Pages go to the disk before the transaction has ended.
    connection
        .execute_batch(
            "PRAGMA synchronous = OFF; PRAGMA cache_size = 2; BEGIN; UPDATE processes SET pid = 0",
        )
        .expect("it can be changed");
    let torn = home.join("torn");
    for suffix in ["", "-journal"] {
        let from = home.join(format!("whole{suffix}"));
        fs::copy(from, home.join(format!("torn{suffix}"))).expect("both files are there");
    }
    drop(connection);
    (torn, run)
}

#[test]
fn what_a_journal_holds_is_put_back() {
    let home = tempfile::tempdir().unwrap();
    let (path, run) = in_the_middle(home.path());
    assert_eq!(RunData::open(&path).unwrap(), run);
    assert!(
        !home.path().join("torn-journal").exists(),
        "one file is enough again"
    );
    assert_eq!(RunData::open(&path).unwrap(), run);
}

#[test]
fn a_journal_that_cannot_be_applied_is_said() {
    let home = tempfile::tempdir().unwrap();
    let (path, _) = in_the_middle(home.path());
    let permit = |mode| fs::set_permissions(home.path(), fs::Permissions::from_mode(mode));
    for suffix in ["", "-journal"] {
        let file = home.path().join(format!("torn{suffix}"));
        fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
    }
    permit(0o555).unwrap();
    let mut command = Command::new(HELPER);
    command.arg("read").arg(&path);
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        // Permissions do not bind root.
        command.uid(65534).gid(65534);
    }
    let output = command.output();
    permit(0o755).unwrap();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            skipped(format_args!("another user cannot run {HELPER}: {error}"));
            return;
        }
    };
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("was left in the middle of a write") && said.contains("copy both files"),
        "{said}"
    );
    // The file was not changed.
    assert_eq!(RunData::open(&path).unwrap().processes.len(), 5000);
}

#[test]
fn a_file_that_somebody_holds_is_said_to_be_written() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    membound_run::write(&path, &RunData::default()).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = RunData::open(&path).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
}
