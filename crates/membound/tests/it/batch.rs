//! Batches of ordinary processes: order, outputs, exit codes, the job log, and stopping.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use membound_testkit::skipped;
use membound_types::{BatchOrder, HarvestBatch};

use crate::command::{Finished, Membound};

/// Time after which a command counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A batch, and the directory that it runs in.
struct Batch {
    membound: Membound,
}

impl Batch {
    /// A batch of these lines, in the file `list`.
    fn of(lines: &str) -> Self {
        let membound = Membound::new();
        fs::write(membound.home.path().join("list"), lines).expect("the directory is ours");
        Self { membound }
    }

    fn home(&self) -> &Path {
        self.membound.home.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn command(&self, options: &str) -> Command {
        let line = format!("harvest batch list {options}");
        let mut command = self.membound.command(line.split_whitespace());
        command
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("TMPDIR", self.home());
        command
    }

    /// Runs the batch; `options` are separated by blanks.
    fn run(&self, options: &str) -> Finished {
        let output = self.command(options).output().expect("the command starts");
        Finished::of(&output)
    }

    /// Runs the batch, and checks its exit code and that stderr is empty.
    #[track_caller]
    fn check(&self, options: &str, code: i32) -> String {
        let finished = self.run(options);
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(code), ""));
        finished.stdout
    }

    fn document(&self) -> HarvestBatch {
        serde_json::from_str(&self.read("batch.json")).expect("it is a document")
    }

    /// Numbers, exit codes, signals and commands of the log, sorted; checks the format of the other columns.
    fn log(&self) -> Vec<(u64, i32, i32, String)> {
        let text = self.read("log");
        let mut lines = text.lines();
        let header = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand";
        assert_eq!(lines.next(), Some(header));
        let mut rows: Vec<_> = lines
            .map(|line| {
                let columns: Vec<&str> = line.split('\t').collect();
                assert_eq!(columns.len(), 9, "{line}");
                assert_eq!((columns[1], columns[4]), (":", "0"), "{line}");
                let started: f64 = columns[2].parse().expect("it is a time");
                assert!(started > 1.7e9, "{line}");
                let wall: f64 = columns[3].trim().parse().expect("it is a time");
                assert!(wall >= 0.0, "{line}");
                let number = |column: usize| columns[column].parse().expect("it is a number");
                (
                    columns[0].parse().expect("it is a number"),
                    number(6),
                    number(7),
                    columns[8].to_owned(),
                )
            })
            .collect();
        rows.sort();
        rows
    }

    /// Starts the batch, and waits until a job has created `file`.
    fn begin(&self, options: &str, file: &str) -> Child {
        let mut command = self.command(options);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the command starts");
        wait_until(file, || self.path(file).exists());
        child
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: i32) {
    let id = i32::try_from(child.id()).expect("process numbers fit");
    // SAFETY: the child has not been waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

fn row(number: u64, exit_code: i32, signal: i32, command: &str) -> (u64, i32, i32, String) {
    (number, exit_code, signal, command.to_owned())
}

#[test]
fn outputs_are_complete_and_in_order() {
    let lines = "sh -c 'sleep 0.3; echo one; echo err >&2'\n# none\n\necho two; echo three\n";
    let batch = Batch::of(lines);
    let finished = batch.run("-j 2");
    assert_eq!(finished.code, Some(0));
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.as_str()),
        ("two\nthree\none\n", "err\n")
    );
    let kept = batch.run("-j 2 --keep-order");
    assert_eq!(kept.stdout, "one\ntwo\nthree\n");
    // One at a time, then all at once.
    assert_eq!(batch.run("-j 1").stdout, "one\ntwo\nthree\n");
    assert_eq!(batch.run("-j 0").stdout, "two\nthree\none\n");
    // Nothing is left beside the list and the record.
    let mut left: Vec<_> = fs::read_dir(batch.home())
        .unwrap()
        .flatten()
        .map(|it| it.file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["cache", "list"]);
}

