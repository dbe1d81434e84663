//! Panels that do not depend on time: shared lines, nodes, traffic, other machines, and missing data.

use maud::{Markup, html};
use membound_types::{
    BandwidthDomain, BandwidthMoment, MemoryUse, NamedShare, NumaRow, NumaView, Outcome, Profile,
    SharedLine,
};

use super::{hardware, platform};
use crate::facts::run;
use crate::page::parts::Panel;
use crate::page::svg::{
    Axis, Bar, BarGroup, Bars, Chart, DataTable, Extent, Look, Point, Rule, Series,
};
use crate::{facts, units};

/// Most shared lines that are drawn; the JSON has all.
const MAX_SHARED_LINES: usize = 20;
/// Most threads of a shared line.
const MAX_THREADS: usize = 16;
const MAX_ROWS: usize = 25;
/// Most points of a curve over time.
const MAX_MOMENTS: usize = 240;
/// Longest memory line that is drawn byte by byte.
const LINE: u32 = 256;

pub(super) fn all(profile: &Profile) -> Vec<Panel> {
    let mut out: Vec<Panel> = profile.hardware.iter().map(hardware::panel).collect();
    out.push(sharing(
        "false-sharing",
        "False sharing",
        "no line was seen over which threads fight without sharing data",
        &profile.false_sharing,
    ));
    if !profile.true_sharing.is_empty() {
        out.push(sharing(
            "true-sharing",
            "True sharing",
            "",
            &profile.true_sharing,
        ));
    }
    out.push(match &profile.numa {
        Outcome::Known(view) => Panel::new("nodes", "Nodes", nodes(view)),
        Outcome::Missing { not_measured } => {
            Panel::missing("nodes", "Nodes", &facts::missing_text(not_measured))
        }
    });
    out.push(traffic(profile));
    out.push(match &profile.memory {
        Outcome::Known(memory) => Panel::new("memory", "Memory", live_bytes(memory)),
        Outcome::Missing { not_measured } => {
            Panel::missing("memory", "Memory", &facts::missing_text(not_measured))
        }
    });
    if !profile.elsewhere.is_empty() {
        out.push(Panel::new(
            "elsewhere",
            "On other machines",
            elsewhere(profile),
        ));
    }
    let shown = [
        "objects",
        "bandwidth",
        "lines",
        "functions",
        "instructions",
        "threads",
        "levels",
    ];
    let rest: Vec<_> = profile
        .missing
        .iter()
        .filter(|gap| !shown.contains(&gap.table.as_str()))
        .collect();
    if !rest.is_empty() {
        out.push(Panel::new(
            "missing",
            "What is missing",
            html! { ul.gaps { @for gap in &rest { li { b { (gap.table) } (facts::missing_text(&gap.why)) } } } },
        ));
    }
    out
}

fn traffic(profile: &Profile) -> Panel {
    let why: Vec<String> = gaps(profile, "bandwidth");
    if profile.bandwidth.is_empty() {
        let why = if why.is_empty() {
            "not measured".to_owned()
        } else {
            why.join("; ")
        };
        return Panel::missing("bandwidth", "Bandwidth", &why);
    }
    Panel::new(
        "bandwidth",
        "Bandwidth",
        html! {
            (platform::diagram(&profile.platform))
            @for (index, domain) in profile.bandwidth.iter().enumerate() { (bandwidth(index, domain)) }
            @for text in &why { p.missing { (text) } }
        },
    )
}

fn gaps(profile: &Profile, table: &str) -> Vec<String> {
    let gaps = profile.missing.iter().filter(|gap| gap.table == table);
    gaps.map(run::gap).collect()
}

