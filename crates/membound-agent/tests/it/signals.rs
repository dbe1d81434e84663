//! Handlers see the original program, wherever a signal interrupts a thread.

use membound_wire::{
    Action, Command, Entry, Event, Protection, Shape, Step, TableHeader, TextEdit, TextMode,
    TrampolineEntry, Undo, UndoKind,
};

use crate::harness::{
    AREA, Area, Conversation, LIBCS, Libc, Program, Session, call_entry, jump_bytes, memory_file,
};

/// The bytes of a table with one step a shape: places as (code, original), the shape of
/// each place, shapes' steps as (offset, resume, undo, undos), undos as (kind, register,
/// value); every place is an entry.
pub(crate) fn table(
    places: &[(u32, u32)],
    shapes: &[u32],
    steps: &[(u16, u16, u16, u16)],
    undos: &[(u8, u8, i32)],
) -> Vec<u8> {
    steps_table(places, shapes, &[(0, steps.len() as u32)], steps, undos)
}

/// As [`table`], with shapes as (first step, number of steps).
pub(crate) fn steps_table(
    places: &[(u32, u32)],
    place_shapes: &[u32],
    shapes: &[(u32, u32)],
    steps: &[(u16, u16, u16, u16)],
    undos: &[(u8, u8, i32)],
) -> Vec<u8> {
    let mut body = Vec::new();
    let mut offsets = [0; 6];
    let start = size_of::<TableHeader>();
    offsets[0] = start;
    for (&(code, original), &shape) in places.iter().zip(place_shapes) {
        for word in [code, original, shape] {
            body.extend(word.to_ne_bytes());
        }
    }
    offsets[1] = start + body.len();
    for (first, count) in shapes {
        body.extend(first.to_ne_bytes());
        body.extend(count.to_ne_bytes());
    }
    offsets[2] = start + body.len();
    for (offset, resume, undo, count) in steps {
        for word in [offset, resume, undo, count] {
            body.extend(word.to_ne_bytes());
        }
    }
    offsets[3] = start + body.len();
    for (kind, register, value) in undos {
        body.extend([*kind, *register, 0, 0]);
        body.extend(value.to_ne_bytes());
    }
    offsets[4] = start + body.len();
    let mut entries: Vec<u32> = (0..places.len() as u32).collect();
    entries.sort_by_key(|&index| places[index as usize].1);
    for entry in &entries {
        body.extend(entry.to_ne_bytes());
    }
    offsets[5] = start + body.len();
    assert_eq!((size_of::<TrampolineEntry>(), size_of::<Shape>()), (12, 8));
    assert_eq!((size_of::<Step>(), size_of::<Undo>()), (8, 8));
    let counts = [
        places.len(),
        shapes.len(),
        steps.len(),
        undos.len(),
        entries.len(),
        0,
    ];
    let mut bytes = Vec::new();
    for (offset, count) in offsets.iter().zip(counts) {
        bytes.extend((*offset as u64).to_ne_bytes());
        bytes.extend((count as u64).to_ne_bytes());
    }
    let no_hooks = 0_u64;
    bytes.extend(no_hooks.to_ne_bytes());
    bytes.extend(body);
    bytes
}

const HOOK: u64 = AREA + 0x1_0000;
/// A page of jumps, which is in no table, on the way to the trampoline of `busy`.
const ISLAND: u64 = AREA + 0x3_0000;

/// The start of a body: skips the red zone, saves rax and the flags, and changes both.
const ENTER: [u8; 17] = [
    0x48, 0x8d, 0x64, 0x24, 0x80, // lea rsp, [rsp - 128]
    0x50, // push rax
    0x9c, // pushfq
    0xb8, 0xad, 0xde, 0x00, 0x00, // mov eax, 0xdead
    0x05, 0xff, 0xff, 0xff, 0x7f, // add eax, 0x7fffffff
];
/// The end of that body.
const LEAVE: [u8; 10] = [
    0x9d, // popfq
    0x58, // pop rax
    0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00, // lea rsp, [rsp + 128]
];

/// Undos at the positions within [`ENTER`] and [`LEAVE`].
const UNDOS: [(u8, u8, i32); 8] = [
    (UndoKind::Stack as u8, 0, 128),
    (UndoKind::Stack as u8, 0, 136),
    (UndoKind::LoadFlags as u8, 0, 0),
    (UndoKind::Stack as u8, 0, 144),
    (UndoKind::Load as u8, 0, 8),
    (UndoKind::LoadFlags as u8, 0, 0),
    (UndoKind::Stack as u8, 0, 144),
    // popfq alone: the stack is one word up.
    (UndoKind::Load as u8, 0, 0),
];

