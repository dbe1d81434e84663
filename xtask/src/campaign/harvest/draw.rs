//! The description of a run, drawn from its seed and from nothing else.

use std::time::Duration;

use membound_testkit::Random;

/// One run of the campaign.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The seed from which everything is drawn.
    pub(super) seed: u64,
    pub(super) primary: Primary,
    pub(super) scavengers: Vec<Scavenger>,
    /// Options of `membound harvest run`.
    pub(super) options: Vec<String>,
    /// Number of loads in 1000 that yield, in the primary and in scavengers.
    pub(super) densities: [u64; 2],
    /// Mean time between two signals from outside; `None` if none are sent.
    pub(super) signals: Option<Duration>,
    /// Time after which the primary is killed, and the signal.
    pub(super) killed: Option<(Duration, i32)>,
}

/// The program whose stalls are harvested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Primary {
    /// Its name: of a program of `bench/harvest/`, or of a fixture.
    pub(super) name: &'static str,
    pub(super) words: Vec<String>,
    /// Disturbances that it makes itself, as `bench/harvest/storm.c` reads them.
    pub(super) storm: Option<Storm>,
}

/// Disturbances that `bench/harvest/storm.c` adds to a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storm {
    /// Signals that it handles, and signals that it ignores.
    pub(super) handled: Vec<i32>,
    pub(super) ignored: Vec<i32>,
    flags: u64,
    real_us: u64,
    prof_us: u64,
    threads: u64,
}

/// A program that runs in the primary's stalls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scavenger {
    pub(super) name: &'static str,
    pub(super) words: Vec<String>,
    /// Whether it is built as a shared object.
    pub(super) is_object: bool,
    pub(super) end: End,
    /// Whether its output is the same in every run.
    pub(super) is_known: bool,
}

/// Signals that the programs do not use otherwise.
const SIGNALS: [i32; 10] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGPROF,
    libc::SIGVTALRM,
    libc::SIGHUP,
    libc::SIGWINCH,
    libc::SIGURG,
    libc::SIGIO,
    // A real-time signal, of which none is dropped.
    37,
];

/// Fixtures that are primaries, with their arguments.
const FIXTURES: [(&str, &str); 38] = [
    ("processes.c", "fork"),
    ("processes.c", "vfork"),
    ("processes.c", "vfork-exec"),
    ("processes.c", "spawn"),
    ("processes.c", "exec"),
    ("threads.c", "churn"),
    ("threads.c", "detached"),
    ("threads.c", "exit"),
    ("threads.c", "cancel"),
    ("threads.c", "many"),
    ("threads.c", "blocking"),
    ("exceptions.cc", ""),
    ("state.c", "flags"),
    ("state.c", "vectors"),
    ("state.c", "redzone"),
    ("state.c", "rounding"),
    ("state.c", "recursion"),
    ("signals.c", "storm"),
    ("signals.c", "jump-onstack"),
    ("signals.c", "yields-masked"),
    ("signals.c", "blocked"),
    ("victim.c", "300"),
    ("ends.c", "exit"),
    ("ends.c", "thread"),
    ("ends.c", "killed"),
    ("ends.c", "abort"),
    ("ends.c", "load"),
    ("signals.c", "children"),
    ("changes.c", "descriptors"),
    ("changes.c", "limits"),
    ("changes.c", "user"),
    ("changes.c", "first"),
    ("filters.c", "all"),
    ("filters.c", "own"),
    ("filters.c", "computing"),
    ("filters.c", "waiting"),
    ("filters.c", "both"),
    ("filters.c", "vfork"),
];

/// How a program ends by itself: with an exit code or by a signal; `None` if it does not.
type End = Option<Result<i32, i32>>;

/// Modes of the scavengers' fixture: how they end, and whether their output is the same in every
/// run.
const MODES: [(&str, End, bool); 19] = [
    ("work", Some(Ok(0)), true),
    ("exit", Some(Ok(7)), true),
    ("abort", Some(Err(libc::SIGABRT)), true),
    ("fault", Some(Err(libc::SIGSEGV)), true),
    ("yielding-fault", Some(Err(libc::SIGSEGV)), true),
    ("divide", Some(Err(libc::SIGFPE)), true),
    ("illegal", Some(Err(libc::SIGILL)), true),
    ("overflow", Some(Err(libc::SIGSEGV)), true),
    ("forever", None, false),
    ("stubborn", None, false),
    ("tls", Some(Ok(0)), true),
    ("calls", Some(Ok(0)), true),
    ("vectors", Some(Ok(0)), true),
    ("rounding", Some(Ok(0)), true),
    // The calls that are refused in a harvest succeed alone.
    ("refused", Some(Ok(0)), false),
    ("load", Some(Ok(0)), true),
    ("eat", Some(Ok(0)), false),
    ("breakpoint", Some(Err(libc::SIGTRAP)), true),
    ("hunger", Some(Ok(0)), false),
];

