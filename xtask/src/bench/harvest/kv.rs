//! A store under an open load with scans in its stalls: how much slower its requests become, and
//! how much of its stalls is harvested. And how often time slices keep the bound.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use membound_types::{HarvestPart, HarvestPlan, IdlePolicy, MachineProfile};
use serde_json::{Value, json};

use super::super::common::verdict;
use super::arithmetic::{loads_beyond, middle, turned_into_work};
use super::bed::{
    Asked, Bed, Endless, OVERHEAD, Ran, Said, Words, alternate, chosen, ran_apart, read,
};
use super::chase::{REST_S, resting};
use super::failure::failed;
use crate::run::say;

/// Seconds for which requests are served at a given rate, and number of requests without one.
const SERVED_S: u64 = 5;
const REQUESTS: u64 = 1_500_000;
/// The bound to which the targets apply.
const BOUND_NS: f64 = 200.0;
const BOUNDS_NS: [f64; 5] = [50.0, 100.0, BOUND_NS, 500.0, 1000.0];
const OVERHEADS: [&str; 5] = ["1%", "2%", OVERHEAD, "10%", "20%"];
/// Utilisations of the sojourn curve in per cent, and the utilisation of all other cases.
const LOADS: [u32; 5] = [10, 30, 50, 70, 90];
const LOAD: u32 = 50;
/// Maximum relative increase of the 95th percentile of service time.
const SERVICE_TARGET: f64 = 0.15;
/// Minimum share of the time slices that keep the bound.
const WITHIN_TARGET: f64 = 0.99;
/// Bytes of a chase whose translations hit the TLB and whose lines are in no inner cache.
const NEAR_AREA: &str = "16M";

/// A store at a rate of requests, with or without scavengers.
#[derive(Clone, Copy, Debug)]
struct Case {
    load: u32,
    /// The bound and `--max-overhead`; `None` runs alone.
    with: Option<(f64, &'static str)>,
    /// Parts left out of yields.
    without: &'static [HarvestPart],
}

/// Parts left out of plain yields.
const PLAIN: &[HarvestPart] = &[HarvestPart::Liveness, HarvestPart::Vectors];
/// Parts whose effect shows in a store, each left out by itself.
const PARTS: [&[HarvestPart]; 2] = [&[HarvestPart::Recency], &[HarvestPart::Companions]];

/// Compared figures of a run.
#[derive(Clone, Debug, serde::Serialize)]
struct Found {
    service_p50_ns: f64,
    service_p95_ns: f64,
    sojourn_p95_ns: f64,
    sojourn_p99_ns: f64,
    /// Scavengers' units of work, total and per second.
    units: f64,
    units_per_s: f64,
    worker_cpu_s: f64,
    apart: bool,
}

impl Found {
    fn alone(said: &Said) -> Result<Self> {
        Ok(Self {
            service_p50_ns: said.get("service_p50_ns")?,
            service_p95_ns: said.get("service_p95_ns")?,
            sojourn_p95_ns: said.get("sojourn_p95_ns")?,
            sojourn_p99_ns: said.get("sojourn_p99_ns")?,
            units: 0.0,
            units_per_s: 0.0,
            worker_cpu_s: said.get("worker_cpu_s")?,
            apart: false,
        })
    }

    fn of(ran: &Ran) -> Result<Self> {
        let seconds = ran.said.seconds()?;
        let document = ran.document.as_ref();
        Ok(Self {
            units: ran.units()?,
            units_per_s: ran.units_per_s()?,
            apart: document.is_some_and(|document| ran_apart(document, seconds, 0.0)),
            ..Self::alone(&ran.said)?
        })
    }
}

/// A store that serves on the one processor: at `utilisation` per cent, or at `rate` requests per
/// second if that is not 0.
pub(super) fn store(bed: &Bed<'_>, utilisation: u32, rate: u64) -> Words {
    let requests = bed.amount(if rate > 0 { rate * SERVED_S } else { REQUESTS });
    let (utilisation, rate) = (utilisation.to_string(), rate.to_string());
    let nodes = bed.args.nodes.as_str();
    bed.words("kv", [nodes, &utilisation, &requests, "8", "clock", &rate])
}

/// Requests per second at full utilisation, from a run alone.
pub(super) fn full_rate(bed: &Bed<'_>) -> Result<f64> {
    bed.alone(&store(bed, LOAD, 0))?.get("service_rate_per_s")
}

/// The rate of requests at `load` per cent of `full_rate`: the same in all compared cases.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are positive and far below 2^53"
)]
pub(super) fn rate(full_rate: f64, load: u32) -> u64 {
    ((full_rate * f64::from(load) / 100.0) as u64).max(1)
}

