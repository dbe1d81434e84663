//! The exchange of one line between two threads.
//!
//! The waiting thread only loads, without a pause: a hint to the core that it spins costs tens of
//! cycles on some cores and would distort the time to be measured. Every few thousand loads the
//! waiting thread checks whether the run was cancelled or the other thread has been away for too
//! long, so that no thread spins for ever.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use membound_platform::affinity::Pinned;
use membound_types::{CpuId, Disturbance};

use crate::sampling::{Visit, add_disturbance, take_batches};
use crate::threads::{joined, spawned};
use crate::watch::{BatchWatch, StealWatch};
use crate::{Clock, Error, Session};

/// Why a rally gave no figure.
#[derive(Debug)]
pub(super) enum Fault {
    /// The session was cancelled.
    Cancelled,
    /// A thread could not be pinned, or one side did not answer.
    Failed(Error),
}

/// A value alone in 128 bytes, because prefetchers fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CacheLineAligned<T>(T);

/// Memory that the two threads share.
#[derive(Debug)]
pub(super) struct LineExchange {
    /// Batches rotate over these lines, because a line's home (its slice and its directory) depends
    /// on its address.
    lines: Vec<CacheLineAligned<AtomicU64>>,
    /// Number of batches that the answering thread has finished, doubled, plus one when the last
    /// was perturbed; [`LineExchange::ABSENT`] when the thread could not be pinned.
    report: CacheLineAligned<AtomicU64>,
    /// Set to end the answering thread.
    over: CacheLineAligned<AtomicBool>,
}

/// Ends the answering thread when dropped, also when the serving one panics.
struct EndOnDrop<'exchange>(&'exchange LineExchange);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.over.0.store(true, Ordering::Release);
    }
}

impl LineExchange {
    const LINES: usize = 16;
    /// Loads between two checks for cancellation and timeout.
    const LOADS_PER_CHECK: u32 = 4096;
    /// Batches per visit.
    const BATCHES: usize = 8;
    /// Length of a batch, in multiples of the clock's shortest.
    const MIN_BATCH_MULTIPLE: f64 = 4.0;
    /// Round trips before a batch is timed, in which the answering thread arrives.
    const WARM_UP_ROUND_TRIPS: u64 = 32;
    /// Maximum number of attempts at a batch while the answering thread is perturbed.
    const MAX_ATTEMPTS: u32 = 4;
    /// Timeout of a batch's answers, in nanoseconds.
    const SIDE_TIMEOUT_NS: f64 = 2e9;
    /// Value of the line that ends a batch.
    const END: u64 = 1 << 63;
    const ABSENT: u64 = u64::MAX;

    fn new() -> Self {
        Self {
            lines: (0..Self::LINES)
                .map(|_| CacheLineAligned::default())
                .collect(),
            report: CacheLineAligned::default(),
            over: CacheLineAligned::default(),
        }
    }

    /// One visit to the pair: the calling thread serves on `from`, another answers on `to`.
    /// Values are nanoseconds one way.
    pub(super) fn between(
        session: &Session<'_>,
        from: CpuId,
        to: CpuId,
    ) -> Result<Vec<Visit>, Fault> {
        let _pinned = Pinned::to(from).map_err(|error| Fault::Failed(error.into()))?;
        let line_exchange = Self::new();
        let steal = StealWatch::begin(session.root, to);
        let (served, answered) = std::thread::scope(|scope| {
            let answering = match spawned(scope, to, || line_exchange.answer(to)) {
                Ok(answering) => answering,
                Err(error) => return (Err(Fault::Cancelled), Err(error)),
            };
            let served = {
                let _closing = EndOnDrop(&line_exchange);
                line_exchange.serve(session, from, to)
            };
            (served, joined(answering))
        });
        let observed = answered.map_err(|error| {
            Fault::Failed(Error::Copy {
                cpu: to,
                reason: error.to_string(),
            })
        })?;
        let mut visit = served?;
        add_disturbance(&mut visit.disturbed, &observed);
        visit.disturbed.steal_ms += steal.end(session.root);
        Ok(vec![visit])
    }

