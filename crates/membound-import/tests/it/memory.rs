//! Accesses that processors sampled themselves.

use membound_import::{
    MemoryAccess, Operation, PerfData, Record, Sampler, Served, Snoop, Translation,
};
use membound_testkit::perf_data::{PerfDataFile, memory_recordings};

use crate::invariants;

struct Found {
    sampler: Option<Sampler>,
    ip: Option<u64>,
    t_ns: Option<u64>,
    tid: Option<i32>,
    access: MemoryAccess,
}

fn recording(name: &str) -> PerfDataFile {
    let all = memory_recordings();
    let found = all.into_iter().find(|(of, _)| *of == name);
    found.unwrap().1
}

fn accesses(bytes: &[u8]) -> Vec<Found> {
    let data = PerfData::read(bytes).unwrap();
    data.records()
        .filter_map(|record| match record {
            Record::Sample(sample) => Some(Found {
                sampler: data.events()[sample.event?].sampler,
                ip: sample.ip,
                t_ns: sample.t_ns,
                tid: sample.tid,
                access: sample.access?,
            }),
            _ => None,
        })
        .collect()
}

#[test]
fn pebs_is_the_same_in_files_and_pipes_and_either_byte_order() {
    for (name, bytes) in [
        ("file", recording("pebs").file()),
        ("pipe", recording("pebs").pipe()),
        ("big", recording("pebs-big").file()),
        ("big pipe", recording("pebs-big").pipe()),
    ] {
        assert_eq!(invariants::checked(&bytes), Ok(14), "{name}");
        let found = accesses(&bytes);
        assert_eq!(found.len(), 4, "{name}");
        assert!(found.iter().all(|it| it.sampler == Some(Sampler::Pebs)));
        assert_eq!(
            found[0].access,
            MemoryAccess {
                operation: Operation::Load,
                served: Served::Dram,
                missed: None,
                snoop: Snoop::None,
                translation: Translation::Walk,
                locked: Some(false),
                latency_cycles: Some(350),
                address: Some(0x7000_0040),
                physical_address: Some(0x40),
            },
            "{name}"
        );
        assert_eq!(found[2].access.snoop, Snoop::Modified);
        assert_eq!(found[2].access.served, Served::L3);
        assert_eq!(found[3].access.operation, Operation::Store);
        assert_eq!(found[3].access.latency_cycles, None);
        assert_eq!(found[3].ip, Some(0x40_1030));
    }
}

#[test]
fn ibs_is_read_from_its_registers() {
    let bytes = recording("ibs").file();
    assert_eq!(invariants::checked(&bytes), Ok(4));
    let found = accesses(&bytes);
    let served: Vec<Served> = found.iter().map(|it| it.access.served).collect();
    assert_eq!(served, [Served::Dram, Served::L3, Served::L1]);
    assert!(found.iter().all(|it| it.sampler == Some(Sampler::Ibs)));
    assert_eq!(
        found[0].ip,
        Some(0x40_2000),
        "the op's, not the interrupt's"
    );
    assert_eq!(found[1].access.latency_cycles, Some(60));
    assert_eq!(found[2].access.address, Some(0x7002));
}

#[test]
fn spe_is_read_from_its_packets() {
    let bytes = recording("spe").file();
    assert_eq!(invariants::checked(&bytes), Ok(3));
    let found = accesses(&bytes);
    let served: Vec<Served> = found.iter().map(|it| it.access.served).collect();
    assert_eq!(served, [Served::Dram, Served::L1, Served::L3]);
    assert!(found.iter().all(|it| it.sampler == Some(Sampler::Spe)));
    // 1000 + 40 for each tick of the timer.
    assert_eq!(found[0].t_ns, Some(1400));
    assert_eq!((found[0].tid, found[0].ip), (Some(41), Some(0x40_1100)));
    assert_eq!(found[2].access.operation, Operation::Store);
    assert_eq!(found[0].access.latency_cycles, Some(300));
}

#[test]
fn every_recording_names_its_machine() {
    for (name, file) in memory_recordings() {
        let bytes = file.file();
        let data = PerfData::read(&bytes).unwrap();
        assert!(data.about().host.is_some(), "{name}");
        assert!(data.about().architecture.is_some(), "{name}");
        assert!(data.skipped().is_empty(), "{name}: {:?}", data.skipped());
    }
}
