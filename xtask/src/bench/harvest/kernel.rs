//! The kernel's way of giving spare time to another program, and the processor's (a second hardware
//! thread of the core), against a harvest of stalls and idle time: work done at equal request
//! latency.

use anyhow::Result;
use membound_types::IdlePolicy;
use serde_json::{Value, json};

use super::arithmetic::{Paired, middle, work_at_no_worse};
use super::bed::{Asked, Bed, OVERHEAD, alternate};
use super::failure::failed;
use super::kv::{asked, full_rate, rate, store};
use crate::run::say;

/// Utilisations in per cent.
const LOADS: [u32; 2] = [30, 70];
/// Bounds of the harvest: from few time slices with little work to many.
const BOUNDS_NS: [f64; 3] = [50.0, 100.0, 200.0];

/// What runs the scavenger.
#[derive(Clone, Copy, Debug)]
enum Scheduler {
    /// Nothing: the store runs alone.
    Alone,
    /// The kernel: a name, and the command that starts a program so.
    Kernel(&'static str, &'static [&'static str]),
    /// The other hardware thread of the core, which is this CPU.
    Smt(u32),
    /// membound, with a bound.
    Harvest(f64),
    /// membound, in waits and idle time alone: no yields at stalls.
    Waits,
}

const KERNEL: [Scheduler; 2] = [
    Scheduler::Kernel("nice 19", &["nice", "-n", "19"]),
    Scheduler::Kernel("SCHED_IDLE", &["chrt", "--idle", "0"]),
];

impl Scheduler {
    fn name(self) -> String {
        match self {
            Self::Alone => "alone".to_owned(),
            Self::Kernel(name, _) => name.to_owned(),
            Self::Smt(cpu) => format!("SMT, CPU {cpu}"),
            Self::Harvest(bound_ns) => format!("harvest {bound_ns:.0} ns"),
            Self::Waits => "harvest of waits".to_owned(),
        }
    }
}

/// 95th percentiles of service and sojourn time, and units of work per second.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Found {
    service_p95_ns: f64,
    sojourn_p95_ns: f64,
    units_per_s: f64,
}

pub(super) fn run(bed: &Bed<'_>) -> Result<Vec<Value>> {
    let full = full_rate(bed)?;
    let mut ways = vec![Scheduler::Alone];
    ways.extend(KERNEL);
    match bed.sibling {
        Some(cpu) => ways.push(Scheduler::Smt(cpu)),
        None => say(format_args!(
            "no SMT: the core of CPU {} has no second hardware thread",
            bed.args.cpu
        )),
    }
    ways.push(Scheduler::Waits);
    ways.extend(BOUNDS_NS.map(Scheduler::Harvest));
    let cases: Vec<(u32, Scheduler)> = LOADS
        .into_iter()
        .flat_map(|load| ways.iter().map(move |way| (load, *way)))
        .collect();
    let found = alternate(bed.args.repeat, &cases, |(load, way)| {
        one(bed, rate(full, *load), *way)
    });
    say("load  way               service p95  sojourn p95  units/s");
    let mut summary = Vec::new();
    let mut points = Vec::new();
    for ((load, way), runs) in cases.into_iter().zip(found) {
        let head = format!("{load:>3} %  {:<18}", way.name());
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                say(head.trim_end());
                let failed = failed(&error);
                summary.push(json!({ "load": load, "way": way.name(), "failed": failed }));
                continue;
            }
        };
        let found = Found {
            service_p95_ns: middle(&runs, |one| one.service_p95_ns)?,
            sojourn_p95_ns: middle(&runs, |one| one.sojourn_p95_ns)?,
            units_per_s: middle(&runs, |one| one.units_per_s)?,
        };
        say(format_args!(
            "{head}{:>8.1} us{:>10.1} us{:>9.0}",
            found.service_p95_ns / 1e3,
            found.sojourn_p95_ns / 1e3,
            found.units_per_s
        ));
        summary.push(json!({ "load": load, "way": way.name(), "found": found, "runs": runs }));
        points.push(Point {
            load,
            way,
            found,
            runs,
        });
    }
    summary.extend(compared(&points));
    Ok(summary)
}

/// Runs the store once.
fn one(bed: &Bed<'_>, rate: u64, way: Scheduler) -> Result<Found> {
    let primary = store(bed, LOADS[0], rate);
    let scan = bed.scavenger("scan", "");
    let (said, units_per_s) = match way {
        Scheduler::Alone => (bed.alone(&primary)?, 0.0),
        Scheduler::Kernel(_, how) => {
            let ran = bed.beside(&primary, &scan, how, bed.args.cpu)?;
            let units = ran.units_per_s()?;
            (ran.said, units)
        }
        Scheduler::Smt(cpu) => {
            let ran = bed.beside(&primary, &scan, &[], cpu)?;
            let units = ran.units_per_s()?;
            (ran.said, units)
        }
        Scheduler::Harvest(_) | Scheduler::Waits => {
            let (bound_ns, max_overhead) = match way {
                Scheduler::Harvest(bound_ns) => (bound_ns, OVERHEAD),
                _ => (BOUNDS_NS[0], "0%"),
            };
            let ran = bed.harvested(&Asked {
                idle: IdlePolicy::Harvest,
                max_overhead,
                ..asked(bed, primary, scan, bound_ns)
            })?;
            let units = ran.units_per_s()?;
            (ran.said, units)
        }
    };
    Ok(Found {
        service_p95_ns: said.get("service_p95_ns")?,
        sojourn_p95_ns: said.get("sojourn_p95_ns")?,
        units_per_s,
    })
}

