//! Patches are installed and removed while threads run.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use membound_launch::{Choice, Live, Options, Remote, Report, Session};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{self, Accesses, Body, Hooks, Sites};
use membound_rewrite::stall::Code;

use crate::fixture::{Fixture, busy, could_be_patched, ends_well};

/// Waits until `until` is true.
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

/// The loads of a function, with this body.
fn chosen(fixture: &Fixture, function: &str, body: Body) -> Choice {
    let bytes = fs::read(&fixture.program).expect("it was built");
    let image = Image::parse(&bytes).expect("the compiler writes ELF files");
    let mut options = patch::Options::new(body);
    options.accesses = Accesses::Loads;
    options.sites = Sites::At(fixture.function(function).range.collect());
    Choice {
        file: image.identity().clone(),
        options,
    }
}

/// A session in which the text has only the agent's own patches at first, and the program's input.
fn live(fixture: &Fixture) -> (Options, PathBuf) {
    let mut options = fixture.options(patch::Options::bare(Hooks::Plant));
    options.live = Live::On;
    let keys = fixture.home.path().join("keys");
    let made = std::process::Command::new("mkfifo").arg(&keys).status();
    assert!(made.is_ok_and(|made| made.success()));
    (options, keys)
}

/// Starts the program with these arguments, and waits for its first line. Returns the session, the file with the
/// program's output, and the program's input.
fn begin(
    fixture: &Fixture,
    options: Options,
    arguments: &[&str],
    keys: &Path,
) -> (Session, PathBuf, File) {
    let (session, out) = fixture.start_reading(options, arguments, keys);
    let keys = fs::OpenOptions::new().write(true).open(keys);
    let keys = keys.expect("the program reads it");
    wait("the program begins", || {
        fs::read_to_string(&out).is_ok_and(|text| text.ends_with('\n'))
    });
    (session, out, keys)
}

/// Lets the program end, and returns the session's report.
fn end(session: Session, keys: &mut File) -> Report {
    std::io::Write::write_all(keys, b"\n").expect("the program reads it");
    ends_well(&session);
    session.finish()
}

/// Waits until a removed choice counts nothing more: threads in its trampolines leave them within their
/// time slices.
fn stand_still(remote: &Remote, choice: &Choice, round: usize) {
    let mut last = executed(remote, choice);
    wait(&format!("round {round}: counts stand still"), || {
        sleep(Duration::from_millis(200));
        let now = executed(remote, choice);
        std::mem::replace(&mut last, now) == now
    });
}

#[test]
fn patches_of_a_function_come_and_go_under_running_threads() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let choice = |body| chosen(&fixture, "walk", body);
    let (options, keys) = live(&fixture);
    let (session, _, mut keys) = begin(&fixture, options, &["until", "4"], &keys);
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
        stand_still(&remote, &count, round);
        remote.exchange(Vec::new());
        stand_still(&remote, &sample, round);
    }
    let report = end(session, &mut keys);
    if could_be_patched(&report) {
        assert_eq!(report.missed, [""; 0]);
    }
}

/// A thread may be in a patch of one plan when another plan's come in, and returns into the middle of theirs where the
/// two cross: these are left out, and are not counted as executed 0 times.
#[test]
fn patches_that_cross_those_of_another_plan_are_left_out_unless_they_are_at_the_same_place() {
    let Some(fixture) = Fixture::build("crossing.c") else {
        return;
    };
    let _busy = busy();
    let (options, keys) = live(&fixture);
    let (session, _, mut keys) = begin(&fixture, options, &[], &keys);
    let remote = session.remote();
    let code = Code::of(fs::read(&fixture.program).expect("it was built"));
    let code = code.expect("the compiler writes ELF files");
    let function = fixture.function("squares").range;
    let accesses = code.accesses(function.start);
    let blocks: Vec<u64> = (code.blocks(function.start).iter())
        .map(|block| block.start)
        .collect();
    let inner = accesses[0];
    assert!(blocks.contains(&inner), "the loop begins with an access");
    let choice = |sites: Sites, preferred: &[u64]| {
        let mut options = patch::Options::new(match sites {
            Sites::At(_) => Body::Sample,
            _ => Body::Count { exact: false },
        });
        options.hooks = Hooks::LeaveOut;
        options.sites = sites;
        options.preferred = preferred.to_vec();
        Choice {
            file: code.identity().expect("it is a file"),
            options,
        }
    };
    let timed = choice(Sites::At(vec![accesses[1]]), &[]);
    let counted = choice(Sites::Blocks(blocks.clone()), &[]);
    let same = choice(Sites::Blocks(blocks), &accesses[1..]);
    let settle = |choice: &Choice| {
        let exchange = remote.exchange(vec![choice.clone()]);
        wait("the patches are in", || remote.settled(exchange));
        remote.refused(choice)
    };
    assert_eq!(settle(&timed).map(|refused| refused.len()), Some(0));
    let is_refused = |refused: Option<Vec<(u64, _)>>| {
        refused.map(|refused| refused.iter().any(|(address, _)| *address == inner))
    };
    assert_eq!(is_refused(settle(&counted)), Some(true));
    let executed = |choice: &Choice| {
        let executed = remote.executed(choice).unwrap_or_default();
        let inner = executed.iter().find(|block| block.address == inner);
        inner.map(|block| block.executions)
    };
    assert_eq!(executed(&counted), None);
    assert_eq!(is_refused(settle(&same)), Some(false));
    wait("the loop is counted", || executed(&same) > Some(1000));
    let report = end(session, &mut keys);
    if could_be_patched(&report) {
        assert_eq!(report.missed, [""; 0]);
    }
}

