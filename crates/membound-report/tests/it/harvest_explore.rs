//! Explorations of a harvest as text and page, from a synthetic document.

mod crossed;

use membound_report::page;
use membound_report::text::{self, Style};
use membound_types::{
    CpuId, ExploreAlone, ExploreFigure, ExploreOptions, ExploreRow, ExploreSweep, ExploredSweep,
    HarvestExplore, HarvestPart, IdlePolicy, Kind, NotMeasured, SCHEMA_VERSION,
};

use crate::dom::Page;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// A median with an interval that extends by the share `part` of it to each side.
fn around(value: f64, part: f64) -> Option<ExploreFigure> {
    let wide = value.abs() * part;
    Some(ExploreFigure {
        value: rounded(value),
        low: rounded(value - wide),
        high: rounded(value + wide),
    })
}

/// Rounds to digits that survive writing and reading JSON.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// A harvest of two programs of 2 s each that finish within `all_s`.
fn harvest(setting: &str, at: Option<f64>, slowdown: f64, all_s: f64) -> ExploreRow {
    let primary_s = 2.0 * (1.0 + slowdown);
    ExploreRow {
        setting: setting.to_owned(),
        at,
        primary_s: around(primary_s, 0.01),
        slowdown: around(slowdown, 0.2),
        all_s: around(all_s, 0.01),
        speedup: around(4.0 / all_s, 0.01),
        work: around(((2.0 - (all_s - primary_s)) / primary_s).max(0.0), 0.05),
        turn_p50_ns: around(at.unwrap_or(300.0) * 0.6, 0.1),
        turn_p90_ns: around(at.unwrap_or(300.0) * 1.1, 0.1),
        within: at.and(around(0.88, 0.01)),
        yield_ns: around(slowdown * 40.0, 0.1),
        ..ExploreRow::default()
    }
}

fn failed(setting: &str, why: &str) -> ExploreRow {
    ExploreRow {
        setting: setting.to_owned(),
        failed: Some(why.to_owned()),
        ..ExploreRow::default()
    }
}

fn times() -> Vec<ExploreRow> {
    let mut rows: Vec<ExploreRow> = [50.0, 100.0, 200.0, 500.0, 1000.0]
        .into_iter()
        .zip([
            (0.02, 3.6),
            (0.03, 3.2),
            (0.05, 2.8),
            (0.11, 2.7),
            (0.2, 2.72),
        ])
        .map(|(ns, (slowdown, all_s))| harvest(&format!("{ns} ns"), Some(ns), slowdown, all_s))
        .collect();
    rows.push(harvest("none", None, 0.3, 2.75));
    rows
}

fn overheads() -> Vec<ExploreRow> {
    let row = |(percent, loads, slowdown, all_s): (f64, f64, f64, f64)| ExploreRow {
        loads: around(loads, 0.0),
        ..harvest(
            &format!("{percent} %"),
            Some(percent * 0.01),
            slowdown,
            all_s,
        )
    };
    let rows = [
        (0.2, 1.0, 0.02, 3.6),
        (1.0, 2.0, 0.03, 3.1),
        (2.0, 2.0, 0.03, 3.1),
        (5.0, 3.0, 0.05, 2.8),
        (10.0, 5.0, 0.09, 2.7),
        (20.0, 9.0, 0.2, 2.9),
    ];
    rows.map(row).to_vec()
}

fn parts() -> Vec<ExploreRow> {
    let row = |part: HarvestPart| {
        let (slowdown, all_s) = match part {
            HarvestPart::Liveness => (0.2, 3.4),
            HarvestPart::Prefetch => (0.4, 3.9),
            _ => (0.05, 2.8),
        };
        let name = part.name();
        match part {
            HarvestPart::Switch => ExploreRow {
                speedup: around(1.0, 0.01),
                ..harvest(name, None, 0.04, 4.0)
            },
            _ => harvest(name, None, slowdown, all_s),
        }
    };
    std::iter::once(harvest("nothing", None, 0.05, 2.8))
        .chain(HarvestPart::ALL.map(row))
        .collect()
}

fn periods() -> Vec<ExploreRow> {
    let row = |ms: f64, slowdown: f64, same: f64| ExploreRow {
        setting: format!("{ms} ms"),
        at: Some(ms),
        primary_s: around(2.0 * (1.0 + slowdown), 0.01),
        slowdown: around(slowdown, 0.1),
        loads: around(3.0, 0.0),
        same_loads: around(same, 0.0),
        ..ExploreRow::default()
    };
    let without = ExploreRow {
        setting: "not profiled".to_owned(),
        primary_s: around(2.0, 0.01),
        slowdown: around(0.0, 0.0),
        ..ExploreRow::default()
    };
    vec![
        without,
        row(0.25, 0.12, 1.0),
        row(1.27, 0.05, 1.0),
        row(5.0, 0.03, 1.0),
        row(25.0, 0.02, 0.75),
    ]
}

