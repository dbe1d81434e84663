//! `measure mlp`: windows of the core, and memory-level parallelism.
//!
//! Document 000's kernel over an area so large that every load misses: N−1 loads, K
//! fillers, one load. With N = 2 the time doubles where K pushes the second load out of
//! the reorder buffer; with growing N and few fillers it reaches that doubled time where
//! the machine cannot serve more loads at once. Displacements of the loads are drawn
//! anew in several variants of each kernel, because two fixed ones may share a DRAM bank;
//! the base moves with every execution.
//!
//! This module measures the times. Their meaning (the rule, shares of hits) is left to
//! `membound-model`.

mod config;
mod misses;
mod placements;
mod probe;
mod reorder;
mod sibling;
mod windows;

use std::time::Instant;

use membound_platform::affinity::Pinned;
use membound_platform::hypervisor;
use membound_types::{
    Access, AreaPoint, Filler, Mlp, MlpCell, MlpMode, NodePolicy, Outcome, PageKind, Pattern,
    Samples, Stopped, ThroughputPoint,
};

pub use config::MlpConfig;

use crate::{Chase, ChaseConfig, Error, Session, stats};
use probe::{Probe, Timed, unless_interrupted};
use windows::FoundWindows;

/// Measures every page kind under every node policy; the first combination that could be measured
/// is the document, the others are its [`Mlp::others`].
///
/// # Errors
/// [`Error::Invalid`] for values that cannot be used, [`Error::Architecture`] where there is no
/// kernel, else the reason why no combination could be measured.
pub fn measure(session: &Session<'_>, config: &MlpConfig) -> Result<Mlp, Error> {
    let started = Instant::now();
    config.check()?;
    let _pinned = Pinned::to(session.cpu)?;
    let mut found: Option<Mlp> = None;
    let mut skipped = Vec::new();
    let mut last_error = None;
    let settings: Vec<_> = config
        .pages
        .iter()
        .flat_map(|page| config.nodes.iter().map(move |node| (*page, *node)))
        .collect();
    for (index, (page, node)) in settings.iter().copied().enumerate() {
        if session.cancelled() && found.is_some() {
            break;
        }
        let share = |within: f64| (index as f64 + within) / settings.len() as f64;
        match measure_setting(session, config, page, node, found.as_ref(), &share) {
            Ok(mlp) => match &mut found {
                None => found = Some(mlp),
                Some(first) => first.others.push(mlp),
            },
            Err(error) => {
                skipped.push(format!("{page} pages on node {node}: {error}"));
                last_error = Some(error);
            }
        }
    }
    match (found, last_error) {
        (Some(mut mlp), _) => {
            mlp.skipped.extend(skipped);
            mlp.elapsed_s = started.elapsed().as_secs_f64();
            Ok(mlp)
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Invalid(
            "no page kind and node were given".to_owned(),
        )),
    }
}

/// Why no windows are searched for in an emulated processor.
const EMULATED: &str = "the processor is emulated: it has no reorder buffer";

