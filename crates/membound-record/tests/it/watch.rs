//! Hardware watchpoints on a program that reports when it accesses what.

use std::collections::HashMap;
use std::time::Duration;

use membound_record::perf::{Error, now_ns};
use membound_record::watch::{ObservedAccess, Patrol, Point, Suspects, Watchpoints, Wrote};
use membound_testkit::skipped;

use crate::fixture::{Fixture, Running, busy};

/// Threads of a process.
fn threads(pid: u32) -> Vec<u32> {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("the process is there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// `None`, with a message, where there are no watchpoints.
fn set(running: &Running, points: &[Point]) -> Option<Watchpoints> {
    let tids = threads(running.pid());
    match Watchpoints::set(running.pid(), &tids, points) {
        Ok(watchpoints) => Some(watchpoints),
        Err(
            error @ (Error::NotPermitted { .. }
            | Error::Filtered
            | Error::Unsupported { .. }
            | Error::NoWatchpoint { .. }),
        ) => {
            skipped(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_thread_hits_what_it_touches_and_nothing_is_told_when_disarmed() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("touch.c") else {
        return;
    };
    let mut running = fixture.start(&[]);
    let (line, main) = (running.said[0], running.pid());
    let points = [8, 24, 32].map(|offset| Point {
        address: line + offset,
        bytes: 8,
    });
    let Some(mut watchpoints) = set(&running, &points) else {
        return;
    };
    assert_eq!(watchpoints.threads().count(), 2);
    running.say("w\n");
    running.hear();
    let mut hits: HashMap<(u32, u64), u32> = HashMap::new();
    assert_eq!(watchpoints.read(&mut |_| panic!("it is not armed")), 0);
    watchpoints.arm(50).unwrap();
    running.say("w\n");
    running.hear();
    std::thread::sleep(Duration::from_millis(50));
    watchpoints.disarm();
    let mut ips = Vec::new();
    let lost = watchpoints.read(&mut |hit| {
        assert_eq!(hit.sample.pid, main);
        *hits
            .entry((hit.sample.tid, hit.point.address - line))
            .or_default() += 1;
        ips.push(hit.sample.registers.map_or(0, |registers| registers.ip));
        assert!(!hit.sample.stack.is_empty());
    });
    assert_eq!(lost, 0);
    assert_eq!(hits.get(&(main, 8)), Some(&10), "{hits:?}");
    let others: Vec<_> = hits.iter().filter(|((tid, _), _)| *tid != main).collect();
    let [((_, offset), count)] = *others else {
        panic!("one thread, one word: {hits:?}");
    };
    assert_eq!(*offset, 24);
    assert!((1..=50).contains(count), "{count}");
    ips.sort_unstable();
    ips.dedup();
    assert_eq!(ips.len(), 2, "one instruction each: {ips:x?}");
    running.say("w\n");
    running.hear();
    watchpoints.read(&mut |_| panic!("it was disarmed"));
    running.say("q\n");
    assert!(running.end());
}

#[test]
fn a_point_ends_after_as_many_hits_as_asked_for() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("touch.c") else {
        return;
    };
    let mut running = fixture.start(&[]);
    let point = Point {
        address: running.said[0] + 8,
        bytes: 4,
    };
    let Some(mut watchpoints) = set(&running, &[point]) else {
        return;
    };
    watchpoints.arm(3).unwrap();
    running.say("w\n");
    running.hear();
    let mut hits = 0;
    watchpoints.read(&mut |_| hits += 1);
    assert_eq!(hits, 3);
    watchpoints.arm(4).unwrap();
    running.say("w\n");
    running.hear();
    watchpoints.read(&mut |_| hits += 1);
    assert_eq!(hits, 7);
    running.say("q\n");
    assert!(running.end());
}

#[test]
fn registers_that_are_taken_and_points_that_cannot_be_are_said() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("touch.c") else {
        return;
    };
    let mut running = fixture.start(&[]);
    let (line, pid) = (running.said[0], running.pid());
    let points: Vec<Point> = (0..4)
        .map(|at| Point {
            address: line + 8 * at,
            bytes: 8,
        })
        .collect();
    let Some(mut held) = set(&running, &points) else {
        return;
    };
    held.arm(1).unwrap();
    let again = Watchpoints::set(pid, &[pid], &points[..1]);
    assert!(
        matches!(again, Err(Error::NoWatchpoint { tid }) if tid == pid),
        "{again:?}"
    );
    held.disarm();
    assert!(set(&running, &points).is_some(), "they are free again");
    let crooked = Point {
        address: line + 1,
        bytes: 4,
    };
    let refused = Watchpoints::set(pid, &[pid], &[crooked]).unwrap_err();
    assert!(matches!(refused, Error::Unwatchable { .. }), "{refused}");
    running.say("q\n");
    while !running.ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let gone = Watchpoints::set(pid, &[pid], &points).unwrap_err();
    assert!(matches!(gone, Error::Gone { .. }), "{gone}");
}

#[test]
fn a_patrol_confirms_who_shares_a_line() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("touch.c") else {
        return;
    };
    let mut running = fixture.start(&[]);
    let (line, main) = (running.said[0], running.pid());
    let points = [Point {
        address: line,
        bytes: 8,
    }];
    // Where watchpoints are not available, this says so.
    if set(&running, &points).is_none() {
        return;
    }
    let reader = threads(main).into_iter().find(|&tid| tid != main).unwrap();
    let mut suspects = Suspects::new(64);
    let accesses = [(main, line + 8, Wrote::Yes), (reader, line + 24, Wrote::No)];
    for (tid, address, wrote) in accesses {
        suspects.note(ObservedAccess {
            pid: main,
            tid,
            address,
            bytes: 8,
            wrote,
        });
    }
    let mut patrol = Patrol::default();
    let mut hits: HashMap<(u32, u64), u32> = HashMap::new();
    let mut count = |hit: membound_record::watch::Hit<'_>| {
        *hits
            .entry((hit.sample.tid, hit.point.address - line))
            .or_default() += 1;
    };
    patrol.step(now_ns(), &mut suspects, &mut count).unwrap();
    running.say("w\n");
    running.hear();
    std::thread::sleep(Duration::from_millis(20));
    patrol.step(now_ns(), &mut suspects, &mut count).unwrap();
    patrol.end(&mut count);
    assert_eq!(hits.get(&(main, 8)), Some(&10), "{hits:?}");
    assert!(hits.contains_key(&(reader, 24)), "{hits:?}");
    assert_eq!(hits.len(), 2, "{hits:?}");
    running.say("q\n");
    while !running.ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A process that has ended is no error, and is not looked for again.
    let later = now_ns() + 1_000_000_000;
    patrol.step(later, &mut suspects, &mut |_| ()).unwrap();
    assert_eq!(suspects.next_plan(), None);
}
