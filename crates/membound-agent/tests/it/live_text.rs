//! Text is changed while threads execute it.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use membound_wire::{
    Action, Command, DOORBELL_BYTES, Event, Protection, Reply, TextEdit, TextMode,
};

use crate::harness::{
    AREA, Area, Conversation, LIBCS, Libc, Program, Session, jump_bytes, memory_file, reverse,
};
use crate::signals::{hook_sigaction, table};

const DOORBELL: u64 = AREA + 0x10_0000;

/// The trampoline of `three`, and the edit that installs the jump to it.
fn area(program: &Program) -> (Area, TextEdit) {
    let site = program.symbol("three_site");
    let mut code = Vec::new();
    for _ in 0..3 {
        code.extend([0xff, 0xc0]);
    }
    code.extend(jump_bytes(AREA + 6, site + 6));
    let area = Area {
        address: AREA,
        base: site,
        code,
        table: table(
            &[(0, 0), (2, 2), (4, 4), (6, 6)],
            &[0; 4],
            &[(0, 0, 0, 0)],
            &[],
        ),
        period: 0,
    };
    (area, program.jump_at(site, 6, 0b10101, AREA))
}

/// A doorbell that is shared with the agent.
pub(crate) struct Bell {
    /// All words of the page.
    words: *const [AtomicU32; DOORBELL_BYTES / 4],
    file: OwnedFd,
}

impl Bell {
    fn new() -> Self {
        let file = memory_file(&[0; DOORBELL_BYTES]);
        // SAFETY: a new mapping, placed by the kernel.
        let page = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                DOORBELL_BYTES,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
        }
        .unwrap();
        Self {
            words: page.cast_const().cast(),
            file,
        }
    }

    /// Makes one, and lets the program's control thread wait for it.
    pub(crate) fn hang(conversation: &Conversation) -> Self {
        let bell = Self::new();
        let map = Command {
            action: Action::Map as u32,
            mode: Protection::READ_WRITE | Protection::SHARED,
            address: DOORBELL,
            length: DOORBELL_BYTES as u64,
            ..Command::default()
        };
        conversation.done(&map, Some(&bell.file));
        let listen = Command {
            action: Action::Listen as u32,
            address: DOORBELL,
            ..Command::default()
        };
        conversation.done(&listen, None);
        bell
    }

    /// Rings for all processes, as the launcher does: their own words first.
    pub(crate) fn ring(&self) {
        // SAFETY: the page stays mapped until the test ends.
        let words = unsafe { &*self.words };
        for word in words.iter().rev() {
            word.fetch_add(1, Ordering::Release);
        }
        rustix::thread::futex::wake(&words[0], rustix::thread::futex::Flags::empty(), 1).unwrap();
    }
}

/// A program whose threads run, with the control thread listening.
struct Running {
    session: Session,
    bell: Bell,
    edit: TextEdit,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(libc: Libc, arguments: &[&str]) -> Option<Self> {
        let program = Program::build("live", libc)?;
        let mut session = Session::start(program.path(), arguments, None);
        let conversation = session.expect(Event::Start);
        let (area, edit) = area(&program);
        conversation.place(&area);
        hook_sigaction(&program, &conversation);
        let bell = Bell::hang(&conversation);
        conversation.go();
        let mut output = BufReader::new(session.child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self {
            session,
            bell,
            edit,
            output,
        })
    }

    fn edit(&self, edit: &TextEdit) -> (Reply, Vec<u32>) {
        self.bell.ring();
        let conversation = self.session.expect(Event::Doorbell);
        let answer = conversation.edit(&[*edit], TextMode::Live);
        conversation.go();
        answer
    }

    /// Installs and removes the jump `times` times.
    fn toggle(&self, times: usize) -> usize {
        let mut refused = 0;
        for _ in 0..times {
            let (reply, left_out) = self.edit(&self.edit);
            // If threads get no processor in time, it is refused or left out.
            if reply.errno != 0 || reply.count == 0 {
                refused += 1;
                continue;
            }
            assert_eq!((reply.count, left_out.len()), (1, 0));
            // The group is longer than the jump: the bytes behind the jump stay.
            let mut group = self.edit.new[..5].to_vec();
            group.push(0xc0);
            let back = TextEdit {
                fingerprint: membound_wire::fingerprint(&group),
                ..reverse(&TextEdit {
                    group: 5,
                    ..self.edit
                })
            };
            let back = TextEdit { group: 6, ..back };
            while self.edit(&back).0.count == 0 {
                refused += 1;
                assert!(refused < 20, "threads can no longer be stopped");
            }
        }
        refused
    }

