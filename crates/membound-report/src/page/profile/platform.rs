//! Diagram of the machine's nodes: CPUs, memory, and traffic between nodes.

use maud::{Markup, html};
use membound_types::{Platform, PlatformLink, PlatformNode};

use crate::facts::run;
use crate::units;

/// Width of a node's box, and of the space for links beside it, in units of the drawing.
const BOX_WIDTH: usize = 300;
const LINK_WIDTH: usize = 150;
/// Space between a box's edge and its text.
const MARGIN: usize = 12;
/// Average width of a character of a box's text in a wide font.
const CHARACTER_WIDTH: usize = 7;
/// Height of a node's box, and of a row with its links.
const BOX_HEIGHT: usize = 104;
const ROW_HEIGHT: usize = 132;
/// Nodes side by side: links between neighbours are drawn, all others are listed.
const NODES_PER_ROW: usize = 2;

pub(super) fn diagram(platform: &Platform) -> Markup {
    if platform.nodes.is_empty() {
        return html! {};
    }
    let rows = platform.nodes.len().div_ceil(NODES_PER_ROW);
    let columns = platform.nodes.len().min(NODES_PER_ROW);
    let width = columns * BOX_WIDTH + columns.saturating_sub(1) * LINK_WIDTH + 4;
    let height = rows * ROW_HEIGHT;
    let words: Vec<String> = platform
        .nodes
        .iter()
        .map(|node| {
            let cpus = run::node_cpus(node);
            format!("node {}: {cpus}, {}", node.node, run::node_memory(node))
        })
        .chain(platform.links.iter().map(|link| {
            let rate = run::rate_of(link.gb_s, link.max_gb_s);
            format!("node {} to node {}: {rate}", link.from, link.to)
        }))
        .collect();
    let place = |index: usize| {
        let x = index % NODES_PER_ROW * (BOX_WIDTH + LINK_WIDTH) + 2;
        let y = index / NODES_PER_ROW * ROW_HEIGHT + 2;
        (x, y)
    };
    let neighbours = |link: &&PlatformLink| {
        let (from, to) = (usize::from(link.from), usize::from(link.to));
        from / NODES_PER_ROW == to / NODES_PER_ROW && platform.nodes.len() > from.max(to)
    };
    let (drawn, listed): (Vec<&PlatformLink>, Vec<&PlatformLink>) =
        platform.links.iter().partition(neighbours);
    html! {
        figure.platform {
            svg.platform viewBox=(format!("0 0 {width} {height}")) style=(format!("max-width:{width}px")) role="img" aria-label=(words.join("; ")) {
                @for (index, node) in platform.nodes.iter().enumerate() { (node_box(node, place(index))) }
                @for link in &drawn { (arrow(link, place(usize::from(link.from.min(link.to))))) }
            }
            @if !listed.is_empty() {
                ul.gaps { @for link in &listed { li { "node " (link.from) " → node " (link.to) " " (run::rate_of(link.gb_s, link.max_gb_s)) } } }
            }
        }
    }
}

fn node_box(node: &PlatformNode, (x, y): (usize, usize)) -> Markup {
    let most = node.dram_max_gb_s.filter(|most| *most > 0.0);
    let share = node.dram_gb_s.zip(most).map(|(gb_s, most)| gb_s / most);
    let bar = BOX_WIDTH - 2 * MARGIN;
    let filled = share.map(|share| (share.clamp(0.0, 1.0) * bar as f64).round());
    html! {
        rect.node x=(x) y=(y) width=(BOX_WIDTH) height=(BOX_HEIGHT) rx="8" {}
        text.title x=(x + MARGIN) y=(y + 22) { "node " (node.node) }
        (line(&run::node_cpus(node), x, y + 42))
        (line(&run::node_memory(node), x, y + 66))
        rect.room x=(x + MARGIN) y=(y + 76) width=(bar) height="14" rx="3" {}
        @if let Some(filled) = filled { rect.used x=(x + MARGIN) y=(y + 76) width=(filled) height="14" rx="3" {} }
    }
}

/// A line of text in the box at `x`; condensed where it may be wider than the box, as a long list of CPUs.
fn line(words: &str, x: usize, y: usize) -> Markup {
    let room = BOX_WIDTH - 2 * MARGIN;
    let wide = words.chars().count() * CHARACTER_WIDTH > room;
    html! {
        text x=(x + MARGIN) y=(y) textLength=[wide.then_some(room)] lengthAdjust=[wide.then_some("spacingAndGlyphs")] { (words) }
    }
}

/// Arrow between the box at a position and the next one: to the right above, or to the left below.
fn arrow(link: &PlatformLink, (x, y): (usize, usize)) -> Markup {
    let (left, right) = (x + BOX_WIDTH + 6, x + BOX_WIDTH + LINK_WIDTH - 6);
    let to_right = link.from < link.to;
    let at = if to_right { y + 34 } else { y + 78 };
    let tip = if to_right {
        format!("M{left} {at}H{right}m-9 -5l9 5l-9 5")
    } else {
        format!("M{right} {at}H{left}m9 -5l-9 5l9 5")
    };
    html! {
        path.link d=(tip) {}
        text.rate x=((left + right) / 2) y=(at - 8) { (units::gb_s(link.gb_s)) }
        @if let Some(most) = link.max_gb_s { text.most x=((left + right) / 2) y=(at + 16) { "of " (units::gb_s(most)) } }
    }
}