/// Measures one page kind under one node policy.
fn measure_setting(
    session: &Session<'_>,
    config: &MlpConfig,
    page: PageKind,
    node: NodePolicy,
    known: Option<&Mlp>,
    share: &dyn Fn(f64) -> f64,
) -> Result<Mlp, Error> {
    let started = Instant::now();
    let doing = format!("mlp: {page} pages");
    session.progress.at(share(0.0), &doing);
    let mut probe = Probe::new(session, config, page, node)?;
    let found = find_windows(session, &mut probe, known);
    let rob_size = match found.reorder() {
        Some(window) => Outcome::Known(window.entries.value),
        None if hypervisor::is_emulator(session.root) => Outcome::missing(EMULATED),
        None => Outcome::missing(
            "two loads take as long with few fillers as with many: no cliff was found",
        ),
    };
    let filling = Filling::choose(config.filler, &found)?;
    session.progress.at(share(0.2), &doing);
    let mut cells = parallel_cells(&mut probe, config, &filling, &|within| {
        session.progress.at(share(0.2 + 0.5 * within), &doing);
    })?;
    let sequential_pair_cycles = match filling.cliff {
        Some(cliff) if !session.cancelled() => {
            let fillers = cliff + windows::OUTSIDE_MARGIN_FILLERS;
            cells.extend(sequential_cells(&mut probe, fillers, &filling)?);
            pair_of(&cells)
        }
        _ => Outcome::missing("no window was found, so no load can be put outside it"),
    };
    session.progress.at(share(0.75), &doing);
    let throughput = throughput(&mut probe, &config.chains)?;
    session.progress.at(share(0.85), &doing);
    let areas = area_sweep(&mut probe, config.sweep_loads)?;
    let fence = probe.fence();
    let outside = filling.cliff.map(|cliff| {
        (
            cliff + windows::OUTSIDE_MARGIN_FILLERS,
            filling.pattern.as_slice(),
        )
    });
    let placements = placements::measure(probe, config, outside, &|within| {
        session.progress.at(share(0.85 + 0.15 * within), &doing);
    })?;
    Ok(Mlp {
        cells,
        rob_size,
        reorder_evidence: found.evidence,
        filler: filling.filler,
        windows: found.windows,
        mlp_rule: Outcome::missing("the rule has not been applied yet"),
        mlp_rule_interval: Outcome::missing("the rule has not been applied yet"),
        mlp_rule_between: None,
        mlp_throughput: best_throughput(&throughput),
        mlp_throughput_interval: Outcome::missing("the batches have not been looked at yet"),
        throughput,
        sequential_pair_cycles,
        sequential_pair_interval: Outcome::missing("the cells have not been looked at yet"),
        one_load_cycles: Outcome::missing("the cells have not been looked at yet"),
        sequential_line: Outcome::missing("no line has been fitted yet"),
        page_walks: Outcome::missing("page kinds have not been compared yet"),
        areas,
        placements,
        page,
        node,
        fence,
        others: Vec::new(),
        skipped: found.notes,
        elapsed_s: started.elapsed().as_secs_f64(),
    })
}

/// Finds the window of each kind of filler. If `known` is given, only the windows in it are searched for again.
fn find_windows(
    session: &Session<'_>,
    probe: &mut Probe<'_, '_>,
    known: Option<&Mlp>,
) -> FoundWindows {
    match known {
        None if hypervisor::is_emulator(session.root) => FoundWindows {
            windows: Vec::new(),
            evidence: Outcome::missing(EMULATED),
            notes: Vec::new(),
        },
        None => windows::find_all(probe, session.effort.pick(2, 4, 8)),
        Some(first) => FoundWindows {
            windows: windows::find_again(probe, &first.windows),
            evidence: first.reorder_evidence.clone(),
            notes: Vec::new(),
        },
    }
}

fn best_throughput(points: &[ThroughputPoint]) -> Outcome<f64> {
    points
        .iter()
        .map(|point| point.parallelism)
        .max_by(f64::total_cmp)
        .map_or_else(
            || Outcome::missing("interrupted before the chases ran"),
            Outcome::Known,
        )
}

/// Fillers of the N × K plane, which also separate sequential loads.
struct Filling {
    filler: Filler,
    pattern: Vec<Filler>,
    /// Maximum number of fillers with which two loads still overlap; `None` where no cliff was
    /// found.
    cliff: Option<u32>,
}

impl Filling {
    /// The requested filler, else the one that shows the reorder buffer.
    fn choose(asked: Option<Filler>, found: &FoundWindows) -> Result<Self, Error> {
        let window = match asked {
            None => found.reorder(),
            Some(filler) => found.windows.iter().find(|window| window.filler == filler),
        };
        if let (Some(Filler::Mixed), None) = (asked, window) {
            return Err(Error::Invalid(
                "no mix of fillers shows the reorder buffer on this core: use another `--filler`"
                    .to_owned(),
            ));
        }
        let filler = asked
            .or(window.map(|window| window.filler))
            .unwrap_or(Filler::Nop);
        Ok(Self {
            filler,
            pattern: match window {
                Some(window) if !window.pattern.is_empty() => window.pattern.clone(),
                _ => vec![filler],
            },
            cliff: window.map(|window| window.cliff_fillers),
        })
    }
}

