//! A run that could have been: a simulation that waits for its particles, two threads that
//! fight over a line, and a parser of settings. Rows follow from the samples, so that
//! tables, exports and page can be held to each other.

use std::collections::BTreeMap;

use membound_types::{
    AverageLatency, BandwidthBin, BandwidthDomain, BandwidthMoment, Basis, CallFrame, CodeRow,
    ComparedRun, Detail, DetailFrame, DetailSample, DetailStack, Elsewhere, Figure, Insight,
    InsightChange, InsightKind, Kind, LevelRow, LevelShares, ListedInstruction, ListedLine,
    Listing, MemoryBound, Missing, NamedShare, NotMeasured, NumaRow, NumaView, ObjectClass,
    ObjectRow, OffsetRow, Outcome, Overhead, Profile, RunChange, RunComparison, RunInfo,
    SCHEMA_VERSION, Share, SharedLine, SharingSite, SharingThread, ThreadRow, TimeSplit,
    WatchedBytes,
};

/// Levels in the order of the profile's rows.
const LEVELS: [&str; 5] = ["L1+L2", "L3", "DRAM", "remote", "unknown"];
const PERIOD_S: f64 = 0.001;
const MODULE: &str = "/opt/sim/bin/simulate";
const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";

/// Numbers that are the same in every run.
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        // Knuth's multiplier and increment; the high bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn share(&mut self) -> f64 {
        self.roll() as f64 / (1u64 << 31) as f64
    }
}

/// Where the simulation waits.
struct Site {
    function: &'static str,
    file: &'static str,
    line: u32,
    module: &'static str,
    address: u64,
    text: &'static str,
    /// Callers, outermost first: function, file, line.
    callers: &'static [(&'static str, &'static str, u32)],
    object: Option<usize>,
    /// Share of a sample that is stalled.
    stall: f64,
    level: u8,
    latency_ns: Option<f64>,
}

const WORKER: &[(&str, &str, u32)] = &[
    ("start_thread", "", 0),
    ("sim::Worker::run()", "worker.cpp", 61),
    ("sim::step(sim::State&, unsigned int)", "step.cpp", 118),
];
const MAIN: &[(&str, &str, u32)] = &[
    ("_start", "", 0),
    ("__libc_start_main", "", 0),
    ("main", "main.cpp", 40),
];

const SITES: &[Site] = &[
    Site {
        function: "sim::gather_forces(sim::State const&, std::vector<unsigned int, std::allocator<unsigned int> > const&, sim::Vec3*)",
        file: "forces.cpp",
        line: 88,
        module: MODULE,
        address: 0x5a10,
        text: "vmovupd ymm0, [rdx+rax*8]",
        callers: WORKER,
        object: Some(0),
        stall: 0.86,
        level: 2,
        latency_ns: Some(141.0),
    },
    Site {
        function: "sim::gather_forces(sim::State const&, std::vector<unsigned int, std::allocator<unsigned int> > const&, sim::Vec3*)",
        file: "forces.cpp",
        line: 91,
        module: MODULE,
        address: 0x5a31,
        text: "vfmadd231pd ymm2, ymm0, [rcx]",
        callers: WORKER,
        object: Some(1),
        stall: 0.22,
        level: 1,
        latency_ns: Some(14.2),
    },
    Site {
        function: "sim::Stats::count(unsigned int)",
        file: "stats.h",
        line: 27,
        module: MODULE,
        address: 0x5b44,
        text: "add qword ptr [rdi+rsi*8], 1",
        callers: WORKER,
        object: Some(2),
        stall: 0.78,
        level: 3,
        latency_ns: Some(52.4),
    },
    Site {
        function: "sim::CellIndex::find(sim::Key) const",
        file: "cells.cpp",
        line: 203,
        module: MODULE,
        address: 0x6120,
        text: "mov rax, [rax+16]",
        callers: WORKER,
        object: Some(3),
        stall: 0.63,
        level: 2,
        latency_ns: Some(118.0),
    },
    Site {
        function: "sim::integrate(sim::State&, double)",
        file: "integrate.cpp",
        line: 44,
        module: MODULE,
        address: 0x6480,
        text: "vaddpd ymm1, ymm1, [r8+rax]",
        callers: WORKER,
        object: Some(0),
        stall: 0.11,
        level: 0,
        latency_ns: Some(1.3),
    },
    Site {
        function: "sim::settings::parse(std::string_view)",
        file: "settings.cpp",
        line: 312,
        module: MODULE,
        address: 0x7002,
        text: "movzx eax, byte ptr [rsi]",
        callers: MAIN,
        object: Some(4),
        stall: 0.03,
        level: 0,
        latency_ns: Some(1.0),
    },
    Site {
        function: "__memset_avx512_unaligned_erms",
        file: "",
        line: 0,
        module: LIBC,
        address: 0x18_9a40,
        text: "rep stosb",
        callers: MAIN,
        object: Some(0),
        stall: 0.48,
        level: 4,
        latency_ns: None,
    },
    Site {
        function: "sim::rng::next()",
        file: "rng.h",
        line: 14,
        module: MODULE,
        address: 0x7710,
        text: "imul rax, rdx",
        callers: WORKER,
        object: None,
        stall: 0.0,
        level: 4,
        latency_ns: None,
    },
];

