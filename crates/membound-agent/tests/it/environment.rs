//! The process sees itself as if nothing had been preloaded.

use std::ffi::OsStr;

use membound_wire::{Entry, Event, TextMode};

use crate::harness::{
    Area, Conversation, LIBCS, Program, Session, call_entry, jump_bytes, process,
};

const CLEAN: &str = "FIRST=1\nZLAST=with = and spaces\npage 4096\nfree 3\n";

#[test]
fn nothing_of_the_agent_is_left_in_the_environment() {
    for libc in LIBCS {
        let Some(program) = Program::build("environment", libc) else {
            continue;
        };
        let session = Session::start(program.path(), &[], None);
        let conversation = session.expect(Event::Start);
        let pid = conversation.word(16);
        assert_eq!(pid, session.child.id());
        // The loader reports where it calls debuggers; both libcs have the function.
        assert_ne!(conversation.long(24), 0);
        conversation.go();
        assert_eq!(session.finish(), (CLEAN.to_owned(), Some(5)), "{libc:?}");
    }
}

#[test]
fn the_users_own_preload_stays_as_it_was() {
    for libc in LIBCS {
        let Some(program) = Program::build("environment", libc) else {
            continue;
        };
        // musl's loader would report an object that it cannot find, so it must exist.
        let library = program.directory().join("users.so");
        let compiler = if libc == LIBCS[0] { "gcc" } else { "musl-gcc" };
        let built = std::process::Command::new(compiler)
            .args(["-shared", "-fPIC", "-xc", "/dev/null", "-o"])
            .arg(&library)
            .status()
            .unwrap();
        assert!(built.success());
        let users = library.to_str().unwrap();
        for list in [users.to_owned(), format!("{users}:{users}"), String::new()] {
            let session = Session::start(program.path(), &[], Some(&list));
            session.expect(Event::Start).go();
            let (output, code) = session.finish();
            let expected = CLEAN.replace("ZLAST", &format!("LD_PRELOAD={list}\nZLAST"));
            assert_eq!((output, code), (expected, Some(5)), "{libc:?}");
        }
    }
}

#[test]
fn a_program_without_a_launcher_runs_all_the_same() {
    for libc in LIBCS {
        let Some(program) = Program::build("environment", libc) else {
            continue;
        };
        let nowhere = OsStr::new("/nonexistent/control");
        let output = process(program.path(), nowhere, None).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), CLEAN, "{libc:?}");
        assert_eq!(output.status.code(), Some(5));
    }
}

#[test]
fn a_launcher_that_dies_in_mid_sentence_holds_nothing_up() {
    for libc in LIBCS {
        let Some(program) = Program::build("environment", libc) else {
            continue;
        };
        let session = Session::start(program.path(), &[], None);
        drop(session.expect(Event::Start));
        assert_eq!(session.finish(), (CLEAN.to_owned(), Some(5)), "{libc:?}");
    }
}

/// Hooks the program's own system call instruction, as the launcher does in a libc.
fn hook(program: &Program, conversation: &Conversation, site: &str) {
    let address = crate::harness::AREA;
    let site = program.symbol(site);
    // Call the agent; if it made the call, jump over the instruction. The displaced nop has no effect.
    let mut code = call_entry(address, address, Entry::Syscall).to_vec();
    code.extend([0x72, 0x02, 0x0f, 0x05]);
    let back = address + code.len() as u64;
    code.extend(jump_bytes(back, site + 5));
    let area = Area {
        address,
        base: site,
        code,
        table: crate::signals::table(&[(0, 0)], &[0], &[(0, 0, 0, 0)], &[]),
        period: 0,
    };
    conversation.place(&area);
    let edit = program.jump_at(site, 5, 0b101, address);
    let (reply, left_out) = conversation.edit(&[edit], TextMode::Quiet);
    assert_eq!((reply.errno, reply.count, left_out.len()), (0, 1, 0));
}

#[test]
fn exec_is_followed_and_its_failure_seen() {
    for libc in LIBCS {
        let Some(program) = Program::build("environment", libc) else {
            continue;
        };
        for preload in [None, Some("")] {
            let session = Session::start(program.path(), &["exec"], preload);
            let conversation = session.expect(Event::Start);
            hook(&program, &conversation, "own_execve_site");
            conversation.go();
            let conversation = session.expect(Event::Start);
            assert_eq!(conversation.word(16), session.child.id());
            conversation.go();
            let clean = match preload {
                None => CLEAN.to_owned(),
                Some(_) => CLEAN.replace("ZLAST", "LD_PRELOAD=\nZLAST"),
            };
            assert_eq!(
                session.finish(),
                (format!("-2\n{clean}"), Some(5)),
                "{libc:?}"
            );
        }
    }
}

#[test]
fn without_a_launcher_an_exec_still_gets_its_environment() {
    for libc in LIBCS {
        let Some(program) = Program::build("environment", libc) else {
            continue;
        };
        let mut session = Session::start(program.path(), &["exec"], None);
        let conversation = session.expect(Event::Start);
        hook(&program, &conversation, "own_execve_site");
        session.close();
        conversation.go();
        assert_eq!(
            session.finish(),
            (format!("-2\n{CLEAN}"), Some(5)),
            "{libc:?}"
        );
    }
}
