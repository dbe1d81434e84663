//! Timer samples of programs that know where they spend their time.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use membound_launch::Registers;
use membound_record::perf::{
    Config, Error, Kernel, Mode, Named, PerfEvent, Sampler, Waited, now_ns,
};
use membound_testkit::skipped;

use crate::fixture::{Fixture, Running, busy};

/// A user without privileges.
const NOBODY: u32 = 65534;
/// Bytes that a function of the fixture has at most.
const FUNCTION: u64 = 0x200;

/// A sample, with the word that its stack begins with.
#[derive(Debug)]
struct Seen {
    pid: u32,
    tid: u32,
    t_ns: u64,
    period_ns: u64,
    mode: Mode,
    registers: Registers,
    top: u64,
    stack_bytes: usize,
}

/// All events of a sampler.
#[derive(Debug, Default)]
struct Told {
    samples: Vec<Seen>,
    forks: Vec<(u32, u32)>,
    exits: HashSet<u32>,
    names: HashMap<u32, String>,
    execs: Vec<u32>,
    counted: HashMap<u32, u64>,
    mapped: Vec<(String, bool)>,
    lost: u64,
    bare: usize,
}

impl Told {
    fn add(&mut self, event: PerfEvent<'_>) {
        match event {
            PerfEvent::Sample(sample) => match sample.registers {
                Some(registers) => self.samples.push(Seen {
                    pid: sample.pid,
                    tid: sample.tid,
                    t_ns: sample.t_ns,
                    period_ns: sample.period_ns,
                    mode: sample.mode,
                    registers,
                    top: sample
                        .stack
                        .first_chunk()
                        .map_or(0, |word| u64::from_ne_bytes(*word)),
                    stack_bytes: sample.stack.len(),
                }),
                None => self.bare += 1,
            },
            PerfEvent::Fork { pid, tid, .. } => self.forks.push((pid, tid)),
            PerfEvent::Exit { tid, .. } => {
                self.exits.insert(tid);
            }
            PerfEvent::Comm {
                pid,
                tid,
                name,
                cause,
                ..
            } => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.names.insert(tid, name);
                if cause == Named::Exec {
                    self.execs.push(pid);
                }
            }
            PerfEvent::Mmap(map) => {
                let path = String::from_utf8_lossy(map.path).into_owned();
                self.mapped.push((path, map.build_id.is_some()));
            }
            PerfEvent::Counted { tid, cpu_ns, .. } => {
                *self.counted.entry(tid).or_default() += cpu_ns;
            }
            PerfEvent::Lost(count) => self.lost += count,
        }
    }

    /// Sampled time of user samples with an instruction in the function at `start`.
    fn time_in(&self, start: u64) -> u64 {
        let inside = |sample: &&Seen| {
            sample.mode == Mode::User && (start..start + FUNCTION).contains(&sample.registers.ip)
        };
        let samples = self.samples.iter().filter(inside);
        samples.map(|sample| sample.period_ns).sum()
    }

    fn time(&self) -> u64 {
        self.samples.iter().map(|sample| sample.period_ns).sum()
    }
}