/// A store with `scavenger` in its stalls.
pub(super) fn asked(bed: &Bed<'_>, primary: Words, scavenger: Endless, bound_ns: f64) -> Asked {
    Asked {
        primary,
        // Without pauses, so that the profile contains requests only.
        profiled: store(bed, 1000, 0),
        scavenger,
        copies: 1,
        idle: IdlePolicy::Steal,
        bound_ns: Some(bound_ns),
        max_overhead: OVERHEAD,
        without: &[],
    }
}

/// Share of the primary's CPU time that is stall, according to its plan.
fn stall_share(plan: &Path) -> Result<f64> {
    let plan: HarvestPlan = read(plan)?;
    Ok(plan.totals.stall_fraction)
}

/// All cases: the store alone, then each bound and each overhead, pairs of alone and with scavengers by load,
/// and yields without some of their parts.
fn cases() -> Vec<Case> {
    let at = |load, with| Case {
        load,
        with,
        without: &[],
    };
    let with = |bound, overhead| at(LOAD, Some((bound, overhead)));
    let mut cases = vec![at(LOAD, None)];
    cases.extend(BOUNDS_NS.map(|bound| with(bound, OVERHEAD)));
    cases.extend(OVERHEADS.map(|overhead| with(BOUND_NS, overhead)));
    for load in LOADS {
        cases.extend([None, Some((BOUND_NS, OVERHEAD))].map(|with| at(load, with)));
    }
    cases.extend(BOUNDS_NS.map(|bound| Case {
        without: PLAIN,
        ..with(bound, OVERHEAD)
    }));
    cases.extend(PARTS.map(|without| Case {
        without,
        ..with(BOUND_NS, OVERHEAD)
    }));
    cases
}

pub(super) fn run(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let full = full_rate(bed)?;
    let scan = bed.scavenger("scan", "");
    let worth = bed.units_per_s(&scan)?;
    let cases = cases();
    let primary = |case: &Case| store(bed, case.load, rate(full, case.load));
    let ask = |case: &Case, (bound_ns, max_overhead)| Asked {
        max_overhead,
        without: case.without,
        ..asked(bed, primary(case), scan.clone(), bound_ns)
    };
    let [plan, _] = bed.plans(&ask(&cases[0], (BOUND_NS, OVERHEAD)))?;
    let (stall, yields) = (stall_share(&plan)?, chosen(&plan)?.len());
    ensure!(
        yields > 0,
        "the store's plan has no yields, though {:.0} % of its CPU time is stall",
        stall * 100.0
    );
    let found = alternate(bed.args.repeat, &cases, |case| match case.with {
        None => Found::alone(&bed.alone(&primary(case))?),
        Some(with) => Found::of(&bed.harvested(&ask(case, with))?),
    });
    let mut rows = cases.iter().zip(found);
    let (_, alone) = rows.next().context("the store alone comes first")?;
    let alone = alone?;
    let store_alone = Alone {
        p95_ns: middle(&alone, |one| one.service_p95_ns)?,
        stall_s: middle(&alone, |one| one.worker_cpu_s)? * stall,
        worth,
    };
    say(format_args!(
        "{} requests a second, {LOAD} % of the time busy; service p95 alone {:.1} us",
        rate(full, LOAD),
        store_alone.p95_ns / 1e3
    ));
    say(format_args!(
        "{:.0} % of its CPU time is stall by its plan of {yields} yields, {:.2} s of a run",
        stall * 100.0,
        store_alone.stall_s
    ));
    let compared = rows.by_ref().take(BOUNDS_NS.len() + OVERHEADS.len());
    let mut summary = by_bound_and_overhead(compared, &store_alone)?;
    let (mut curve, mut plain, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        match row.0.without {
            [] => curve.push(row),
            PLAIN => plain.push(row),
            _ => parts.push(row),
        }
    }
    let cheap = summary[..BOUNDS_NS.len()].iter();
    let cheap: Vec<Option<f64>> = cheap.map(|row| row["service_p95_ns"].as_f64()).collect();
    let plain = plainly(&plain, &cheap)?;
    summary.extend(sojourns(&curve)?);
    summary.extend(plain);
    summary.extend(without_parts(&parts, &store_alone)?);
    Ok(summary)
}

