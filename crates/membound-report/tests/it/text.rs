//! Text for a terminal, 80 columns wide and other widths.

use membound_report::text::{self, Style};
use membound_types::{
    Document, Kind, LatencyPoint, MachineProfile, NodeId, NodePolicy, Outcome, PageKind, Pattern,
    PrefetchState, SCHEMA_VERSION,
};
use textwrap::core::display_width;

use crate::fixture::{self, Extent};

fn document<P: Clone>(profile: &MachineProfile, kind: Kind, part: &Outcome<P>) -> Document<P> {
    Document {
        schema_version: SCHEMA_VERSION,
        kind,
        incomplete: profile.incomplete,
        machine: profile.machine.clone(),
        part: part.known().expect("the fixture has this part").clone(),
    }
}

/// All texts by name.
fn all(profile: &MachineProfile, style: Style) -> Vec<(&'static str, String)> {
    let p = profile;
    vec![
        ("profile", text::machine(p, style)),
        (
            "latency",
            text::latency(&document(p, Kind::Latency, &p.latency), &p.levels, style),
        ),
        ("mlp", text::mlp(&document(p, Kind::Mlp, &p.mlp), style)),
        (
            "window",
            text::window(&document(p, Kind::Window, &p.window), style),
        ),
        (
            "bandwidth",
            text::bandwidth(&document(p, Kind::Bandwidth, &p.bandwidth), style),
        ),
        (
            "loaded",
            text::loaded(&document(p, Kind::Loaded, &p.loaded), style),
        ),
        ("tlb", text::tlb(&document(p, Kind::Tlb, &p.tlb), style)),
        (
            "prefetch",
            text::prefetch(&document(p, Kind::Prefetch, &p.prefetch), style),
        ),
        ("numa", text::numa(&document(p, Kind::Numa, &p.numa), style)),
        ("c2c", text::c2c(&document(p, Kind::C2c, &p.c2c), style)),
    ]
}

fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('\x1b') {
        out.push_str(&rest[..start]);
        let end = rest[start..].find('m').expect("an escape ends");
        rest = &rest[start + end + 1..];
    }
    out + rest
}

#[test]
fn at_eighty_columns() {
    for (name, shown) in all(&fixture::two_nodes(8), Style::default()) {
        insta::assert_snapshot!(name, shown);
    }
}

/// The first curve in three settings of POWER's prefetch register: without prefetch twice as slow, with
/// strided streams as found.
fn in_three_settings() -> MachineProfile {
    let mut profile = fixture::two_nodes(8);
    let Outcome::Known(latency) = &mut profile.latency else {
        panic!("the fixture has latencies");
    };
    let first = latency.points[0].clone();
    let alike = |point: &LatencyPoint| {
        (
            point.pattern,
            point.page,
            point.access,
            point.threads,
            point.stride_bytes,
        ) == (
            first.pattern,
            first.page,
            first.access,
            first.threads,
            first.stride_bytes,
        )
    };
    latency.points.retain(alike);
    let found = latency.points.clone();
    for (name, times) in [("dscr=1", 2.0), ("dscr=16", 1.0)] {
        latency
            .points
            .extend(found.iter().cloned().map(|point| LatencyPoint {
                prefetch: PrefetchState::of_name(name),
                ns: times * point.ns,
                ns_low: times * point.ns_low,
                ns_high: times * point.ns_high,
                ..point
            }));
    }
    profile
}

#[test]
fn prefetch_settings_stand_side_by_side() {
    let profile = in_three_settings();
    let document = document(&profile, Kind::Latency, &profile.latency);
    let shown = text::latency(&document, &profile.levels, Style::default());
    let at = shown
        .find("ns by prefetch setting")
        .expect("the settings have a table");
    let lines: Vec<&str> = shown[at..].lines().collect();
    let row = |title: &str| -> Vec<&str> {
        let line = lines.iter().find(|line| line.starts_with(title));
        line.expect("each setting has a row")
            .split_whitespace()
            .collect()
    };
    assert_eq!(row("as found").last(), Some(&"1.00"));
    assert_eq!(row("dscr=1 none").last(), Some(&"2.00"));
    assert_eq!(row("dscr=16 usual depth, stride-N").last(), Some(&"1.00"));
    let text = lines.join(" ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("dscr=1 none is the slowest, 2.00 of as found"),
        "{text}"
    );
    assert!(!text.contains("is the fastest"), "{text}");
    let page = membound_report::page::render(&profile);
    assert!(page.contains("Prefetch settings over size"));
    assert!(page.contains("dscr=16 usual depth, stride-N"));
    // With one setting there is nothing to compare.
    let usual = fixture::two_nodes(8);
    assert!(!membound_report::page::render(&usual).contains("Prefetch settings over size"));
}

#[test]
fn nothing_measured() {
    insta::assert_snapshot!(text::machine(
        &fixture::nothing_measured(),
        Style::default()
    ));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let profiles = [
        fixture::profile(Extent::Quick),
        fixture::profile(Extent::Thorough),
        fixture::two_nodes(64),
    ];
    for profile in &profiles {
        for width in [40, 60, 80, 132] {
            for color in [false, true] {
                for (name, shown) in all(profile, Style { color, width }) {
                    for line in plain(&shown).lines() {
                        assert!(display_width(line) <= width, "{name} at {width}: {line}");
                        assert_eq!(line, line.trim_end(), "{name} at {width}");
                    }
                }
            }
        }
    }
    let nothing = text::machine(&fixture::nothing_measured(), Style::default());
    assert!(nothing.lines().all(|line| display_width(line) <= 80));
}

