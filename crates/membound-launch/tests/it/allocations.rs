//! Programs whose allocations are known.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use membound_launch::{
    AllocationAction, AllocationEvent, AllocationFunction, AllocationReceiver, Change, Objects,
    Options, Report,
};
use membound_rewrite::patch::{self, Body, Hooks};
use membound_testkit::{inconclusive, skipped};

use crate::fixture::{Fixture, busy, could_be_patched};

/// Size from which all blocks are reported when there are very many.
const FLOODED: u64 = 4096;

/// Keeps all events.
#[derive(Debug, Default)]
pub(crate) struct Keep(Mutex<Kept>);

#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) events: Vec<(u32, AllocationEvent)>,
    pub(crate) chains: HashMap<(u32, u32), Vec<u64>>,
    pub(crate) lost: u64,
    pub(crate) sampled: u64,
    pub(crate) begun: u64,
    /// Blocks of the program that began last.
    pub(crate) live: HashMap<u64, u64>,
}

impl AllocationReceiver for Keep {
    fn begun(&self, _: u32, _: Instant) {
        let mut kept = self.kept();
        kept.begun += 1;
        kept.live.clear();
    }

    fn chain(&self, pid: u32, chain: u32, addresses: &[u64]) {
        let known = self.kept().chains.insert((pid, chain), addresses.to_vec());
        assert!(
            known.is_none(),
            "chain {chain} of {pid} was announced twice"
        );
    }

    fn receive(&self, pid: u32, events: &[AllocationEvent]) {
        let mut kept = self.kept();
        for event in events {
            let known = kept.chains.contains_key(&(pid, event.chain));
            assert!(known || event.action == AllocationAction::Freed);
            kept.events.push((pid, *event));
            if event.action == AllocationAction::Allocated {
                kept.live.insert(event.address, event.size);
            } else {
                kept.live.remove(&event.address);
            }
        }
    }

    fn lost(&self, _: u32, events: u64) {
        self.kept().lost += events;
    }

    fn sampled(&self, _: u32, _: u64) {
        self.kept().sampled += 1;
    }
}

impl Keep {
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Options under which only allocation functions are patched.
fn followed(fixture: &Fixture, keep: &Arc<Keep>) -> Options {
    let mut options = fixture.options(patch::Options::bare(Hooks::Plant));
    options.objects = Some(Objects {
        // Report all blocks, whatever that costs.
        every_from_bytes: 0,
        max_overhead: f64::INFINITY,
        others: Vec::new(),
        receiver: Arc::clone(keep) as Arc<dyn AllocationReceiver>,
    });
    options
}

/// The program's functions in a chain, innermost first. The program is linked at the addresses of its file.
fn names(fixture: &Fixture, chain: &[u64]) -> Vec<String> {
    let functions = fixture.functions();
    let name_of = |address: &u64| {
        let function = functions
            .iter()
            .find(|function| function.range.contains(&(address - 1)))?;
        function.name.as_deref().map(str::to_owned)
    };
    chain.iter().filter_map(name_of).collect()
}

#[test]
fn blocks_sizes_and_chains_are_the_programs_own() {
    let Some(fixture) = Fixture::build_with("blocks_known.c", &["-no-pie"]) else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let (report, out) = fixture.run(followed(&fixture, &keep), &[]);
    if !could_be_patched(&report) {
        return;
    }
    assert_eq!(out, "done\n");
    let kept = keep.kept();
    assert_eq!((kept.lost, kept.sampled), (0, 0));
    let mut found: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for (pid, event) in &kept.events {
        if event.action == AllocationAction::Allocated {
            let chain = names(&fixture, &kept.chains[&(*pid, event.chain)]);
            if let Some(first) = chain.iter().position(|name| name == "main") {
                let path = chain[..=first].join(" ");
                *found.entry((path, event.size)).or_default() += 1;
            }
            assert_eq!(event.weight, 1.0);
        }
    }
    let of = |path: &str, size: u64| {
        let key = (path.to_owned(), size);
        found.get(&key).copied().unwrap_or(0)
    };
    let expected = [
        ("inner outer hundreds main", 101, 300),
        ("inner outer thousands main", 5001, 50),
        ("zeroed others main", 700, 1),
        ("others main", 80, 1),
        ("others main", 1 << 20, 1),
        ("others main", 30, 1),
        ("others main", 33, 1),
        ("others main", 1000, 1),
        ("others main", 640, 1),
        ("others main", 5 * 4096, 1),
        ("others main", 40 * 4096, 1),
    ];
    for (path, size, count) in expected {
        assert_eq!(of(path, size), count, "{path} {size}: {found:#?}");
    }
    let all: u64 = expected.iter().map(|(_, _, count)| count).sum();
    let own = found
        .iter()
        .filter(|((path, _), _)| !path.starts_with("main"));
    assert_eq!(own.map(|(_, count)| count).sum::<u64>(), all, "{found:#?}");
}

/// Results of a program with and without following its allocations.
struct Ran {
    keep: Arc<Keep>,
    report: Report,
}

/// Runs a program alone and followed, and compares the results. `None` if it cannot be followed here.
fn compared(fixture: &Fixture, words: &[&str], variables: &[(&str, &str)]) -> Option<Ran> {
    let alone = Command::new(&fixture.program)
        .args(words)
        .envs(variables.iter().copied())
        .output()
        .expect("it was built");
    let keep = Arc::new(Keep::default());
    let mut environment = membound_launch::environment();
    for (name, value) in variables {
        environment.push(format!("{name}={value}").into());
    }
    let options = followed(fixture, &keep);
    let (session, out) = fixture.start_within(options, words, Path::new("/dev/null"), environment);
    let status = match session.wait().expect("it is a child") {
        Change::Ended(status) => status,
        Change::Stopped(signal) => panic!("stopped by {signal}"),
    };
    let report = session.finish();
    if !could_be_patched(&report) {
        return None;
    }
    assert_eq!(status, alone.status, "{words:?}");
    let out = fs::read(out).expect("the shell made it");
    assert_eq!(
        String::from_utf8_lossy(&out),
        String::from_utf8_lossy(&alone.stdout),
        "{words:?}"
    );
    Some(Ran { keep, report })
}

impl Kept {
    /// Replays all events of blocks (not of mappings) by time: no block may be allocated again before it
    /// was freed. Returns the blocks that were never freed, for each process.
    fn replay(&self) -> BTreeMap<u32, BTreeMap<u64, u64>> {
        let mapping = |function| {
            matches!(
                function,
                AllocationFunction::Mmap | AllocationFunction::Munmap
            )
        };
        let mut sorted: Vec<(u32, AllocationEvent)> = self
            .events
            .iter()
            .filter(|(_, event)| !mapping(event.function))
            .copied()
            .collect();
        sorted.sort_by_key(|(_, event)| (event.tsc, event.action == AllocationAction::Allocated));
        let mut live: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
        for (pid, event) in sorted {
            let blocks = live.entry(pid).or_default();
            if event.action == AllocationAction::Freed {
                blocks.remove(&event.address);
            } else {
                let before = blocks.insert(event.address, event.size);
                assert_eq!(before, None, "{event:x?} of {pid}");
            }
        }
        live
    }

