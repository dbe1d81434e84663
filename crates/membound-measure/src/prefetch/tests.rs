use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use membound_platform::Root;
use membound_types::{PageKind, Stopped};

use super::*;
use crate::{Effort, Progress, Silent};

/// Switches that remember what happened to them.
#[derive(Clone, Default)]
struct Fake {
    log: Rc<RefCell<Vec<String>>>,
    refuses: Option<&'static str>,
}

struct FakeOff {
    log: Rc<RefCell<Vec<String>>>,
    which: String,
}

impl PrefetchControl for Fake {
    fn names(&self) -> Vec<String> {
        vec!["streamer".to_owned(), "stride".to_owned()]
    }

    fn settings(&self) -> Vec<PrefetchState> {
        let names = self.names().into_iter().map(PrefetchState::Without);
        std::iter::once(PrefetchState::Off).chain(names).collect()
    }

    fn set(&self, setting: &PrefetchState) -> Result<Box<dyn SwitchedOff>, NotMeasured> {
        let which = match setting {
            PrefetchState::Off => self.names().join("+"),
            other => other.to_string(),
        };
        if self.refuses == Some(&which) {
            return Err(NotMeasured {
                reason: format!("{which} does not stay off"),
                remedy: Some("ask the host".to_owned()),
            });
        }
        self.log.borrow_mut().push(format!("off {which}"));
        Ok(Box::new(FakeOff {
            log: Rc::clone(&self.log),
            which,
        }))
    }
}

impl SwitchedOff for FakeOff {
    fn restore(self: Box<Self>) -> Result<(), NotMeasured> {
        Ok(())
    }
}

impl Drop for FakeOff {
    fn drop(&mut self) {
        self.log.borrow_mut().push(format!("on {}", self.which));
    }
}

fn small(patterns: Vec<PrefetchPattern>) -> PrefetchConfig {
    PrefetchConfig {
        patterns,
        page: PageKind::Base,
        max_bytes: 32 << 20,
        loads: 1 << 13,
        budget: Duration::ZERO,
    }
}

