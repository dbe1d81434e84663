//! `measure prefetch`: which access patterns the hardware prefetches, from times alone.
//!
//! Every pattern is a chain of dependent loads, so that only a prefetcher can shorten it:
//! out-of-order execution cannot. Lines are cold: caches are emptied before a walk, and no walk
//! visits a line twice. The reference is a chain that visits one line per page, pages in random
//! order inside 2 MiB and 2 MiB after 2 MiB in random order, so that it misses the TLB of huge
//! pages as seldom as the patterns do.
//!
//! Three patterns are about one load of several, and the time of the others is subtracted: for
//! adjacent lines, the first line's load, which costs what the reference does; for a pointer array,
//! the array's own loads, measured without the lines to which it points; for the next page, the
//! loads that end a page, measured in a walk that goes on to another page instead.
//!
//! Where prefetchers can be switched, everything is repeated with all of them off and with
//! each one off; on POWER, with every depth and kind of stream.

mod config;
mod control;
mod ground;
mod order;

use std::time::Instant;

use membound_types::{
    Disturbance, NotMeasured, Outcome, Prefetch, PrefetchPattern, PrefetchPoint, PrefetchState,
    Samples,
};

use crate::sampling::{Sampled, Slot, run_rounds};
use crate::stats::Summary;
use crate::{Error, Session};
pub use config::{PrefetchConfig, patterns};
pub use control::{InSettings, PrefetchControl, SwitchedOff, in_settings};
use ground::PatternMemory;
use order::{Field, Walk};

/// A pattern counts as prefetched when even the upper end of its interval is below this
/// share of the lower end of the reference's.
///
/// Neighbouring lines can be faster than random ones without any prefetching: an open DRAM row
/// saves one or two of the three steps of an access, some 15 to 30 ns of 100, and a hypervisor that
/// keeps huge pages as base pages makes the reference translate more often. A prefetcher that
/// fetches one line of two in time saves a half.
pub const PREFETCHED_BELOW: f64 = 0.75;

/// Measures every pattern in the machine's own state and, with `control`, with prefetchers off. An
/// error in `control` is the reason why there is none. A cancelled run returns the points that have
/// samples; prefetchers are restored on every way out.
///
/// # Errors
/// When memory or page kind are not available, [`Error::Interrupted`] when the session is cancelled
/// before there is memory, [`Error::Invalid`] for a stride that is no whole number of lines or for
/// no streams.
pub fn measure(
    session: &Session<'_>,
    config: &PrefetchConfig,
    control: Result<&dyn PrefetchControl, NotMeasured>,
) -> Result<Prefetch, Error> {
    let started = Instant::now();
    check(config)?;
    session
        .progress
        .at(0.0, &format!("prefetch: mapping {} pages", config.page));
    let mut memory = PatternMemory::new(session, config)?;
    let names = control.as_ref().map(|control| control.names());
    let mut prefetch = Prefetch {
        area_bytes: memory.area_bytes(),
        skipped: memory.note().into_iter().collect(),
        controls: match &names {
            Ok(names) => Outcome::Known(names.clone()),
            Err(reason) => Outcome::Missing {
                not_measured: (*reason).clone(),
            },
        },
        ..Prefetch::default()
    };
    let mut settings = vec![PrefetchState::Default];
    if let Ok(control) = &control {
        settings.extend(control.settings());
    }
    let count = settings.len() as f64;
    let found = in_settings(
        session,
        control.as_ref().map(|control| *control),
        &settings,
        |setting, number| {
            let share = |within: f64| (number as f64 + within) / count;
            with_state(session, config, &mut memory, setting, &share)
        },
    )?;
    prefetch.skipped.extend(found.skipped);
    for (_, points) in found.measured {
        prefetch.points.extend(points);
    }
    prefetch.elapsed_s = started.elapsed().as_secs_f64();
    Ok(prefetch)
}

fn check(config: &PrefetchConfig) -> Result<(), Error> {
    for pattern in &config.patterns {
        match pattern {
            PrefetchPattern::Forward { stride_bytes }
            | PrefetchPattern::Backward { stride_bytes }
                if *stride_bytes == 0 || stride_bytes % 64 != 0 || *stride_bytes > 1 << 16 =>
            {
                return Err(Error::Invalid(format!(
                    "a stride of {stride_bytes} bytes visits no new line each time: use a multiple of 64 up to 65536"
                )));
            }
            PrefetchPattern::Interleaved { streams } if !(1..=256).contains(streams) => {
                return Err(Error::Invalid(format!(
                    "{streams} interleaved streams are not between 1 and 256"
                )));
            }
            _ => {}
        }
    }
    if config.loads < 1 << 12 {
        return Err(Error::Invalid(format!(
            "walks of {} loads are too short to be timed: use 4096 or more",
            config.loads
        )));
    }
    Ok(())
}

