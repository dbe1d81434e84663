//! The program runs, whatever the agent is refused.

use membound_wire::{Event, TextMode};

use crate::harness::{LIBCS, Program, Session, agent, process};

/// Starts the program so that it starts itself again with the agent, behind an obstacle. The agent of the
/// first image is released at once.
fn start(program: &Program, obstacle: &str) -> Session {
    let session = Session::prepared(|control| {
        let mut process = process(program.path(), control.as_os_str(), None);
        let preload = format!("LD_PRELOAD={}", agent().display());
        let variable = membound_wire::CONTROL_VARIABLE;
        process
            .arg(obstacle)
            .env("NEXT_PRELOAD", preload)
            .env("NEXT_AGENT", format!("{variable}={}", control.display()));
        process
    });
    session.expect(Event::Start).go();
    session
}

#[test]
fn a_filter_on_writing_text_is_reported_and_the_program_runs() {
    for libc in LIBCS {
        let Some(program) = Program::build("obstacles", libc) else {
            continue;
        };
        let session = start(&program, "pwrite");
        let conversation = session.expect(Event::Start);
        let edit = program.jump("main", 1, program.symbol("main"));
        const EPERM: u32 = 1;
        const MEMORY_REFUSED: u32 = 5;
        let (reply, _) = conversation.edit(&[edit], TextMode::Quiet);
        assert_eq!((reply.errno, reply.detail), (EPERM, MEMORY_REFUSED));
        conversation.go();
        assert_eq!(session.finish(), ("ran\n".to_owned(), Some(3)), "{libc:?}");
    }
}

#[test]
fn without_sockets_the_program_runs() {
    for libc in LIBCS {
        let Some(program) = Program::build("obstacles", libc) else {
            continue;
        };
        let session = start(&program, "socket");
        assert_eq!(session.finish(), ("ran\n".to_owned(), Some(3)), "{libc:?}");
    }
}

#[test]
fn closed_standard_descriptors_stay_closed_and_limits_hold_nobody_up() {
    for libc in LIBCS {
        let Some(program) = Program::build("obstacles", libc) else {
            continue;
        };
        for obstacle in ["closed", "mmap"] {
            let session = start(&program, obstacle);
            session.expect(Event::Start).go();
            assert_eq!(
                session.finish(),
                ("ran\n".to_owned(), Some(3)),
                "{libc:?} {obstacle}"
            );
        }
    }
}