#[test]
fn the_list_may_come_from_stdin_and_jobs_read_nothing() {
    let batch = Batch::of("");
    let mut command = batch.membound.command(["harvest", "batch", "-", "-j1"]);
    command.env("XDG_CACHE_HOME", batch.path("cache"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"wc -c\nreadlink /proc/self/fd/0\ncat")
        .unwrap();
    let finished = Finished::of(&child.wait_with_output().unwrap());
    assert_eq!(finished.printed(), "0\n/dev/null\n");
    assert_eq!(batch.check("", 0), "");
}

#[test]
fn the_exit_code_counts_jobs_that_failed() {
    let batch = Batch::of("true\nfalse\nexit 7\nkill -9 $$\ntrue");
    batch.check("-j 2 --joblog log --json batch.json", 3);
    assert_eq!(
        batch.log(),
        [
            row(1, 0, 0, "true"),
            row(2, 1, 0, "false"),
            row(3, 7, 0, "exit 7"),
            row(4, 0, 9, "kill -9 $$"),
            row(5, 0, 0, "true"),
        ]
    );
    let document = batch.document();
    let jobs = document.jobs;
    assert_eq!((jobs.listed, jobs.succeeded, jobs.failed), (5, 2, 3));
    assert_eq!(
        (jobs.ended, jobs.not_started, document.incomplete),
        (0, 0, false)
    );
    let killed = document.results.iter().find(|it| it.number == 4).unwrap();
    assert_eq!((killed.exit_code, killed.signal), (None, Some(9)));
    Batch::of(&"false\n".repeat(100)).check("-j 4", 100);
    Batch::of(&"false\n".repeat(130)).check("-j 4", 101);
}

#[test]
fn a_thousand_jobs_are_run_once_each() {
    let batch = Batch::of(&"true\n".repeat(1000));
    assert_eq!(batch.check("-j 4 --joblog log --json batch.json", 0), "");
    let numbers: Vec<u64> = batch.log().into_iter().map(|row| row.0).collect();
    assert_eq!(numbers, (1..=1000).collect::<Vec<_>>());
    assert_eq!(batch.document().jobs.succeeded, 1000);
}

#[test]
fn commands_that_cannot_be_run_fail_as_in_a_shell() {
    let batch = Batch::of("no-such-command-here 1\n./list\necho 'open\n/\ntrue");
    let finished = batch.run("-j 1 --joblog log");
    assert_eq!(finished.code, Some(4), "{finished:?}");
    assert!(
        finished.stderr.contains("no-such-command-here"),
        "{finished:?}"
    );
    let codes: Vec<i32> = batch.log().iter().map(|row| row.1).collect();
    assert_eq!((codes[0], codes[1], codes[3], codes[4]), (127, 126, 126, 0));
    // The message of a shell about an open quote differs, but there is one.
    assert_ne!(codes[2], 0);
    assert!(
        finished.stderr.to_lowercase().contains("unterminated") || finished.stderr.contains("EOF")
    );
}

#[test]
fn usage_errors_are_one_line() {
    let batch = Batch::of("true\n");
    let refused = |options: &str, parts: &[&str]| batch.run(options).complains(2, parts);
    refused("-j x", &["`x`", "number of jobs"]);
    refused("--halt later,fail=1", &["later,fail=1", "soon"]);
    refused("--resume", &["--joblog"]);
    refused("--harvest maybe", &["maybe", "auto"]);
    refused("--json", &["--output"]);
    refused("--joblog none/log", &["none/log"]);
    refused("--joblog list", &["list", "other than a job log"]);
    refused("--output /proc/none", &["/proc/none"]);
    assert_eq!(batch.read("list"), "true\n");
    let none = batch.membound.run("harvest batch none");
    none.complains(2, &["cannot read none", "No such file"]);
    batch
        .membound
        .run("harvest batch .")
        .complains(2, &["cannot read ."]);
    let holed = Batch::of("true\n\nfalse\0\n");
    holed.run("").complains(2, &["list", "line 3", "NUL"]);
}

#[test]
fn a_batch_resumes_after_the_jobs_in_the_log() {
    let lines = "echo a >> a\nsh -c 'echo b >> b; exit 3'\n";
    let batch = Batch::of(lines);
    batch.check("-j 1 --joblog log", 1);
    batch.check("-j 1 --joblog log --resume", 0);
    assert_eq!(
        (batch.read("a"), batch.read("b")),
        ("a\n".to_owned(), "b\n".to_owned())
    );
    batch.check("-j 1 --joblog log --resume-failed --json batch.json", 1);
    assert_eq!(
        (batch.read("a"), batch.read("b")),
        ("a\n".to_owned(), "b\nb\n".to_owned())
    );
    assert_eq!(batch.document().jobs.skipped, 1);
    assert_eq!(batch.log().len(), 3);
    // A list that has grown at its beginning.
    fs::write(batch.path("list"), format!("echo c >> c\n{lines}")).unwrap();
    batch.check("-j 1 --joblog log --resume", 0);
    assert_eq!(
        (batch.read("a"), batch.read("c")),
        ("a\n".to_owned(), "c\n".to_owned())
    );
    // Without --resume, a batch begins anew.
    batch.check("-j 1 --joblog log", 1);
    assert_eq!(batch.log().len(), 3);
    assert_eq!(batch.read("a"), "a\na\n");
}

#[test]
fn a_batch_halts_soon_or_now() {
    let batch = Batch::of("sleep 100\nsleep 0.3; false\ntrue\ntrue");
    batch.check("-j 2 --halt now,fail=1 --joblog log --json batch.json", 1);
    let failed = row(2, 1, 0, "sleep 0.3; false");
    assert_eq!(batch.log(), [row(1, -1, 15, "sleep 100"), failed]);
    let document = batch.document();
    let jobs = document.jobs;
    assert_eq!((jobs.failed, jobs.ended, jobs.not_started), (1, 1, 2));
    assert!(document.incomplete);
    // Jobs that the batch ended count as not run.
    fs::write(batch.path("list"), "false\nsleep 0.3; false\ntrue\ntrue").unwrap();
    batch.check("-j 2 --joblog log --resume", 1);
    assert_eq!(batch.log().len(), 5);

    let batch = Batch::of("false\ntrue\ntrue\ntrue\ntrue\ntrue\ntrue\ntrue\nfalse\ntrue");
    batch.check("-j 1 --halt soon,fail=20% --joblog log", 2);
    assert_eq!(batch.log().len(), 9);
    batch.check("-j 1 --halt soon,success=1 --joblog log", 1);
    assert_eq!(batch.log().len(), 2);
    batch.check("-j 1 --halt never --joblog log", 2);
    assert_eq!(batch.log().len(), 10);
}

#[test]
fn one_signal_stops_new_jobs_and_a_second_ends_running_ones() {
    let lines = "touch one; sleep 0.5; touch end\ntouch two\n";
    let batch = Batch::of(lines);
    let mut child = batch.begin("-j 1 --joblog log", "one");
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(batch.path("end").exists() && !batch.path("two").exists());
    assert_eq!(batch.log().len(), 1);

    // A job that ignores SIGTERM, with a child.
    let lines = "trap '' TERM; touch one; sleep 100 & sleep 100; sleep 100\ntouch two\n";
    let batch = Batch::of(lines);
    let mut child = batch.begin("-j 1 --joblog log --json batch.json", "one");
    signal(&child, libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!batch.path("two").exists());
    let log = batch.log();
    assert_eq!((log.len(), log[0].1, log[0].2), (1, -1, 9));
    assert_eq!(batch.document().jobs.ended, 1);
}

#[test]
fn a_kill_leaves_a_log_that_a_batch_resumes_from() {
    let batch = Batch::of("true\ntrue\ntouch one; sleep 1\ntouch two\n");
    let mut child = batch.begin("-j 1 --joblog log", "one");
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert_eq!(batch.log(), [row(1, 0, 0, "true"), row(2, 0, 0, "true")]);
    batch.check("-j 1 --joblog log --resume", 0);
    assert_eq!(batch.log().len(), 4);
}

#[test]
fn outputs_go_to_files_where_they_are_wanted() {
    let batch = Batch::of("echo one; echo err >&2\nprintf two\nfalse\n");
    assert_eq!(batch.check("-j 2 --output out/here --joblog log", 1), "");
    let read = |name: &str| batch.read(&format!("out/here/{name}"));
    assert_eq!(
        (read("1.out"), read("1.err")),
        ("one\n".to_owned(), "err\n".to_owned())
    );
    assert_eq!(
        (read("2.out"), read("3.out")),
        ("two".to_owned(), String::new())
    );
    let received: Vec<String> = batch
        .read("log")
        .lines()
        .skip(1)
        .map(|line| line.split('\t').nth(5).unwrap().to_owned())
        .collect();
    let mut received = received;
    received.sort();
    assert_eq!(received, ["0", "3", "8"]);
    // With output files, stdout is free for the document.
    let text = batch.check("-j 2 --output out --json", 1);
    assert!(
        serde_json::from_str::<HarvestBatch>(&text).is_ok(),
        "{text}"
    );
}

#[test]
fn a_dry_run_prints_commands_and_runs_none() {
    let batch = Batch::of("touch a\n# no\ntouch b\n");
    assert_eq!(
        batch.check("--dry-run --joblog log --output out", 0),
        "touch a\ntouch b\n"
    );
    for name in ["a", "b", "log", "out"] {
        assert!(!batch.path(name).exists(), "{name}");
    }
}

#[test]
fn the_second_batch_starts_the_longest_first() {
    // Four short jobs and a longer one, which is recognised by its first argument.
    let batch = Batch::of("sleep 0.02\nsleep 0.02\nsleep 0.02\nsleep 0.02\nsleep 0.6\n");
    let order = || {
        batch.check("-j 2 --json batch.json", 0);
        batch.document().order
    };
    assert_eq!(order(), BatchOrder::Given);
    assert_eq!(order(), BatchOrder::LongestFirst);
    let first = batch.check("-j 2 --dry-run", 0);
    assert!(first.starts_with("sleep 0.6\n"), "{first}");
}

#[test]
fn an_unwritable_job_log_is_reported_before_any_job_runs() {
    let batch = Batch::of("touch one\n");
    batch
        .run("--joblog /dev/full")
        .complains(2, &["/dev/full", "No space"]);
    assert!(!batch.path("one").exists());
}

#[test]
fn a_disk_that_becomes_full_is_one_line_and_no_job_is_lost() {
    let batch = Batch::of("touch one\nhead -c 1000000 /dev/zero\ntouch two\n");
    // A disk of 64 KiB in a mount namespace of our own.
    let script = "mount -t tmpfs -o size=64k none disk && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh"]);
    fs::create_dir(batch.path("disk")).unwrap();
    let mut probe = Command::new("unshare");
    probe
        .args(["-rm", "sh", "-c", script, "sh", "true"])
        .current_dir(batch.home());
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return skipped("no mount namespaces");
    }
    command
        .arg(env!("CARGO_BIN_EXE_membound"))
        .args([
            "harvest", "batch", "list", "-j1", "--output", "disk", "--joblog", "log",
        ])
        .env("XDG_CACHE_HOME", batch.path("cache"))
        .current_dir(batch.home());
    let finished = Finished::of(&command.output().unwrap());
    finished.complains(255, &["cannot write to disk", "no further jobs"]);
    assert!(batch.path("one").exists() && !batch.path("two").exists());
    assert_eq!(batch.log().len(), 2);
    // The log is on that disk: jobs continue, and one line reports the problem.
    let lines = "head -c 1000000 /dev/zero > disk/big; true\ntouch two\nrm disk/big\ntrue\n";
    fs::write(batch.path("list"), lines.replace("; true", " || true")).unwrap();
    let script =
        "mount -t tmpfs -o size=64k none disk && \"$@\"; code=$?; cp disk/log log; exit $code";
    let mut command = Command::new("unshare");
    command
        .args([
            "-rm",
            "sh",
            "-c",
            script,
            "sh",
            env!("CARGO_BIN_EXE_membound"),
        ])
        .args(["harvest", "batch", "list", "-j1", "--joblog", "disk/log"])
        .env("XDG_CACHE_HOME", batch.path("cache"))
        .current_dir(batch.home());
    let finished = Finished::of(&command.output().unwrap());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(batch.log().len(), 4);
}

#[test]
fn a_reader_that_goes_ends_the_batch_without_a_word() {
    let batch = Batch::of(&"echo one\n".repeat(2000));
    let mut command = batch.command("-j 2");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let finished = Finished::of(&child.wait_with_output().unwrap());
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(141), ""));
}

#[test]
fn the_table_is_printed_where_it_is_wanted() {
    let batch = Batch::of("true\nfalse\n");
    let finished = batch.run("--summary");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""));
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert!(lines[0].starts_with("membound: batch"), "{lines:?}");
    let titles: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(titles[..4], ["jobs", "failed", "wall", "CPU"]);
    assert!(lines[2].trim_start().starts_with("2 "), "{lines:?}");
    assert!(
        lines.iter().all(|line| line.chars().count() <= 80),
        "{lines:?}"
    );
}