fn with_session(progress: &dyn Progress, check: impl FnOnce(&Session<'_>, &AtomicBool)) {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let session = Session::new(&root, None, Effort::Quick, &cancel, progress).unwrap();
    check(&session, &cancel);
}

fn no_control() -> NotMeasured {
    NotMeasured {
        reason: "no such register".to_owned(),
        remedy: None,
    }
}

fn sampled(median: f64) -> Sampled {
    Sampled {
        summary: Summary {
            median,
            low: median * 0.99,
            high: median * 1.01,
        },
        core_hz: 1e9,
        samples: Samples {
            raw: vec![median; 6],
            stopped: Stopped::Converged,
            disturbed: Disturbance::default(),
        },
    }
}

#[test]
fn differences_are_measured_and_ratios_judged() {
    let walk = |pattern, ns| (Walk::Pattern(pattern), sampled(ns));
    let forward = |stride_bytes| PrefetchPattern::Forward { stride_bytes };
    let sampled = [
        walk(PrefetchPattern::Random, 100.0),
        walk(forward(64), 5.0),
        walk(forward(4096), 80.0),
        // The first of two costs 100, so the second costs 40.
        walk(PrefetchPattern::AdjacentLine, 70.0),
        // An element is two loads, of which the array's costs 2.
        walk(PrefetchPattern::PointerArray, 50.5),
        (Walk::ArrayAlone, sampled(2.0)),
        // Nine loads, of which one is 80 faster than elsewhere.
        walk(PrefetchPattern::NextPage, 20.0 - 80.0 / 9.0),
        (Walk::OtherPage, sampled(20.0)),
    ];
    let points = points(&sampled, &PrefetchState::Default);
    let expected = [
        (PrefetchPattern::Random, 100.0, false),
        (forward(64), 5.0, true),
        (forward(4096), 80.0, false),
        (PrefetchPattern::AdjacentLine, 40.0, true),
        (PrefetchPattern::PointerArray, 99.0, false),
        (PrefetchPattern::NextPage, 20.0, true),
    ];
    assert_eq!(points.len(), expected.len());
    for (point, (pattern, ns, prefetched)) in points.iter().zip(expected) {
        assert_eq!(point.pattern, pattern);
        assert!((point.ns - ns).abs() < 1e-9, "{point:?}");
        assert!((point.ratio - ns / 100.0).abs() < 1e-9, "{point:?}");
        assert_eq!(point.prefetched, prefetched, "{point:?}");
        assert!(point.batches.raw.iter().all(|raw| (raw - ns).abs() < 1e-9));
        assert_eq!(point.random_ns, 100.0);
    }
}

#[test]
fn without_a_reference_or_a_helper_nothing_is_claimed() {
    let state = PrefetchState::Default;
    let forward = Walk::Pattern(PrefetchPattern::Forward { stride_bytes: 64 });
    assert!(points(&[(forward, sampled(5.0))], &state).is_empty());
    let found = points(
        &[
            (Walk::Pattern(PrefetchPattern::Random), sampled(100.0)),
            (Walk::Pattern(PrefetchPattern::NextPage), sampled(5.0)),
        ],
        &state,
    );
    assert_eq!(found.len(), 1);
    assert_eq!(ratio(5.0, 0.0), 1.0);
}

#[test]
fn a_noisy_pattern_is_not_called_prefetched() {
    let mut noisy = sampled(60.0);
    noisy.summary.high = 90.0;
    let pattern = PrefetchPattern::PageRandom;
    let found = points(
        &[
            (Walk::Pattern(PrefetchPattern::Random), sampled(100.0)),
            (Walk::Pattern(pattern), noisy),
        ],
        &PrefetchState::Default,
    );
    assert!(!found[1].prefetched && found[1].ratio < PREFETCHED_BELOW);
}

#[test]
fn the_noise_of_the_other_loads_counts_too() {
    // Nine loads at 10 ± 0.1 less nine at 20 ± 0.2, plus 100: about 10, and up to 13.
    let quiet = [
        (Walk::Pattern(PrefetchPattern::Random), sampled(100.0)),
        (Walk::Pattern(PrefetchPattern::NextPage), sampled(10.0)),
        (Walk::OtherPage, sampled(20.0)),
    ];
    assert!(points(&quiet, &PrefetchState::Default)[1].prefetched);
    let mut noisy = quiet;
    noisy[2].1.summary.low = 10.0;
    let found = points(&noisy, &PrefetchState::Default);
    assert!(!found[1].prefetched && found[1].ratio < 0.2, "{found:?}");
}

#[test]
fn every_pattern_has_a_point_and_no_control_has_its_reason() {
    with_session(&Silent, |session, _| {
        let config = small(patterns());
        let prefetch = measure(session, &config, Err(no_control())).unwrap();
        let found: Vec<PrefetchPattern> =
            prefetch.points.iter().map(|point| point.pattern).collect();
        assert_eq!(found, patterns());
        for point in &prefetch.points {
            assert_eq!(point.prefetch, PrefetchState::Default);
            assert!(point.ns >= 0.0 && point.random_ns > 0.0, "{point:?}");
            assert!((point.ratio - point.ns / point.random_ns).abs() < 1e-9);
            assert!(point.batches.raw.len() >= 10, "{point:?}");
        }
        // With or without prefetching, lines in order are no slower than random ones; the margin is
        // for noise.
        let forward = PrefetchPattern::Forward { stride_bytes: 64 };
        let forward = prefetch
            .points
            .iter()
            .find(|point| point.pattern == forward);
        assert!(forward.unwrap().ratio < 1.5, "{forward:?}");
        assert_eq!(
            prefetch.controls.why_missing().unwrap().reason,
            "no such register"
        );
        assert_eq!(prefetch.area_bytes, 32 << 20);
    });
}

#[test]
fn prefetchers_go_off_all_together_and_one_by_one_and_come_back_each_time() {
    with_session(&Silent, |session, _| {
        let fake = Fake::default();
        let config = small(vec![PrefetchPattern::Forward { stride_bytes: 64 }]);
        let prefetch = measure(session, &config, Ok(&fake)).unwrap();
        assert_eq!(
            *fake.log.borrow(),
            [
                "off streamer+stride",
                "on streamer+stride",
                "off streamer",
                "on streamer",
                "off stride",
                "on stride"
            ]
        );
        let states: Vec<&PrefetchState> = prefetch
            .points
            .iter()
            .map(|point| &point.prefetch)
            .collect();
        assert_eq!(
            states,
            [
                &PrefetchState::Default,
                &PrefetchState::Default,
                &PrefetchState::Off,
                &PrefetchState::Off,
                &PrefetchState::Without("streamer".to_owned()),
                &PrefetchState::Without("streamer".to_owned()),
                &PrefetchState::Without("stride".to_owned()),
                &PrefetchState::Without("stride".to_owned()),
            ]
        );
        assert_eq!(prefetch.controls.known().map(Vec::len), Some(2));
    });
}

#[test]
fn a_prefetcher_that_cannot_be_switched_is_named_and_the_rest_goes_on() {
    with_session(&Silent, |session, _| {
        let fake = Fake {
            refuses: Some("streamer"),
            ..Fake::default()
        };
        let config = small(vec![PrefetchPattern::AdjacentLine]);
        let prefetch = measure(session, &config, Ok(&fake)).unwrap();
        assert!(
            prefetch
                .skipped
                .contains(&"streamer off: streamer does not stay off (ask the host)".to_owned()),
            "{:?}",
            prefetch.skipped
        );
        assert_eq!(fake.log.borrow().len(), 4);
        assert_eq!(prefetch.points.len(), 6);
    });
}

/// Calls back when progress says that prefetchers are off.
struct WhenOff<F: Fn() + Sync>(F);

impl<F: Fn() + Sync> Progress for WhenOff<F> {
    fn at(&self, _share: f64, doing: &str) {
        if doing.ends_with("off") {
            (self.0)();
        }
    }
}

#[test]
fn prefetchers_come_back_when_the_measurement_panics() {
    let progress = WhenOff(|| panic!("in the middle"));
    with_session(&progress, |session, _| {
        let fake = Fake::default();
        let config = small(vec![PrefetchPattern::PageRandom]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = measure(session, &config, Ok(&fake));
        }));
        assert!(panicked.is_err());
        assert_eq!(
            *fake.log.borrow(),
            ["off streamer+stride", "on streamer+stride"]
        );
    });
}

