//! The page of a run: small, self-contained, well-formed, safe, and complete with and
//! without data.

use membound_report::page;
use membound_types::{Detail, Profile};
use serde_json::Value;

use super::fixture;
use crate::dom::Page;

/// A name from a binary that is dangerous in every context.
pub(super) const HOSTILE: &str =
    "</script></title></style><img src=x onerror=\"window.hacked=1\">\"'`&\u{2028}<!--<script>${1}";

/// The simulation with dangerous names.
pub(super) fn hostile() -> (Profile, Detail) {
    let (mut profile, mut detail) = fixture::two_nodes();
    let hostile = || HOSTILE.to_owned();
    let run = &mut profile.run;
    for field in [
        &mut run.host,
        &mut run.cpu,
        &mut run.date,
        &mut run.membound_version,
        &mut run.timer,
    ] {
        *field = hostile();
    }
    run.command = vec![hostile()];
    for row in profile
        .functions
        .iter_mut()
        .chain(&mut profile.lines)
        .chain(&mut profile.instructions)
    {
        (row.name, row.function, row.module) = (hostile(), hostile(), hostile());
        row.file = Some(hostile());
    }
    profile
        .threads
        .iter_mut()
        .for_each(|it| it.name = hostile());
    profile.levels.iter_mut().for_each(|it| it.name = hostile());
    for finding in &mut profile.findings {
        (finding.text, finding.advice, finding.threshold) = (hostile(), hostile(), hostile());
    }
    for row in &mut profile.objects {
        row.name = hostile();
        for frame in &mut row.alloc_stack {
            (frame.function, frame.module) = (hostile(), hostile());
            frame.file = Some(hostile());
        }
        row.code.iter_mut().for_each(|it| it.name = hostile());
    }
    for line in &mut profile.false_sharing {
        (line.object, line.advice) = (hostile(), hostile());
        line.threads.iter_mut().for_each(|it| it.name = hostile());
        for site in &mut line.sites {
            (site.name, site.function) = (hostile(), hostile());
        }
        for frame in &mut line.alloc_stack {
            (frame.function, frame.file) = (hostile(), Some(hostile()));
        }
    }
    profile.true_sharing = profile.false_sharing.clone();
    for domain in &mut profile.bandwidth {
        domain.domain = hostile();
        for share in domain.objects.iter_mut().chain(&mut domain.lines) {
            share.name = hostile();
        }
    }
    for other in &mut profile.elsewhere {
        other.machine = hostile();
    }
    for gap in &mut profile.missing {
        gap.table = hostile();
        gap.why.reason = hostile();
        gap.why.remedy = Some(hostile());
    }
    if let membound_types::Outcome::Known(view) = &mut profile.numa {
        for row in view.objects.iter_mut().chain(&mut view.lines) {
            (row.name, row.advice) = (hostile(), hostile());
        }
    }
    detail.names.iter_mut().for_each(|name| *name = hostile());
    for listing in &mut detail.listings {
        (listing.function, listing.module) = (hostile(), hostile());
        listing.file = Some(hostile());
        listing.source.iter_mut().for_each(|it| it.text = hostile());
        listing
            .assembly
            .iter_mut()
            .for_each(|it| it.text = hostile());
    }
    (profile, detail)
}

fn all() -> Vec<(&'static str, (Profile, Detail))> {
    vec![
        ("simulation", fixture::simulation()),
        ("two nodes", fixture::two_nodes()),
        ("nothing", fixture::nothing()),
        ("large", fixture::large(3_000)),
        ("hostile", hostile()),
        ("accesses", super::exports::with_accesses()),
    ]
}

fn data(page: &Page) -> Value {
    let data = page.by_id("membound-run").expect("the data is in the page");
    serde_json::from_str(&data.text).expect("it is JSON")
}