/// Slowdown and harvested stall, by bound and overhead.
fn by_bound_and_overhead<'a>(
    rows: impl Iterator<Item = (&'a Case, Result<Vec<Found>>)>,
    store_alone: &Alone,
) -> Result<Vec<Value>> {
    say("bound     overhead  service p50    p95  slower  <= 15 %  units/s  stall to work");
    let mut summary: Vec<Value> = Vec::new();
    for (case, runs) in rows {
        let (bound_ns, overhead) = case.with.context("these cases have scavengers")?;
        let head = format!("{:<10}{overhead:>8}", format!("{bound_ns:.0} ns"));
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                say(head.trim_end());
                summary.push(json!({
                    "bound_ns": bound_ns, "max_overhead": overhead, "failed": failed(&error),
                }));
                continue;
            }
        };
        let Reached { p95, slower, work } = store_alone.reached(&runs)?;
        let judged = if bound_ns <= BOUND_NS && overhead == OVERHEAD {
            verdict(slower <= SERVICE_TARGET)
        } else {
            ""
        };
        let apart = runs.iter().any(|one| one.apart);
        say(format_args!(
            "{head}{:>10.1} us{:>7.1}{:>+6.0} %  {judged:<7}{:>9.0}{:>12.0} %{}",
            middle(&runs, |one| one.service_p50_ns)? / 1e3,
            p95 / 1e3,
            slower * 100.0,
            middle(&runs, |one| one.units_per_s)?,
            work * 100.0,
            if apart { " *" } else { "" },
        ));
        summary.push(json!({
            "bound_ns": bound_ns, "max_overhead": overhead, "service_p95_ns": p95,
            "alone_p95_ns": store_alone.p95_ns, "slower": slower, "stall_to_work": work,
            "target": SERVICE_TARGET, "ran_apart": apart, "runs": runs,
        }));
    }
    if summary.iter().any(|row| row["ran_apart"] == true) {
        say("* scavengers ran on threads of their own: that work is in the figure");
    }
    Ok(summary)
}

/// Figures of the store alone, with which runs with scavengers are compared.
struct Alone {
    /// 95th percentile of the service time, in nanoseconds.
    p95_ns: f64,
    /// Stall time in seconds.
    stall_s: f64,
    /// Units of work that a scavenger alone does in a second.
    worth: f64,
}

/// Result of the runs of a case.
struct Reached {
    /// 95th percentile of the service time, in nanoseconds.
    p95: f64,
    /// Relative increase over the store alone.
    slower: f64,
    /// Share of the stall time that was harvested.
    work: f64,
}

impl Alone {
    fn reached(&self, runs: &[Found]) -> Result<Reached> {
        let p95 = middle(runs, |one| one.service_p95_ns)?;
        let units = middle(runs, |one| one.units)?;
        Ok(Reached {
            p95,
            slower: p95 / self.p95_ns - 1.0,
            work: turned_into_work(units, self.worth, self.stall_s),
        })
    }
}

/// Slowdown and work without single parts of a yield, at the usual bound.
fn without_parts(parts: &[(&Case, Result<Vec<Found>>)], store_alone: &Alone) -> Result<Vec<Value>> {
    say("without       service p95  slower  stall to work");
    let mut rows = Vec::new();
    for (case, runs) in parts {
        let names: Vec<&str> = case.without.iter().map(|part| part.name()).collect();
        let names = names.join(", ");
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                say(&names);
                rows.push(json!({ "without": names, "failed": failed(error) }));
                continue;
            }
        };
        let Reached { p95, slower, work } = store_alone.reached(runs)?;
        say(format_args!(
            "{names:<13}{:>8.1} us{:>+6.0} %{:>13.0} %",
            p95 / 1e3,
            slower * 100.0,
            work * 100.0
        ));
        rows.push(json!({
            "without": names, "service_p95_ns": p95, "slower": slower, "stall_to_work": work,
            "runs": runs,
        }));
    }
    Ok(rows)
}

/// Gain of yields that save only what they must, by bound: service times of yields that save
/// everything, against `cheap`, those of the others.
fn plainly(plain: &[(&Case, Result<Vec<Found>>)], cheap: &[Option<f64>]) -> Result<Vec<Value>> {
    say("bound     service p95 with plain yields  with these  better");
    let mut rows = Vec::new();
    for ((case, runs), cheap) in plain.iter().zip(cheap) {
        let (Some((bound_ns, _)), Ok(runs), Some(cheap)) = (case.with, runs, cheap) else {
            continue;
        };
        let p95 = middle(runs, |one| one.service_p95_ns)?;
        let better = 1.0 - cheap / p95;
        say(format_args!(
            "{:<10}{:>26.1} us{:>9.1} us{:>+6.0} %",
            format!("{bound_ns:.0} ns"),
            p95 / 1e3,
            cheap / 1e3,
            better * 100.0
        ));
        rows.push(json!({
            "bound_ns": bound_ns, "plain_p95_ns": p95, "service_p95_ns": cheap, "better": better,
        }));
    }
    Ok(rows)
}

