//! Selects the cells of one condition, in the same way for every evaluation.

use membound_types::{LoadsTime, MlpCell, MlpMode, NodePolicy, Outcome, PageKind};

use super::{
    NORMAL_95, RulePoint, RuleReading, parallel_spread, read_rule, rule_points, rule_table,
};
use crate::stats::median;

/// Least time of two sequential loads, as a multiple of the time of one. The costs of an execution
/// that do not depend on its loads keep the ratio below two.
const MIN_SEQUENCE: f64 = 1.5;

/// Cells measured with the same pages on the same node, in core clock cycles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    cells: &'a [MlpCell],
    page: PageKind,
    node: NodePolicy,
}

impl<'a> Run<'a> {
    /// The cells among `cells` on pages of `page` and `node`.
    pub(crate) const fn new(cells: &'a [MlpCell], page: PageKind, node: NodePolicy) -> Self {
        Self { cells, page, node }
    }

    /// The area of the parallel loads in the N × K plane: the area with most cells, and the largest
    /// of several such areas.
    pub(crate) fn main_area(self) -> Option<u64> {
        let mine = || self.of_mode(MlpMode::Parallel);
        mine()
            .map(|cell| cell.area_bytes)
            .max_by_key(|&area| (mine().filter(|cell| cell.area_bytes == area).count(), area))
    }

    /// The value `of` of every cell of `loads` sequential loads in the main area.
    pub(crate) fn sequential(self, loads: u32, of: fn(&MlpCell) -> f64) -> Vec<f64> {
        self.sequential_cells()
            .filter(|cell| cell.loads == loads)
            .map(of)
            .collect()
    }

    /// (n, cycles) of sequential loads in the main area.
    pub(crate) fn sequential_series(self) -> Vec<(u32, f64)> {
        self.sequential_cells()
            .map(|cell| (cell.loads, cell.cycles))
            .collect()
    }

    /// T(n) of sequential loads in the main area, in order of n; the median if n was
    /// measured more than once.
    pub(crate) fn sequential_times(self) -> Vec<LoadsTime> {
        let mut lengths: Vec<u32> = self.sequential_cells().map(|cell| cell.loads).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
            .into_iter()
            .filter_map(|loads| {
                let middle = |of| median(&self.sequential(loads, of));
                finite(LoadsTime {
                    loads,
                    cycles: middle(|cell| cell.cycles)?,
                    spread: middle(|cell| cell.spread)?,
                })
            })
            .collect()
    }

    /// T(N) of parallel loads in the main area, as the rule uses them, in order of N.
    pub(crate) fn parallel_times(self) -> Vec<LoadsTime> {
        let Some(area_bytes) = self.main_area() else {
            return Vec::new();
        };
        rule_table(self.cells, self.page, self.node, area_bytes)
            .into_iter()
            .filter_map(|(loads, cycles)| {
                let spread = parallel_spread(self.cells, self.page, self.node, area_bytes, loads);
                finite(LoadsTime {
                    loads,
                    cycles,
                    spread: spread.unwrap_or(0.0),
                })
            })
            .collect()
    }

    /// The points of the rule in the main area; empty without one.
    pub(crate) fn rule_points(self) -> Vec<RulePoint> {
        self.main_area().map_or_else(Vec::new, |area_bytes| {
            rule_points(self.cells, self.page, self.node, area_bytes)
        })
    }

    /// Applies the rule; missing if the two loads of the pair were not in sequence.
    pub(crate) fn read_rule(self, pair: Option<f64>) -> Outcome<RuleReading> {
        if self.main_area().is_none() {
            return Outcome::missing("no parallel loads were measured");
        }
        let Some(pair) = pair else {
            return Outcome::missing("the time of two sequential loads is not known");
        };
        let single = median(&self.sequential(1, |cell| cell.cycles));
        if let Some(single) = single.filter(|single| pair < MIN_SEQUENCE * single) {
            return Outcome::missing_with(
                format!(
                    "two loads meant to be sequential take {pair:.0} cycles, one {single:.0}: \
                     the fillers did not keep them apart"
                ),
                "measure again on a quieter machine, or with more fillers (`--fillers`)",
            );
        }
        read_rule(
            &self.rule_points(),
            pair,
            self.pair_half_width().unwrap_or(0.0),
        )
    }

