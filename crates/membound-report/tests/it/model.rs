//! Models and predictions as text, pages and CSV.

use membound_report::text::{self, Style};
use membound_report::{csv, page};
use membound_types::{Model, Outcome, Prediction};
use textwrap::core::display_width;

use crate::dom::Page;
use crate::fixture::model as fixture;
use crate::terminal;

fn show_origin(style: Style) -> String {
    text::model_show(
        "origin2000",
        &fixture::origin_topology(),
        &fixture::origin_parameters(),
        &fixture::origin_levels(),
        style,
    )
}

fn show_generic(style: Style) -> String {
    text::model_show("generic", &fixture::generic_topology(), &[], &[], style)
}

/// All texts by name.
fn all(style: Style) -> Vec<(&'static str, String)> {
    vec![
        ("model_show_origin", show_origin(style)),
        ("model_show_generic", show_generic(style)),
        ("model_origin", text::model(&fixture::origin(), style)),
        ("model_guest", text::model(&fixture::guest(), style)),
        (
            "model_latency",
            text::model(&fixture::latency_curve(), style),
        ),
        (
            "model_prediction",
            text::prediction(&fixture::prediction(), style),
        ),
    ]
}

fn models() -> [(&'static str, Model); 3] {
    [
        ("origin", fixture::origin()),
        ("guest", fixture::guest()),
        ("latency", fixture::latency_curve()),
    ]
}

#[test]
fn at_eighty_columns() {
    for (name, shown) in all(Style::default()) {
        insta::assert_snapshot!(name, shown);
    }
}

#[test]
fn no_line_is_wider_than_the_terminal_and_colour_changes_no_letter() {
    for width in [40, 60, 80, 132] {
        let without = all(Style {
            color: false,
            width,
        });
        let with = all(Style { color: true, width });
        for ((name, without), (_, with)) in without.into_iter().zip(with) {
            assert_eq!(terminal::plain(&with), without, "{name} at {width}");
            for line in without.lines() {
                assert!(display_width(line) <= width, "{name} at {width}: {line}");
                assert_eq!(line, line.trim_end(), "{name} at {width}");
            }
        }
    }
}

#[test]
fn the_origin2000_has_the_rates_of_the_papers_table_2() {
    let shown = show_origin(Style::default());
    let rates: Vec<&str> = [
        "SL cache",
        "home memory",
        "same corner",
        "neighbour corner",
        "next but one corner",
        "spatial diagonal",
    ]
    .into_iter()
    .filter_map(|name| {
        let row = shown.lines().find(|line| line.starts_with(name))?;
        row[name.len()..].split_whitespace().nth(1)
    })
    .collect();
    assert_eq!(rates, ["75.5", "20.3", "14.5", "13.6", "12.9", "12.2"]);
}

#[test]
fn a_topology_without_values_says_where_they_come_from() {
    let shown = show_generic(Style::default());
    assert!(shown.contains("`membound model fit`"));
    assert!(shown.contains("t_1 + t_2 + t_3 + t_m"));
    assert_eq!(shown.matches("to be given").count(), 3);
    assert!(!shown.contains("MFLOPS"));
}

#[test]
fn a_topology_with_values_says_which_sizes_are_open() {
    let mut topology = fixture::origin_topology();
    let mut levels = fixture::origin_levels();
    for (level, shown) in topology.levels.iter_mut().zip(&mut levels).skip(2) {
        level.size_bytes = None;
        (shown.size_bytes, shown.reach_bytes) = (None, None);
    }
    let parameters = fixture::origin_parameters();
    let shown = text::model_show("", &topology, &parameters, &levels, Style::default());
    assert_eq!(shown.matches("to be given").count(), 4);
    assert!(shown.contains("the rest"));
}

#[test]
fn unidentifiable_parameters_are_marked_and_explained() {
    for shown in [
        text::model(&fixture::origin(), Style::default()),
        Page::parse(&page::model(&fixture::origin()))
            .by_id("parameters")
            .map_or_else(String::new, |card| card.text.clone()),
    ] {
        for text in [
            "* t_hh, t_hr, t_m",
            "smallest norm",
            "t_hh + t_m",
            "578",
            "826",
        ] {
            assert!(shown.contains(text), "{text} is not in {shown}");
        }
    }
    let shown = text::model(&fixture::guest(), Style::default());
    assert!(!shown.contains('*'), "all of the guest is determined");
    assert!(shown.contains("given"), "a given value has no interval");
}

#[test]
fn the_worst_points_come_worst_first() {
    let mut model = fixture::guest();
    model.points[40].model_ns = model.points[40].measured.ns * 3.0;
    model.points[41].model_ns = model.points[41].measured.ns * 0.5;
    let shown = text::model(&model, Style::default());
    let off: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with("worst points"))
        .skip(2)
        .take(2)
        .filter_map(|line| line.rsplit("  ").next())
        .collect();
    assert_eq!(off, ["+200 %", "-50 %"]);
}

