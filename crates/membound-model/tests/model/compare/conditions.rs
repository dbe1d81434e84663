//! Document 000's table from its own figures, and the names that labels give.

use membound_model::compare::{MlpView, NamedProfile, ProfileView, compare, table};
use membound_types::{
    Filler, MlpCell, MlpMode, NodePolicy, Outcome, PageKind, PlacementPoint, Placements,
};

/// A condition of document 000, with the figures that its chapters print.
fn condition(
    labels: &[(&str, &str)],
    page: PageKind,
    times: &[(u32, f64, f64)],
    one: (f64, f64),
    pair: (f64, f64),
) -> ProfileView {
    let cell = |mode, loads, (cycles, spread): (f64, f64)| MlpCell {
        mode,
        loads,
        fillers: 1,
        filler: Filler::Nop,
        area_bytes: 1 << 28,
        node: NodePolicy::LOCAL,
        page,
        cycles,
        spread,
        misses: Outcome::missing("no counters"),
    };
    let mut cells = vec![
        cell(MlpMode::Sequential, 1, one),
        cell(MlpMode::Sequential, 2, pair),
    ];
    for (loads, cycles, spread) in times {
        cells.push(cell(MlpMode::Parallel, *loads, (*cycles, *spread)));
    }
    let mut view = ProfileView {
        mlp: MlpView {
            cells,
            page,
            ..MlpView::default()
        },
        ..ProfileView::default()
    };
    view.conditions.labels = labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    view
}

#[test]
fn the_documents_table_comes_out_of_the_documents_figures() {
    let guest = |host, guest| vec![("host-thp", host), ("guest-thp", guest)];
    let rows = [
        condition(
            &[],
            PageKind::Thp,
            &[(2, 220.0, 2.0), (10, 340.0, 2.0), (11, 420.0, 2.0)],
            (200.0, 4.0),
            (420.0, 2.0),
        ),
        condition(
            &[],
            PageKind::Base,
            &[(5, 495.0, 5.0), (6, 565.0, 5.0)],
            (260.0, 4.0),
            (520.0, 2.0),
        ),
        condition(
            &guest("on", "off"),
            PageKind::Base,
            &[(4, 630.0, 2.0), (5, 690.0, 2.0)],
            (350.0, 10.0),
            (650.0, 2.0),
        ),
        condition(
            &guest("off", "off"),
            PageKind::Base,
            &[(4, 725.0, 15.0), (5, 825.0, 25.0)],
            (435.0, 15.0),
            (800.0, 10.0),
        ),
        condition(
            &guest("off", "on"),
            PageKind::Thp,
            &[(3, 540.0, 5.0), (4, 600.0, 5.0)],
            (330.0, 5.0),
            (600.0, 5.0),
        ),
    ];
    let profiles: Vec<NamedProfile> = rows
        .into_iter()
        .enumerate()
        .map(|(index, view)| NamedProfile {
            file: format!("{index}.json"),
            view,
        })
        .collect();
    let found = compare(&profiles, None);
    let table = &found.conditions;
    let conditions: Vec<&str> = table.iter().map(|row| row.condition.as_str()).collect();
    assert_eq!(
        conditions,
        [
            "thp pages",
            "4k pages",
            "H0G1, 4k pages",
            "H1G1, 4k pages",
            "H1G0, thp pages"
        ]
    );
    let known = |row: usize| table[row].effective_mlp.known().unwrap().value;
    for (row, low, high) in [
        (0, 10.0, 10.0),
        (1, 4.0, 5.0),
        (2, 3.0, 4.0),
        (3, 3.0, 4.0),
        (4, 3.0, 3.0),
    ] {
        let mlp = known(row);
        assert!(mlp >= low - 1e-9 && mlp <= high + 1e-9, "row {row}: {mlp}");
    }
    let between = (table[1].below.unwrap(), table[1].reached.unwrap());
    assert_eq!((between.0.loads, between.1.loads), (5, 6));
    assert_eq!((between.0.cycles, between.1.cycles), (495.0, 565.0));
    assert!(table[0].overhead_cycles.known().is_none());
    for (row, low, high) in [(1, 52.0, 68.0), (2, 136.0, 164.0), (4, 121.0, 139.0)] {
        let overhead = table[row].overhead_cycles.known().unwrap();
        assert!((overhead.low.unwrap() - low).abs() < 1e-9, "{overhead:?}");
        assert!((overhead.high.unwrap() - high).abs() < 1e-9, "{overhead:?}");
    }
    assert!(table::rows("empty", &ProfileView::default()).is_empty());
}

