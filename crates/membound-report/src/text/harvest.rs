//! Harvest plan on a terminal: where a program yields.

use std::collections::BTreeMap;

use membound_types::{
    GapReason, HarvestFunction, HarvestPlan, HarvestRole, HarvestSite, YieldKind, YieldReason,
};

use super::Style;
use super::out::Out;
use super::table::Table;
use crate::{facts, units};

/// Most rows of the table of yields.
const MAX_CHOSEN_ROWS: usize = 20;

/// Most rows of the tables of refused loads and of functions.
const MAX_REFUSED_ROWS: usize = 10;

/// Formats a plan: expected gain, yields, and reasons for refused loads.
#[must_use]
pub fn harvest_plan(plan: &HarvestPlan, style: Style) -> String {
    let mut out = Out::new(style);
    let command = if plan.command.is_empty() {
        "a process that was attached to".to_owned()
    } else {
        plan.command.join(" ")
    };
    out.heading(
        &format!("membound: harvest plan, as {}", plan.role),
        &command,
    );
    totals(&mut out, plan);
    for missing in &plan.missing {
        let remedy = missing.why.remedy.as_ref();
        let remedy = remedy.map_or_else(String::new, |remedy| format!(" ({remedy})"));
        out.warning(&format!("{}{remedy}", missing.why.reason));
    }
    if plan.incomplete {
        out.warning("the run was cut short: what it does not hold is not planned for");
    }
    chosen(&mut out, plan);
    refused_sites(&mut out, plan);
    bounding(&mut out, plan);
    out.finish()
}

fn totals(out: &mut Out, plan: &HarvestPlan) {
    let totals = &plan.totals;
    let percent = units::percent;
    out.line(&format!(
        "{} of {} CPU time is stalled on memory; {} can be turned to other work.",
        percent(totals.stall_fraction),
        units::seconds(totals.cpu_s),
        percent(totals.gain_fraction.max(0.0)),
    ));
    let loads = units::plural_of(totals.considered, "access", "accesses");
    let undecided = match totals.undecided {
        0 => String::new(),
        some => format!(", {some} of them undecided (~)"),
    };
    out.line(&format!(
        "{} of {loads} considered{undecided}; hits behind yields cost {} of the time (at most {}).",
        units::plural(totals.primary_yields as usize, "yield"),
        percent(totals.hit_cost_fraction),
        percent(plan.options.max_overhead),
    ));
    if let Some(bound_ns) = plan.options.bound_ns {
        out.line(&format!(
            "A further {} keep the time between yields ({}) under {}, and cost {} of the time when \
             it runs alone.",
            units::plural(totals.scavenger_yields as usize, "yield"),
            plan.options.distance,
            units::ns(bound_ns),
            percent(totals.bound_cost_fraction),
        ));
    }
    if !plan.options.costs_measured {
        out.note(&format!(
            "a switch is taken to cost {}, which was not measured on this machine",
            units::ns(plan.options.switch_ns)
        ));
    }
}

/// Function and offset of a site.
fn place(site: &HarvestSite) -> String {
    facts::harvest_run::place(&site.symbol, &site.module, site.offset)
}

fn share(site: &HarvestSite) -> String {
    let likelihood = site.likelihood.map(|figure| units::percent(figure.value));
    likelihood.unwrap_or_else(|| "–".to_owned())
}

fn each(site: &HarvestSite) -> String {
    let stall = site.stall_ns.map(|figure| units::ns(figure.value));
    stall.unwrap_or_else(|| "–".to_owned())
}

fn executions(site: &HarvestSite) -> String {
    let ends = (site.executions_low, site.executions_high);
    site.executions.map_or_else(
        || "–".to_owned(),
        |count| units::count_in_interval(count, ends.0, ends.1),
    )
}

fn mark(site: &HarvestSite) -> &'static str {
    if site.undecided { "~" } else { "" }
}

fn loads(plan: &HarvestPlan) -> impl Iterator<Item = &HarvestSite> {
    let sites = plan.sites.iter();
    sites.filter(|site| site.kind == YieldKind::Primary)
}

fn chosen(out: &mut Out, plan: &HarvestPlan) {
    let sites: Vec<&HarvestSite> = loads(plan).filter(|site| site.chosen).collect();
    if sites.is_empty() {
        out.blank();
        out.line("No load yields.");
        return;
    }
    out.heading("loads that yield", "");
    let mut table = Table::new()
        .words("load in")
        .figures("runs")
        .figures("misses")
        .figures("stall each")
        .figures("stalled")
        .figures("gain");
    for site in sites.iter().take(MAX_CHOSEN_ROWS) {
        table.row([
            format!("{}{}", mark(site), place(site)),
            executions(site),
            share(site),
            each(site),
            units::percent(site.stall_fraction),
            units::percent(site.predicted_gain),
        ]);
    }
    out.table(&table);
    more(out, sites.len(), MAX_CHOSEN_ROWS, "load");
}