/// When (in seconds), on which thread, at which site, how often of 100.
const SCRIPT: &[(f64, f64, u32, usize, u32)] = &[
    (0.0, 0.35, 0, 6, 70),
    (0.0, 0.35, 0, 5, 30),
    (0.35, 2.9, 1, 0, 38),
    (0.35, 2.9, 1, 1, 10),
    (0.35, 2.9, 1, 2, 12),
    (0.35, 2.9, 1, 3, 14),
    (0.35, 2.9, 1, 4, 10),
    (0.35, 2.9, 1, 7, 16),
    (0.35, 2.4, 2, 0, 34),
    (0.35, 2.4, 2, 1, 9),
    (0.35, 2.4, 2, 2, 22),
    (0.35, 2.4, 2, 3, 14),
    (0.35, 2.4, 2, 4, 9),
    (0.35, 2.4, 2, 7, 12),
    (2.95, 3.05, 0, 5, 100),
];

const ELAPSED_S: f64 = 3.1;

/// Function, file, line, module and address.
type FrameKey = (u32, Option<u32>, Option<u32>, u32, u64);

/// Names, frames and stacks under construction.
#[derive(Default)]
struct Table {
    detail: Detail,
    names: BTreeMap<String, u32>,
    frames: BTreeMap<FrameKey, u32>,
    stacks: BTreeMap<(Option<u32>, u32), u32>,
}

impl Table {
    fn name(&mut self, text: &str) -> u32 {
        if let Some(&found) = self.names.get(text) {
            return found;
        }
        let position = self.detail.names.len() as u32;
        self.detail.names.push(text.to_owned());
        self.names.insert(text.to_owned(), position);
        position
    }

    fn frame(&mut self, function: &str, file: &str, line: u32, module: &str, address: u64) -> u32 {
        let function = self.name(function);
        let file = (!file.is_empty()).then(|| self.name(file));
        let line = (line > 0).then_some(line);
        let module = self.name(module);
        let key = (function, file, line, module, address);
        if let Some(&found) = self.frames.get(&key) {
            return found;
        }
        let position = self.detail.frames.len() as u32;
        self.detail.frames.push(DetailFrame {
            function,
            file,
            line,
            module,
            address,
            inlined: false,
        });
        self.frames.insert(key, position);
        position
    }

    fn stack(&mut self, parent: Option<u32>, frame: u32) -> u32 {
        if let Some(&found) = self.stacks.get(&(parent, frame)) {
            return found;
        }
        let position = self.detail.stacks.len() as u32;
        self.detail.stacks.push(DetailStack { parent, frame });
        self.stacks.insert((parent, frame), position);
        position
    }

    fn site(&mut self, site: &Site) -> u32 {
        let mut parent = None;
        for (depth, (function, file, line)) in site.callers.iter().enumerate() {
            let module = if file.is_empty() { LIBC } else { site.module };
            let address = 0x1000 + 0x40 * depth as u64 + u64::from(*line);
            let frame = self.frame(function, file, *line, module, address);
            parent = Some(self.stack(parent, frame));
        }
        let frame = self.frame(
            site.function,
            site.file,
            site.line,
            site.module,
            site.address,
        );
        self.stack(parent, frame)
    }
}

