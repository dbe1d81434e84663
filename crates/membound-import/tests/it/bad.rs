//! Files that are cut off, of other versions, or made to do harm.

use membound_import::{Error, Format, PerfData};
use membound_testkit::perf_data::{Endian, PerfDataFile, PerfEvent, memory_recordings};
use proptest::prelude::*;

use crate::invariants::checked;

fn one_sample(event: PerfEvent) -> PerfDataFile {
    let file = PerfDataFile::new(Endian::Little).event(event);
    let body = file.bytes().words(&[1, 2, 3, 4, 5, 6]);
    file.sample(body)
}

#[test]
fn files_that_are_cut_off_are_refused_wherever_that_is() {
    for (name, file) in memory_recordings() {
        let whole = file.file();
        for length in 0..whole.len() {
            let error = checked(&whole[..length]).unwrap_err();
            let is_cut = matches!(error, Error::Cut { .. });
            assert!(is_cut || length < 8, "{name} {length}: {error}");
        }
        // A pipe may end behind any record; never in the middle of one.
        let pipe = file.pipe();
        for length in 16..pipe.len() {
            if let Err(error) = checked(&pipe[..length]) {
                let known = matches!(
                    error,
                    Error::Cut { .. } | Error::NoEvents | Error::NoSamples | Error::Damaged { .. }
                );
                assert!(known, "{name} {length}: {error}");
            }
        }
    }
}

#[test]
fn versions_of_another_time_are_named() {
    let check = |magic: &[u8; 8]| {
        let error = checked(&[magic, &[0; 100][..]].concat()).unwrap_err();
        assert!(matches!(error, Error::Version { .. }), "{error}");
        assert!(error.to_string().contains("perf script"));
    };
    check(b"PERFILE3");
    check(b"PERFFILE");
    check(b"3ELIFREP");
    assert_eq!(checked(b"\x7fELF and more"), Err(Error::Unknown));
    assert_eq!(Format::of(b""), Err(Error::Unknown));
}

#[test]
fn fields_that_nothing_is_known_of_are_refused() {
    let event = PerfEvent {
        sample_type: PerfEvent::default().sample_type | 1 << 25,
        ..PerfEvent::default()
    };
    let bytes = one_sample(event).named_events().file();
    let error = PerfData::read(&bytes).unwrap_err();
    assert_eq!(
        error,
        Error::UnknownFields {
            event: "cpu-clock".to_owned(),
            bits: 1 << 25
        }
    );
}

#[test]
fn records_that_cannot_be_read_here_are_refused() {
    let of = |number: u32| {
        let file = one_sample(PerfEvent::default());
        checked(&file.record(number, 0, &[0; 16], &[]).file()).unwrap_err()
    };
    assert_eq!(of(81), Error::Compressed);
    assert_eq!(of(83), Error::Compressed);
    let directory = one_sample(PerfEvent::default()).header(24, vec![0; 8]);
    assert_eq!(checked(&directory.file()), Err(Error::InDirectory));
    assert_eq!(checked(&directory.pipe()), Err(Error::InDirectory));
}

#[test]
fn a_killed_recording_is_reported() {
    let mut bytes = one_sample(PerfEvent::default()).file();
    bytes[48..56].fill(0);
    assert_eq!(checked(&bytes), Err(Error::NotEnded));
    let none = PerfDataFile::new(Endian::Little).event(PerfEvent::default());
    let comm = none.bytes().u32(1).u32(1).text("x");
    assert_eq!(
        checked(&none.told(3, 0, comm, 1).file()),
        Err(Error::NoSamples)
    );
}

#[test]
fn indistinguishable_events_are_refused() {
    use membound_testkit::perf_data::sample_type::IDENTIFIER;
    let bare = |ids| PerfEvent {
        sample_type: PerfEvent::default().sample_type & !IDENTIFIER,
        ids,
        ..PerfEvent::default()
    };
    let file = PerfDataFile::new(Endian::Little)
        .event(bare(vec![1]))
        .event(bare(vec![2]));
    let body = file.bytes().words(&[1, 2, 3, 4, 5, 6]);
    assert_eq!(checked(&file.sample(body).file()), Err(Error::Ambiguous));
}

#[test]
fn sizes_without_end_allocate_nothing() {
    // Every number of the header in turn is as large as can be.
    let whole = memory_recordings().remove(0).1.file();
    for at in (8..104).step_by(8) {
        for value in [u64::MAX, u64::MAX / 2, 1 << 40, 1 << 32, 0, 1, 17] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let _ = checked(&bytes);
        }
    }
}

/// One of the recordings, as a file or a pipe.
fn any_recording() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<Vec<u8>> = memory_recordings()
        .into_iter()
        .flat_map(|(_, file)| [file.file(), file.pipe()])
        .collect();
    proptest::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_never_panic(
        mut bytes in any_recording(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..12),
    ) {
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = checked(&bytes);
    }

    #[test]
    fn any_text_never_panics(text in "[ \t\na-f0-9./:|+()\\[\\]]{0,200}") {
        let _ = checked(text.as_bytes());
        let _ = membound_import::Script::read(text.as_bytes());
    }
}

/// Found by the fuzzer: a line end in what should be a version number.
#[test]
fn a_version_with_a_line_end_is_shown_in_one_line() {
    let error = checked(b"PERFILE\n and more than eight bytes").unwrap_err();
    assert!(error.to_string().contains("PERFILE\\n"), "{error}");
}
