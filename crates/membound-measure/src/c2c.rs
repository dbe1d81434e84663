//! `measure c2c`: how long a line takes from one core to another.
//!
//! Two pinned threads write a line in turn: one counts up to the next odd number, the
//! other to the even one behind it. Half a round trip is one way: the store has to take
//! the line away from the other core, and the other core has to fetch it back to see it.
//! Every unordered pair is measured, in rounds over all pairs, so that a slow phase of the
//! machine does not become the figure of one pair.

mod rally;

use std::time::{Duration, Instant};

use membound_platform::affinity;
use membound_types::{CorePair, CoreToCore, CpuId};

use crate::sampling::{Slot, run_rounds};
use crate::{Effort, Error, Session};
use rally::{Fault, LineExchange};

/// Which CPUs, and how long.
#[derive(Clone, Debug)]
pub struct CoreToCoreConfig {
    /// CPUs of the matrix; `None` for all that this process may use.
    pub cpus: Option<Vec<CpuId>>,
    /// Maximum number of CPUs where [`CoreToCoreConfig::cpus`] is `None`. From more, this many are
    /// chosen evenly, because the number of pairs grows with the square.
    pub most_cpus: usize,
    /// Time for the part; every pair is visited at least twice, even if that takes longer.
    pub budget: Duration,
}

impl CoreToCoreConfig {
    /// All CPUs, up to a number that the time of `effort` allows.
    #[must_use]
    pub fn new(effort: Effort) -> Self {
        Self {
            cpus: None,
            most_cpus: effort.pick(32, 64, 256),
            budget: Duration::from_millis(effort.pick(1_500, 5_000, 60_000)),
        }
    }
}

/// Measures every unordered pair. A cancelled run returns the pairs that have samples.
///
/// # Errors
/// For CPUs that were named and do not exist, are offline, not permitted or named twice;
/// [`Error::Copy`] when no pair at all could be measured.
pub fn measure(session: &Session<'_>, config: &CoreToCoreConfig) -> Result<CoreToCore, Error> {
    let started = Instant::now();
    let mut matrix = CoreToCore {
        cpus: chosen(session, config)?,
        ..CoreToCore::default()
    };
    let usable = config.cpus.as_ref().map_or(session.cpus.len(), Vec::len);
    if matrix.cpus.len() < usable {
        matrix.skipped.push(format!(
            "{} of {usable} CPUs: pairs grow with the square, so {} were chosen evenly",
            usable - matrix.cpus.len(),
            matrix.cpus.len()
        ));
    }
    if matrix.cpus.len() < 2 {
        matrix
            .skipped
            .push("one CPU: there is no other core to hand a line to".to_owned());
        matrix.elapsed_s = started.elapsed().as_secs_f64();
        return Ok(matrix);
    }
    let mut slots: Vec<Slot<(CpuId, CpuId)>> = pairs(&matrix.cpus).map(Slot::time).collect();
    let mut failed: Vec<((CpuId, CpuId), Error)> = Vec::new();
    run_rounds(
        session,
        config.budget,
        &mut slots,
        |&(from, to), progress| {
            session
                .progress
                .at(progress.done, &format!("c2c: cpu {from} and cpu {to}"));
            if failed.iter().any(|(pair, _)| *pair == (from, to)) {
                return Ok(Vec::new());
            }
            match LineExchange::between(session, from, to) {
                Ok(visits) => Ok(visits),
                Err(Fault::Cancelled) => Ok(Vec::new()),
                Err(Fault::Failed(error)) => {
                    failed.push(((from, to), error));
                    Ok(Vec::new())
                }
            }
        },
        |_, _| (),
    )?;
    matrix.pairs = slots
        .iter()
        .filter_map(|slot| {
            let sampled = slot.sampled(session)?;
            Some(CorePair {
                from: slot.key.0,
                to: slot.key.1,
                one_way_ns: sampled.summary.median,
                one_way_low_ns: sampled.summary.low,
                one_way_high_ns: sampled.summary.high,
                batches: sampled.samples,
            })
        })
        .collect();
    for ((from, to), error) in &failed {
        matrix
            .skipped
            .push(format!("cpu {from} and cpu {to}: {error}"));
    }
    matrix.elapsed_s = started.elapsed().as_secs_f64();
    match failed.into_iter().next() {
        Some((_, error)) if matrix.pairs.is_empty() && !session.cancelled() => Err(error),
        _ => Ok(matrix),
    }
}

