//! Reduces findings about contended lines to selected threads: lines that none of them uses are dropped,
//! and costs become shares of their own CPU time.

use membound_types::SharedLine;

use super::findings::Sharing;
use crate::context::Context;

impl Sharing {
    /// Reduces the findings to the threads that `context` selects. Costs are given as shares of `whole_ns`,
    /// the CPU time of all threads. Predicted gains remain those of the whole program.
    pub(crate) fn of_threads(mut self, context: &Context<'_>, whole_ns: f64) -> Self {
        let threads = (0..).map(membound_run::ThreadId).zip(&context.run.threads);
        let selected: Vec<(u32, u32)> = threads
            .filter(|(id, _)| context.is_selected(*id))
            .map(|(_, thread)| {
                let process = &context.run.processes[thread.process.index()];
                (process.pid, thread.tid)
            })
            .collect();
        for lines in [&mut self.false_sharing, &mut self.true_sharing] {
            lines.retain_mut(|line| {
                let is_selected = |pid: u32, tid: u32| selected.contains(&(pid, tid));
                scale(line, is_selected, whole_ns, context.times.total_ns)
            });
        }
        self
    }
}

/// Reduces the costs of `line` to the selected threads. Returns false if none of them uses the line.
fn scale(
    line: &mut SharedLine,
    is_selected: impl Fn(u32, u32) -> bool,
    whole_ns: f64,
    selected_ns: f64,
) -> bool {
    let pid = line.pid;
    let users = line.threads.len();
    let theirs = line.threads.iter().filter(|it| is_selected(pid, it.tid));
    let theirs = theirs.count();
    if theirs == 0 || selected_ns <= 0.0 {
        return false;
    }
    let lost_s = |line: &SharedLine| -> f64 {
        let costs = line.held.iter();
        costs.map(|cost| cost.share.value * cost.cpu_s).sum()
    };
    let all_s = lost_s(line);
    line.held.retain(|cost| is_selected(pid, cost.tid));
    // If no trial measured which thread waits, all users are assumed to wait equally.
    let part = if all_s > 0.0 {
        lost_s(line) / all_s
    } else {
        theirs as f64 / users as f64
    };
    line.stall_fraction = (line.stall_fraction * part * whole_ns / selected_ns).min(1.0);
    true
}

#[cfg(test)]
mod tests {
    use membound_types::{Basis, Figure, SharingCost, SharingThread};

    use super::*;

    fn line(costs: &[(u32, f64)]) -> SharedLine {
        let thread = |tid| SharingThread {
            tid,
            ..SharingThread::default()
        };
        SharedLine {
            line_bytes: 64,
            pid: 7,
            threads: vec![thread(8), thread(9)],
            stall_fraction: 0.3,
            held: costs
                .iter()
                .map(|&(tid, cpu_s)| SharingCost {
                    tid,
                    share: Figure {
                        value: 0.5,
                        low: 0.4,
                        high: 0.6,
                        basis: Basis::Measured,
                    },
                    cpu_s,
                    spans: 8,
                })
                .collect(),
            confidence: 1.0,
            ..SharedLine::default()
        }
    }

    #[test]
    fn a_thread_has_the_cost_that_was_measured_of_it() {
        let mut measured = line(&[(8, 3.0), (9, 1.0)]);
        assert!(scale(&mut measured, |_, tid| tid == 8, 10e9, 5e9));
        assert!((measured.stall_fraction - 0.3 * 0.75 * 2.0).abs() < 1e-12);
        assert_eq!(measured.held.len(), 1);
        let mut unmeasured = line(&[]);
        assert!(scale(&mut unmeasured, |_, tid| tid == 9, 10e9, 5e9));
        assert!((unmeasured.stall_fraction - 0.3).abs() < 1e-12);
        assert!(!scale(&mut line(&[]), |_, tid| tid == 10, 10e9, 5e9));
    }
}
