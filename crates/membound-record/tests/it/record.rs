//! Programs that are recorded from their start, and report what they did.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use membound_launch::{Change, Program};
use membound_record::perf::{Config, Sampler};
use membound_record::{Ended, Options, Over, Recorder, Summary, TimerChoice, Watch};
use membound_run::{
    Executions, FrameId, Object, ObjectClass, RunData, Sample, SiteId, SiteKind, StackId, TimerKind,
};
use membound_testkit::skipped;

use crate::fixture::{Fixture, busy};

/// A run of a fixture.
struct Recorded {
    data: RunData,
    summary: Summary,
    /// What it printed.
    out: String,
    program: PathBuf,
    _fixture: Fixture,
}

fn options(path: PathBuf) -> Options {
    Options {
        directory: std::env::temp_dir(),
        ..Options::new(path)
    }
}

/// Records `wait.c` with `words`; the shell that redirects its output becomes it.
fn record(words: &[&str], change: impl FnOnce(&mut Options)) -> Option<Recorded> {
    record_fixture(Fixture::build("wait.c")?, words, change)
}

fn record_fixture(
    fixture: Fixture,
    words: &[&str],
    change: impl FnOnce(&mut Options),
) -> Option<Recorded> {
    let home = fixture
        .program
        .parent()
        .expect("it lies in a directory")
        .to_owned();
    let (out, path) = (home.join("out"), home.join("run"));
    let mut options = options(path.clone());
    change(&mut options);
    let script = format!("exec \"$0\" \"$@\" > {}", out.display());
    let mut arguments = vec![
        "-c".into(),
        script.into(),
        fixture.program.clone().into_os_string(),
    ];
    arguments.extend(words.iter().map(Into::into));
    let program = Program {
        name: "sh".into(),
        arguments,
        search: std::env::var_os("PATH"),
        environment: membound_launch::environment(),
    };
    let recorder = match Recorder::launch(&program, options) {
        Ok(recorder) => recorder,
        Err(membound_record::Error::Timer { reason }) => {
            skipped(reason);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let session = recorder.session().expect("it was started");
    let Change::Ended(status) = session.wait().expect("it is a child") else {
        panic!("it was stopped");
    };
    use std::os::unix::process::ExitStatusExt;
    let ended = match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (_, signal) => Ended::Killed(signal.unwrap_or(0)),
    };
    let summary = recorder.finish(ended).expect("the disk is not full");
    assert_eq!(summary.path, path);
    let data = RunData::open(&path).expect("it was just written");
    assert!(data.meta.complete);
    Some(Recorded {
        data,
        summary,
        out: fs::read_to_string(out).unwrap_or_default(),
        program: fixture.program.clone(),
        _fixture: fixture,
    })
}

/// Builds and records a program with a [`generous`] budget; `None` if it cannot be patched here.
fn record_patched(source: &str, arguments: &[&str]) -> Option<Recorded> {
    let fixture = Fixture::build_with(source, arguments)?;
    let _busy = busy();
    let recorded = record_fixture(fixture, &[], generous)?;
    recorded.patched().then_some(recorded)
}

impl Recorded {
    fn patched(&self) -> bool {
        let gap = self.data.gaps.iter().find(|gap| {
            gap.about == "latencies"
                && ["not permitted", "Permission denied", "no agent for"]
                    .iter()
                    .any(|why| gap.reason.contains(why))
        });
        if let Some(gap) = gap {
            skipped(&gap.reason);
        }
        gap.is_none()
    }

    /// The outermost function's name at a frame.
    fn function(&self, frame: FrameId) -> &str {
        let of_frame = self.data.locations.iter().filter(|it| it.frame == frame);
        let outermost = of_frame.max_by_key(|it| it.depth);
        outermost.map_or("", |location| &location.function)
    }

    /// Names of a chain's functions, innermost first.
    fn chain(&self, stack: StackId) -> Vec<&str> {
        let mut names = Vec::new();
        let mut next = Some(stack);
        while let Some(id) = next {
            let stack = self.data.stacks[id.index()];
            names.push(self.function(stack.frame));
            next = stack.parent;
        }
        names
    }

    fn leaf(&self, sample: &Sample) -> FrameId {
        self.data.stacks[sample.stack.index()].frame
    }

    /// CPU time by the sampled function.
    fn time_by_function(&self) -> BTreeMap<String, u64> {
        let mut names: HashMap<FrameId, String> = HashMap::new();
        let mut times = BTreeMap::new();
        for sample in &self.data.samples {
            let leaf = self.leaf(sample);
            let name = names
                .entry(leaf)
                .or_insert_with(|| self.function(leaf).to_owned());
            *times.entry(name.clone()).or_default() += sample.weight_ns;
        }
        times
    }

    /// Numbers after a word that the program printed, from every line with it.
    fn said(&self, word: &str) -> Vec<Vec<u64>> {
        let lines = self.out.lines().filter_map(|line| line.strip_prefix(word));
        lines
            .map(|line| {
                let words = line.split_whitespace();
                words
                    .map(|word| match word.strip_prefix("0x") {
                        Some(digits) => u64::from_str_radix(digits, 16).expect("a number"),
                        None => word.parse().expect("a number"),
                    })
                    .collect()
            })
            .collect()
    }

    /// The load of `chase`.
    fn chase_site(&self) -> Option<SiteId> {
        self.load_of("chase")
    }

    /// The first load of the function `name`.
    fn load_of(&self, name: &str) -> Option<SiteId> {
        let loads = |site: &membound_run::Site| {
            site.kind == SiteKind::Load && self.function(site.frame) == name
        };
        let at = self.data.sites.iter().position(loads)?;
        Some(SiteId(u32::try_from(at).expect("there are few")))
    }

    /// The median latency of loads of `site` at addresses that are `wanted`, in ticks beyond the hit just
    /// before.
    fn usual_ticks(&self, site: SiteId, wanted: impl Fn(u64) -> bool) -> i64 {
        let of_site = self.data.accesses.iter();
        let of_site = of_site.filter(|it| it.site == site && wanted(it.address));
        let beyond = |it: &membound_run::Access| Some(i64::from(it.ticks?) - i64::from(it.hit?));
        let mut ticks: Vec<i64> = of_site.filter_map(beyond).collect();
        ticks.sort_unstable();
        assert!(ticks.len() >= 20, "{} timed", ticks.len());
        ticks[ticks.len() / 2]
    }

    /// Share of the samples whose function is `name` that are attributed to `site`.
    fn attributed(&self, name: &str, site: SiteId) -> f64 {
        let (mut all, mut attributed) = (0.0, 0.0);
        for sample in &self.data.samples {
            let leaf = self.leaf(sample);
            if self.function(leaf) != name {
                continue;
            }
            let weight = sample.weight_ns as f64;
            all += weight;
            let of_leaf = self.data.attributions.iter().filter(|it| it.frame == leaf);
            let share: f64 = of_leaf
                .filter(|it| it.site == Some(site))
                .map(|it| it.share)
                .sum();
            attributed += weight * share;
        }
        attributed / all
    }

    /// Executions of a site while the program worked, from its counts and the CPU time that they cover; and
    /// the relative standard error, from the variation between windows.
    fn executions(&self, site: SiteId) -> (f64, f64) {
        let of_site = || self.data.executions.iter().filter(|it| it.site == site);
        let counted: u64 = of_site().map(|it| it.count).sum();
        let covered: u64 = of_site().map(|it| it.cpu_ns).sum();
        let times = self.time_by_function();
        let worked: u64 = ["chase", "compute"]
            .iter()
            .filter_map(|it| times.get(*it))
            .sum();
        let rate = counted as f64 / covered as f64;
        // Of a ratio of sums (Cochran 1977, 6.4).
        let squares = of_site().map(|it| (it.count as f64 - rate * it.cpu_ns as f64).powi(2));
        let windows = of_site().count() as f64;
        if windows < 2.0 {
            // Where the program has every processor, the budget may leave room for one window only,
            // which does not show how windows differ.
            return (rate * worked as f64, 1.0);
        }
        let error = (squares.sum::<f64>() * windows / (windows - 1.0)).sqrt() / counted as f64;
        (rate * worked as f64, error)
    }

    /// Compares the counted executions of a site with the program's own count. Windows see only a part of a
    /// program whose cache other programs use; the run states that uncertainty, and the bounds of the time
    /// that its patches took.
    fn check_executions(&self, site: SiteId, truth: f64) {
        const SYSTEMATIC: f64 = 0.1;
        let (counted, error) = self.executions(site);
        let of_site = || self.data.executions.iter().filter(|it| it.site == site);
        let cpu_ns: u64 = of_site().map(|it| it.cpu_ns).sum();
        let bound = |of: fn(&Executions) -> Option<u64>| {
            let bound_ns: u64 = of_site().map(|it| of(it).unwrap_or(it.cpu_ns)).sum();
            counted * cpu_ns as f64 / bound_ns as f64
        };
        let (low, high) = (bound(|it| it.most_cpu_ns), bound(|it| it.least_cpu_ns));
        let beside = SYSTEMATIC + 3.0 * error;
        assert!(
            truth > low * (1.0 - beside) && truth < high * (1.0 + beside),
            "{counted} of {truth}, error {error}: {:?} {:?}",
            self.data.executions,
            self.time_by_function()
        );
    }

    /// The object of the chased cells.
    fn cells(&self) -> Option<&Object> {
        let said = self.said("cells");
        let range = said.first()?;
        self.data
            .objects
            .iter()
            .find(|it| it.kind == ObjectClass::Heap && it.address == range[0])
    }
}

#[test]
fn samples_latencies_and_objects_of_a_chase_are_where_they_should_be() {
    let _busy = busy();
    let Some(run) = record(&["work", "2"], |_| ()) else {
        return;
    };
    assert_eq!(run.data.meta.exit_code, Some(3));
    assert_eq!(run.summary.samples, run.data.samples.len() as u64);
    let times = run.time_by_function();
    let total: u64 = times.values().sum();
    let taken: u64 = run.data.threads.iter().filter_map(|it| it.cpu_ns).sum();
    let share = total as f64 / taken as f64;
    assert!(
        (0.85..1.15).contains(&share),
        "{total} of {taken}: {:?}",
        run.data.gaps
    );
    let chase = times.get("chase").copied().unwrap_or(0);
    let compute = times.get("compute").copied().unwrap_or(0);
    // A hop is a miss; a turn is a multiplication and an addition.
    assert!(chase > compute * 4, "{times:#?}");
    let sample = run
        .data
        .samples
        .iter()
        .find(|it| run.function(run.leaf(it)) == "chase")
        .unwrap();
    let chain = run.chain(sample.stack);
    assert!(chain.len() >= 3, "{chain:?}");
    assert_eq!(chain[..1], ["chase"]);
    assert!(chain.contains(&"main"), "{chain:?}");
    let site = run.chase_site().expect("chase was sampled");
    let attributed = run.attributed("chase", site);
    assert!(attributed > 0.9, "{attributed}");
    if !run.patched() {
        return;
    }
    let accesses: Vec<_> = run
        .data
        .accesses
        .iter()
        .filter(|it| it.site == site)
        .collect();
    assert!(
        accesses.len() > 500,
        "{} {:#?}",
        accesses.len(),
        run.data.gaps
    );
    let said = run.said("cells");
    let (start, end) = (said[0][0], said[0][0] + said[0][1]);
    assert!(accesses.iter().all(|it| (start..end).contains(&it.address)));
    assert!(accesses.iter().all(|it| it.ticks.is_some() && !it.store));
    // The program's own count of hops, without those that it made while counting.
    run.check_executions(site, run.said("hops")[0][0] as f64);
    let Some(cells) = run.cells() else {
        panic!("the cells are no object: {:#?}", run.data.objects);
    };
    assert_eq!(
        (cells.size_bytes, cells.name.as_str()),
        (said[0][1], "malloc")
    );
    let chain = run.chain(cells.stack.expect("it was allocated"));
    assert_eq!(chain[..2], ["grab", "make_cells"], "{chain:?}");
    assert!(chain.contains(&"main"), "{chain:?}");
    assert!(cells.freed_ns.is_some());
    let in_cells = |object: Option<membound_run::ObjectId>| {
        object.is_some_and(|id| std::ptr::eq(&raw const run.data.objects[id.index()], cells))
    };
    // The bursts have all accesses of the loop in order.
    let bursts: Vec<_> = run
        .data
        .bursts
        .iter()
        .filter(|it| it.sites.contains(&site))
        .collect();
    assert!(!bursts.is_empty());
    for burst in bursts {
        assert!(burst.accesses.len() >= 64);
        let inside = burst
            .accesses
            .iter()
            .filter(|it| (start..end).contains(&it.1))
            .count();
        assert!(
            inside * 2 > burst.accesses.len(),
            "{inside} of {}",
            burst.accesses.len()
        );
    }
    // The loop's block runs as often as its load.
    let load = run.data.frames[run.data.sites[site.index()].frame.index()];
    let counted_blocks: Vec<_> = run.data.blocks.iter().filter(|it| it.count > 0).collect();
    let looped = counted_blocks.iter().any(|it| {
        let block = run.data.frames[it.frame.index()];
        let range = block.address..block.address + u64::from(it.length);
        block.module == load.module && range.contains(&load.address)
    });
    assert!(looped, "{:?} {:?}", run.data.blocks, run.data.gaps);
    let inside = accesses.iter().filter(|it| in_cells(it.object)).count();
    assert!(
        inside * 100 >= accesses.len() * 98,
        "{inside} of {}",
        accesses.len()
    );
}

/// A recorder without optimizations costs ten times as much, and few windows would fit into the usual budget.
fn generous(options: &mut Options) {
    options.max_overhead = 0.5;
}

#[test]
fn a_load_whose_address_is_known_early_takes_as_long_as_any_other() {
    let _busy = busy();
    let Some(run) = record(&["early", "3"], generous) else {
        return;
    };
    if !run.patched() {
        return;
    }
    let load = |name: &str| run.load_of(name).expect("its load was sampled");
    let chased = run.usual_ticks(load("chase"), |_| true);
    // Probes that each have a line of their own, 2 million of 64 bytes in all.
    let start = run.said("sorted")[0][0];
    let own_line = |address: u64| (address.wrapping_sub(start) / 4) % 32 == 16;
    let searched = run.usual_ticks(load("search"), own_line);
    // Nothing fetches the line of a timed load while its timing is prepared. A probe finds its page where the one
    // before it was, and a chase does not.
    assert!(searched * 4 > chased, "{searched} of {chased}");
}

/// A thread's timer begins with it, and these threads end before.
#[test]
fn threads_shorter_than_the_period_are_sampled_with_their_processors() {
    let _busy = busy();
    let words = ["brief", "3000"];
    let alone = |options: &mut Options| options.latencies = membound_record::Latencies::Off;
    let Some(run) = record(&words, alone) else {
        return;
    };
    let own = Sampler::for_children(&Config::default());
    if !own.is_ok_and(|it| it.samples_processors()) {
        skipped("the kernel does not permit samples of processors");
        return;
    }
    let threads = run.data.threads.iter();
    let counted_ns: u64 = threads.filter_map(|it| it.cpu_ns).sum();
    let in_compute = run.data.samples.iter().filter(|sample| {
        let function = run.function(run.leaf(sample));
        function == "compute"
    });
    let sampled_ns: u64 = in_compute.map(|sample| sample.weight_ns).sum();
    // Until it was found that threads are too short, nothing was sampled.
    assert!(
        sampled_ns * 4 > counted_ns && sampled_ns < counted_ns * 11 / 10,
        "{sampled_ns} of {counted_ns}"
    );
}

#[test]
fn two_threads_are_told_apart_and_counted_truly() {
    let _busy = busy();
    let Some(run) = record(&["threads", "2"], generous) else {
        return;
    };
    let site = run.chase_site().expect("chase was sampled");
    let sampled: BTreeMap<u32, u64> =
        run.data
            .samples
            .iter()
            .fold(BTreeMap::new(), |mut sums, sample| {
                if run.function(run.leaf(sample)) == "chase" {
                    let tid = run.data.threads[sample.thread.index()].tid;
                    *sums.entry(tid).or_default() += sample.weight_ns;
                }
                sums
            });
    assert_eq!(sampled.len(), 2, "{sampled:?}");
    if !run.patched() {
        return;
    }
    let accesses = run.data.accesses.iter().filter(|it| it.site == site);
    let threads: std::collections::BTreeSet<_> = accesses.map(|it| it.thread).collect();
    assert_eq!(threads.len(), 2);
    let hops: u64 = run.said("hops").iter().map(|it| it[0]).sum();
    run.check_executions(site, hops as f64);
    let heaps: Vec<_> = run.said("cells").iter().map(|it| it[0]).collect();
    let found = |start: &u64| run.data.objects.iter().any(|it| it.address == *start);
    assert!(
        heaps.iter().all(found),
        "{heaps:x?} {:#x?}",
        run.data.objects
    );
}

#[test]
fn threads_that_share_a_line_are_caught_by_watchpoints() {
    let _busy = busy();
    let Some(run) = record(&["shares"], |options| options.watch = Watch::On) else {
        return;
    };
    let line = run.said("line")[0][0];
    let hit = |at: u64| {
        let hits = run.data.watched.iter();
        let here = hits.filter(|it| it.address == at && run.function(it.frame).contains("add"));
        here.map(|it| it.thread)
            .collect::<std::collections::BTreeSet<_>>()
    };
    if run.data.watched.is_empty() && run.data.gaps.iter().any(|it| it.about == "watchpoints") {
        skipped(format_args!("{:?}", run.data.gaps));
        return;
    }
    let (one, other) = (hit(line), hit(line + 8));
    assert_eq!((one.len(), other.len()), (1, 1), "{:?}", run.data.watched);
    assert!(one.is_disjoint(&other));
    let object = run.data.objects.iter().find(|it| it.address == line);
    assert!(
        object.is_some_and(|it| it.size_bytes == 64),
        "{:?}",
        run.data.objects
    );
}

#[test]
fn many_forks_are_followed_and_what_they_exit_with_stays() {
    let _busy = busy();
    let Some(run) = record(&["forks", "0", "100"], |_| ()) else {
        return;
    };
    assert_eq!(run.data.meta.exit_code, Some(3), "{:?}", run.data.gaps);
    // The shell, what it becomes, and its children.
    let forked = run.data.processes.len();
    assert!(forked >= 102, "{forked}");
    let times = run.time_by_function();
    assert!(times.contains_key("compute"), "{times:?}");
}

#[test]
fn a_killed_program_leaves_what_was_recorded() {
    let _busy = busy();
    let Some(run) = record(&["killed", "0.5"], |_| ()) else {
        return;
    };
    assert_eq!(run.data.meta.signal, Some(libc::SIGKILL));
    assert!(run.time_by_function().contains_key("chase"));
}

#[test]
fn a_program_that_removes_itself_and_closes_everything_is_recorded() {
    let _busy = busy();
    let Some(run) = record(&["unlinked", "1"], |_| ()) else {
        return;
    };
    assert_eq!(run.data.meta.exit_code, Some(3));
    assert!(!run.program.exists());
    assert!(
        run.time_by_function().contains_key("chase"),
        "{:?}",
        run.data.gaps
    );
    // A file without a name cannot be patched, and the run says so.
    if run.patched() {
        let site = run.chase_site().expect("chase was sampled");
        assert!(run.data.sites[site.index()].refused.is_some());
        let told = run.data.gaps.iter().any(|gap| gap.about == "latencies");
        assert!(told, "{:?} {:?}", run.data.gaps, run.data.sites);
    }
}

#[test]
fn a_static_program_is_sampled_and_says_why_no_more_is_known() {
    let _busy = busy();
    let Some(fixture) = Fixture::build_with("wait.c", &["-static"]) else {
        return;
    };
    let Some(run) = record_fixture(fixture, &["work", "0.5"], |_| ()) else {
        return;
    };
    assert_eq!(run.data.meta.exit_code, Some(3));
    assert!(run.time_by_function().contains_key("chase"));
    let told = |about: &str| {
        let static_one = |gap: &&membound_run::Gap| gap.reason.contains("statically linked");
        let mut gaps = run.data.gaps.iter().filter(static_one);
        gaps.any(|gap| gap.about == about)
    };
    assert!(told("objects") && told("latencies"), "{:#?}", run.data.gaps);
}

#[test]
fn the_agent_s_timers_serve_where_perf_is_not_wanted() {
    let _busy = busy();
    let agent = |options: &mut Options| options.timer = TimerChoice::Agent;
    let Some(run) = record(&["work", "2"], agent) else {
        return;
    };
    if !run.patched() {
        return;
    }
    assert_eq!(run.data.meta.timer, TimerKind::AgentTimer);
    let times = run.time_by_function();
    let chase = times.get("chase").copied().unwrap_or(0);
    let total: u64 = times.values().sum();
    assert!(chase * 10 > total * 7, "{times:#?} {:#?}", run.data.gaps);
    let taken: u64 = run.data.threads.iter().filter_map(|it| it.cpu_ns).sum();
    let share = total as f64 / taken as f64;
    assert!((0.7..1.15).contains(&share), "{total} of {taken}");
    let in_chase = |sample: &&Sample| run.function(run.leaf(sample)) == "chase";
    let sample = run
        .data
        .samples
        .iter()
        .find(in_chase)
        .expect("it was sampled");
    assert!(run.chain(sample.stack).contains(&"main"));
    assert!(!run.data.accesses.is_empty(), "{:#?}", run.data.gaps);
}

#[test]
fn a_run_that_cannot_be_written_is_refused_before_the_program_starts() {
    let home = tempfile::tempdir().expect("a directory can be made");
    let mark = home.path().join("ran");
    let program = Program {
        name: "touch".into(),
        arguments: vec![mark.clone().into_os_string()],
        search: std::env::var_os("PATH"),
        environment: membound_launch::environment(),
    };
    let options = options(home.path().join("no/such/run"));
    let refused = Recorder::launch(&program, options).expect_err("there is no such directory");
    assert!(
        matches!(refused, membound_record::Error::Output { .. }),
        "{refused}"
    );
    assert!(!mark.exists());
}

#[test]
fn a_process_that_runs_is_sampled_until_it_ends_or_time_is_over() {
    let _busy = busy();
    let Some(fixture) = Fixture::build("wait.c") else {
        return;
    };
    let home = tempfile::tempdir().expect("a directory can be made");
    let running = fixture.start(&["work", "3"]);
    let pid = running.pid();
    let mut limited = options(home.path().join("short"));
    limited.duration = Some(Duration::from_millis(700));
    let recorder = match Recorder::attach(pid, limited) {
        Ok(recorder) => recorder,
        Err(error) => {
            skipped(error);
            return;
        }
    };
    assert_eq!(recorder.wait_attached(), Over::Elapsed);
    let short = recorder
        .finish(Ended::Detached)
        .expect("the disk is not full");
    let recorder = Recorder::attach(pid, options(home.path().join("rest")));
    let recorder = recorder.expect("it was permitted before");
    assert_eq!(recorder.wait_attached(), Over::Gone);
    let rest = recorder
        .finish(Ended::Detached)
        .expect("the disk is not full");
    drop(running);
    for summary in [&short, &rest] {
        let data = RunData::open(&summary.path).expect("it was just written");
        assert!(!data.samples.is_empty());
        let named = |name: &str| data.locations.iter().any(|it| it.function == name);
        assert!(named("chase"), "{:?}", data.gaps);
        assert!(data.gaps.iter().any(|gap| gap.about == "objects"));
    }
    assert!(matches!(
        Recorder::attach(pid, options(home.path().join("late"))),
        Err(membound_record::Error::Attach { .. })
    ));
}

/// A loop that waits for nothing takes as long in its program as its copy does in membound.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_hot_loop_is_measured_in_the_first_cache() {
    let Some(fixture) = Fixture::build_with("copy.c", &["-O1"]) else {
        return;
    };
    let _busy = busy();
    let Some(recorded) = record_fixture(fixture, &[], |options| {
        options.latencies = membound_record::Latencies::Off
    }) else {
        return;
    };
    let numbers: Vec<f64> = recorded
        .out
        .split_whitespace()
        .map(|word| word.parse().expect("it prints numbers"))
        .collect();
    let in_program = numbers[1] / numbers[0];
    let of_add = recorded
        .data
        .loops
        .iter()
        .filter(|row| row.level == 0 && recorded.function(row.frame) == "add");
    let cached: Vec<Option<f64>> = of_add.map(|row| row.cached_ns).collect();
    assert!(!cached.is_empty());
    for cached in cached {
        let cached = cached.expect("it can be executed apart from its program");
        let ratio = in_program / cached;
        // Another guest of the machine may slow one of them.
        assert!((0.5..3.0).contains(&ratio), "{in_program} ns, {cached} ns");
    }
}