/// The CPUs of the matrix, in its order.
fn chosen(session: &Session<'_>, config: &CoreToCoreConfig) -> Result<Vec<CpuId>, Error> {
    let Some(given) = &config.cpus else {
        return Ok(evenly(&session.cpus, config.most_cpus.max(2)));
    };
    for (at, cpu) in given.iter().enumerate() {
        affinity::check(session.root, *cpu)?;
        if given[..at].contains(cpu) {
            return Err(Error::Invalid(format!(
                "cpu {cpu} is named twice: a line is handed from one core to another"
            )));
        }
    }
    Ok(given.clone())
}

/// `most` of `all`, evenly, including the first and the last.
fn evenly(all: &[CpuId], most: usize) -> Vec<CpuId> {
    if all.len() <= most {
        return all.to_vec();
    }
    (0..most)
        .map(|index| all[index * (all.len() - 1) / (most - 1)])
        .collect()
}

fn pairs(cpus: &[CpuId]) -> impl Iterator<Item = (CpuId, CpuId)> {
    cpus.iter()
        .enumerate()
        .flat_map(move |(at, from)| cpus[at + 1..].iter().map(move |to| (*from, *to)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use membound_platform::Root;

    use super::*;
    use crate::Silent;

    fn quick() -> CoreToCoreConfig {
        CoreToCoreConfig {
            budget: Duration::ZERO,
            ..CoreToCoreConfig::new(Effort::Quick)
        }
    }

    fn with_session(check: impl FnOnce(&Session<'_>, &AtomicBool)) {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        check(&session, &cancel);
    }

    #[test]
    fn every_unordered_pair_is_there_once() {
        let cpus: Vec<CpuId> = (0..9).map(CpuId).collect();
        let pairs: Vec<_> = pairs(&cpus).collect();
        assert_eq!(pairs.len(), 9 * 8 / 2);
        let unordered: HashSet<_> = pairs
            .iter()
            .map(|(from, to)| ((*from).min(*to), (*from).max(*to)))
            .collect();
        assert_eq!(unordered.len(), pairs.len());
        assert!(pairs.iter().all(|(from, to)| from != to));
    }

    #[test]
    fn few_of_many_cpus_are_spread_over_all() {
        let all: Vec<CpuId> = (0..256).map(CpuId).collect();
        let some = evenly(&all, 32);
        assert_eq!(some.len(), 32);
        assert_eq!((some[0], some[31]), (CpuId(0), CpuId(255)));
        assert!(some.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(evenly(&all[..7], 32), all[..7]);
    }

    #[test]
    fn the_matrix_of_this_machine_is_complete() {
        with_session(|session, _| {
            let matrix = measure(session, &quick()).unwrap();
            let n = matrix.cpus.len();
            if n < 2 {
                assert!(matrix.skipped[0].contains("one CPU"), "{matrix:?}");
                println!("skipped: one CPU");
                return;
            }
            assert_eq!(matrix.pairs.len() + matrix.skipped.len(), n * (n - 1) / 2);
            for pair in &matrix.pairs {
                assert!(pair.one_way_ns > 0.0);
                assert!(pair.one_way_low_ns <= pair.one_way_ns);
                assert!(pair.one_way_ns <= pair.one_way_high_ns);
                assert!(pair.batches.raw.iter().all(|ns| ns.is_finite()));
            }
        });
    }

    #[test]
    fn one_cpu_has_no_other_to_hand_a_line_to() {
        with_session(|session, _| {
            let config = CoreToCoreConfig {
                cpus: Some(vec![session.cpu]),
                ..quick()
            };
            let matrix = measure(session, &config).unwrap();
            assert!(matrix.pairs.is_empty());
            assert!(matrix.skipped[0].starts_with("one CPU"), "{matrix:?}");
        });
    }

    #[test]
    fn cpus_that_are_not_there_or_named_twice_are_refused() {
        with_session(|session, _| {
            let mut config = quick();
            config.cpus = Some(vec![session.cpu, CpuId(1_000_000)]);
            let error = measure(session, &config).unwrap_err();
            assert!(error.to_string().contains("1000000"), "{error}");
            config.cpus = Some(vec![session.cpu, session.cpu]);
            let error = measure(session, &config).unwrap_err();
            assert!(error.to_string().contains("twice"), "{error}");
        });
    }

    #[test]
    fn a_cancelled_run_ends_without_a_pair() {
        with_session(|session, cancel| {
            cancel.store(true, Ordering::Relaxed);
            let matrix = measure(session, &quick()).unwrap();
            assert!(matrix.pairs.is_empty());
        });
    }
}
