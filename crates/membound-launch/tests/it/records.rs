//! Recorded accesses of a program whose accesses are known.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use membound_launch::{Access, Bursts, LINE_BYTES, Receiver, Recording, Source};
use membound_rewrite::patch::{self, Body};

use crate::fixture::{Fixture, Places, busy, could_be_patched};

/// Keeps all accesses.
#[derive(Debug, Default)]
struct Keep(Mutex<Vec<(PathBuf, Access)>>);

impl Receiver for Keep {
    fn receive(&self, sources: &[Source], accesses: &[Access]) {
        let with_path = |access: &Access| (sources[access.module].path.clone(), *access);
        self.kept().extend(accesses.iter().map(with_path));
    }
}

impl Keep {
    fn kept(&self) -> MutexGuard<'_, Vec<(PathBuf, Access)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accesses made by `walk`.
    fn walk(&self, fixture: &Fixture) -> Vec<Access> {
        let walk = fixture.function("walk").range;
        let kept = self.kept();
        let of_walk = kept
            .iter()
            .filter(|(path, access)| *path == fixture.program && walk.contains(&access.site));
        of_walk.map(|(_, access)| *access).collect()
    }
}

fn recording(keep: &Arc<Keep>, bursts: Option<Bursts>) -> Option<Recording> {
    Some(Recording {
        bursts,
        receiver: Some(Arc::clone(keep) as Arc<dyn Receiver>),
        ..Recording::default()
    })
}

#[test]
fn about_one_in_a_period_is_sampled_and_all_are_counted() {
    const TIMES: u64 = 1_000_000;
    const PERIOD: f64 = 100.5;
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = fixture.options(patch::Options::new(Body::Sample));
    options.recording = recording(&keep, None);
    let (report, out) = fixture.run(options, &["counts", &TIMES.to_string()]);
    if !could_be_patched(&report) {
        return;
    }
    let places = Places::of(&out);
    let walk = fixture.function("walk").range;
    let patched = fixture.patched(&report);
    let sites: Vec<_> = patched
        .sites
        .iter()
        .filter(|site| walk.contains(&site.address))
        .collect();
    let [site] = sites[..] else {
        panic!("walk has one load: {sites:#?}");
    };
    assert_eq!(site.patch, Ok(TIMES));
    let totals = report.records.unwrap();
    let accesses = keep.walk(&fixture);
    let samples = site.samples.as_ref().unwrap();
    assert_eq!(samples.timed + samples.untimed, accesses.len() as u64);
    assert_eq!(totals.unattributed, 0);
    // Records that found no room were samples too; their sites are not known.
    let most = (accesses.len() as u64 + totals.lost) as f64;
    let expected = TIMES as f64 / PERIOD;
    // Intervals are uniform from 1 to 200: their standard deviation is 0.58 of their mean.
    let six_sigma = 6.0 * 0.58 * expected.sqrt();
    assert!(most >= expected - six_sigma, "{most} of {expected}");
    let least = accesses.len() as f64;
    assert!(least <= expected + six_sigma, "{least} of {expected}");
    assert!(least > 100.0, "{least}");
    for access in &accesses {
        assert_eq!(access.site, site.address);
        assert!(places.cells.contains(&access.address), "{access:x?}");
        assert!(access.address.is_multiple_of(8), "{access:x?}");
        assert!(!access.store);
        assert!(access.ticks.is_some_and(|ticks| ticks > 0), "{access:?}");
    }
    assert!(accesses.is_sorted_by_key(|access| access.tsc));
    // Sampling does not lock onto the array: nearly all of it is sampled.
    let cells: BTreeSet<u64> = accesses.iter().map(|it| it.address).collect();
    assert!(
        cells.len() * 2 > accesses.len().min(1024),
        "{}",
        cells.len()
    );
    assert!(samples.quantile(0.5) <= samples.quantile(0.9));
    let processes: BTreeSet<u32> = accesses.iter().map(|it| it.pid).collect();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes.first(), Some(&report.programs[0].pid));
}

#[test]
fn every_thread_has_a_ring() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = fixture.options(patch::Options::new(Body::Sample));
    options.recording = recording(&keep, None);
    let (report, out) = fixture.run(options, &["threads", "300000", "4"]);
    if !could_be_patched(&report) {
        return;
    }
    let places = Places::of(&out);
    let mut threads: HashMap<u32, u64> = HashMap::new();
    let mut last: HashMap<u32, u64> = HashMap::new();
    for access in keep.walk(&fixture) {
        assert!(places.cells.contains(&access.address), "{access:x?}");
        let before = last.insert(access.thread, access.tsc);
        assert!(before.is_none_or(|before| before <= access.tsc));
        *threads.entry(access.thread).or_default() += 1;
    }
    assert_eq!(threads.len(), 4, "{threads:?}");
    assert_eq!(report.records.unwrap().unattributed, 0);
}

#[test]
fn more_threads_than_rings_lose_records_and_say_so() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = fixture.options(patch::Options::new(Body::Sample));
    options.recording = recording(&keep, None).map(|recording| Recording {
        threads: 1,
        ..recording
    });
    let (report, _) = fixture.run(options, &["threads", "100000", "4"]);
    if could_be_patched(&report) {
        let totals = report.records.unwrap();
        assert!(totals.lost > 0, "{totals:?}");
        assert!(totals.recorded > 0, "{totals:?}");
    }
}

#[test]
fn bursts_record_the_lines_of_the_array_and_no_others() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = fixture.options(patch::Options::new(Body::Record));
    options.recording = recording(
        &keep,
        Some(Bursts {
            length: Duration::from_millis(10),
            every: Duration::from_millis(50),
            accesses: u32::MAX,
        }),
    );
    let (report, out) = fixture.run(options, &["for", "1"]);
    if !could_be_patched(&report) {
        return;
    }
    let places = Places::of(&out);
    let accesses = keep.walk(&fixture);
    assert!(!accesses.is_empty());
    for access in &accesses {
        assert!(places.cells.contains(&access.address), "{access:x?}");
        assert_eq!((access.ticks, access.store), (None, false));
    }
    let lines: BTreeSet<u64> = accesses.iter().map(|it| it.address / LINE_BYTES).collect();
    let patched = fixture.patched(&report);
    let all = patched.samples.as_ref().unwrap();
    assert!(all.untimed >= accesses.len() as u64);
    assert!(patched.lines.unwrap() >= lines.len() as u64);
    // A ring holds all cells many times, in their order.
    assert_eq!(lines.len() as u64, 8192 / LINE_BYTES, "{}", accesses.len());
}
