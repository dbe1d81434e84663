//! Text that no thread executes is replaced, if it is as planned.

use membound_wire::{Action, Command};
use membound_wire::{Event, Protection, TextEdit, TextMode, fingerprint};

use crate::harness::{AREA, Area, LIBCS, Program, Session, jump_bytes, memory_file};

/// A trampoline that returns 40 and more.
fn answer(program: &Program) -> Area {
    let mut code = vec![0xb8, 42, 0, 0, 0];
    code.extend(jump_bytes(AREA + 5, program.symbol("number") + 5));
    Area {
        address: AREA,
        base: program.symbol("number"),
        code,
        table: crate::signals::table(&[(0, 0)], &[0], &[(0, 0, 0, 0)], &[]),
        period: 0,
    }
}

#[test]
fn text_that_is_as_planned_is_replaced_and_other_text_left_out() {
    for libc in LIBCS {
        let Some(program) = Program::build("texts", libc) else {
            continue;
        };
        let session = Session::start(program.path(), &[], None);
        let conversation = session.expect(Event::Start);
        conversation.place(&answer(&program));
        let good = program.jump("number", 1, AREA);
        let mut stale = program.jump("other", 1, AREA);
        stale.fingerprint ^= 1;
        let unmapped = TextEdit {
            address: 0x1000,
            ..good
        };
        let (reply, left_out) = conversation.edit(&[unmapped, good, stale], TextMode::Quiet);
        assert_eq!((reply.errno, reply.count), (0, 1));
        assert_eq!(left_out, [0, 2]);
        conversation.go();
        assert_eq!(session.finish(), ("42 2\n".to_owned(), Some(0)), "{libc:?}");
    }
}

#[test]
fn mappings_never_cover_what_is_there() {
    let Some(program) = Program::build("texts", LIBCS[0]) else {
        return;
    };
    let session = Session::start(program.path(), &[], None);
    let conversation = session.expect(Event::Start);
    let page = memory_file(&[0xcc; 4096]);
    let command = Command {
        action: Action::Map as u32,
        mode: Protection::READ_EXECUTE,
        address: program.symbol("main") & !0xfff,
        length: 4096,
        ..Command::default()
    };
    const EEXIST: u32 = 17;
    assert_eq!(conversation.ask(&command, Some(&page)).errno, EEXIST);
    const EINVAL: u32 = 22;
    let unknown = Command {
        action: 99,
        ..Command::default()
    };
    assert_eq!(conversation.ask(&unknown, None).errno, EINVAL);
    let no_file = Command {
        action: Action::Text as u32,
        count: 1,
        ..Command::default()
    };
    assert_eq!(conversation.ask(&no_file, None).errno, EINVAL);
    // More edits than the descriptor holds.
    let reply = conversation.ask(
        &Command {
            count: u64::MAX / 2,
            ..no_file
        },
        Some(&page),
    );
    assert_eq!(reply.errno, EINVAL);
    conversation.go();
    assert_eq!(session.finish(), ("1 2\n".to_owned(), Some(0)));
}

#[test]
fn hundreds_of_thousands_of_edits_arrive() {
    let Some(program) = Program::build("texts", LIBCS[0]) else {
        return;
    };
    let session = Session::start(program.path(), &[], None);
    let conversation = session.expect(Event::Start);
    let many = program.symbol("many");
    let mut old = [0; 8];
    old[..5].copy_from_slice(&[0xb8, 3, 0, 0, 0]);
    let mut new = [0; 8];
    new[..5].copy_from_slice(&[0xb8, 4, 0, 0, 0]);
    let edits: Vec<TextEdit> = (0..200_000)
        .map(|index| TextEdit {
            address: many + index * 5,
            target: many,
            fingerprint: fingerprint(&old[..5]),
            group: 5,
            length: 5,
            starts: 1,
            old,
            new,
        })
        .collect();
    let (reply, left_out) = conversation.edit(&edits, TextMode::Quiet);
    assert_eq!((reply.errno, reply.count), (0, 200_000));
    assert!(left_out.is_empty());
    let pid = session.child.id();
    let text = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut bytes = vec![0; 1_000_001];
    std::os::unix::fs::FileExt::read_exact_at(&text, &mut bytes, many).unwrap();
    let wrong = bytes
        .chunks_exact(5)
        .position(|chunk| chunk != [0xb8, 4, 0, 0, 0]);
    assert_eq!((wrong, bytes.last()), (None, Some(&0xc3)));
    conversation.go();
    assert_eq!(session.finish(), ("1 2\n".to_owned(), Some(0)));
}
