//! The part `mlp` on a terminal: windows of the core, and memory-level parallelism.

use membound_types::{
    AreaPoint, Basis, Figure, Filler, MachineInfo, Mlp, Outcome, PageWalks, WindowLimit,
};

use super::detail::Detail;
use super::latency::skipped;
use super::out::Out;
use super::plot;
use super::table::{Align, Table};
use super::{plane, sequence};
use crate::{facts, units};

/// Most chains or areas in a table.
const MAX_ROWS: usize = 14;

pub(super) fn write(out: &mut Out, mlp: &Mlp, machine: &MachineInfo, detail: Detail) {
    out.heading(
        "memory-level parallelism",
        &format!(
            "{}, {} fence, {}",
            facts::mlp_title(mlp),
            mlp.fence,
            units::seconds(mlp.elapsed_s)
        ),
    );
    if detail == Detail::Full {
        let entries = facts::reorder_buffer(mlp);
        figure(out, "reorder buffer (entries)", entries, &mlp.rob_size);
        if let Some(published) = machine.cpu.published_rob {
            out.note(&format!("published for this processor: {published}"));
            if let Some(doubt) = facts::reorder_buffer_doubt(mlp, published) {
                out.warning(&doubt);
            }
        }
        rule(out, mlp);
        figure(
            out,
            "parallel loads by throughput",
            facts::throughput(mlp),
            &mlp.mlp_throughput,
        );
        figure(
            out,
            "two loads in sequence (cycles)",
            facts::pair(mlp),
            &mlp.sequential_pair_cycles,
        );
        if let Some(one) = mlp.one_load_cycles.known() {
            out.line(&format!("one load (cycles): {}", facts::with_interval(one)));
        }
    }
    if detail == Detail::Full {
        out.blank();
    }
    windows(out, mlp, detail);
    conditions(out, mlp);
    if detail == Detail::Brief {
        for (run, walks) in facts::walks(mlp) {
            out.line(&walk_line(run, walks));
        }
    }
    if detail == Detail::Full {
        plane::write(out, mlp);
        throughput(out, mlp);
        sequence::write(out, mlp);
        page_walks(out, mlp);
        areas(out, mlp);
        hits(out, mlp);
        placements(out, mlp);
        skipped(out, &mlp.skipped);
    }
}

/// Writes a figure, or the reason why it is missing.
fn figure(out: &mut Out, what: &str, text: Option<String>, outcome: &Outcome<f64>) {
    match (text, outcome.why_missing()) {
        (Some(text), _) => out.line(&format!("{what}: {text}")),
        (None, Some(why)) => out.warning(&format!("{what}: {}", facts::missing_text(why))),
        (None, None) => {}
    }
}

fn rule(out: &mut Out, mlp: &Mlp) {
    let what = "parallel loads by the two-load rule";
    figure(out, what, facts::rule(mlp), &mlp.mlp_rule);
    if let Some(between) = facts::rule_between(mlp) {
        out.note(&between);
        if let Some(why) = mlp.mlp_rule_interval.why_missing() {
            out.note(&format!("interval: {}", facts::missing_text(why)));
        }
    }
}

/// Page walks in one line.
fn walk_line(run: &Mlp, walks: &PageWalks) -> String {
    let chases = walks.walks_by_chases.map_or_else(String::new, |chases| {
        format!("; {} by independent chases", units::compact(chases))
    });
    format!(
        "page walks, {} against {}: {} each, {} at once{chases}",
        run.page,
        walks.against,
        units::cycles(walks.miss_cycles.value),
        facts::walks_at_once(walks)
    )
}

