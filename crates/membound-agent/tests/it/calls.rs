//! Trampolines call into the agent, which changes nothing but what they asked for.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;

use membound_wire::{
    Action, Command, Entry, Event, LEAD_IN, Probe, Protection, RECORDS, Record, Ring, RingSet,
    SLOTS_BYTES, TextEdit, TextMode, UndoKind,
};

use crate::harness::{
    AREA, Area, Conversation, LIBCS, Libc, Program, Session, call_entry, jump_bytes, memory_file,
    reverse,
};
use crate::signals::table;

const RINGS: u64 = AREA + 0x20_0000;
const SITE: u32 = 0;
const ADDRESS: u32 = 0x1234_5678;
const TICKS: u32 = 77;
const HIT: u32 = 52;
const DRAIN: u32 = 70_000;

/// A trampoline that calls `entry` on every execution, like a probe whose countdown has always run out.
fn calling(program: &Program, site: &str, entry: Entry) -> (Area, TextEdit) {
    let back = program.symbol(site) + 5;
    let mut code = vec![0x48, 0x8d, 0x64, 0x24, 0x80];
    if entry == Entry::Sample {
        for ticks in [DRAIN, HIT, TICKS] {
            code.push(0x68);
            code.extend(ticks.to_le_bytes());
        }
    }
    code.push(0x68);
    code.extend(ADDRESS.to_le_bytes());
    code.push(0x68);
    code.extend(SITE.to_le_bytes());
    code.extend(call_entry(AREA, AREA + code.len() as u64, entry));
    let pushed = if entry == Entry::Sample { 40_u32 } else { 16 };
    code.extend([0x48, 0x8d, 0xa4, 0x24]);
    code.extend((128 + pushed).to_le_bytes());
    code.extend(jump_bytes(AREA + code.len() as u64, back));
    let area = Area {
        address: AREA,
        base: program.symbol(site),
        code,
        table: table(&[(0, 0)], &[0], &[(0, 0, 0, 0)], &[]),
        period: 4,
    };
    (area, program.jump(site, 1, AREA))
}

fn apply(conversation: &Conversation, edit: TextEdit) {
    let (reply, left_out) = conversation.edit(&[edit], TextMode::Quiet);
    assert_eq!((reply.errno, reply.count, left_out.len()), (0, 1, 0));
}

fn record(bytes: &[u8]) -> Record {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let half = |at: usize| u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    Record {
        tsc: long(0),
        address: long(8),
        site: word(16),
        module: half(20),
        flags: half(22),
        ticks: word(24),
        hit: half(28),
        drain: half(30),
    }
}

/// Accesses beyond those that a ring holds.
const LOST: usize = 978;

#[test]
fn samples_and_records_reach_their_ring_and_registers_stay() {
    for libc in LIBCS {
        for entry in [Entry::Sample, Entry::Record, Entry::Modules, Entry::Yield] {
            let Some(program) = Program::build("calls", libc) else {
                continue;
            };
            // More than a ring holds: each further access causes a conversation.
            let times = match entry {
                Entry::Sample | Entry::Record => RECORDS + LOST,
                _ => 2000,
            };
            let words = ["times", &times.to_string()];
            let mut session = Session::start(program.path(), &words, None);
            let conversation = session.expect(Event::Start);
            let (area, edit) = calling(&program, "around_site", entry);
            let data = conversation.place(&area);
            apply(&conversation, edit);
            let bytes = size_of::<RingSet>() + 2 * size_of::<Ring>();
            let mut rings = vec![0; bytes.next_multiple_of(4096)];
            rings[..4].copy_from_slice(&2_u32.to_ne_bytes());
            let rings = memory_file(&rings);
            let map = Command {
                action: Action::Map as u32,
                mode: Protection::READ_WRITE | Protection::SHARED,
                address: RINGS,
                length: bytes.next_multiple_of(4096) as u64,
                ..Command::default()
            };
            conversation.done(&map, Some(&rings));
            let register = Command {
                action: Action::Rings as u32,
                address: RINGS,
                ..Command::default()
            };
            conversation.done(&register, None);
            conversation.go();
            if entry == Entry::Modules {
                for _ in 0..times {
                    session.expect(Event::Modules).go();
                }
            }
            let mut output = BufReader::new(session.child.stdout.take().unwrap());
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, "wrong 0\n", "{libc:?} {entry:?}");
            if matches!(entry, Entry::Sample | Entry::Record) {
                check_rings(&session, &std::fs::File::from(rings), entry);
            }
            if entry == Entry::Sample {
                let mut probe = [0; size_of::<Probe>()];
                let data = std::fs::File::from(data);
                data.read_exact_at(&mut probe, SLOTS_BYTES as u64).unwrap();
                let word = |at: usize| i32::from_ne_bytes(probe[at..at + 4].try_into().unwrap());
                let done = u64::from_ne_bytes(probe[8..16].try_into().unwrap());
                // The countdown was not touched, so it shows no executions.
                assert_eq!((word(0), done), (word(4), 0));
                assert!((1..=8).contains(&(word(0) + LEAD_IN)), "{}", word(0));
            }
            session.write_line("stop");
            assert_eq!(session.child.wait().unwrap().code(), Some(0));
        }
    }
}

