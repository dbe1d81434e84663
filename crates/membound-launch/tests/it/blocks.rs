//! Counted basic blocks of a program whose loops are known.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use membound_launch::{Choice, Live};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{self, Body, Hooks, Sites};

use crate::fixture::{Fixture, busy, could_be_patched, ends_well};

fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(5));
    }
}

/// Start and expected executions of each block, as the program prints them.
fn parts(out: &str, function: u64) -> Option<Vec<(u64, u64)>> {
    let (parts, _) = out.split_once("run\n")?;
    let part = |line: &str| {
        let (start, expected) = line.split_once(' ')?;
        let start: u64 = start.parse().ok()?;
        Some((function + start, expected.parse().ok()?))
    };
    parts.lines().map(part).collect()
}

#[test]
fn blocks_run_as_often_as_their_loops_say() {
    let Some(fixture) = Fixture::build("blocks.c") else {
        return;
    };
    let _busy = busy();
    let bytes = fs::read(&fixture.program).unwrap();
    let image = Image::parse(&bytes).unwrap();
    let nest = fixture.function("nest").range.start;
    let mut options = fixture.options(patch::Options::bare(Hooks::Plant));
    options.live = Live::On;
    let keys = fixture.home.path().join("keys");
    let made = std::process::Command::new("mkfifo").arg(&keys).status();
    assert!(made.unwrap().success());
    let (session, out) = fixture.start_reading(options, &[], &keys);
    let mut keys = fs::OpenOptions::new().write(true).open(&keys).unwrap();
    let mut expected = None;
    wait("the program begins", || {
        let out = fs::read_to_string(&out).unwrap_or_default();
        expected = parts(&out, nest);
        expected.is_some()
    });
    let expected: HashMap<u64, u64> = expected.unwrap().into_iter().collect();
    let mut starts: Vec<u64> = expected.keys().copied().collect();
    starts.sort_unstable();
    let mut options = patch::Options::new(Body::Count { exact: true });
    options.sites = Sites::Blocks(starts);
    let choice = Choice {
        file: image.identity().clone(),
        options,
    };
    let remote = session.remote();
    let exchange = remote.exchange(vec![choice.clone()]);
    wait("the counters are in", || remote.settled(exchange));
    std::io::Write::write_all(&mut keys, b"\n").unwrap();
    ends_well(&session);
    let counted: HashMap<u64, u64> = remote
        .executed(&choice)
        .unwrap_or_default()
        .iter()
        .map(|block| (block.address, block.executions))
        .collect();
    let refused = remote.refused(&choice).unwrap_or_default();
    let report = session.finish();
    if could_be_patched(&report) {
        assert_eq!(report.missed, [""; 0]);
        // Between two patched blocks there is no room for a jump in three bytes.
        let mut all = counted;
        for (block, _) in &refused {
            let next = expected.keys().filter(|it| *it > block).min();
            assert!(next.is_some_and(|next| next - block <= 3), "{refused:?}");
            all.insert(*block, expected[block]);
        }
        assert_eq!(all, expected);
    }
}
