//! The page in a browser: clicking and dragging filters the content.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use membound_report::page;
use membound_types::Detail;
use serde_json::Value;

use super::fixture;
use super::page::hostile;
use crate::dom::Page;

/// Timeout of the browser, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Helpers for the scripts of tests, and a list of the page's errors.
const TOOLS: &str = r##"
  const errors = window.errors;
  const $ = (query) => document.querySelector(query);
  const texts = (query) => [...document.querySelectorAll(query)].map((it) => it.textContent);
  const key = (target, key, more = {}) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
  const drag = (from, to) => {
    const plot = $(".plot");
    plot.setPointerCapture = () => {};
    const box = plot.getBoundingClientRect();
    const at = (type, share) => plot.dispatchEvent(new PointerEvent(type, { bubbles: true, button: 0, pointerId: 1, clientX: box.left + share * box.width, clientY: box.top + 5 }));
    at("pointerdown", from);
    at("pointermove", (from + to) / 2);
    at("pointermove", to);
    at("pointerup", to);
  };
  const by = (kind) => $(`#groupings [data-by="${kind}"]`).click();
  const rows = () => [...document.querySelectorAll("#table tbody tr")].map((row) => ({ name: row.querySelector(".pick").textContent, stalled: row.children[0].textContent }));
  const total = () => membound.current().total;
"##;

/// Path of the browser, if there is one.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("chromium"))
        .find(|file| file.is_file())
}

