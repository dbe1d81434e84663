//! Profiles and comparisons of runs on a terminal.

use membound_report::gates::{self, Undecided};
use membound_report::text::{self, Style};
use membound_report::{By, Grouping, Sort, export};
use membound_types::{Detail, Profile};

use super::fixture;
use crate::terminal;

fn all() -> Vec<(&'static str, Profile, Detail)> {
    [
        ("simulation", fixture::simulation()),
        ("two nodes", fixture::two_nodes()),
        ("nothing", fixture::nothing()),
        ("large", fixture::large(2_000)),
    ]
    .map(|(name, (profile, detail))| (name, profile, detail))
    .into()
}

#[test]
fn at_eighty_columns() {
    let (profile, detail) = fixture::simulation();
    for &by in By::ALL {
        insta::assert_snapshot!(
            format!("run_{}", by.name().replace(',', "_")),
            text::profile(&profile, &detail, by, Style::default())
        );
    }
    let (two, of_two) = fixture::two_nodes();
    insta::assert_snapshot!(
        "run_two_nodes",
        text::profile(&two, &of_two, By::Summary, Style::default())
    );
    insta::assert_snapshot!(
        "run_nodes",
        text::profile(&two, &of_two, By::Node, Style::default())
    );
    insta::assert_snapshot!(
        "run_platform",
        text::profile(&two, &of_two, By::BandwidthDomain, Style::default())
    );
    let (nothing, of_nothing) = fixture::nothing();
    insta::assert_snapshot!(
        "run_nothing",
        text::profile(&nothing, &of_nothing, By::Summary, Style::default())
    );
    insta::assert_snapshot!(
        "run_listing",
        text::listing(&detail, Some("gather"), Style::default()).expect("it is hot")
    );
    insta::assert_snapshot!(
        "run_comparison",
        text::run_comparison(&fixture::comparison(), Style::default())
    );
    insta::assert_snapshot!(
        "run_gates",
        text::run_comparison(&fixture::gated(), Style::default())
    );
    insta::assert_snapshot!(
        "run_gates_markdown",
        gates::markdown(&fixture::gated(), Undecided::Passes)
    );
    insta::assert_snapshot!(
        "run_gates_junit",
        gates::junit(&fixture::gated(), Undecided::Passes).unwrap()
    );
}

#[test]
fn no_line_is_wider_than_the_terminal_and_colour_changes_no_letter() {
    for (name, profile, detail) in all() {
        terminal::check(name, |style| {
            text::listing(&detail, None, style).unwrap_or_else(|| "nothing\n".to_owned())
        });
        for &by in By::ALL {
            terminal::check(name, |style| text::profile(&profile, &detail, by, style));
        }
    }
    for comparison in [fixture::comparison(), fixture::gated()] {
        terminal::check("comparison", |style| {
            text::run_comparison(&comparison, style)
        });
    }
}

#[test]
fn the_summary_answers_in_one_screen() {
    let (profile, detail) = fixture::simulation();
    let text = text::profile(&profile, &detail, By::Summary, Style::default());
    let lines = text.lines().count();
    assert!(lines <= 52, "{lines} lines\n{text}");
    let place = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("{what} is not in\n{text}"))
    };
    let order = [
        "memory bound 53 % [51, 54]",
        "DRAM 36 %",
        "What to do",
        "Where it waits",
        "forces.cpp:88",
        "On which object",
        "main.cpp:31 (128 MiB)",
        "False sharing",
        "samples by the kernel's CPU clock",
    ];
    assert!(order.map(place).is_sorted(), "{text}");
}

#[test]
fn an_empty_run_gives_the_reason() {
    let (profile, detail) = fixture::nothing();
    let text = text::profile(&profile, &detail, By::Summary, Style::default());
    let text: Vec<&str> = text.split_whitespace().collect();
    let text = text.join(" ");
    for part in [
        "process 77",
        "ended by signal 9",
        "incomplete",
        "no sample was taken",
        "objects: the process was not started by membound",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("memory bound 0 %"), "{text}");
    assert_eq!(text::listing(&detail, None, Style::default()), None);
}