/// Checks that profiles of the same host with these labels get these names.
fn check_names(labels: &[&[(&str, &str)]], names: &[&str]) {
    let profiles: Vec<NamedProfile> = labels
        .iter()
        .enumerate()
        .map(|(index, labels)| {
            let times = [(2, 220.0, 2.0), (10, 340.0, 2.0), (11, 420.0, 2.0)];
            let mut view = condition(labels, PageKind::Thp, &times, (200.0, 4.0), (420.0, 2.0));
            view.host = "host".to_owned();
            NamedProfile {
                file: format!("run{index}.json"),
                view,
            }
        })
        .collect();
    let found = compare(&profiles, None);
    let heads: Vec<&str> = found.profiles.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(heads, names);
    let rows: Vec<&str> = found
        .conditions
        .iter()
        .map(|it| it.profile.as_str())
        .collect();
    assert_eq!(rows, names, "rows of the table");
    for (row, labels) in found.conditions.iter().zip(labels) {
        let kept = &found
            .profiles
            .iter()
            .find(|it| it.name == row.profile)
            .expect("a row is of a profile")
            .labels;
        assert_eq!(kept.len(), labels.len());
    }
}

#[test]
fn a_label_that_the_measured_pages_contradict_is_noted() {
    let named = |file: &str, guest, page| NamedProfile {
        file: file.to_owned(),
        view: condition(
            &[("host-thp", "on"), ("guest-thp", guest)],
            page,
            &[(2, 220.0, 2.0), (10, 340.0, 2.0), (11, 420.0, 2.0)],
            (200.0, 4.0),
            (420.0, 2.0),
        ),
    };
    let check = |page, noted: usize| {
        let found = compare(
            &[named("a", "on", PageKind::Thp), named("b", "off", page)],
            None,
        );
        let labels = found.notes.iter().filter(|note| note.contains("guest-thp"));
        assert_eq!(labels.count(), noted, "{:?}", found.notes);
    };
    check(PageKind::Thp, 1);
    check(PageKind::Base, 0);
}

#[test]
fn labels_name_the_profiles_in_the_documents_short_form() {
    let thp = |host, guest| [("host-thp", host), ("guest-thp", guest)];
    check_names(
        &[
            &thp("on", "on"),
            &thp("on", "off"),
            &thp("never", "always"),
            &thp("0", "0"),
        ],
        &["H0G0", "H0G1", "H1G0", "H1G1"],
    );
    // Labels that all profiles have in common are omitted.
    check_names(
        &[
            &[("rack", "7"), ("numa", "on")],
            &[("rack", "7"), ("numa", "off")],
        ],
        &["numa=on", "numa=off"],
    );
    check_names(&[&[], &[("numa", "off")]], &["no label", "numa=off"]);
    // The labels are the same, so the file names are used.
    check_names(&[&thp("on", "off"), &thp("on", "off")], &["run0", "run1"]);
    check_names(&[&[], &[]], &["run0", "run1"]);
    // Labels without known words are used unchanged.
    check_names(
        &[&thp("2M", "on"), &thp("1G", "on")],
        &["guest-thp=on,host-thp=2M", "guest-thp=on,host-thp=1G"],
    );
}

#[test]
fn noisy_and_quiet_placements_are_conditions_with_their_noise() {
    let named = |placement: &str, between: f64| {
        let mut view = condition(
            &[
                ("host-thp", "on"),
                ("guest-thp", "off"),
                ("placement", placement),
            ],
            PageKind::Base,
            &[(4, 630.0, 2.0), (5, 690.0, 2.0)],
            (350.0, 10.0),
            (650.0, 2.0),
        );
        let point = |loads, between| PlacementPoint {
            mode: MlpMode::Parallel,
            loads,
            cycles: vec![350.0, 360.0, 370.0],
            median_cycles: 360.0,
            low_cycles: 350.0,
            high_cycles: 370.0,
            between,
            within: 0.01,
        };
        view.mlp.placements = Some(Placements {
            times: 3,
            area_bytes: 1 << 28,
            points: vec![point(1, between), point(2, 3.0 * between), point(3, 0.0)],
            outliers: Vec::new(),
        });
        NamedProfile {
            file: format!("{placement}.json"),
            view,
        }
    };
    let found = compare(&[named("quiet", 0.01), named("noisy", 0.12)], None);
    let rows: Vec<(&str, Option<f64>)> = found
        .conditions
        .iter()
        .map(|row| (row.condition.as_str(), row.placement_noise))
        .collect();
    assert_eq!(
        rows,
        [
            ("H0G1, quiet placement, 4k pages", Some(0.01)),
            ("H0G1, noisy placement, 4k pages", Some(0.12)),
        ]
    );
    let curves = found.overlays.iter().find(|it| it.name == "placements");
    let labels: Vec<&str> = curves
        .unwrap()
        .curves
        .iter()
        .map(|curve| curve.label.as_str())
        .collect();
    assert!(labels[0].contains("quiet placement"), "{labels:?}");
    assert!(labels[1].contains("noisy placement"), "{labels:?}");
}
