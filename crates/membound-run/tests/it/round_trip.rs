//! What is written comes back.

use membound_run::{
    Error, Meta, Object, ObjectClass, ObjectId, Process, ProcessId, RunData, Thread, ThreadId,
    Writer, write,
};
use proptest::prelude::*;

use crate::arbitrary;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_run_comes_back(run in arbitrary::run()) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run");
        write(&path, &run).unwrap();
        let read = RunData::open(&path).unwrap();
        prop_assert_eq!(read, run);
    }
}

#[test]
fn rows_with_positions_can_be_written_again() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = Writer::create(&path, &Meta::default()).unwrap();
    writer.keep_rows();
    let mut process = Process {
        pid: 7,
        ..Process::default()
    };
    let thread = |name: &str, end_ns| Thread {
        process: ProcessId(0),
        tid: 8,
        name: name.to_owned(),
        start_ns: 1,
        end_ns,
        cpu_ns: None,
    };
    let object = |freed_ns| Object {
        kind: ObjectClass::Heap,
        process: ProcessId(0),
        address: 64,
        size_bytes: 64,
        name: "malloc".to_owned(),
        stack: None,
        thread: Some(ThreadId(1)),
        allocated_ns: Some(5),
        freed_ns,
        weight: 1.0,
    };
    writer.processes(ProcessId(0), &[process.clone()]).unwrap();
    let threads = [thread("a", None), thread("b", None)];
    writer.threads(ThreadId(0), &threads).unwrap();
    writer.objects(ObjectId(0), &[object(None)]).unwrap();
    writer.flush().unwrap();
    process.end_ns = Some(9);
    writer.processes(ProcessId(0), &[process.clone()]).unwrap();
    writer
        .threads_at([(ThreadId(1), thread("c", Some(9)))])
        .unwrap();
    writer.objects(ObjectId(0), &[object(Some(8))]).unwrap();
    let meta = Meta {
        elapsed_ns: 10,
        complete: true,
        ..Meta::default()
    };
    writer.meta(&meta).unwrap();
    writer.flush().unwrap();
    let run = RunData::open(&path).unwrap();
    assert_eq!(run.meta.elapsed_ns, 10);
    assert!(!run.meta.complete, "only the end makes it complete");
    // One thread of a process that was never given: the reader leaves it out, and says so.
    let lost = Thread {
        process: ProcessId(5),
        ..thread("d", None)
    };
    writer.threads(ThreadId(2), &[lost]).unwrap();
    let kept = writer.take_rows(&meta).unwrap();
    assert_eq!(writer.take_rows(&meta), None, "they are no longer kept");
    writer.finish(&meta).unwrap();
    let mut run = RunData::open(&path).unwrap();
    assert_eq!(kept, run);
    assert_eq!(kept.gaps.len(), 1);
    run.meta.complete = true;
    assert_eq!(run.meta, meta);
    assert_eq!(run.processes, [process]);
    assert_eq!(run.threads, [thread("a", None), thread("c", Some(9))]);
    assert_eq!(run.objects, [object(Some(8))]);
}

#[test]
fn a_recording_that_is_over_is_complete_before_its_program_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.run");
    let mut meta = Meta {
        elapsed_ns: 10,
        ..Meta::default()
    };
    assert!(!membound_run::is_complete(&path), "there is no file");
    let mut writer = Writer::create(&path, &meta).unwrap();
    assert!(!membound_run::is_complete(&path));
    writer.complete(&meta).unwrap();
    assert!(membound_run::is_complete(&path));
    meta.exit_code = Some(3);
    writer.finish(&meta).unwrap();
    let run = RunData::open(&path).unwrap();
    assert_eq!((run.meta.complete, run.meta.exit_code), (true, Some(3)));
}

#[test]
fn a_run_that_is_going_on_can_be_read_and_not_be_written_twice() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = Writer::create(&path, &Meta::default()).unwrap();
    let processes = vec![Process::default(); 3];
    writer.processes(ProcessId(0), &processes).unwrap();
    assert_eq!(RunData::open(&path).unwrap().processes, []);
    writer.flush().unwrap();
    assert_eq!(RunData::open(&path).unwrap().processes, processes);
    let second = Writer::create(&path, &Meta::default()).unwrap_err();
    assert!(matches!(second, Error::InUse { .. }), "{second}");
    writer.finish(&Meta::default()).unwrap();
    assert_eq!(RunData::open(&path).unwrap().processes, processes);
    let over = Writer::create(&path, &Meta::default()).unwrap();
    drop(over);
    assert_eq!(
        RunData::open(&path).unwrap().processes,
        [],
        "it stands in its place"
    );
}

#[test]
fn a_writer_that_is_dropped_keeps_what_it_was_given() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let mut writer = Writer::create(&path, &Meta::default()).unwrap();
    writer
        .processes(ProcessId(0), &[Process::default()])
        .unwrap();
    drop(writer);
    let run = RunData::open(&path).unwrap();
    assert_eq!((run.processes.len(), run.meta.complete), (1, false));
    assert_eq!(run.gaps, []);
}