fn refused_sites(out: &mut Out, plan: &HarvestPlan) {
    let mut sites: Vec<&HarvestSite> = loads(plan).filter(|site| !site.chosen).collect();
    if sites.is_empty() {
        return;
    }
    sites.sort_by(|a, b| b.stall_fraction.total_cmp(&a.stall_fraction));
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for site in &sites {
        *reasons.entry(site.reason.name()).or_default() += 1;
    }
    let reasons: Vec<String> = reasons
        .into_iter()
        .map(|(reason, count)| format!("{reason} {}", units::count(count)))
        .collect();
    out.heading("accesses that do not", &reasons.join(", "));
    let mut table = Table::new()
        .words("access in")
        .figures("misses")
        .figures("stall each")
        .figures("stalled")
        .words("why");
    for site in sites.iter().take(MAX_REFUSED_ROWS) {
        let why = match &site.detail {
            Some(detail) => format!("{}: {detail}", why(site.reason)),
            None => why(site.reason).to_owned(),
        };
        table.row([
            format!("{}{}", mark(site), place(site)),
            share(site),
            each(site),
            units::percent(site.stall_fraction),
            why,
        ]);
    }
    out.table(&table);
    more(out, sites.len(), MAX_REFUSED_ROWS, "access");
}

/// Reason for a decision, in words.
const fn why(reason: YieldReason) -> &'static str {
    match reason {
        YieldReason::Pays => "pays",
        YieldReason::Bounds => "bounds the distance",
        YieldReason::NotALoad => "no load",
        YieldReason::NoFile => "no file",
        YieldReason::CannotPatch => "no patch",
        YieldReason::LittleStall => "little stall",
        YieldReason::NotCounted => "not counted",
        YieldReason::NotTimed => "not timed",
        YieldReason::Hits => "mostly hits",
        YieldReason::ShortStall => "stall too short",
        YieldReason::Overhead => "over the limit",
    }
}

fn bounding(out: &mut Out, plan: &HarvestPlan) {
    let Some(bound_ns) = plan.options.bound_ns else {
        return;
    };
    if plan.role != HarvestRole::Scavenger {
        return;
    }
    let mut sites: Vec<&HarvestSite> = plan
        .sites
        .iter()
        .filter(|site| site.kind == YieldKind::Scavenger)
        .collect();
    if !sites.is_empty() {
        sites.sort_by(|a, b| {
            let yields =
                |it: &HarvestSite| it.executions.unwrap_or_default() / f64::from(it.every.max(1));
            yields(b).total_cmp(&yields(a))
        });
        out.heading("yields between", "");
        let mut table = Table::new()
            .words("before the instruction in")
            .figures("runs")
            .figures("each");
        for site in sites.iter().take(MAX_REFUSED_ROWS) {
            let every = match site.every {
                0 | 1 => "time".to_owned(),
                every => format!("{} times", units::count(u64::from(every))),
            };
            table.row([place(site), executions(site), every]);
        }
        out.table(&table);
        more(out, sites.len(), MAX_REFUSED_ROWS, "yield");
    }
    let over: Vec<&HarvestFunction> = plan
        .functions
        .iter()
        .filter(|function| function.distance_ns.is_none_or(|ns| ns > bound_ns * 1.001))
        .collect();
    let kept = plan.functions.len() - over.len();
    out.heading(
        "distance by function",
        &format!("{kept} of {} under the bound", plan.functions.len()),
    );
    if !over.is_empty() {
        let mut table = Table::new()
            .words("function")
            .figures("time")
            .figures("distance")
            .words("because of");
        for function in over.iter().take(MAX_REFUSED_ROWS) {
            table.row([
                function.symbol.clone(),
                units::percent(function.time_fraction),
                function
                    .distance_ns
                    .map_or_else(|| "no bound".to_owned(), units::ns),
                gaps(function),
            ]);
        }
        out.table(&table);
        more(out, over.len(), MAX_REFUSED_ROWS, "function");
    }
    let unknown = plan
        .functions
        .iter()
        .flat_map(|function| &function.gaps)
        .filter(|gap| gap.why == GapReason::UnknownCall)
        .count();
    if unknown > 0 {
        out.note(&format!(
            "{} of code that was not looked at: time in there is not bounded",
            units::plural(unknown, "call")
        ));
    }
}

fn gaps(function: &HarvestFunction) -> String {
    let worst = function
        .gaps
        .iter()
        .find(|gap| gap.why != GapReason::UnknownCall);
    worst.map_or_else(
        || "what it calls, or is called by".to_owned(),
        |gap| format!("{} at {:#x}", gap.why, gap.offset),
    )
}