#[test]
fn a_browser_has_nothing_to_mend_and_nothing_to_load() {
    for (name, (profile, detail)) in all() {
        let html = page::profile(&profile, &detail);
        let page = Page::sound(name, &html);
        for element in &page.elements {
            for (attribute, value) in &element.attributes {
                assert!(!attribute.starts_with("on"), "{name}: {attribute}");
                let loads = ["src", "action", "srcset", "poster", "data"];
                assert!(!loads.contains(&attribute.as_str()), "{name}: {attribute}");
                if attribute == "href" {
                    assert!(
                        value.starts_with('#') || value == "data:,",
                        "{name}: {value}"
                    );
                }
            }
        }
        assert_eq!(page.named("img").count(), 0, "{name}");
        assert_eq!(page.named("script").count(), 2, "{name}");
        assert_eq!(page.named("style").count(), 1, "{name}");
        assert!(!html.contains("NaN"), "{name}");
        let policy = page
            .named("meta")
            .find(|meta| meta.attribute("http-equiv") == "Content-Security-Policy")
            .expect("the page forbids itself the network");
        assert!(
            policy
                .attribute("content")
                .starts_with("default-src 'none'")
        );
    }
    for bad in [
        "http:", "https:", "url(", "@import", "xlink", "fetch(", "XMLHttp",
    ] {
        let (profile, detail) = fixture::simulation();
        assert!(!page::profile(&profile, &detail).contains(bad), "{bad}");
    }
}

#[test]
fn names_stay_text() {
    let (profile, detail) = hostile();
    let page = Page::parse(&page::profile(&profile, &detail));
    let heading = page.named("h1").next().expect("there is a heading");
    // A shell would need quotes, and the page shows them.
    assert_eq!(
        heading.text,
        format!("'{}'", HOSTILE.replace('\'', "'\\''"))
    );
    let data = data(&page);
    assert!(
        data["names"]
            .as_array()
            .expect("names")
            .contains(&HOSTILE.into())
    );
    let table = page.by_id("table").expect("the table is there");
    assert!(table.text.contains(HOSTILE));
}

#[test]
fn cells_hold_the_time_of_the_samples() {
    for (name, (profile, detail)) in all() {
        let page = Page::parse(&page::profile(&profile, &detail));
        check_cells(name, &data(&page), &detail);
    }
}

/// Checks that the cells sum to the samples, and that all references are valid.
fn check_cells(name: &str, data: &Value, detail: &Detail) {
    let numbers = |value: &Value| -> Vec<i64> {
        let list = value.as_array().expect("a column");
        list.iter()
            .map(|it| it.as_i64().expect("a number"))
            .collect()
    };
    let cells = &data["cells"];
    let unit_s = cells["unit_s"].as_f64().expect("a unit");
    let groups = numbers(&cells["groups"]);
    let (times, weights, stalls) = (
        numbers(&cells["time"]),
        numbers(&cells["weight"]),
        numbers(&cells["stall"]),
    );
    let bins = data["bins"].as_i64().expect("a number");
    let parents = numbers(&data["stacks"]["parent"]);
    let frames = numbers(&data["stacks"]["frame"]);
    let mut at = 0;
    for group in groups.chunks(5) {
        assert!((group[1] as usize) < parents.len(), "{name}");
        let mut bin = 0;
        for _ in 0..group[4] {
            bin += times[at];
            assert!((0..bins).contains(&bin), "{name}");
            at += 1;
        }
    }
    assert_eq!(at, times.len(), "{name}");
    for (index, parent) in parents.iter().enumerate() {
        assert!(*parent < index as i64, "{name}: a caller behind its callee");
    }
    let functions = numbers(&data["frames"]["function"]);
    assert!(
        frames
            .iter()
            .all(|&frame| (frame as usize) < functions.len())
    );
    let names = data["names"].as_array().expect("names").len() as i64;
    assert!(functions.iter().all(|&function| function < names));
    for (kind, units, seconds) in [
        (
            "weight",
            weights,
            detail.samples.iter().map(|s| s.weight_s).sum::<f64>(),
        ),
        (
            "stall",
            stalls,
            detail.samples.iter().map(|s| s.stall_s).sum::<f64>(),
        ),
    ] {
        let shown = units.iter().sum::<i64>() as f64 * unit_s;
        assert!(
            (shown - seconds).abs() <= 0.002 * seconds + 2.0 * unit_s,
            "{name}: {kind} {shown} of {seconds}"
        );
    }
}