/// Modes of a scavenger that interferes with its process; alone, it would really do so.
const INTERFERENCE: [&str; 12] = [
    "interval",
    "timer",
    "wait",
    "waitid",
    "take",
    "descriptor",
    "poll",
    "select",
    "epoll",
    "pidfd",
    "owner",
    "affinity",
];

impl Case {
    /// The run of this seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let primary = Primary::draw(random);
        let finish = random.once_in(3);
        let count = random.between(1, 4);
        let scavengers = (0..count)
            .map(|_| Scavenger::draw(random, finish))
            .collect();
        let densities = [(); 2].map(|()| *random.pick(&[1000, 500, 100, 30]));
        let signals = primary
            .storm
            .as_ref()
            .filter(|storm| !storm.handled.is_empty() || !storm.ignored.is_empty())
            .map(|_| Duration::from_micros(*random.pick(&[50, 200, 1000, 5000])));
        let killed = random.once_in(8).then(|| {
            let after = Duration::from_millis(random.between(1, 700));
            let by = *random.pick(&[libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGQUIT]);
            (after, by)
        });
        Self {
            seed,
            primary,
            scavengers,
            options: options(random, finish),
            densities,
            signals,
            killed,
        }
    }
}

impl Primary {
    fn draw(random: &mut Random) -> Self {
        if random.once_in(3) {
            let (name, word) = *random.pick(&FIXTURES);
            return Self {
                name,
                words: word.split_whitespace().map(str::to_owned).collect(),
                storm: None,
            };
        }
        // Threads of the server block often, so scavengers are stolen from them.
        let name = *random.pick(&["chase", "kv", "join", "server", "server", "other"]);
        let threads = random.between(1, 6);
        let words = match name {
            "chase" => vec![
                threads.to_string(),
                (*random.pick(&["64K", "1M", "8M"])).to_owned(),
                (*random.pick(&["own", "shared"])).to_owned(),
                (random.between(200, 2000) * 1000 / threads).to_string(),
                "4k".to_owned(),
            ],
            "kv" => vec![
                (*random.pick(&["64K", "1M", "8M"])).to_owned(),
                "50".to_owned(),
                random.between(500, 8000).to_string(),
                "4".to_owned(),
                (*random.pick(&["wait", "spin", "clock"])).to_owned(),
                random.between(3000, 20_000).to_string(),
            ],
            "join" => {
                let rows = 1_u64 << random.between(8, 15);
                vec![
                    rows.to_string(),
                    (rows << random.between(1, 4)).to_string(),
                    threads.min(4).to_string(),
                    random.between(1, 20).to_string(),
                ]
            }
            "server" => vec![
                "both".to_owned(),
                (*random.pick(&["64K", "1M", "8M"])).to_owned(),
                random.between(1, 32).to_string(),
                random.between(300, 3000).to_string(),
                random.between(200, 1500).to_string(),
            ],
            _ => vec![random.between(50_000, 2_000_000).to_string()],
        };
        Self {
            name,
            words,
            storm: (!random.once_in(5)).then(|| {
                let storm = Storm::draw(random);
                // The alternate stacks that Rust's library gives its threads have room for one
                // signal frame: a second signal on them ends a program with or without scavengers.
                if name == "join" {
                    storm.one_at_a_time_on_its_stack()
                } else {
                    storm
                }
            }),
        }
    }

    /// Whether its scavengers end before it does: where it executes another program, or installs a
    /// filter of its system calls.
    pub(super) fn ends_scavengers(&self) -> bool {
        self.name == "processes.c" && self.words == ["exec"] || self.name == "filters.c"
    }

    /// Whether all of its output is known, instead of the lines with certain names only.
    pub(super) fn is_fixture(&self) -> bool {
        self.name.contains('.')
    }
}

impl Storm {
    fn draw(random: &mut Random) -> Self {
        let (mut handled, mut ignored) = (Vec::new(), Vec::new());
        for signal in SIGNALS {
            match random.below(4) {
                0 => {}
                1 => ignored.push(signal),
                _ => handled.push(signal),
            }
        }
        let mut timer = |signal| {
            let is_safe = handled.contains(&signal) || ignored.contains(&signal);
            let period = *random.pick(&[0, 100, 1000, 10_000]);
            if is_safe { period } else { 0 }
        };
        let (real_us, prof_us) = (timer(libc::SIGALRM), timer(libc::SIGPROF));
        Self {
            flags: random.below(16),
            threads: random.between(0, 4).saturating_sub(1),
            handled,
            ignored,
            real_us,
            prof_us,
        }
    }

    /// Makes handlers on an alternate stack block all signals.
    fn one_at_a_time_on_its_stack(mut self) -> Self {
        // Flags of `bench/harvest/storm.c`.
        const ON_STACK: u64 = 1;
        const BLOCK_ALL: u64 = 2;
        if self.flags & ON_STACK != 0 {
            self.flags |= BLOCK_ALL;
        }
        self
    }

