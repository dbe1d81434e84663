//! A simulated machine with known truth, and runs of it.

use membound_model::compare::{
    BandwidthPointView, BandwidthView, LatencyPointView, LatencyView, MlpView, NamedProfile,
    NumaView, PrefetchPointView, PrefetchView, ProfileView, RawView,
};
use membound_types::{
    Access, BandwidthKernel, Basis, CpuId, Figure, Filler, Level, LevelKind, MlpCell, MlpMode,
    NodeId, NodePolicy, NumaPair, Outcome, PageKind, Pattern, PrefetchPattern, PrefetchState,
    Samples, WindowLimit,
};

use membound_testkit::Random;

/// The true values of a machine; a run is drawn with the scatter between runs.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) cpu: &'static str,
    pub(super) memory_ns: f64,
    pub(super) memory_gb_s: f64,
    pub(super) small_pages: f64,
    pub(super) clock: f64,
    pub(super) prefetch: f64,
    /// Latency on huge pages ÷ `memory_ns`.
    pub(super) large_pages: f64,
    pub(super) l3_bytes: u64,
    /// Factor on all times because of other programs.
    pub(super) busy: f64,
    /// Entries of the reorder buffer, if the part mlp was measured.
    pub(super) rob: Option<f64>,
    /// Latencies of local and remote memory in nanoseconds, on two nodes.
    pub(super) nodes: Option<(f64, f64)>,
}

pub(super) const USUAL: Machine = Machine {
    cpu: "usual",
    memory_ns: 100.0,
    memory_gb_s: 50.0,
    small_pages: 1.15,
    clock: 1.0,
    prefetch: 0.1,
    large_pages: 1.0,
    l3_bytes: 32 << 20,
    busy: 1.0,
    rob: None,
    nodes: None,
};

impl Machine {
    pub(super) fn run(self, host: &str, random: &mut Random) -> ProfileView {
        let busy = self.busy;
        let mut noisy = |value: f64, sigma: f64| value * busy * (sigma * random.normal()).exp();
        let level = |name: &str, size: Option<u64>, ns: f64, clock: f64| Level {
            name: name.to_owned(),
            kind: if size.is_some() {
                LevelKind::Cache
            } else {
                LevelKind::Memory
            },
            size_bytes: size,
            size_low_bytes: size.map(|size| size - size / 20),
            size_high_bytes: size.map(|size| size + size / 20),
            latency_ns: ns,
            latency_low_ns: ns * 0.99,
            latency_high_ns: ns * 1.01,
            latency_cycles: ns * 4.0 * clock,
            line_bytes: Some(64),
            line_basis: None,
            declared_bytes: size,
            note: None,
        };
        let clock = self.clock;
        let levels = vec![
            level("L1", Some(48 << 10), noisy(1.0 / clock, 0.004), clock),
            level("L2", Some(1 << 20), noisy(3.5 / clock, 0.008), clock),
            level("L3", Some(self.l3_bytes), noisy(14.0 / clock, 0.02), clock),
            level("DRAM", None, noisy(self.memory_ns, 0.012), clock),
        ];
        let mut points = Vec::new();
        for (page, factor) in [
            (PageKind::Thp, self.large_pages),
            (PageKind::Base, self.small_pages),
        ] {
            for step in 0..60 {
                let size_bytes = (f64::from(step) * 0.3).exp2() as u64 * 16_384;
                let truth = match size_bytes {
                    0..=49_152 => 1.0 / clock,
                    49_153..=1_048_576 => 3.5 / clock,
                    1_048_577..=33_554_432 => 14.0 / clock,
                    _ => self.memory_ns * factor,
                };
                let ns = noisy(truth, 0.012);
                points.push(LatencyPointView {
                    size_bytes,
                    stride_bytes: 64,
                    pattern: Pattern::Random,
                    access: Access::Clean,
                    page,
                    node: NodePolicy::LOCAL,
                    prefetch: PrefetchState::Default,
                    threads: 1,
                    ns,
                    ns_low: ns * 0.995,
                    ns_high: ns * 1.005,
                });
            }
        }
        let bandwidth = [
            ("L1", 500.0 * clock),
            ("L2", 200.0 * clock),
            ("L3", 100.0 * clock),
            ("DRAM", self.memory_gb_s),
        ]
        .into_iter()
        .map(|(name, truth)| {
            let gb_s = truth * truth / noisy(truth, 0.01);
            BandwidthPointView {
                kernel: BandwidthKernel::Read,
                size_bytes: 1 << 20,
                level: Some(name.to_owned()),
                threads: 1,
                gb_s,
                gb_s_low: gb_s * 0.99,
                gb_s_high: gb_s * 1.01,
            }
        })
        .collect();
        let prefetch = [64, 128, 256, 512]
            .into_iter()
            .map(|stride_bytes| {
                let ratio = noisy(self.prefetch, 0.05);
                PrefetchPointView {
                    pattern: PrefetchPattern::Forward { stride_bytes },
                    prefetch: PrefetchState::Default,
                    ns: ratio * self.memory_ns,
                    random_ns: self.memory_ns,
                    ratio,
                    batches: RawView {
                        raw: vec![1.0, 1.01, 0.99, 1.0, 1.02, 0.98],
                    },
                }
            })
            .collect();
        let mut view = ProfileView {
            host: host.to_owned(),
            levels,
            latency: LatencyView {
                points,
                ..LatencyView::default()
            },
            bandwidth: BandwidthView {
                points: bandwidth,
                ..BandwidthView::default()
            },
            prefetch: PrefetchView {
                points: prefetch,
                ..PrefetchView::default()
            },
            core_clock_hz: Some(Figure {
                value: 4e9 * clock,
                low: 3.99e9 * clock,
                high: 4.01e9 * clock,
                basis: Basis::Measured,
            }),
            ..ProfileView::default()
        };
        view.cpu.model_name = self.cpu.to_owned();
        if let Some(entries) = self.rob {
            view.mlp = mlp(entries, &mut noisy);
        }
        if let Some(nodes) = self.nodes {
            view.numa = two_nodes(nodes, &mut noisy);
        }
        view
    }