/// One area with three trampolines. The first traps in its body, the second loads, and the third has a body
/// that is called often.
fn area(program: &Program) -> (Area, Vec<TextEdit>) {
    let base = program.symbol("faulting_site");
    let relative = |symbol: &str| u32::try_from(program.symbol(symbol) - base).unwrap();
    let mut code = Vec::new();
    let mut places = Vec::new();
    let jump_back = |code: &mut Vec<u8>, symbol: &str| {
        let at = AREA + code.len() as u64;
        code.extend(jump_bytes(at, program.symbol(symbol) + 5));
    };

    places.push((0, 0));
    code.extend(ENTER);
    code.extend([0x0f, 0x0b]);
    code.extend(LEAVE);
    let displaced = code.len() as u16;
    code.extend([0xb8, 1, 0, 0, 0]);
    jump_back(&mut code, "faulting_site");

    let loading = code.len() as u32;
    places.push((loading, relative("loading_site")));
    code.extend([0x8b, 0x07]);
    places.push((loading + 2, relative("loading_site") + 2));
    code.extend([0x83, 0xc0, 0x01]);
    jump_back(&mut code, "loading_site");

    let busy = code.len() as u32;
    places.push((busy, relative("busy_site")));
    code.extend(ENTER);
    code.extend([0x90, 0x90]);
    code.extend(LEAVE);
    code.extend([0x48, 0x8d, 0x40, 0x01]);
    places.push((busy + u32::from(displaced) + 4, relative("busy_site") + 4));
    code.push(0x90);
    jump_back(&mut code, "busy_site");

    // Offset, resume, first undo, undos.
    let steps = [
        (0, 0, 0, 0),
        (5, 0, 0, 1),
        (6, 0, 1, 1),
        (7, 0, 2, 2),
        (12, 0, 4, 3),
        (17, displaced, 4, 3),
        (20, displaced, 7, 1),
        (21, displaced, 0, 1),
        (29, displaced, 0, 0),
    ];
    // After popfq the stack is eight bytes up and rax on its top: load, then 136 more.
    let mut undos = UNDOS.to_vec();
    undos.push((UndoKind::Stack as u8, 0, 136));
    let mut steps = steps.to_vec();
    steps[6].3 = 2;
    steps.push((0, 0, 0, 0));
    let plain = (steps.len() as u32 - 1, 1);
    let table = steps_table(&places, &[0, 1, 1, 0, 1], &[(0, 9), plain], &steps, &undos);
    let area = Area {
        address: AREA,
        base,
        code,
        table,
        period: 0,
    };
    let edits = vec![
        program.jump("faulting_site", 0b1, AREA),
        program.jump("loading_site", 0b101, AREA + u64::from(loading)),
        program.jump("busy_site", 0b10001, ISLAND),
    ];
    (area, edits)
}

/// Offset of the trampoline of `busy`: the fourth place of the table.
fn busy_place(area: &Area) -> u32 {
    let places = u64::from_ne_bytes(area.table[..8].try_into().unwrap()) as usize;
    let place = places + 3 * size_of::<TrampolineEntry>();
    u32::from_ne_bytes(area.table[place..place + 4].try_into().unwrap())
}

/// Installs a jump at the `syscall` instruction at `site`, which has five bytes with the following
/// instruction, to a trampoline at `at` that calls the agent.
pub(crate) fn hook_syscall(program: &Program, conversation: &Conversation, site: &str, at: u64) {
    let site = program.symbol(site);
    let mut code = call_entry(at, at, Entry::Syscall).to_vec();
    code.extend([0x72, 0x02, 0x0f, 0x05]);
    code.extend(jump_bytes(at + code.len() as u64, site + 5));
    conversation.place(&Area {
        address: at,
        base: site,
        code,
        table: table(&[(0, 0)], &[0], &[(0, 0, 0, 0)], &[]),
        period: 0,
    });
    let edit = program.jump_at(site, 5, 0b101, at);
    let (reply, left_out) = conversation.edit(&[edit], TextMode::Quiet);
    assert_eq!((reply.errno, reply.count, left_out.len()), (0, 1, 0));
}

/// Hooks the program's own `rt_sigaction`, and adopts the installed handlers.
pub(crate) fn hook_sigaction(program: &Program, conversation: &Conversation) {
    hook_syscall(program, conversation, "own_sigaction_site", HOOK);
    let adopt = Command {
        action: Action::AdoptSignals as u32,
        ..Command::default()
    };
    conversation.done(&adopt, None);
}

#[test]
fn handlers_see_the_original_program() {
    for libc in LIBCS {
        let Some(program) = Program::build("signals", libc) else {
            continue;
        };
        let session = Session::start(program.path(), &[], None);
        let conversation = session.expect(Event::Start);
        let (area, edits) = area(&program);
        conversation.place(&area);
        let busy = area.address + u64::from(busy_place(&area));
        let island = memory_file(&jump_bytes(ISLAND, busy));
        let map = Command {
            action: Action::Map as u32,
            mode: Protection::READ_EXECUTE,
            address: ISLAND,
            length: 4096,
            ..Command::default()
        };
        conversation.done(&map, Some(&island));
        let (reply, left_out) = conversation.edit(&edits, TextMode::Quiet);
        assert_eq!((reply.errno, left_out), (0, vec![]));
        hook_sigaction(&program, &conversation);
        conversation.go();
        let ill = "ill 4 at 1 address 1 rax 123456789abcdef flags 1 stack 1\n";
        let unwound = if libc == Libc::Glibc {
            "unwound 1 1\n"
        } else {
            ""
        };
        let zero = if libc == Libc::Glibc { "(nil)" } else { "0" };
        let installed = format!("old 0 {zero}\nmine 1 flags 4000004\n");
        let expected = format!(
            "{installed}{installed}{ill}{unwound}result 1\n\
             segv 11 at 1 address {zero}\nresult 11\n\
             {ill}{unwound}result 1\nbad -22\nbad -14\nbad -14\nchild 0\nasked 301 reset 1\n\
             {installed}strange 0 wrong 0 deep 1\n"
        );
        // The default action of SIGILL ends it: no exit code.
        assert_eq!(session.finish(), (expected, None), "{libc:?}");
    }
}