#[test]
fn prefetchers_come_back_when_the_run_is_cancelled_and_points_are_kept() {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let visits = AtomicU32::new(0);
    let progress = WhenOff(|| {
        if visits.fetch_add(1, Ordering::Relaxed) == 1 {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    let session = Session::new(&root, None, Effort::Quick, &cancel, &progress).unwrap();
    let fake = Fake::default();
    let config = small(vec![PrefetchPattern::PageRandom]);
    let prefetch = measure(&session, &config, Ok(&fake)).unwrap();
    assert_eq!(
        *fake.log.borrow(),
        ["off streamer+stride", "on streamer+stride"]
    );
    let as_found = prefetch
        .points
        .iter()
        .filter(|point| point.prefetch == PrefetchState::Default);
    assert_eq!(as_found.count(), 2);
}

#[test]
fn nothing_is_measured_when_cancelled_before_the_first_visit() {
    with_session(&Silent, |session, cancel| {
        cancel.store(true, Ordering::Relaxed);
        let fake = Fake::default();
        let error = measure(session, &small(patterns()), Ok(&fake)).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error}");
        assert!(fake.log.borrow().is_empty());
    });
}

#[test]
fn settings_are_measured_in_turn_and_unavailable_ones_are_named() {
    with_session(&Silent, |session, cancel| {
        let fake = Fake {
            refuses: Some("dscr=5"),
            ..Fake::default()
        };
        let named = |names: &[&str]| -> Vec<PrefetchState> {
            names
                .iter()
                .map(|name| PrefetchState::of_name(name))
                .collect()
        };
        let settings = named(&["default", "dscr=1", "dscr=5", "dscr=16"]);
        let log = Rc::clone(&fake.log);
        let found = in_settings(session, Ok(&fake), &settings, |setting, number| {
            log.borrow_mut().push(format!("{number} {setting}"));
            Ok::<_, Error>(number)
        })
        .unwrap();
        assert_eq!(
            *fake.log.borrow(),
            [
                "0 default",
                "off dscr=1",
                "1 dscr=1",
                "on dscr=1",
                "off dscr=16",
                "3 dscr=16",
                "on dscr=16"
            ]
        );
        let measured: Vec<usize> = found.measured.iter().map(|(_, number)| *number).collect();
        assert_eq!(measured, [0, 1, 3]);
        assert_eq!(
            found.skipped,
            ["dscr=5: dscr=5 does not stay off (ask the host)"]
        );
        // After an error no other setting is measured, and all settings are restored.
        fake.log.borrow_mut().clear();
        let failed = in_settings(session, Ok(&fake), &settings, |setting, _| match setting {
            PrefetchState::Default => Ok(()),
            _ => Err("no memory"),
        });
        assert_eq!(failed.unwrap_err(), "no memory");
        assert_eq!(*fake.log.borrow(), ["off dscr=1", "on dscr=1"]);
        // Without switches, the machine's own setting is still measured.
        let found = in_settings(session, Err(&no_control()), &settings[..2], |_, number| {
            Ok::<_, Error>(number)
        })
        .unwrap();
        assert_eq!(found.measured.len(), 1);
        assert_eq!(found.skipped, ["dscr=1: no such register"]);
        cancel.store(true, Ordering::Relaxed);
        let found = in_settings(session, Ok(&fake), &settings, |_, _| Ok::<_, Error>(()));
        assert!(found.unwrap().measured.is_empty());
    });
}

#[test]
fn patterns_that_make_no_sense_are_refused() {
    with_session(&Silent, |session, _| {
        for (pattern, text) in [
            (PrefetchPattern::Forward { stride_bytes: 100 }, "100"),
            (
                PrefetchPattern::Backward { stride_bytes: 0 },
                "multiple of 64",
            ),
            (PrefetchPattern::Interleaved { streams: 0 }, "between"),
        ] {
            let error = measure(session, &small(vec![pattern]), Err(no_control())).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        let config = PrefetchConfig {
            max_bytes: 1 << 20,
            ..small(patterns())
        };
        assert!(measure(session, &config, Err(no_control())).is_err());
    });
}
