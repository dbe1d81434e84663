use std::sync::atomic::{AtomicBool, Ordering};

use membound_platform::Root;
use membound_platform::numa::{Node, Topology};
use membound_types::Stopped;

use super::*;
use crate::{Silent, stats};

fn quick(areas: Option<Vec<u64>>) -> WindowConfig {
    WindowConfig {
        windows: vec![1024, 4096],
        areas,
        max_bytes: 1 << 20,
        kernels: vec![WindowKernel::Scalar],
        budget: Duration::from_millis(50),
        ..WindowConfig::new(Effort::Quick, PageKind::Base)
    }
}

fn with_session<T>(check: impl FnOnce(&Session<'_>, &AtomicBool) -> T) -> T {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    check(&session, &cancel)
}

#[test]
fn areas_follow_the_documents_formula() {
    let areas = half_octaves(1 << 33);
    // 16 KiB to 8 GiB in half-octaves.
    assert_eq!(areas.len(), 2 * 19 + 1);
    let rounded: Vec<u64> = keys(&[WindowKernel::Scalar], &[1024], &areas)
        .iter()
        .map(|key| key.area_bytes)
        .collect();
    // 4096·2^2.5 = 23170.5 and 4096·2^3.5 = 46340.9, less what does not fill a window.
    assert_eq!(rounded[..4], [16384, 22528, 32768, 46080]);
    assert_eq!(*rounded.last().unwrap(), 1 << 33);
    assert_eq!(half_octaves(1 << 14).len(), 1);
    assert!(half_octaves(1000).is_empty());
}

#[test]
fn windows_larger_than_the_area_are_left_out() {
    let keys = keys(&[WindowKernel::Scalar], &[1024, 4096], &[2048, 5000]);
    let shapes: Vec<(u64, u64)> = keys
        .iter()
        .map(|key| (key.window_bytes, key.area_bytes))
        .collect();
    assert_eq!(shapes, [(1024, 2048), (1024, 4096), (4096, 4096)]);
}

#[test]
fn every_point_has_its_samples_and_larger_windows_take_longer() {
    let window = with_session(|session, _| {
        let mut config = quick(None);
        config.kernels = vec![WindowKernel::Scalar, WindowKernel::VectorPrefetch];
        measure(session, &config).unwrap()
    });
    // 16 KiB to 1 MiB in half-octaves, for two windows and two kernels.
    assert_eq!(window.points.len(), 13 * 2 * 2);
    for point in &window.points {
        assert!(point.batches.raw.len() >= 10, "{point:?}");
        assert!(
            point.seconds_low <= point.seconds_per_window
                && point.seconds_per_window <= point.seconds_high
                && point.seconds_low > 0.0
        );
        assert_eq!(point.area_bytes % point.window_bytes, 0);
        assert_eq!(point.init_cpu, None);
        assert_eq!(point.node, NodePolicy::LOCAL);
    }
    let of = |window_bytes, kernel| -> Vec<f64> {
        let points = window.points.iter();
        points
            .filter(|point| point.window_bytes == window_bytes && point.kernel == kernel)
            .map(|point| point.seconds_per_window)
            .collect()
    };
    let small = stats::median(&of(1024, WindowKernel::Scalar)).unwrap();
    let large = stats::median(&of(4096, WindowKernel::Scalar)).unwrap();
    assert!(large > 2.0 * small, "{large} s against {small} s");
}

#[test]
fn another_thread_can_initialise() {
    with_session(|session, _| {
        let Some(other) = session.cpus.iter().copied().find(|cpu| *cpu != session.cpu) else {
            println!("skipped: there is only one CPU");
            return;
        };
        let mut config = quick(Some(vec![65536]));
        config.init_cpu = Some(other);
        let window = measure(session, &config).unwrap();
        assert!(!window.points.is_empty());
        for point in &window.points {
            assert_eq!(point.init_cpu, Some(other));
            assert_eq!(point.cpu, session.cpu);
        }
        config.init_cpu = None;
        config.init_node = Some(session.topology.node_of(session.cpu));
        assert!(!measure(session, &config).unwrap().points.is_empty());
    });
}

#[test]
fn only_signs_change_and_the_generator_is_carried_on() {
    with_session(|session, _| {
        let region = region_of_ones(
            session,
            RegionConfig {
                bytes: 1 << 16,
                page: PageKind::Base,
                node: NodePolicy::LOCAL,
                cpu: session.cpu,
            },
        )
        .unwrap();
        let key = Key {
            nominal_bytes: 1 << 16,
            area_bytes: 1 << 16,
            window_bytes: 1024,
            kernel: WindowKernel::Scalar,
        };
        let mut walk = Walk {
            session,
            region: &region,
            kernels: Kernels::new(session, &quick(None)).unwrap().0,
            clock: CpuTime::calibrate(),
            state: 1,
            warm_bytes: 1 << 20,
            last_area: None,
        };
        walk.draw(key, 25);
        let first = walk.state;
        walk.draw(key, 25);
        assert_ne!(walk.state, first, "the generator is carried on");
        let start = region.start().cast::<f64>();
        let doubles: Vec<f64> = (0..8192)
            // SAFETY: the region holds 8192 doubles, all written.
            .map(|index| unsafe { start.wrapping_add(index).read() })
            .collect();
        assert!(doubles.iter().all(|double| double.abs() == 1.0));
        assert!(doubles.contains(&-1.0));
    });
}

#[test]
fn kernels_that_a_backend_lacks_are_skipped_with_the_reason() {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let mut session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    session.backend = Box::new(crate::arch::Portable);
    let mut config = quick(Some(vec![16 << 10]));
    config.kernels = vec![WindowKernel::Vector, WindowKernel::Scalar];
    let window = measure(&session, &config).unwrap();
    assert_eq!(window.points.len(), 2);
    assert_eq!(window.skipped.len(), 1);
    assert!(window.skipped[0].contains("vector: the portable kernels"));
    config.kernels = vec![WindowKernel::Vector];
    assert!(measure(&session, &config).is_err());
}

#[test]
fn memory_of_another_node_is_called_by_that_nodes_number() {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let mut session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    let node = |id, cpu| Node {
        id: NodeId(id),
        cpus: vec![CpuId(cpu)],
        memory_bytes: 1 << 30,
        free_bytes: 1 << 30,
        distances: Vec::new(),
    };
    session.topology = Topology {
        nodes: vec![node(0, 0), node(1, 1)],
    };
    session.cpu = CpuId(0);
    session.cpus = vec![CpuId(0), CpuId(1)];
    let mut config = quick(None);
    assert_eq!(initialiser(&session, &config).unwrap(), CpuId(0));
    assert_eq!(
        where_it_lies(&session, &config, CpuId(0)),
        NodePolicy::LOCAL
    );
    config.init_node = Some(NodeId(1));
    assert_eq!(initialiser(&session, &config).unwrap(), CpuId(1));
    assert_eq!(
        where_it_lies(&session, &config, CpuId(1)),
        NodePolicy::Node(NodeId(1))
    );
    config.node = NodePolicy::INTERLEAVE;
    assert_eq!(
        where_it_lies(&session, &config, CpuId(1)),
        NodePolicy::INTERLEAVE
    );
    session.cpus = vec![CpuId(0)];
    let error = initialiser(&session, &config).unwrap_err();
    assert!(error.to_string().contains("node 1 has no CPU"), "{error}");
}

#[test]
fn bad_input_is_named() {
    with_session(|session, _| {
        let error = |config: WindowConfig| measure(session, &config).unwrap_err();
        let beyond = error(quick(Some(vec![1 << 46])));
        assert!(matches!(beyond, Error::Memory { .. }), "{beyond}");
        let odd = error(WindowConfig {
            windows: vec![1000],
            ..quick(None)
        });
        assert!(odd.to_string().contains("1000 bytes"), "{odd}");
        let small = error(quick(Some(vec![512])));
        assert!(small.to_string().contains("512 bytes"), "{small}");
        assert!(matches!(error(quick(Some(Vec::new()))), Error::Invalid(_)));
        for windows in [Vec::new(), vec![0]] {
            let none = error(WindowConfig {
                windows,
                ..quick(None)
            });
            assert!(matches!(none, Error::Invalid(_)), "{none}");
        }
        let nowhere = error(WindowConfig {
            init_node: Some(NodeId(63)),
            ..quick(None)
        });
        assert!(nowhere.to_string().contains("63"), "{nowhere}");
        let nobody = error(WindowConfig {
            init_cpu: Some(CpuId(1 << 20)),
            ..quick(None)
        });
        assert!(matches!(nobody, Error::Platform(_)), "{nobody}");
    });
}

#[test]
fn a_cancelled_run_returns_its_results_so_far() {
    struct CancelAt<'a>(&'a AtomicBool, std::sync::atomic::AtomicU32);
    impl crate::Progress for CancelAt<'_> {
        fn at(&self, _share: f64, _doing: &str) {
            if self.1.fetch_add(1, Ordering::Relaxed) == 3 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let progress = CancelAt(&cancel, 0.into());
    let session = Session::new(&root, None, Effort::Quick, &cancel, &progress).unwrap();
    let window = measure(&session, &quick(None)).unwrap();
    // The initialisation and two visits went before; the third was still finished.
    assert_eq!(window.points.len(), 3);
    for point in &window.points {
        assert_eq!(point.batches.stopped, Stopped::Interrupted);
    }
}
