//! Data of an Origin2000 with known truth: document 002's topology and Table 1, with chosen sizes,
//! constants and noise. The generator evaluates the paper's step function
//! itself, so that it shares no code with the fit.

use std::collections::BTreeMap;

pub(crate) use membound_testkit::Random;
use membound_types::{
    Component, LevelKind, Observation, PageTableTerm, SizeMeaning, TlbTerm, Topology, TopologyLevel,
};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Windows of the paper.
pub(crate) const WINDOWS: [u64; 3] = [1024, 2048, 4096];

/// Level sizes: the first two are the paper's, which does not give the others.
pub(crate) const SIZES: [u64; 7] = [
    32 * KIB,
    4 * MIB,
    512 * MIB,
    512 * MIB,
    GIB,
    2 * GIB,
    4 * GIB,
];

/// Equations 2 to 7.
pub(crate) fn origin2000() -> Topology {
    let component = |symbol: &str, name: &str, line_bytes, application| Component {
        symbol: symbol.to_owned(),
        name: name.to_owned(),
        line_bytes,
        application,
        per_line_ns: None,
        constant_ns: None,
        fixed: false,
    };
    let paths: [&[(&str, u32)]; 7] = [
        &[("t_o", 1)],
        &[("t_o", 1), ("t_s", 1)],
        &[("t_o", 1), ("t_s", 1), ("t_hh", 1), ("t_m", 1)],
        &[("t_o", 1), ("t_s", 1), ("t_hr", 1), ("t_r", 1), ("t_m", 1)],
        &[("t_o", 1), ("t_s", 1), ("t_hr", 1), ("t_r", 2), ("t_m", 1)],
        &[("t_o", 1), ("t_s", 1), ("t_hr", 1), ("t_r", 3), ("t_m", 1)],
        &[("t_o", 1), ("t_s", 1), ("t_hr", 1), ("t_r", 4), ("t_m", 1)],
    ];
    let names = [
        "on-chip cache",
        "SL cache",
        "home memory",
        "same corner",
        "neighbour corner",
        "next but one corner",
        "spatial diagonal",
    ];
    Topology {
        name: "origin2000".to_owned(),
        description: None,
        sizes: SizeMeaning::Own,
        components: vec![
            component("t_o", "program", 8, true),
            component("t_s", "on-chip cache to SL cache", 32, false),
            component("t_hh", "local hub for home", 128, false),
            component("t_hr", "local hub for remote and remote hub", 128, false),
            component("t_r", "standard router", 128, false),
            component("t_m", "memory and memory controller", 128, false),
        ],
        levels: names
            .iter()
            .zip(paths)
            .zip(SIZES)
            .enumerate()
            .map(|(index, ((name, path), size))| TopologyLevel {
                name: (*name).to_owned(),
                kind: if index < 2 {
                    LevelKind::Cache
                } else {
                    LevelKind::Memory
                },
                size_bytes: Some(size),
                path: path
                    .iter()
                    .map(|&(symbol, times)| (symbol.to_owned(), times))
                    .collect(),
                steepness: 1.0,
            })
            .collect(),
        tlb: vec![TlbTerm {
            symbol: "t_tlb".to_owned(),
            entries: 64,
            page_bytes: 16 * KIB,
            miss_ns: None,
        }],
        page_table: Some(PageTableTerm {
            symbol: "t_pt".to_owned(),
            start_bytes: 1 << 28,
            reference_bytes: 1 << 26,
            factor_ns: None,
        }),
        bytes_per_operation: 8,
    }
}

/// Table 1, and a program that takes 120 ns per window and 25 ns per double. `constants` are
/// those of t_s, t_hh, t_hr, t_r and t_m.
pub(crate) fn truth(constants: [f64; 5]) -> BTreeMap<String, f64> {
    let [t_s0, t_hh0, t_hr0, t_r0, t_m0] = constants;
    [
        ("t_o0", 120.0),
        ("t_o", 25.0),
        ("t_s0", t_s0),
        ("t_s", 53.0),
        ("t_hh0", t_hh0),
        ("t_hh", 110.0),
        ("t_hr0", t_hr0),
        ("t_hr", 358.0),
        ("t_r0", t_r0),
        ("t_r", 68.0),
        ("t_m0", t_m0),
        ("t_m", 468.0),
        ("t_tlb", 1005.0),
        ("t_pt", 8356.0),
    ]
    .map(|(symbol, value)| (symbol.to_owned(), value))
    .into()
}

