//! Makes the plan of a run.

use std::collections::{BTreeMap, BTreeSet};

use membound_analyze::{AccessFigures, Figures};
use membound_model::stall::Estimate;
use membound_rewrite::image::Image;
use membound_run::{ModuleId, ModuleKind, RunData, Site, SiteKind};
use membound_types::{
    Basis, DistanceRule, Figure, GapReason, HarvestFunction, HarvestGap, HarvestModule,
    HarvestOptions, HarvestPlan, HarvestSite, HarvestTotals, Kind, MachineProfile, Missing,
    NotMeasured, SCHEMA_VERSION, YieldKind, YieldReason,
};

use crate::binaries::{self, Binaries};
use crate::choose::{self, Candidate, Decision};
use crate::code::{self, AnalyzedModule, Origin};
use crate::distance::{self, Bounded, Limits, Program, Rule, Unbounded};
use crate::earlier_plan::EarlierPlan;
use crate::patches::Patches;
use crate::times::{self, CodeTimes, Usual};
use crate::{Error, Options};

/// Default time of an instruction, in nanoseconds, where neither profile nor machine provide one: a cycle at
/// 1 GHz, longer than on any machine on which programs are profiled.
const SLOW_CYCLE_NS: f64 = 1.0;

/// Plans `run`. Levels and latencies are those of `machine`, or of the run's own machine profile; the
/// profiled binaries are read again through `binaries`. Where the figures permit both to choose a load and
/// not to, the decision of `earlier` holds, an earlier plan of the same files.
///
/// # Errors
/// If the run lacks samples or sites, or a binary is not the one that was profiled.
pub fn plan(
    run: &RunData,
    machine: Option<&MachineProfile>,
    binaries: &dyn Binaries,
    earlier: Option<&HarvestPlan>,
    options: &Options,
) -> Result<HarvestPlan, Error> {
    if run.samples.is_empty() {
        return Err(Error::NoSamples);
    }
    // Bound yields need no accesses.
    if run.sites.is_empty() && options.limits.is_none() {
        return Err(Error::NoSites);
    }
    let analysis = membound_analyze::Options {
        machine,
        ..membound_analyze::Options::default()
    };
    let figures = membound_analyze::figures(run, &analysis);
    let machine = machine.or(run.meta.machine.as_deref());
    let files = binaries::read(run, binaries);
    let images = binaries::images(run, &files)?;
    let patches = groundwork(run, &images, options);
    let considered = Considered::new(run, &figures, &images, &patches, earlier);
    let decisions = choose::choose(
        &considered.candidates,
        figures.cpu_ns,
        figures.stall_ns,
        options,
    );
    let mut sites = considered.sites(run, &figures, &decisions);
    let mut functions = Vec::new();
    if let Some(limits) = options.limits {
        let chosen = considered.chosen(&decisions);
        let code = Code {
            run,
            images: &images,
            patches: &patches,
            times: times::times(run, &figures, |site| chosen.contains(&site)),
            usual: usual(run, machine),
        };
        let bounding;
        (bounding, functions) = code.bound(&chosen, limits);
        sites.extend(bounding);
        for function in &mut functions {
            function.time_fraction /= figures.cpu_ns.max(1.0);
        }
    }
    Ok(HarvestPlan {
        schema_version: SCHEMA_VERSION,
        kind: Kind::HarvestPlan,
        incomplete: !run.meta.complete,
        membound_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: run.meta.command.clone(),
        date: run.meta.date.clone(),
        host: machine.map_or_else(|| run.meta.host.clone(), |it| it.machine.host.clone()),
        cpu: machine.map_or_else(String::new, |it| it.machine.cpu.model_name.clone()),
        role: options.role,
        options: written(options),
        totals: totals(&figures, &decisions, &considered, &sites, options),
        modules: modules(run, &images, binaries),
        sites,
        functions,
        missing: missing(run, &figures, &considered, options),
    })
}

/// What patches of each module need; it takes time, so it is made only for modules that have sites or are bounded.
fn groundwork<'a>(
    run: &RunData,
    images: &'a [Result<Image<'a>, String>],
    options: &Options,
) -> Vec<Option<Patches<'a>>> {
    let of_sites: BTreeSet<usize> = run
        .sites
        .iter()
        .filter_map(|site| run.frames[site.frame.index()].module)
        .map(ModuleId::index)
        .collect();
    images
        .iter()
        .enumerate()
        .map(|(index, image)| {
            let needed = options.limits.is_some() || of_sites.contains(&index);
            image.as_ref().ok().filter(|_| needed).map(Patches::of)
        })
        .collect()
}

