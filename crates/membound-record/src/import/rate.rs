//! Decides which samples of a recording represent CPU time, and how much.

use membound_import::{About, EventKind, PerfData, Record};
use membound_run::TimerKind;
use rustc_hash::FxHashMap;

/// Events whose samples represent CPU time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timer {
    /// Source of the samples.
    pub(super) kind: TimerKind,
    /// Indices of their events in the recording.
    pub(super) events: Vec<usize>,
    /// Nanoseconds per unit of an event's period.
    pub(super) scale: f64,
    /// Text for the run's gaps, if CPU time is only estimated.
    pub(super) note: Option<String>,
}

/// CPU time of a sample without a period, in nanoseconds.
pub(super) const ASSUMED_PERIOD_NS: u64 = 1_000_000;

impl Timer {
    /// Chooses the events of a recording: a clock, else cycles, else none.
    pub(super) fn of(data: &PerfData<'_>) -> Self {
        let of_kind = |kind: EventKind| {
            let mut found: Vec<usize> = Vec::new();
            for (index, event) in data.events().iter().enumerate() {
                // Two events with one name would count the same time.
                let again = found.iter().any(|it| data.events()[*it].name == event.name);
                if event.kind == kind && !again {
                    found.push(index);
                }
            }
            found
        };
        let mut clocks = of_kind(EventKind::CpuTime);
        if !clocks.is_empty() {
            // cpu-clock and task-clock count the same time as well.
            clocks.truncate(1);
            return Self {
                kind: TimerKind::CpuClock,
                events: clocks,
                scale: 1.0,
                note: None,
            };
        }
        let cycles = of_kind(EventKind::Cycles);
        if cycles.is_empty() {
            return Self {
                kind: TimerKind::None,
                events: cycles,
                scale: 1.0,
                note: None,
            };
        }
        let (hz, why) = clock(data, &cycles);
        let note = format!(
            "CPU time is computed from cycles at {:.2} GHz, {why}",
            hz / 1e9
        );
        Self {
            kind: TimerKind::Cycles,
            events: cycles,
            scale: 1e9 / hz,
            note: Some(note),
        }
    }

    /// CPU time of a sample, in nanoseconds.
    pub(super) fn weight_ns(&self, period: Option<u64>) -> u64 {
        match period {
            Some(period) => (period as f64 * self.scale).round() as u64,
            None => ASSUMED_PERIOD_NS,
        }
    }
}

/// Pairs of samples from which on the core clock is computed from them.
const MIN_SAMPLE_PAIRS: usize = 20;
/// Quantile of the pairs' rates that is used as the core clock: in slower pairs, part of the time between the
/// two samples was not counted.
const FASTEST: f64 = 0.9;
/// Plausible core clocks, in hertz.
const POSSIBLE_HZ: std::ops::RangeInclusive<f64> = 1e8..=1e10;

/// The core clock in hertz, and a text that says how it was found.
fn clock(data: &PerfData<'_>, events: &[usize]) -> (f64, &'static str) {
    // For each CPU: the thread that was sampled last, and its time.
    let mut last: FxHashMap<u32, (i32, u64)> = FxHashMap::default();
    let mut rates: Vec<f64> = Vec::new();
    for record in data.records() {
        let Record::Sample(sample) = record else {
            continue;
        };
        if !sample.event.is_some_and(|event| events.contains(&event)) {
            continue;
        }
        let (Some(tid), Some(t_ns), Some(period)) = (sample.tid, sample.t_ns, sample.period) else {
            continue;
        };
        let before = last.insert(sample.cpu.unwrap_or(u32::MAX), (tid, t_ns));
        if let Some((_, before_ns)) = before.filter(|(before, at)| *before == tid && *at < t_ns) {
            let hz = period as f64 / (t_ns - before_ns) as f64 * 1e9;
            rates.extend(POSSIBLE_HZ.contains(&hz).then_some(hz));
        }
    }
    if rates.len() >= MIN_SAMPLE_PAIRS {
        let at = (rates.len() as f64 * FASTEST) as usize;
        let (_, rate, _) = rates.select_nth_unstable_by(at, f64::total_cmp);
        return (*rate, "as samples of one thread after the other show it");
    }
    match nominal_hz(data.about()) {
        Some(hz) => (hz, "as the processor's name says it"),
        None => (1e9, "since the recording does not tell the core clock"),
    }
}

/// The clock in a processor name such as `Intel(R) Xeon(R) CPU @ 2.90GHz`, in hertz.
fn nominal_hz(about: &About) -> Option<f64> {
    let name = about.cpu_description.as_deref()?;
    let (_, clock) = name.rsplit_once('@')?;
    let ghz: f64 = clock.trim().strip_suffix("GHz")?.trim().parse().ok()?;
    Some(ghz * 1e9).filter(|hz| POSSIBLE_HZ.contains(hz))
}

#[cfg(test)]
mod tests {
    use membound_testkit::perf_data::{Endian, PerfDataFile, PerfEvent};

    use super::*;

    fn cycles(samples: u64, description: &str) -> Vec<u8> {
        let file = PerfDataFile::new(Endian::Little)
            .event(PerfEvent {
                name: "cycles",
                kind: 0,
                ..PerfEvent::default()
            })
            .text_header(8, description)
            .named_events();
        let file = (0..samples).fold(file, |file, number| {
            let body = file.bytes().words(&[1, 2]).u32(7).u32(7);
            // 3 000 000 cycles every millisecond.
            let body = body.u64(1_000_000 * (number + 1)).u32(0).u32(0);
            file.sample(body.u64(3_000_000))
        });
        file.file()
    }

    #[test]
    fn cycles_become_time_by_the_clock_that_samples_show() {
        let check = |bytes: &[u8], ghz: f64| {
            let timer = Timer::of(&PerfData::read(bytes).unwrap());
            assert_eq!((timer.kind, timer.events.len()), (TimerKind::Cycles, 1));
            assert!((timer.scale * ghz - 1.0).abs() < 1e-9, "{timer:?}");
            assert!(timer.note.is_some());
        };
        check(&cycles(40, "A @ 2.50GHz"), 3.0);
        check(&cycles(3, "A @ 2.50GHz"), 2.5);
        check(&cycles(3, "A"), 1.0);
    }

    #[test]
    fn a_clock_goes_before_cycles() {
        let file = PerfDataFile::new(Endian::Little)
            .event(PerfEvent {
                name: "cycles",
                kind: 0,
                ..PerfEvent::default()
            })
            .event(PerfEvent {
                ids: vec![2],
                ..PerfEvent::default()
            });
        let body = file.bytes().words(&[2, 1]).u32(7).u32(7).words(&[5, 0, 9]);
        let bytes = file.sample(body).file();
        let timer = Timer::of(&PerfData::read(&bytes).unwrap());
        assert_eq!((timer.kind, timer.events), (TimerKind::CpuClock, vec![1]));
    }
}
