//! Turns a session's report into the document of `rewrite check`.

use std::collections::BTreeMap;

use membound_launch::{ModuleReport, Patched, Report, Samples, SiteReport};
use membound_rewrite::flow::Direction;
use membound_rewrite::image::FunctionBounds;
use membound_rewrite::patch::Refusal;
use membound_types::{
    AccessKind, CheckedModule, CheckedProcess, CheckedRecords, CheckedSamples, CheckedSite, Kind,
    Outcome, PatchBody, PatchCounts, RewriteCheck, SCHEMA_VERSION,
};

use super::args::CheckArgs;
use super::names::{self, FunctionPattern};
use super::settings;
use crate::job::End;

/// The document of a run.
pub(super) fn document(
    args: &CheckArgs,
    report: &Report,
    end: End,
    elapsed_s: f64,
) -> RewriteCheck {
    let wanted: Vec<FunctionPattern> = args
        .function
        .iter()
        .map(|text| FunctionPattern::parse(text))
        .collect();
    let mut modules: Vec<CheckedModule> = report
        .modules
        .iter()
        .map(|module| checked(module, &wanted, args.options.body))
        .collect();
    modules.sort_by(|one, other| {
        let key = |module: &CheckedModule| {
            let executions = module.executions.known().copied().unwrap_or(0);
            (executions, module.counts.patched, module.path.clone())
        };
        key(other).cmp(&key(one))
    });
    let (exit_code, signal) = match end {
        End::Exited(code) => (Some(code), None),
        End::Killed(signal) => (None, Some(signal)),
    };
    RewriteCheck {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RewriteCheck,
        incomplete: !report.missed.is_empty(),
        missed: report.missed.clone(),
        membound_version: crate::version::BUILD.to_owned(),
        command: args
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        body: args.options.body,
        exact: args.options.exact,
        exit_code,
        signal,
        patched: report.unpatched.is_none(),
        reason: report.unpatched.clone(),
        records: records(args, report),
        modules,
        processes: report
            .programs
            .iter()
            .map(|program| CheckedProcess {
                pid: program.pid,
                path: program.path.display().to_string(),
                patched: program.unpatched.is_none(),
                reason: program.unpatched.clone(),
            })
            .collect(),
        elapsed_s,
    }
}

fn checked(module: &ModuleReport, wanted: &[FunctionPattern], body: PatchBody) -> CheckedModule {
    let path = module.path.display().to_string();
    let not_counted = || Outcome::missing(format!("--body {body} does not count"));
    match &module.outcome {
        Err(reason) => CheckedModule {
            path,
            counts: PatchCounts::default(),
            executions: Outcome::missing("it was not patched"),
            samples: None,
            lines: None,
            unpatched: Some(reason.clone()),
            placements: 0,
            sites: Vec::new(),
        },
        Ok(patched) => CheckedModule {
            path,
            counts: counts(&patched.sites, &patched.lost),
            executions: if patched.counted {
                let all = patched.sites.iter().filter_map(|site| site.patch.ok());
                Outcome::Known(all.fold(0, u64::saturating_add))
            } else {
                not_counted()
            },
            samples: patched.samples.as_ref().map(samples),
            lines: patched.samples.as_ref().map(|_| lines(patched)),
            unpatched: None,
            placements: patched.placements,
            sites: sites(patched, wanted, &not_counted),
        },
    }
}

fn records(args: &CheckArgs, report: &Report) -> Option<CheckedRecords> {
    let totals = report.records?;
    let recording = settings::recording(args.options.body)?;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Some(CheckedRecords {
        period: recording.bursts.is_none().then_some(settings::PERIOD),
        burst_ms: recording.bursts.map(|bursts| ms(bursts.length)),
        burst_every_ms: recording.bursts.map(|bursts| ms(bursts.every)),
        recorded: totals.recorded,
        lost: totals.lost,
        unattributed: totals.unattributed,
    })
}

