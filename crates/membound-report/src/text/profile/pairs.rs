//! Functions with the objects that they access, and objects with the functions that access them.

use membound_types::{CodeRow, FunctionObjectRow, ObjectRow, Profile, Share};

use super::rows;
use crate::Sort;
use crate::facts::sorted::{Row, sorted};
use crate::text::out::Out;
use crate::text::table::{Align, Table};

/// Most outer rows.
const MAX_OUTER_ROWS: usize = 20;
/// Most inner rows below each outer row.
const MAX_INNER_ROWS: usize = 8;
/// Columns that a name keeps before other columns are dropped.
const MIN_NAME_COLUMNS: usize = 28;
/// Share of CPU time below which a pair is not shown.
const MIN_SHARE: f64 = 0.0005;

/// Kind of the outer rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outer {
    Function,
    Object,
}

pub(super) fn write(out: &mut Out, profile: &Profile, outer: Outer, sort: Sort) {
    let mut table = Table::new()
        .figures("stalled")
        .column("time", Align::Right, 5)
        .column("interval", Align::Right, 7)
        .column("of", Align::Right, 4)
        .column("latency", Align::Right, 1)
        .column("loads", Align::Right, 2)
        .column("stores", Align::Right, 3)
        .column("misses", Align::Right, 2)
        .name(
            match outer {
                Outer::Function => "function, below it its objects",
                Outer::Object => "object, below it its functions",
            },
            MIN_NAME_COLUMNS,
        );
    let (lines, outer_rows) = match outer {
        Outer::Function => {
            let is_mine = |function: &CodeRow, pair: &FunctionObjectRow| {
                pair.function == function.name && pair.module == function.module
            };
            let rows = sorted(&profile.functions, sort);
            let lines = lines(profile, sort, &rows, is_mine, |pair| &pair.object);
            (lines, rows.len())
        }
        Outer::Object => {
            let is_mine = |object: &ObjectRow, pair: &FunctionObjectRow| pair.object == object.name;
            let rows = sorted(&profile.objects, sort);
            let lines = lines(profile, sort, &rows, is_mine, |pair| &pair.function);
            (lines, rows.len())
        }
    };
    for (share, name) in lines {
        let mut cells = rows::brief_figures(share);
        cells.swap(1, 2);
        cells.push(name);
        table.row(cells);
    }
    let title = match outer {
        Outer::Function => "By function and object",
        Outer::Object => "By object and function",
    };
    rows::title(out, profile, &rows::sorted_title(title, sort));
    rows::finish(out, profile, &table, "objects", 0);
    if outer_rows > MAX_OUTER_ROWS {
        out.note("--format csv has all pairs");
    }
}

/// Figures and name of each outer row, followed by those of its pairs.
fn lines<'a, T: Row>(
    profile: &'a Profile,
    sort: Sort,
    outer: &[&'a T],
    is_mine: impl Fn(&T, &FunctionObjectRow) -> bool,
    inner_name: impl Fn(&FunctionObjectRow) -> &String,
) -> Vec<(&'a Share, String)> {
    let shown =
        |share: &Share| share.time_fraction >= MIN_SHARE || share.stall_fraction >= MIN_SHARE;
    let pairs = sorted(&profile.function_objects, sort);
    let mut lines = Vec::new();
    for row in outer
        .iter()
        .filter(|row| shown(row.share()))
        .take(MAX_OUTER_ROWS)
    {
        lines.push((row.share(), row.name().to_owned()));
        let mine = pairs
            .iter()
            .filter(|pair| is_mine(row, pair) && shown(&pair.share));
        for pair in mine.take(MAX_INNER_ROWS) {
            lines.push((&pair.share, format!("  {}", inner_name(pair))));
        }
    }
    lines
}