/// The run with its samples.
pub(crate) fn simulation() -> (Profile, Detail) {
    let mut table = Table::default();
    let stacks: Vec<u32> = SITES.iter().map(|site| table.site(site)).collect();
    let mut samples = Vec::new();
    let mut dice = Dice(7);
    for thread in 0..3u32 {
        let mut t_s = 0.0005 + 0.0001 * f64::from(thread);
        while t_s < ELAPSED_S {
            let now: Vec<_> = SCRIPT
                .iter()
                .filter(|line| line.2 == thread && (line.0..line.1).contains(&t_s))
                .collect();
            let total: u32 = now.iter().map(|line| line.4).sum();
            if total > 0 {
                let mut left = (dice.roll() % u64::from(total)) as u32;
                let line = now
                    .iter()
                    .find(|line| {
                        let here = left < line.4;
                        left = left.saturating_sub(line.4);
                        here
                    })
                    .expect("the shares sum to the total");
                let site = &SITES[line.3];
                samples.push(DetailSample {
                    t_s,
                    thread,
                    stack: stacks[line.3],
                    object: site.object.map(|object| object as u32),
                    weight_s: PERIOD_S,
                    stall_s: PERIOD_S * site.stall,
                    level: (site.stall > 0.0).then_some(site.level),
                });
            }
            t_s += PERIOD_S;
        }
    }
    samples.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
    let mut detail = table.detail;
    detail.samples = samples;
    detail.threads = vec![0, 1, 2];
    detail.objects = 5;
    detail.listings = listings();
    (profile(&detail), detail)
}

/// Sums over samples.
#[derive(Clone, Copy, Default)]
struct Sum {
    samples: u64,
    weight_s: f64,
    stall_s: f64,
    levels: [f64; 5],
}

impl Sum {
    fn add(&mut self, sample: &DetailSample) {
        self.samples += 1;
        self.weight_s += sample.weight_s;
        self.stall_s += sample.stall_s;
        if let Some(level) = sample.level {
            self.levels[usize::from(level)] += sample.stall_s;
        }
    }

    fn share(&self, cpu_s: f64) -> Share {
        let stall = self.stall_s / cpu_s;
        let half = 1.96 * (stall.max(0.0) * (1.0 - stall).max(0.0) / (cpu_s / PERIOD_S)).sqrt();
        Share {
            samples: self.samples,
            time_s: self.weight_s,
            time_fraction: self.weight_s / cpu_s,
            stall_fraction: stall,
            stall_low: (stall - half).max(0.0),
            stall_high: (stall + half).min(1.0),
            levels: self.levels(cpu_s),
            flagged: stall > 0.1,
            confidence: 0.93,
            ..Share::default()
        }
    }

    fn levels(&self, cpu_s: f64) -> LevelShares {
        let [l1, l3, dram, remote, unknown] = self.levels.map(|s| s / cpu_s);
        LevelShares {
            l1,
            l2: 0.0,
            l3,
            dram,
            remote,
            unknown,
        }
    }
}

fn grouped<K: Ord>(detail: &Detail, key: impl Fn(&DetailSample) -> Option<K>) -> BTreeMap<K, Sum> {
    let mut out: BTreeMap<K, Sum> = BTreeMap::new();
    for sample in &detail.samples {
        if let Some(key) = key(sample) {
            out.entry(key).or_default().add(sample);
        }
    }
    out
}

fn site_of(detail: &Detail, sample: &DetailSample) -> usize {
    let frame = detail.frames[detail.stacks[sample.stack as usize].frame as usize];
    SITES
        .iter()
        .position(|site| site.address == frame.address)
        .expect("every sample is at a site")
}

fn measured(mut share: Share, site: &Site) -> Share {
    if let Some(ns) = site.latency_ns {
        share.avg_latency_ns = Some(ns);
        share.avg_latency_cycles = Some(ns * 4.06);
        share.loads = Some(share.stall_fraction * 4.1e8 / ns * 20.0);
        share.stores = Some(if site.text.starts_with("add") {
            2.4e8
        } else {
            0.0
        });
    }
    share
}

