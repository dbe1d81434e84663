use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use membound_platform::Root;
use membound_types::Stopped;

use super::*;
use crate::Silent;

const READ: TrafficMix = TrafficMix {
    reads: 1,
    writes: 0,
};
const WRITE: TrafficMix = TrafficMix {
    reads: 0,
    writes: 1,
};

fn quick() -> LoadedConfig {
    LoadedConfig {
        mixes: vec![READ, WRITE],
        delays: Some(vec![Some(0), Some(4000), None]),
        chase_bytes: Some(8 << 20),
        traffic_bytes: Some(4 << 20),
        budget: Duration::from_millis(10),
        ..LoadedConfig::new(Effort::Quick, PageKind::Base)
    }
}

fn with_session<T>(check: impl FnOnce(&mut Session<'_>) -> T) -> T {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let mut session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    check(&mut session)
}

#[test]
fn points_go_by_mix_from_idle_to_full_speed() {
    with_session(|session| {
        if session.cpus.len() < 2 {
            println!("skipped: there is no other CPU to inject traffic from");
            return;
        }
        let loaded = measure(session, &quick()).unwrap();
        assert_eq!(loaded.chase_bytes, 8 << 20);
        assert_eq!(loaded.points.len(), 6);
        for (points, mix) in loaded.points.chunks(3).zip([READ, WRITE]) {
            assert!(points.iter().all(|point| point.mix == mix));
            assert_eq!((points[0].delay_steps, points[0].gb_s), (None, 0.0));
            assert_eq!(points[0].injectors, 0);
            assert!(points[1..].iter().all(|point| point.injectors >= 1));
            assert!(points[1].gb_s <= points[2].gb_s);
            if points.iter().any(|point| point.batches.disturbed.any()) {
                println!("skipped: which delay has the most traffic, others had the CPUs");
                continue;
            }
            assert!(points[1].gb_s > 0.0);
            assert_eq!(points[2].delay_steps, Some(0), "full speed is the most");
        }
        for point in &loaded.points {
            assert!(point.batches.raw.len() >= 10);
            assert!(point.ns_low <= point.ns && point.ns <= point.ns_high);
            assert!(point.ns > 0.0 && point.cycles > 0.0);
        }
    });
}

#[test]
fn with_one_cpu_there_is_only_the_idle_point() {
    with_session(|session| {
        session.cpus = vec![session.cpu];
        let loaded = measure(session, &quick()).unwrap();
        assert_eq!(loaded.points.len(), 1);
        assert_eq!(loaded.points[0].delay_steps, None);
        assert_eq!(loaded.points[0].injectors, 0);
        assert!(loaded.points[0].batches.raw.len() >= 10);
        assert!(loaded.skipped[0].contains("no other CPU"));
    });
}

#[test]
fn siblings_of_the_measuring_cpu_inject_last() {
    with_session(|session| {
        session.cpu = CpuId(0);
        session.cpus = (0..4).map(CpuId).collect();
        session.siblings = vec![vec![CpuId(0), CpuId(2)], vec![CpuId(1), CpuId(3)]];
        let cpus = |injectors| injector_cpus(session, injectors).unwrap();
        assert_eq!(cpus(None), [CpuId(1), CpuId(3)]);
        assert_eq!(cpus(Some(1)), [CpuId(1)]);
        assert_eq!(cpus(Some(3)), [CpuId(1), CpuId(3), CpuId(2)]);
        assert!(matches!(
            injector_cpus(session, Some(4)),
            Err(Error::TooManyThreads { threads: 5, .. })
        ));
        session.cpus = vec![CpuId(0), CpuId(2)];
        assert_eq!(injector_cpus(session, None).unwrap(), [CpuId(2)]);
    });
}

#[test]
fn delays_go_from_idle_to_none() {
    let mut config = quick();
    assert_eq!(
        config.delays(Effort::Quick),
        [None, Some(4000), Some(0)],
        "whatever order they were given in"
    );
    config.delays = None;
    for effort in [Effort::Quick, Effort::Normal, Effort::Thorough] {
        let delays = config.delays(effort);
        assert_eq!((delays[0], *delays.last().unwrap()), (None, Some(0)));
        assert!(delays[1..].windows(2).all(|pair| pair[0] > pair[1]));
    }
}

#[test]
fn sizes_that_are_not_given_exceed_the_caches_and_fit_the_memory() {
    with_session(|session| {
        let config = LoadedConfig::new(Effort::Quick, PageKind::Base);
        let sizes = Sizes::new(session, &config, 3).unwrap();
        let cache = hint::largest_cache_bytes(session);
        let available = membound_platform::memory::available_bytes(session.root);
        assert!(sizes.chase_bytes + 3 * sizes.traffic_bytes < available);
        if available > 64 * cache {
            assert!(sizes.chase_bytes >= 8 * cache);
            assert!(3 * sizes.traffic_bytes > 3 * cache);
        }
        // A measured cache takes the place of a larger declared one.
        let cache_bytes = Some(1 << 20);
        let measured = LoadedConfig {
            cache_bytes,
            ..config
        };
        let small = Sizes::new(session, &measured, 3).unwrap();
        assert!(small.chase_bytes <= sizes.chase_bytes.min(256 << 20));
    });
}

#[test]
fn bad_input_is_named() {
    with_session(|session| {
        let error = |config: LoadedConfig| measure(session, &config).unwrap_err();
        let beyond = error(LoadedConfig {
            chase_bytes: Some(1 << 46),
            ..quick()
        });
        assert!(matches!(beyond, Error::Memory { .. }), "{beyond}");
        let many = error(LoadedConfig {
            injectors: Some(u32::MAX),
            ..quick()
        });
        assert!(matches!(many, Error::TooManyThreads { .. }), "{many}");
        let nothing = TrafficMix {
            reads: 0,
            writes: 0,
        };
        let invalid: [(&str, LoadedConfig); 6] = [
            (
                "0 injectors",
                LoadedConfig {
                    injectors: Some(0),
                    ..quick()
                },
            ),
            (
                "0:0",
                LoadedConfig {
                    mixes: vec![nothing],
                    ..quick()
                },
            ),
            (
                "no traffic mix",
                LoadedConfig {
                    mixes: Vec::new(),
                    ..quick()
                },
            ),
            (
                "no delay",
                LoadedConfig {
                    delays: Some(Vec::new()),
                    ..quick()
                },
            ),
            (
                "100 bytes",
                LoadedConfig {
                    traffic_bytes: Some(100),
                    ..quick()
                },
            ),
            (
                "64 bytes",
                LoadedConfig {
                    chase_bytes: Some(64),
                    ..quick()
                },
            ),
        ];
        for (named, config) in invalid {
            let error = error(config);
            assert!(error.to_string().contains(named), "{error}");
        }
    });
}

#[test]
fn a_cancelled_run_returns_its_results_so_far() {
    struct CancelAt<'a>(&'a AtomicBool, AtomicU32);
    impl crate::Progress for CancelAt<'_> {
        fn at(&self, _share: f64, _doing: &str) {
            if self.1.fetch_add(1, Ordering::Relaxed) == 1 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let progress = CancelAt(&cancel, 0.into());
    let session = Session::new(&root, None, Effort::Quick, &cancel, &progress).unwrap();
    let loaded = measure(&session, &quick()).unwrap();
    assert_eq!(loaded.points.len(), 1);
    assert_eq!(loaded.points[0].batches.stopped, Stopped::Interrupted);
}
