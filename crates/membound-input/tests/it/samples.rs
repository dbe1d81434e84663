//! Start documents, and the files beside the tests.

use std::path::Path;

use membound_types::{
    Access, CpuId, Disturbance, Document, Kind, Latency, LatencyPoint, MachineInfo, NodePolicy,
    PageKind, Pattern, PrefetchState, SCHEMA_VERSION, Samples, Timer, Window, WindowKernel,
    WindowPoint,
};

/// A file under `tests/data`.
pub(crate) fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file under `tests/data`.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

pub(crate) fn machine() -> MachineInfo {
    MachineInfo {
        host: "anvil".to_owned(),
        date: "2026-11-20T10:00:00Z".to_owned(),
        membound_version: "0.1.0".to_owned(),
        memory_bytes: 1 << 34,
        timer: Timer {
            core_clock_hz: 4e9,
            ..Timer::default()
        },
        ..MachineInfo::default()
    }
}

pub(crate) fn batches(disturbed: Disturbance) -> Samples {
    Samples {
        disturbed,
        ..Samples::default()
    }
}

pub(crate) fn load(size_bytes: u64, ns: f64) -> LatencyPoint {
    LatencyPoint {
        size_bytes,
        stride_bytes: 64,
        pattern: Pattern::Random,
        access: Access::Clean,
        page: PageKind::Thp,
        cpu: CpuId(1),
        node: NodePolicy::LOCAL,
        prefetch: PrefetchState::Default,
        threads: 1,
        ns,
        ns_low: ns * 0.99,
        ns_high: ns * 1.01,
        cycles: ns * 4.0,
        samples: 9,
        batches: batches(Disturbance::default()),
        page_share: None,
        prefetch_taint: None,
    }
}

pub(crate) fn window(window_bytes: u64, area_bytes: u64, seconds: f64) -> WindowPoint {
    WindowPoint {
        window_bytes,
        area_bytes,
        seconds_per_window: seconds,
        seconds_low: seconds * 0.99,
        seconds_high: seconds * 1.01,
        kernel: WindowKernel::Vector,
        page: PageKind::Thp,
        node: NodePolicy::LOCAL,
        cpu: CpuId(1),
        init_cpu: None,
        batches: batches(Disturbance::default()),
    }
}

pub(crate) fn latency(points: Vec<LatencyPoint>) -> Document<Latency> {
    Document {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Latency,
        incomplete: false,
        machine: machine(),
        part: Latency {
            points,
            ..Latency::default()
        },
    }
}

pub(crate) fn windows(points: Vec<WindowPoint>) -> Document<Window> {
    Document {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Window,
        incomplete: false,
        machine: machine(),
        part: Window {
            points,
            ..Window::default()
        },
    }
}

/// A curve with every peculiarity: another page kind, repeated sizes, marks.
pub(crate) fn some_loads() -> Vec<LatencyPoint> {
    let mut points = vec![
        load(1 << 24, 12.0),
        load(1 << 14, 0.96),
        load(1 << 18, 3.4),
        load(1 << 18, 3.5),
    ];
    let mut base = load(1 << 24, 14.0);
    base.page = PageKind::Base;
    base.prefetch = PrefetchState::Without("l2_stream".to_owned());
    points.push(base);
    points
}

pub(crate) fn some_windows() -> Vec<WindowPoint> {
    let mut points = vec![
        window(4096, 1 << 24, 1.6e-6),
        window(1024, 1 << 24, 4.4e-7),
        window(1024, 1 << 16, 1.1e-7),
    ];
    let mut far = window(1024, 1 << 16, 1.2e-7);
    far.init_cpu = Some(CpuId(0));
    points.push(far);
    points
}

pub(crate) fn json(document: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(document).unwrap()
}
