//! Tables that cross two settings, and schedulers on a machine with two hardware threads to a core.

use super::*;
use crate::dom::Element;

/// Schedulers of the table of loads, with the share of the work that scavengers do at a load of 1000.
const SCHEDULERS: [(&str, f64); 4] = [
    ("alone", 0.0),
    ("nice 19", 0.4),
    ("SCHED_IDLE", 0.38),
    ("harvest", 0.6),
];

/// Three loads. The harvest's scavengers do most at the lowest, as much as with nice 19 at the next, and
/// least at the highest.
fn loads() -> HarvestExplore {
    let row = |load: f64, lead: f64, (scheduler, work): (&str, f64)| {
        let change = if scheduler == "alone" {
            0.0
        } else {
            work / 2.0
        };
        let work = match scheduler {
            "harvest" => work - lead,
            _ => work,
        };
        ExploreRow {
            setting: format!("{load}, {scheduler}"),
            at: Some(load),
            series: Some(scheduler.to_owned()),
            primary_s: around(2.0, 0.0),
            p95_ns: around((20_000.0 + load) * (1.0 + change), 0.02),
            p95_change: around(change, 0.1),
            work: around(work, 0.02).filter(|_| scheduler != "alone"),
            ..ExploreRow::default()
        }
    };
    let rows = [(1000.0, 0.0), (2000.0, 0.2), (5000.0, 0.4)]
        .into_iter()
        .flat_map(|(load, lead)| SCHEDULERS.map(|of| row(load, lead, of)))
        .collect();
    let mut explore = server();
    explore.options.command = words("./server {load}");
    explore.options.loads = words("1000 2000 5000");
    explore.alone.primary_s = None;
    explore.sweeps = vec![ExploredSweep {
        sweep: ExploreSweep::Load,
        rows,
        missing: None,
    }];
    explore
}

/// Parts left out at two distances. Only `liveness`, and the parts together that make yields cheaper, make
/// a difference, and more where yields are closer to each other.
fn parts_by_distance() -> HarvestExplore {
    let row = |distance: f64, part: &str| {
        let slowdown = match (part, distance < 100.0) {
            ("liveness", true) => 0.2,
            ("liveness", false) => 0.1,
            ("yield costs", true) => 0.4,
            _ => 0.05,
        };
        ExploreRow {
            series: Some(part.to_owned()),
            ..harvest(
                &format!("{distance} ns, {part}"),
                Some(distance),
                slowdown,
                2.8,
            )
        }
    };
    let parts = ["nothing", "liveness", "prefetch", "yield costs"];
    let mut explore = full();
    explore.sweeps = vec![ExploredSweep {
        sweep: ExploreSweep::PartsByDistance,
        rows: [50.0, 1000.0]
            .into_iter()
            .flat_map(|distance| parts.map(|part| row(distance, part)))
            .collect(),
        missing: None,
    }];
    explore
}

/// Schedulers where the core has another hardware thread, on which scavengers do `work`.
fn with_smt(work: f64) -> HarvestExplore {
    let mut explore = full();
    explore.sweeps.retain(|it| it.sweep == ExploreSweep::Kernel);
    for row in &mut explore.sweeps[0].rows {
        if row.setting == "SMT" {
            *row = harvest("SMT", None, 0.3, 2.7);
            row.work = around(work, 0.0);
        }
        if row.setting == "harvest" {
            row.work = around(0.6, 0.0);
        }
    }
    explore
}

/// A curve of a figure: its label, the number of its points, and whether it is shown at first.
type Curve = (String, usize, bool);