#[test]
fn a_browser_has_nothing_to_mend_in_a_models_page() {
    for (name, model) in models() {
        let html = page::model(&model);
        for bad in ["http:", "https:", "url(", "@import", "src=", "xlink"] {
            assert!(!html.contains(bad), "{name}: {bad}");
        }
        let page = Page::sound(name, &html);
        for id in [
            "fit",
            "levels",
            "parameters",
            "model-curves",
            "model-residuals",
            "scheme",
        ] {
            assert!(page.by_id(id).is_some(), "{name}: {id} is missing");
        }
    }
}

#[test]
fn every_value_of_a_models_page_can_be_read_without_a_pointer() {
    for (name, model) in models() {
        let page = Page::parse(&page::model(&model));
        for chart in page.with_class("chart") {
            assert_eq!(chart.attribute("tabindex"), "0");
            assert_eq!(chart.attribute("role"), "img");
            assert!(chart.attribute("aria-label").len() > 20);
        }
        let markers = |figure: &str| {
            let html = page::model(&model);
            let start = html.find(&format!("id=\"{figure}\"")).expect("it is there");
            let end = start + html[start..].find("</figure>").expect("it ends");
            let markers: Vec<String> = Page::parse(&html[start..end])
                .named("use")
                .filter(|mark| !mark.around.iter().any(|name| name == "button"))
                .map(|mark| mark.text.clone())
                .collect();
            markers
        };
        for figure in ["model-curves", "model-residuals"] {
            let markers = markers(figure);
            assert_eq!(markers.len(), model.points.len(), "{name}: {figure}");
            for tip in markers {
                assert!(
                    tip.contains(": measured ") && tip.contains("; model "),
                    "{tip}"
                );
            }
        }
        for figure in page.named("figure") {
            assert!(
                figure.text.contains("data"),
                "{name}: a figure without a table"
            );
        }
    }
}

#[test]
fn hostile_and_long_names_stay_text_inside_the_page() {
    let hostile = "</script></title><img src=x onerror=alert(1)>\"'&\u{2028}<!--";
    let long = "a level with a name that no terminal and no chart has room for".repeat(4);
    let mut model = fixture::origin();
    model.source.host = Some(hostile.into());
    model.source.series = hostile.into();
    model.source.files = vec![hostile.into(), long.clone()];
    model.topology.name = hostile.into();
    model.method.selection = Some(hostile.into());
    model.notes = vec![hostile.into(), long.clone()];
    for (index, parameter) in model.parameters.iter_mut().enumerate() {
        let name = if index % 2 == 0 {
            hostile
        } else {
            long.as_str()
        };
        parameter.symbol = name.into();
        parameter.name = name.into();
        parameter.unit = name.into();
        parameter.related_to = name.into();
        parameter.reason = Some(name.into());
    }
    for sum in &mut model.combinations {
        sum.symbols = vec![hostile.into(), long.clone()];
    }
    for level in &mut model.levels {
        level.name = long.clone();
        level.tlb_note = Some(hostile.into());
        level.rate_mops = Outcome::missing_with(hostile, hostile);
    }
    let page = Page::parse(&page::model(&model));
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    assert_eq!(page.named("script").count(), 1);
    assert_eq!(page.named("img").count(), 0);
    assert_eq!(
        page.named("h1").next().map(|h| h.text.as_str()),
        Some(hostile)
    );
    let mut prediction = fixture::prediction();
    for point in &mut prediction.points {
        point.caution = Some(long.clone());
        for hits in &mut point.expected {
            hits.level = long.clone();
        }
    }
    for shown in [
        text::model(&model, Style::default()),
        text::model_show(
            &long,
            &model.topology,
            &model.parameters,
            &model.levels,
            Style::default(),
        ),
        text::prediction(&prediction, Style::default()),
    ] {
        for line in shown.lines() {
            assert!(display_width(line) <= 80, "{line}");
        }
    }
}

