//! Predictions for other machines, compared with what the same entry took there.

use membound_model::stats::median;

use super::entry::{Entry, Threads};
use super::kept::Kept;
use super::recorded::MACHINES;
use super::session::{Mode, Row};

/// Relative difference up to which two run times of the same program on the same machine are the same.
const SAME: f64 = 0.05;

/// Runs of the field on a machine whose median is its run time: single runs differ by 10 %.
const NEWEST: usize = 3;

/// A prediction and what came true.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checked<'a> {
    pub(super) entry: &'a str,
    /// Microarchitecture of the machine that was profiled on.
    pub(super) from: &'a str,
    /// Microarchitecture of the machine that was predicted.
    pub(super) to: &'a str,
    /// Predicted run time there ÷ run time here, with its interval.
    pub(super) predicted: [f64; 3],
    /// Measured run times of the program alone: there ÷ here.
    pub(super) measured: f64,
}

impl Checked<'_> {
    /// Whether the measured ratio lies in the interval, within the noise of run times.
    pub(super) fn held(&self) -> bool {
        let [_, low, high] = self.predicted;
        (low * (1.0 - SAME)..=high * (1.0 + SAME)).contains(&self.measured)
    }
}

/// Every prediction of the newest rows that another run of the field can be compared with: single-threaded
/// programs, whose run time is their work.
pub(super) fn checked<'a>(
    entries: &[Entry],
    newest: impl Iterator<Item = (&'a Row, &'a Kept)>,
    runs: &'a [Kept],
) -> Vec<Checked<'a>> {
    let mut found = Vec::new();
    for (row, run) in
        newest.filter(|(row, _)| row.mode == Mode::All && is_work(entries, &row.entry))
    {
        let Some(from) = run.microarchitecture() else {
            continue;
        };
        for prediction in row.recorded.iter().flat_map(|it| &it.elsewhere) {
            // The source of its figures follows a machine's name, in brackets.
            let machine = prediction.machine.split(" (").next();
            let Some((_, to)) = MACHINES.iter().find(|(name, _)| Some(*name) == machine) else {
                continue;
            };
            let times = alone_s(runs, to, &row.entry).zip(alone_s(runs, from, &row.entry));
            if let (true, Some((there_s, here_s))) = (*to != from, times) {
                found.push(Checked {
                    entry: &row.entry,
                    from,
                    to,
                    predicted: prediction.ratio,
                    measured: there_s / here_s,
                });
            }
        }
    }
    found
}

fn is_work(entries: &[Entry], name: &str) -> bool {
    let entry = entries.iter().find(|it| it.name == name);
    entry.is_some_and(|it| it.threads == Threads::Single && it.run.is_some())
}

/// Run time of an entry alone on processors of a microarchitecture: median of its newest runs.
fn alone_s(runs: &[Kept], microarchitecture: &str, entry: &str) -> Option<f64> {
    let there = runs
        .iter()
        .rev()
        .filter(|run| run.microarchitecture() == Some(microarchitecture));
    // All modes of one run share its run time alone.
    let of_run = |run: &Kept| {
        let row = run.summary.rows.iter().find(|row| row.entry == entry);
        row.map(|row| row.alone_s)
    };
    let times: Vec<f64> = there.filter_map(of_run).take(NEWEST).collect();
    median(&times)
}