/// Resource that limits each filler's window; the brief form has only the reorder buffer and the two
/// register files.
fn windows(out: &mut Out, mlp: &Mlp, detail: Detail) {
    let mut table = Table::new()
        .words("filler")
        .words("ended by")
        .figures("entries")
        .column("interval", Align::Right, 1)
        .column("cycles inside", Align::Right, 2)
        .column("outside", Align::Right, 2);
    let shown = |window: &&WindowLimit| {
        detail == Detail::Full
            || window.filler == mlp.filler
            || matches!(window.filler, Filler::Integer | Filler::Vector)
    };
    for window in mlp.windows.iter().filter(shown) {
        table.row([
            facts::window_filler(window),
            window.limited_by.clone(),
            units::compact(window.entries.value),
            units::interval(window.entries.low, window.entries.high),
            units::number(window.inside_cycles),
            units::number(window.outside_cycles),
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
    if let (Detail::Full, Some(evidence)) = (detail, facts::reorder_evidence(mlp)) {
        out.note(&evidence);
    }
}

fn conditions(out: &mut Out, mlp: &Mlp) {
    if mlp.others.is_empty() {
        return;
    }
    out.blank();
    let mut table = Table::new()
        .words("condition")
        .figures("one load")
        .column("pair", Align::Right, 2)
        .figures("MLP rule")
        .column("throughput", Align::Right, 1)
        .figures("overhead");
    for row in facts::mlp_conditions(mlp) {
        table.row([
            row.label,
            row.one,
            row.pair,
            row.rule,
            row.throughput,
            row.overhead,
        ]);
    }
    out.table(&table);
}

fn throughput(out: &mut Out, mlp: &Mlp) {
    if mlp.throughput.is_empty() {
        return;
    }
    out.heading("independent chains", "");
    let mut table = Table::new()
        .figures("chains")
        .figures("cycles per load")
        .figures("parallelism");
    let step = mlp.throughput.len().div_ceil(MAX_ROWS).max(1);
    let last = mlp.throughput.len() - 1;
    for (index, point) in mlp.throughput.iter().enumerate() {
        if index % step == 0 || index == last {
            table.row([
                point.chains.to_string(),
                units::number(point.cycles_per_load),
                units::number(point.parallelism),
            ]);
        }
    }
    out.table(&table);
}

fn page_walks(out: &mut Out, mlp: &Mlp) {
    let known = facts::walks(mlp);
    if known.is_empty() {
        // Show the reason of the smallest pages: the largest have nothing to be compared with.
        if let Some(why) = facts::runs(mlp)
            .min_by_key(|run| run.page)
            .and_then(|run| run.page_walks.why_missing())
        {
            out.note(&format!("page walks: {}", facts::missing_text(why)));
        }
        return;
    }
    for (run, walks) in known {
        out.heading(
            "page walks",
            &format!(
                "{}, against {}, N = {}…{} at once",
                facts::mlp_title(run),
                walks.against,
                walks.from_loads,
                walks.to_loads
            ),
        );
        let mut table = Table::new().words("cycles of").figures("").words("from");
        let against = format!("with {} pages", walks.against);
        let miss_from = if walks.miss_from_sequence {
            "loads in sequence"
        } else {
            "one load alone"
        };
        for (what, figure, from) in [
            ("one walk", &walks.miss_cycles, miss_from),
            ("each further load", &walks.further_cycles, "T(N)"),
            (&against, &walks.further_against_cycles, "T(N)"),
            ("the difference", &walks.excess_cycles, "their excess"),
        ] {
            table.row([
                what.to_owned(),
                facts::with_interval(figure),
                from.to_owned(),
            ]);
        }
        out.table(&table);
        out.line(&format!("walks at once: {}", facts::walks_at_once(walks)));
        if let Some(chases) = walks.walks_by_chases {
            out.line(&format!(
                "by independent chases (tlb): {}",
                units::compact(chases)
            ));
        }
        out.note(&facts::walks_reading(walks));
    }
}

fn areas(out: &mut Out, mlp: &Mlp) {
    let Some(most) = mlp.areas.iter().map(|point| point.loads).max() else {
        return;
    };
    out.heading(
        "area sweep",
        &format!("cycles of 1 and of {most} accesses at once"),
    );
    if area_picture(out, mlp, most) {
        out.blank();
    }
    let mut table = Table::new()
        .figures("area")
        .figures("1")
        .figures(&most.to_string())
        .figures("ratio")
        .words("expected hits");
    let mut left_out = false;
    for point in mlp.areas.iter().filter(|point| point.loads == most) {
        let one = mlp
            .areas
            .iter()
            .find(|p| p.area_bytes == point.area_bytes && p.loads == 1);
        let all_cycles = point.distinct_cycles();
        let one_cycles = one.and_then(AreaPoint::distinct_cycles);
        left_out |= all_cycles.is_none() || (one.is_some() && one_cycles.is_none());
        let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), units::number);
        let expected: Vec<String> = point
            .expected
            .iter()
            .filter(|hits| hits.share > 0.005)
            .map(|hits| format!("{} {}", hits.level, units::percent(hits.share)))
            .collect();
        table.row([
            units::bytes(point.area_bytes),
            one.map_or_else(String::new, |_| cell(one_cycles)),
            cell(all_cycles),
            cell(all_cycles.and(one_cycles).and(point.ratio)),
            expected.join(", "),
        ]);
    }
    out.table(&table);
    if left_out {
        out.note("– a time that cannot be told apart from that of the empty kernel");
    }
}

/// Draws T(N) over the area, one curve for each N (figure 5.1 of document 000). False if there are too few
/// points for a picture.
fn area_picture(out: &mut Out, mlp: &Mlp, most: u32) -> bool {
    let mut loads: Vec<u32> = mlp.areas.iter().map(|point| point.loads).collect();
    loads.sort_unstable();
    loads.dedup();
    let fewest = loads.first().copied().unwrap_or(most);
    // More names than this would stand beside rows in which other curves end.
    const MAX_NAMES: u32 = 6;
    let step = (most - fewest).div_ceil(MAX_NAMES).max(1);
    let drawn: Vec<plot::Curve> = loads
        .iter()
        .enumerate()
        .map(|(ink, loads)| {
            let points = mlp
                .areas
                .iter()
                .filter(|point| point.loads == *loads)
                .filter_map(|point| Some((point.area_bytes as f64, point.distinct_cycles()?)))
                .collect();
            let name = if (most - loads).is_multiple_of(step) {
                format!("N={loads}")
            } else {
                String::new()
            };
            plot::Curve::line(name, points, ink)
        })
        .collect();
    let remark = format!("for all N accesses, over the area; N = {fewest}…{most}");
    plot::over_sizes(out, "cycles", &remark, &drawn, &[])
}

/// Hits by level for each area and N. Areas whose levels serve the same share at every N have one row.
fn hits(out: &mut Out, mlp: &Mlp) {
    let Some(source) = facts::hits_source(&mlp.areas) else {
        return;
    };
    out.heading("hits of N accesses by level", &source);
    let mut table = Table::new().figures("area").figures("N").words("hits");
    let mut areas: Vec<u64> = mlp.areas.iter().map(|point| point.area_bytes).collect();
    areas.sort_unstable();
    areas.dedup();
    let mut shared = false;
    for area in areas {
        let mut points: Vec<&AreaPoint> = mlp
            .areas
            .iter()
            .filter(|point| point.area_bytes == area && point.hits.known().is_some())
            .collect();
        points.sort_by_key(|point| point.loads);
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            continue;
        };
        let all = format!("{}…{}", first.loads, last.loads);
        if let Some(level) = facts::only_level(&points) {
            table.row([units::bytes(area), all, format!("all {level}")]);
            continue;
        }
        if points.len() > 1 && same_shares(&points) {
            shared = true;
            table.row([units::bytes(area), all, shares(first)]);
            continue;
        }
        for point in &points {
            table.row([
                units::bytes(area),
                point.loads.to_string(),
                facts::hits(point),
            ]);
        }
    }
    if !table.is_empty() {
        out.table(&table);
    }
    if shared {
        out.note("in %: the share of the accesses that a level serves, the same for every N");
    }
}

