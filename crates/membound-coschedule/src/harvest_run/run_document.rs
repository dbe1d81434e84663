//! Builds the document of a harvest from everything that was observed.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use membound_control::{Slowdown, durations};
use membound_launch::{Harvested, RequestsBy, ScavengerProcessState, ScavengerStatus};
use membound_types::{
    HarvestBalance, HarvestPlan, HarvestRole, HarvestRun, HarvestRunOptions, HarvestedPrimary,
    HarvestedSite, HarvestedStall, Kind, MachineInfo, Missing, NotMeasured, PrimaryLatency,
    SCHEMA_VERSION, Scavenger, ScavengerMoves, ScavengerState, SiteState, SlowdownGuard,
    YieldDistances,
};

use super::choices::PlannedYield;
use super::follower::Observed;
use super::request_report::RequestReport;
use crate::named_programs::CopyRequest;

/// Everything that is known at the end of a run.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) machine: &'a MachineInfo,
    pub(super) wall_s: f64,
    /// Time until the command itself ended, in seconds.
    pub(super) primary_wall_s: Option<f64>,
    /// CPU time of the command's process, in seconds.
    pub(super) process_cpu_s: f64,
    pub(super) options: HarvestRunOptions,
    /// How requests are recognised.
    pub(super) requests: Option<&'a RequestsBy>,
    pub(super) command: Vec<String>,
    pub(super) end: ExitStatus,
    pub(super) scavengers: Vec<CopyRequest>,
    /// Scavengers that ran as ordinary processes.
    pub(super) ordinary: Vec<Scavenger>,
    pub(super) observed: &'a Observed,
    pub(super) plans: &'a [HarvestPlan],
    /// Sites without a yield: role of the program, path, address, reason.
    pub(super) left_out: Vec<(HarvestRole, String, u64, String)>,
    /// Planned yields of the command.
    pub(super) yields: &'a [PlannedYield],
    pub(super) missed: Vec<String>,
}

impl<'a> Facts<'a> {
    /// The facts of a run in which nothing was observed.
    pub(super) fn nothing(
        machine: &'a MachineInfo,
        observed: &'a Observed,
        end: ExitStatus,
    ) -> Self {
        Self {
            machine,
            wall_s: 0.0,
            primary_wall_s: None,
            process_cpu_s: 0.0,
            options: HarvestRunOptions::default(),
            requests: None,
            command: Vec::new(),
            end,
            scavengers: Vec::new(),
            ordinary: Vec::new(),
            observed,
            plans: &[],
            left_out: Vec::new(),
            yields: &[],
            missed: Vec::new(),
        }
    }
}

/// Builds the document.
pub(super) fn document(facts: Facts<'_>) -> HarvestRun {
    let harvested = &facts.observed.harvested;
    let times = HarvestTimes::of(&facts);
    let mut missing = times.missing(harvested.refused.as_deref());
    let requests = RequestReport::of(facts.requests, harvested.requested.as_ref());
    missing.extend(requests.missing);
    let primary = primary(&facts, &times, requests.latency);
    let scavengers = scavengers(&facts, &times);
    let sites = sites(&facts);
    let mut notes = facts.missed;
    notes.extend(facts.plans.iter().filter_map(without_yields));
    notes.extend(harvested.missed.iter().cloned());
    notes.extend(requests.notes);
    HarvestRun {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Harvest,
        incomplete: false,
        membound_version: facts.machine.membound_version.clone(),
        date: facts.machine.date.clone(),
        host: facts.machine.host.clone(),
        cpu: facts.machine.cpu.model_name.clone(),
        wall_s: facts.wall_s,
        primary,
        scavengers,
        moves: ScavengerMoves {
            steals: harvested.steals,
            reclaimed: harvested.reclaimed,
            calls: harvested.calls,
            interrupted: harvested.interrupted,
            overdue: harvested.overdue,
        },
        stall: times.stall,
        distance_ns: distances(harvested, facts.options.bound_ns),
        options: facts.options,
        guard: facts.observed.guard.map(|guard| SlowdownGuard {
            yields_out: sites.iter().filter(|it| it.state == SiteState::Out).count() as u64,
            ..guard
        }),
        sites,
        balance: facts.observed.balance.map(|found| HarvestBalance {
            trials: found.trials,
            worth: found.speedup,
            together_s: found.together.as_secs_f64(),
            apart_s: found.apart.as_secs_f64(),
        }),
        slots: facts.observed.slots.clone(),
        missing,
        notes,
    }
}