/// The agent's own patches, which stand since the program began, are not written again: each change of running
/// text needs barriers, for which the kernel may hold the agent's thread for 20 ms, and with it the program's
/// end.
#[test]
fn an_exchange_of_nothing_changes_no_text() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let (options, keys) = live(&fixture);
    let (session, _, mut keys) = begin(&fixture, options, &["until", "2"], &keys);
    let remote = session.remote();
    for _ in 0..3 {
        let number = remote.exchange(Vec::new());
        wait("the program is asked", || remote.settled(number));
    }
    let report = end(session, &mut keys);
    if could_be_patched(&report) {
        let changes: u64 = report.stops.counts.iter().sum();
        assert_eq!(changes, 0, "{:?}", report.stops);
    }
}

/// True if `walk` is in the process as it is in the file.
fn is_original(fixture: &Fixture, pid: &str, walk: u64) -> bool {
    let range = fixture.function("walk").range;
    let length = usize::try_from(range.end - range.start).expect("it is short");
    let file = fs::read(&fixture.program).expect("it was built");
    let image = Image::parse(&file).expect("the compiler writes ELF files");
    let expected = image.bytes(range).expect("it is in the file");
    let mut text = vec![0; length];
    let memory = File::open(format!("/proc/{pid}/mem")).expect("it runs");
    memory.read_exact_at(&mut text, walk).expect("it is there");
    text == expected
}

/// Waits until the program has printed this many lines.
fn printed(out: &Path, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    wait(&format!("it prints line {count}"), || {
        let text = fs::read_to_string(out).unwrap_or_default();
        lines = text.lines().map(str::to_owned).collect();
        text.ends_with('\n') && lines.len() == count
    });
    lines
}

/// Address of `walk`, by the program's first line.
fn walk_of(lines: &[String]) -> u64 {
    let address = lines[0].split(' ').nth(1).expect("the second address");
    u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("it is hexadecimal")
}

/// A thread that blocks all signals cannot be stopped, and a trap would end its program: patches stay in the text until
/// it can be. The test asks for no other exchange meanwhile.
#[test]
fn patches_that_stay_under_a_thread_without_signals_are_taken_out_later() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let (options, keys) = live(&fixture);
    let (session, out, mut keys) = begin(&fixture, options, &["masked", "1"], &keys);
    let remote = session.remote();
    let count = chosen(&fixture, "walk", Body::Count { exact: false });
    remote.exchange(vec![count.clone()]);
    wait("counts grow", || executed(&remote, &count) > 1000);
    let mut press = |key| std::io::Write::write_all(&mut keys, key).expect("it reads them");
    press(b"m");
    let lines = printed(&out, 2);
    let (walk, pid) = (walk_of(&lines), &lines[1]);
    let number = remote.exchange(Vec::new());
    wait("the removal was tried", || remote.settled(number));
    let stayed = !is_original(&fixture, pid, walk);
    press(b"u");
    wait("its own text is there again", || {
        is_original(&fixture, pid, walk)
    });
    press(b"\n");
    ends_well(&session);
    if could_be_patched(&session.finish()) {
        assert!(stayed, "a thread that blocks all signals was stopped");
    }
}

/// A forked child has the patches of that moment, and no control thread that removes them.
#[test]
fn a_forked_child_follows_the_exchanges_too() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let (options, keys) = live(&fixture);
    let (session, out, mut keys) = begin(&fixture, options, &["forks", "1"], &keys);
    let remote = session.remote();
    let sample = chosen(&fixture, "walk", Body::Sample);
    let number = remote.exchange(vec![sample]);
    wait("the patches stand", || remote.settled(number));
    std::io::Write::write_all(&mut keys, b"\n").unwrap();
    let lines = printed(&out, 2);
    let (walk, child) = (walk_of(&lines), &lines[1]);
    let patched = !is_original(&fixture, child, walk);
    remote.exchange(Vec::new());
    wait("the child has its own text again", || {
        is_original(&fixture, child, walk)
    });
    let report = end(session, &mut keys);
    if could_be_patched(&report) {
        assert!(patched && report.missed.is_empty(), "{:?}", report.missed);
    }
}