#[test]
fn a_million_samples_fit_into_eight_megabytes() {
    let (profile, detail) = fixture::large(1_000_000);
    assert_eq!(detail.samples.len(), 1_000_000);
    let html = page::profile(&profile, &detail);
    assert!(html.len() <= 8_000_000, "{} bytes", html.len());
    let start = html
        .find("id=\"membound-run\">")
        .expect("the data is there")
        + 18;
    let end = start + html[start..].find("</script>").expect("it ends");
    let data: Value = serde_json::from_str(&html[start..end]).expect("it is JSON");
    check_cells("large", &data, &detail);
    // Each of 64 threads keeps its share.
    let threads = data["threads"].as_array().expect("threads").len();
    assert_eq!(threads, 64);
}

#[test]
fn long_names_and_long_code_fit_too() {
    let (mut profile, mut detail) = fixture::large(12_000);
    for (index, name) in detail.names.iter_mut().enumerate() {
        *name = format!("{index}{}", "<&\u{2028}".repeat(1_500));
    }
    for row in &mut profile.objects {
        row.name = "<".repeat(20_000);
        row.alloc_stack = vec![
            membound_types::CallFrame {
                function: ">".repeat(20_000),
                ..Default::default()
            };
            200
        ];
    }
    let listing = fixture::simulation().1.listings[0].clone();
    detail.listings = vec![listing; 40];
    for listing in &mut detail.listings {
        listing.source = vec![
            membound_types::ListedLine {
                text: "&".repeat(5_000),
                ..Default::default()
            };
            2_000
        ];
    }
    let html = page::profile(&profile, &detail);
    assert!(html.len() <= 8_000_000, "{} bytes", html.len());
}

#[test]
fn every_section_is_present_or_has_a_reason() {
    let (profile, detail) = fixture::two_nodes();
    let page = Page::parse(&page::profile(&profile, &detail));
    for id in [
        "answer",
        "timeline",
        "tables",
        "flame",
        "code",
        "objects",
        "false-sharing",
        "nodes",
        "bandwidth",
        "elsewhere",
    ] {
        assert!(page.by_id(id).is_some(), "{id} is missing");
    }
    let sharing = page.by_id("false-sharing").expect("there is sharing");
    for text in [
        "stats.cpp:19",
        "worker-0",
        "worker-1",
        "33 hits",
        "stats.h:27",
        "would save 11 %",
    ] {
        assert!(
            sharing.text.contains(text),
            "{text} is not in {}",
            sharing.text
        );
    }
    // One line of 64 bytes for each of two threads.
    let bytes = page.with_class("byte").count();
    assert_eq!(bytes, 128);
    assert_eq!(page.with_class("watched").count(), 2);
    let traffic = page.by_id("bandwidth").expect("there is bandwidth");
    assert!(traffic.text.contains("modelled") && traffic.text.contains("37.2 GB/s"));
    let (profile, detail) = fixture::nothing();
    let page = Page::parse(&page::profile(&profile, &detail));
    for (id, why) in [
        ("answer", "no sample was taken"),
        ("objects", "the process was not started by membound"),
        ("nodes", "not measured: one node"),
        ("bandwidth", "not measured"),
    ] {
        let part = page.by_id(id).unwrap_or_else(|| panic!("{id} is missing"));
        assert!(part.text.contains(why), "{id}: {}", part.text);
    }
    assert_eq!(
        page.with_class("banner")
            .filter(|it| it.attribute("role") == "alert")
            .count(),
        1
    );
}