fn profile(detail: &Detail) -> Profile {
    let total = grouped(detail, |_| Some(()))[&()];
    let cpu_s = total.weight_s;
    let mut sites: Vec<(usize, Sum)> = grouped(detail, |s| Some(site_of(detail, s)))
        .into_iter()
        .collect();
    sites.sort_by(|a, b| b.1.stall_s.total_cmp(&a.1.stall_s));
    let row = |site: &Site, name: String, sum: &Sum| CodeRow {
        name,
        function: site.function.to_owned(),
        module: site.module.to_owned(),
        file: (!site.file.is_empty()).then(|| site.file.to_owned()),
        line: (site.line > 0).then_some(site.line),
        address: Some(site.address),
        share: measured(sum.share(cpu_s), site),
    };
    let instructions = sites
        .iter()
        .map(|(site, sum)| row(&SITES[*site], SITES[*site].text.to_owned(), sum))
        .collect();
    let lines = sites
        .iter()
        .filter(|(site, _)| !SITES[*site].file.is_empty())
        .map(|(site, sum)| {
            let site = &SITES[*site];
            row(site, format!("{}:{}", site.file, site.line), sum)
        })
        .collect();
    let mut functions: Vec<CodeRow> = grouped(detail, |s| Some(SITES[site_of(detail, s)].function))
        .into_iter()
        .map(|(function, sum)| {
            let site = SITES
                .iter()
                .find(|site| site.function == function)
                .expect("functions come from sites");
            CodeRow {
                address: Some(site.address & !0xf),
                line: None,
                ..row(site, function.to_owned(), &sum)
            }
        })
        .collect();
    functions.sort_by(|a, b| b.share.stall_fraction.total_cmp(&a.share.stall_fraction));
    let threads = grouped(detail, |s| Some(s.thread))
        .into_iter()
        .map(|(thread, sum)| {
            let lifetime_s = [ELAPSED_S, 2.6, 2.1][thread as usize];
            ThreadRow {
                name: ["simulate", "worker-0", "worker-1"][thread as usize].to_owned(),
                pid: 4100,
                tid: 4100 + thread,
                lifetime_s,
                idle_s: (lifetime_s - sum.weight_s).max(0.0),
                share: sum.share(cpu_s),
            }
        })
        .collect();
    let shares = total.levels(cpu_s);
    let [l1, l3, dram, remote, unknown] = total.levels.map(|s| s / cpu_s);
    let bound = total.stall_s / cpu_s;
    Profile {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Profile,
        incomplete: false,
        run: run_info(detail),
        elapsed_s: ELAPSED_S,
        time: TimeSplit {
            idle_s: 1.9,
            memory_stall_s: total.stall_s,
            other_s: cpu_s - total.stall_s,
            cpu_s,
        },
        memory_bound: MemoryBound {
            fraction: bound,
            low: bound - 0.018,
            high: bound + 0.017,
            l1: shares.l1,
            l2: 0.0,
            l3: shares.l3,
            dram: shares.dram,
            remote: shares.remote,
            unknown: shares.unknown,
            l1_and_l2_together: true,
        },
        latency: Outcome::Known(AverageLatency {
            ns: 38.4,
            cycles: 156.0,
            flagged: true,
        }),
        findings: findings(),
        functions,
        lines,
        instructions,
        threads,
        levels: LEVELS
            .iter()
            .zip([l1, l3, dram, remote, unknown])
            .enumerate()
            .map(|(index, (name, stall))| LevelRow {
                name: (*name).to_owned(),
                stall_fraction: stall,
                stall_low: (stall - 0.01).max(0.0),
                stall_high: stall + 0.01,
                accesses_fraction: [Some(0.84), Some(0.06), Some(0.09), Some(0.01), None][index],
                latency_ns: [Some(1.0), Some(13.1), Some(118.0), Some(48.0), None][index],
            })
            .collect(),
        objects: objects(detail, cpu_s),
        false_sharing: vec![shared_line()],
        true_sharing: Vec::new(),
        numa: Outcome::missing("one node"),
        bandwidth: vec![bandwidth()],
        elsewhere: Vec::new(),
        overhead: Overhead {
            own_cpu_s: 0.06,
            inside_fraction: 0.021,
            lost_samples: 0,
            lost_accesses: 112,
            lost_allocations: 0,
        },
        missing: vec![Missing {
            table: "bandwidth".to_owned(),
            why: NotMeasured {
                reason: "no uncore counters on this machine; traffic is modelled".to_owned(),
                remedy: Some("run outside the virtual machine".to_owned()),
            },
        }],
    }
}

fn run_info(detail: &Detail) -> RunInfo {
    RunInfo {
        command: ["./simulate", "--particles", "2000000", "input file.toml"]
            .map(str::to_owned)
            .to_vec(),
        attached: None,
        host: "node17".to_owned(),
        cpu: "AMD EPYC 9R45".to_owned(),
        date: "2026-11-20T17:02:11Z".to_owned(),
        membound_version: "0.1.0".to_owned(),
        exit_code: Some(0),
        signal: None,
        processes: 1,
        threads: 3,
        timer: "cpu-clock".to_owned(),
        samples: detail.samples.len() as u64,
        effective_samples: detail.samples.len() as f64,
        timed_accesses: 48_211,
    }
}

fn estimated(value: f64, low: f64, high: f64) -> Figure {
    Figure {
        value,
        low,
        high,
        basis: Basis::Estimated,
    }
}