    /// Allocations of this size.
    fn of_size(&self, size: u64) -> usize {
        let events = self.events.iter();
        events
            .filter(|(_, event)| event.action == AllocationAction::Allocated && event.size == size)
            .count()
    }
}

#[test]
fn blocks_of_before_main_and_of_the_very_end_are_followed() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["exit"], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    assert_eq!(kept.lost, 0);
    for size in [7123, 7099, 7055] {
        assert_eq!(kept.of_size(size), 1, "{size}");
    }
    kept.replay();
}

#[test]
fn a_thousand_threads_come_and_go() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["threads", "100", "10"], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    if kept.lost == 0 && kept.sampled == 0 {
        kept.replay();
    }
    let threads: BTreeSet<u32> = kept.events.iter().map(|(_, event)| event.thread).collect();
    // The program's and one more for the shell's image, which is the same thread.
    assert_eq!(
        threads.len(),
        1001,
        "each with its own number; {} events lost",
        kept.lost
    );
}

#[test]
fn more_threads_at_once_than_rings_share_some() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["threads", "2", "300"], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    if kept.lost == 0 && kept.sampled == 0 {
        kept.replay();
    }
    let threads: BTreeSet<u32> = kept.events.iter().map(|(_, event)| event.thread).collect();
    assert_eq!(threads.len(), 601);
}

#[test]
fn children_tell_of_their_own_blocks() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["forks"], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    assert_eq!((kept.lost, kept.sampled), (0, 0));
    kept.replay();
    assert_eq!(kept.of_size(4321), 1);
    assert_eq!(kept.of_size(7777), 20);
    let own: BTreeSet<u32> = kept
        .events
        .iter()
        .filter(|(_, event)| event.size == 7777)
        .map(|(pid, _)| *pid)
        .collect();
    assert_eq!(own.len(), 20, "each child under its own number");
    let block = kept.events.iter().find(|(_, event)| event.size == 4321);
    let block = block.expect("it was counted").1.address;
    let freed = kept.events.iter().filter(|(pid, event)| {
        event.action == AllocationAction::Freed && event.address == block && own.contains(pid)
    });
    assert!(
        freed.count() >= 20,
        "each child has freed the parent's block"
    );
}

