//! Document 000's plane of N loads and K fillers on a terminal: a picture with one line per N, and a table.

use std::collections::{BTreeMap, BTreeSet};

use membound_types::Mlp;

use super::out::Out;
use super::plot::{self, Across, Look, Picture, Up};
use super::table::Table;
use crate::{facts, units};

/// Most lines in a picture: more cannot be distinguished.
const LINES: usize = 7;
/// Most rows of the table.
const ROWS: usize = 20;
/// Widths in columns: of a time in the table with its gap, and of N.
const TIME_COLUMNS: usize = 8;
const N_COLUMNS: usize = 5;

/// Times of one line of the plane, by K.
type Line = BTreeMap<u32, f64>;

pub(super) fn write(out: &mut Out, mlp: &Mlp) {
    let filler = facts::plane_filler(mlp);
    let mut lines: BTreeMap<u32, Line> = BTreeMap::new();
    for cell in facts::plane_cells(mlp, mlp.filler) {
        // Of a cell that was measured twice the first counts, as for the rule.
        let line = lines.entry(cell.loads).or_default();
        line.entry(cell.fillers).or_insert(cell.cycles);
    }
    if lines.is_empty() {
        return;
    }
    let pair = mlp.sequential_pair_cycles.known().copied();
    out.heading(
        "N loads, K fillers",
        &format!("cycles for all N; filler {filler}"),
    );
    picture(out, mlp, &lines, pair);
    table(out, mlp, &lines, pair);
}

fn picture(out: &mut Out, mlp: &Mlp, lines: &BTreeMap<u32, Line>, pair: Option<f64>) {
    // Lines far above two loads in sequence would compress all others.
    let reached = mlp.mlp_rule_between.map(|between| between.reached.loads);
    let most = reached.unwrap_or(u32::MAX);
    let loads: Vec<u32> = lines
        .keys()
        .copied()
        .filter(|loads| *loads <= most)
        .collect();
    let must: Vec<usize> = (0..loads.len().min(2))
        .chain(loads.len().checked_sub(1))
        .collect();
    let curves: Vec<plot::Curve> = chosen(loads.len(), LINES, &must)
        .into_iter()
        .enumerate()
        .map(|(ink, index)| plot::Curve {
            name: format!("N={}", loads[index]),
            points: lines[&loads[index]]
                .iter()
                .map(|(fillers, cycles)| (f64::from(*fillers), *cycles))
                .collect(),
            look: Look::Line,
            ink,
        })
        .collect();
    let remark = pair.map_or_else(
        || "over K".to_owned(),
        |pair| format!("over K; dotted: two in sequence, {}", units::number(pair)),
    );
    plot::write(
        out,
        &Picture {
            unit: "cycles",
            remark: &remark,
            across: Across::Numbers,
            up: Up::FromZero,
            curves: &curves,
            rules: pair.as_slice(),
            ends: &[],
        },
    );
}

fn table(out: &mut Out, mlp: &Mlp, lines: &BTreeMap<u32, Line>, pair: Option<f64>) {
    let all: BTreeSet<u32> = lines.values().flat_map(BTreeMap::keys).copied().collect();
    let fillers: Vec<u32> = all.into_iter().collect();
    let cliff = mlp.windows.first().map(|window| window.cliff_fillers);
    // Always show both ends, and both sides of the cliff.
    let mut must = vec![0, fillers.len() - 1];
    if let Some(cliff) = cliff {
        let beyond = fillers.partition_point(|fillers| *fillers <= cliff);
        must.extend([beyond.saturating_sub(1), beyond.min(fillers.len() - 1)]);
    }
    let room = (out.width().saturating_sub(N_COLUMNS) / TIME_COLUMNS).max(2);
    let columns = chosen(fillers.len(), room, &must);
    let loads: Vec<u32> = lines.keys().copied().collect();
    let rows = chosen(loads.len(), ROWS, &[0, loads.len() - 1]);
    let mut table = Table::new().figures("N");
    for column in &columns {
        table = table.figures(&format!("K={}", fillers[*column]));
    }
    let mut marked = false;
    for row in &rows {
        let line = &lines[&loads[*row]];
        let mut cells = vec![loads[*row].to_string()];
        for column in &columns {
            let time = line.get(&fillers[*column]);
            cells.push(time.map_or_else(String::new, |cycles| {
                let reaches = loads[*row] > 1 && pair.is_some_and(|pair| *cycles >= pair);
                marked |= reaches;
                let mark = if reaches { "*" } else { " " };
                format!("{}{mark}", units::number(*cycles))
            }));
        }
        table.row(cells);
    }
    out.blank();
    out.table(&table);
    if marked {
        out.note("* as long as two loads in sequence, or longer");
    }
    if columns.len() < fillers.len() || rows.len() < loads.len() {
        out.note(&format!(
            "{} of {} N and {} of {} K are shown; --format csv and --json have all",
            rows.len(),
            loads.len(),
            columns.len(),
            fillers.len()
        ));
    }
}

/// Chooses at most `most` of `count` positions: those in `must`, and others as evenly as possible.
fn chosen(count: usize, most: usize, must: &[usize]) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    let mut places: BTreeSet<usize> = must.iter().copied().filter(|it| *it < count).collect();
    if places.is_empty() {
        places.insert(0);
    }
    while places.len() < most {
        // Add the middle of the widest gap between chosen positions, or after the last.
        let ends: Vec<usize> = places.iter().copied().chain([count]).collect();
        let widest = ends
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > 1)
            .max_by_key(|pair| (pair[1] - pair[0], std::cmp::Reverse(pair[0])));
        let Some(pair) = widest else { break };
        places.insert(usize::midpoint(pair[0], pair[1]));
    }
    places.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_shown_is_and_the_rest_is_spread() {
        assert_eq!(chosen(5, 9, &[]), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(9, 3, &[0, 8]), [0, 4, 8]);
        assert_eq!(chosen(20, 5, &[0, 15, 16, 19]), [0, 7, 15, 16, 19]);
        assert_eq!(chosen(0, 3, &[0]), Vec::<usize>::new());
        for count in 1..40 {
            for most in 1..20 {
                let found = chosen(count, most, &[0, count - 1]);
                assert!(found.len() <= most.max(2), "{count} {most}");
                assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }
    }
}