/// Division of the run's CPU time between the command and its scavengers, in seconds.
#[derive(Clone, Copy, Debug)]
struct HarvestTimes {
    /// Time of scavengers in time slices; `None` if no slice was timed.
    slices_s: Option<f64>,
    waits_s: f64,
    slowdown: Option<Slowdown>,
    primary_cpu_s: f64,
    stall: HarvestedStall,
}

impl HarvestTimes {
    fn of(facts: &Facts<'_>) -> Self {
        let harvested = &facts.observed.harvested;
        let slices_s = slices_s(harvested);
        let slowdown = facts.observed.spans.slowdown();
        let own_threads_s: f64 = facts.observed.own_thread_s.iter().sum();
        let waits_s = harvested.waits.cpu_ns as f64 * 1e-9;
        let threads_s = (facts.process_cpu_s - own_threads_s - waits_s).max(0.0);
        // Harvested time is the scavengers' time in slices, less the time that the command lost by them.
        let lost_s = slowdown.map(|slowdown| {
            let with_s = harvested.with.cpu_ns as f64 * 1e-9;
            (with_s - with_s / (1.0 + slowdown.share)).max(0.0)
        });
        let harvested_s = slices_s
            .zip(lost_s)
            .map(|(slices_s, lost_s)| (slices_s - lost_s).max(0.0));
        let primary_cpu_s = (threads_s - harvested_s.unwrap_or(0.0)).max(0.0);
        let plan = facts
            .plans
            .iter()
            .find(|plan| plan.role == HarvestRole::Primary);
        let before_s = plan.map(|plan| plan.totals.stall_fraction * primary_cpu_s.max(threads_s));
        let left_s = before_s
            .zip(harvested_s)
            .map(|(before, harvested)| (before - harvested).max(0.0));
        Self {
            slices_s,
            waits_s,
            slowdown,
            primary_cpu_s,
            stall: HarvestedStall {
                before_s,
                harvested_s,
                left_s,
            },
        }
    }

    /// Fields without a value, with reasons. `refused` is why the command has no run queues, if it has none.
    fn missing(&self, refused: Option<&str>) -> Vec<Missing> {
        let mut missing = Vec::new();
        let mut lacks = |field: &str, reason: &str| {
            missing.push(Missing {
                table: field.to_owned(),
                why: NotMeasured {
                    reason: reason.to_owned(),
                    remedy: None,
                },
            });
        };
        if self.slices_s.is_none() {
            let no_slice =
                "no time slice was timed: the command never yielded, or no scavenger was there";
            lacks("stall.harvested_s", refused.unwrap_or(no_slice));
            lacks("distance_ns", "no time slice was timed");
        }
        match self.slowdown {
            None => lacks(
                "primary.slowdown",
                "there were too few yields with and without scavengers",
            ),
            Some(Slowdown { interval: None, .. }) => lacks(
                "primary.slowdown_low",
                "the run was too short to estimate how much the slowdown varies",
            ),
            Some(_) => {}
        }
        if self.slices_s.is_some() && self.stall.harvested_s.is_none() {
            lacks(
                "stall.harvested_s",
                "it needs the slowdown of the command, which is not known",
            );
        }
        if self.stall.before_s.is_none() {
            lacks("stall.before_s", "there is no plan of the command");
        }
        if self.stall.left_s.is_none() {
            lacks(
                "stall.left_s",
                "it is the stall before minus the harvested stall, and one of them is not known",
            );
        }
        missing
    }
}

fn primary(
    facts: &Facts<'_>,
    times: &HarvestTimes,
    latency: Option<PrimaryLatency>,
) -> HarvestedPrimary {
    let interval = times.slowdown.and_then(|slowdown| slowdown.interval);
    HarvestedPrimary {
        command: facts.command.clone(),
        exit_code: facts.end.code(),
        signal: facts.end.signal(),
        wall_s: facts.primary_wall_s,
        cpu_s: times.primary_cpu_s,
        threads: facts.observed.harvested.threads,
        yields: facts.observed.harvested.with.count,
        first_turn_s: facts.observed.first_turn.map(|after| after.as_secs_f64()),
        slowdown: times.slowdown.map(|slowdown| slowdown.share),
        slowdown_low: interval.map(|(low, _)| low),
        slowdown_high: interval.map(|(_, high)| high),
        latency,
    }
}

