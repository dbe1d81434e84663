//! Figures of rows by period of the run, for the page's script: with them executions and latencies follow a
//! span that the reader selects on the timeline.

use std::collections::HashMap;

use membound_types::{Period, PeriodRow, Share};
use serde_json::{Value, json};

use super::numbers::{ends, rounded};

/// By table and row: the row's figures in each period in which it had any.
pub(super) struct RowPeriods {
    pub(super) functions: HashMap<usize, Vec<Value>>,
    pub(super) lines: HashMap<usize, Vec<Value>>,
    pub(super) instructions: HashMap<usize, Vec<Value>>,
    pub(super) objects: HashMap<usize, Vec<Value>>,
    pub(super) threads: HashMap<usize, Vec<Value>>,
}

impl RowPeriods {
    /// Figures of the first `most` rows of each table.
    pub(super) fn of(periods: &[Period], most: usize) -> Self {
        let table = |of: fn(&Period) -> &[PeriodRow]| by_row(periods, most, of);
        Self {
            functions: table(|period| &period.functions),
            lines: table(|period| &period.lines),
            instructions: table(|period| &period.instructions),
            objects: table(|period| &period.objects),
            threads: table(|period| &period.threads),
        }
    }
}

fn by_row(
    periods: &[Period],
    most: usize,
    of: impl Fn(&Period) -> &[PeriodRow],
) -> HashMap<usize, Vec<Value>> {
    let mut rows: HashMap<usize, Vec<Value>> = HashMap::new();
    for (index, period) in periods.iter().enumerate() {
        for row in of(period).iter().filter(|row| (row.row as usize) < most) {
            let figures = figures(index, &row.share);
            rows.entry(row.row as usize).or_default().push(figures);
        }
    }
    rows
}

/// Period, loads, stores, average latency in nanoseconds, last-level misses, and the intervals of the three
/// counts.
fn figures(period: usize, share: &Share) -> Value {
    json!([
        period,
        share.loads.map(rounded),
        share.stores.map(rounded),
        share.avg_latency_ns.map(rounded),
        share.llc_misses.map(rounded),
        ends(share.loads_low, share.loads_high),
        ends(share.stores_low, share.stores_high),
        ends(share.llc_misses_low, share.llc_misses_high),
    ])
}

/// The first `most` rows of a table as `columns` gives them, each with its figures in the periods in which it had
/// any.
pub(super) fn rows_with_periods<Row>(
    rows: &[Row],
    most: usize,
    periods: &HashMap<usize, Vec<Value>>,
    mut columns: impl FnMut(usize, &Row) -> Value,
) -> Vec<Value> {
    let with_periods = |(index, row)| {
        let mut value = columns(index, row);
        match (&mut value, periods.get(&index)) {
            (Value::Array(row), Some(periods)) => row.push(json!(periods)),
            (Value::Object(row), Some(periods)) => {
                row.insert("periods".to_owned(), json!(periods));
            }
            _ => {}
        }
        value
    };
    rows.iter()
        .take(most)
        .enumerate()
        .map(with_periods)
        .collect()
}
