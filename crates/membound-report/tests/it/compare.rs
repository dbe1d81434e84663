//! Comparisons as text and as a page.

pub(crate) mod fixture;

use membound_report::page;
use membound_report::text::{self, Shown, Style};
use membound_types::{ComparedFigure, Comparison};
use textwrap::core::display_width;

use crate::dom::Page;
use crate::terminal;

fn all() -> [(&'static str, Comparison); 5] {
    [
        ("two profiles", fixture::two_profiles()),
        ("a fleet", fixture::fleet()),
        ("against a median", fixture::against_a_median()),
        ("many", fixture::many_profiles(40)),
        ("nothing", fixture::empty()),
    ]
}

fn shown(comparison: &Comparison) -> String {
    text::comparison(comparison, Shown::Differences, Style::default())
}

#[test]
fn at_eighty_columns() {
    insta::assert_snapshot!("compare_two_profiles", shown(&fixture::two_profiles()));
    insta::assert_snapshot!("compare_fleet", shown(&fixture::fleet()));
    insta::assert_snapshot!(
        "compare_everything",
        text::comparison(
            &fixture::two_profiles(),
            Shown::Everything,
            Style::default()
        )
    );
}

#[test]
fn no_line_is_wider_than_the_terminal_and_colour_changes_no_letter() {
    for (name, comparison) in all() {
        for shown in [Shown::Differences, Shown::Everything] {
            terminal::check(name, |style| text::comparison(&comparison, shown, style));
        }
    }
}

#[test]
fn labels_stand_over_the_columns_and_in_the_documents_table() {
    let text = shown(&fixture::two_profiles());
    let header = text
        .lines()
        .find(|line| line.contains("figure") && line.contains("change"))
        .expect("there is a table of figures");
    assert!(
        header.contains("H0G0") && header.contains("H0G1"),
        "{header}"
    );
    for row in ["H0G0, thp pages", "H0G1, 4k pages"] {
        assert!(text.contains(row), "{row} is not in\n{text}");
    }
    let page = Page::parse(&page::comparison(&fixture::two_profiles()));
    for label in ["H0G0", "H0G1"] {
        let heads = page.named("th").filter(|head| head.text == label);
        assert!(heads.count() >= 2, "{label} heads no column");
    }
    // If names are too long for columns, letters replace them, which the list of profiles explains.
    let many = shown(&fixture::many_profiles(3));
    assert!(
        many.contains("C against A") && many.contains("C  cluster-west-002"),
        "{many}"
    );
}

#[test]
fn conditions_of_long_labels_stay_distinct_on_narrow_terminals() {
    let mut comparison = fixture::two_profiles();
    let labels = ["placement=free", "placement=own-cpus"];
    for (profile, name) in comparison.profiles.iter_mut().zip(labels) {
        profile.name = name.into();
    }
    let rows: Vec<_> = labels
        .iter()
        .flat_map(|name| ["thp", "4k"].map(|pages| (name, pages)))
        .map(|(name, pages)| {
            let mut row = comparison.conditions[0].clone();
            row.profile = (*name).into();
            row.condition = format!("{name}, {pages} pages");
            row
        })
        .collect();
    comparison.conditions = rows;
    for width in [60, 80] {
        let style = Style {
            width,
            ..Style::default()
        };
        let text = text::comparison(&comparison, Shown::Differences, style);
        let mut names: Vec<Vec<&str>> = text
            .lines()
            .skip_while(|line| !line.contains("one load"))
            .skip(1)
            .take(4)
            .map(|line| line.split("  ").take(2).collect())
            .collect();
        names.dedup();
        assert_eq!(names.len(), 4, "{text}");
    }
}

#[test]
fn the_documents_table_has_ranges_fractions_and_words() {
    let text = shown(&fixture::two_profiles());
    for part in [
        "4.4 (4–5)",
        "490–500 / 560–570",
        "196–204",
        "418–422",
        "52.0–68.0",
        "within noise",
        "> 410",
        "nil",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_browser_has_nothing_to_mend_and_nothing_to_load() {
    for (name, comparison) in all() {
        let html = page::comparison(&comparison);
        let page = Page::sound(name, &html);
        assert_eq!(page.named("h1").count(), 1, "{name}");
        assert!(page.named("h2").count() >= 1, "{name}");
    }
}

#[test]
fn every_section_with_content_is_present() {
    let check = |comparison: &Comparison, right: &[&str]| {
        let page = Page::parse(&page::comparison(comparison));
        let sections: Vec<&str> = page
            .named("section")
            .map(|section| section.attribute("id"))
            .collect();
        assert_eq!(sections, right);
    };
    check(
        &fixture::two_profiles(),
        &["figures", "curves", "conditions", "overlays", "method"],
    );
    check(&fixture::fleet(), &["fleet", "method"]);
    check(
        &fixture::against_a_median(),
        &["figures", "conditions", "overlays", "fleet", "method"],
    );
    check(&fixture::empty(), &["method"]);
}

#[test]
fn everything_can_be_read_without_a_script() {
    let comparison = fixture::two_profiles();
    let page = Page::parse(&page::comparison(&comparison));
    for figure in &comparison.figures {
        let rows: Vec<_> = page
            .named("tr")
            .filter(|row| row.attribute("title") == figure.name)
            .collect();
        assert!(
            rows.iter().any(|row| row.text.contains(&figure.title)),
            "{} is in no table",
            figure.name
        );
    }
    for curve in &comparison.curves {
        let row = page
            .named("tr")
            .find(|row| row.attribute("title") == curve.name)
            .unwrap_or_else(|| panic!("{} is in no table", curve.name));
        assert!(row.text.contains(&curve.title));
    }
    let dram = page
        .named("tr")
        .find(|row| row.attribute("title") == "levels.DRAM.latency_ns")
        .expect("DRAM differs");
    for text in ["160 ns", "178 ns", "+11 %", "worse"] {
        assert!(dram.text.contains(text), "{text} is not in {}", dram.text);
    }
    for chart in page.with_class("chart") {
        assert_eq!(chart.attribute("role"), "img");
        assert!(chart.attribute("aria-label").len() > 20);
    }
    assert!(page.named("figure").count() >= 5);
    for figure in page.named("figure") {
        assert!(figure.text.contains("data"), "a chart without its table");
    }
    for table in page.named("table") {
        let head = table.text.trim();
        assert!(!head.is_empty(), "an empty table");
    }
    for scroll in page.with_class("scroll") {
        assert_eq!(scroll.attribute("tabindex"), "0", "no way there by key");
        assert!(!scroll.attribute("aria-label").is_empty());
    }
}

#[test]
fn a_bad_host_is_named_first_with_all_its_outliers() {
    let comparison = fixture::fleet();
    let page = Page::parse(&page::comparison(&comparison));
    let fleet = page.by_id("fleet").expect("there is a fleet");
    for text in [
        "node17",
        "a slow or missing DIMM",
        "powersave (usual: performance)",
        "17 outliers, 15 for the worse",
        "5 more outliers",
        "the part bandwidth",
        "Too few profiles",
    ] {
        assert!(fleet.text.contains(text), "{text} is not in the fleet");
    }
    for outlier in &comparison.fleets[0].odd[0].outliers {
        assert!(fleet.text.contains(&outlier.title), "{}", outlier.title);
    }
    let place = |text: &str| fleet.text.find(text);
    assert!(place("node17") < place("What is usual"));
    let text = shown(&comparison);
    assert!(text.contains("node17") && text.contains("DIMM"), "{text}");
    assert!(page.elements.iter().any(|it| it.text.contains("cut.json")));
}

#[test]
fn hostile_names_stay_text() {
    let hostile = "</script></title><img src=x onerror=alert(1)>\"'&\u{2028}<!--\x1b[31m";
    let mut comparison = fixture::against_a_median();
    comparison.curves = fixture::two_profiles().curves;
    for profile in &mut comparison.profiles {
        for field in [
            &mut profile.name,
            &mut profile.file,
            &mut profile.host,
            &mut profile.date,
            &mut profile.cpu,
            &mut profile.kernel,
        ] {
            *field = hostile.into();
        }
        profile.hypervisor = Some(hostile.into());
    }
    for figure in &mut comparison.figures {
        (figure.name, figure.part) = (hostile.into(), hostile.into());
        (figure.title, figure.unit) = (hostile.into(), hostile.into());
    }
    for curve in &mut comparison.curves {
        (curve.name, curve.part, curve.title) = (hostile.into(), hostile.into(), hostile.into());
        (curve.x_unit, curve.y_unit, curve.profile) =
            (hostile.into(), hostile.into(), hostile.into());
    }
    for row in &mut comparison.conditions {
        (row.profile, row.condition) = (hostile.into(), hostile.into());
    }
    for group in &mut comparison.fleets {
        group.cpu = hostile.into();
        for profile in &mut group.odd {
            (profile.host, profile.file) = (hostile.into(), hostile.into());
            profile.hints = vec![hostile.into()];
            profile.missing = vec![hostile.into()];
            for outlier in &mut profile.outliers {
                (outlier.name, outlier.title) = (hostile.into(), hostile.into());
            }
        }
    }
    comparison.notes = vec![hostile.into()];
    let page = Page::parse(&page::comparison(&comparison));
    assert_eq!(page.named("img").count(), 0);
    for element in &page.elements {
        for attribute in element.attributes.keys() {
            assert!(!attribute.starts_with("on"), "{} {attribute}", element.name);
        }
    }
    for width in [40, 80] {
        let style = Style {
            color: false,
            width,
        };
        let text = text::comparison(&comparison, Shown::Everything, style);
        assert!(!text.contains('\x1b'));
        for line in text.lines() {
            assert!(display_width(line) <= width, "{line}");
        }
    }
}

#[test]
fn columns_that_a_document_lacks_are_dashes() {
    let mut comparison = fixture::two_profiles();
    for figure in &mut comparison.figures {
        figure.values.truncate(1);
        figure.differences.clear();
    }
    assert!(shown(&comparison).contains("H0G1 against H0G0"));
    assert!(
        Page::parse(&page::comparison(&comparison))
            .errors
            .is_empty()
    );
}

#[test]
fn the_longest_titles_are_whole_at_eighty_columns() {
    let mut comparison = fixture::two_profiles();
    let titles = [
        "branch fillers: branches in flight, thp",
        "branch fillers: branches in flight, 4k",
        "integer fillers: integer registers, thp",
        "vector fillers: vector registers, thp",
    ];
    let cycles = comparison.figures.iter().find(|it| it.unit == "cycles");
    let cycles = cycles.expect("one figure is in cycles").clone();
    for title in titles {
        comparison.figures.push(ComparedFigure {
            title: title.to_owned(),
            ..cycles.clone()
        });
    }
    let text = shown(&comparison);
    for title in titles {
        assert!(text.contains(title), "{title} is not in\n{text}");
    }
}