fn findings() -> Vec<Insight> {
    vec![
        Insight {
            kind: InsightKind::HotObject,
            text: "The particle array (main.cpp:31, 128 MiB) has 56 % of the stalls; its loads take 141 ns, those of L1 1 ns.".to_owned(),
            advice: "Sort the neighbour list by cell, so that the particles of one cell are loaded together.".to_owned(),
            predicted_gain: Some(estimated(0.24, 0.17, 0.29)),
            threshold: "more than 10 % of the stalls".to_owned(),
        },
        Insight {
            kind: InsightKind::FalseSharing,
            text: "Threads worker-0 and worker-1 write different words of one line of the counters allocated at stats.cpp:19.".to_owned(),
            advice: "Give each thread's counters a line of their own: alignas(64) on the element, or a stride of 64 bytes.".to_owned(),
            predicted_gain: Some(estimated(0.11, 0.08, 0.13)),
            threshold: "two threads, at least one writing, more than 1 % of the time".to_owned(),
        },
    ]
}

fn call(function: &str, file: &str, line: u32) -> CallFrame {
    CallFrame {
        function: function.to_owned(),
        file: Some(file.to_owned()),
        line: Some(line),
        module: MODULE.to_owned(),
    }
}

fn objects(detail: &Detail, cpu_s: f64) -> Vec<ObjectRow> {
    let sums = grouped(detail, |s| s.object);
    let whole = |name: &str, kind, size_bytes, stack: Vec<CallFrame>| {
        (name.to_owned(), kind, size_bytes, stack)
    };
    let kinds = [
        whole(
            "main.cpp:31 (128 MiB)",
            ObjectClass::Heap,
            128 << 20,
            vec![
                call("util::aligned_new(unsigned long)", "alloc.h", 12),
                call("sim::State::State(unsigned long)", "state.cpp", 22),
                call("main", "main.cpp", 31),
            ],
        ),
        whole(
            "forces.cpp:40 (96 KiB)",
            ObjectClass::Heap,
            96 << 10,
            vec![call("sim::gather_forces", "forces.cpp", 40)],
        ),
        whole(
            "stats.cpp:19 (512 B)",
            ObjectClass::Heap,
            512,
            vec![
                call("operator new(unsigned long)", "new_op.cc", 50),
                call("sim::Stats::Stats(unsigned int)", "stats.cpp", 19),
                call("main", "main.cpp", 33),
            ],
        ),
        whole(
            "cells.cpp:77 (48 B)",
            ObjectClass::Heap,
            48,
            vec![
                call("operator new(unsigned long)", "new_op.cc", 50),
                call(
                    "sim::CellIndex::insert(sim::Key, sim::Cell)",
                    "cells.cpp",
                    77,
                ),
                call("main", "main.cpp", 36),
            ],
        ),
        whole("sim::settings::text", ObjectClass::Global, 4096, Vec::new()),
    ];
    kinds
        .into_iter()
        .enumerate()
        .map(|(index, (name, kind, size_bytes, alloc_stack))| {
            let sum = sums.get(&(index as u32)).copied().unwrap_or_default();
            let blocks = [1, 2, 1, 812_400, 1][index];
            let mut share = sum.share(cpu_s);
            share.avg_latency_ns = Some([121.0, 14.2, 52.4, 118.0, 1.0][index]);
            share.avg_latency_cycles = share.avg_latency_ns.map(|ns| ns * 4.06);
            share.loads = Some([4.4e7, 3.1e7, 2.4e8, 1.2e7, 2.0e6][index]);
            share.stores = Some([1.1e7, 0.0, 2.4e8, 0.0, 0.0][index]);
            ObjectRow {
                name,
                kind,
                size_bytes,
                alloc_stack,
                blocks,
                total_bytes: blocks * size_bytes,
                lifetime_s: [Some(3.0), Some(0.002), None, Some(2.1), None][index],
                false_sharing: index == 2,
                node_local_fraction: None,
                share,
                offsets: (0..(size_bytes / 16).min(6))
                    .map(|at| OffsetRow {
                        offset: at * 16,
                        bytes: 8,
                        accesses: 900 / (at + 1),
                        stall_fraction: 0.4 / (at + 1) as f64,
                        avg_latency_ns: Some(140.0 - 10.0 * at as f64),
                    })
                    .collect(),
                code: SITES
                    .iter()
                    .filter(|site| site.object == Some(index) && !site.file.is_empty())
                    .map(|site| NamedShare {
                        name: format!("{}:{}", site.file, site.line),
                        fraction: 0.1 * site.stall,
                    })
                    .collect(),
            }
        })
        .collect()
}