/// Samples a program from its first line to its end. `None`, with a message, where perf events are not
/// permitted.
fn sampled(running: &mut Running) -> Option<(Told, Sampler)> {
    let attached = Sampler::attach(running.pid(), &Config::default());
    let mut sampler = match attached {
        Ok(sampler) => sampler,
        Err(error @ (Error::NotPermitted { .. } | Error::Filtered | Error::Unsupported { .. })) => {
            skipped(error);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    running.say("\n");
    let mut told = Told::default();
    let mut rounds = 0;
    loop {
        let waited = sampler
            .wait(Duration::from_millis(50))
            .expect("it can be polled");
        sampler.read(&mut |event| told.add(event));
        if waited == Waited::Over {
            break;
        }
        rounds += 1;
        assert!(rounds < 2000, "the program never ends: {waited:?}");
    }
    assert_eq!(told.lost, 0, "the rings were read in time");
    assert_eq!(told.bare, 0, "all of them have registers");
    Some((told, sampler))
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[test]
fn samples_fall_where_the_time_went_with_the_stack_that_called() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    let before = now_ns();
    let mut running = fixture.start(&["spin", "1000"]);
    let [alpha, beta, outer, _] = *running.said else {
        panic!("four numbers: {:?}", running.said);
    };
    let Some((told, sampler)) = sampled(&mut running) else {
        return;
    };
    let times = running.hear();
    assert!(running.end());
    let (in_alpha, in_beta) = (told.time_in(alpha), told.time_in(beta));
    let expected = share(times[0], times[0] + times[1]);
    let found = share(in_alpha, in_alpha + in_beta);
    assert!((expected - found).abs() < 0.06, "{expected} {found}");
    let all = share(in_alpha + in_beta, times[0] + times[1]);
    assert!((0.9..1.05).contains(&all), "{all} of the time has samples");
    let counted = share(sampler.counted_ns(), times[0] + times[1]);
    assert!(
        (0.95..1.3).contains(&counted),
        "{counted} of the time is counted"
    );
    for sample in &told.samples {
        assert!((before..now_ns()).contains(&sample.t_ns));
        assert_eq!(
            (sample.pid, sample.tid),
            (running_pid(&told), running_pid(&told))
        );
        let leaf = [alpha, beta]
            .iter()
            .any(|&start| (start..start + FUNCTION).contains(&sample.registers.ip));
        if leaf && sample.mode == Mode::User {
            let caller = (outer..outer + FUNCTION).contains(&sample.top);
            assert!(caller, "{:#x} called, outer is {outer:#x}", sample.top);
            assert!(sample.stack_bytes > 256, "{}", sample.stack_bytes);
        }
    }
}

/// The only process of a program without children.
fn running_pid(told: &Told) -> u32 {
    told.samples[0].pid
}

#[test]
fn threads_and_children_are_followed_and_their_time_is_counted() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    for (words, started) in [(["threads", "300"], 2), (["forks", "200"], 3)] {
        let mut running = fixture.start(&words);
        let main = running.pid();
        let Some((told, sampler)) = sampled(&mut running) else {
            return;
        };
        assert!(running.end());
        let forks: Vec<u32> = told.forks.iter().map(|&(_, tid)| tid).collect();
        assert_eq!(forks.len(), started, "{words:?}");
        let mut untold = 0;
        for &(pid, tid) in &told.forks {
            let same_process = words[0] == "threads";
            assert_eq!(pid == main, same_process, "{words:?}");
            assert_eq!(told.names.get(&tid).map(String::as_str), Some("worker"));
            assert!(told.exits.contains(&tid));
            let of_it = told.samples.iter().filter(|sample| sample.tid == tid);
            let sampled: u64 = of_it.map(|sample| sample.period_ns).sum();
            assert!(sampled > 100_000_000, "{words:?}: {sampled}");
            let Some(&counted) = told.counted.get(&tid) else {
                untold += 1;
                continue;
            };
            let ratio = share(sampled, counted);
            assert!(
                (0.85..1.05).contains(&ratio),
                "{words:?}: {sampled} of {counted}"
            );
        }
        assert!(untold <= 1, "{words:?}: {untold}");
        let ratio = share(told.time(), sampler.counted_ns());
        assert!(
            (0.85..1.05).contains(&ratio),
            "{words:?}: {ratio} of all time"
        );
    }
}

#[test]
fn a_process_with_threads_is_attached_to_without_counting_any_twice() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    let mut running = fixture.start(&["attached", "400"]);
    let main = running.pid();
    let Some((told, sampler)) = sampled(&mut running) else {
        return;
    };
    assert!(running.end());
    let tids: HashSet<u32> = told.samples.iter().map(|sample| sample.tid).collect();
    let workers = tids.iter().filter(|&&tid| tid != main).count();
    assert_eq!(workers, 3, "{tids:?}");
    let counted = sampler.counted_ns();
    let ratio = share(told.time(), counted);
    assert!(
        (0.85..1.05).contains(&ratio),
        "{} of {counted}",
        told.time()
    );
    // The sample from before the attach may have run for a while.
    let expected = 3 * 400_000_000;
    assert!((0.6..1.2).contains(&share(counted, expected)), "{counted}");
}

