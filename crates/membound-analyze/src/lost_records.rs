//! Number of records that a run lost, from its gaps.

use membound_run::RunData;

/// Sum of the counts of all gaps about `about`: `samples`, `latencies` or `objects`.
pub(crate) fn count(run: &RunData, about: &str) -> u64 {
    let gaps = run.gaps.iter().filter(|gap| gap.about == about);
    gaps.filter_map(|gap| gap.count).sum()
}