fn shared_line() -> SharedLine {
    SharedLine {
        line_address: 0x5581_22c4_0c40,
        line_bytes: 64,
        lines: vec![0x5581_22c4_0c40],
        pid: 4100,
        object: "stats.cpp:19 (512 B)".to_owned(),
        alloc_stack: vec![
            call("operator new(unsigned long)", "new_op.cc", 50),
            call("sim::Stats::Stats(unsigned int)", "stats.cpp", 19),
            call("main", "main.cpp", 33),
        ],
        object_offset: Some(64),
        threads: (0..2)
            .map(|index| SharingThread {
                tid: 4101 + index,
                name: format!("worker-{index}"),
                from: 8 * index,
                to: 8 * index + 8,
                loads: 1200 - 100 * u64::from(index),
                stores: 1190 - 90 * u64::from(index),
            })
            .collect(),
        offsets: vec![0, 8],
        sites: vec![SharingSite {
            name: "stats.h:27".to_owned(),
            function: "sim::Stats::count(unsigned int)".to_owned(),
            stores: true,
            accesses: 2300,
        }],
        avg_latency_ns: Some(52.4),
        avg_latency_cycles: Some(213.0),
        l1_latency_ns: Some(0.98),
        stall_fraction: 0.124,
        predicted_gain: Some(estimated(0.11, 0.08, 0.13)),
        advice: "Give each thread's counters a line of their own: alignas(64) on the element, or a stride of 64 bytes.".to_owned(),
        confirmed: Some(vec![
            WatchedBytes { tid: 4101, offset: 0, bytes: 8, hits: 33 },
            WatchedBytes { tid: 4102, offset: 8, bytes: 8, hits: 29 },
        ]),
        confidence: 0.97,
    }
}

fn bandwidth() -> BandwidthDomain {
    let moment = |index: u32| {
        let t_s = f64::from(index) * 0.05;
        let busy = if t_s < 0.35 {
            0.3
        } else if t_s < 2.9 {
            1.0
        } else {
            0.05
        };
        BandwidthMoment {
            t_s,
            read_gb_s: busy * (9.0 + 2.0 * (f64::from(index) * 0.7).sin()),
            write_gb_s: busy * (3.0 + (f64::from(index) * 0.4).cos()),
        }
    };
    let timeline: Vec<BandwidthMoment> = (0..62).map(moment).collect();
    let total = timeline.len() as f64;
    let mean = timeline
        .iter()
        .map(|m| m.read_gb_s + m.write_gb_s)
        .sum::<f64>()
        / total;
    let histogram = (0..8)
        .map(|bin| {
            let (from, to) = (f64::from(bin) * 5.0, f64::from(bin + 1) * 5.0);
            let inside = timeline
                .iter()
                .filter(|m| (from..to).contains(&(m.read_gb_s + m.write_gb_s)))
                .count();
            BandwidthBin {
                from_gb_s: from,
                to_gb_s: to,
                fraction: inside as f64 / total,
            }
        })
        .collect();
    let named = |rows: &[(&str, f64)]| {
        rows.iter()
            .map(|(name, fraction)| NamedShare {
                name: (*name).to_owned(),
                fraction: *fraction,
            })
            .collect()
    };
    BandwidthDomain {
        domain: "DRAM".to_owned(),
        basis: Basis::Modelled,
        timeline,
        histogram,
        machine_max_gb_s: Outcome::Known(37.2),
        average_gb_s: mean,
        objects: named(&[
            ("main.cpp:31 (128 MiB)", 0.71),
            ("cells.cpp:77 (48 B)", 0.22),
        ]),
        lines: named(&[("forces.cpp:88", 0.66), ("cells.cpp:203", 0.21)]),
    }
}