/// Result of one method at one load.
struct Point {
    load: u32,
    way: Scheduler,
    /// The medians over all rounds.
    found: Found,
    /// The values of each round.
    runs: Vec<Found>,
}

impl Point {
    /// Change of the sojourn percentile relative to `other`, round by round; `None` with fewer than
    /// two.
    fn slower_than(&self, other: &Self) -> Option<Paired> {
        let pairs = other.runs.iter().zip(&self.runs);
        let pairs: Vec<(f64, f64)> = pairs
            .map(|(other, own)| (other.sojourn_p95_ns, own.sojourn_p95_ns))
            .collect();
        Paired::of(&pairs)
    }
}

/// Compares every harvest with each other method at its load, and the harvest's work with the
/// other's where requests do not take longer.
fn compared(points: &[Point]) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut told = Vec::new();
    say("load  against     way               times the work  sojourn p95  95 % interval");
    for other in points {
        if !matches!(other.way, Scheduler::Kernel(..) | Scheduler::Smt(_)) {
            continue;
        }
        let (load, name) = (other.load, other.way.name());
        let harvests: Vec<&Point> = points
            .iter()
            .filter(|it| {
                it.load == load && matches!(it.way, Scheduler::Harvest(_) | Scheduler::Waits)
            })
            .collect();
        let mut each = Vec::new();
        for harvest in &harvests {
            let times = harvest.found.units_per_s / other.found.units_per_s;
            let slower = harvest.slower_than(other);
            let way = harvest.way.name();
            let change = slower.map_or_else(String::new, |slower| {
                let [mean, low, high] =
                    [slower.mean, slower.low, slower.high].map(|share| share * 100.0);
                format!("{mean:>+11.0} %{low:>+7.0} … {high:>+.0} %")
            });
            let row = format!("{load:>3} %  {name:<10}  {way:<16}{times:>14.2} x{change}");
            say(row.trim_end());
            each.push(json!({ "way": way, "times_the_work": times, "sojourn_p95": slower }));
        }
        let at: Vec<(f64, f64)> = harvests
            .iter()
            .map(|it| (it.found.sojourn_p95_ns, it.found.units_per_s))
            .collect();
        let work = work_at_no_worse(&at, other.found.sojourn_p95_ns);
        let times = work.map(|work| work / other.found.units_per_s);
        let best = times.map_or_else(
            || "no harvest had a median as low".to_owned(),
            |times| format!("the harvest did {times:.2} times the work at no higher median"),
        );
        told.push(format!("{load:>3} %  against {name}: {best}"));
        rows.push(json!({
            "load": load, "against": name, "times_the_work": times, "each": each,
        }));
    }
    told.into_iter().for_each(say);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harvests_are_compared_at_their_own_load() {
        let point = |load, way, sojourn_p95_ns, units_per_s| {
            let found = Found {
                service_p95_ns: 1.0,
                sojourn_p95_ns,
                units_per_s,
            };
            // One round in three finds a machine twice as slow, in every case.
            let slow = Found {
                sojourn_p95_ns: 2.0 * sojourn_p95_ns,
                ..found
            };
            Point {
                load,
                way,
                found,
                runs: vec![found, slow, found],
            }
        };
        let rows = compared(&[
            point(30, KERNEL[0], 100.0, 10.0),
            point(30, Scheduler::Harvest(100.0), 90.0, 25.0),
            point(30, Scheduler::Harvest(200.0), 110.0, 50.0),
            point(70, KERNEL[1], 100.0, 10.0),
            point(70, Scheduler::Smt(1), 130.0, 50.0),
            point(70, Scheduler::Harvest(100.0), 120.0, 99.0),
        ]);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0]["times_the_work"], 2.5);
        assert_eq!(rows[1]["times_the_work"], Value::Null);
        assert_eq!(rows[2]["times_the_work"], 1.98);
        let each = |row: usize| rows[row]["each"].as_array().map_or(0, Vec::len);
        assert_eq!([each(0), each(1), each(2)], [2, 1, 1]);
        let slower = &rows[1]["each"][0];
        assert_eq!(slower["times_the_work"], 9.9);
        let [low, high] =
            ["low", "high"].map(|end| slower["sojourn_p95"][end].as_f64().unwrap_or(f64::NAN));
        assert!((low - 0.2).abs() < 1e-9 && (high - 0.2).abs() < 1e-9);
    }
}