/// The curves of the figure with this identifier.
fn curves(explore: &HarvestExplore, id: &str) -> Vec<Curve> {
    let page = Page::sound(id, &page::harvest_explore(explore));
    let is_figure = |element: &Element| element.attribute("id") == id;
    let mut elements = page.elements.iter().skip_while(|it| !is_figure(it));
    assert!(elements.next().is_some(), "no figure {id}");
    let mut curves: Vec<Curve> = Vec::new();
    let mut is_in_curve = false;
    for element in elements.take_while(|it| it.name != "figure") {
        match element.name.as_str() {
            "g" if !element.attribute("data-n").is_empty() => {
                is_in_curve = true;
                curves.push((element.attribute("data-n").to_owned(), 0, true));
            }
            "text" | "div" => is_in_curve = false,
            "use" if is_in_curve => curves.last_mut().expect("a curve has begun").1 += 1,
            "button" if element.has_class("key") => {
                let label = element.text.trim();
                let curve = curves.iter_mut().find(|curve| curve.0 == label);
                curve.expect("keys are of curves").2 = element.attribute("aria-pressed") == "true";
            }
            _ => {}
        }
    }
    curves
}

fn curve(label: &str, points: usize, shown: bool) -> Curve {
    (label.to_owned(), points, shown)
}

#[test]
fn loads_are_a_table_and_a_curve_for_each_scheduler() {
    let explore = loads();
    insta::assert_snapshot!("harvest_explore_loads", text(&explore, 80));
    let all = ["alone", "nice 19", "SCHED_IDLE", "harvest"].map(|name| curve(name, 3, true));
    assert_eq!(curves(&explore, "load-p95"), all);
    // Without scavengers there is no work of theirs.
    assert_eq!(curves(&explore, "load-scavengers-work"), all[1..]);
}

#[test]
fn loads_without_requests_show_the_time_of_the_primary() {
    let mut explore = loads();
    explore.options.requests = None;
    assert_eq!(curves(&explore, "load-seconds").len(), 4);
}

#[test]
fn work_at_loads_is_compared_only_where_rounds_agree() {
    let text = flowing(&loads());
    let expected = "Work of scavengers in the harvest: more than under the kernel's schedulers at load 1000; less at \
                    load 5000; about as much, as far as these rounds show, at load 2000. At load 1000: nice 19";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn parts_by_distance_are_a_table_and_a_curve_for_each_part() {
    let explore = parts_by_distance();
    insta::assert_snapshot!("harvest_explore_parts_by_distance", text(&explore, 80));
    // A part that makes no difference is hidden at first.
    let expected = [
        curve("nothing", 2, true),
        curve("liveness", 2, true),
        curve("prefetch", 2, false),
        curve("yield costs", 2, true),
    ];
    assert_eq!(
        curves(&explore, "parts-by-distance-primarys-time"),
        expected
    );
    let text = flowing(&explore);
    let expected = "at 50 ns yield costs (33 %), liveness (14 %); at 1000 ns liveness (4.8 %).";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn one_round_does_not_tell_parts_apart() {
    let mut explore = parts_by_distance();
    explore.options.pairs = 1;
    let text = flowing(&explore);
    assert!(
        text.contains("One round does not tell differences from chance"),
        "{text}"
    );
}

#[test]
fn smt_is_a_row_a_bar_and_a_point_where_a_core_has_two_hardware_threads() {
    let explore = with_smt(0.8);
    let shown = text(&explore, 80);
    assert!(
        shown
            .lines()
            .any(|line| line.trim_start().starts_with("SMT ")),
        "{shown}"
    );
    assert!(
        !shown.contains("no core has a second hardware thread"),
        "{shown}"
    );
    let page = Page::sound("smt", &page::harvest_explore(&explore));
    for bars in ["primarys-time", "scavengers-work", "all-programs"] {
        let figure = page.by_id(&format!("kernel-bars-{bars}"));
        assert!(figure.is_some_and(|it| it.text.contains("SMT")), "{bars}");
    }
    let points = curves(&explore, "kernel-work-against-primarys-time");
    assert!(points.contains(&curve("SMT", 1, true)), "{points:?}");
    assert!(
        flowing(&explore).contains(
            "In the harvest scavengers get 75 % of the work done that they get done on the core's other hardware thread."
        ),
        "{shown}"
    );
}

#[test]
fn a_core_with_one_hardware_thread_has_no_bar_or_point_of_smt() {
    let points = curves(&full(), "kernel-work-against-primarys-time");
    let expected = ["nice 19", "SCHED_IDLE", "harvest"].map(|name| curve(name, 1, true));
    assert_eq!(points, expected);
    assert!(!flowing(&full()).contains("other hardware thread."));
}