fn listings() -> Vec<Listing> {
    let source = [
        "  for (std::size_t i = begin; i < end; ++i) {",
        "    const auto cell = index.find(key(i));",
        "    for (unsigned j : neighbours(cell)) {",
        "      const Vec3 &p = state.position[j];",
        "      const double r2 = distance2(p, state.position[i]);",
        "      if (r2 < cutoff2 && \"<script>\" != nullptr)",
        "        force[i] += weight[bin(r2)] * (p - state.position[i]);",
        "    }",
        "  }",
    ];
    vec![Listing {
        function: SITES[0].function.to_owned(),
        module: MODULE.to_owned(),
        file: Some("forces.cpp".to_owned()),
        source: source
            .iter()
            .enumerate()
            .map(|(index, text)| ListedLine {
                line: 85 + index as u32,
                text: (*text).to_owned(),
                time_fraction: [0.0, 0.0, 0.0, 0.36, 0.0, 0.0, 0.09, 0.0, 0.0][index],
                stall_fraction: [0.0, 0.0, 0.0, 0.31, 0.0, 0.0, 0.02, 0.0, 0.0][index],
            })
            .collect(),
        assembly: (0..12)
            .map(|index: u64| ListedInstruction {
                address: if index == 8 {
                    0x5a31
                } else {
                    0x5a00 + 4 * index
                },
                text: match index {
                    4 => SITES[0].text.to_owned(),
                    8 => SITES[1].text.to_owned(),
                    11 => "jne 0x5a00".to_owned(),
                    _ => format!(
                        "lea r{}, [r{}+{}]",
                        8 + index % 8,
                        8 + (index + 1) % 8,
                        8 * index
                    ),
                },
                line: Some(if index < 8 { 88 } else { 91 }),
                time_fraction: [0.0, 0.0, 0.0, 0.0, 0.36, 0.0, 0.0, 0.0, 0.09, 0.0, 0.0, 0.0]
                    [index as usize],
                stall_fraction: [0.0, 0.0, 0.0, 0.0, 0.31, 0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0]
                    [index as usize],
                executions: Some(1.2e8),
            })
            .collect(),
    }]
}

/// The same run on two nodes, with another machine beside it.
pub(crate) fn two_nodes() -> (Profile, Detail) {
    let (mut profile, detail) = simulation();
    let row = |name: &str, local: f64, share: f64, advice: &str| NumaRow {
        name: name.to_owned(),
        local_fraction: local,
        remote_share: share,
        node: Some(0),
        advice: advice.to_owned(),
    };
    profile.numa = Outcome::Known(NumaView {
        nodes: 2,
        local_fraction: 0.58,
        matrix: vec![vec![0.51, 0.02], vec![0.40, 0.07]],
        objects: vec![
            row(
                "main.cpp:31 (128 MiB)",
                0.52,
                0.94,
                "Write it first in the threads that use it: all its pages lie on node 0, where the main thread touched them.",
            ),
            row("forces.cpp:40 (96 KiB)", 1.0, 0.0, ""),
        ],
        lines: vec![row("forces.cpp:88", 0.51, 0.9, "")],
    });
    profile.elsewhere = vec![Elsewhere {
        machine: "laptop, 8 cores".to_owned(),
        memory_bound: Figure {
            value: 0.35,
            low: 0.28,
            high: 0.42,
            basis: Basis::Modelled,
        },
        levels: LevelShares {
            l3: 0.1,
            dram: 0.25,
            ..LevelShares::default()
        },
        time_ratio: Figure {
            value: 0.82,
            low: 0.7,
            high: 0.95,
            basis: Basis::Modelled,
        },
        per_core_gb_s: 6.1,
        machine_max_gb_s: Outcome::Known(58.0),
    }];
    (profile, detail)
}

/// A run of which nothing is known.
pub(crate) fn nothing() -> (Profile, Detail) {
    let (full, _) = simulation();
    let profile = Profile {
        incomplete: true,
        run: RunInfo {
            samples: 0,
            effective_samples: 0.0,
            timed_accesses: 0,
            exit_code: None,
            signal: Some(9),
            command: Vec::new(),
            attached: Some(77),
            ..full.run
        },
        elapsed_s: 0.0,
        time: TimeSplit::default(),
        memory_bound: MemoryBound::default(),
        latency: Outcome::missing("no access was timed"),
        findings: Vec::new(),
        functions: Vec::new(),
        lines: Vec::new(),
        instructions: Vec::new(),
        threads: Vec::new(),
        levels: Vec::new(),
        objects: Vec::new(),
        false_sharing: Vec::new(),
        true_sharing: Vec::new(),
        bandwidth: Vec::new(),
        overhead: Overhead::default(),
        missing: vec![Missing {
            table: "objects".to_owned(),
            why: NotMeasured {
                reason: "the process was not started by membound".to_owned(),
                remedy: Some("start it with `membound profile -- CMD`".to_owned()),
            },
        }],
        ..full
    };
    (profile, Detail::default())
}