#[test]
fn a_function_that_is_not_there_has_no_listing() {
    let (_, detail) = fixture::simulation();
    let found = text::listing(&detail, Some("nosuch"), Style::default());
    assert_eq!(found, None);
}

#[test]
fn names_from_binaries_do_not_reach_the_terminal_raw() {
    let (mut profile, mut detail) = fixture::simulation();
    let hostile = "a\x1b]0;title\x07\u{202e}\nb";
    for row in profile.functions.iter_mut().chain(&mut profile.lines) {
        (row.name, row.function) = (hostile.into(), hostile.into());
    }
    for row in &mut profile.objects {
        row.name = hostile.into();
        row.alloc_stack
            .iter_mut()
            .for_each(|it| it.function = hostile.into());
    }
    for line in &mut profile.false_sharing {
        (line.object, line.advice) = (hostile.into(), hostile.into());
        line.threads
            .iter_mut()
            .for_each(|it| it.name = hostile.into());
    }
    for row in &mut profile.function_objects {
        (row.function, row.object) = (hostile.into(), hostile.into());
    }
    detail
        .names
        .iter_mut()
        .for_each(|name| *name = hostile.into());
    profile.run.command = vec![hostile.into()];
    profile.findings[0].text = hostile.into();
    profile.missing[0].table = hostile.into();
    detail.listings[0].function = hostile.into();
    detail.listings[0].source[0].text = hostile.into();
    detail.listings[0].assembly[0].text = hostile.into();
    let mut texts = vec![text::listing(&detail, None, Style::default()).expect("there is code")];
    texts
        .extend((By::ALL.iter()).map(|&by| text::profile(&profile, &detail, by, Style::default())));
    for text in texts {
        for bad in ['\x1b', '\x07', '\u{202e}'] {
            assert!(!text.contains(bad), "{text:?}");
        }
    }
}

#[test]
fn rows_come_in_the_order_that_was_asked_for() {
    let (profile, detail) = fixture::simulation();
    let order = |by: By, sort: Sort| -> Vec<String> {
        let grouping = Grouping {
            by,
            sort,
            ..Grouping::default()
        };
        assert_eq!(grouping.check(), Ok(()));
        let csv = export::csv(&profile, &detail, grouping);
        let rows = csv.lines().skip(1);
        rows.map(|row| row.split(',').next().unwrap().trim_matches('"').to_owned())
            .collect()
    };
    assert_eq!(
        order(By::Object, Sort::Loads),
        [
            "stats.cpp:19 (512 B)",
            "main.cpp:31 (128 MiB)",
            "forces.cpp:40 (96 KiB)",
            "cells.cpp:77 (48 B)",
            "sim::settings::text",
        ]
    );
    assert_eq!(order(By::Object, Sort::Size)[0], "main.cpp:31 (128 MiB)");
    assert_eq!(order(By::Object, Sort::Name)[0], "cells.cpp:77 (48 B)");
    assert_eq!(order(By::Object, Sort::Latency)[1], "cells.cpp:77 (48 B)");
    let grouping = Grouping {
        by: By::Object,
        sort: Sort::Misses,
        ..Grouping::default()
    };
    let text = text::profile(&profile, &detail, grouping, Style::default());
    assert!(text.starts_with("By object, sorted by misses"), "{text}");
    let place = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}\n{text}"));
    assert!(place("main.cpp:31") < place("stats.cpp:19"), "{text}");
}

#[test]
fn an_object_s_accesses_misses_and_latency_fit_eighty_columns() {
    let (profile, detail) = fixture::simulation();
    let text = text::profile(&profile, &detail, By::Object, Style::default());
    for title in ["loads", "stores", "misses", "latency", "sharing"] {
        assert!(text.contains(title), "{title}\n{text}");
    }
    assert!(text.contains("240 M"), "loads of the counters\n{text}");
}