/// All scavengers: first those with time slices, then those that ran as ordinary processes.
fn scavengers(facts: &Facts<'_>, times: &HarvestTimes) -> Vec<Scavenger> {
    let observed = facts.observed;
    let statuses = &observed.harvested.scavengers;
    let away_ns: u64 = statuses.iter().map(|status| status.away_ns).sum();
    let requested = facts.scavengers.iter().zip(statuses).enumerate();
    requested
        .map(|(index, (copy_request, status))| {
            // Time away is counted when a scavenger comes home: if none ever did, shares are equal.
            let share = if away_ns == 0 {
                1.0 / facts.scavengers.len().max(1) as f64
            } else {
                status.away_ns as f64 / away_ns as f64
            };
            let had = Had {
                in_stalls_s: times.slices_s.map(|slices_s| slices_s * share),
                in_waits_s: times.waits_s * share,
                own_thread_s: observed.own_thread_s.get(index).copied().unwrap_or(0.0),
            };
            scavenger(copy_request, status, &had)
        })
        .chain(facts.ordinary.iter().cloned())
        .collect()
}

/// Note for a plan of the command in which no load yields.
fn without_yields(plan: &HarvestPlan) -> Option<String> {
    if plan.role != HarvestRole::Primary || plan.sites.iter().any(|site| site.chosen) {
        return None;
    }
    let mut message = "no load of the command yields according to its plan".to_owned();
    for missing in &plan.missing {
        message.push_str("; ");
        message.push_str(&missing.why.reason);
    }
    Some(message)
}

/// Time of scavengers in slices, in seconds: the mean of the timed slices, skipped ones included as 0, times
/// the number of all. Where slices are short, the processor overlaps several of them, except where one is
/// timed, so the result is capped by the CPU time of the threads in which they lay.
fn slices_s(harvested: &Harvested) -> Option<f64> {
    (harvested.timed > 0).then(|| {
        let looked_at = harvested.timed + harvested.skipped;
        let each_ns = harvested.timed_ns as f64 / looked_at as f64;
        let all_ns = each_ns * harvested.with.count as f64;
        all_ns.min(harvested.with.cpu_ns as f64) * 1e-9
    })
}

/// CPU time of a scavenger, in seconds.
#[derive(Clone, Copy, Debug)]
struct Had {
    in_stalls_s: Option<f64>,
    in_waits_s: f64,
    own_thread_s: f64,
}

fn scavenger(copy_request: &CopyRequest, status: &ScavengerStatus, had: &Had) -> Scavenger {
    let code = i32::try_from(status.code).ok();
    let (state, exit_code, signal, reason) = match status.state {
        Some(ScavengerProcessState::Exited) => (ScavengerState::Finished, code, None, None),
        Some(ScavengerProcessState::Killed) => (
            ScavengerState::Crashed,
            None,
            code,
            Some(format!("it died of signal {}", status.code)),
        ),
        Some(ScavengerProcessState::Failed) => {
            let error = std::io::Error::from_raw_os_error(code.unwrap_or(0));
            (ScavengerState::Refused, None, None, Some(refusal(&error)))
        }
        Some(ScavengerProcessState::Starting | ScavengerProcessState::Runs) => {
            (ScavengerState::Unfinished, None, None, None)
        }
        None => (
            ScavengerState::Refused,
            None,
            None,
            Some("the command has no room for it".to_owned()),
        ),
    };
    let cpu_s = had.in_stalls_s.unwrap_or(0.0) + had.in_waits_s + had.own_thread_s;
    Scavenger {
        command: copy_request.words.clone(),
        copy: copy_request.copy,
        exit_code,
        signal,
        state,
        reason,
        cpu_s: (state != ScavengerState::Refused).then_some(cpu_s),
        in_stalls_s: had.in_stalls_s.filter(|_| state != ScavengerState::Refused),
        in_waits_s: had.in_waits_s,
        own_thread_s: had.own_thread_s,
        calls: status.calls,
        turns: status.parks,
        output: copy_request.output.clone(),
    }
}