/// A million samples or so over many threads, call chains and objects, with little that
/// repeats: what a page must be made to hold.
pub(crate) fn large(samples: usize) -> (Profile, Detail) {
    let (mut profile, _) = simulation();
    let mut table = Table::default();
    let mut dice = Dice(11);
    let mut leaves = Vec::new();
    for function in 0..2500u32 {
        let mut parent = None;
        for depth in 0..(4 + function % 29) {
            let caller = dice.roll() as u32 % 400;
            let name = format!(
                "app::layer{depth}::Component<std::vector<int>, {caller}>::operator()(int) const"
            );
            let frame = table.frame(
                &name,
                "layer.cpp",
                10 + depth,
                MODULE,
                u64::from(caller) * 64 + u64::from(depth),
            );
            parent = Some(table.stack(parent, frame));
        }
        for leaf in 0..4u32 {
            let name =
                format!("app::work<{function}, std::map<std::string, unsigned long> >::step()");
            let frame = table.frame(
                &name,
                "work.cpp",
                function * 4 + leaf,
                MODULE,
                0x10_0000 + u64::from(function * 4 + leaf) * 8,
            );
            leaves.push(table.stack(parent, frame));
        }
    }
    let threads = 64u32;
    let mut detail = table.detail;
    detail.samples = (0..samples)
        .map(|index| {
            let hot = dice.share();
            DetailSample {
                t_s: index as f64 / samples as f64 * 60.0,
                thread: dice.roll() as u32 % threads,
                stack: leaves[((hot * hot) * leaves.len() as f64) as usize],
                object: Some(dice.roll() as u32 % 300),
                weight_s: 60.0 * 2.0 / samples as f64,
                stall_s: 60.0 * 2.0 / samples as f64 * dice.share(),
                level: Some((dice.roll() % 5) as u8),
            }
        })
        .collect();
    detail.threads = (0..threads).collect();
    detail.objects = 300;
    let thread = profile.threads[1].clone();
    profile.threads = (0..threads)
        .map(|index| ThreadRow {
            name: format!("pool-{index}"),
            tid: 5000 + index,
            lifetime_s: 60.0,
            ..thread.clone()
        })
        .collect();
    let object = profile.objects[3].clone();
    profile.objects = (0..300)
        .map(|index| ObjectRow {
            name: format!("alloc.cpp:{index} (64 B)"),
            ..object.clone()
        })
        .collect();
    let code = profile.functions[0].clone();
    profile.functions = (0..2500)
        .map(|index| CodeRow {
            name: format!("app::work<{index}, std::map<std::string, unsigned long> >::step()"),
            function: format!("app::work<{index}, std::map<std::string, unsigned long> >::step()"),
            ..code.clone()
        })
        .collect();
    profile.elapsed_s = 60.0;
    profile.run.samples = samples as u64;
    (profile, detail)
}

/// Two runs: the second has the counters apart.
pub(crate) fn comparison() -> RunComparison {
    let (profile, _) = simulation();
    let run = |file: &str, elapsed_s: f64, fraction: f64| ComparedRun {
        file: file.to_owned(),
        command: "./simulate --particles 2000000".to_owned(),
        date: "2026-11-20T17:02:11Z".to_owned(),
        incomplete: false,
        elapsed_s,
        time: TimeSplit {
            memory_stall_s: profile.time.cpu_s * fraction,
            other_s: profile.time.cpu_s * (1.0 - fraction),
            ..profile.time
        },
        memory_bound: MemoryBound {
            fraction,
            low: fraction - 0.02,
            high: fraction + 0.02,
            ..profile.memory_bound
        },
        latency: profile.latency.clone(),
    };
    let change = |group: &str, name: &str, a: Option<f64>, b: Option<f64>, significant| RunChange {
        group: group.to_owned(),
        name: name.to_owned(),
        stall_s: [a, b]
            .map(|stall| stall.map(|value| estimated(value, value * 0.9, value * 1.1)))
            .to_vec(),
        change_s: b.unwrap_or(0.0) - a.unwrap_or(0.0),
        significant,
    };
    RunComparison {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RunComparison,
        runs: vec![
            run("before.membound", 3.1, 0.54),
            run("after.membound", 2.7, 0.46),
        ],
        changes: vec![
            change("object", "stats.cpp:19 (512 B)", Some(0.58), None, true),
            change(
                "function",
                "sim::Stats::count(unsigned int)",
                Some(0.58),
                Some(0.01),
                true,
            ),
            change("line", "cells.cpp:203", Some(0.39), Some(0.41), false),
        ],
        findings: vec![InsightChange {
            kind: InsightKind::FalseSharing,
            text: "worker-0 and worker-1 on stats.cpp:19.".to_owned(),
            present: vec![true, false],
        }],
        summary: vec![
            "after.membound takes 13 % less time than before.membound (3.1 s, 2.7 s).".to_owned(),
        ],
    }
}