fn sharing(
    id: &'static str,
    title: &'static str,
    none: &'static str,
    lines: &[SharedLine],
) -> Panel {
    if lines.is_empty() {
        return Panel::empty(id, title, html! { p.note { (none) } });
    }
    Panel::new(
        id,
        title,
        html! {
            p.reading { "Each row is a thread, each cell a byte of the line. Threads that write different bytes of one line take it from each other; on separate lines, neither waits." }
            @for line in lines.iter().take(MAX_SHARED_LINES) { (shared_line(line)) }
            @if lines.len() > MAX_SHARED_LINES { p.note { (lines.len() - MAX_SHARED_LINES) " more in the JSON." } }
        },
    )
}

fn shared_line(line: &SharedLine) -> Markup {
    html! {
        div.shared {
            h3 { (line.object) @if let Some(offset) = line.object_offset { " +" (offset) } }
            p { (run::shared(line)) }
            div.scroll tabindex="0" role="group" aria-label="line" {
                table.run.bytes {
                    thead { tr {
                        th scope="col" { "thread" }
                        th scope="col" { "bytes 0 to " (line.line_bytes.saturating_sub(1)) }
                        th scope="col" { "loads" } th scope="col" { "stores" }
                        @if line.confirmed.is_some() { th scope="col" { "watched" } }
                    } }
                    tbody {
                        @for (index, thread) in line.threads.iter().take(MAX_THREADS).enumerate() {
                            tr {
                                th scope="row" { (thread.name) " " small { (thread.tid) } }
                                td { (byte_cells(line, index)) }
                                td { (units::count(thread.loads)) }
                                td { (units::count(thread.stores)) }
                                @if let Some(watched) = &line.confirmed {
                                    @let hits: u64 = watched.iter().filter(|it| it.tid == thread.tid).map(|it| it.hits).sum();
                                    td { @if hits > 0 { (units::plural(hits as usize, "hit")) } }
                                }
                            }
                        }
                    }
                }
            }
            @if line.threads.len() > MAX_THREADS { p.note { (line.threads.len() - MAX_THREADS) " more threads." } }
            @if !line.sites.is_empty() {
                p.note {
                    "Code: "
                    @for (index, site) in line.sites.iter().enumerate() {
                        @if index > 0 { "; " }
                        b { (site.name) } " in " (site.function)
                        @if site.stores { " (writes)" }
                    }
                }
            }
            @if !line.alloc_stack.is_empty() {
                p.note {
                    "Allocated by: "
                    @for (index, frame) in line.alloc_stack.iter().enumerate() {
                        @if index > 0 { " ← " }
                        (frame.function)
                        @if let Some(place) = run::place(frame.file.as_deref(), frame.line) { " " small { (place) } }
                    }
                }
            }
        }
    }
}

/// Row of a thread in the drawing of a line: the range that it touches, observed offsets, and bytes
/// confirmed by a watchpoint.
fn byte_cells(line: &SharedLine, index: usize) -> Markup {
    const CELL: u32 = 7;
    let bytes = line.line_bytes.clamp(1, LINE);
    let thread = &line.threads[index];
    let (from, to) = (
        thread.from.min(bytes),
        thread.to.min(bytes).max(thread.from.min(bytes)),
    );
    let watched = line.confirmed.iter().flatten();
    let watched = watched.filter(|it| it.tid == thread.tid && it.hits > 0);
    let label = format!("{} touches {}", thread.name, run::shared_by(thread));
    html! {
        svg.bytes viewBox=(format!("0 0 {} 16", bytes * CELL)) width=(bytes * CELL) height="16" role="img" aria-label=(label) {
            @for byte in 0..bytes {
                rect.byte x=(byte * CELL) y="2" width=(CELL - 1) height="12" {}
            }
            rect class=(format!("touched c{}", index % 8)) x=(from * CELL) y="2" width=(((to - from) * CELL).saturating_sub(1)) height="12" {}
            @for offset in line.offsets.iter().filter(|offset| (from..to).contains(offset)) {
                path.first d=(format!("M{} 1V15", offset * CELL)) {}
            }
            @for it in watched {
                @let start = it.offset.min(bytes);
                @let length = it.bytes.min(bytes - start);
                rect.watched x=(start * CELL) y="1" width=((length * CELL).saturating_sub(1)) height="14" {}
            }
        }
    }
}