#[test]
fn colour_changes_no_letter() {
    let profile = fixture::two_nodes(8);
    let width = 80;
    let without = all(
        &profile,
        Style {
            color: false,
            width,
        },
    );
    let with = all(&profile, Style { color: true, width });
    for ((name, without), (_, with)) in without.into_iter().zip(with) {
        assert!(!without.contains('\x1b'), "{name}");
        assert_eq!(plain(&with), without, "{name}");
    }
}

#[test]
fn levels_come_before_everything_else() {
    let shown = text::machine(&fixture::profile(Extent::Quick), Style::default());
    let place = |text: &str| {
        shown
            .find(text)
            .unwrap_or_else(|| panic!("{text} is missing"))
    };
    assert!(place("level  effective") < place("reorder buffer: 449"));
    assert!(place("reorder buffer: 449") < place("latency  "));
    assert!(place("level  effective") < 400, "the answer is at the top");
}

#[test]
fn an_incomplete_part_is_marked() {
    let mut profile = fixture::profile(Extent::Quick);
    profile.incomplete = true;
    for (name, shown) in all(&profile, Style::default()) {
        assert!(name == "levels" || shown.contains("! incomplete"), "{name}");
    }
}

#[test]
fn curves_of_a_family_share_a_picture_with_their_names() {
    let drawn = |text: &str, name: &str| {
        let mut lines = text.lines().filter(|line| line.contains('│'));
        lines.any(|line| line.ends_with(&format!(" {name}")))
    };
    let mut profile = fixture::two_nodes(8);
    let shown = |profile: &MachineProfile| {
        let document = document(profile, Kind::Latency, &profile.latency);
        text::latency(&document, &profile.levels, Style::default())
    };
    let text = shown(&profile);
    for name in [
        "thp, 1 copy",
        "thp, 2 copies",
        "4k, 1 copy",
        "stride",
        "16 B",
        "1 KiB",
    ] {
        assert!(drawn(&text, name), "{name} is not in\n{text}");
    }
    // The second node is a curve of its own.
    let Outcome::Known(latency) = &mut profile.latency else {
        panic!("the fixture has latencies");
    };
    let remote: Vec<LatencyPoint> = latency
        .points
        .iter()
        .filter(|point| point.page == PageKind::Thp && point.pattern == Pattern::Random)
        .map(|point| LatencyPoint {
            node: NodePolicy::Node(NodeId(1)),
            ns: 1.7 * point.ns,
            ..point.clone()
        })
        .collect();
    latency.points.extend(remote);
    let text = shown(&profile);
    assert!(drawn(&text, "thp, 1 copy, node 1"), "{text}");
    // Long titles of settings are letters with a legend.
    let text = shown(&in_three_settings());
    for line in ["  A: as found", "  B: dscr=1 none"] {
        assert!(
            text.lines().any(|it| it == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(drawn(&text, "A") && drawn(&text, "B"), "{text}");
}

#[test]
fn measured_windows_are_drawn_whatever_their_levels() {
    let profile = fixture::two_nodes(8);
    let mut document = document(&profile, Kind::Window, &profile.window);
    // A ramp has no levels.
    for point in &mut document.part.points {
        point.seconds_per_window = 1e-9 * (point.area_bytes as f64).log2();
    }
    let text = text::window(&document, Style::default());
    let pictures = text.matches("over the area; as measured").count();
    assert_eq!(pictures, 2, "one for each kernel:\n{text}");
    assert!(text.lines().any(|line| line.ends_with(" 1 KiB")), "{text}");
}

#[test]
fn an_area_whose_time_is_that_of_the_empty_kernel_has_neither_time_nor_ratio() {
    let profile = fixture::two_nodes(8);
    let mut document = document(&profile, Kind::Mlp, &profile.mlp);
    for point in &mut document.part.areas {
        if point.area_bytes == 1 << 10 && point.loads == 1 {
            (point.cycles, point.spread) = (0.0, 4.0);
        }
        if point.area_bytes == 2 << 10 && point.loads == 11 {
            (point.cycles, point.spread) = (4.0, 3.0);
        }
    }
    let text = text::mlp(&document, Style::default());
    let at = text.find("area sweep").expect("the sweep has a table");
    let row = |size: &str| -> Vec<&str> {
        let line = text[at..]
            .lines()
            .find(|line| line.trim_start().starts_with(size));
        let words = line.expect("each area has a row").split_whitespace();
        words.skip(2).take(3).collect()
    };
    assert_eq!(row("1 KiB  "), ["–", "14.1", "–"]);
    assert_eq!(row("2 KiB  ")[1..], ["–", "–"]);
    assert!(text[at..].contains("cannot be told apart from that of the empty kernel"));
    assert!(
        text[at..].contains(" N=11") && text[at..].contains(" N=1\n"),
        "{text}"
    );
    // One line an area, because every N has the same shares.
    let at = text
        .find("hits of N accesses")
        .expect("the hits have a table");
    let rows = text[at..]
        .lines()
        .filter(|line| line.starts_with(" 64 KiB"));
    assert_eq!(rows.count(), 1, "{text}");
}
