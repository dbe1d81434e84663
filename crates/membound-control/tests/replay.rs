//! Replays recorded harvests through the controller: it does what it did then, and keeps its promises.
//!
//! The traces stand in `tests/traces` with the commands that recorded them. After a constant of the controller was
//! changed on purpose, its actions differ, and traces must be recorded again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use flate2::read::GzDecoder;
use membound_control::{
    Action, Controller, Counters, Interleaving, Limits, MAX_ADMITTED_SHARE, MAX_SKIPS, Observation,
    SiblingControl, SliceControl, Slices, YieldFigures,
};
use serde_json::Value;

/// Polls between two decisions on the slowdown, and minimum number of slices for one.
const POLLS_PER_DECISION: usize = 5;
const MIN_SLICES: u64 = 1000;

type Histogram = Vec<(u64, u64, u64)>;

/// The settings of a trace, and its polls with the actions that were recorded at each.
struct Trace {
    settings: Value,
    polls: Vec<Value>,
}

/// A poll that was replayed.
struct Replayed {
    counters: Counters,
    is_settled: bool,
    scavengers: usize,
    actions: Vec<Action>,
}

impl Trace {
    fn read(name: &str) -> Self {
        let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
        let file = std::fs::File::open(traces.join(name)).unwrap();
        let mut text = String::new();
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        Self {
            settings: lines.next().unwrap(),
            polls: lines.collect(),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            max_slowdown: self.settings["max_slowdown"].as_f64(),
            slo_p95_ns: self.settings["slo_p95_ns"].as_f64(),
        }
    }

    fn yields(&self) -> Vec<YieldFigures> {
        let figures = |it: &Value| YieldFigures {
            gain: it[0].as_f64().unwrap(),
            hit_cost: it[1].as_f64().unwrap(),
            rate: it[2].as_f64(),
        };
        array(&self.settings["yields"]).map(figures).collect()
    }

    fn controller(&self) -> Controller {
        let limits = self.limits();
        let is = |name: &str| self.settings[name].as_bool().unwrap();
        let slices = self.settings["slices"].as_array().map(|slices| {
            let ns = |index: usize| slices[0][index].as_f64().unwrap();
            let skips = u32::try_from(slices[1].as_u64().unwrap()).unwrap();
            SliceControl::new(ns(0), ns(1), ns(2)).skipping(skips)
        });
        Controller::new(limits, &self.yields())
            .with_slices(slices)
            .with_siblings(is("siblings").then(|| SiblingControl::new(limits)))
            .with_interleaving(is("interleaving").then(Interleaving::default))
    }