fn nodes(view: &NumaView) -> Markup {
    html! {
        p { b { (facts::nodes::local(view.local_fraction, view.local_interval)) } " of the accesses go to pages of the thread's own node." }
        div.scroll tabindex="0" role="group" aria-label="accesses by node" {
            table.run {
                thead { tr { th scope="col" { "threads on" } @for page in 0..view.matrix.len() { th scope="col" { "pages on node " (page) } } } }
                tbody {
                    @for (node, row) in view.matrix.iter().enumerate() {
                        tr {
                            th scope="row" { "node " (node) }
                            @for (page, share) in row.iter().enumerate() {
                                td class=[(page != node && *share > 0.1).then_some("differs")] { (units::percent(*share)) }
                            }
                        }
                    }
                }
            }
        }
        (numa_table("object", &view.objects))
        (numa_table("line", &view.lines))
    }
}

fn numa_table(title: &str, rows: &[NumaRow]) -> Markup {
    let advised = rows.iter().any(|row| !row.advice.is_empty());
    html! {
        @if !rows.is_empty() {
            div.scroll tabindex="0" role="group" aria-label=(format!("nodes by {title}")) {
                table.run {
                    thead { tr { th scope="col" { "local" } th scope="col" { "of all remote" } th scope="col" { "pages on" } th scope="col" { (title) } @if advised { th scope="col" { "advice" } } } }
                    tbody {
                        @for row in rows.iter().take(MAX_ROWS) {
                            tr {
                                td { (facts::nodes::local(row.local_fraction, row.local_interval)) }
                                td { (units::percent(row.remote_share)) }
                                td { @if let Some(node) = row.node { "node " (node) } }
                                th scope="row" { (row.name) }
                                @if advised { td.wrap { (row.advice) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn bandwidth(index: usize, domain: &BandwidthDomain) -> Markup {
    let most = domain.machine_max_gb_s.known().copied();
    html! {
        h3 { (domain.domain) " " span.label { (domain.basis) } }
        p { (run::traffic(domain)) "." }
        div.pair {
            (curves(index, domain, most).markup())
            (histogram(index, domain, most).markup())
        }
        div.pair {
            (causes("objects", &domain.objects))
            (causes("lines", &domain.lines))
        }
    }
}

fn causes(title: &str, rows: &[NamedShare]) -> Markup {
    html! {
        @if !rows.is_empty() {
            div {
                h3 { "Caused by " (title) }
                table.run { tbody {
                    @for row in rows.iter().take(MAX_ROWS) {
                        tr { td { (units::percent(row.fraction)) } th scope="row" { (row.name) } }
                    }
                } }
            }
        }
    }
}

fn curves(index: usize, domain: &BandwidthDomain, most: Option<f64>) -> Chart {
    let step = domain.timeline.len().div_ceil(MAX_MOMENTS).max(1);
    let series = |place: usize, label: &str, value: fn(&BandwidthMoment) -> f64| Series {
        label: label.to_owned(),
        look: Look::Curve(place),
        shown: true,
        points: domain
            .timeline
            .chunks(step)
            .map(|moments| {
                let y = moments.iter().map(value).sum::<f64>() / moments.len() as f64;
                Point {
                    x: moments[0].t_s,
                    y,
                    tip: format!("{}: {}", units::seconds(moments[0].t_s), units::gb_s(y)),
                    ..Point::default()
                }
            })
            .collect(),
    };
    Chart {
        id: format!("traffic-{index}"),
        title: "Over time.".to_owned(),
        reading: format!("Traffic, {}.", domain.basis),
        x: Axis::linear("time in s"),
        y: Axis::linear("GB/s"),
        series: vec![
            series(0, "read", |moment| moment.read_gb_s),
            series(1, "written", |moment| moment.write_gb_s),
            series(2, "both", |moment| moment.read_gb_s + moment.write_gb_s),
        ],
        rules: most
            .map(|most| Rule {
                y: most,
                label: format!("this machine's most, {}", units::gb_s(most)),
            })
            .into_iter()
            .collect(),
        ..Chart::default()
    }
}

/// Objects by their peak of live bytes; the timeline shows the course over time.
fn live_bytes(memory: &MemoryUse) -> Markup {
    html! {
        p.reading { "Bytes that were allocated and not freed yet, used or not. Most at once: " (units::bytes(memory.peak_bytes)) ", at " (units::seconds(memory.peak_s)) ". The timeline shows them over time." }
        div.scroll tabindex="0" role="group" aria-label="memory by object" {
            table.run {
                thead { tr { th scope="col" { "most at once" } th scope="col" { "at" } th scope="col" { "at the end" } th scope="col" { "object" } } }
                tbody {
                    @for row in memory.objects.iter().take(MAX_ROWS) {
                        tr {
                            td { (units::bytes(row.peak_bytes)) }
                            td { (units::seconds(row.peak_s)) }
                            td { (units::bytes(row.end_bytes)) }
                            th scope="row" { (row.name) " " small { (row.kind) } }
                        }
                    }
                }
            }
        }
        @if memory.objects.len() > MAX_ROWS { p.note { (memory.objects.len() - MAX_ROWS) " more in the JSON." } }
    }
}

fn histogram(index: usize, domain: &BandwidthDomain, most: Option<f64>) -> Bars {
    let range = |bin: &membound_types::BandwidthBin| {
        format!(
            "{}–{}",
            units::compact(bin.from_gb_s),
            units::compact(bin.to_gb_s)
        )
    };
    Bars {
        id: format!("histogram-{index}"),
        title: "How long at which bandwidth.".to_owned(),
        reading: match most {
            Some(most) => format!(
                "Share of the time; the machine does {} at most.",
                units::gb_s(most)
            ),
            None => "Share of the time.".to_owned(),
        },
        extent: Extent::Half,
        y: Axis::linear("% of the time"),
        kinds: vec!["share of the time".to_owned()],
        groups: domain
            .histogram
            .iter()
            .map(|bin| BarGroup {
                label: range(bin),
                detail: String::new(),
                bars: vec![Bar {
                    value: bin.fraction * 100.0,
                    tip: format!("{} GB/s: {}", range(bin), units::percent(bin.fraction)),
                    ..Bar::default()
                }],
            })
            .collect(),
        table: DataTable {
            head: vec!["GB/s".to_owned(), "share of the time".to_owned()],
            rows: domain
                .histogram
                .iter()
                .map(|bin| vec![range(bin), units::percent(bin.fraction)])
                .collect(),
        },
    }
}

fn elsewhere(profile: &Profile) -> Markup {
    html! {
        p.reading { "What this program would wait for elsewhere, by the cache model." }
        div.scroll tabindex="0" role="group" aria-label="other machines" {
            table.run {
                thead { tr { th scope="col" { "machine" } th scope="col" { "memory bound" } th scope="col" { "run time" } th scope="col" { "asked by each core" } th scope="col" { "the machine's most" } } }
                tbody {
                    @for other in &profile.elsewhere {
                        tr {
                            th scope="row" { (other.machine) " " small { (run::computing(other)) } }
                            td { (units::percent(other.memory_bound.value)) " " small { (units::percent_interval(other.memory_bound.low, other.memory_bound.high)) } }
                            td { "× " (units::number(other.time_ratio.value)) " " small { (units::interval(other.time_ratio.low, other.time_ratio.high)) } }
                            td { (units::gb_s(other.per_core_gb_s)) }
                            td {
                                @match &other.machine_max_gb_s {
                                    Outcome::Known(most) => { (units::gb_s(*most)) }
                                    Outcome::Missing { not_measured } => { (facts::missing_text(not_measured)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