    /// A set of signals as the kernel's bit mask.
    pub(super) fn mask(signals: &[i32]) -> u64 {
        signals.iter().map(|signal| 1 << (signal - 1)).sum()
    }

    /// The value of the environment variable.
    pub(super) fn text(&self) -> String {
        format!(
            "{:x} {:x} {} {} {} {}",
            Self::mask(&self.handled),
            Self::mask(&self.ignored),
            self.flags,
            self.real_us,
            self.prof_us,
            self.threads
        )
    }
}

impl Scavenger {
    fn draw(random: &mut Random, finish: bool) -> Self {
        let is_object = random.once_in(4);
        match random.below(5) {
            0 | 1 => {
                let name = *random.pick(&["scan", "schase", "graph", "compute"]);
                let amount = if finish || random.once_in(2) {
                    random.between(1, 300)
                } else {
                    0
                };
                let words = match name {
                    "schase" => vec![
                        "64K".to_owned(),
                        (amount * 256).to_string(),
                        "4k".to_owned(),
                    ],
                    "graph" => vec!["1024".to_owned(), amount.to_string()],
                    _ => vec![amount.to_string()],
                };
                Self {
                    name,
                    words,
                    is_object,
                    end: (amount > 0).then_some(Ok(0)),
                    is_known: amount > 0,
                }
            }
            2 => Self {
                name: "interference.c",
                words: vec![(*random.pick(&INTERFERENCE)).to_owned()],
                is_object,
                end: Some(Ok(0)),
                is_known: false,
            },
            3 if random.once_in(3) => Self {
                name: "exceptions.cc",
                words: Vec::new(),
                is_object: false,
                end: Some(Ok(0)),
                is_known: true,
            },
            _ => {
                let ends: Vec<_> = MODES
                    .into_iter()
                    .filter(|(_, end, _)| end.is_some() || !finish)
                    .collect();
                let (mode, end, is_known) = *random.pick(&ends);
                Self {
                    name: "scavenger.c",
                    words: vec![mode.to_owned()],
                    is_object,
                    end,
                    is_known,
                }
            }
        }
    }
}

fn options(random: &mut Random, finish: bool) -> Vec<String> {
    let mut words = vec![
        "--copies".to_owned(),
        random.between(1, 3).to_string(),
        "--idle".to_owned(),
        (*random.pick(&["harvest", "steal", "stop"])).to_owned(),
    ];
    if random.once_in(2) {
        words.extend(["--per-thread".to_owned(), random.between(1, 5).to_string()]);
    }
    if random.once_in(3) {
        words.extend([
            "--bound-ns".to_owned(),
            random.between(50, 2000).to_string(),
        ]);
    }
    if random.once_in(3) {
        let percent = random.pick(&[1, 10, 50]);
        words.extend(["--max-slowdown".to_owned(), format!("{percent}%")]);
    }
    if random.once_in(4) {
        words.extend(["--requests".to_owned(), "sockets".to_owned()]);
        if random.once_in(2) {
            words.extend(["--slo-p95".to_owned(), "20000".to_owned()]);
        }
    }
    if random.once_in(4) {
        let parts = [
            "distance",
            "liveness",
            "vectors",
            "prefetch",
            "loops",
            "loop-saves",
            "next-context",
            "non-temporal",
            "recency",
            "companions",
            "waits",
        ];
        words.extend(["--without".to_owned(), (*random.pick(&parts)).to_owned()]);
    }
    // The CPUs are declared siblings of one core: scavengers come and go between the command's
    // threads and their own.
    let has_two = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    if random.once_in(2) && has_two {
        words.extend(["--siblings", "0,1", "--smt", "on"].map(str::to_owned));
    }
    words.extend(["--memory".to_owned(), "512M".to_owned()]);
    if finish {
        words.push("--finish".to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_always_the_same_run() {
        for seed in 0..200 {
            let told = format!("{:?}", Case::of(seed));
            assert_eq!(told, format!("{:?}", Case::of(seed)));
        }
    }

    #[test]
    fn who_finishes_has_scavengers_that_end() {
        let finishing = (0..500)
            .map(Case::of)
            .filter(|case| case.options.contains(&"--finish".to_owned()));
        for case in finishing {
            assert!(
                case.scavengers.iter().all(|it| it.end.is_some()),
                "{case:?}"
            );
        }
    }

    #[test]
    fn what_is_sent_kills_nobody() {
        for case in (0..500).map(Case::of) {
            let Some(storm) = case.primary.storm else {
                assert_eq!(case.signals, None);
                continue;
            };
            let safe = Storm::mask(&storm.handled) | Storm::mask(&storm.ignored);
            for (period, signal) in [
                (storm.real_us, libc::SIGALRM),
                (storm.prof_us, libc::SIGPROF),
            ] {
                assert!(period == 0 || safe & Storm::mask(&[signal]) != 0);
            }
        }
    }
}
