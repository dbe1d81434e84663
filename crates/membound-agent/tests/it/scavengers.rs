//! Scavengers run, fail, and are refused what they must not have; the program whose process they are in
//! behaves the same in all cases.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use membound_wire::{Action, Command, Event, Protection, ScavengerProcessState, ScavengerRequest};

use crate::harness::{AREA, Libc, Program, Session, memory_file};
use crate::signals::hook_sigaction;

const REQUEST: u64 = AREA;
const REQUEST_BYTES: usize = 1 << 16;

/// How a scavenger is linked.
#[derive(Clone, Copy, Debug)]
enum Form {
    Shared(Libc),
    Static,
    /// At addresses that the program uses itself.
    Fixed,
}

const FORMS: [Form; 3] = [
    Form::Shared(Libc::Glibc),
    Form::Shared(Libc::Musl),
    Form::Static,
];

/// Builds `programs/scavenger.c`; `None`, with a message, without a compiler.
fn build(directory: &Path, form: Form) -> Option<PathBuf> {
    let (compiler, words): (_, &[&str]) = match form {
        Form::Shared(Libc::Glibc) => ("gcc", &["-fPIE", "-pie"]),
        Form::Shared(Libc::Musl) => ("musl-gcc", &["-fPIE", "-pie"]),
        Form::Static => ("gcc", &["-static-pie", "-fPIE"]),
        Form::Fixed => ("gcc", &["-no-pie", "-fno-pie"]),
    };
    let path = directory.join("guest");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/programs/scavenger.c");
    let built = Process::new(compiler)
        .args(["-O1", "-w", "-pthread"])
        .args(words)
        .arg("-o")
        .arg(&path)
        .arg(source)
        .output();
    match built {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{form:?}: {errors}");
            Some(path)
        }
        Err(error) => {
            membound_testkit::skipped(format!("no {compiler}: {error}"));
            None
        }
    }
}

/// The bytes of a request, with the addresses that it refers to.
fn request(path: &Path, output: &Path, errors: &Path, words: &[&str], memory: u64) -> Vec<u8> {
    let mut strings = Vec::new();
    let texts = [path, output, errors].map(|path| path.to_str().unwrap());
    let variables = ["WORD=one=two"];
    for text in texts
        .iter()
        .chain(&["guest"])
        .chain(words)
        .chain(&variables)
    {
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
    }
    let mut bytes = vec![0; size_of::<ScavengerRequest>()];
    let mut put = |offset: usize, value: &[u8]| {
        bytes[offset..offset + value.len()].copy_from_slice(value);
    };
    let count = |count: usize| u32::try_from(count).unwrap().to_ne_bytes();
    put(
        std::mem::offset_of!(ScavengerRequest, arguments),
        &count(words.len() + 1),
    );
    put(
        std::mem::offset_of!(ScavengerRequest, variables),
        &count(variables.len()),
    );
    put(
        std::mem::offset_of!(ScavengerRequest, strings),
        &count(strings.len()),
    );
    put(
        std::mem::offset_of!(ScavengerRequest, memory),
        &memory.to_ne_bytes(),
    );
    put(
        std::mem::offset_of!(ScavengerRequest, stack),
        &(1_u64 << 20).to_ne_bytes(),
    );
    bytes.extend(strings);
    bytes.resize(REQUEST_BYTES, 0);
    bytes
}

/// State and code in a request.
fn reported_state(file: &OwnedFd) -> (ScavengerProcessState, u32) {
    let word = |offset: usize| {
        let mut bytes = [0; 4];
        rustix::io::pread(file.as_fd(), &mut bytes, offset as u64).unwrap();
        u32::from_ne_bytes(bytes)
    };
    let state = word(std::mem::offset_of!(ScavengerRequest, state));
    let code = word(std::mem::offset_of!(ScavengerRequest, code));
    (ScavengerProcessState::from_number(state).unwrap(), code)
}

/// Results of a scavenger and of the program.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    scavenger: (ScavengerProcessState, u32),
    output: String,
    errors: String,
    program: (String, Option<i32>),
}