/// The accesses that are considered, in the order of the run.
struct Considered<'a> {
    accesses: Vec<&'a AccessFigures>,
    candidates: Vec<Candidate>,
    /// Why no patch can stand at the access.
    refusals: Vec<Option<String>>,
}

impl<'a> Considered<'a> {
    fn new(
        run: &RunData,
        figures: &'a Figures,
        images: &[Result<Image<'_>, String>],
        patches: &[Option<Patches<'_>>],
        earlier: Option<&HarvestPlan>,
    ) -> Self {
        let decided = earlier.map(EarlierPlan::of).unwrap_or_default();
        let identities: Vec<Option<String>> = images
            .iter()
            .map(|image| image.as_ref().ok().map(binaries::identity))
            .collect();
        let mut loads: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let accesses: Vec<&AccessFigures> = figures
            .accesses
            .iter()
            .filter(|access| is_programs(run, &run.sites[access.site.index()]))
            .collect();
        for access in &accesses {
            let site = &run.sites[access.site.index()];
            let frame = run.frames[site.frame.index()];
            if let Some(module) = frame.module {
                loads.entry(module.index()).or_default().push(frame.address);
            }
        }
        let mut refused: BTreeMap<usize, BTreeMap<u64, String>> = BTreeMap::new();
        for (module, mut addresses) in loads {
            if let Some(patches) = &patches[module] {
                addresses.sort_unstable();
                addresses.dedup();
                refused.insert(module, patches.loads(addresses));
            }
        }
        let mut considered = Self {
            candidates: Vec::new(),
            refusals: Vec::new(),
            accesses,
        };
        for access in &considered.accesses {
            let site = &run.sites[access.site.index()];
            let frame = run.frames[site.frame.index()];
            let of_module = frame.module.and_then(|module| refused.get(&module.index()));
            let refusal = of_module.and_then(|refused| refused.get(&frame.address));
            let impossible = if site.kind != SiteKind::Load && site.kind != SiteKind::Both {
                Some(YieldReason::NotALoad)
            } else if of_module.is_none() {
                Some(YieldReason::NoFile)
            } else {
                refusal.map(|_| YieldReason::CannotPatch)
            };
            let no_image = frame
                .module
                .and_then(|it| images[it.index()].as_ref().err());
            considered.refusals.push(refusal.or(no_image).cloned());
            considered.candidates.push(Candidate {
                impossible,
                stall_ns: access.stall_ns,
                beyond_ns: access.stall_beyond_l2_ns,
                executed: access.executed,
                likelihood: access.served.map(|served| served.memory),
                earlier: frame.module.and_then(|module| {
                    let identity = identities[module.index()].as_deref()?;
                    decided.at(identity, frame.address)
                }),
            });
        }
        considered
    }

    /// Sites of the plan, one for each access: the chosen ones first, sorted by decreasing predicted gain, and then the
    /// others, sorted likewise.
    fn sites(&self, run: &RunData, figures: &Figures, decisions: &[Decision]) -> Vec<HarvestSite> {
        let accesses = self.accesses.iter().zip(&self.refusals).zip(decisions);
        let mut sites: Vec<HarvestSite> = accesses
            .map(|((access, refused), decision)| {
                of_load(run, figures, access, decision, refused.clone())
            })
            .collect();
        sites.sort_by(|a, b| {
            (b.chosen.cmp(&a.chosen))
                .then(b.predicted_gain_ns.total_cmp(&a.predicted_gain_ns))
                .then(b.stall_fraction.total_cmp(&a.stall_fraction))
                .then_with(|| (&a.module, a.offset).cmp(&(&b.module, b.offset)))
        });
        sites
    }

    /// Positions of the chosen sites in the run.
    fn chosen(&self, decisions: &[Decision]) -> BTreeSet<usize> {
        let accesses = self.accesses.iter().zip(decisions);
        accesses
            .filter(|(_, decision)| decision.chosen)
            .map(|(access, _)| access.site.index())
            .collect()
    }
}

fn is_programs(run: &RunData, site: &Site) -> bool {
    let module = run.frames[site.frame.index()].module;
    module.is_none_or(|module| run.modules[module.index()].kind != ModuleKind::Agent)
}

fn of_load(
    run: &RunData,
    figures: &Figures,
    access: &AccessFigures,
    decision: &Decision,
    refused: Option<String>,
) -> HarvestSite {
    let site = &run.sites[access.site.index()];
    let frame = run.frames[site.frame.index()];
    let cpu_ns = figures.cpu_ns.max(1.0);
    HarvestSite {
        module: frame
            .module
            .map_or_else(String::new, |it| run.modules[it.index()].path.clone()),
        offset: frame.address,
        symbol: access.function.clone(),
        text: site.text.clone(),
        kind: YieldKind::Primary,
        every: 1,
        chosen: decision.chosen,
        reason: decision.reason,
        detail: refused.filter(|_| {
            matches!(
                decision.reason,
                YieldReason::CannotPatch | YieldReason::NoFile
            )
        }),
        undecided: decision.undecided,
        executions: access.executed.map(|executed| executed.count),
        executions_low: access.executed.map(|executed| executed.low),
        executions_high: access.executed.map(|executed| executed.high),
        lasts_ns: None,
        stall_fraction: access.stall_ns.value / cpu_ns,
        stall_ns: decision.stall_each_ns.map(figure),
        likelihood: access.served.map(|served| figure(served.memory)),
        predicted_gain_ns: decision.gain_ns,
        predicted_gain: decision.gain_ns / cpu_ns,
        hit_cost: decision.hit_cost_ns / cpu_ns,
    }
}

fn figure(estimate: Estimate) -> Figure {
    Figure {
        value: estimate.value,
        low: estimate.low,
        high: estimate.high,
        basis: Basis::Estimated,
    }
}

/// Code in which distances are bounded.
struct Code<'a> {
    run: &'a RunData,
    images: &'a [Result<Image<'a>, String>],
    patches: &'a [Option<Patches<'a>>],
    /// Times and counts of each module.
    times: Vec<CodeTimes>,
    usual: Usual,
}