/// Output of the browser for the page at `address`; `folder` is for its own files.
fn shown(browser: &Path, folder: &Path, address: &str) -> String {
    let mut child = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=20000",
            "--window-size=1200,2000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.join("user").display()))
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the browser starts");
    let mut pipe = child.stdout.take().expect("stdout is a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).map(|_| text)
    });
    let start = Instant::now();
    while child.try_wait().expect("the browser is ours").is_none() {
        if start.elapsed() > TIMEOUT {
            child.kill().expect("the browser is ours");
            child.wait().expect("the browser is ours");
            panic!("the browser did not come to an end within {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = reader.join().expect("no panic");
    String::from_utf8(text.expect("the page is dumped")).expect("UTF-8")
}

/// Opens the page, runs `script` in it, and returns its result. Without a browser prints a note and returns
/// `None`.
fn open(html: &str, address: &str, script: &str) -> Option<Value> {
    let Some(browser) = browser() else {
        membound_testkit::skipped("chromium is not installed");
        return None;
    };
    let watched = "<head><script>window.errors=[];addEventListener('error',(e)=>errors.push(String(e.message)));</script>";
    let driver = format!(
        "<pre id=\"result\"></pre><script>addEventListener('load',()=>setTimeout(()=>{{{TOOLS}\n\
         let out;try{{out=(()=>{{{script}}})();}}catch(e){{errors.push(String(e));}}\n\
         document.getElementById('result').textContent=JSON.stringify({{out,errors}});}},50));</script></body>"
    );
    let html = html
        .replacen("<head>", watched, 1)
        .replacen("</body>", &driver, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("page.html");
    std::fs::write(&file, html).expect("the page is written");
    let address = format!("file://{}{address}", file.display());
    let dom = shown(&browser, folder.path(), &address);
    let page = Page::parse(&dom);
    let result = page.by_id("result").filter(|it| !it.text.is_empty());
    let result = result.unwrap_or_else(|| panic!("the script did not run: {dom:.2000}"));
    let result: Value = serde_json::from_str(&result.text).expect("a result");
    assert_eq!(
        result["errors"],
        serde_json::json!([]),
        "errors on the page"
    );
    Some(result["out"].clone())
}

fn simulation() -> (String, Detail) {
    let (profile, detail) = fixture::simulation();
    (page::profile(&profile, &detail), detail)
}

fn names(rows: &Value) -> Vec<String> {
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| row["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn selecting_a_span_filters_everything() {
    let (html, detail) = simulation();
    let Some(out) = open(
        &html,
        "",
        r##"
        const before = { total: total(), tables: {} };
        drag(0, 0.08);
        const span = membound.span_s();
        const out = { before, span, total: total(), stalled: membound.current().stalled, tables: {} };
        for (const kind of membound.kinds) { by(kind); out.tables[kind] = rows(); }
        out.now = $("#now").textContent;
        out.flame = texts("#flame-graph title");
        out.shade = !$("#span").hidden && parseFloat($("#span").style.width);
        out.address = location.hash;
        key($(".plot"), "Escape");
        out.after = total();
        return out;
        "##,
    ) else {
        return;
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    let [from, to] = [&out["span"][0], &out["span"][1]].map(number);
    assert!(from == 0.0 && (0.2..0.3).contains(&to), "{out}");
    let inside = detail.samples.iter().filter(|sample| sample.t_s < to);
    let (cpu_s, stall_s) = inside.fold((0.0, 0.0), |(a, b), sample| {
        (a + sample.weight_s, b + sample.stall_s)
    });
    assert!(
        (number(&out["total"]) / cpu_s - 1.0).abs() < 0.02,
        "{cpu_s} {out}"
    );
    assert!(
        (number(&out["stalled"]) / stall_s - 1.0).abs() < 0.02,
        "{stall_s} {out}"
    );
    // At the beginning only the main thread runs, and only two of the eight sites.
    assert_eq!(names(&out["tables"]["thread"]), ["simulate"]);
    assert_eq!(
        names(&out["tables"]["function"]),
        [
            "__memset_avx512_unaligned_erms",
            "sim::settings::parse(std::string_view)"
        ]
    );
    assert_eq!(
        names(&out["tables"]["object"]),
        ["main.cpp:31 (128 MiB)", "sim::settings::text"]
    );
    assert_eq!(
        names(&out["tables"]["instruction"]),
        ["rep stosb", "movzx eax, byte ptr [rsi]"]
    );
    let flame: Vec<&str> = out["flame"]
        .as_array()
        .expect("titles")
        .iter()
        .map(|it| it.as_str().expect("text"))
        .collect();
    assert!(
        flame.iter().any(|title| title.starts_with("__memset")),
        "{flame:?}"
    );
    assert!(
        !flame.iter().any(|title| title.contains("gather_forces")),
        "{flame:?}"
    );
    assert!(number(&out["shade"]) > 5.0);
    assert!(
        out["address"].as_str().expect("text").starts_with("#t="),
        "{out}"
    );
    assert_eq!(out["before"]["total"], out["after"]);
    assert!((number(&out["after"]) - 5.05).abs() < 0.01, "{out}");
}

#[test]
fn a_span_is_selected_by_keyboard() {
    let (html, _) = simulation();
    let Some(out) = open(
        &html,
        "",
        r##"
        const plot = $(".plot");
        plot.focus();
        key(plot, "Home");
        for (let i = 0; i < 10; i++) key(plot, "ArrowRight", { shiftKey: true });
        const shifted = [...membound.state.span];
        key(plot, "Escape");
        const none = membound.state.span;
        key(plot, "Home");
        key(plot, "Enter");
        for (let i = 0; i < 4; i++) key(plot, "ArrowRight");
        key(plot, "Enter");
        return { shifted, none, marked: [...membound.state.span], focused: document.activeElement === plot };
        "##,
    ) else {
        return;
    };
    assert_eq!(out["shifted"], serde_json::json!([0, 11]));
    assert_eq!(out["none"], Value::Null);
    assert_eq!(out["marked"], serde_json::json!([0, 5]));
    assert_eq!(out["focused"], true);
}

#[test]
fn filters_stack_and_come_off_again() {
    let (html, detail) = simulation();
    let Some(out) = open(
        &html,
        "",
        r##"
        const pick = (name) => [...document.querySelectorAll("#table .pick")].find((it) => it.textContent === name).click();
        by("thread"); pick("worker-1");
        const thread = total();
        by("object"); pick("stats.cpp:19 (512 B)");
        const both = total();
        by("line");
        const lines = rows();
        const inside = $("#object-inside").textContent;
        const chips = texts("#chips .chip");
        const hash = location.hash;
        $("#chips .clear").click();
        return { thread, both, lines, inside, chips, hash, cleared: total(), gone: texts("#chips .chip").length };
        "##,
    ) else {
        return;
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    let time = |object: Option<u32>| -> f64 {
        let of = detail.samples.iter().filter(|it| it.thread == 2);
        let of = of.filter(|it| object.is_none() || it.object == object);
        of.map(|it| it.weight_s).sum()
    };
    assert!((number(&out["thread"]) - time(None)).abs() < 0.01, "{out}");
    assert!((number(&out["both"]) - time(Some(2))).abs() < 0.01, "{out}");
    assert_eq!(names(&out["lines"]), ["stats.h:27"]);
    let inside = out["inside"].as_str().expect("text");
    assert!(
        inside.contains("sim::Stats::Stats(unsigned int)"),
        "{inside}"
    );
    assert_eq!(out["chips"].as_array().expect("chips").len(), 3, "{out}");
    assert_eq!(out["hash"], "#object=2&thread=2");
    assert!((number(&out["cleared"]) - 5.05).abs() < 0.01);
    assert_eq!(out["gone"], 0);
}

#[test]
fn an_address_opens_the_page_as_it_was() {
    let (html, _) = simulation();
    let Some(out) = open(
        &html,
        "#thread=1&by=function&sort=name-up&flame=object&weight=time",
        r##"
        const sorted = $("#table [aria-sort=ascending]").textContent;
        return { sorted, names: rows(), filter: membound.state.filter, flame: texts("#flame-graph title").slice(0, 2), pressed: texts("#flame [aria-pressed=true]") };
        "##,
    ) else {
        return;
    };
    let shown = names(&out["names"]);
    let mut sorted = shown.clone();
    sorted.sort();
    assert_eq!(shown, sorted);
    assert_eq!(shown.len(), 5, "{shown:?}");
    assert_eq!(out["filter"], serde_json::json!({ "thread": 1 }));
    assert_eq!(
        out["pressed"],
        serde_json::json!(["by object, then code", "CPU time"])
    );
    let second = out["flame"][1].as_str().expect("a frame");
    assert!(second.starts_with("main.cpp:31 (128 MiB): "), "{second}");
}

#[test]
fn functions_hold_what_was_inlined_into_them() {
    let (profile, mut detail) = fixture::simulation();
    for frame in &mut detail.frames {
        frame.inlined = detail.names[frame.function as usize] == "sim::rng::next()";
    }
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "#by=function",
        "const functions = rows(); by('line'); return { functions, lines: rows(), flame: texts('#flame-graph title') };",
    ) else {
        return;
    };
    let functions = names(&out["functions"]);
    assert!(functions.contains(&"sim::step(sim::State&, unsigned int)".to_owned()));
    assert!(
        !functions.contains(&"sim::rng::next()".to_owned()),
        "{functions:?}"
    );
    assert!(names(&out["lines"]).contains(&"rng.h:14".to_owned()));
}

#[test]
fn flames_zoom_and_are_found() {
    let (html, _) = simulation();
    let Some(out) = open(
        &html,
        "",
        r##"
        const graph = $("#flame-graph");
        const all = texts("#flame-graph title").length;
        const frame = [...graph.querySelectorAll("g")].find((it) => it.textContent.startsWith("sim::gather_forces"));
        frame.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        const zoomed = texts("#flame-graph title");
        key(graph, "Escape");
        const back = texts("#flame-graph title").length;
        graph.focus();
        key(graph, "ArrowDown"); key(graph, "ArrowDown");
        const status = $("#flame-status").textContent;
        const find = $("#flame-find");
        find.value = "stats";
        find.dispatchEvent(new Event("input"));
        const hits = graph.querySelectorAll(".hit").length;
        const said = $("#flame-status").textContent;
        $('[data-flame="allocation"]').click();
        const allocation = texts("#flame-graph title");
        return { all, zoomed, back, status, hits, said, allocation };
        "##,
    ) else {
        return;
    };
    let count = |value: &Value| value.as_array().expect("frames").len() as u64;
    assert_eq!(out["all"], out["back"]);
    assert!(count(&out["zoomed"]) < out["all"].as_u64().expect("a number"));
    assert!(
        out["status"]
            .as_str()
            .expect("text")
            .starts_with("sim::Worker::run(): "),
        "{out}"
    );
    assert_eq!(out["hits"], 2, "the function and its line: {out}");
    assert!(
        out["said"].as_str().expect("text").contains("21 %"),
        "{out}"
    );
    let allocation = out["allocation"].to_string();
    assert!(
        allocation.contains("sim::State::State(unsigned long) state.cpp:22"),
        "{allocation}"
    );
}

#[test]
fn code_shows_the_selection() {
    let (html, _) = simulation();
    let Some(out) = open(
        &html,
        "",
        r##"
        const line = () => [...document.querySelectorAll("#listing tr[data-line='88'] td")].slice(0, 2).map((it) => it.textContent);
        const whole = line();
        drag(0, 0.08);
        const early = line();
        drag(0.3, 0.5);
        const middle = line();
        return { whole, early, middle, source: texts("#listing code")[5] };
        "##,
    ) else {
        return;
    };
    assert_eq!(out["whole"][0], "28 %");
    assert_eq!(out["early"], serde_json::json!(["", ""]));
    let middle = out["middle"][0].as_str().expect("text");
    let share: f64 = middle.trim_end_matches(" %").parse().expect("a share");
    assert!((29.0..34.0).contains(&share), "{middle}");
    assert!(
        out["source"]
            .as_str()
            .expect("text")
            .contains("\"<script>\"")
    );
}

#[test]
fn hostile_names_do_nothing() {
    let (profile, detail) = hostile();
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "",
        r##"
        for (const kind of membound.kinds) { by(kind); document.querySelector("#table .pick")?.click(); }
        for (const flame of ["object", "allocation", "code"]) $(`[data-flame="${flame}"]`).click();
        return { hacked: window.hacked ?? null, images: document.images.length, scripts: document.scripts.length, heading: $("h1").textContent };
        "##,
    ) else {
        return;
    };
    assert_eq!(out["hacked"], Value::Null);
    assert_eq!(out["images"], 0);
    assert_eq!(out["scripts"], 4, "the page's two and the test's two");
    assert!(out["heading"].as_str().expect("text").contains("<img"));
}

#[test]
fn a_page_without_samples_opens_too() {
    let (profile, detail) = fixture::nothing();
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "#t=0-1&thread=5&line=9&sort=nonsense",
        "return { table: $('#table').textContent, now: $('#now').textContent };",
    ) else {
        return;
    };
    assert!(
        out["table"].as_str().expect("text").contains("No sample"),
        "{out}"
    );
    assert!(!out.to_string().contains("NaN"));
}

#[test]
fn titles_of_source_and_assembly_stay_apart_whatever_the_path() {
    let (profile, mut detail) = fixture::simulation();
    let path = format!("/{}forces.cpp", "a_directory_of_a_build/".repeat(9));
    detail.listings[0].file = Some(path.clone());
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "",
        r##"
        const listing = $("#listing");
        // What a page of 1000 to 2000 pixels leaves for both.
        return [880, 1000, 1100, 1800].map((width) => {
          listing.style.width = `${width}px`;
          const columns = [...listing.children].map((it) => it.getBoundingClientRect());
          const titles = [...listing.querySelectorAll("h3")].map((it) => {
            const range = document.createRange();
            range.selectNodeContents(it);
            return range.getBoundingClientRect();
          });
          return { width, beside: columns[0].top === columns[1].top, apart: titles[0].right <= titles[1].left, text: listing.querySelector("h3").textContent, whole: listing.querySelector("h3").title };
        });
        "##,
    ) else {
        return;
    };
    for found in out.as_array().expect("one for each width") {
        assert_eq!(found["beside"], true, "source beside assembly: {found}");
        assert_eq!(found["apart"], true, "titles cover each other: {found}");
        assert_eq!(found["whole"], path.as_str(), "{found}");
        let text = found["text"].as_str().expect("text");
        assert!(
            text.starts_with('…') && text.ends_with("/forces.cpp"),
            "{text}"
        );
    }
}

#[test]
fn every_key_of_the_timeline_has_its_colour() {
    let (profile, detail) = fixture::simulation();
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "",
        r##"
        const colours = (name) => [...document.querySelectorAll(`.lanekeys .${name}`)].map((it) => getComputedStyle(it).backgroundColor);
        const filled = (name) => [...document.querySelectorAll(`svg.lane .${name}`)].map((it) => getComputedStyle(it).fill);
        return ["stalled", "live0", "live1"].map((name) => ({ name, key: colours(name), lane: filled(name) }));
        "##,
    ) else {
        return;
    };
    for found in out.as_array().expect("one for each key") {
        let key = found["key"][0].as_str().expect("a key");
        assert_ne!(key, "rgba(0, 0, 0, 0)", "no colour: {found}");
        assert_eq!(found["lane"][0].as_str(), Some(key), "{found}");
    }
}

#[test]
fn texts_of_the_platform_lie_in_its_boxes() {
    let (mut profile, detail) = fixture::simulation();
    let node = &mut profile.platform.nodes[0];
    (node.dram_gb_s, node.dram_max_gb_s) = (Some(0.889), Some(1053.3));
    // Nodes whose CPUs alternate have long lists.
    let mut other = node.clone();
    other.node = 1;
    other.cpus = (1..64).step_by(2).collect();
    profile.platform.nodes.push(other);
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "",
        r##"
        const boxes = [...document.querySelectorAll("svg.platform .node")].map((it) => it.getBBox());
        return [...document.querySelectorAll("svg.platform text")].map((it) => {
          const { x, y, width } = it.getBBox();
          const around = boxes.find((box) => box.x < x && x < box.x + box.width);
          return { text: it.textContent, x, width, inside: !!around && x + width < around.x + around.width };
        });
        "##,
    ) else {
        return;
    };
    assert_eq!(out.as_array().map(Vec::len), Some(6), "{out}");
    for found in out.as_array().expect("texts") {
        assert_eq!(found["inside"], true, "{found}");
    }
}