    /// The serving side: times batches.
    fn serve(&self, session: &Session<'_>, from: CpuId, to: CpuId) -> Result<Visit, Fault> {
        let clock = &session.clock;
        let mut batches = 0;
        let mut fault = None;
        // Untimed batches bring both threads up to speed and show how long a round trip is.
        let mut round_ns = 0.0;
        for rounds in [64, 512] {
            round_ns = self.batch(session, to, &mut batches, rounds)?.0;
        }
        let batch_ns = Self::MIN_BATCH_MULTIPLE * clock.ns(clock.min_batch_ticks() as f64);
        let rounds = (batch_ns / round_ns.max(1.0)).ceil() as u64 + 1;
        let mut repeated = 0;
        let mut visit = take_batches(session, from, Self::BATCHES, |_| {
            for attempt in 1.. {
                if fault.is_some() {
                    break;
                }
                match self.batch(session, to, &mut batches, rounds) {
                    Ok((ns, clean)) if clean || attempt >= Self::MAX_ATTEMPTS => return ns / 2.0,
                    Ok(_) => repeated += 1,
                    Err(why) => fault = Some(why),
                }
            }
            f64::NAN
        });
        visit.values.retain(|ns| ns.is_finite());
        visit.disturbed.repeated_batches += repeated;
        match fault {
            Some(fault) if visit.values.is_empty() => Err(fault),
            _ => Ok(visit),
        }
    }

    /// One batch: nanoseconds per round trip, and whether the answering thread was unperturbed.
    fn batch(
        &self,
        session: &Session<'_>,
        to: CpuId,
        batches: &mut u64,
        rounds: u64,
    ) -> Result<(f64, bool), Fault> {
        if session.cancelled() {
            return Err(Fault::Cancelled);
        }
        let clock = &session.clock;
        let line = self.line(*batches);
        let timeout = AnswerTimeout::new(self, session, to);
        line.store(0, Ordering::Relaxed);
        timeout.exchange(line, 0, Self::WARM_UP_ROUND_TRIPS)?;
        let start = clock.now();
        timeout.exchange(
            line,
            Self::WARM_UP_ROUND_TRIPS,
            Self::WARM_UP_ROUND_TRIPS + rounds,
        )?;
        let ticks = (clock.now() - start) as f64 - clock.overhead_ticks();
        line.store(Self::END, Ordering::Release);
        *batches += 1;
        let done = *batches;
        let report = timeout.wait(&self.report.0, |report| {
            report >> 1 == done || report == Self::ABSENT
        })?;
        Ok((clock.ns(ticks.max(0.0)) / rounds as f64, report & 1 == 0))
    }

    /// The answering side: adds one to every odd number, batch after batch, until the rally is
    /// over. Returns what perturbed it.
    fn answer(&self, cpu: CpuId) -> Result<Disturbance, Error> {
        let _pinned = Pinned::to(cpu).inspect_err(|_| {
            self.report.0.store(Self::ABSENT, Ordering::Release);
        })?;
        let mut disturbed = Disturbance::default();
        for batch in 0.. {
            let watch = BatchWatch::begin(cpu);
            if !self.answer_batch(self.line(batch)) {
                break;
            }
            let clean = watch.end(&mut disturbed);
            let report = (batch + 1) << 1 | u64::from(!clean);
            self.report.0.store(report, Ordering::Release);
        }
        Ok(disturbed)
    }

    /// Answers until the batch ends; `false` when the rally is over.
    fn answer_batch(&self, line: &AtomicU64) -> bool {
        let mut last_value = 0;
        loop {
            for _ in 0..Self::LOADS_PER_CHECK {
                let value = line.load(Ordering::Acquire);
                // Until this batch has begun, the line may hold `END` from its previous batch.
                if value == Self::END && last_value != 0 {
                    return true;
                }
                if value & 1 == 1 {
                    last_value = value;
                    line.store(value + 1, Ordering::Release);
                }
            }
            if self.over.0.load(Ordering::Acquire) {
                return false;
            }
        }
    }

