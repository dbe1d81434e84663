//! Properties of every result, for any input. The fuzzer includes this file too.

use membound_import::{Error, Format, PerfData, Record, Script, chain};

/// Reads `bytes` in the format that they seem to have; panics if the result lacks a promised property.
/// Returns the number of samples.
pub(crate) fn checked(bytes: &[u8]) -> Result<u64, Error> {
    let result = match Format::of(bytes) {
        Ok(Format::PerfData) => PerfData::read(bytes).map(|data| perf(&data)),
        Ok(Format::Script) => Script::read(bytes).map(|script| text(&script)),
        Err(error) => Err(error),
    };
    if let Err(error) = &result {
        one_line(&error.to_string());
    }
    result
}

fn perf(data: &PerfData<'_>) -> u64 {
    let (mut samples, mut last, mut first) = (0, 0, None);
    for record in data.records() {
        let t_ns = match record {
            Record::Sample(sample) => {
                samples += 1;
                assert!(sample.event.is_none_or(|event| event < data.events().len()));
                if let Some(words) = &sample.chain {
                    assert_eq!(chain(words).count(), words.len());
                }
                if let Some(registers) = &sample.registers {
                    let found = (0..64).filter(|number| registers.get(*number).is_some());
                    assert_eq!(found.count(), registers.mask.count_ones() as usize);
                }
                sample.t_ns
            }
            Record::Map(map) => {
                assert!(map.start <= map.end);
                map.t_ns
            }
            Record::Comm(comm) => comm.t_ns,
            Record::Fork(fork) => fork.t_ns,
            Record::Exit(exit) => exit.t_ns,
        };
        let t_ns = t_ns.unwrap_or(0);
        assert!(last <= t_ns, "records are in the order of time");
        last = t_ns;
        first = first.or((t_ns > 0).then_some(t_ns));
    }
    // What was read once is read again.
    assert_eq!(samples, data.samples());
    assert_eq!(first, data.first_ns());
    assert!(samples > 0);
    data.skipped().iter().for_each(|it| one_line(&it.what));
    samples
}

fn text(script: &Script<'_>) -> u64 {
    let times: Vec<u64> = script.samples().iter().map(|sample| sample.t_ns).collect();
    assert!(times.is_sorted());
    for sample in script.samples() {
        one_line(sample.name);
        one_line(sample.event);
        for frame in script.frames(sample) {
            one_line(frame.function.unwrap_or_default());
            let _ = frame.is_kernel();
        }
    }
    times.len() as u64
}

fn one_line(text: &str) {
    assert!(!text.contains('\n'), "{text:?}");
}