fn at_once() -> Vec<ExploreRow> {
    let row = |programs: f64, speedup: f64| ExploreRow {
        speedup: around(speedup, 0.01),
        ..harvest(
            &programs.to_string(),
            Some(programs),
            0.05 * programs,
            2.0 * programs / speedup,
        )
    };
    let one = ExploreRow {
        setting: "1".to_owned(),
        at: Some(1.0),
        primary_s: around(2.0, 0.01),
        slowdown: around(0.0, 0.0),
        ..ExploreRow::default()
    };
    vec![
        one,
        row(2.0, 1.4),
        row(4.0, 2.1),
        row(6.0, 2.4),
        row(8.0, 2.3),
    ]
}

fn schedulers() -> Vec<ExploreRow> {
    let alone = ExploreRow {
        setting: "alone".to_owned(),
        primary_s: around(2.0, 0.01),
        slowdown: around(0.0, 0.0),
        ..ExploreRow::default()
    };
    let mut after = harvest("one after another", None, 0.0, 4.0);
    (after.turn_p50_ns, after.turn_p90_ns, after.yield_ns) = (None, None, None);
    vec![
        alone,
        after,
        harvest("nice 19", None, 0.03, 4.1),
        harvest("SCHED_IDLE", None, 0.01, 4.04),
        failed(
            "SMT",
            "no core has a second hardware thread that may be used",
        ),
        harvest("harvest", None, 0.05, 2.8),
    ]
}

/// All tables except that of objectives, for a program that is its own scavenger.
fn full() -> HarvestExplore {
    let table = |sweep: ExploreSweep| {
        let rows = match sweep {
            ExploreSweep::Bound | ExploreSweep::Distance => times(),
            ExploreSweep::Overhead => overheads(),
            ExploreSweep::Parts => parts(),
            ExploreSweep::Periods => periods(),
            ExploreSweep::Chases => at_once(),
            ExploreSweep::Kernel => schedulers(),
            ExploreSweep::Slo | ExploreSweep::Load | ExploreSweep::PartsByDistance => Vec::new(),
        };
        ExploredSweep {
            sweep,
            rows,
            missing: None,
        }
    };
    HarvestExplore {
        schema_version: SCHEMA_VERSION,
        kind: Kind::HarvestExplore,
        incomplete: false,
        membound_version: "0.1.0".to_owned(),
        date: "2026-11-25T02:00:00Z".to_owned(),
        host: "lab".to_owned(),
        cpu: "AMD EPYC".to_owned(),
        wall_s: 312.0,
        options: ExploreOptions {
            command: words("./walk 64M 10000000"),
            scavengers: vec![words("./walk 64M 10000000")],
            own_scavenger: true,
            copies: 1,
            idle: IdlePolicy::Harvest,
            pairs: 3,
            on_cpu: CpuId(1),
            requests: None,
            plans: Vec::new(),
            loads: Vec::new(),
        },
        alone: ExploreAlone {
            exit_code: Some(0),
            primary_s: around(2.0, 0.01),
            scavengers_s: around(2.0, 0.01),
            p95_ns: None,
        },
        sweeps: ExploreSweep::ALL[..7].iter().map(|it| table(*it)).collect(),
        notes: vec!["500 ns: 1 of 3 runs failed: a scavenger crashed: signal 11".to_owned()],
    }
}

/// A server with observed requests, alongside endless scavengers.
fn server() -> HarvestExplore {
    let with_latency = |mut row: ExploreRow, change: f64| {
        row.p95_ns = around(20_000.0 * (1.0 + change), 0.02);
        row.p95_change = around(change, 0.1);
        (row.all_s, row.speedup) = (None, None);
        row
    };
    let mut explore = full();
    explore.options.requests = Some("sockets".to_owned());
    explore.options.own_scavenger = false;
    explore.options.scavengers = vec![words("./scan")];
    explore.alone.scavengers_s = None;
    explore.sweeps.retain(|it| {
        matches!(
            it.sweep,
            ExploreSweep::Bound | ExploreSweep::Chases | ExploreSweep::Kernel
        )
    });
    for sweep in &mut explore.sweeps {
        let rows = std::mem::take(&mut sweep.rows).into_iter();
        if sweep.sweep == ExploreSweep::Chases {
            sweep.missing = Some(NotMeasured {
                reason: "a scavenger does not end by itself".to_owned(),
                remedy: None,
            });
            continue;
        }
        sweep.rows = rows
            .map(|row| match row.slowdown {
                Some(slowdown) => with_latency(row, slowdown.value * 0.5),
                None => row,
            })
            .collect();
    }
    let objective = |times: f64, change: f64| {
        let name = format!("{times} × alone");
        with_latency(harvest(&name, Some(20_000.0 * times), 0.05, 2.8), change)
    };
    explore.sweeps.push(ExploredSweep {
        sweep: ExploreSweep::Slo,
        rows: vec![
            objective(1.1, 0.15),
            objective(1.5, 0.4),
            objective(2.0, 0.6),
        ],
        missing: None,
    });
    explore
}