#[test]
fn signals_come_while_blocks_are_told_of() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["signals"], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    if kept.lost == 0 && kept.sampled == 0 {
        kept.replay();
        // The shell before it keeps a block for each of its environment's variables.
        let sizes: Vec<&u64> = kept.live.values().collect();
        assert!(
            sizes.len() < 40,
            "what is left is the C library's: {sizes:?}"
        );
    }
}

#[test]
fn a_new_image_begins_anew() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["exec"], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    // The shell's, the program's and the program's again.
    assert_eq!(kept.begun, 3);
    assert_eq!(kept.of_size(7123), 2);
}

#[test]
fn long_jumps_out_of_wrapped_functions_leave_nothing_behind() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = followed(&fixture, &keep);
    let objects = options.objects.as_mut().expect("they are followed");
    objects.others = vec![("pool_take".to_owned(), "pool_give".to_owned())];
    let (report, out) = fixture.run(options, &["jumps"]);
    if !could_be_patched(&report) {
        return;
    }
    assert_eq!(out, "early\njumps 300\n");
    let kept = keep.kept();
    if kept.sampled > 0 {
        inconclusive("events were read so late that only some blocks were reported");
        return;
    }
    let of_pool = |action| {
        let events = kept.events.iter();
        let of_pool = events.filter(move |(_, event)| {
            event.function == AllocationFunction::Other(0) && event.action == action
        });
        of_pool.map(|(_, event)| *event).collect::<Vec<_>>()
    };
    let taken = of_pool(AllocationAction::Allocated);
    // The last hundred are complete, whatever the jumps lost of those before.
    let last: Vec<&AllocationEvent> = taken.iter().rev().take(100).collect();
    let chains: BTreeSet<u32> = last.iter().map(|event| event.chain).collect();
    assert_eq!(last.len(), 100);
    assert_eq!(chains.len(), 1, "not all by the same way: {chains:?}");
    assert!(of_pool(AllocationAction::Freed).len() >= 100);
}

#[test]
fn a_programs_own_allocator_may_be_entered_by_handlers_and_left_by_long_jumps() {
    for options in [&["-fno-builtin"][..], &["-fno-builtin", "-O2", "-fipa-ra"]] {
        let Some(fixture) = Fixture::build_with("blocks_own.c", options) else {
            return;
        };
        let _busy = busy();
        let Some(ran) = compared(&fixture, &[], &[]) else {
            return;
        };
        let kept = ran.keep.kept();
        assert_eq!(kept.of_size(2_000_000), 0, "none of them came back");
        assert_eq!(
            kept.of_size(35_015),
            1,
            "calloc counts, and malloc inside it does not"
        );
        assert_eq!(kept.of_size(71_011), 1);
        let callocs = kept.events.iter().filter(|(_, event)| event.size == 35_015);
        for (_, event) in callocs {
            assert_eq!(event.function, AllocationFunction::Calloc);
        }
        if kept.lost == 0 && kept.sampled == 0 {
            assert_eq!(kept.of_size(20), 50_000);
        }
    }
}

#[test]
fn exceptions_pass_through_wrapped_operators() {
    for own in [
        &["-lstdc++", "-no-pie"][..],
        &["-DOWN_OPERATORS", "-lstdc++", "-no-pie"],
    ] {
        let Some(fixture) = Fixture::build_with("blocks_thrown.cpp", own) else {
            return;
        };
        let _busy = busy();
        let Some(ran) = compared(&fixture, &[], &[]) else {
            return;
        };
        let kept = ran.keep.kept();
        assert_eq!((kept.lost, kept.sampled), (0, 0));
        // Of the operators, not of the malloc calls inside them.
        assert_eq!(kept.of_size(100), 100);
        assert_eq!(kept.of_size(101), 1000);
        assert_eq!(kept.of_size(132), 0);
        let live = kept.replay();
        let left = live.values().flat_map(BTreeMap::values);
        assert!(left.filter(|size| **size == 101).count() == 0);
        for (pid, event) in kept.events.iter().filter(|(_, event)| event.size == 101) {
            let chain = names(&fixture, &kept.chains[&(*pid, event.chain)]);
            assert_eq!(
                chain.last().map(String::as_str),
                Some("_start"),
                "{chain:?}"
            );
        }
    }
}

/// A shared library from the fixtures.
fn library(fixture: &Fixture, source: &str, options: &[&str]) -> Option<String> {
    let code = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/fixtures")
        .join(source);
    let to = fixture.home.path().join("library.so");
    let built = Command::new("gcc")
        .args(["-O1", "-fno-builtin", "-fPIC", "-shared", "-o"])
        .args([&to, &code])
        .args(options)
        .status()
        .expect("the program was built by it");
    assert!(built.success());
    to.to_str().map(str::to_owned)
}