impl Code<'_> {
    /// Bound yields beside the yields at the `chosen` accesses, and the resulting distances of each function.
    /// The functions' `time_fraction` is still in nanoseconds.
    fn bound(
        &self,
        chosen: &BTreeSet<usize>,
        limits: Limits,
    ) -> (Vec<HarvestSite>, Vec<HarvestFunction>) {
        let mut yields = vec![BTreeSet::new(); self.run.modules.len()];
        for &site in chosen {
            let frame = self.run.frames[self.run.sites[site].frame.index()];
            if let Some(module) = frame.module {
                yields[module.index()].insert(frame.address);
            }
        }
        let modules: Vec<AnalyzedModule<'_>> = (0..self.run.modules.len())
            .filter_map(|index| {
                Some(AnalyzedModule {
                    index,
                    image: self.images[index].as_ref().ok()?,
                    patches: self.patches[index].as_ref()?,
                    times: &self.times[index],
                    yields: &yields[index],
                })
            })
            .collect();
        let (program, origins) = code::program(&modules, self.usual);
        let bounded = distance::bound(&program, limits);
        (
            self.sites(&program, &origins, &bounded),
            self.functions(&program, &origins, &bounded),
        )
    }

    fn path(&self, module: usize) -> String {
        self.run.modules[module].path.clone()
    }

    fn sites(&self, program: &Program, origins: &[Origin], bounded: &Bounded) -> Vec<HarvestSite> {
        let site = |(place, every): (&distance::YieldPosition, &u32)| {
            let origin = &origins[place.function];
            let function = &program.functions[place.function];
            let block = &function.blocks[place.block];
            let address = block.steps[place.step].address;
            let path = self.path(origin.module);
            HarvestSite {
                lasts_ns: distance::lasts_ns(function, place.block),
                symbol: origin.name.clone(),
                executions: origin.counted[place.block].then_some(block.count),
                executions_low: None,
                executions_high: None,
                ..HarvestSite::chosen(path, address, YieldKind::Scavenger, *every)
            }
        };
        bounded.yields.iter().map(site).collect()
    }

    fn functions(
        &self,
        program: &Program,
        origins: &[Origin],
        bounded: &Bounded,
    ) -> Vec<HarvestFunction> {
        let mut functions: Vec<HarvestFunction> = origins
            .iter()
            .zip(&bounded.functions)
            .map(|(origin, achieved)| HarvestFunction {
                module: self.path(origin.module),
                offset: origin.range.start,
                symbol: origin.name.clone(),
                time_fraction: origin.time_ns,
                distance_ns: achieved.most_ns,
                profiled: origin.is_profiled(),
                gaps: achieved
                    .gaps
                    .iter()
                    .filter_map(|gap| {
                        let function = &program.functions[gap.place.function];
                        let block = &function.blocks[gap.place.block];
                        let step = block.steps.get(gap.place.step).or(block.steps.last());
                        // A conditional jump out of the function is a block without instructions.
                        Some(HarvestGap {
                            offset: step?.address,
                            why: gap_reason(gap.why),
                        })
                    })
                    .collect(),
            })
            .collect();
        functions.sort_by(|a, b| {
            let longest = |it: &HarvestFunction| it.distance_ns.unwrap_or(f64::INFINITY);
            (longest(b).total_cmp(&longest(a)))
                .then(b.time_fraction.total_cmp(&a.time_fraction))
                .then_with(|| (&a.module, a.offset).cmp(&(&b.module, b.offset)))
        });
        functions
    }
}