    fn line(&self, batch: u64) -> &AtomicU64 {
        &self.lines[(batch % Self::LINES as u64) as usize].0
    }
}

/// How long the serving thread waits, and for which CPU.
struct AnswerTimeout<'s> {
    line_exchange: &'s LineExchange,
    cancel: &'s AtomicBool,
    clock: &'s Clock,
    deadline: u64,
    cpu: CpuId,
}

impl<'s> AnswerTimeout<'s> {
    fn new(line_exchange: &'s LineExchange, session: &'s Session<'_>, cpu: CpuId) -> Self {
        let clock = &session.clock;
        Self {
            line_exchange,
            cancel: session.cancel,
            clock,
            deadline: clock.now() + clock.ticks(LineExchange::SIDE_TIMEOUT_NS) as u64,
            cpu,
        }
    }

    /// Round trips number `begin` to `end` over `line`.
    fn exchange(&self, line: &AtomicU64, begin: u64, end: u64) -> Result<(), Fault> {
        for round in begin..end {
            line.store(2 * round + 1, Ordering::Release);
            self.wait(line, |value| value == 2 * round + 2)?;
        }
        Ok(())
    }

    /// Waits for a value of `line` that is `wanted` and returns it.
    fn wait(&self, line: &AtomicU64, wanted: impl Fn(u64) -> bool) -> Result<u64, Fault> {
        loop {
            for _ in 0..LineExchange::LOADS_PER_CHECK {
                let value = line.load(Ordering::Acquire);
                if wanted(value) {
                    return Ok(value);
                }
            }
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Fault::Cancelled);
            }
            let absent =
                self.line_exchange.report.0.load(Ordering::Acquire) == LineExchange::ABSENT;
            if absent || self.clock.now() > self.deadline {
                return Err(Fault::Failed(Error::Copy {
                    cpu: self.cpu,
                    reason: format!(
                        "it did not answer within {:.0} s (is the CPU taken by something else?)",
                        LineExchange::SIDE_TIMEOUT_NS / 1e9
                    ),
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use membound_platform::{Root, affinity};

    use super::*;
    use crate::{Effort, Silent};

    #[test]
    fn the_answering_thread_counts_every_hand_over_and_reports_batches() {
        let line_exchange = LineExchange::new();
        let cpu = affinity::allowed().unwrap()[0];
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| line_exchange.answer(cpu));
            {
                let _closing = EndOnDrop(&line_exchange);
                for batch in 0..40 {
                    let line = line_exchange.line(batch);
                    line.store(0, Ordering::Relaxed);
                    for round in 0..3 {
                        line.store(2 * round + 1, Ordering::Release);
                        while line.load(Ordering::Acquire) != 2 * round + 2 {
                            std::thread::yield_now();
                        }
                    }
                    line.store(LineExchange::END, Ordering::Release);
                    while line_exchange.report.0.load(Ordering::Acquire) >> 1 != batch + 1 {
                        std::thread::yield_now();
                    }
                }
            }
            answering.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_answering_thread_goes_home_when_the_serving_one_panics() {
        let line_exchange = LineExchange::new();
        let cpu = affinity::allowed().unwrap()[0];
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| line_exchange.answer(cpu));
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _closing = EndOnDrop(&line_exchange);
                panic!("as the serving side might");
            }));
            assert!(panicked.is_err());
            answering.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_cancelled_rally_ends_and_one_without_a_partner_fails() {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        let fault = LineExchange::between(&session, session.cpu, CpuId(1_000_000)).unwrap_err();
        match fault {
            Fault::Failed(error) => assert!(error.to_string().contains("1000000"), "{error}"),
            Fault::Cancelled => panic!("nobody cancelled"),
        }
        let Some(other) = session.cpus.iter().find(|cpu| **cpu != session.cpu) else {
            println!("skipped: one CPU");
            return;
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                cancel.store(true, Ordering::Relaxed);
            });
            loop {
                match LineExchange::between(&session, session.cpu, *other) {
                    Ok(_) => {}
                    Err(Fault::Cancelled) => break,
                    Err(Fault::Failed(error)) => panic!("{error}"),
                }
            }
        });
    }
}
