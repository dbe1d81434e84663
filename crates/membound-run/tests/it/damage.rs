//! Truncated and changed files: all intact rows are returned, no row refers to a missing one, and nothing
//! panics.

use std::fs;
use std::path::{Path, PathBuf};

use membound_run::{
    Access, Error, Frame, FrameId, Meta, Process, ProcessId, RunData, Sample, Site, SiteId,
    SiteKind, Stack, StackId, Thread, ThreadId, write,
};
use proptest::prelude::*;
use tempfile::TempDir;

/// A run of some hundred pages.
fn large() -> RunData {
    const PLACES: u32 = 3000;
    RunData {
        meta: Meta {
            complete: true,
            host: "here".to_owned(),
            ..Meta::default()
        },
        processes: vec![Process::default()],
        threads: vec![Thread {
            process: ProcessId(0),
            tid: 1,
            name: String::new(),
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
        }],
        frames: (0..PLACES)
            .map(|n| Frame {
                module: None,
                address: u64::from(n),
            })
            .collect(),
        stacks: (0..PLACES)
            .map(|n| Stack {
                parent: n.checked_sub(1).map(StackId),
                frame: FrameId(n),
            })
            .collect(),
        sites: (0..PLACES)
            .map(|n| Site {
                frame: FrameId(n),
                kind: SiteKind::Load,
                bytes: 8,
                text: "mov rax,[rbx]".to_owned(),
                refused: None,
            })
            .collect(),
        samples: (0..20_000)
            .map(|n| Sample {
                t_ns: n,
                thread: ThreadId(0),
                cpu: None,
                stack: StackId((n % u64::from(PLACES)) as u32),
                weight_ns: 1,
                address: Some(n << 40),
                exact: true,
                object: None,
            })
            .collect(),
        accesses: (0..20_000)
            .map(|n| Access {
                t_ns: n,
                thread: ThreadId(0),
                site: SiteId((n % u64::from(PLACES)) as u32),
                address: n << 40,
                ticks: Some(1),
                hit: None,
                drain: None,
                store: false,
                object: None,
                cpu: None,
                node: None,
            })
            .collect(),
        ..RunData::default()
    }
}

/// A large run on disk.
fn on_disk() -> (TempDir, PathBuf, RunData) {
    let home = tempfile::tempdir().expect("a directory can be made");
    let path = home.path().join("run");
    let run = large();
    write(&path, &run).expect("it can be written");
    (home, path, run)
}

/// Follows every identifier that a reader would follow.
fn follow(run: &RunData) {
    for stack in &run.stacks {
        let _ = run.frames[stack.frame.index()];
        if let Some(parent) = stack.parent {
            let _ = run.stacks[parent.index()];
        }
    }
    for thread in &run.threads {
        let _ = &run.processes[thread.process.index()];
    }
    for site in &run.sites {
        let _ = run.frames[site.frame.index()];
    }
    for sample in &run.samples {
        let _ = &run.threads[sample.thread.index()];
        let _ = run.stacks[sample.stack.index()];
    }
    for access in &run.accesses {
        let _ = &run.threads[access.thread.index()];
        let _ = &run.sites[access.site.index()];
    }
}

/// True if these rows were written in this order, except the last one, whose end may have been in the
/// truncated part of a page.
fn were_written<T: PartialEq>(read: &[T], written: &[T]) -> bool {
    let mut left = written.iter();
    let strange = read.iter().filter(|&row| {
        let before = left.clone();
        let found = left.any(|other| other == row);
        if !found {
            left = before;
        }
        !found
    });
    strange.count() <= 1
}

#[test]
fn of_a_file_that_was_cut_off_what_is_left_is_read() {
    let (_home, path, run) = on_disk();
    let whole = fs::read(&path).unwrap();
    let mut read_some = 0;
    for percent in (0..100).step_by(3) {
        fs::write(&path, &whole[..whole.len() * percent / 100]).unwrap();
        let read = match RunData::open(&path) {
            Ok(read) => read,
            Err(Error::Damaged { .. } | Error::Empty { .. }) if percent < 30 => continue,
            Err(error) => panic!("{percent} %: {error}"),
        };
        assert!(!read.meta.complete, "{percent} %");
        assert!(!read.gaps.is_empty(), "{percent} %");
        assert_eq!(read.meta.host, "here");
        follow(&read);
        assert!(were_written(&read.samples, &run.samples), "{percent} %");
        assert!(were_written(&read.accesses, &run.accesses), "{percent} %");
        assert!(run.stacks.starts_with(&read.stacks), "{percent} %");
        read_some += usize::from(!read.samples.is_empty());
    }
    assert!(read_some > 10, "most of them have samples: {read_some}");
}

#[test]
fn a_page_of_zeros_takes_what_was_in_it() {
    let (_home, path, run) = on_disk();
    let whole = fs::read(&path).unwrap();
    let middle = whole.len() / 2 / 8192 * 8192;
    let mut changed = whole;
    changed[middle..middle + 8192].fill(0);
    fs::write(&path, changed).unwrap();
    let read = RunData::open(&path).unwrap();
    assert!(!read.meta.complete);
    let gap = &read.gaps[0];
    assert!(gap.reason.contains("damaged"), "{gap:?}");
    follow(&read);
    let lost = run.samples.len() + run.accesses.len() - read.samples.len() - read.accesses.len();
    assert!(lost > 0 && lost < 30_000, "{lost}");
}

#[test]
fn rows_that_refer_to_nothing_are_left_out_and_counted() {
    let (_home, path, run) = on_disk();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "UPDATE samples SET stack = 4000000 WHERE t_ns < 7;
             UPDATE samples SET weight_ns = 'heavy' WHERE t_ns = 100;
             UPDATE accesses SET site = -1 WHERE t_ns = 5;
             UPDATE stacks SET parent = 2999 WHERE id = 2000;
             DELETE FROM sites WHERE id = 1000;",
        )
        .unwrap();
    drop(connection);
    let read = RunData::open(&path).unwrap();
    follow(&read);
    assert!(!read.meta.complete);
    assert_eq!(read.stacks, run.stacks[..2000]);
    assert_eq!(read.sites, run.sites[..1000]);
    assert!(
        read.samples
            .iter()
            .all(|sample| sample.t_ns >= 7 && sample.t_ns != 100)
    );
    let count = |part: &str| {
        let gap = read.gaps.iter().find(|gap| gap.reason.contains(part));
        gap.unwrap_or_else(|| panic!("{part}: {:?}", read.gaps))
            .count
    };
    assert_eq!(count("rows of table samples hold"), Some(1));
    assert_eq!(count("rows of table accesses hold"), Some(1));
    assert_eq!(count("rows of table stacks refer"), Some(1000));
    assert!(count("rows of table samples refer") > Some(6000));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_never_make_it_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        near_the_start in any::<bool>(),
    ) {
        let (_home, path, _) = on_disk();
        let mut bytes = fs::read(&path).unwrap();
        let reach = if near_the_start { 16_384 } else { bytes.len() };
        for (at, value) in changes {
            // The first bytes only decide whether it is a database at all.
            let at = 16 + at.index(reach - 16);
            bytes[at] = value;
        }
        fs::write(&path, bytes).unwrap();
        reads_or_says(&path);
    }
}

fn reads_or_says(path: &Path) {
    match RunData::open(path) {
        Ok(run) => follow(&run),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