/// A choice in a file that is planned while its program runs waits for that plan; the session's own patches
/// are installed then.
fn is_patched_while_it_runs(fixture: &Fixture, text_at_start: u64, plans: usize) {
    let _busy = busy();
    let (mut options, keys) = live(fixture);
    options.text_at_start = Some(text_at_start);
    let (session, _, mut keys) = begin(fixture, options, &["until", "4"], &keys);
    let remote = session.remote();
    let count = chosen(fixture, "walk", Body::Count { exact: false });
    remote.exchange(vec![count.clone()]);
    wait("counts grow", || executed(&remote, &count) > 1000);
    let report = end(session, &mut keys);
    if could_be_patched(&report) {
        assert_eq!(report.missed, [""; 0]);
        let own = report
            .modules
            .iter()
            .filter(|it| it.path == fixture.program);
        let placed = own.filter(|it| it.outcome.as_ref().is_ok_and(|it| it.placements == 1));
        assert_eq!(placed.count(), plans);
    }
}

#[test]
fn a_large_program_is_patched_while_it_runs() {
    let large = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fixtures/large.s");
    if let Some(fixture) = Fixture::build_with("walk.c", &[large]) {
        // The session's own plan, for a system call, and the choice.
        is_patched_while_it_runs(&fixture, 2 << 20, 2);
    }
}

/// A program with two hundred libraries does not wait for the plans of most of them.
#[test]
fn small_files_that_a_program_did_not_wait_for_are_patched_while_it_runs() {
    if let Some(fixture) = Fixture::build("walk.c") {
        is_patched_while_it_runs(&fixture, 0, 1);
    }
}

fn object(factor: u32) -> Option<Fixture> {
    let factor = format!("-DFACTOR={factor}");
    Fixture::build_with("multiple.c", &["-shared", "-fPIC", &factor])
}

/// Runs `plugins.c` in a session that does not hold its program, and calls `meanwhile`.
fn with_plugins(meanwhile: impl FnOnce(&Remote, &[Fixture; 2])) {
    let built = (Fixture::build("plugins.c"), object(2), object(3));
    let (Some(fixture), Some(first), Some(second)) = built else {
        return;
    };
    let objects = [first, second];
    let _busy = busy();
    let (mut options, keys) = live(&fixture);
    options.text_at_start = Some(2 << 20);
    let paths = objects
        .each_ref()
        .map(|it| it.program.to_str().expect("the directory has a plain name"));
    let words = [paths[0], paths[1], "1000000", "20000"];
    let (session, out) = fixture.start_reading(options, &words, &keys);
    let mut keys = fs::OpenOptions::new()
        .write(true)
        .open(&keys)
        .expect("the program reads it");
    wait("the program begins", || {
        fs::read_to_string(&out).is_ok_and(|text| text.ends_with('\n'))
    });
    let remote = session.remote();
    meanwhile(&remote, &objects);
    let report = end(session, &mut keys);
    if could_be_patched(&report) {
        assert_eq!(report.missed, [""; 0]);
        let said = fs::read_to_string(&out).expect("the shell made it");
        assert_eq!(said, "begun\nwrong 0\n");
    }
}

/// The program goes on while the control thread reports what it has opened.
#[test]
fn an_object_that_was_opened_is_patched_while_the_program_runs() {
    with_plugins(|remote, [first, second]| {
        let counts = [first, second].map(|it| chosen(it, "multiple", Body::Count { exact: false }));
        remote.exchange(counts.to_vec());
        for count in &counts {
            wait("counts grow", || executed(remote, count) > 1000);
        }
    });
}

/// Text is changed all the time in objects that are opened and closed all the time, at the same addresses:
/// no byte for one object may be written into another.
#[test]
fn objects_come_and_go_while_their_text_changes() {
    with_plugins(|remote, [first, second]| {
        let count = |it| chosen(it, "multiple", Body::Count { exact: false });
        let sample = |it| chosen(it, "multiple", Body::Sample);
        let counts = vec![count(first), sample(second)];
        let was_patched = || counts.iter().any(|it| executed(remote, it) > 0);
        let begun = Instant::now();
        wait("something was patched", || {
            remote.exchange(counts.clone());
            sleep(Duration::from_millis(3));
            remote.exchange(Vec::new());
            begun.elapsed() > Duration::from_secs(3) && was_patched()
        });
    });
}
