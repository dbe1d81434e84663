//! What processes did, and in which order.

use membound_import::{EventKind, PerfData, Record};
use membound_testkit::perf_data::{Endian, PerfDataFile, PerfEvent};

fn sample(file: PerfDataFile, id: u64, t_ns: u64) -> PerfDataFile {
    let body = file
        .bytes()
        .words(&[id, 0x1234])
        .u32(7)
        .u32(8)
        .u64(t_ns)
        .u32(3)
        .u32(0)
        .u64(5);
    file.sample(body)
}

#[test]
fn records_of_all_cpus_come_in_the_order_of_time() {
    let file = PerfDataFile::new(Endian::Little).event(PerfEvent::default());
    let fork = file.bytes().u32(9).u32(7).u32(9).u32(7).u64(250);
    let exit = file.bytes().u32(9).u32(7).u32(9).u32(7).u64(350);
    let lost = file.bytes().words(&[1, 17]);
    let lost_samples = file.bytes().u64(3);
    let file = sample(sample(file, 1, 300), 1, 100);
    let file = file
        .told(7, 0, fork, 250)
        .told(4, 0, exit, 350)
        .told(2, 0, lost, 1)
        .told(13, 0, lost_samples, 1)
        .record(200, 0, &[], &[]);
    let bytes = sample(file, 1, 200).file();
    let data = PerfData::read(&bytes).unwrap();
    let records: Vec<(&str, Option<u64>)> = data
        .records()
        .map(|record| match record {
            Record::Sample(sample) => ("sample", sample.t_ns),
            Record::Fork(fork) => {
                assert_eq!((fork.pid, fork.parent_pid, fork.tid), (9, 7, 9));
                ("fork", fork.t_ns)
            }
            Record::Exit(exit) => ("exit", exit.t_ns),
            Record::Map(_) | Record::Comm(_) => panic!("there is none"),
        })
        .collect();
    assert_eq!(
        records,
        [
            ("sample", Some(100)),
            ("sample", Some(200)),
            ("fork", Some(250)),
            ("sample", Some(300)),
            ("exit", Some(350)),
        ]
    );
    assert_eq!((data.lost().records, data.lost().samples), (17, 3));
    let skipped = data.skipped();
    assert_eq!(skipped.len(), 1);
    assert_eq!(skipped[0].what, "records of unknown type 200");
}

#[test]
fn samples_belong_to_the_event_of_their_identifier() {
    let second = PerfEvent {
        name: "cycles",
        kind: 0,
        ids: vec![2, 4],
        ..PerfEvent::default()
    };
    let file = PerfDataFile::new(Endian::Little)
        .event(PerfEvent::default())
        .event(second)
        .named_events();
    let file = [(1, 10), (2, 20), (4, 30), (77, 40)]
        .into_iter()
        .fold(file, |file, (id, t_ns)| sample(file, id, t_ns));
    for bytes in [file.file(), file.pipe()] {
        let data = PerfData::read(&bytes).unwrap();
        let kinds: Vec<EventKind> = data.events().iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::CpuTime, EventKind::Cycles]);
        assert_eq!(data.events()[1].name, "cycles");
        let events: Vec<Option<usize>> = data
            .records()
            .filter_map(|record| match record {
                Record::Sample(sample) => Some(sample.event),
                _ => None,
            })
            .collect();
        assert_eq!(events, [Some(0), Some(1), Some(1)]);
        assert_eq!(data.skipped()[0].count, 1, "one of an event without a name");
    }
}

#[test]
fn attributes_of_the_future_are_longer() {
    let event = PerfEvent {
        longer_by: 24,
        ..PerfEvent::default()
    };
    let file = PerfDataFile::new(Endian::Little)
        .event(event)
        .named_events();
    let file = sample(file, 1, 10);
    for bytes in [file.file(), file.pipe()] {
        let data = PerfData::read(&bytes).unwrap();
        assert_eq!(data.samples(), 1);
        assert_eq!(data.events()[0].name, "cpu-clock");
    }
}