#[test]
fn a_page_of_a_span_counts_from_its_beginning() {
    let (mut profile, mut detail) = fixture::simulation();
    detail
        .samples
        .retain(|sample| (1.0..2.0).contains(&sample.t_s));
    profile.elapsed_s = 1.0;
    profile.selection = Some(membound_types::SelectedPart {
        from_s: 1.0,
        to_s: 2.0,
        tids: Vec::new(),
    });
    let Some(out) = open(
        &page::profile(&profile, &detail),
        "",
        r##"
        drag(0.5, 1);
        return { span: membound.span_s(), total: total(), ticks: texts(".ticks span"), banner: $(".banner").textContent };
        "##,
    ) else {
        return;
    };
    let span = [&out["span"][0], &out["span"][1]].map(|it| it.as_f64().expect("seconds"));
    assert!(
        (span[0] - 1.5).abs() < 0.02 && (span[1] - 2.0).abs() < 0.02,
        "{out}"
    );
    let late = detail.samples.iter().filter(|sample| sample.t_s >= span[0]);
    let cpu_s: f64 = late.map(|sample| sample.weight_s).sum();
    let total = out["total"].as_f64().expect("seconds");
    assert!((total / cpu_s - 1.0).abs() < 0.05, "{cpu_s} {out}");
    assert_eq!(out["ticks"][0], "1.00 s");
    assert!(
        out["banner"]
            .as_str()
            .expect("text")
            .contains("1.00 s to 2.00 s"),
        "{out}"
    );
}

