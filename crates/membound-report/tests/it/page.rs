//! The page: small, self-contained, well-formed, safe, and complete with and without data.

use membound_report::page::render;
use membound_types::{MachineProfile, Outcome, PrefetchState};

use crate::dom::Page;
use crate::fixture::{self, Extent};

const PANELS: [&str; 14] = [
    "answer",
    "latency",
    "strides",
    "mlp",
    "window",
    "model",
    "bandwidth",
    "loaded",
    "tlb",
    "prefetch",
    "numa",
    "c2c",
    "disturbances",
    "gaps",
];

const CHARTS: [&str; 18] = [
    "latency-curve",
    "stride-size-0",
    "stride-stride-0",
    "mlp-plane",
    "mlp-fillers",
    "mlp-parallel",
    "mlp-throughput",
    "mlp-sequential",
    "mlp-areas",
    "mlp-ratios",
    "window-curves",
    "model-curves",
    "model-residuals",
    "bandwidth-1",
    "bandwidth-2",
    "loaded-curves",
    "tlb-curves",
    "c2c-matrix",
];

fn all_profiles() -> [(&'static str, MachineProfile); 4] {
    [
        ("quick", fixture::profile(Extent::Quick)),
        ("thorough", fixture::profile(Extent::Thorough)),
        ("two nodes", fixture::two_nodes(32)),
        ("nothing", fixture::nothing_measured()),
    ]
}

#[test]
fn a_browser_has_nothing_to_mend() {
    for (name, profile) in all_profiles() {
        Page::sound(name, &render(&profile));
    }
}

#[test]
fn every_panel_and_chart_is_there() {
    let page = Page::parse(&render(&fixture::profile(Extent::Thorough)));
    for id in PANELS.iter().chain(&CHARTS) {
        assert!(page.by_id(id).is_some(), "{id} is missing");
    }
    assert_eq!(page.with_class("banner").count(), 0);
    let two = Page::parse(&render(&fixture::two_nodes(32)));
    for id in ["numa-latency", "numa-bandwidth"] {
        assert!(two.by_id(id).is_some(), "{id} is missing");
    }
}

#[test]
fn every_missing_part_has_a_reason() {
    let profile = fixture::nothing_measured();
    let page = Page::parse(&render(&profile));
    for id in PANELS {
        let panel = page.by_id(id).unwrap_or_else(|| panic!("{id} is missing"));
        if !["disturbances", "gaps"].contains(&id) {
            assert!(
                panel.text.contains("not measured: "),
                "{id}: {}",
                panel.text
            );
        }
    }
    let mlp = page.by_id("mlp").expect("the panel is there");
    assert!(
        mlp.text
            .contains("executable memory is refused (allow execmem)")
    );
    assert_eq!(page.named("figure").count(), 0);
    assert_eq!(
        page.with_class("banner").count(),
        1,
        "an incomplete run says so"
    );
}

#[test]
fn empty_parts_are_marked_as_empty() {
    let mut profile = fixture::profile(Extent::Quick);
    profile.latency = Outcome::Known(Default::default());
    profile.window = Outcome::Known(Default::default());
    profile.bandwidth = Outcome::Known(Default::default());
    profile.tlb = Outcome::Known(Default::default());
    profile.prefetch = Outcome::Known(Default::default());
    profile.c2c = Outcome::Known(Default::default());
    let page = Page::parse(&render(&profile));
    for id in [
        "latency",
        "strides",
        "window",
        "bandwidth",
        "tlb",
        "prefetch",
        "c2c",
    ] {
        let panel = page.by_id(id).expect("the panel is there");
        assert!(
            panel.text.contains("not measured: "),
            "{id}: {}",
            panel.text
        );
    }
}

#[test]
fn a_thorough_run_on_a_large_machine_stays_under_two_megabytes() {
    let mut profile = fixture::profile(Extent::Thorough);
    let large = fixture::two_nodes(256);
    profile.numa = large.numa;
    profile.c2c = large.c2c;
    profile.machine = large.machine;
    let points = profile
        .latency
        .known()
        .map_or(0, |latency| latency.points.len());
    assert!(points >= 2900, "{points} points are no thorough run");
    let html = render(&profile);
    assert!(html.len() <= 2_000_000, "{} bytes", html.len());
    assert_eq!(Page::parse(&html).errors, Vec::<String>::new());
}

#[test]
fn nothing_is_loaded_from_anywhere() {
    for (name, profile) in all_profiles() {
        let html = render(&profile);
        for bad in [
            "http:", "https:", "url(", "@import", "src=", "xlink", "fetch(",
        ] {
            assert!(!html.contains(bad), "{name}: {bad}");
        }
        let page = Page::parse(&html);
        for element in &page.elements {
            for (attribute, value) in &element.attributes {
                assert!(
                    !value.contains("//"),
                    "{name}: {} {attribute}={value}",
                    element.name
                );
                if attribute == "href" {
                    assert!(
                        value.starts_with('#') || value == "data:,",
                        "{name}: {value}"
                    );
                }
            }
        }
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
}

#[test]
fn hostile_names_stay_text() {
    let hostile = "</script></title><img src=x onerror=alert(1)>\"'&\u{2028}<!--";
    let mut profile = fixture::two_nodes(2);
    profile.machine.host = hostile.into();
    profile.machine.cpu.model_name = hostile.into();
    profile.machine.conditions.kernel = hostile.into();
    profile.machine.conditions.hypervisor = Some(hostile.into());
    profile.machine.conditions.labels = [(hostile.to_owned(), hostile.to_owned())].into();
    profile.machine.membound_version = hostile.into();
    for level in &mut profile.levels {
        level.name = hostile.into();
        level.note = Some(hostile.into());
    }
    if let Outcome::Known(latency) = &mut profile.latency {
        latency.skipped = vec![hostile.into()];
        latency.crowding[0].meaning = hostile.into();
        for point in &mut latency.points {
            point.prefetch = PrefetchState::Without(hostile.into());
        }
    }
    if let Outcome::Known(bandwidth) = &mut profile.bandwidth {
        bandwidth.counting = hostile.into();
        for point in &mut bandwidth.points {
            point.level = Some(hostile.into());
        }
    }
    if let Outcome::Known(mlp) = &mut profile.mlp {
        mlp.windows[0].limited_by = hostile.into();
    }
    profile.prefetch = Outcome::missing_with(hostile, hostile);
    let page = Page::parse(&render(&profile));
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    assert_eq!(page.named("script").count(), 2);
    assert_eq!(page.named("img").count(), 0);
    for element in &page.elements {
        for attribute in element.attributes.keys() {
            assert!(!attribute.starts_with("on"), "{} {attribute}", element.name);
        }
    }
    let heading = page.named("h1").next().expect("there is a heading");
    assert_eq!(heading.text, hostile);
    let json = page
        .by_id("membound-levels")
        .expect("the head is there as JSON");
    let head: serde_json::Value = serde_json::from_str(&json.text).expect("it is JSON");
    assert_eq!(head["host"], hostile);
    assert_eq!(head["levels"][0]["name"], hostile);
}

#[test]
fn values_can_be_read_without_a_pointer_and_without_a_script() {
    let page = Page::parse(&render(&fixture::two_nodes(32)));
    let charts: Vec<_> = page.with_class("chart").collect();
    assert!(charts.len() >= CHARTS.len());
    for chart in &charts {
        assert_eq!(chart.attribute("tabindex"), "0");
        assert_eq!(chart.attribute("role"), "img");
        assert!(chart.attribute("aria-label").len() > 20);
    }
    for figure in page.named("figure") {
        assert!(
            figure.text.contains("data"),
            "{} has no table",
            figure.attribute("id")
        );
    }
    // Each marker contains its value as a title, which a browser shows without a script.
    let marks = page
        .elements
        .iter()
        .filter(|element| {
            element.name == "use" && element.around.iter().any(|name| name == "figure")
        })
        .filter(|element| !element.around.iter().any(|name| name == "button"));
    for mark in marks {
        assert!(!mark.text.is_empty(), "a marker without its value");
    }
    let tables = page
        .named("table")
        .filter(|table| table.around.iter().any(|name| name == "details"))
        .count();
    assert!(
        tables >= charts.len(),
        "{tables} tables for {} charts",
        charts.len()
    );
}

#[test]
fn levels_stand_first_with_effective_and_declared_sizes() {
    let page = Page::parse(&render(&fixture::profile(Extent::Quick)));
    let table = page
        .with_class("levels")
        .next()
        .expect("there is a table of levels");
    for text in [
        "L1",
        "47.9 KiB",
        "48 KiB",
        "11 MiB",
        "32 MiB",
        "34 % of it seen",
        "0.96 ns",
    ] {
        assert!(table.text.contains(text), "{text} is not in {}", table.text);
    }
    let curve = page.by_id("latency-curve").expect("there is a curve");
    assert!(curve.text.contains("L3 11 MiB"), "the level is marked");
    assert!(
        curve.text.contains("L3 declared 32 MiB"),
        "the declared size is marked"
    );
    let declared = page
        .with_class("declared")
        .filter(|mark| mark.name == "g")
        .count();
    assert!(declared >= 3);
}

#[test]
fn perturbed_points_are_hollow_and_have_a_reason() {
    let mut profile = fixture::profile(Extent::Quick);
    if let Outcome::Known(latency) = &mut profile.latency {
        for point in &mut latency.points {
            point.batches.disturbed = Default::default();
        }
        let first = &mut latency.points[0];
        first.batches.disturbed.slow_mode = Some(2.5);
        first.batches.disturbed.slow_share = Some(0.25);
        first.batches.disturbed.migrations = 3;
    }
    let html = render(&profile);
    let start = html.find("id=\"latency-curve\"").expect("there is a curve");
    let end = start + html[start..].find("</figure>").expect("the figure ends");
    let page = Page::parse(&html[start..end]);
    let hollow: Vec<_> = page.with_class("h").collect();
    assert_eq!(hollow.len(), 1);
    let text = &hollow[0].text;
    assert!(
        text.contains("two modes: 25 % of the samples near 2.50 ns"),
        "{text}"
    );
    assert!(text.contains("3 migrations"), "{text}");
    assert!(html.contains("slow phases by name"));
}

#[test]
fn raw_samples_stay_out_of_the_page() {
    let mut profile = fixture::profile(Extent::Quick);
    let before = render(&profile).len();
    if let Outcome::Known(latency) = &mut profile.latency {
        for point in &mut latency.points {
            point.batches.raw = vec![1.234_567_89; 10_000];
        }
    }
    assert_eq!(render(&profile).len(), before);
}