/// Notes how many rows were left out, if any.
pub(super) fn more(out: &mut Out, all: usize, shown: usize, noun: &str) {
    let more = all.saturating_sub(shown);
    if more > 0 {
        out.note(&format!("and {more} more (`--json` has every {noun})"));
    }
}

#[cfg(test)]
mod tests {
    use membound_types::{
        Basis, DistanceRule, Figure, HarvestGap, HarvestOptions, HarvestTotals, Kind, Missing,
        NotMeasured, SCHEMA_VERSION,
    };

    use super::*;

    fn site(symbol: &str, offset: u64, reason: YieldReason) -> HarvestSite {
        let figure = |value: f64| {
            Some(Figure {
                value,
                low: 0.9 * value,
                high: 1.1 * value,
                basis: Basis::Estimated,
            })
        };
        HarvestSite {
            module: "/usr/bin/store".to_owned(),
            offset,
            symbol: symbol.to_owned(),
            text: "mov rdi, [rdi+8]".to_owned(),
            kind: YieldKind::Primary,
            every: 1,
            chosen: reason == YieldReason::Pays,
            reason,
            detail: None,
            undecided: reason == YieldReason::Hits,
            executions: Some(10.24e6),
            executions_low: None,
            executions_high: None,
            lasts_ns: None,
            stall_fraction: 0.31,
            stall_ns: figure(118.0),
            likelihood: figure(0.83),
            predicted_gain_ns: 5.4e8,
            predicted_gain: 0.27,
            hit_cost: 0.005,
        }
    }

    fn plan() -> HarvestPlan {
        let mut bound = site("Store::scan<long, long>", 0x2010, YieldReason::Bounds);
        bound.kind = YieldKind::Scavenger;
        bound.chosen = true;
        bound.every = 48;
        HarvestPlan {
            schema_version: SCHEMA_VERSION,
            kind: Kind::HarvestPlan,
            incomplete: true,
            membound_version: String::new(),
            command: vec!["./store".to_owned(), "--nodes=1000000".to_owned()],
            date: String::new(),
            host: "host".to_owned(),
            cpu: String::new(),
            role: HarvestRole::Scavenger,
            options: HarvestOptions {
                max_overhead: 0.05,
                min_stall_share: 0.01,
                min_likelihood: 0.3,
                bound_ns: Some(200.0),
                distance: DistanceRule::Max,
                switch_ns: 6.0,
                counter_ns: 1.0,
                costs_measured: false,
            },
            totals: HarvestTotals {
                cpu_s: 2.0,
                stall_fraction: 0.7,
                covered_fraction: 0.6,
                gain_fraction: 0.54,
                hit_cost_fraction: 0.01,
                bound_cost_fraction: 0.03,
                primary_yields: 1,
                scavenger_yields: 1,
                considered: 3,
                undecided: 1,
            },
            modules: Vec::new(),
            sites: vec![
                site(
                    "std::map<std::string, std::pair<long, long>>::find(std::string const&)",
                    0x1251,
                    YieldReason::Pays,
                ),
                site("find", 0x1260, YieldReason::Hits),
                site("", 0x1270, YieldReason::CannotPatch),
                bound,
            ],
            functions: vec![HarvestFunction {
                module: "/usr/bin/store".to_owned(),
                offset: 0x2000,
                symbol: "spin".to_owned(),
                time_fraction: 0.01,
                distance_ns: None,
                profiled: true,
                gaps: vec![
                    HarvestGap {
                        offset: 0x2004,
                        why: GapReason::Loop,
                    },
                    HarvestGap {
                        offset: 0x2009,
                        why: GapReason::UnknownCall,
                    },
                ],
            }],
            missing: vec![Missing {
                table: "blocks".to_owned(),
                why: NotMeasured {
                    reason: "no basic block was counted".to_owned(),
                    remedy: Some("profile a longer run".to_owned()),
                },
            }],
        }
    }

    #[test]
    fn totals_stand_first_and_no_line_is_wider_than_the_terminal() {
        for width in [60, 80, 120] {
            let style = Style {
                color: false,
                width,
            };
            let text = harvest_plan(&plan(), style);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{line}");
            }
        }
        let text = harvest_plan(&plan(), Style::default());
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words} in {text}"))
        };
        assert!(at("can be turned to other work") < at("loads that yield"));
        assert!(at("! no basic block was counted (profile a longer run)") < at("loads that yield"));
        assert!(at("loads that yield") < at("accesses that do not"));
        assert!(at("~find 0x1260") < at("store 0x1270"));
        at("48 times");
        at("loop at 0x2004");
        at("1 call of code that was not looked at");
    }

    #[test]
    fn a_plan_without_yields_is_reported() {
        let mut plan = plan();
        plan.sites.clear();
        plan.functions.clear();
        plan.options.bound_ns = None;
        assert!(harvest_plan(&plan, Style::default()).contains("No load yields."));
    }
}
