//! Full disks: what was flushed is kept, and the writer reports the error once.

use std::path::Path;
use std::process::{Command, Output};

use membound_run::RunData;
use membound_testkit::skipped;

use crate::killed::{HELPER, check};

/// Output of the helper, which is expected to fail for lack of room.
#[track_caller]
fn full(output: &Output) -> usize {
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("no room is left for the run file") && last.ends_with("is kept"),
        "{last}"
    );
    said.lines().count() - 1
}

#[test]
fn a_limit_on_the_size_of_files_keeps_what_was_flushed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let script = r#"ulimit -f 1000; exec "$0" write "$1""#;
    let output = Command::new("sh")
        .args(["-c", script, HELPER])
        .arg(&path)
        .output()
        .unwrap();
    let flushed = full(&output);
    assert!(flushed > 2, "{flushed}");
    check(&path, flushed);
}

#[test]
fn a_full_disk_keeps_what_was_flushed() {
    let home = tempfile::tempdir().unwrap();
    // In name spaces of its own, so that nothing is left mounted.
    let script = r#"mount -t tmpfs -o size=1m none "$1" || exit 9
        "$0" write "$1/run"; code=$?; cp "$1/run" "$2" 2>/dev/null; exit $code"#;
    let copy = home.path().join("copy");
    let mounted = home.path().join("small");
    std::fs::create_dir(&mounted).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script, HELPER])
        .args([&mounted, &copy])
        .output();
    match output {
        Ok(output) if matches!(output.status.code(), Some(1 | 9)) => {
            skipped(String::from_utf8_lossy(&output.stderr));
        }
        Ok(output) => {
            let flushed = full(&output);
            assert!(flushed > 2, "{flushed}");
            check(&copy, flushed);
        }
        Err(error) => skipped(format_args!("unshare: {error}")),
    }
}

#[test]
fn a_million_samples_are_written_and_read() {
    // Its time is printed and not judged; in a build without optimisations it means nothing.
    let samples = if cfg!(debug_assertions) {
        20_000
    } else {
        1_000_000
    };
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let output = Command::new(HELPER)
        .arg("time")
        .arg(&path)
        .arg(samples.to_string())
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success());
    let run = RunData::open(&path).unwrap();
    assert_eq!(run.samples.len(), samples);
    assert!(
        bytes_each(&path, samples) < 100,
        "{}",
        bytes_each(&path, samples)
    );
}

/// Bytes that a sample and an access take together.
fn bytes_each(path: &Path, samples: usize) -> usize {
    std::fs::metadata(path).map_or(0, |there| there.len() as usize) / samples
}