const fn gap_reason(why: Unbounded) -> GapReason {
    match why {
        Unbounded::Loop => GapReason::Loop,
        Unbounded::Stretch => GapReason::Stretch,
        Unbounded::Instruction => GapReason::Instruction,
        Unbounded::UnknownCall => GapReason::UnknownCall,
    }
}

fn usual(run: &RunData, machine: Option<&MachineProfile>) -> Usual {
    let core_hz = machine.map(|machine| {
        let timer = &machine.machine.timer;
        machine
            .core_clock_hz
            .map_or(timer.core_clock_hz, |clock| clock.value)
    });
    let weights: u64 = run.samples.iter().map(|sample| sample.weight_ns).sum();
    Usual {
        cycle_ns: core_hz
            .filter(|&hz| hz > 0.0)
            .map_or(SLOW_CYCLE_NS, |hz| 1e9 / hz),
        sample_ns: weights as f64 / run.samples.len().max(1) as f64,
    }
}

fn written(options: &Options) -> HarvestOptions {
    HarvestOptions {
        max_overhead: options.max_overhead,
        min_stall_share: options.min_stall_share,
        min_likelihood: options.min_likelihood,
        bound_ns: options.limits.map(|limits| limits.bound_ns),
        distance: match options.limits.map(|limits| limits.rule) {
            Some(Rule::Max) | None => DistanceRule::Max,
            Some(Rule::Expected) => DistanceRule::Expected,
        },
        switch_ns: options.costs.switch_ns,
        counter_ns: options.costs.counter_ns,
        costs_measured: options.costs.measured,
    }
}

fn totals(
    figures: &Figures,
    decisions: &[Decision],
    considered: &Considered<'_>,
    sites: &[HarvestSite],
    options: &Options,
) -> HarvestTotals {
    let cpu_ns = figures.cpu_ns.max(1.0);
    let chosen = || decisions.iter().filter(|decision| decision.chosen);
    let covered_ns: f64 = considered
        .candidates
        .iter()
        .zip(decisions)
        .filter(|(_, decision)| decision.chosen)
        .map(|(candidate, _)| candidate.beyond_ns)
        .sum();
    let bounding = || {
        sites
            .iter()
            .filter(|site| site.kind == YieldKind::Scavenger)
    };
    let bound_cost_ns: f64 = bounding()
        .map(|site| {
            let every = f64::from(site.every.max(1));
            let counter_ns = if site.every > 1 {
                options.costs.counter_ns
            } else {
                0.0
            };
            let each_ns = counter_ns + options.costs.yield_ns() / every;
            site.executions.unwrap_or_default() * each_ns
        })
        .sum();
    HarvestTotals {
        cpu_s: figures.cpu_ns * 1e-9,
        stall_fraction: figures.stall_ns / cpu_ns,
        covered_fraction: covered_ns / cpu_ns,
        gain_fraction: chosen().map(|it| it.gain_ns).sum::<f64>() / cpu_ns,
        hit_cost_fraction: chosen().map(|it| it.hit_cost_ns).sum::<f64>() / cpu_ns,
        bound_cost_fraction: bound_cost_ns / cpu_ns,
        primary_yields: chosen().count() as u64,
        scavenger_yields: bounding().count() as u64,
        considered: decisions.len() as u64,
        undecided: decisions.iter().filter(|it| it.undecided).count() as u64,
    }
}

