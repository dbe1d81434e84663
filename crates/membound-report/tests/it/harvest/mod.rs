//! Harvests as document, text and page.

pub(crate) mod fixture;

use membound_report::page;
use membound_report::text::{self, Style};
use membound_types::{HarvestRun, HarvestSlots, Kind, LatencySource};
use serde_json::{Value, json};

use crate::dom::Page;
use crate::terminal;

const SECTIONS: [&str; 9] = [
    "answer",
    "latency",
    "classes",
    "distances",
    "scavengers",
    "sites",
    "guard",
    "conditions",
    "notes",
];

/// A name that is dangerous in every context.
const HOSTILE: &str = "</script></title><img src=x onerror=\"x\">\"'&\x1b[31m\u{202e}";

fn all() -> [(&'static str, HarvestRun); 5] {
    [
        ("full", fixture::full()),
        ("bare", fixture::bare()),
        ("cut short", fixture::cut_short()),
        ("no primary", fixture::no_primary()),
        ("hostile", hostile()),
    ]
}

/// The full harvest with dangerous names, and with figures that are not finite.
fn hostile() -> HarvestRun {
    let mut run = fixture::full();
    let hostile = || HOSTILE.to_owned();
    (run.host, run.cpu, run.date) = (hostile(), hostile(), hostile());
    run.membound_version = hostile();
    run.primary.command = vec![hostile()];
    for it in &mut run.scavengers {
        it.command = vec![hostile()];
        (it.reason, it.output) = (Some(hostile()), Some(hostile()));
    }
    for site in &mut run.sites {
        (site.module, site.symbol, site.reason) = (hostile(), hostile(), Some(hostile()));
    }
    for plan in &mut run.options.plans {
        (plan.path, plan.command) = (Some(hostile()), vec![hostile()]);
    }
    run.slots.why = hostile();
    run.notes = vec![hostile()];
    run.missing = fixture::bare().missing;
    for gap in &mut run.missing {
        (gap.table, gap.why.reason, gap.why.remedy) = (hostile(), hostile(), Some(hostile()));
    }
    run.wall_s = f64::INFINITY;
    run.primary.cpu_s = f64::NAN;
    run.distance_ns.p99 = Some(f64::NAN);
    run.distance_ns.bound = Some(f64::NAN);
    run.distance_ns.histogram[3].from_ns = f64::NAN;
    run.distance_ns.histogram[4].to_ns = f64::INFINITY;
    run
}

/// The text joined to one line.
fn flowing(run: &HarvestRun) -> String {
    let text = text::harvest_run(run, Style::default());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn check_order(text: &str, parts: &[&str]) {
    let place = |part: &&str| {
        text.find(part)
            .unwrap_or_else(|| panic!("{part} is not in\n{text}"))
    };
    assert!(parts.iter().map(place).is_sorted(), "{text}");
}

#[test]
fn the_document_has_the_fields_that_others_rely_on() {
    let run = serde_json::to_value(fixture::full()).expect("it is JSON");
    assert_eq!(run["kind"], "harvest");
    assert_eq!(run["schema_version"], 1);
    for (field, value) in [
        ("/wall_s", json!(12.4)),
        ("/primary/exit_code", json!(0)),
        ("/primary/slowdown", json!(0.018)),
        ("/primary/slowdown_low", json!(0.012)),
        ("/primary/slowdown_high", json!(0.024)),
        ("/primary/yields", json!(41_200_000)),
        ("/scavengers/0/command/0", json!("./compress")),
        ("/scavengers/0/exit_code", json!(0)),
        ("/scavengers/0/state", json!("finished")),
        ("/scavengers/1/state", json!("unfinished")),
        ("/scavengers/2/state", json!("crashed")),
        ("/scavengers/3/state", json!("refused")),
        ("/scavengers/0/cpu_s", json!(2.41)),
        ("/scavengers/0/in_stalls_s", json!(2.29)),
        ("/stall/before_s", json!(7.4)),
        ("/stall/harvested_s", json!(5.1)),
        ("/stall/left_s", json!(2.3)),
        ("/distance_ns/p50", json!(131.0)),
        ("/distance_ns/p90", json!(196.0)),
        ("/distance_ns/p99", json!(268.0)),
        ("/distance_ns/max", json!(18_400.0)),
        ("/distance_ns/bound", json!(300.0)),
    ] {
        assert_eq!(run.pointer(field), Some(&value), "{field}");
    }
}

#[test]
fn what_is_not_known_is_null_and_there() {
    let run = serde_json::to_value(fixture::bare()).expect("it is JSON");
    for field in [
        "/primary/exit_code",
        "/primary/slowdown",
        "/primary/slowdown_low",
        "/primary/slowdown_high",
        "/primary/latency",
        "/stall/before_s",
        "/stall/harvested_s",
        "/stall/left_s",
        "/distance_ns/p50",
        "/distance_ns/p90",
        "/distance_ns/p99",
        "/distance_ns/max",
        "/distance_ns/bound",
        "/distance_ns/within_bound",
        "/guard",
        "/options/bound_ns",
        "/options/max_slowdown",
        "/options/requests",
        "/options/slo_p95_ns",
    ] {
        assert_eq!(run.pointer(field), Some(&Value::Null), "{field}");
    }
}

#[test]
fn documents_are_read_as_they_were_written() {
    for (name, run) in all().into_iter().filter(|it| it.0 != "hostile") {
        let text = serde_json::to_string(&run).expect("it is JSON");
        let read: HarvestRun = serde_json::from_str(&text).expect("it is read");
        assert!(read == run, "{name} is another one");
        assert_eq!(read.kind, Kind::Harvest);
    }
}

#[test]
fn at_eighty_columns() {
    for (name, run) in [
        ("full", fixture::full()),
        ("bare", fixture::bare()),
        ("cut_short", fixture::cut_short()),
        ("no_primary", fixture::no_primary()),
    ] {
        let text = text::harvest_run(&run, Style::default());
        insta::assert_snapshot!(format!("harvest_{name}"), text);
    }
}

#[test]
fn no_line_is_wider_than_the_terminal_and_colour_changes_no_letter() {
    for (name, run) in all() {
        terminal::check(name, |style| text::harvest_run(&run, style));
    }
}

#[test]
fn classes_of_time_are_those_of_document_003() {
    let mut run = fixture::full();
    run.primary.threads = 1;
    run.primary.wall_s = Some(30.0);
    run.primary.cpu_s = 11.8;
    run.scavengers.truncate(2);
    for (it, own_s) in run.scavengers.iter_mut().zip([5.0, 3.0]) {
        (it.in_stalls_s, it.in_waits_s, it.own_thread_s) = (Some(2.1), 0.5, own_s);
    }
    run.slots.beside_s = 4.2;
    // Of 30 s the primary ran for 11.8, and scavengers for 4.2 in its place; they had 1 s in its waits, and
    // ran for 8 s on their own threads, 4.2 s of it on SMT siblings.
    let text = flowing(&run);
    assert!(
        text.contains("memory stalls 7.40 s 5.10 s time slices at yields"),
        "{text}"
    );
    assert!(
        text.contains("idle time 14.0 s 1.00 s time slices in short waits"),
        "{text}"
    );
    assert!(
        text.contains("own threads – 3.80 s the kernel, on any CPU"),
        "{text}"
    );
    assert!(
        text.contains("other stalls – 4.20 s other hardware threads"),
        "{text}"
    );
    let page = Page::parse(&page::harvest_run(&run));
    let classes = &page.by_id("classes").expect("the section is there").text;
    for part in ["idle time", "14.0 s", "1.00 s", "own threads", "3.80 s"] {
        assert!(classes.contains(part), "{part}: {classes}");
    }
    run.primary.command.clear();
    assert!(!flowing(&run).contains("time that can be harvested"));
}

#[test]
fn scavengers_that_ran_on_their_own_threads_did_not_run_in_stalls() {
    let mut run = fixture::full();
    run.slots = HarvestSlots {
        why: "no core has a second hardware thread that may be used".to_owned(),
        ..HarvestSlots::default()
    };
    for it in &mut run.scavengers {
        (it.in_stalls_s, it.in_waits_s, it.own_thread_s) = (None, 0.0, 40.0);
    }
    run.primary.threads = 1;
    let text = flowing(&run);
    assert!(!text.contains("in stalls only"), "{text}");
    assert!(
        text.contains(
            "scavengers were given no other hardware threads of the primary's cores: no core has a second \
             hardware thread"
        ),
        "{text}"
    );
    // What they had on other CPUs was not the primary's idle time.
    let (before, _) = text.split_once("own threads – ").expect("it has a row");
    let (_, idle) = before.rsplit_once("idle time ").expect("it has a row");
    assert!(idle.contains(" 0.00 s time slices"), "{idle}");
}

#[test]
fn the_answer_comes_first() {
    check_order(
        &flowing(&fixture::full()),
        &[
            "5.10 s of 7.40 s stall (69 %) went to scavengers.",
            "The primary took 1.8 % [1.2, 2.4] more CPU time; allowed were 5.0 %.",
            "ran again within 268 ns of its yield in 99 of 100 time slices; 0.5 % exceeded the bound of 300 ns.",
            "4 scavengers: 1 finished, 1 unfinished, 1 crashed, 1 refused.",
            "harvested 69 %",
            "left 31 %",
            "primary exit code 0",
            "#2 crashed: signal 11 at 0x2f41 in deflate",
            "200 ns–300 ns 8.0 %",
            "300 ns–500 ns 0.3 % beyond",
            "latency of requests",
            "+3.7 %",
            "5 in, 1 out, 1 refused",
            "Store::evict 0x1302, out: the primary was slower with it",
            "guard: 118 checks; yields were taken out 2 times and put back 1 time, 1 was out at the end",
            "had 812 samples",
        ],
    );
}

#[test]
fn missing_parts_are_reported_and_not_shown_as_zero() {
    let text = flowing(&fixture::bare());
    check_order(
        &text,
        &[
            "How much stall was harvested is not known.",
            "How much slower the primary was is not known.",
            "scavengers none",
            "slowdown: no scavenger ran (give one with --scavenger)",
            "latency: no socket was served",
            "stall: the plan holds no stall",
            "distances: no time slice was timed",
            "yields: no load yields (profile a longer run)",
            "topology: /sys/devices/system/cpu is not readable",
        ],
    );
    assert!(!text.contains("0 %."), "{text}");
    assert!(!text.contains("0 time slices timed"), "{text}");
}

#[test]
fn an_incomplete_run_is_marked_and_shows_its_data() {
    let text = flowing(&fixture::cut_short());
    check_order(
        &text,
        &[
            "! incomplete",
            "! the primary was slowed down by more than was allowed",
            "The primary took 7.1 % [6.0, 8.2] more CPU time; allowed were 5.0 %.",
            "primary signal 15",
            "with scavengers",
            "stall left: the run ended before it was looked at",
            "latency without scavengers: 3 requests",
        ],
    );
    assert!(!text.contains("harvested 69 %"), "{text}");
    assert!(!text.contains("beyond"), "{text}");
    let page = Page::parse(&page::harvest_run(&fixture::cut_short()));
    let banner = page.with_class("banner").next();
    assert!(banner.is_some_and(|it| it.text.contains("cut short")));
}

#[test]
fn a_slowdown_within_noise_is_not_reported() {
    let mut run = fixture::full();
    run.primary.slowdown = Some(0.002);
    (run.primary.slowdown_low, run.primary.slowdown_high) = (Some(-0.004), Some(0.008));
    let text = flowing(&run);
    assert!(
        text.contains("No slowdown of the primary beyond noise: 0.2 % [-0.4, 0.8]"),
        "{text}"
    );
}

#[test]
fn an_exceeded_limit_is_reported_only_if_the_whole_interval_exceeds_it() {
    const WARNING: &str = "slowed down by more than was allowed";
    let check = |low: Option<f64>, high: Option<f64>, sentence: &str, is_told: bool| {
        let mut run = fixture::full();
        run.primary.slowdown = Some(0.06);
        (run.primary.slowdown_low, run.primary.slowdown_high) = (low, high);
        let text = flowing(&run);
        assert!(text.contains(sentence), "{text}");
        assert_eq!(text.contains(WARNING), is_told, "{text}");
        let html = page::harvest_run(&run);
        assert!(html.contains(sentence), "{html}");
        assert_eq!(html.contains("class=\"differs\">6.0 %"), is_told, "{html}");
    };
    let exceeded = "took 6.0 % [5.5, 6.5] more CPU time; allowed were 5.0 %.";
    check(Some(0.055), Some(0.065), exceeded, true);
    let noisy = "took 6.0 % [4.9, 7.1] more CPU time; allowed were 5.0 %.";
    check(Some(0.049), Some(0.071), noisy, false);
    let unsure =
        "took about 6.0 % more CPU time, with an interval that is not known; allowed were 5.0 %.";
    check(None, None, unsure, false);
}

#[test]
fn a_missing_interval_has_its_reason_next_to_the_slowdown() {
    let mut run = fixture::full();
    (run.primary.slowdown_low, run.primary.slowdown_high) = (None, None);
    let mut gap = fixture::bare().missing.swap_remove(0);
    gap.table = "primary.slowdown_low".to_owned();
    gap.why.reason = "the run was too short".to_owned();
    run.missing = vec![gap];
    let sentence = "interval of the slowdown: the run was too short";
    assert!(flowing(&run).contains(sentence));
    let page = Page::parse(&page::harvest_run(&run));
    assert!(
        page.by_id("answer")
            .is_some_and(|it| it.text.contains(sentence))
    );
}

#[test]
fn without_a_primary_programs_share_time_slices() {
    let run = fixture::no_primary();
    let text = flowing(&run);
    check_order(
        &text,
        &[
            "no primary: programs share time slices",
            "5.10 s went to scavengers while others waited for memory.",
            "A program ran again within 268 ns",
            "40 scavengers: 40 finished.",
            "and 24 more (`--json` has every scavenger)",
        ],
    );
    assert!(!text.contains("slow down") && !text.contains("the primary ran"));
    let page = Page::parse(&page::harvest_run(&run));
    assert!(page.by_id("latency").is_none());
    let answer = page.by_id("answer").expect("there is an answer");
    assert!(!answer.text.contains("not known"), "{}", answer.text);
}

#[test]
fn a_browser_has_nothing_to_mend_and_nothing_to_load() {
    for (name, run) in all() {
        let html = page::harvest_run(&run);
        let page = Page::sound(name, &html);
        assert_eq!(page.named("img").count(), 0, "{name}");
        assert_eq!(page.named("script").count(), 1, "{name}");
        for bad in ["http:", "https:", "url(", "@import", "xlink", "fetch("] {
            assert!(!html.contains(bad), "{name}: {bad}");
        }
        for element in &page.elements {
            assert!(
                !element.attributes.keys().any(|key| key.starts_with("on")),
                "{name}"
            );
        }
        for coordinate in ["\"inf", "\"-inf", "Minf"] {
            assert!(!html.contains(coordinate), "{name}: {coordinate}");
        }
    }
    let heading = Page::parse(&page::harvest_run(&hostile()));
    let heading = heading.named("h1").next().expect("there is a heading");
    assert!(heading.text.contains("<img src=x"), "{}", heading.text);
}

#[test]
fn every_section_is_present_or_has_a_reason() {
    for run in [fixture::full(), fixture::bare(), fixture::cut_short()] {
        let page = Page::parse(&page::harvest_run(&run));
        let sections: Vec<&str> = page
            .named("section")
            .map(|section| section.attribute("id"))
            .collect();
        assert_eq!(sections, SECTIONS);
    }
    let page = Page::parse(&page::harvest_run(&fixture::bare()));
    let of = |id: &str| &page.by_id(id).expect("the section is there").text;
    assert!(of("latency").contains("not measured: no socket was served"));
    assert!(of("distances").contains("not measured: no time slice was timed"));
    assert!(of("sites").contains("no load yields (profile a longer run)"));
    assert!(of("answer").contains("stall: the plan holds no stall"));
    assert!(of("notes").contains("topology: /sys/devices"));
    assert_eq!(page.with_class("chart").count(), 0);
}

#[test]
fn both_latencies_and_the_bound_are_drawn() {
    let html = page::harvest_run(&fixture::full());
    let page = Page::parse(&html);
    let curves = |id: &str| -> Vec<String> {
        let figure = page.by_id(id).expect("the figure is there");
        assert_eq!(figure.name, "figure");
        let from = html.find(&format!("id=\"{id}\"")).expect("it is there");
        let end = html[from..].find("</figure>").expect("it ends") + from;
        html[from..end]
            .split("data-n=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(
        curves("latency-histogram"),
        ["without scavengers", "with scavengers"]
    );
    assert_eq!(
        curves("distance-histogram"),
        ["within the bound", "beyond the bound"]
    );
    let limit = page.with_class("limit").find(|it| !it.text.is_empty());
    assert_eq!(limit.map(|it| it.text.as_str()), Some("bound 300 ns"));
    // The steps contain all time slices: the part up to the bound equals the document's share.
    let shares = |group: &str| -> f64 {
        let from = html.find(&format!("data-n=\"{group}\"")).expect("a group");
        let end = html[from..].find("</g>").expect("it ends") + from;
        html[from..end]
            .split("<title>")
            .skip(1)
            .filter_map(|tip| {
                tip.split(" %")
                    .next()?
                    .rsplit(' ')
                    .next()?
                    .parse::<f64>()
                    .ok()
            })
            .sum()
    };
    let within = shares("within the bound");
    assert!((within - 99.48).abs() < 1.0, "{within}");
}

#[test]
fn a_bound_that_nothing_comes_near_is_on_the_page() {
    let mut run = fixture::full();
    run.distance_ns.bound = Some(1e6);
    run.distance_ns.within_bound = Some(1.0);
    let html = page::harvest_run(&run);
    assert!(html.contains("bound<tspan class=\"w\"> 1.00 ms"), "{html}");
    assert!(html.contains("none exceeded the bound of 1.00 ms"));
    assert!(!html.contains("beyond the bound"));
}

#[test]
fn skipped_time_slices_are_reported() {
    let sentence = "20 % of all time slices were skipped";
    let mut run = fixture::full();
    assert!(!text::harvest_run(&run, Style::default()).contains("skipped"));
    run.distance_ns.skipped = run.distance_ns.timed / 4;
    for shown in [
        page::harvest_run(&run),
        text::harvest_run(&run, Style::default()),
    ] {
        assert!(shown.contains(sentence), "{shown}");
    }
}

#[test]
fn what_takes_scavengers_off_run_queues_is_counted() {
    let mut run = fixture::full();
    let counted = "12 stolen from a thread that waited, 3 taken from a thread that ended, 4567 for a \
                   system call, 8 for a signal to the primary, 1 without a yield for too long";
    assert!(flowing(&run).contains(counted), "{}", flowing(&run));
    assert!(page::harvest_run(&run).contains(counted));
    run.moves = membound_types::ScavengerMoves::default();
    assert!(!flowing(&run).contains("other than at a yield"));
}

#[test]
fn requests_are_described_by_their_source() {
    let mut run = fixture::full();
    if let Some(latency) = &mut run.primary.latency {
        latency.source = LatencySource::Socket;
    }
    let text = flowing(&run);
    assert!(
        text.contains("from arrival on a socket to the answer"),
        "{text}"
    );
    assert!(page::harvest_run(&run).contains("from arrival on a socket to the answer"));
}

#[test]
fn many_yields_and_scavengers_fit_on_a_page() {
    let mut run = fixture::no_primary();
    run.sites = vec![fixture::full().sites[0].clone(); 20_000];
    run.scavengers = vec![run.scavengers[0].clone(); 2_000];
    let html = page::harvest_run(&run);
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
    assert!(html.contains("19700 more in the JSON."));
    let text = text::harvest_run(&run, Style::default());
    assert!(text.lines().count() < 90, "{text}");
}