    pub(super) fn profile(self, host: &str, random: &mut Random) -> NamedProfile {
        NamedProfile {
            file: format!("{host}.json"),
            view: self.run(host, random),
        }
    }
}

/// Cells with one and two loads, and the window that a cliff shows.
fn mlp(entries: f64, noisy: &mut impl FnMut(f64, f64) -> f64) -> MlpView {
    let mut cell = |loads: u32, truth: f64| {
        let cycles = noisy(truth, 0.01);
        MlpCell {
            mode: MlpMode::Sequential,
            loads,
            fillers: 1,
            filler: Filler::Nop,
            area_bytes: 1 << 28,
            node: NodePolicy::LOCAL,
            page: PageKind::Thp,
            cycles,
            spread: 0.01 * cycles,
            misses: Outcome::missing("no counters"),
        }
    };
    MlpView {
        cells: vec![cell(1, 400.0), cell(2, 780.0)],
        page: PageKind::Thp,
        windows: vec![WindowLimit {
            filler: Filler::Nop,
            pattern: Vec::new(),
            limited_by: "reorder buffer".to_owned(),
            fillers_per_entry: 1.0,
            cliff_fillers: entries as u32 - 4,
            entries: Figure {
                value: entries,
                low: entries - 2.0,
                high: entries + 2.0,
                basis: Basis::Estimated,
            },
            inside_cycles: 420.0,
            outside_cycles: 780.0,
        }],
        ..MlpView::default()
    }
}

/// Pairs of every node with the memory of every node.
fn two_nodes((local, remote): (f64, f64), noisy: &mut impl FnMut(f64, f64) -> f64) -> NumaView {
    let mut pairs = Vec::new();
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let truth = if from == to { local } else { remote };
        let raw = (0..6)
            .map(|batch| 1.0 + 0.01 * f64::from(batch % 3))
            .collect();
        pairs.push(NumaPair {
            cpu_node: NodeId(from),
            cpu: CpuId(from),
            memory_node: NodeId(to),
            distance: None,
            placed_share: Outcome::Known(1.0),
            latency_ns: Outcome::Known(noisy(truth, 0.012)),
            latency_batches: Samples {
                raw,
                ..Samples::default()
            },
            read_gb_s: Outcome::missing("not asked for"),
            read_batches: Samples::default(),
            rates: Vec::new(),
        });
    }
    NumaView {
        nodes: vec![NodeId(0), NodeId(1)],
        pairs,
        ..NumaView::default()
    }
}