/// Samples do not show stores, which take lines away from other threads: they are timed with the loads beside them.
#[test]
fn stores_beside_a_load_that_waits_for_another_thread_are_timed() {
    let Some(recorded) = record_patched("queue.c", &["-O1", "-pthread"]) else {
        return;
    };
    assert_eq!(recorded.out, "1\n");
    let data = &recorded.data;
    let stores = data.accesses.iter().filter(|access| {
        let site = &data.sites[access.site.index()];
        site.kind == SiteKind::Store && recorded.function(site.frame) == "take_all"
    });
    assert!(stores.count() > 10);
}

/// Patches slow an inner loop while they count it. The block around it is counted apart from it, which slows nothing.
#[test]
fn blocks_around_a_loop_are_counted_at_the_program_s_own_speed() {
    let Some(recorded) = record_patched("nested.c", &["-O1"]) else {
        return;
    };
    let of_multiply = || {
        let blocks = recorded.data.blocks.iter();
        blocks.filter(|row| recorded.function(row.frame) == "multiply")
    };
    let (mut slowed, mut alone): (Windows, Windows) = Default::default();
    for row in of_multiply() {
        let (all, least) = (row.cpu_ns.unwrap_or(0), row.least_cpu_ns.unwrap_or(0));
        let windows = match all > 0 && least as f64 > 0.96 * all as f64 {
            true => &mut alone,
            false => &mut slowed,
        };
        let counts = windows.entry((row.from_ns, row.to_ns)).or_default();
        counts.push((row.count, all));
    }
    let most = |counts: &[(u64, u64)]| counts.iter().copied().max().expect("there are blocks");
    let (rows, cpu_ns) = (alone.values().map(|counts| most(counts)))
        .fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
    assert!(rows > 1000, "{alone:?} {slowed:?} {:?}", recorded.data.gaps);
    // A window may have been open while the program had not begun, or had ended.
    slowed.retain(|_, counts| most(counts).0 > 0);
    assert!(!slowed.is_empty(), "{:?}", recorded.data.gaps);
    for counts in slowed.values() {
        let rows = counts.iter().filter(|it| it.0 < most(counts).0 / 100);
        let rows = rows.map(|it| it.0).max().unwrap_or(0);
        let each = most(counts).0 as f64 / rows as f64;
        assert!((495.0..505.0).contains(&each), "{counts:?}");
    }
    let shortest_ns: f64 = recorded.out.trim().parse().expect("it prints a number");
    let ratio = cpu_ns as f64 / rows as f64 / shortest_ns;
    // Another guest of the machine may slow the program for a while.
    assert!((0.8..2.0).contains(&ratio), "{ratio}: {alone:?}");
}

/// Executions of the blocks that were counted in a window, and its CPU time in nanoseconds, by its start and end.
type Windows = BTreeMap<(u64, u64), Vec<(u64, u64)>>;