/// Runs a scavenger in the program to its end, or for a while if it is `endless`.
fn run(scavenger: &Path, words: &[&str], memory: u64) -> Option<Ended> {
    let program = Program::build("host", Libc::Glibc)?;
    let [output, errors] = ["output", "errors"].map(|name| program.directory().join(name));
    let mut session = Session::start(program.path(), &[], None);
    let conversation = session.expect(Event::Start);
    hook_sigaction(&program, &conversation);
    let file = memory_file(&request(scavenger, &output, &errors, words, memory));
    let map = Command {
        action: Action::Map as u32,
        mode: Protection::READ_WRITE | Protection::SHARED,
        address: REQUEST,
        length: REQUEST_BYTES as u64,
        ..Command::default()
    };
    conversation.done(&map, Some(&file));
    let start = Command {
        action: Action::Scavenger as u32,
        address: REQUEST,
        length: REQUEST_BYTES as u64,
        ..Command::default()
    };
    conversation.done(&start, None);
    conversation.go();
    let mut pipe = BufReader::new(session.child.stdout.take().unwrap());
    let mut text = String::new();
    pipe.read_line(&mut text).unwrap();
    let endless = words.first() == Some(&"endless");
    let begun = Instant::now();
    while [ScavengerProcessState::Starting, ScavengerProcessState::Runs]
        .contains(&reported_state(&file).0)
    {
        if endless && reported_state(&file).0 == ScavengerProcessState::Runs {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{words:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    session.write_line("go on");
    pipe.read_to_string(&mut text).unwrap();
    let code = session.child.wait().unwrap().code();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    Some(Ended {
        scavenger: reported_state(&file),
        output: read(&output),
        errors: read(&errors),
        program: (text, code),
    })
}

const MEMORY: u64 = 64 << 20;
/// The program's output in every case.
const UNHARMED: &str = "ready\nhandled 1\nlowest 3\nblock 1\n";

#[track_caller]
fn check(words: &[&str], scavenger: (ScavengerProcessState, u32), output: &str, errors: &str) {
    for form in FORMS {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = build(directory.path(), form) else {
            continue;
        };
        let Some(ended) = run(&path, words, MEMORY) else {
            return;
        };
        let expected = Ended {
            scavenger,
            output: output.to_owned(),
            errors: errors.to_owned(),
            program: (UNHARMED.to_owned(), Some(5)),
        };
        assert_eq!(ended, expected, "{form:?} {words:?}");
    }
}

#[test]
fn a_scavenger_has_arguments_variables_descriptors_and_memory_of_its_own() {
    check(
        &["say", "first", "second third"],
        (ScavengerProcessState::Exited, 7),
        "argument first\nargument second third\nvariable one=two\nown 17\nblocks 1\ndescriptor 3\n",
        "an error\n",
    );
}

#[test]
fn a_scavenger_that_fails_ends_alone() {
    const ABORT: u32 = 6;
    const FPE: u32 = 8;
    const SEGV: u32 = 11;
    for (what, signal) in [
        ("abort", ABORT),
        ("fault", SEGV),
        ("divide", FPE),
        ("overflow", SEGV),
    ] {
        check(&[what], (ScavengerProcessState::Killed, signal), "", "");
    }
}

#[test]
fn a_scavenger_that_wants_all_memory_gets_its_part() {
    check(
        &["hunger"],
        (ScavengerProcessState::Exited, 3),
        "hungry at 1\n",
        "",
    );
}

#[test]
fn a_scavenger_is_refused_what_is_the_program_s() {
    check(
        &["refused"],
        (ScavengerProcessState::Exited, 3),
        "thread 1\nfork 1\nexec 1\nkill 1\nsibling 1\nhandler 1\nlimit 1\ndirectory 1\n",
        "",
    );
}

#[test]
fn a_scavenger_without_end_ends_with_the_program() {
    check(&["endless"], (ScavengerProcessState::Runs, 0), "", "");
}

#[test]
fn what_cannot_be_a_scavenger_says_why() {
    const ENOENT: u32 = 2;
    const ENOEXEC: u32 = 8;
    const EEXIST: u32 = 17;
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "#!/bin/sh\n").unwrap();
    let mut cases = vec![(directory.path().join("nothing"), ENOENT), (text, ENOEXEC)];
    cases.extend(build(directory.path(), Form::Fixed).map(|path| (path, EEXIST)));
    for (path, errno) in cases {
        let Some(ended) = run(&path, &["say"], MEMORY) else {
            return;
        };
        assert_eq!(
            ended.scavenger,
            (ScavengerProcessState::Failed, errno),
            "{path:?}"
        );
        assert_eq!(ended.program, (UNHARMED.to_owned(), Some(5)));
    }
}