/// The walks that the patterns of `config` need, the reference first.
fn walks(config: &PrefetchConfig) -> Vec<Walk> {
    let mut walks = vec![Walk::Pattern(PrefetchPattern::Random)];
    for pattern in &config.patterns {
        let helper = match pattern {
            PrefetchPattern::PointerArray => Some(Walk::ArrayAlone),
            PrefetchPattern::NextPage => Some(Walk::OtherPage),
            _ => None,
        };
        for walk in [Walk::Pattern(*pattern)].into_iter().chain(helper) {
            if !walks.contains(&walk) {
                walks.push(walk);
            }
        }
    }
    walks
}

/// Measures all patterns in one state of the prefetchers.
fn with_state(
    session: &Session<'_>,
    config: &PrefetchConfig,
    memory: &mut PatternMemory,
    state: &PrefetchState,
    share: &dyn Fn(f64) -> f64,
) -> Result<Vec<PrefetchPoint>, Error> {
    let doing = match state {
        PrefetchState::Default => "prefetch: as found".to_owned(),
        PrefetchState::Off => "prefetch: all off".to_owned(),
        PrefetchState::Dscr(dscr) => format!("prefetch: {dscr}"),
        PrefetchState::Without(name) => format!("prefetch: {name} off"),
    };
    let mut slots: Vec<Slot<Walk>> = walks(config).into_iter().map(Slot::time).collect();
    let budget = match state {
        PrefetchState::Default => config.budget,
        _ => config.budget / 4,
    };
    run_rounds(
        session,
        budget,
        &mut slots,
        |walk, progress| {
            session.progress.at(share(progress.done), &doing);
            Ok(vec![memory.visit(session, *walk, progress.round)?])
        },
        |_, _| (),
    )?;
    let sampled: Vec<(Walk, Sampled)> = slots
        .iter()
        .filter_map(|slot| Some((slot.key, slot.sampled(session)?)))
        .collect();
    Ok(points(&sampled, state))
}

/// The points of the patterns among `sampled`; none without the reference.
fn points(sampled: &[(Walk, Sampled)], state: &PrefetchState) -> Vec<PrefetchPoint> {
    let of = |walk| {
        sampled
            .iter()
            .find_map(|(key, sampled)| (*key == walk).then_some(sampled))
    };
    let Some(reference) = of(Walk::Pattern(PrefetchPattern::Random)) else {
        return Vec::new();
    };
    let random = reference.summary;
    sampled
        .iter()
        .filter_map(|(walk, own)| {
            let Walk::Pattern(pattern) = *walk else {
                return None;
            };
            let part = match pattern {
                PrefetchPattern::AdjacentLine => Part::rest(2.0, random),
                PrefetchPattern::PointerArray => Part::rest(2.0, of(Walk::ArrayAlone)?.summary),
                PrefetchPattern::NextPage => Part {
                    loads: Field::LOADS_PER_PAGE as f64,
                    times: Field::LOADS_PER_PAGE as f64,
                    others: of(Walk::OtherPage)?.summary,
                    plus: random.median,
                },
                _ => Part::rest(1.0, NOTHING),
            };
            let alone = |ns| part.interest_ns(ns, part.others.median);
            let batches = Samples {
                raw: own.samples.raw.iter().copied().map(alone).collect(),
                disturbed: Disturbance {
                    slow_mode: own.samples.disturbed.slow_mode.map(alone),
                    ..own.samples.disturbed
                },
                ..own.samples
            };
            let ns = alone(own.summary.median);
            let high = part.interest_ns(own.summary.high, part.others.low);
            Some(PrefetchPoint {
                pattern,
                prefetch: state.clone(),
                ns,
                random_ns: random.median,
                ratio: ratio(ns, random.median),
                prefetched: pattern != PrefetchPattern::Random
                    && high < PREFETCHED_BELOW * random.low,
                batches,
            })
        })
        .collect()
}

/// Time of the other loads, for a pattern that has none.
const NOTHING: Summary = Summary {
    median: 0.0,
    low: 0.0,
    high: 0.0,
};

/// How the time of the load of interest follows from the time per load of its walk: `loads` times
/// that, less `times` the time of the `others`, plus `plus`, in nanoseconds.
struct Part {
    loads: f64,
    times: f64,
    others: Summary,
    plus: f64,
}

impl Part {
    const fn rest(loads: f64, others: Summary) -> Self {
        Self {
            loads,
            times: 1.0,
            others,
            plus: 0.0,
        }
    }

    /// Time of the load of interest. Differences of noisy times may be below zero, times not.
    fn interest_ns(&self, ns: f64, others: f64) -> f64 {
        (self.loads * ns - self.times * others + self.plus).max(0.0)
    }
}

/// `ns ÷ random_ns`; 1 if the reference took no time, in which case the ratio means nothing.
fn ratio(ns: f64, random_ns: f64) -> f64 {
    if random_ns > 0.0 { ns / random_ns } else { 1.0 }
}

#[cfg(test)]
mod tests;
