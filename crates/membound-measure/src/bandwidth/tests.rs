use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use membound_platform::Root;
use membound_types::Stopped;

use super::*;
use crate::Silent;

fn quick(sizes: &[u64], threads: &[u32]) -> BandwidthConfig {
    BandwidthConfig {
        sizes: Some(sizes.to_vec()),
        threads: threads.to_vec(),
        budget: Duration::from_millis(10),
        ..BandwidthConfig::new(Effort::Quick, PageKind::Base, 1)
    }
}

fn with_session<T>(check: impl FnOnce(&Session<'_>) -> T) -> T {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    check(&session)
}

#[test]
fn every_point_has_samples_and_its_allocate_factor() {
    let bandwidth = with_session(|session| {
        let threads: &[u32] = if session.cpus.len() > 1 {
            &[1, 2]
        } else {
            println!("skipped: two threads, because there is only one CPU");
            &[1]
        };
        let bandwidth = measure(session, &quick(&[24 << 10, 256 << 10], threads)).unwrap();
        assert_eq!(bandwidth.points.len(), 5 * 2 * threads.len());
        bandwidth
    });
    assert!(bandwidth.counting.contains("write twice"));
    for point in &bandwidth.points {
        assert!(point.batches.raw.len() >= 2, "{point:?}");
        assert!(point.gb_s_low <= point.gb_s && point.gb_s <= point.gb_s_high);
        assert!(point.gb_s > 0.0);
        let factor = match point.kernel {
            BandwidthKernel::Read | BandwidthKernel::NtWrite => 1.0,
            BandwidthKernel::Write => 2.0,
            BandwidthKernel::Copy => 1.5,
            BandwidthKernel::Triad => 4.0 / 3.0,
        };
        assert_eq!(point.gb_s_with_allocate, point.gb_s * factor);
        assert_eq!(point.size_bytes % 6, 0);
    }
}

#[test]
fn a_set_inside_the_caches_is_not_slower_to_read_than_one_beyond() {
    with_session(|session| {
        let mut config = quick(&[16 << 10, 64 << 20], &[1]);
        config.kernels = vec![BandwidthKernel::Read];
        let bandwidth = measure(session, &config).unwrap();
        // The best batch: others that share the CPUs make some slower and none faster.
        let of = |size: u64| {
            let points = bandwidth.points.iter();
            points
                .filter(|point| point.size_bytes.abs_diff(size) < size / 8)
                .flat_map(|point| &point.batches.raw)
                .fold(0.0_f64, |best, rate| best.max(*rate))
        };
        assert!(of(16 << 10) >= of(64 << 20));
    });
}

#[test]
fn without_sizes_there_is_one_beyond_the_caches() {
    with_session(|session| {
        let config = BandwidthConfig::new(Effort::Quick, PageKind::Base, 1);
        let streams = vec![(
            BandwidthKernel::Triad,
            session
                .backend
                .stream(BandwidthKernel::Triad, VectorWidth::V128)
                .unwrap(),
        )];
        let sizes = sizes(session, &config, &streams).unwrap();
        assert_eq!(sizes[0], 24 << 10);
        assert!(sizes.is_sorted());
        let beyond = 3 * hint::largest_cache_bytes(session);
        if membound_platform::memory::available_bytes(session.root) > 4 * beyond {
            assert!(*sizes.last().unwrap() > beyond, "{sizes:?}");
        } else {
            println!("skipped: there is too little memory for a set beyond the caches");
        }
    });
}

#[test]
fn counts_of_threads_are_dense_where_few_and_sparse_where_many() {
    assert_eq!(thread_counts(1), [1]);
    assert_eq!(thread_counts(3), [1, 2, 3]);
    assert_eq!(
        thread_counts(48),
        [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 48],
        "all of them at the end"
    );
}

#[test]
fn the_largest_set_leaves_room_for_everybody_else_with_all_threads() {
    with_session(|session| {
        let cpus = u32::try_from(session.cpus.len()).unwrap();
        let config = BandwidthConfig::new(Effort::Quick, PageKind::Base, cpus);
        let most = largest_set_bytes(session, &config);
        let available = membound_platform::memory::available_bytes(session.root);
        assert!(most > 0 && most * u64::from(cpus) <= available / 5 * 4);
        // The default sets are among those that fit.
        let streams = vec![(
            BandwidthKernel::Read,
            session
                .backend
                .stream(BandwidthKernel::Read, VectorWidth::V128)
                .unwrap(),
        )];
        let sizes = sizes(session, &config, &streams).unwrap();
        assert!(sizes.iter().all(|size| *size <= most), "{sizes:?}");
    });
}

#[test]
fn bad_input_is_named() {
    with_session(|session| {
        let error = |config: BandwidthConfig| measure(session, &config).unwrap_err();
        let beyond = error(quick(&[1 << 46], &[1]));
        assert!(matches!(beyond, Error::Memory { .. }), "{beyond}");
        let overflow = error(quick(&[u64::MAX], &[1]));
        assert!(matches!(overflow, Error::Memory { .. }), "{overflow}");
        let many = error(quick(&[1 << 16], &[session.cpus.len() as u32 + 1]));
        assert!(matches!(many, Error::TooManyThreads { .. }), "{many}");
        let tiny = error(quick(&[100], &[1]));
        assert!(tiny.to_string().contains("100 bytes"), "{tiny}");
        for config in [
            quick(&[], &[1]),
            quick(&[1 << 16], &[]),
            quick(&[1 << 16], &[0]),
        ] {
            let error = error(config);
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
        let mut nowhere = quick(&[1 << 16], &[1]);
        nowhere.nodes = vec![NodePolicy::Node(membound_types::NodeId(63))];
        let nowhere = error(nowhere);
        assert!(nowhere.to_string().contains("63"), "{nowhere}");
    });
}

#[test]
fn kernels_that_a_backend_lacks_are_skipped_with_the_reason() {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let mut session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    session.backend = Box::new(crate::arch::Portable);
    let mut config = quick(&[24 << 10], &[1]);
    let bandwidth = measure(&session, &config).unwrap();
    assert_eq!(bandwidth.points.len(), 4);
    assert_eq!(
        bandwidth.skipped,
        ["kernel nt-write: the portable kernels have no non-temporal stores"]
    );
    config.kernels = vec![BandwidthKernel::NtWrite];
    assert!(measure(&session, &config).is_err());
}

#[test]
fn unavailable_parts_are_skipped_with_a_reason() {
    with_session(|session| {
        let mut config = quick(&[24 << 10], &[1]);
        config.kernels = vec![BandwidthKernel::Copy];
        config.nodes = vec![
            NodePolicy::Node(membound_types::NodeId(63)),
            NodePolicy::LOCAL,
        ];
        let bandwidth = measure(session, &config).unwrap();
        assert_eq!(bandwidth.points.len(), 1);
        assert_eq!(bandwidth.skipped.len(), 1);
        assert!(bandwidth.skipped[0].starts_with("4k pages on node 63: "));
    });
}

#[test]
fn a_cancelled_run_returns_its_results_so_far() {
    struct CancelAt<'a>(&'a AtomicBool, AtomicU32);
    impl crate::Progress for CancelAt<'_> {
        fn at(&self, _share: f64, _doing: &str) {
            if self.1.fetch_add(1, Ordering::Relaxed) == 2 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let progress = CancelAt(&cancel, 0.into());
    let session = Session::new(&root, None, Effort::Quick, &cancel, &progress).unwrap();
    let bandwidth = measure(&session, &quick(&[24 << 10], &[1])).unwrap();
    // The memory, and one visit, went before; the second visit was still finished.
    assert_eq!(bandwidth.points.len(), 2);
    for point in &bandwidth.points {
        assert_eq!(point.batches.stopped, Stopped::Interrupted);
    }
}