fn cut_short() -> HarvestExplore {
    let mut explore = full();
    explore.incomplete = true;
    explore.options.pairs = 1;
    for sweep in &mut explore.sweeps {
        for row in &mut sweep.rows {
            *row = failed(&row.setting, "it was not run");
        }
    }
    explore
}

fn text(explore: &HarvestExplore, width: usize) -> String {
    let style = Style {
        color: false,
        width,
    };
    text::harvest_explore(explore, style)
}

fn flowing(explore: &HarvestExplore) -> String {
    let text = text(explore, 80);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_document_is_read_back_as_it_was_written() {
    for explore in [full(), server(), cut_short()] {
        let text = serde_json::to_string(&explore).unwrap();
        assert_eq!(
            serde_json::from_str::<HarvestExplore>(&text).unwrap(),
            explore
        );
    }
}

#[test]
fn text_shows_a_table_and_a_sentence_for_each_thing_varied() {
    insta::assert_snapshot!("harvest_explore_80", text(&full(), 80));
    insta::assert_snapshot!("harvest_explore_60", text(&full(), 60));
    insta::assert_snapshot!("harvest_explore_server", text(&server(), 80));
    insta::assert_snapshot!("harvest_explore_cut_short", text(&cut_short(), 80));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for explore in [full(), server(), cut_short()] {
        for width in [60, 72, 80, 120] {
            for line in text(&explore, width).lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
}

#[test]
fn a_difference_is_reported_only_if_intervals_are_disjoint() {
    let text = flowing(&full());
    assert!(
        text.contains("it costs to leave out prefetch (28 %), liveness (18 %)."),
        "{text}"
    );
    assert!(text.contains("Harvest pays here. "), "{text}");
    let mut same = full();
    for row in same.sweeps.iter_mut().flat_map(|sweep| &mut sweep.rows) {
        row.speedup = row.speedup.map(|_| ExploreFigure {
            value: 1.02,
            low: 0.9,
            high: 1.1,
        });
    }
    let text = flowing(&same);
    assert!(text.contains("No part makes a difference here"), "{text}");
    assert!(
        text.contains("These rounds do not show whether harvest pays here"),
        "{text}"
    );
    assert!(
        text.contains("Harvest does not pay here with any bound"),
        "{text}"
    );
}

#[test]
fn a_bound_on_the_overhead_is_reported_with_the_loads_that_yield() {
    let text = flowing(&full());
    assert!(
        text.contains(
            "Loads of the primary that yield: 1 with 0.2 %, 9 with 20 %. With a bound of 10 % all programs are done \
             1.48 [1.47, 1.50] times as fast"
        ),
        "{text}"
    );
    let mut same = full();
    let overhead = same
        .sweeps
        .iter_mut()
        .find(|it| it.sweep == ExploreSweep::Overhead);
    for row in &mut overhead.unwrap().rows {
        row.loads = around(2.0, 0.0);
    }
    let text = flowing(&same);
    assert!(
        text.contains("The same loads of the primary (2) yield with all of these bounds"),
        "{text}"
    );
}

#[test]
fn the_page_has_a_section_and_plots_for_each_thing_varied() {
    let shown = Page::sound("full", &page::harvest_explore(&full()));
    let read = shown
        .elements
        .iter()
        .filter(|it| ["h1", "h2", "p", "b", "th", "td"].contains(&it.name.as_str()));
    let lines: Vec<String> = read.map(|it| format!("{}: {}", it.name, it.text)).collect();
    insta::assert_snapshot!("harvest_explore_page", lines.join("\n"));
    for (explore, plots) in [(full(), 22), (server(), 9), (cut_short(), 0)] {
        let html = page::harvest_explore(&explore);
        let page = Page::sound("an exploration", &html);
        for sweep in &explore.sweeps {
            assert!(page.by_id(sweep.sweep.name()).is_some(), "{}", sweep.sweep);
        }
        assert_eq!(page.named("figure").count(), plots);
    }
}

#[test]
fn names_from_outside_harm_no_page() {
    const HOSTILE: &str = "</script><img src=x onerror=\"x\">\x1b[31m";
    let mut explore = full();
    explore.options.command = vec![HOSTILE.to_owned()];
    explore.host = HOSTILE.to_owned();
    explore.sweeps[0].rows[0].failed = Some(HOSTILE.to_owned());
    explore.sweeps[0].rows[0].setting = HOSTILE.to_owned();
    assert!(!page::harvest_explore(&explore).contains("<img"));
    assert!(!text(&explore, 80).contains('\x1b'));
}