/// Sojourn times by load: pairs of a case alone and with scavengers.
fn sojourns(curve: &[(&Case, Result<Vec<Found>>)]) -> Result<Vec<Value>> {
    say("load   sojourn p95 alone      with  sojourn p99 alone      with");
    let mut rows = Vec::new();
    for pair in curve.chunks_exact(2) {
        let [(case, alone), (_, with)] = pair else {
            continue;
        };
        let (alone, with) = match (alone, with) {
            (Ok(alone), Ok(with)) => (alone, with),
            (Err(error), _) | (_, Err(error)) => {
                say(format_args!("{} %", case.load));
                rows.push(json!({ "load": case.load, "failed": failed(error) }));
                continue;
            }
        };
        let us = |runs: &[Found], of: fn(&Found) -> f64| Ok(middle(runs, of)? / 1e3);
        let [p95, with_p95, p99, with_p99]: [Result<f64>; 4] = [
            us(alone, |one| one.sojourn_p95_ns),
            us(with, |one| one.sojourn_p95_ns),
            us(alone, |one| one.sojourn_p99_ns),
            us(with, |one| one.sojourn_p99_ns),
        ];
        say(format_args!(
            "{:>3} %{:>17.1} us{:>7.1} us{:>16.1} us{:>7.1} us",
            case.load, p95?, with_p95?, p99?, with_p99?
        ));
        rows.push(json!({ "load": case.load, "alone": alone, "with": with }));
    }
    Ok(rows)
}

/// Measures how often time slices keep the bound, by scavenger.
pub(super) fn distances(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let area = bed.args.area.as_str();
    let scavengers = [
        ("scan", area),
        ("schase", NEAR_AREA),
        ("schase", area),
        ("graph", area),
        ("compute", area),
    ];
    let cases = scavengers.map(|(name, of_chase)| {
        let chase = |hops| bed.words("chase", ["1", area, "own", &bed.amount(hops)]);
        Asked {
            primary: resting(bed, area, 20_000_000, 2 * REST_S),
            profiled: chase(60_000_000),
            scavenger: bed.scavenger(name, of_chase),
            copies: 1,
            // Scavengers prepare themselves while the primary rests.
            idle: IdlePolicy::Harvest,
            bound_ns: Some(BOUND_NS),
            max_overhead: OVERHEAD,
            without: &[],
        }
    });
    let found = alternate(bed.args.repeat, &cases, |asked| {
        let document = bed.harvested(asked)?.document;
        let distances = document.context("it was a harvest")?.distance_ns;
        let within = distances.within_bound;
        let within = within.with_context(|| format!("{} turns were timed", distances.timed))?;
        Ok((within, distances))
    });
    let machine: MachineProfile = read(&bed.machine.0)?;
    let calibration = machine.calibration.known();
    let loads = calibration.and_then(|it| loads_beyond(it, BOUND_NS));
    if let Some(share) = loads {
        say(format_args!(
            "{:.1} % of single loads from memory take this machine longer than {BOUND_NS} ns",
            share * 100.0
        ));
    }
    say("scavenger    turns timed     p50     p90     p99      max  within 200 ns  >= 99 %");
    let mut summary = Vec::new();
    for ((name, of_chase), runs) in scavengers.into_iter().zip(found) {
        let name = match name {
            "schase" => format!("{name} {of_chase}"),
            _ => name.to_owned(),
        };
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                say(&name);
                summary.push(json!({ "scavenger": name, "failed": failed(&error) }));
                continue;
            }
        };
        let within = middle(&runs, |(within, _)| *within)?;
        let timed: u64 = runs.iter().map(|(_, distances)| distances.timed).sum();
        let [p50, p90, p99, max] = [
            middle(&runs, |(_, one)| one.p50.unwrap_or(f64::NAN))?,
            middle(&runs, |(_, one)| one.p90.unwrap_or(f64::NAN))?,
            middle(&runs, |(_, one)| one.p99.unwrap_or(f64::NAN))?,
            middle(&runs, |(_, one)| one.max.unwrap_or(f64::NAN))?,
        ];
        say(format_args!(
            "{name:<13}{timed:>11}{p50:>8.0}{p90:>8.0}{p99:>8.0}{max:>9.0}{:>13.2} %  {}",
            within * 100.0,
            verdict(within >= WITHIN_TARGET),
        ));
        summary.push(json!({
            "scavenger": name, "bound_ns": BOUND_NS, "within": within, "timed": timed,
            "p50": p50, "p90": p90, "p99": p99, "max": max, "target": WITHIN_TARGET,
            "loads_beyond": loads,
        }));
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shares_of_the_full_one_and_never_none() {
        assert_eq!(rate(100_000.0, 30), 30_000);
        assert_eq!(rate(10.0, 1), 1);
    }
}