    /// Replays the trace; panics at the first poll whose actions are not the recorded ones.
    fn replay(&self) -> Vec<Replayed> {
        let mut controller = self.controller();
        let mut counters = Counters::default();
        let mut replayed = Vec::new();
        for (poll, line) in self.polls.iter().enumerate() {
            add(&mut counters, line);
            let progress: Vec<Option<u64>> = array(&line["progress"]).map(Value::as_u64).collect();
            let is_settled = line["settled"].as_bool().unwrap();
            let actions = controller.step(&Observation {
                now: Duration::from_nanos(line["ns"].as_u64().unwrap()),
                counters: &counters,
                is_settled,
                uses_siblings: line["beside"].as_bool().unwrap(),
                progress: &progress,
                processors: usize::try_from(line["processors"].as_u64().unwrap()).unwrap(),
            });
            let recorded = array(&line["actions"]).map(|it| it.as_str().unwrap());
            let found: Vec<String> = actions.iter().map(|it| format!("{it:?}")).collect();
            assert_eq!(found, recorded.collect::<Vec<_>>(), "poll {poll}");
            replayed.push(Replayed {
                counters: counters.clone(),
                is_settled,
                scavengers: progress.len(),
                actions,
            });
        }
        replayed
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap().iter()
}

/// Adds what was counted up to a poll.
fn add(counters: &mut Counters, line: &Value) {
    let grow = |slices: &mut Slices, by: &Value| {
        slices.count += by[0].as_u64().unwrap();
        slices.cpu_ns += by[1].as_u64().unwrap();
    };
    grow(&mut counters.with, &line["with"]);
    grow(&mut counters.without, &line["without"]);
    counters.slices = grown(&counters.slices, &line["slices"]);
    if let Some(by) = line["requests"].as_array() {
        let before = counters.requests.take().unwrap_or_default();
        counters.requests = Some([0, 1].map(|phase| grown(&before[phase], &by[phase])));
    }
}

fn grown(before: &Histogram, by: &Value) -> Histogram {
    let before = before
        .iter()
        .map(|(from, to, count)| ((*from, *to), *count));
    let mut classes: BTreeMap<(u64, u64), u64> = before.collect();
    for class in array(by) {
        let number = |index: usize| class[index].as_u64().unwrap();
        *classes.entry((number(0), number(1))).or_default() += number(2);
    }
    let classes = classes.into_iter();
    classes
        .map(|((from, to), count)| (from, to, count))
        .collect()
}

/// Checks what holds for the actions of every trace.
fn keeps_to_bounds(trace: &Trace, replayed: &[Replayed]) {
    let yields = trace.yields().len();
    let max_ns = trace.settings["slices"][0][2].as_f64();
    for (number, poll) in replayed.iter().enumerate() {
        for action in &poll.actions {
            match action {
                Action::Admit(share) => {
                    assert!(*share > 0.0 && *share <= MAX_ADMITTED_SHARE, "{share}");
                }
                Action::Remove(removed) => {
                    assert!(poll.is_settled, "poll {number}: yields are changing");
                    let mut distinct = removed.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert_eq!(distinct.len(), removed.len(), "{removed:?}");
                    assert!(removed.iter().all(|it| *it < yields), "{removed:?}");
                }
                Action::LengthenPhases(ns) => assert!(ns.is_finite() && *ns > 0.0, "{ns}"),
                Action::Limit(limits) => {
                    assert!(
                        limits.span_ns >= 0.0 && Some(limits.span_ns) <= max_ns,
                        "{limits:?}"
                    );
                    assert!(limits.skips <= MAX_SKIPS, "{limits:?}");
                }
                Action::Place(places) => assert_eq!(places.len(), poll.scavengers),
            }
        }
    }
}

/// Slowdown between two polls, as a share; `None` with too few slices.
fn slowdown(now: &Counters, before: &Counters) -> Option<f64> {
    let each_ns = |now: Slices, before: Slices| {
        let count = now.count - before.count;
        (count >= MIN_SLICES).then(|| (now.cpu_ns - before.cpu_ns) as f64 / count as f64)
    };
    let with_ns = each_ns(now.with, before.with)?;
    Some(with_ns / each_ns(now.without, before.without)? - 1.0)
}

/// While the measured slowdown breaks the limit at the admitted share, that share never rises. Returns how many
/// decisions found the limit broken.
fn admits_no_more_while_too_slow(trace: &Trace, replayed: &[Replayed]) -> usize {
    let most = trace.limits().max_slowdown.unwrap();
    let (mut share, mut before, mut broken) = (MAX_ADMITTED_SHARE, Counters::default(), 0);
    for (number, poll) in replayed.iter().enumerate() {
        if !(number + 1).is_multiple_of(POLLS_PER_DECISION) {
            continue;
        }
        let slower = slowdown(&poll.counters, &before);
        let is_broken = slower.is_some_and(|slower| slower * share > most);
        broken += usize::from(is_broken);
        let admitted = poll.actions.iter().find_map(|action| match action {
            Action::Admit(share) => Some(*share),
            _ => None,
        });
        if let Some(admitted) = admitted {
            assert!(
                !is_broken || admitted <= share,
                "poll {number}: {share} to {admitted} at {slower:?}"
            );
            share = admitted;
        }
        if slower.is_some() {
            before.clone_from(&poll.counters);
        }
    }
    broken
}

/// Replays a trace, and checks what holds for every trace.
fn replayed(name: &str) -> (Trace, Vec<Replayed>) {
    let trace = Trace::read(name);
    let replayed = trace.replay();
    keeps_to_bounds(&trace, &replayed);
    (trace, replayed)
}

/// All actions in the order in which they were decided.
fn actions(replayed: &[Replayed]) -> Vec<&Action> {
    replayed.iter().flat_map(|poll| &poll.actions).collect()
}

#[test]
fn a_yield_goes_before_scavengers_are_admitted_less() {
    let (trace, replayed) = replayed("yield-removed.jsonl.gz");
    assert!(admits_no_more_while_too_slow(&trace, &replayed) > 0);
    let actions = actions(&replayed);
    assert!(matches!(actions[0], Action::Remove(_)), "{actions:?}");
    let admitted = actions
        .iter()
        .filter(|it| matches!(it, Action::Admit(share) if *share < 0.5));
    assert!(admitted.count() > 0, "{actions:?}");
}

#[test]
fn all_yields_return_once_the_command_is_fast_again() {
    let (trace, replayed) = replayed("yields-return.jsonl.gz");
    assert!(admits_no_more_while_too_slow(&trace, &replayed) > 0);
    let removed: Vec<usize> = actions(&replayed)
        .into_iter()
        .filter_map(|action| match action {
            Action::Remove(removed) => Some(removed.len()),
            _ => None,
        })
        .collect();
    assert!(removed.len() >= 2, "{removed:?}");
    assert!(removed[0] > 0 && removed.last() == Some(&0), "{removed:?}");
}

#[test]
fn requests_that_are_too_slow_let_scavengers_in_less_and_less() {
    let (_, replayed) = replayed("slow-requests.jsonl.gz");
    let shares: Vec<f64> = actions(&replayed)
        .into_iter()
        .filter_map(|action| match action {
            Action::Admit(share) => Some(*share),
            _ => None,
        })
        .collect();
    // No request keeps to 1 ns, so the share never rises.
    assert!(!shares.is_empty());
    assert!(shares.is_sorted_by(|a, b| a > b), "{shares:?}");
}

#[test]
fn each_scavenger_has_a_place_while_it_lives() {
    let (_, replayed) = replayed("no-command.jsonl.gz");
    let actions = actions(&replayed);
    assert!(!actions.is_empty());
    assert!(
        actions.iter().all(|it| matches!(it, Action::Place(_))),
        "{actions:?}"
    );
}