/// The N × K plane. K runs on a coarse grid from 0 to a quarter beyond the cliff.
fn parallel_cells(
    probe: &mut Probe<'_, '_>,
    config: &MlpConfig,
    filling: &Filling,
    progress: &dyn Fn(f64),
) -> Result<Vec<MlpCell>, Error> {
    let fillers = config
        .fillers
        .clone()
        .unwrap_or_else(|| match filling.cliff {
            Some(cliff) => coarse_grid(cliff, probe.session.effort.pick(8, 14, 20)),
            None => vec![0, 8, 16, 32, 64, 128, 256, 512],
        });
    let mut cells = Vec::new();
    for (index, &loads) in config.loads.iter().enumerate() {
        progress(index as f64 / config.loads.len() as f64);
        for &fillers in &fillers {
            if probe.session.cancelled() {
                return Ok(cells);
            }
            let Some(timed) =
                unless_interrupted(probe.parallel(loads, fillers, &filling.pattern, 1))?
            else {
                return Ok(cells);
            };
            cells.push(probe.cell(MlpMode::Parallel, loads, fillers, filling.filler, &timed));
        }
    }
    Ok(cells)
}

/// `count` values from 0 to a quarter beyond `cliff`, a third of them near the cliff.
fn coarse_grid(cliff: u32, count: u32) -> Vec<u32> {
    let near = count / 3;
    let even = count - near;
    let mut grid: Vec<u32> = (0..even)
        .map(|step| cliff * 5 / 4 * step / (even - 1).max(1))
        .collect();
    let span = (cliff / 25).max(near);
    grid.extend(
        (0..near).map(|step| (cliff + 2 * span * step / (near - 1).max(1)).saturating_sub(span)),
    );
    grid.sort_unstable();
    grid.dedup();
    grid
}

/// T_seq(n), n = 1…12: each load outside the window of the one before. Measured upwards
/// and downwards, so that a drift of the machine does not become a slope.
fn sequential_cells(
    probe: &mut Probe<'_, '_>,
    fillers: u32,
    filling: &Filling,
) -> Result<Vec<MlpCell>, Error> {
    const MAX_PASS_LOADS: u32 = 12;
    let mut passes: Vec<(u32, Timed)> = Vec::new();
    for loads in (1..=MAX_PASS_LOADS).chain((1..=MAX_PASS_LOADS).rev()) {
        if probe.session.cancelled() {
            break;
        }
        let Some(timed) = unless_interrupted(probe.sequential(loads, fillers, &filling.pattern))?
        else {
            break;
        };
        passes.push((loads, timed));
    }
    let cells = (1..=MAX_PASS_LOADS).filter_map(|loads| {
        let both: Vec<&Timed> = passes
            .iter()
            .filter(|(n, _)| *n == loads)
            .map(|(_, timed)| timed)
            .collect();
        let timed = Timed {
            ticks: both.iter().map(|timed| timed.ticks).sum::<f64>() / both.len() as f64,
            ..(*both.first()?).clone()
        };
        Some(probe.cell(MlpMode::Sequential, loads, fillers, filling.filler, &timed))
    });
    Ok(cells.collect())
}

fn pair_of(cells: &[MlpCell]) -> Outcome<f64> {
    cells
        .iter()
        .find(|cell| cell.mode == MlpMode::Sequential && cell.loads == 2)
        .map_or_else(
            || Outcome::missing("interrupted"),
            |cell| Outcome::Known(cell.cycles),
        )
}

/// Parallel chases over the whole area: one random cycle, entered at many places.
fn throughput(probe: &mut Probe<'_, '_>, chains: &[u32]) -> Result<Vec<ThroughputPoint>, Error> {
    const BATCHES: u32 = 9;
    const LOADS_PER_BATCH: u64 = 6_000;
    let session = probe.session;
    let config = ChaseConfig {
        pattern: Pattern::Random,
        access: Access::Clean,
        stride_bytes: 64,
        seed: 0x6d6c_7000,
    };
    let bytes = probe.area_bytes();
    // SAFETY: the area belongs to the probe, which does not run meanwhile.
    let mut chase = unsafe { Chase::new(&*session.backend, config, probe.area(), bytes as usize)? };
    chase.resize_while(bytes, &|| !session.cancelled())?;
    if session.cancelled() {
        return Ok(Vec::new());
    }
    let mut points: Vec<ThroughputPoint> = Vec::new();
    for &count in chains {
        if session.cancelled() {
            break;
        }
        let kernel = session.backend.chains(count as usize)?;
        let mut heads: Vec<*mut u8> = (0..count).map(|_| probe.random_line()).collect();
        let rounds = (LOADS_PER_BATCH / u64::from(count)).max(64);
        let mut raw = Vec::new();
        for batch in 0..=BATCHES {
            let start = session.clock.now();
            // SAFETY: every head is an element of the closed chain over the whole area.
            unsafe { kernel.walk(&mut heads, rounds) };
            let ticks = (session.clock.now() - start) as f64 - session.clock.overhead_ticks();
            // The first batch warms the code and the first translations.
            if batch > 0 {
                raw.push(session.cycles(ticks) / (rounds * u64::from(count)) as f64);
            }
        }
        let cycles_per_load = stats::median(&raw).unwrap_or(f64::NAN);
        let alone = points.first().map_or(cycles_per_load, |first| {
            first.cycles_per_load * f64::from(first.chains)
        });
        points.push(ThroughputPoint {
            chains: count,
            cycles_per_load,
            parallelism: alone / cycles_per_load,
            batches: Samples {
                raw,
                stopped: Stopped::Budget,
                ..Samples::default()
            },
        });
    }
    Ok(points)
}