fn check_rings(session: &Session, rings: &std::fs::File, entry: Entry) {
    let pid = session.child.id();
    let start = size_of::<RingSet>() + (pid as usize % 2) * size_of::<Ring>();
    let mut ring = vec![0; size_of::<Ring>()];
    rings.read_exact_at(&mut ring, start as u64).unwrap();
    let word = |at: usize| u32::from_ne_bytes(ring[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), pid, "the owner");
    assert_eq!(word(4), LOST as u32, "lost");
    assert_eq!(
        u64::from_ne_bytes(ring[8..16].try_into().unwrap()),
        RECORDS as u64
    );
    let mut before = 0;
    for bytes in ring[std::mem::offset_of!(Ring, records)..].chunks_exact(size_of::<Record>()) {
        let found = record(bytes);
        assert!(found.tsc >= before);
        before = found.tsc;
        let timed = entry == Entry::Sample;
        let expected = Record {
            tsc: found.tsc,
            address: u64::from(ADDRESS),
            site: SITE,
            module: 7,
            // Timed, or of a burst.
            flags: if timed { 2 } else { 8 },
            ticks: if timed { TICKS } else { 0 },
            hit: if timed { HIT as u16 } else { 0 },
            // More than fits.
            drain: if timed { u16::MAX } else { 0 },
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn signals_inside_the_agent_show_the_original_program_too() {
    for libc in LIBCS {
        let Some(program) = Program::build("calls", libc) else {
            continue;
        };
        let session = Session::start(program.path(), &["ticks"], None);
        let conversation = session.expect(Event::Start);
        let (mut area, edit) = calling(&program, "around_site", Entry::Sample);
        // The stack pointer comes down by 128, then by eight for each of five words.
        let steps = [
            (0, 0, 0, 0),
            (5, 0, 0, 1),
            (10, 0, 1, 1),
            (15, 0, 2, 1),
            (20, 0, 3, 1),
            (25, 0, 4, 1),
            (30, 0, 5, 1),
            (44, 0, 0, 0),
        ];
        let undos = [128, 136, 144, 152, 160, 168].map(|bytes| (UndoKind::Stack as u8, 0, bytes));
        area.table = table(&[(0, 0)], &[0], &steps, &undos);
        conversation.place(&area);
        apply(&conversation, edit);
        hook(&program, &conversation, "own_sigaction_site");
        let adopt = Command {
            action: Action::AdoptSignals as u32,
            ..Command::default()
        };
        conversation.done(&adopt, None);
        conversation.go();
        let expected = "wrong 0 spoilt 0 mostly 1\n";
        assert_eq!(session.finish(), (expected.to_owned(), Some(0)), "{libc:?}");
    }
}

/// A trampoline for the program's own system call instruction.
fn hook(program: &Program, conversation: &Conversation, site: &str) {
    const HOOK: u64 = AREA + 0x1_0000;
    let site = program.symbol(site);
    let mut code = call_entry(HOOK, HOOK, Entry::Syscall).to_vec();
    code.extend([0x72, 0x02, 0x0f, 0x05]);
    code.extend(jump_bytes(HOOK + code.len() as u64, site + 5));
    conversation.place(&Area {
        address: HOOK,
        base: site,
        code,
        table: table(&[(0, 0)], &[0], &[(0, 0, 0, 0)], &[]),
        period: 0,
    });
    apply(conversation, program.jump_at(site, 5, 0b101, HOOK));
}

#[test]
fn text_is_given_back_before_it_becomes_writable() {
    for libc in LIBCS {
        let Some(program) = Program::build("calls", libc) else {
            continue;
        };
        let session = Session::start(program.path(), &["writable"], None);
        let conversation = session.expect(Event::Start);
        let (area, edit) = calling(&program, "around_site", Entry::Yield);
        conversation.place(&area);
        apply(&conversation, edit);
        hook(&program, &conversation, "own_mprotect_site");
        conversation.go();
        // Once only: text that stays read-only does not concern the launcher.
        let conversation = session.expect(Event::Writable);
        let range = std::mem::offset_of!(membound_wire::Hello, range);
        let page = program.symbol("around_site") & !0xfff;
        assert_eq!(conversation.long(range), page);
        assert_eq!(conversation.long(range + 8), page + 8192);
        apply(&conversation, reverse(&edit));
        conversation.go();
        assert_eq!(
            session.finish(),
            ("0\n0\nf\n".to_owned(), Some(0)),
            "{libc:?}"
        );
    }
}

#[test]
fn the_loaders_hook_tells_of_modules() {
    for libc in LIBCS {
        let Some(program) = Program::build("calls", libc) else {
            continue;
        };
        let library = program.directory().join("opened.so");
        let compiler = if libc == Libc::Glibc {
            "gcc"
        } else {
            "musl-gcc"
        };
        let built = std::process::Command::new(compiler)
            .args(["-shared", "-fPIC", "-xc", "/dev/null", "-o"])
            .arg(&library)
            .status()
            .unwrap();
        assert!(built.success());
        let path = library.to_str().unwrap();
        let session = Session::start(program.path(), &["modules", path], None);
        let conversation = session.expect(Event::Start);
        let hook = conversation.long(24);
        let bytes: Vec<u8> = (0..4)
            .flat_map(|word| conversation.word(32 + word * 4).to_ne_bytes())
            .collect();
        // Both loaders' functions do nothing, and padding follows them.
        let length = if bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa, 0xc3]) {
            5
        } else {
            1
        };
        assert_eq!(bytes[length - 1], 0xc3, "{bytes:x?}");
        let near = nearby(&session, hook);
        let mut code = call_entry(near, near, Entry::Modules).to_vec();
        code.push(0xc3);
        conversation.place(&Area {
            address: near,
            base: hook,
            code,
            table: table(&[(0, 0)], &[0], &[(0, 0, 0, 0)], &[]),
            period: 0,
        });
        let mut old = [0; 8];
        old[..5].copy_from_slice(&bytes[..5]);
        let mut new = [0; 8];
        new[..5].copy_from_slice(&jump_bytes(hook, near));
        apply(
            &conversation,
            TextEdit {
                address: hook,
                target: near,
                fingerprint: membound_wire::fingerprint(&bytes[..5]),
                group: 5,
                length: 5,
                starts: 1,
                old,
                new,
            },
        );
        conversation.go();
        let opened = |pid: u32| {
            std::fs::read_to_string(format!("/proc/{pid}/maps"))
                .unwrap()
                .contains("opened.so")
        };
        let conversation = session.expect(Event::Modules);
        assert!(opened(session.child.id()), "{libc:?}");
        conversation.go();
        if libc == Libc::Glibc {
            // glibc announces before and after; the list is consistent once the module is unmapped.
            let conversation = session.expect(Event::Modules);
            assert!(!opened(session.child.id()), "{libc:?}");
            conversation.go();
        }
        assert_eq!(
            session.finish(),
            ("opened 1\n".to_owned(), Some(0)),
            "{libc:?}"
        );
    }
}

/// A free address range within reach of `address`.
fn nearby(session: &Session, address: u64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", session.child.id())).unwrap();
    let used: Vec<(u64, u64)> = maps
        .lines()
        .map(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start), number(end))
        })
        .collect();
    (1..1000)
        .map(|step| (address & !0xffff) - step * 0x10_0000)
        .find(|&start| {
            used.iter()
                .all(|&(low, high)| start + 0x1_0000 <= low || high <= start)
        })
        .unwrap()
}