#[test]
fn an_exec_is_told_and_followed() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    let mut running = fixture.start(&["exec", "200"]);
    let pid = running.pid();
    let Some((told, _)) = sampled(&mut running) else {
        return;
    };
    let times = running.hear();
    assert!(running.end());
    assert_eq!(told.execs, [pid]);
    assert!(share(told.time(), times[0] + times[1]) > 0.85);
    let program = fixture.program.to_string_lossy().into_owned();
    let mapped = told.mapped.iter().find(|(path, _)| *path == program);
    assert!(mapped.is_some(), "{:?}", told.mapped);
}

#[test]
fn time_in_the_kernel_is_seen_or_at_least_counted() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    let mut running = fixture.start(&["kernel", "300"]);
    let Some((told, sampler)) = sampled(&mut running) else {
        return;
    };
    assert!(running.end());
    let counted = sampler.counted_ns();
    // The program's clock and the counter differ by some interrupts.
    assert!(share(counted, 300_000_000) > 0.99, "{counted}");
    let kernel = told
        .samples
        .iter()
        .filter(|sample| sample.mode == Mode::Kernel);
    let kernel: u64 = kernel.map(|sample| sample.period_ns).sum();
    match sampler.kernel() {
        Kernel::Sampled => assert!(share(kernel, counted) > 0.5, "{kernel} of {counted}"),
        Kernel::Unseen => assert_eq!(kernel, 0),
    }
}

#[test]
fn processes_that_cannot_be_sampled_are_told_apart() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    match Sampler::attach(child.id(), &Config::default()) {
        Err(Error::Gone { pid }) => assert_eq!(pid, child.id()),
        Err(error @ (Error::NotPermitted { .. } | Error::Filtered | Error::Unsupported { .. })) => {
            skipped(error);
        }
        other => panic!("{other:?}"),
    }
}

/// Has a program run as that user.
pub(crate) fn as_nobody(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY);
    }
}

/// Lets every user into the program's directory.
pub(crate) fn others_may_run(fixture: &Fixture) {
    let home = fixture.program.parent().expect("it lies in a directory");
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o755))
        .expect("the directory is ours");
}

/// Runs `what` in a thread that has dropped its privileges; other threads keep theirs.
pub(crate) fn unprivileged<T: Send>(what: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        skipped("not root: no other user can be taken on");
        return None;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the call changes the identity of this thread alone, which ends with it.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(result, 0);
            what()
        });
        Some(thread.join().expect("the thread ends well"))
    })
}

#[test]
fn without_privileges_own_programs_are_sampled_and_others_are_not() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    let others = fixture.start(&["spin", "10"]);
    others_may_run(&fixture);
    let mut own = fixture.start_as(&["spin", "500"], &mut as_nobody);
    let found = unprivileged(|| {
        let others = Sampler::attach(others.pid(), &Config::default());
        (sampled(&mut own), others.map(|_| ()))
    });
    let Some((Some((told, sampler)), others)) = found else {
        return;
    };
    assert!(matches!(others, Err(Error::OtherUser { .. })), "{others:?}");
    let times = own.hear();
    let user = told
        .samples
        .iter()
        .filter(|sample| sample.mode == Mode::User);
    let user: u64 = user.map(|sample| sample.period_ns).sum();
    assert!(share(user, times[0] + times[1]) > 0.85);
    if sampler.kernel() == Kernel::Unseen {
        assert!(told.samples.iter().all(|sample| sample.mode == Mode::User));
    }
    assert!(own.end());
}
