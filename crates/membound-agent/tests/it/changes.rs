//! A thread that the kernel wakes in the middle of a change of text, and that would be killed by a signal
//! that it blocks.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use membound_wire::{Event, TextEdit, TextMode};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{AREA, Area, LIBCS, Program, Session, jump_bytes};
use crate::live_text::Bell;
use crate::signals::{hook_sigaction, hook_syscall, table};

const HOOKS: u64 = AREA + 0x2_0000;
const INT3: u8 = 0xcc;

/// What wakes the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waker {
    Input,
    Signal,
}

/// The trampolines of both changed places, and the edits that install the jumps.
fn area(program: &Program) -> (Area, [TextEdit; 2]) {
    let [held, three] = ["held_site", "three_site"].map(|name| program.symbol(name));
    let distance = u32::try_from(three - held).unwrap();
    let mut code = vec![0x31, 0xc0, 0x0f, 0x05, 0x90];
    code.extend(jump_bytes(AREA + code.len() as u64, held + 5));
    let second = code.len() as u32;
    for _ in 0..3 {
        code.extend([0xff, 0xc0]);
    }
    code.extend(jump_bytes(AREA + code.len() as u64, three + 6));
    let held_places = [(0, 0), (2, 2), (4, 4), (5, 5)];
    let places = held_places
        .into_iter()
        .chain([0, 2, 4, 6].map(|at| (second + at, distance + at)))
        .collect::<Vec<_>>();
    let area = Area {
        address: AREA,
        base: held,
        code,
        table: table(&places, &[0; 8], &[(0, 0, 0, 0)], &[]),
        period: 0,
    };
    let edits = [
        program.jump_at(held, 5, 0b10101, AREA),
        program.jump_at(three, 6, 0b10101, AREA + u64::from(second)),
    ];
    (area, edits)
}

/// Waits until `done` is true, and fails after a time limit.
#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// True if the program's first thread waits for the change, or for a child, or has ended.
fn has_gone_on(pid: u32) -> bool {
    const WAITS: [&str; 2] = ["202 ", "61 "];
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
    call.map_or(true, |call| WAITS.iter().any(|wait| call.starts_with(wait)))
}

/// Begins a change that cannot end, lets the thread do `what`, lets the change end, and returns the
/// program's output.
#[track_caller]
fn check(what: &str, waker: Waker, expected: &str) {
    for libc in LIBCS {
        let Some(program) = Program::build("changed", libc) else {
            continue;
        };
        let fifo = program.directory().join("hold");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let words = [what, fifo.to_str().unwrap()];
        let mut session = Session::start(program.path(), &words, None);
        let conversation = session.expect(Event::Start);
        let (area, edits) = area(&program);
        conversation.place(&area);
        hook_sigaction(&program, &conversation);
        hook_syscall(&program, &conversation, "own_sigprocmask_site", HOOKS);
        hook_syscall(&program, &conversation, "own_fork_site", HOOKS + 0x1_0000);
        let bell = Bell::hang(&conversation);
        conversation.go();
        let mut output = BufReader::new(session.child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // Opened for writing as soon as it is open for reading; the call is next.
        let mut hold = File::options().write(true).open(&fifo).unwrap();
        let pid = session.child.id();
        wait_until("next_scavenger waits in the changed place", || {
            held(pid, program.symbol("held_site") + 4)
        });

        bell.ring();
        let conversation = session.expect(Event::Doorbell);
        let three = program.symbol("three_site");
        std::thread::scope(|scope| {
            let change = scope.spawn(|| {
                let answer = conversation.edit(&edits, TextMode::Live);
                conversation.go();
                answer
            });
            let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
            wait_until("there is an int3", || {
                let mut byte = [0];
                memory.read_exact_at(&mut byte, three).unwrap();
                byte[0] == INT3
            });
            match waker {
                Waker::Input => session.write_line("go"),
                Waker::Signal => {
                    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
                    kill_process(pid, Signal::USR1).unwrap();
                }
            }
            wait_until("the thread has gone on", || has_gone_on(pid));
            hold.write_all(b"x").unwrap();
            let (reply, left_out) = change.join().unwrap();
            assert_eq!((reply.errno, reply.count, left_out.len()), (0, 2, 0));
        });
        if waker == Waker::Signal {
            session.write_line("go");
        }
        let replies = [(); 2].map(|()| {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line
        });
        assert_eq!(
            replies.concat(),
            format!("{expected}\nheld 1\n"),
            "{libc:?}"
        );
        session.write_line("end");
        assert_eq!(session.child.wait().unwrap().code(), Some(0));
    }
}

/// True if a thread of the process is blocked at `ip`.
fn held(pid: u32, ip: u64) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let ends = format!("{ip:#x}");
    tasks.flatten().any(|task| {
        let call = std::fs::read_to_string(Path::new(&task.path()).join("syscall"));
        call.is_ok_and(|call| call.trim_end().ends_with(&ends))
    })
}

#[test]
fn a_child_that_is_forked_in_the_middle_of_a_change_is_whole() {
    check("forks", Waker::Input, "status 700");
}

#[test]
fn a_thread_that_blocks_signals_in_the_middle_of_a_change_lives() {
    check("blocks", Waker::Input, "three 7");
}

#[test]
fn a_handler_with_signals_blocked_in_the_middle_of_a_change_lives() {
    check("handles", Waker::Signal, "handled 7");
}