fn samples(samples: &Samples) -> CheckedSamples {
    let ticks = |share| match samples.quantile(share) {
        Some(ticks) => Outcome::Known(ticks),
        None => Outcome::missing("no access was timed"),
    };
    CheckedSamples {
        timed: samples.timed,
        untimed: samples.untimed,
        stores: samples.stores,
        median_ticks: ticks(0.5),
        p90_ticks: ticks(0.9),
    }
}

fn lines(patched: &Patched) -> Outcome<u64> {
    match patched.lines {
        Some(lines) => Outcome::Known(lines),
        None => Outcome::missing("there were too many to distinguish"),
    }
}

fn counts(sites: &[SiteReport], lost: &BTreeMap<Refusal, u64>) -> PatchCounts {
    let mut counts = PatchCounts::default();
    for site in sites {
        add(
            &mut counts,
            site.direction,
            site.patch.err().map(|it| it.to_string()),
        );
    }
    for (reason, lost) in lost {
        let lost = (*lost).min(counts.patched);
        counts.patched -= lost;
        *counts.refused.entry(reason.to_string()).or_default() += lost;
    }
    counts
}

/// Counts one access.
pub(super) fn add(counts: &mut PatchCounts, direction: Direction, refused: Option<String>) {
    counts.accesses += 1;
    counts.loads += u64::from(direction.loads());
    counts.stores += u64::from(direction.stores());
    match refused {
        None => counts.patched += 1,
        Some(reason) => *counts.refused.entry(reason).or_default() += 1,
    }
}

/// Adds what `other` counted.
pub(super) fn join(counts: &mut PatchCounts, other: &PatchCounts) {
    counts.accesses += other.accesses;
    counts.loads += other.loads;
    counts.stores += other.stores;
    counts.patched += other.patched;
    for (reason, count) in &other.refused {
        *counts.refused.entry(reason.clone()).or_default() += count;
    }
}

/// The name of a direction in documents.
pub(super) const fn kind(direction: Direction) -> AccessKind {
    match direction {
        Direction::Load => AccessKind::Load,
        Direction::Store => AccessKind::Store,
        Direction::Both => AccessKind::Both,
    }
}

fn sites(
    patched: &Patched,
    wanted: &[FunctionPattern],
    not_counted: &dyn Fn() -> Outcome<u64>,
) -> Vec<CheckedSite> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let functions = patched.functions();
    let meant: Vec<&FunctionBounds> = functions
        .iter()
        .filter(|function| {
            let name = function.name.as_deref();
            wanted
                .iter()
                .any(|wanted| wanted.means(&function.range, name))
        })
        .collect();
    let shown = |site: &SiteReport| {
        let function = meant
            .iter()
            .find(|function| function.range.contains(&site.address))?;
        let executions = match site.patch {
            Ok(executions) if patched.counted => Outcome::Known(executions),
            Ok(_) => not_counted(),
            Err(reason) => Outcome::missing(reason.to_string()),
        };
        Some(CheckedSite {
            address: site.address,
            function: names::display_name(function),
            access: kind(site.direction),
            executions,
            samples: site.samples.as_ref().map(samples),
        })
    };
    patched.sites.iter().filter_map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_access_is_patched_or_refused_once() {
        let site = |direction, patch| SiteReport {
            address: 0,
            direction,
            patch,
            samples: None,
        };
        let sites = [
            site(Direction::Load, Ok(3)),
            site(Direction::Store, Ok(4)),
            site(Direction::Both, Err(Refusal::NoRoom)),
        ];
        let counts = counts(&sites, &BTreeMap::from([(Refusal::NoIsland, 1)]));
        assert_eq!((counts.accesses, counts.loads, counts.stores), (3, 2, 2));
        assert_eq!(counts.patched, 1);
        assert_eq!(
            counts.refused.values().sum::<u64>() + counts.patched,
            counts.accesses
        );
    }
}