/// The document's chapter 5: T(N) for N = 1…`most_loads` over areas from 1 KiB to the whole area.
fn area_sweep(probe: &mut Probe<'_, '_>, most_loads: u32) -> Result<Vec<AreaPoint>, Error> {
    let mut points = Vec::new();
    let mut area_bytes = 1_u64 << 10;
    while most_loads > 0 && area_bytes <= probe.area_bytes() {
        let mut one = None;
        for loads in 1..=most_loads {
            if probe.session.cancelled() {
                return Ok(points);
            }
            let Some(timed) = unless_interrupted(probe.in_area(loads, area_bytes))? else {
                return Ok(points);
            };
            let cycles = probe.session.cycles(timed.ticks);
            let mut ticks = Vec::new();
            if loads == 1 {
                match unless_interrupted(probe.single_ticks(area_bytes))? {
                    Some(single) => ticks = single,
                    None => return Ok(points),
                }
            }
            let mut point = AreaPoint {
                area_bytes,
                loads,
                cycles,
                spread: probe.session.cycles(timed.spread_ticks),
                ratio: None,
                expected: Vec::new(),
                hits: Outcome::missing("not interpreted yet"),
                ticks,
                misses: timed.misses,
            };
            if loads == 1 {
                one = point.distinct_cycles();
            }
            point.ratio = point.distinct_cycles().zip(one).map(|(all, one)| all / one);
            points.push(point);
        }
        area_bytes *= 2;
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use membound_platform::Root;

    use super::*;
    use crate::{Effort, Silent};

    #[test]
    fn cells_before_the_one_in_which_the_run_was_cancelled_are_kept() {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        let config = MlpConfig {
            loads: vec![1, 2, 3],
            fillers: Some(vec![0]),
            area_bytes: 1 << 20,
            ..MlpConfig::new(Effort::Quick, PageKind::Base)
        };
        let mut probe = match Probe::new(&session, &config, PageKind::Base, NodePolicy::LOCAL) {
            Ok(probe) => probe,
            Err(Error::Architecture(name)) => {
                println!("skipped: no kernel for {name}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let rows = Cell::new(0);
        let filling = Filling {
            filler: Filler::Nop,
            pattern: vec![Filler::Nop],
            cliff: None,
        };
        let cells = parallel_cells(&mut probe, &config, &filling, &|_| {
            rows.set(rows.get() + 1);
            cancel.store(rows.get() > 2, Ordering::Relaxed);
        });
        let loads: Vec<u32> = cells.unwrap().iter().map(|cell| cell.loads).collect();
        assert_eq!(loads, [1, 2]);
        let error = probe.parallel(1, 0, &[Filler::Nop], 1).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error}");
    }

    #[test]
    fn the_coarse_grid_covers_both_sides_of_the_cliff() {
        for (cliff, count) in [(446, 8), (187, 14), (60, 20), (510, 24)] {
            let grid = coarse_grid(cliff, count);
            assert_eq!(grid[0], 0);
            assert!(*grid.last().unwrap() >= cliff * 6 / 5, "{grid:?}");
            assert!(grid.windows(2).all(|pair| pair[0] < pair[1]), "{grid:?}");
            assert!(grid.iter().filter(|k| **k <= cliff).count() >= 4);
            assert!(grid.iter().filter(|k| **k > cliff).count() >= 2);
        }
    }
}
