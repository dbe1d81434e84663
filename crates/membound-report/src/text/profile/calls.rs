//! Call trees of a profile on a terminal.

use membound_types::{Detail, Profile};

use crate::export::Weight;
use crate::facts::calls::{Calls, Direction, Node};
use crate::text::out::Out;
use crate::text::table::{Align, Table};
use crate::units;

/// Smallest share of the weight of a branch that is shown.
const MIN_BRANCH_SHARE: f64 = 0.005;
/// Most rows of a tree; folded stacks and the flame graph have all.
const MAX_ROWS: usize = 80;
/// Largest indentation in columns, so that names still have room.
const MAX_INDENT_COLUMNS: usize = 24;

pub(super) fn write(
    out: &mut Out,
    profile: &Profile,
    detail: &Detail,
    direction: Direction,
    weight: Weight,
) {
    let calls = Calls::new(detail, direction, weight, MIN_BRANCH_SHARE);
    let remark = format!(
        "shares of {} CPU time; memory bound {}",
        units::seconds(profile.time.cpu_s),
        units::percent(profile.memory_bound.fraction)
    );
    let title = match direction {
        Direction::Inwards => "Call tree, outermost function first",
        Direction::Outwards => "Callers, below each function those that call it",
    };
    out.heading(title, &remark);
    if calls.nodes.is_empty() {
        out.line(match weight {
            Weight::Stall if calls.time_s > 0.0 => {
                "no sample was stalled on memory; --weight time shows CPU time"
            }
            _ => "nothing was sampled",
        });
        return;
    }
    let mut table = Table::new()
        .figures("stalled")
        .figures("time")
        .middle("function")
        .column("module", Align::Middle, 8);
    // Stalls of single samples may sum to slightly more or less than the total stall.
    let cpu_s = profile.time.cpu_s.max(calls.time_s);
    let share = |seconds: f64| units::percent(if cpu_s > 0.0 { seconds / cpu_s } else { 0.0 });
    for node in calls.nodes.iter().take(MAX_ROWS) {
        table.row([
            share(node.stall_s),
            share(node.time_s),
            indented(node),
            file_name(&node.module).to_owned(),
        ]);
    }
    out.table(&table);
    if calls.nodes.len() > MAX_ROWS {
        out.note(&format!(
            "{} more; --format folded has all",
            calls.nodes.len() - MAX_ROWS
        ));
    }
    out.note(&format!(
        "Branches with less than {} of the {} are left out.",
        units::percent(MIN_BRANCH_SHARE),
        match weight {
            Weight::Stall => "stalled time",
            Weight::Time => "CPU time",
        }
    ));
}

fn indented(node: &Node) -> String {
    let indent = (2 * node.depth).min(MAX_INDENT_COLUMNS);
    format!("{}{}", " ".repeat(indent), node.function)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