#[test]
fn an_opened_librarys_own_allocator_is_followed() {
    let Some(fixture) = Fixture::build_with("blocks_opened.c", &["-ldl"]) else {
        return;
    };
    let Some(library) = library(&fixture, "blocks_library.c", &["-Wl,-Bsymbolic"]) else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &[&library], &[]) else {
        return;
    };
    let kept = ran.keep.kept();
    assert_eq!(kept.of_size(222), 500);
    assert_eq!(kept.of_size(111), 5);
}

#[test]
fn a_preloaded_allocator_is_followed() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let Some(library) = library(&fixture, "blocks_library.c", &[]) else {
        return;
    };
    let _busy = busy();
    let Some(ran) = compared(&fixture, &["exit"], &[("LD_PRELOAD", &library)]) else {
        return;
    };
    let kept = ran.keep.kept();
    for size in [7123, 7099, 7055] {
        assert_eq!(kept.of_size(size), 1, "{size}");
    }
    assert!(ran.report.missed.is_empty(), "{:?}", ran.report.missed);
}

#[test]
fn well_known_allocators_are_followed() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    for name in [
        "libjemalloc.so.2",
        "libmimalloc.so.2",
        "libtcmalloc_minimal.so.4",
    ] {
        let path = format!("/usr/lib/x86_64-linux-gnu/{name}");
        if !Path::new(&path).exists() {
            skipped(format_args!("{name} is not installed"));
            continue;
        }
        for words in [
            &["churn"][..],
            &["threads", "10", "10"],
            &["forks"],
            &["exit"],
        ] {
            let Some(ran) = compared(&fixture, words, &[("LD_PRELOAD", &path)]) else {
                return;
            };
            let kept = ran.keep.kept();
            assert_eq!(kept.of_size(7123), 1, "{name}");
            if kept.lost == 0 && kept.sampled == 0 {
                kept.replay();
            }
        }
    }
}

#[test]
fn programs_of_musl_are_followed() {
    let _busy = busy();
    let Some(fixture) = Fixture::build_by("musl-gcc", "blocks_hazards.c", &[]) else {
        return;
    };
    for words in [
        &["churn"][..],
        &["threads", "10", "10"],
        &["forks"],
        &["exit"],
        &["signals"],
    ] {
        let Some(ran) = compared(&fixture, words, &[]) else {
            return;
        };
        let kept = ran.keep.kept();
        assert_eq!(kept.of_size(7123), 1, "{words:?}");
        if kept.lost == 0 && kept.sampled == 0 {
            kept.replay();
        }
    }
}

#[test]
fn where_there_are_too_many_some_are_followed_and_none_stays_for_ever() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    let keep = Arc::new(Keep::default());
    let mut options = followed(&fixture, &keep);
    let objects = options.objects.as_mut().expect("they are followed");
    objects.every_from_bytes = FLOODED;
    // No share of the time pays for them, so that some are sampled however fast this machine is.
    objects.max_overhead = 0.0;
    let (report, _) = fixture.run(options, &["flood"]);
    if !could_be_patched(&report) {
        return;
    }
    let kept = keep.kept();
    assert!(kept.sampled > 0, "the launcher kept up with the program");
    assert!(kept.events.iter().any(|(_, event)| event.weight > 1.0));
    // At the longest interval, blocks of a quarter of it are certain.
    let certain = FLOODED.max(1 << 18);
    for (_, event) in &kept.events {
        assert!(event.weight == 1.0 || event.size < certain, "{event:?}");
    }
    // The program has freed everything; the C library keeps a few blocks, and lost events are missing.
    let left = kept.live.len() as u64;
    assert!(
        left <= 200 + kept.lost,
        "{left} are left, {} were lost",
        kept.lost
    );
}

#[test]
fn wrapped_functions_whose_every_access_is_patched_work_as_before() {
    let Some(fixture) = Fixture::build("blocks_hazards.c") else {
        return;
    };
    let _busy = busy();
    for body in [Body::Count { exact: false }, Body::Rubbish] {
        let keep = Arc::new(Keep::default());
        let mut options = followed(&fixture, &keep);
        options.plan = patch::Options::new(body);
        let (report, out) = fixture.run(options, &["churn"]);
        if !could_be_patched(&report) {
            return;
        }
        let alone = Command::new(&fixture.program)
            .arg("churn")
            .output()
            .unwrap();
        assert_eq!(out.as_bytes(), alone.stdout);
        let kept = keep.kept();
        let told = kept.events.len();
        assert!(told > 10_000, "{told} {} {}", kept.lost, kept.sampled);
    }
}
