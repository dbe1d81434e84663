//! Request durations of programs that count their requests, of which there are two kinds.

use membound_types::{HarvestRun, Latencies, LatencySource, PrimaryLatency};

use crate::suite::{Harvest, Harvested, ProgramResult, finish, fixture, scavenger};

/// Minimum duration of slow requests, one in ten, in nanoseconds; lower than the nominal one because of the
/// error of clock calibration.
const SLOW_NS: f64 = 0.95 * 2e6;

/// Runs the fixture in `mode` with a scavenger, alone and under `--requests by`.
fn served(mode: &str, by: &str, options: &str) -> Option<Harvested> {
    let (program, scavenger) = (fixture("requests.c", "-O2 -pthread")?, scavenger()?);
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .options(&format!("--requests {by}"))
        .options(options);
    let alone = harvest.alone();
    assert_eq!(alone.end, Ok(0), "{alone:#?}");
    let harvested = harvest.run();
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    Some(harvested)
}

fn latency(document: &HarvestRun) -> &PrimaryLatency {
    let latency = document.primary.latency.as_ref();
    latency.unwrap_or_else(|| panic!("no requests were seen: {:#?}", document.missing))
}

/// The phases with and without scavengers, if there are any.
fn phases(latency: &PrimaryLatency) -> impl Iterator<Item = &Latencies> {
    [&latency.with, &latency.without].into_iter().flatten()
}

/// Number of requests that were observed to their end.
fn counted(latency: &PrimaryLatency) -> u64 {
    phases(latency).map(|it| it.requests).sum::<u64>() + latency.spanning
}

/// Checks the number of the fixture's requests in `mode`, and that they are of two kinds.
#[track_caller]
fn check(mode: &str, by: &str, requests: u64) {
    let Some(harvested) = served(mode, by, "") else {
        return;
    };
    let document = &harvested.document;
    assert!(document.notes.is_empty(), "{:#?}", document.notes);
    let latency = latency(document);
    let context = format!("{latency:#?}");
    assert_eq!(counted(latency), requests, "{context}");
    assert_eq!(latency.by, by);
    let source = match by {
        "sockets" => LatencySource::Socket,
        _ => LatencySource::Marker,
    };
    assert_eq!(latency.source, source);
    let mut slow = 0;
    for phase in phases(latency) {
        let bins: u64 = phase.histogram.iter().map(|bin| bin.count).sum();
        assert_eq!(bins, phase.requests, "{context}");
        let beyond = phase.histogram.iter().filter(|bin| bin.from_ns >= SLOW_NS);
        slow += beyond.map(|bin| bin.count).sum::<u64>();
        assert!(phase.max_ns >= phase.p99_ns, "{context}");
    }
    // Others may be slow because another process had the processor.
    assert!(slow + latency.spanning >= requests / 10, "{context}");
    // The longer requests are, the more of them begin in one phase and end in another.
    let all = phases(latency).max_by_key(|it| it.requests);
    let most = all.expect("not all requests are that long");
    assert!(most.p50_ns < SLOW_NS && most.p99_ns >= SLOW_NS, "{context}");
}

#[test]
fn by_a_pair_of_sockets() {
    check("pair 2 1000", "sockets", 2000);
}

#[test]
fn by_connections() {
    check("tcp 2 1000", "sockets", 2000);
}

#[test]
fn by_messages() {
    check("messages 2 1000", "sockets", 2000);
}

#[test]
fn by_calls_with_arguments_on_the_stack() {
    check("calls 2 1000", "serve", 2000);
}

#[test]
fn by_two_functions() {
    check("marks 2 1000", "request_begin..request_end", 2000);
}

#[test]
fn the_outermost_of_calls_within_each_other_is_the_request() {
    check("recursion 2 1000", "descend", 2000);
}

#[test]
fn a_call_that_is_left_by_a_long_jump_is_no_request() {
    let Some(harvested) = served("left 2 1000", "leap", "") else {
        return;
    };
    let document = &harvested.document;
    assert_eq!(counted(latency(document)), 1600, "{document:#?}");
    let [note] = &document.notes[..] else {
        panic!("{:#?}", document.notes);
    };
    assert!(note.starts_with("400 of the requests"), "{note}");
}

/// The reason for which the latency is missing.
#[track_caller]
fn reason(document: &HarvestRun) -> &str {
    assert_eq!(document.primary.latency, None);
    let gap = document
        .missing
        .iter()
        .find(|it| it.table == "primary.latency");
    &gap.expect("there is a reason").why.reason
}

#[test]
fn raw_system_calls_are_not_observed() {
    if let Some(harvested) = served("raw 2 100", "sockets", "") {
        let reason = reason(&harvested.document);
        assert!(reason.contains("system calls"), "{reason}");
    }
}

#[test]
fn functions_without_calls_have_no_requests() {
    if let Some(harvested) = served("calls 1 100", "leap", "") {
        let reason = reason(&harvested.document);
        assert!(reason.contains("no call of leap"), "{reason}");
    }
}

#[test]
fn a_bound_that_cannot_be_kept_lets_scavengers_in_less() {
    let Some(harvested) = served("pair 2 6000", "sockets", "--slo-p95 1") else {
        return;
    };
    let document = &harvested.document;
    let guard = document.guard.expect("there is a guard");
    assert!(guard.checks > 0 && guard.steps_out > 0, "{guard:?}");
    assert!(guard.final_share < 0.9, "{guard:?}");
    assert_eq!(document.options.slo_p95_ns, Some(1.0));
}

#[test]
fn a_bound_that_is_kept_anyway_changes_nothing() {
    let Some(harvested) = served("pair 2 3000", "sockets", "--slo-p95 1e10") else {
        return;
    };
    let guard = harvested.document.guard.expect("there is a guard");
    assert_eq!((guard.steps_out, guard.steps_in), (0, 0), "{guard:?}");
}

/// Runs the fixture with options that must be refused with `code` and one line that contains `part`.
#[track_caller]
fn refused(options: &str, code: i32, part: &str) {
    let (Some(program), Some(scavenger)) = (fixture("requests.c", "-O2 -pthread"), scavenger())
    else {
        return;
    };
    let harvest = Harvest::of(&program, "pair")
        .with(&scavenger, "work")
        .options(options);
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = harvest.command();
    command.arg("--").arg(&program);
    let ProgramResult {
        stdout,
        stderr,
        end,
    } = finish(&mut command, room.path());
    assert_eq!(
        (end, stdout.as_str()),
        (Ok(code), ""),
        "{options}: {stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{options}: {stderr}");
    assert!(stderr.contains(part), "{options}: {stderr}");
}

#[test]
fn a_function_that_is_nowhere_is_refused() {
    refused("--requests no_such_function", 1, "no_such_function");
    refused("--requests serve..no_such_end", 1, "no_such_end");
}

#[test]
fn a_bound_without_requests_is_refused() {
    refused("--slo-p95 1000", 2, "--requests");
}

#[test]
fn requests_of_no_primary_are_refused() {
    let Some(scavenger) = scavenger() else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_membound"));
    command.args(["harvest", "run", "--no-primary", "--requests", "sockets"]);
    command.arg("--scavenger").arg(scavenger);
    let ProgramResult { stderr, end, .. } = finish(&mut command, room.path());
    assert_eq!(end, Ok(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
