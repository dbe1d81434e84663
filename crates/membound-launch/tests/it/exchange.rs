//! Patches that come and go while threads run.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use membound_launch::{Choice, Live, Remote};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{self, Accesses, Body, Sites};

use crate::fixture::{Fixture, busy, could_be_patched, ends_well};

/// Waits for `until` to come true.
fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(5));
    }
}

fn executed(remote: &Remote, choice: &Choice) -> u64 {
    let executed = remote.executed(choice).unwrap_or_default();
    executed.iter().map(|site| site.executions).sum()
}

#[test]
fn patches_of_a_function_come_and_go_under_running_threads() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let bytes = fs::read(&fixture.program).unwrap();
    let image = Image::parse(&bytes).unwrap();
    let walk = fixture.function("walk").range;
    let choice = |body| {
        let mut options = patch::Options::new(body);
        options.accesses = Accesses::Loads;
        options.sites = Sites::At(walk.clone().collect());
        Choice {
            file: image.identity().clone(),
            options,
        }
    };
    // Nothing but what the agent needs stands in the text at first.
    let mut base = patch::Options::new(Body::Displace);
    base.sites = Sites::At(Vec::new());
    let mut options = fixture.options(base);
    options.live = Live::On;
    let keys = fixture.home.path().join("keys");
    let made = std::process::Command::new("mkfifo").arg(&keys).status();
    assert!(made.unwrap().success());
    let (session, out) = fixture.start_reading(options, &["until", "4"], &keys);
    let mut keys = fs::OpenOptions::new().write(true).open(&keys).unwrap();
    wait("the program begins", || {
        fs::read_to_string(&out).is_ok_and(|text| text.ends_with('\n'))
    });
    let remote = session.remote();
    let count = choice(Body::Count { exact: false });
    let sample = choice(Body::Sample);
    for round in 0..5 {
        let before = executed(&remote, &count);
        remote.exchange(vec![count.clone()]);
        wait(&format!("round {round}: counts grow"), || {
            executed(&remote, &count) > before + 1000
        });
        // Another body takes the place of the first.
        let sampled = executed(&remote, &sample);
        remote.exchange(vec![sample.clone()]);
        wait(&format!("round {round}: the other counts grow"), || {
            executed(&remote, &sample) > sampled + 1000
        });
        let still = executed(&remote, &count);
        sleep(Duration::from_millis(20));
        assert_eq!(executed(&remote, &count), still, "round {round}");
        remote.exchange(Vec::new());
        // Threads that stand in a trampoline leave it within their time slices.
        let mut last = executed(&remote, &sample);
        wait(&format!("round {round}: counts stand still"), || {
            sleep(Duration::from_millis(200));
            let now = executed(&remote, &sample);
            std::mem::replace(&mut last, now) == now
        });
    }
    std::io::Write::write_all(&mut keys, b"\n").unwrap();
    ends_well(&session);
    let report = session.finish();
    if could_be_patched(&report) {
        assert_eq!(report.missed, [""; 0]);
    }
}