/// The files that were analysed, and the executables: where all of a program's work is in libraries, nothing else
/// tells for which program the plan is.
fn modules(
    run: &RunData,
    images: &[Result<Image<'_>, String>],
    files: &dyn Binaries,
) -> Vec<HarvestModule> {
    let pairs = run.modules.iter().zip(images);
    let mut modules: Vec<HarvestModule> = pairs
        .filter_map(|(module, image)| {
            Some(HarvestModule {
                path: module.path.clone(),
                identity: binaries::identity(image.as_ref().ok()?),
            })
        })
        .collect();
    let executables: BTreeSet<&str> = run.processes.iter().map(|it| it.path.as_str()).collect();
    for path in executables {
        if modules.iter().all(|module| module.path != path)
            && let Some(identity) = files
                .read(path)
                .ok()
                .as_deref()
                .and_then(binaries::identify)
        {
            modules.push(HarvestModule {
                path: path.to_owned(),
                identity,
            });
        }
    }
    modules
}

/// What decisions lack in the run, each with a remedy.
fn missing(
    run: &RunData,
    figures: &Figures,
    considered: &Considered<'_>,
    options: &Options,
) -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut lacks = |table: &str, reason: String, remedy: &str| {
        missing.push(Missing {
            table: table.to_owned(),
            why: NotMeasured {
                reason,
                remedy: Some(remedy.to_owned()),
            },
        });
    };
    let again = "profile it with `membound profile -- COMMAND`";
    if run.meta.attached.is_some() {
        lacks(
            "latencies",
            "the process was attached to: nothing was counted or timed".to_owned(),
            again,
        );
    } else if !run.meta.latencies {
        lacks(
            "latencies",
            "the run was recorded with --no-latencies: nothing was counted or timed".to_owned(),
            "profile it without --no-latencies",
        );
    } else if let Some(reason) = &figures.no_levels {
        lacks(
            "levels",
            format!("latencies cannot be assigned to cache levels: {reason}"),
            "measure this machine with `membound measure`, then profile again (or pass --machine)",
        );
    } else if considered
        .candidates
        .iter()
        .all(|it| it.likelihood.is_none())
    {
        lacks(
            "latencies",
            "no access was timed: nothing was hot for long enough to be patched".to_owned(),
            "profile a longer run",
        );
    }
    if options.limits.is_some() && run.blocks.is_empty() {
        lacks(
            "blocks",
            "no basic block was counted: every instruction is taken to last a cycle".to_owned(),
            "profile a longer run, with latencies",
        );
    }
    for (path, reason) in unreadable(run, considered) {
        lacks(
            "files",
            format!("nothing is planned in {path}: {reason}"),
            "profile and plan where the file is",
        );
    }
    missing
}

/// Files in which nothing could be planned, each with the reason.
fn unreadable<'a>(
    run: &'a RunData,
    considered: &'a Considered<'_>,
) -> BTreeSet<(&'a str, &'a str)> {
    considered
        .accesses
        .iter()
        .zip(&considered.candidates)
        .zip(&considered.refusals)
        .filter(|((_, candidate), _)| candidate.impossible == Some(YieldReason::NoFile))
        .filter_map(|((access, _), reason)| {
            let site = &run.sites[access.site.index()];
            let module = run.frames[site.frame.index()].module?;
            let module = &run.modules[module.index()];
            let path = (module.kind == ModuleKind::File).then_some(module.path.as_str());
            path.zip(reason.as_deref())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use membound_run::Process;

    use super::*;

    struct Files;

    impl Binaries for Files {
        fn read(&self, path: &str) -> io::Result<Vec<u8>> {
            std::fs::read(path)
        }
    }

    #[test]
    fn a_plan_names_the_program_even_if_all_of_its_work_is_in_libraries() {
        let process = |path: &str| Process {
            path: path.to_owned(),
            ..Process::default()
        };
        let run = RunData {
            processes: vec![process("/proc/self/exe"), process("/no/such/file")],
            ..RunData::default()
        };
        let bytes = Files.read("/proc/self/exe").unwrap();
        let own = HarvestModule {
            path: "/proc/self/exe".to_owned(),
            identity: binaries::identify(&bytes).unwrap(),
        };
        assert_eq!(modules(&run, &[], &Files), [own]);
    }
}