/// No constants, as the paper finds without prefetch.
pub(crate) const NONE: [f64; 5] = [0.0; 5];

/// Constants that prefetch might cause.
pub(crate) const SOME: [f64; 5] = [150.0, 300.0, 500.0, 90.0, 400.0];

/// Areas of the paper's program up to 8 GB, for windows of `window` bytes.
pub(crate) fn paper_areas(window: u64) -> Vec<u64> {
    (4..=42)
        .map(|step| (4096.0 * 2.0_f64.powf(f64::from(step) / 2.0) + 1.5) as u64)
        .map(|area| area - area % window)
        .collect()
}

/// `count` areas from 16 KB to 8 GB, equally spaced in octaves, multiples of a window.
pub(crate) fn areas(count: u32) -> Vec<u64> {
    (0..count)
        .map(|step| 2.0_f64.powf(14.0 + 19.0 * f64::from(step) / f64::from(count - 1)) as u64)
        .map(|area| area - area % 4096)
        .collect()
}

/// Time of a window by the step function of equation 2, integrated piece by piece, and
/// equations 6 and 7.
pub(crate) fn expected_ns(
    topology: &Topology,
    truth: &BTreeMap<String, f64>,
    window: Option<u64>,
    area: u64,
) -> f64 {
    let area = area as f64;
    let mut inside = 0.0;
    let mut sum = 0.0;
    let last = topology.levels.len() - 1;
    for (index, level) in topology.levels.iter().enumerate() {
        let upto = match (index == last, level.size_bytes, topology.sizes) {
            (true, ..) | (_, None, _) => area,
            (_, Some(size), SizeMeaning::Own) => area.min(inside + size as f64),
            (_, Some(size), SizeMeaning::Reach) => area.min(size as f64),
        };
        let time: f64 = level
            .path
            .iter()
            .map(|(symbol, &times)| {
                let mut components = topology.components.iter();
                let line = components
                    .find(|component| component.symbol == *symbol)
                    .expect("a component of the topology")
                    .line_bytes;
                let lines = window.map(|window| window as f64 / f64::from(line));
                let per_line = truth[symbol];
                f64::from(times)
                    * match lines {
                        Some(lines) => truth[&format!("{symbol}0")] + per_line * lines,
                        None => per_line,
                    }
            })
            .sum();
        sum += time * (upto - inside) / area;
        inside = upto;
    }
    for term in &topology.tlb {
        let reach = (term.entries * term.page_bytes) as f64;
        if area >= reach {
            sum += truth[&term.symbol] * (1.0 - reach / area);
        }
    }
    if let Some(term) = &topology.page_table
        && area >= term.start_bytes as f64
    {
        let reference = (term.reference_bytes as f64).log2();
        sum += truth[&term.symbol] * (area.log2() - reference) / reference;
    }
    sum
}

/// Points without noise: every window in every area that can contain it.
pub(crate) fn points(
    topology: &Topology,
    truth: &BTreeMap<String, f64>,
    windows: &[u64],
    areas: &[u64],
) -> Vec<Observation> {
    let mut points = Vec::new();
    for &window in windows {
        for &area in areas.iter().filter(|&&area| area >= window) {
            let ns = expected_ns(topology, truth, Some(window), area);
            points.push(observation(Some(window), area, ns));
        }
    }
    points
}

pub(crate) fn observation(window_bytes: Option<u64>, area_bytes: u64, ns: f64) -> Observation {
    Observation {
        window_bytes,
        area_bytes,
        ns,
        ns_low: None,
        ns_high: None,
    }
}

/// `points` with normal noise of `share` of each value; no time becomes negative.
pub(crate) fn noisy(random: &mut Random, points: &[Observation], share: f64) -> Vec<Observation> {
    let noisy = |point: &Observation| loop {
        let ns = point.ns * (1.0 + share * random.normal());
        if ns > 0.0 {
            break Observation { ns, ..*point };
        }
    };
    points.iter().map(noisy).collect()
}