#[test]
fn a_fit_of_ten_thousand_points_stays_a_small_page() {
    let mut model = fixture::guest();
    let some = model.points.clone();
    model.points = (0..10_000)
        .map(|index| {
            let mut point = some[index % some.len()];
            point.measured.area_bytes += index as u64;
            point
        })
        .collect();
    let html = page::model(&model);
    assert!(html.len() < 1_500_000, "{} bytes", html.len());
    assert!(html.contains("One point in 7 is drawn"));
}

#[test]
fn an_empty_model_is_reported() {
    let mut model = fixture::guest();
    model.points.clear();
    model.levels.clear();
    let page = Page::parse(&page::model(&model));
    assert_eq!(page.named("figure").count(), 0);
    let text = &page.by_id("fit").expect("the card is there").text;
    assert!(text.contains("the model holds no points"));
    let shown = text::model(&model, Style::default());
    assert!(!shown.contains("worst points"));
}

#[test]
fn a_profile_shows_its_model_or_why_there_is_none() {
    use crate::fixture::{Extent, profile};
    let shown = text::machine(&profile(Extent::Quick), Style::default());
    assert!(
        shown.contains("model: 11 parameters, median residual "),
        "{shown}"
    );
    let mut without = profile(Extent::Quick);
    without.model = Outcome::missing_with("too few windows", "measure window");
    let html = page::render(&without);
    let panel = Page::parse(&html);
    let panel = panel.by_id("model").expect("the panel stays");
    assert!(panel.text.contains("too few windows (measure window)"));
    let shown = text::machine(&without, Style::default());
    assert!(
        shown.contains("model: too few windows (measure window)"),
        "{shown}"
    );
    without.model = Outcome::missing(membound_types::NotMeasured::NOT_ASKED);
    assert!(
        Page::parse(&page::render(&without))
            .by_id("model")
            .is_none()
    );
    assert!(!text::machine(&without, Style::default()).contains("model:"));
}

/// Fields of each line; asserts that none is quoted.
fn fields(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split(',').collect()).collect()
}

#[test]
fn fitted_points_as_csv_begin_with_the_columns_that_fit_reads() {
    let model = fixture::guest();
    let text = csv::fitted(&model);
    let rows = fields(&text);
    assert_eq!(
        rows[0],
        [
            "window_bytes",
            "area_bytes",
            "seconds_per_window",
            "seconds_low",
            "seconds_high",
            "model_seconds",
            "deviation"
        ]
    );
    assert_eq!(rows.len(), model.points.len() + 1);
    for (row, point) in rows[1..].iter().zip(&model.points) {
        let number = |index: usize| row[index].parse::<f64>().expect("a number");
        assert_eq!(Some(number(0) as u64), point.measured.window_bytes);
        assert!((number(2) * 1e9 / point.measured.ns - 1.0).abs() < 1e-12);
        assert!((number(5) / number(2) - 1.0 - number(6)).abs() < 1e-12);
    }
    let curve = fixture::latency_curve();
    let text = csv::fitted(&curve);
    let rows = fields(&text);
    assert_eq!(rows[0][..2], ["size_bytes", "ns"]);
    assert_eq!(rows[1].len(), rows[0].len());
    assert_eq!(rows[1][1].parse(), Ok(curve.points[0].measured.ns));
    assert_eq!(rows[1][2], "", "an interval that was not measured");
}

#[test]
fn predictions_as_csv_name_missing_values() {
    let prediction: Prediction = fixture::prediction();
    let text = csv::prediction(&prediction);
    let rows = fields(&text);
    assert_eq!(
        rows[0][..4],
        ["window_bytes", "area_bytes", "stride_bytes", "ns"]
    );
    assert_eq!(
        rows[0][8..],
        ["share L1", "share L2", "share L3", "share DRAM"]
    );
    assert_eq!(rows.len(), prediction.points.len() + 1);
    assert_eq!(rows[2][..4], ["1024", "25165824", "", "212"]);
    assert_eq!(
        rows[3][6],
        "the area of 64 GiB lies outside of those measured (16 KiB to 1 GiB)"
    );
    assert_eq!(rows[4][3], "", "no time");
    assert!(rows[4][7].contains("knows no load"));
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
}
