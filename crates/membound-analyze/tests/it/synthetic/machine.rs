//! A synthetic machine: levels with known latencies, and a timer with coarse steps.

use membound_types::{
    Bandwidth, BandwidthKernel, BandwidthPoint, CalibratedLevel, Calibration, Cpu, Level,
    LevelKind, MachineInfo, MachineProfile, NamedPolicy, NodePolicy, Outcome, PageKind, Samples,
    TickCount, Timer, VectorWidth,
};

use super::Random;

/// Level that serves an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    L1,
    L2,
    L3,
    Dram,
    /// Another core's cache.
    Core,
}

impl From {
    const ALL: [Self; 5] = [Self::L1, Self::L2, Self::L3, Self::Dram, Self::Core];

    /// Latency in nanoseconds.
    pub(crate) const fn latency_ns(self) -> f64 {
        match self {
            Self::L1 => 1.0,
            Self::L2 => 4.0,
            Self::L3 => 15.0,
            Self::Dram => 150.0,
            Self::Core => 60.0,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::Dram => "DRAM",
            Self::Core => "core",
        }
    }

    /// Ticks of a timed access: the latency and the cost of timing, rounded to the timer's steps.
    pub(crate) fn ticks(self, random: &mut Random) -> u32 {
        const TIMING_TICKS: f64 = 40.0;
        const STEP: f64 = 2.0;
        let spread = 1.0 + 0.1 * (random.unit() - 0.5);
        let ticks = TIMING_TICKS + self.latency_ns() * spread * TICK_HZ * 1e-9;
        ((ticks / STEP + random.unit()).floor() * STEP) as u32
    }
}

/// Frequency of the time stamp counter in Hz.
pub(crate) const TICK_HZ: f64 = 2.5e9;

/// Core clock in Hz.
pub(crate) const CORE_HZ: f64 = 4e9;

/// Profile of the synthetic machine.
pub(crate) fn machine() -> MachineProfile {
    let mut random = Random::new(7);
    let level = |from: From, kind, size_bytes| Level {
        name: from.name().to_owned(),
        kind,
        size_bytes,
        size_low_bytes: size_bytes,
        size_high_bytes: size_bytes,
        latency_ns: from.latency_ns(),
        latency_low_ns: from.latency_ns(),
        latency_high_ns: from.latency_ns(),
        latency_cycles: from.latency_ns() * CORE_HZ * 1e-9,
        line_bytes: Some(64),
        line_basis: None,
        declared_bytes: size_bytes,
        note: None,
    };
    let info = MachineInfo {
        host: "never".to_owned(),
        date: "2026-01-01T00:00:00Z".to_owned(),
        membound_version: "0.1.0".to_owned(),
        cpu: Cpu {
            model_name: "Imagined 1".to_owned(),
            ..Cpu::default()
        },
        memory_bytes: 16 << 30,
        timer: Timer {
            rate_hz: TICK_HZ,
            core_clock_hz: CORE_HZ,
            ..Timer::default()
        },
        ..MachineInfo::default()
    };
    MachineProfile {
        levels: vec![
            level(From::L1, LevelKind::Cache, Some(32 << 10)),
            level(From::L2, LevelKind::Cache, Some(1 << 20)),
            level(From::L3, LevelKind::Cache, Some(16 << 20)),
            level(From::Dram, LevelKind::Memory, None),
        ],
        calibration: Outcome::Known(Calibration {
            levels: From::ALL
                .into_iter()
                .map(|from| calibrated(from, &mut random))
                .collect(),
            tick_hz: TICK_HZ,
            patch: "imagined".to_owned(),
            skipped: Vec::new(),
            locked_ns: None,
            elapsed_s: 1.0,
        }),
        elapsed_s: 1.0,
        ..MachineProfile::unmeasured(info)
    }
}

fn calibrated(from: From, random: &mut Random) -> CalibratedLevel {
    let mut ticks: Vec<u32> = (0..20_000).map(|_| from.ticks(random)).collect();
    ticks.sort_unstable();
    CalibratedLevel {
        name: from.name().to_owned(),
        area_bytes: 1 << 20,
        latency_ns: from.latency_ns(),
        count: ticks.len() as u64,
        ticks: ticks
            .chunk_by(|a, b| a == b)
            .map(|same| TickCount {
                ticks: same[0],
                count: same.len() as u64,
            })
            .collect(),
        hit_ticks: None,
        drain_ticks: None,
    }
}

/// A machine whose kernels reached these bandwidths with one thread, including write-allocate.
pub(crate) fn machine_that_moves(kernels: &[(BandwidthKernel, f64)]) -> MachineProfile {
    let point = |&(kernel, gb_s): &(BandwidthKernel, f64)| BandwidthPoint {
        kernel,
        vector: VectorWidth::V512,
        size_bytes: 128 << 20,
        level: Some("DRAM".to_owned()),
        threads: 1,
        page: PageKind::Thp,
        node: NodePolicy::Named(NamedPolicy::Local),
        gb_s,
        gb_s_low: gb_s,
        gb_s_high: gb_s,
        gb_s_with_allocate: gb_s,
        batches: Samples::default(),
    };
    MachineProfile {
        bandwidth: Outcome::Known(Bandwidth {
            points: kernels.iter().map(point).collect(),
            ..Bandwidth::default()
        }),
        ..machine()
    }
}