/// Why a program could not become a scavenger, from the error that the agent reported.
fn refusal(error: &std::io::Error) -> String {
    const ENOEXEC: i32 = 8;
    const EEXIST: i32 = 17;
    match error.raw_os_error() {
        Some(ENOEXEC) => "it is not an x86-64 ELF executable".to_owned(),
        Some(EEXIST) => "it is linked for fixed addresses that the command uses itself".to_owned(),
        _ => error.to_string(),
    }
}

/// The distribution of times from a yield of the command until the command runs again.
fn distances(harvested: &Harvested, bound: Option<f64>) -> YieldDistances {
    let total = durations::count(&harvested.times);
    let quantile = |share| durations::quantile(&harvested.times, share);
    let within = |bound: f64| durations::share_within(&harvested.times, bound) / total as f64;
    YieldDistances {
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        max: (total > 0).then_some(harvested.longest_ns as f64),
        bound,
        within_bound: bound.filter(|_| total > 0).map(within),
        timed: harvested.timed,
        skipped: harvested.skipped,
        histogram: durations::bins(&harvested.times),
    }
}

/// Reason in the report: a yield that is removed at the end.
const REMOVED: &str =
    "the command was slower than allowed, and this yield gains less than those that were kept";

/// The final state of every planned yield.
fn sites(facts: &Facts<'_>) -> Vec<HarvestedSite> {
    let withdrawn = &facts.observed.harvested.withdrawn;
    let out: Vec<&PlannedYield> = facts
        .yields
        .iter()
        .filter(|it| withdrawn.contains(&it.place))
        .collect();
    let mut sites: Vec<HarvestedSite> = facts
        .plans
        .iter()
        .flat_map(|plan| plan.sites.iter().map(move |site| (plan.role, site)))
        .filter(|(_, site)| site.chosen)
        .map(|(side, site)| {
            let left_out = facts.left_out.iter().find(|(role, path, address, _)| {
                *role == side && *path == site.module && *address == site.offset
            });
            let is_out = side == HarvestRole::Primary
                && out
                    .iter()
                    .any(|it| it.module == site.module && it.place.address == site.offset);
            let (state, reason) = match left_out {
                Some((_, _, _, reason)) => (SiteState::Refused, Some(reason.clone())),
                None if is_out => (SiteState::Out, Some(REMOVED.to_owned())),
                None => (SiteState::In, None),
            };
            HarvestedSite {
                side,
                module: site.module.clone(),
                offset: site.offset,
                symbol: site.symbol.clone(),
                kind: site.kind,
                state,
                reason,
                predicted_gain: (site.predicted_gain > 0.0).then_some(site.predicted_gain),
            }
        })
        .collect();
    sites.sort_by(|a, b| {
        let gain = |site: &HarvestedSite| site.predicted_gain.unwrap_or(0.0);
        gain(b).total_cmp(&gain(a))
    });
    sites
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_read_from_their_classes() {
        let harvested = Harvested {
            times: vec![(100, 110, 90), (200, 220, 10)],
            timed: 100,
            longest_ns: 219,
            ..Harvested::default()
        };
        let found = distances(&harvested, Some(210.0));
        assert_eq!(found.p90, Some(110.0));
        assert_eq!(found.max, Some(219.0));
        assert!((found.within_bound.unwrap() - 0.95).abs() < 1e-9);
        let none = distances(&Harvested::default(), Some(200.0));
        assert_eq!((none.p50, none.within_bound), (None, None));
    }

    #[test]
    fn slices_last_no_longer_than_their_threads() {
        let with = |cpu_ns| membound_launch::Turns {
            count: 1000,
            cpu_ns,
        };
        let of = |cpu_ns| {
            slices_s(&Harvested {
                timed: 4,
                // A skipped slice takes no time.
                skipped: 4,
                timed_ns: 800,
                with: with(cpu_ns),
                ..Harvested::default()
            })
        };
        assert_eq!(of(1_000_000), Some(1e-4));
        assert_eq!(of(30_000), Some(3e-5));
        assert_eq!(slices_s(&Harvested::default()), None);
    }

    #[test]
    fn a_plan_without_yields_is_reported() {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let path = path.display().to_string();
        let plan = |role| membound_harvest::by_hand(&path, &bytes, role, &[]).unwrap();
        let message = without_yields(&plan(HarvestRole::Primary)).unwrap();
        assert!(
            message.contains("no load of the command yields"),
            "{message}"
        );
        assert_eq!(without_yields(&plan(HarvestRole::Scavenger)), None);
    }
}
