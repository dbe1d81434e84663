//! Nodes and bandwidth on a terminal.

use membound_types::{BandwidthDomain, NumaRow, Outcome, Platform, Profile};
use textwrap::core::display_width;

use crate::facts::{nodes, run};
use crate::text::bar;
use crate::text::out::Out;
use crate::text::table::{Align, Table};
use crate::units;

const ROWS: usize = 20;
/// Columns between boxes of the platform, and columns of a box around its text.
const GAP: usize = 2;
const BORDERS: usize = 4;
/// Longest bar of a histogram, in columns.
const MAX_BAR_COLUMNS: usize = 40;

pub(super) fn nodes(out: &mut Out, profile: &Profile) {
    let view = match &profile.numa {
        Outcome::Known(view) => view,
        Outcome::Missing { not_measured } => {
            out.line(&format!(
                "nodes: {}",
                crate::facts::missing_text(not_measured)
            ));
            return;
        }
    };
    out.heading(
        "By node",
        &format!(
            "{} of the accesses go to the thread's own node",
            nodes::local(view.local_fraction, view.local_interval)
        ),
    );
    let mut matrix = Table::new().words("threads on");
    for node in 0..view.matrix.len() {
        matrix = matrix.figures(&format!("pages on {node}"));
    }
    for (node, row) in view.matrix.iter().enumerate() {
        let mut cells = vec![format!("node {node}")];
        cells.extend(row.iter().map(|share| units::percent(*share)));
        matrix.row(cells);
    }
    out.table(&matrix);
    group(out, "object", &view.objects);
    group(out, "line", &view.lines);
}

fn group(out: &mut Out, title: &str, rows: &[NumaRow]) {
    let mut table = Table::new()
        .figures("local")
        .figures("of all remote")
        .column("pages on", Align::Right, 2)
        .middle(title);
    for row in rows.iter().take(ROWS) {
        table.row([
            nodes::local(row.local_fraction, row.local_interval),
            units::percent(row.remote_share),
            row.node
                .map_or_else(String::new, |node| format!("node {node}")),
            row.name.clone(),
        ]);
    }
    if table.is_empty() {
        return;
    }
    out.blank();
    out.table(&table);
    for row in rows.iter().filter(|row| !row.advice.is_empty()) {
        out.note(&format!("{}: {}", row.name, row.advice));
    }
}

pub(super) fn bandwidth(out: &mut Out, profile: &Profile) {
    platform(out, &profile.platform);
    if profile.bandwidth.is_empty() {
        out.line("traffic was not measured");
    }
    for domain in &profile.bandwidth {
        out.blank();
        out.heading(&domain.domain, domain.basis.name());
        out.line(&run::traffic(domain));
        histogram(out, domain);
        for (title, rows) in [("objects", &domain.objects), ("lines", &domain.lines)] {
            let words: Vec<String> = rows
                .iter()
                .take(ROWS)
                .map(|row| format!("{} {}", row.name, units::percent(row.fraction)))
                .collect();
            if !words.is_empty() {
                out.note(&format!("by {title}: {}", words.join(", ")));
            }
        }
    }
    for gap in profile
        .missing
        .iter()
        .filter(|gap| gap.table == "bandwidth")
    {
        out.note(&run::gap(gap));
    }
}

/// Draws the nodes as boxes, and lists the traffic between them below.
fn platform(out: &mut Out, platform: &Platform) {
    if platform.nodes.is_empty() {
        return;
    }
    out.heading("Platform", "averages over the time that is shown");
    let mut boxes: Vec<[String; 3]> = platform
        .nodes
        .iter()
        .map(|node| {
            [
                format!("node {}", node.node),
                run::node_cpus(node),
                run::node_memory(node),
            ]
        })
        .collect();
    let width = |lines: &[String; 3]| lines.iter().map(|line| display_width(line)).max();
    let inside = boxes.iter().filter_map(width).max().unwrap_or(0);
    // Put as many boxes side by side as fit, all equally wide.
    let boxes_per_row = ((out.width() + GAP) / (inside + BORDERS + GAP)).max(1);
    let cut = out.width().saturating_sub(BORDERS).max(1);
    let inside = inside.min(cut);
    for lines in &mut boxes {
        for line in lines {
            *line = line.chars().take(inside).collect();
        }
    }
    for row in boxes.chunks(boxes_per_row) {
        let rule = "─".repeat(inside + 2);
        let joined = |parts: Vec<String>| parts.join(&" ".repeat(GAP));
        let mut drawn = vec![joined(vec![format!("┌{rule}┐"); row.len()])];
        for line in 0..row[0].len() {
            let parts = row.iter().map(|lines| {
                let text = &lines[line];
                let pad = " ".repeat(inside - display_width(text));
                format!("│ {text}{pad} │")
            });
            drawn.push(joined(parts.collect()));
        }
        drawn.push(joined(vec![format!("└{rule}┘"); row.len()]));
        out.verbatim(&drawn);
    }
    for link in &platform.links {
        out.line(&format!(
            "node {} ──▶ node {}  {}",
            link.from,
            link.to,
            run::rate_of(link.gb_s, link.max_gb_s)
        ));
    }
}

fn histogram(out: &mut Out, domain: &BandwidthDomain) {
    let most = domain
        .histogram
        .iter()
        .map(|bin| bin.fraction)
        .fold(0.0, f64::max);
    let mut table = Table::new()
        .figures("GB/s")
        .figures("of the time")
        .words("");
    for bin in &domain.histogram {
        table.row([
            format!(
                "{}–{}",
                units::compact(bin.from_gb_s),
                units::compact(bin.to_gb_s)
            ),
            units::percent(bin.fraction),
            bar::single(bin.fraction, most, MAX_BAR_COLUMNS),
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
}