#[test]
fn the_answer_is_shown_without_a_script() {
    let (profile, detail) = fixture::simulation();
    let page = Page::parse(&page::profile(&profile, &detail));
    let answer = page.by_id("answer").expect("there is an answer");
    for text in [
        "Memory bound 53 %",
        "[51, 54]",
        "DRAM 36 %",
        "38.4 ns",
        "would save 24 %",
    ] {
        assert!(
            answer.text.contains(text),
            "{text} is not in {}",
            answer.text
        );
    }
    let table = page.by_id("table").expect("there is a table");
    assert!(table.text.contains("forces.cpp:88"));
    let lanes: Vec<_> = page
        .with_class("lane")
        .filter(|it| it.name == "svg")
        .collect();
    assert_eq!(
        lanes.len(),
        1 + 3 + 2,
        "all threads, three threads, live bytes, DRAM"
    );
    let memory = page.by_id("memory").expect("there is a panel");
    for text in ["165 MiB", "1.20 s", "cells.cpp:77", "37.2 MiB"] {
        assert!(memory.text.contains(text), "{text}: {}", memory.text);
    }
    for plot in page.with_class("scroll").chain(page.with_class("plot")) {
        assert_eq!(plot.attribute("tabindex"), "0", "no way there by key");
        assert!(!plot.attribute("aria-label").is_empty());
    }
}

#[test]
fn broken_references_break_no_page() {
    let (profile, mut detail) = fixture::simulation();
    detail.samples[0].stack = 99_999;
    detail.samples[1].thread = 77;
    detail.samples[2].object = Some(4_000);
    detail.samples[3].level = Some(200);
    detail.samples[4].weight_s = f64::NAN;
    detail.samples[5].t_s = -1.0;
    detail.samples[6].t_s = f64::INFINITY;
    detail.samples[7].stall_s = 1e300;
    detail.stacks[0].parent = Some(detail.stacks.len() as u32 - 1);
    detail.stacks[1].frame = 5_000;
    detail.frames[0].function = 6_000;
    let html = page::profile(&profile, &detail);
    assert!(Page::parse(&html).errors.is_empty());
    assert!(!html.contains("NaN"));
}

#[test]
fn a_comparison_is_a_page() {
    let comparison = fixture::comparison();
    let page = Page::parse(&page::run_comparison(&comparison));
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    let changes = page.by_id("changes").expect("there are changes");
    for text in ["−580 ms", "stats.cpp:19", "1 group the same within noise"] {
        assert!(
            changes.text.contains(text),
            "{text} is not in {}",
            changes.text
        );
    }
    let findings = page.by_id("findings").expect("there are findings");
    assert!(findings.text.contains("gone: false sharing"));
    let gated = fixture::gated();
    let page = Page::parse(&page::run_comparison(&gated));
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    let gates = page.by_id("gates").expect("there are gates");
    for text in [
        "memory-bound +3pt",
        "failed",
        "+11.1 pt",
        "base: 1 run, new: 2 runs",
    ] {
        assert!(gates.text.contains(text), "{text} is not in {}", gates.text);
    }
    let mut hostile = gated;
    hostile
        .gates
        .iter_mut()
        .for_each(|it| (it.expression, it.text) = (HOSTILE.into(), HOSTILE.into()));
    hostile.runs.iter_mut().for_each(|it| {
        (it.file, it.command, it.date) = (HOSTILE.into(), HOSTILE.into(), HOSTILE.into());
    });
    hostile
        .changes
        .iter_mut()
        .for_each(|it| (it.group, it.name) = (HOSTILE.into(), HOSTILE.into()));
    hostile
        .findings
        .iter_mut()
        .for_each(|it| it.text = HOSTILE.into());
    hostile.summary = vec![HOSTILE.into()];
    let page = Page::parse(&page::run_comparison(&hostile));
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    assert_eq!(page.named("img").count(), 0);
}