    fn finish(mut self) -> String {
        self.session.write_line("stop");
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let status = self.session.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
        line
    }
}

const RIGHT: &str = "wrong 0 mine 1 some 1\n";

#[test]
fn eight_spinning_threads_survive_a_thousand_changes() {
    let Some(running) = Running::start(Libc::Glibc, &["8"]) else {
        return;
    };
    let refused = running.toggle(500);
    // The agent refuses a change if a thread does not stop in time. The kernel, or the host of a virtual machine,
    // may keep one of eight threads off the processors for longer.
    assert!(refused < 20, "{refused} of 1000 refused");
    assert_eq!(running.finish(), RIGHT);
}

#[test]
fn threads_that_come_and_go_fork_and_trap_survive_changes() {
    for libc in LIBCS {
        let Some(running) = Running::start(libc, &["3", "churn,fork,trap"]) else {
            continue;
        };
        let refused = running.toggle(100);
        assert!(refused < 20, "{refused} of 200 refused");
        assert_eq!(running.finish(), RIGHT, "{libc:?}");
    }
}

/// `sem_wait` fails with `EINTR` if a handler interrupts it; the program counts that as wrong.
#[test]
fn two_hundred_sleeping_threads_are_not_woken_by_changes() {
    // Sixteen threads spin on two processors: mostly at least one of them gets none in time.
    // With sixteen, a change takes a second, most of it waiting for a processor.
    for (spinners, times, most_refused) in [("2", 20, 10), ("16", 12, 12)] {
        let Some(running) = Running::start(Libc::Glibc, &[spinners, "crowd"]) else {
            return;
        };
        let pid = running.session.child.id();
        let threads = || {
            std::fs::read_dir(format!("/proc/{pid}/task"))
                .unwrap()
                .count()
        };
        while threads() < 200 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = running.toggle(times);
        assert!(refused < most_refused, "{refused} of {times} refused");
        assert_eq!(running.finish(), RIGHT);
    }
}

#[test]
fn a_thread_that_a_trap_would_kill_is_no_victim() {
    let Some(running) = Running::start(Libc::Glibc, &["2", "deaf"]) else {
        return;
    };
    const EBUSY: u32 = 16;
    const TRAP_BLOCKED: u32 = 13;
    let (reply, _) = running.edit(&running.edit);
    assert_eq!((reply.errno, reply.detail), (EBUSY, TRAP_BLOCKED));
    assert_eq!(running.finish(), RIGHT);
}

/// A thread that stands still sleeps, which the kernel counts; a spinning thread never sleeps by itself.
#[test]
fn spinning_threads_are_not_stopped_for_one_that_blocks_all_signals() {
    let Some(running) = Running::start(Libc::Glibc, &["2", "deaf"]) else {
        return;
    };
    let pid = running.session.child.id();
    // The others sleep as soon as they have begun.
    let mut spinning = never_slept(pid);
    while spinning.len() > 2 {
        std::thread::sleep(Duration::from_millis(1));
        spinning = never_slept(pid);
    }
    assert_eq!(spinning.len(), 2, "{spinning:?}");
    for _ in 0..5 {
        let (reply, _) = running.edit(&running.edit);
        assert_ne!(reply.errno, 0);
    }
    let sleepless = never_slept(pid);
    assert!(spinning.is_subset(&sleepless), "{spinning:?} {sleepless:?}");
    assert_eq!(running.finish(), RIGHT);
}

/// Threads that have never given up their CPU by themselves.
fn never_slept(pid: u32) -> BTreeSet<String> {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .filter_map(|entry| {
            let status = std::fs::read_to_string(entry.unwrap().path().join("status")).ok()?;
            let value = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim().to_owned())
            };
            (value("voluntary_ctxt_switches:")? == "0").then(|| value("Pid:"))?
        })
        .collect()
}

#[test]
fn text_that_is_not_as_planned_is_left_out_live_too() {
    let Some(running) = Running::start(Libc::Glibc, &["1"]) else {
        return;
    };
    let mut stale = running.edit;
    stale.fingerprint ^= 1;
    let (reply, left_out) = running.edit(&stale);
    assert_eq!((reply.errno, reply.count, left_out), (0, 0, vec![0]));
    assert_eq!(running.finish(), RIGHT);
}