/// Share of the accesses of a point that each level serves, with its interval, innermost level first.
fn hit_shares(point: &AreaPoint) -> impl Iterator<Item = (&str, Figure)> {
    let loads = f64::from(point.loads.max(1));
    point.hits.known().into_iter().flatten().map(move |level| {
        let share = Figure {
            value: level.hits.value / loads,
            low: level.hits.low / loads,
            high: level.hits.high / loads,
            basis: level.hits.basis,
        };
        (level.level.as_str(), share)
    })
}

/// True if every level serves the same share of the accesses at each N.
fn same_shares(points: &[&AreaPoint]) -> bool {
    const MAX_DIFFERENCE: f64 = 0.005;
    let Some((first, others)) = points.split_first() else {
        return false;
    };
    let first: Vec<(&str, Figure)> = hit_shares(first).collect();
    others.iter().all(|point| {
        let other: Vec<(&str, Figure)> = hit_shares(point).collect();
        let mut pairs = first.iter().zip(&other);
        first.len() == other.len()
            && pairs.all(|((level, one), (other_level, other))| {
                level == other_level && (one.value - other.value).abs() <= MAX_DIFFERENCE
            })
    })
}

/// Formats the shares of one point: `L1 75 % [73, 77], L2 25 % [23, 27]`. Levels that serve hardly any access
/// are left out.
fn shares(point: &AreaPoint) -> String {
    const HARDLY: f64 = 0.005;
    let percent = |share: f64| format!("{:.0}", 100.0 * share.clamp(0.0, 1.0));
    let parts: Vec<String> = hit_shares(point)
        .filter(|(_, share)| share.value > HARDLY)
        .map(|(level, share)| match share.basis {
            Basis::Measured => format!("{level} {}", units::percent(share.value)),
            _ => format!(
                "{level} {} [{}, {}]",
                units::percent(share.value),
                percent(share.low),
                percent(share.high)
            ),
        })
        .collect();
    parts.join(", ")
}

/// Effect of the choice of pages: times over all placements, and their spread.
fn placements(out: &mut Out, mlp: &Mlp) {
    for run in facts::runs(mlp) {
        let Some(placements) = &run.placements else {
            continue;
        };
        out.heading(
            "placement noise",
            &format!(
                "{}, {} times on new pages",
                facts::mlp_title(run),
                placements.times
            ),
        );
        let mut table = Table::new()
            .words("loads")
            .figures("median")
            .figures("least")
            .figures("most")
            .figures("between")
            .figures("within");
        for point in &placements.points {
            table.row([
                facts::placement_title(point),
                units::number(point.median_cycles),
                units::number(point.low_cycles),
                units::number(point.high_cycles),
                units::percent(point.between),
                units::percent(point.within),
            ]);
        }
        out.table(&table);
        out.note(facts::PLACEMENTS);
        for outlier in &placements.outliers {
            out.warning(&facts::placement_outlier(outlier));
        }
    }
}