/// A run of four periods: its first row loads 1000 times at 100 ns in each of the first two periods, and 10
/// times at 10 ns in each of the others.
fn in_periods() -> (String, f64) {
    let (profile, mut detail) = fixture::simulation();
    let period = |index: u32| {
        let (loads, latency_ns) = if index < 2 {
            (1000.0, 100.0)
        } else {
            (10.0, 10.0)
        };
        let row = membound_types::PeriodRow {
            row: 0,
            share: membound_types::Share {
                loads: Some(loads),
                loads_low: Some(0.5 * loads),
                loads_high: Some(2.0 * loads),
                avg_latency_ns: Some(latency_ns),
                ..membound_types::Share::default()
            },
        };
        let edge = |index: u32| profile.elapsed_s * f64::from(index) / 4.0;
        membound_types::Period {
            from_s: edge(index),
            to_s: edge(index + 1),
            lines: vec![row.clone()],
            objects: vec![row],
            ..membound_types::Period::default()
        }
    };
    detail.periods = (0..4).map(period).collect();
    (page::profile(&profile, &detail), profile.elapsed_s)
}

#[test]
fn executions_and_latencies_follow_the_span() {
    let (html, _) = in_periods();
    let Some(out) = open(
        &html,
        "",
        r##"
        const wanted = membound.raw.lines[0][3];
        const first = () => {
          const row = membound.rows("line", membound.current()).find((it) => it.it.name === membound.name(wanted));
          return row ? [row.figures[2], row.figures[4], row.figures[9]] : null;
        };
        const whole = first();
        const note = () => texts("#table .note").join(" ");
        const out = { whole, bins: membound.raw.bins };
        const quarter = membound.raw.bins / 4;
        const select = (from, to) => { membound.state.span = [from, to]; membound.update("span"); return first(); };
        out.two = select(quarter, 3 * quarter);
        out.one = select(0, quarter);
        out.late = select(2 * quarter, 4 * quarter);
        // Half of the second period, by the row's own time in it, and all of the third.
        out.part = select(quarter + Math.floor(quarter / 2), 3 * quarter);
        out.text = note();
        drag(0.25, 0.75);
        out.shown = texts("#table tbody tr td").join(" ");
        return out;
        "##,
    ) else {
        return;
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    assert_eq!(number(&out["bins"]) % 4.0, 0.0, "{out}");
    let figures = |what: &str| {
        let row = &out[what];
        [&row[0], &row[1], &row[2][0], &row[2][1]].map(number)
    };
    assert_eq!(figures("one"), [1000.0, 100.0, 500.0, 2000.0]);
    assert_eq!(figures("late"), [20.0, 10.0, 10.0, 40.0]);
    assert_eq!(number(&out["two"][0]), 1010.0);
    // Weighted by executions: (1000 · 100 + 10 · 10) ÷ 1010.
    assert!(
        (number(&out["two"][1]) - 100_100.0 / 1010.0).abs() < 1e-9,
        "{out}"
    );
    let part = number(&out["part"][0]);
    assert!((300.0..720.0).contains(&part), "{out}");
    let text = out["text"].as_str().expect("text");
    assert!(text.contains("of the selected span"), "{text}");
    assert!(text.contains("4 equal periods"), "{text}");
    let whole = number(&out["whole"][0]);
    assert!(whole > 2020.0, "{out}");
}