    /// Half the width of the 95 % interval of two sequential loads. The spread of their own batches
    /// replaces the standard error, as for cells without others to compare with.
    pub(crate) fn pair_half_width(self) -> Option<f64> {
        let spread = median(&self.sequential(2, |cell| cell.spread))?;
        spread.is_finite().then_some(NORMAL_95 * spread)
    }

    /// Time of one load alone, if measured. The sequential series is preferred, because its fillers
    /// do not shift the time.
    pub(crate) fn one_load(self) -> Option<LoadsTime> {
        [self.sequential_times(), self.parallel_times()]
            .into_iter()
            .find_map(|series| series.into_iter().find(|time| time.loads == 1))
    }

    fn of_mode(self, mode: MlpMode) -> impl Iterator<Item = &'a MlpCell> {
        self.cells.iter().filter(move |cell| {
            cell.mode == mode && cell.page == self.page && cell.node == self.node
        })
    }

    fn sequential_cells(self) -> impl Iterator<Item = &'a MlpCell> {
        let area_bytes = self.main_area();
        self.of_mode(MlpMode::Sequential)
            .filter(move |cell| area_bytes.is_none_or(|area| cell.area_bytes == area))
    }
}

fn finite(time: LoadsTime) -> Option<LoadsTime> {
    (time.cycles.is_finite() && time.spread.is_finite()).then_some(time)
}

#[cfg(test)]
mod tests {
    use membound_types::Filler;

    use super::*;

    fn cell(mode: MlpMode, loads: u32, area_bytes: u64, cycles: f64) -> MlpCell {
        MlpCell {
            mode,
            loads,
            fillers: 1,
            filler: Filler::Nop,
            area_bytes,
            node: NodePolicy::LOCAL,
            page: PageKind::Thp,
            cycles,
            spread: 2.0,
            misses: Outcome::missing("no counters"),
        }
    }

    #[test]
    fn only_the_main_area_under_the_runs_own_pages_counts() {
        let (parallel, sequential) = (MlpMode::Parallel, MlpMode::Sequential);
        let mut cells = vec![
            cell(parallel, 2, 1 << 28, 220.0),
            cell(parallel, 11, 1 << 28, 420.0),
            cell(parallel, 4, 1 << 20, 90.0),
            cell(sequential, 1, 1 << 28, 200.0),
            cell(sequential, 2, 1 << 28, 410.0),
            cell(sequential, 2, 1 << 28, 430.0),
            cell(sequential, 2, 1 << 20, 60.0),
        ];
        cells.push(MlpCell {
            page: PageKind::Base,
            ..cell(sequential, 2, 1 << 28, 900.0)
        });
        let run = Run::new(&cells, PageKind::Thp, NodePolicy::LOCAL);
        assert_eq!(run.main_area(), Some(1 << 28));
        let times = |times: Vec<LoadsTime>| -> Vec<(u32, f64)> {
            times.iter().map(|it| (it.loads, it.cycles)).collect()
        };
        assert_eq!(
            times(run.sequential_times()),
            [(1, 200.0), (2, 420.0)],
            "sequential"
        );
        assert_eq!(
            times(run.parallel_times()),
            [(2, 220.0), (11, 420.0)],
            "parallel"
        );
        assert_eq!(
            run.one_load().map(|it| (it.cycles, it.spread)),
            Some((200.0, 2.0))
        );
        assert_eq!(run.pair_half_width(), Some(3.92));
        let reading = run.read_rule(Some(420.0));
        assert_eq!(reading.known().map(|it| it.parallelism), Some(10.0));
    }

    #[test]
    fn a_pair_that_overlapped_is_refused() {
        let cells = [
            cell(MlpMode::Parallel, 2, 1 << 28, 220.0),
            cell(MlpMode::Sequential, 1, 1 << 28, 200.0),
        ];
        let run = Run::new(&cells, PageKind::Thp, NodePolicy::LOCAL);
        let refused = |pair| {
            let reading = run.read_rule(pair);
            reading.why_missing().map(|it| it.reason.clone())
        };
        let overlapped = refused(Some(230.0)).unwrap();
        assert!(overlapped.contains("230 cycles"), "{overlapped}");
        assert!(refused(None).unwrap().contains("not known"));
        let none = Run::new(&[], PageKind::Thp, NodePolicy::LOCAL);
        assert_eq!(none.main_area(), None);
        assert!(none.parallel_times().is_empty() && none.sequential_times().is_empty());
        assert!(none.one_load().is_none() && none.pair_half_width().is_none());
        assert!(none.read_rule(Some(1.0)).known().is_none());
    }
}
