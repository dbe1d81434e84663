//! Constants of all controllers. A judgement, or decision, is made every [`POLLS_PER_DECISION`] polls, at most
//! every 250 ms, and only where there were enough measurements.

use std::time::Duration;

// ---- When decisions are made

/// Polls between two decisions on the slowdown, requests and SMT siblings.
pub(crate) const POLLS_PER_DECISION: u32 = 5;
/// Maximum number of decisions skipped while a change of yields is pending: a program that was stopped never
/// completes it.
pub(crate) const MAX_SKIPPED_DECISIONS: u32 = 20;
/// A phase with or without scavengers is to last at least this many times the 99th percentile of request
/// durations: requests that do not lie within one phase count for neither.
pub(crate) const MIN_PHASE_LENGTH_PER_P99: f64 = 20.0;

// ---- How much scavengers are admitted (`guard.rs`)

/// Maximum share of the time in which scavengers are admitted: the rest shows how fast the command is without
/// them.
pub const MAX_ADMITTED_SHARE: f64 = 0.95;
/// Minimum share of the time in which scavengers are admitted: without any, their effect could not be
/// measured.
pub(crate) const MIN_ADMITTED_SHARE: f64 = 0.02;
/// Target share of the requests within their limit: 95 in 100 are required, and the share of some hundred
/// requests is noisy.
pub(crate) const TARGET_SHARE_WITHIN_LIMIT: f64 = 0.96;
/// Minimum number of requests for a decision.
pub(crate) const MIN_REQUESTS: u64 = 100;

// ---- The slowdown (`slowdown.rs`)

/// Minimum number of time slices with scavengers, and without, for a slowdown.
pub(crate) const MIN_SLICES: u64 = 1000;
/// Maximum number of spans that are kept for the interval of the whole run's slowdown.
pub(crate) const MAX_SPANS: usize = 128;

// ---- Yields (`yield_ranking.rs`) and SMT siblings (`siblings.rs`) that are given up and taken again

/// Consecutive judgements that find the command too slow before they are believed: one alone is noisy.
pub(crate) const TOO_SLOW_JUDGEMENTS: u32 = 3;
/// Consecutive judgements that find the command within its bounds, well within for yields, before what was given up
/// is taken again: the initial number, which doubles each time that it had to be given up again soon, and its maximum.
pub(crate) const CALM_JUDGEMENTS: [u32; 2] = [8, 256];
/// Judgements after yields were installed again for which a removal counts as soon.
pub(crate) const YIELD_RELAPSE_JUDGEMENTS: u32 = 16;
/// Judgements after a change within which SMT siblings were given up soon.
pub(crate) const SIBLING_RELAPSE_JUDGEMENTS: u32 = 32;
/// Share of the limit below which a slowdown is well below it.
pub(crate) const CALM_SHARE_OF_LIMIT: f64 = 0.5;
/// Share of the hit cost of the installed yields that is removed at a time.
pub(crate) const REMOVED_COST_SHARE: f64 = 0.25;
/// Share of the predicted gain of all yields that stays for as long as admitting scavengers less can help.
pub(crate) const MIN_INSTALLED_GAIN_SHARE: f64 = 0.5;
/// Share of the requests that must keep to their limit beside SMT siblings in use.
pub(crate) const MIN_SHARE_WITHIN_LIMIT: f64 = 0.95;

// ---- The length of time slices (`slice_control.rs`)

/// The span to begin with, in nanoseconds: slices end at the first yield, which shows the best share that can
/// keep to the bound.
pub const FIRST_SPAN_NS: f64 = 0.0;
/// Maximum number of slices that a scavenger skips after a miss.
pub const MAX_SKIPS: u32 = 3;
/// Share of the time slices that must keep to the bound.
pub(crate) const TARGET_SHARE_WITHIN_BOUND: f64 = 0.99;
/// Maximum share of further slices that a longer span may push beyond the bound where not even slices that
/// end at the first yield keep to it, because they find all caches cold, for one. Never more than that share
/// falls short of [`TARGET_SHARE_WITHIN_BOUND`].
pub(crate) const MAX_EXTRA_EXCESS_SHARE: f64 = 0.02;
/// Share of the slices beyond the bound that one more skip must bring within it to be worth while, and its
/// lower limit.
pub(crate) const MIN_GAIN_OF_SKIP: f64 = 0.5;
pub(crate) const MIN_GAIN_OF_SKIP_IN_ALL: f64 = 0.001;
/// Probes of the shortest slices between two trials of another number of skips, after a trial that failed;
/// doubled after each failure, up to the maximum.
pub(crate) const FIRST_BACK_OFF_PROBES: u32 = 8;
pub(crate) const MAX_BACK_OFF_PROBES: u32 = 64;
/// Differences between shares smaller than this are noise.
pub(crate) const SHARE_NOISE: f64 = 0.004;
/// If fewer of the shortest slices than this keep to the bound, all slices end at the first yield.
pub(crate) const MIN_SHARE_TO_LENGTHEN: f64 = 0.8;
/// Decisions from one probe of slices that end at the first yield to the next.
pub(crate) const DECISIONS_PER_PROBE: u32 = 12;
/// Decisions for which no longer span is tried after a span that was too long.
pub(crate) const DECISIONS_BEFORE_LENGTHENING: u32 = 8;
/// Timed slices needed for a decision, and the number from which on one is made however unsure the share is.
pub(crate) const MIN_TIMED_SLICES: u64 = 200;
pub(crate) const SUFFICIENT_TIMED_SLICES: u64 = 4000;
/// Polls after which a decision is made with the slices that there are.
pub(crate) const MAX_POLLS_PER_DECISION: u32 = 32;
/// Standard errors by which a share must differ from its target to count as different.
pub(crate) const STANDARD_ERRORS: f64 = 2.0;
/// Steps to a longer span, largest first: the share of the margin between the target and the best share that
/// must be exceeded, and the factor by which the span then grows.
pub(crate) const LENGTHENING_STEPS: [(f64, f64); 3] = [(0.9, 1.5), (0.5, 1.2), (0.2, 1.08)];
/// A shorter span makes no difference, so 0 is used instead: slices end at the first yield.
pub(crate) const MIN_SPAN_NS: f64 = 2.0;
/// Share of the slices that may last longer than the load that they hide, and the share up to which longer
/// spans are tried.
pub(crate) const MAX_OVERLONG_SHARE: f64 = 0.5;
pub(crate) const MAX_LONG_SHARE: f64 = 0.25;

// ---- Harvests without a command (`interleaving.rs`)

/// Length of an interval of a trial, and the wait before it in which scavengers move to their places.
pub(crate) const TRIAL_INTERVAL: Duration = Duration::from_millis(50);
pub(crate) const SETTLING_TIME: Duration = Duration::from_millis(20);
/// Progress from which on a scavenger is taken to have prepared its data.
pub(crate) const MIN_PREPARED_LOADS: u64 = 2000;
/// Minimum progress of a member in its interval alone for its ratio to count.
pub(crate) const MIN_LOADS_ALONE: f64 = 500.0;
/// Minimum speedup for scavengers to interleave.
pub(crate) const MIN_SPEEDUP: f64 = 1.03;
/// Time until the second trial, doubled after each trial with the same result, and its maximum.
pub(crate) const FIRST_TRIAL_PAUSE: Duration = Duration::from_secs(1);
pub(crate) const MAX_TRIAL_PAUSE: Duration = Duration::from_secs(30);
/// Maximum number of scavengers that interleave on a processor.
pub(crate) const MAX_INTERLEAVED_PER_PROCESSOR: usize = 16;
