//! Call chains at every instruction of programs, against the calls that they made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use membound_symbolize::{Chain, End, Frames, Symbols, Unwinder};

use crate::build::Workshop;
use crate::emulated::Emulated;
use crate::step::{After, Mapping, Stepped};

/// Bytes of stack that are read at once.
const STACK: usize = 32 << 10;

/// The same through an emulator's stub, which is slow.
const EMULATED_STACK: usize = 4 << 10;

/// Unwinds a program that is stepped.
struct Follower {
    unwinder: Unwinder,
    known: Vec<Mapping>,
    files: BTreeMap<PathBuf, Frames>,
}

impl Follower {
    fn new() -> Self {
        Self {
            unwinder: Unwinder::new(),
            known: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// Takes note of what is mapped.
    fn look(&mut self, program: &Stepped) {
        let mappings = program.mappings();
        if mappings == self.known {
            return;
        }
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            if self.known.contains(mapping) {
                continue;
            }
            let Some(frames) = self.frames(program, mapping) else {
                continue;
            };
            let file = bias(mapping);
            self.unwinder.add(mapping.start..mapping.end, file, &frames);
        }
        self.known = mappings;
    }

    fn frames(&mut self, program: &Stepped, mapping: &Mapping) -> Option<Frames> {
        if mapping.path == Path::new("[vdso]") {
            let mut image = vec![0; usize::try_from(mapping.end - mapping.start).ok()?];
            program.memory(mapping.start, &mut image);
            return Some(Frames::of_bytes(image, "[vdso]").expect("the vdso is an ELF file"));
        }
        if !mapping.path.is_absolute() {
            return None;
        }
        let path = mapping.path.clone();
        let frames = self
            .files
            .entry(path)
            .or_insert_with_key(|path| Frames::open(path).expect("a program maps ELF files"));
        Some(frames.clone())
    }

    fn chain(&mut self, program: &Stepped) -> (Vec<u64>, Chain) {
        let registers = program.registers();
        let sp = registers.general[4];
        // The bytes below belong to leaf functions.
        let base = sp.saturating_sub(128);
        let mut stack = vec![0; STACK];
        let mut read = program.memory(base, &mut stack);
        if read == 0 {
            // Near the stack's end the whole piece is not there.
            let page = 4096 - usize::try_from(base % 4096).expect("it is small");
            while read < STACK {
                let to = (page + read / 4096 * 4096).min(STACK);
                let more = program.memory(base + read as u64, &mut stack[read..to]);
                if more == 0 {
                    break;
                }
                read += more;
            }
        }
        let mut memory = |address: u64| {
            let offset = usize::try_from(address.wrapping_sub(base)).ok()?;
            match stack[..read].get(offset..offset.checked_add(8)?) {
                Some(bytes) => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
                // Another stack.
                None => program.word(address),
            }
        };
        let mut out = Vec::new();
        let chain = self.unwinder.unwind(&registers, &mut memory, &mut out);
        (out, chain)
    }
}

/// Address in the process minus address in the file, by the file's segments.
fn bias(mapping: &Mapping) -> u64 {
    if mapping.path == Path::new("[vdso]") {
        return mapping.start;
    }
    let bytes = std::fs::read(&mapping.path).expect("a program maps files");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    let headers = usize::try_from(word(32)).expect("a file's offsets fit");
    let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    for header in (0..count).map(|index| headers + 56 * index) {
        let (offset, address, size) = (word(header + 8), word(header + 16), word(header + 32));
        let loaded = bytes[header..header + 4] == [1, 0, 0, 0];
        if loaded && (offset & !0xfff..offset + size).contains(&mapping.offset) {
            return mapping.start - (address - offset + mapping.offset);
        }
    }
    panic!("{} has no segment for {mapping:?}", mapping.path.display());
}

/// How far chains must be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// From the first instruction of the loader to the exit, to the first function.
    Whole,
    /// While `main` runs, to its caller: what called it has no call frame information.
    ToMain,
}

/// Result of following a program.
struct Followed {
    compared: usize,
    differing: Vec<String>,
}

/// Steps through a program and compares every `stride`th chain.
fn follow(program: &Path, stride: usize, demand: Demand) -> Option<Followed> {
    let main = address_of_main(program);
    let mut stepped = Stepped::start(program)?;
    let mut follower = Follower::new();
    let mut followed = Followed {
        compared: 0,
        differing: Vec::new(),
    };
    // Number of calls that lead to main, including that of main, and its return address.
    let mut called: Option<(usize, u64)> = None;
    for step in 0_usize.. {
        let ip = stepped.registers().ip;
        // The loader has laid the program out before its first instruction.
        if step == 0 {
            follower.look(&stepped);
        }
        let expected = stepped.chain();
        if called.is_none() && main.is_some_and(|main| follower.is_at(ip, program, main)) {
            called = expected.first().map(|address| (expected.len(), *address));
        }
        let wanted = match demand {
            Demand::Whole => Some(expected.as_slice()),
            Demand::ToMain => called.and_then(|(depth, address)| {
                let length = (expected.len() + 1).checked_sub(depth)?;
                let wanted = &expected[..length];
                (wanted.last() == Some(&address)).then_some(wanted)
            }),
        };
        if let Some(wanted) = wanted
            && step % stride == 0
        {
            let right = |(found, chain): &(Vec<u64>, Chain)| match demand {
                Demand::Whole => found == wanted && chain.end == End::Complete,
                Demand::ToMain => found.starts_with(wanted),
            };
            let mut result = follower.chain(&stepped);
            if !right(&result) {
                // It may be in a mapping that is new.
                follower.look(&stepped);
                result = follower.chain(&stepped);
            }
            followed.compared += 1;
            if !right(&result) {
                let (found, chain) = &result;
                followed.differing.push(format!(
                    "step {step} at {}: {chain:?}\n found {}\n calls {}",
                    follower.named(ip),
                    follower.all_named(found),
                    follower.all_named(wanted),
                ));
            }
        }
        match stepped.step() {
            After::Standing => {}
            After::Exited(code) => {
                assert_eq!(code, 42, "the program itself is right");
                break;
            }
        }
    }
    Some(followed)
}

/// Where `main` begins, in the file.
fn address_of_main(program: &Path) -> Option<u64> {
    use object::{Object as _, ObjectSymbol as _};
    let bytes = std::fs::read(program).expect("it was just compiled");
    let file = object::File::parse(bytes.as_slice()).expect("it was just compiled");
    file.symbol_by_name("main").map(|symbol| symbol.address())
}

impl Follower {
    fn is_at(&self, ip: u64, program: &Path, address: u64) -> bool {
        self.known.iter().any(|mapping| {
            (mapping.start..mapping.end).contains(&ip)
                && mapping.path == program
                && ip.wrapping_sub(bias(mapping)) == address
        })
    }

    fn named(&self, address: u64) -> String {
        let mapping = self
            .known
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&address));
        let Some(mapping) = mapping.filter(|mapping| mapping.path.is_absolute()) else {
            return format!("{address:#x}");
        };
        let file = address.wrapping_sub(bias(mapping));
        let function = Symbols::open(&mapping.path)
            .ok()
            .and_then(|symbols| symbols.function(file))
            .map(|function| function.name);
        format!(
            "{}+{file:#x} {}",
            mapping.path.file_name().unwrap_or_default().display(),
            function.unwrap_or_default()
        )
    }

    fn all_named(&self, addresses: &[u64]) -> String {
        addresses
            .iter()
            .map(|address| self.named(*address))
            .collect::<Vec<_>>()
            .join(" < ")
    }
}

/// Every `stride`th chain of a program that is compiled with `flags` is right to its end.
fn check(compiler: &str, flags: &str, stride: usize, demand: Demand) {
    let workshop = Workshop::new();
    let Some(program) = workshop.compile(compiler, flags, "chains.c", "chains") else {
        return;
    };
    let Some(Followed {
        compared,
        differing,
    }) = follow(&program, stride, demand)
    else {
        return;
    };
    assert!(compared * stride > 1500, "only {compared} chains");
    assert!(
        differing.is_empty(),
        "{flags}: {} of {compared} chains differ, such as\n{}",
        differing.len(),
        differing[..differing.len().min(12)].join("\n")
    );
}

#[test]
fn without_frame_pointers_at_every_instruction() {
    check("gcc", "-O2 -fomit-frame-pointer", 1, Demand::Whole);
}

#[test]
fn with_frame_pointers() {
    check("gcc", "-O0", 7, Demand::Whole);
}

#[test]
fn with_lazy_linkage_and_its_expressions() {
    let flags = "-O3 -fcf-protection=full -Wl,-z,lazy -no-pie";
    check("gcc", flags, 3, Demand::Whole);
}

#[test]
fn statically_linked() {
    check("gcc", "-O2 -static", 3, Demand::Whole);
}

#[test]
fn stripped() {
    check("gcc", "-Os -s", 7, Demand::Whole);
}

#[test]
fn by_another_compiler() {
    check("clang", "-O2", 7, Demand::Whole);
}

#[test]
fn with_a_library_that_has_no_call_frame_information() {
    check("musl-gcc", "-O2", 2, Demand::ToMain);
    check("musl-gcc", "-O2 -static", 2, Demand::ToMain);
}

#[test]
fn without_any_call_frame_information() {
    let flags = "-O2 -fno-asynchronous-unwind-tables -fno-unwind-tables";
    check("gcc", flags, 2, Demand::ToMain);
}

/// Every `stride`th chain of a program for aarch64 that is compiled with `flags` is right to
/// its end. The emulator's own signal frames lead to code that is in no file.
fn check_aarch64(flags: &str, stride: usize) {
    let workshop = Workshop::new();
    let flags = format!("-static -DWITHOUT_SIGNALS {flags}");
    let compiler = "aarch64-linux-gnu-gcc";
    let Some(program) = workshop.compile(compiler, &flags, "chains.c", "chains") else {
        return;
    };
    let Some(mut emulated) = Emulated::start(&program) else {
        return;
    };
    let symbols = Symbols::open(&program).expect("it was just compiled");
    let named = |addresses: &[u64]| -> Vec<String> {
        let name = |address: &u64| symbols.function(*address).map(|function| function.name);
        addresses
            .iter()
            .map(|it| name(it).unwrap_or_default())
            .collect()
    };
    let mut unwinder = Unwinder::new();
    let frames = Frames::open(&program).expect("it was just compiled");
    unwinder.add(0..1 << 32, 0, &frames);
    emulated.run_to(address_of_main(&program).expect("it has a main"));
    let (mut compared, mut deepest, mut differing) = (0, 0, Vec::new());
    for step in 0_usize.. {
        if step % stride == 0 {
            let registers = emulated.registers();
            let base = registers.general[31];
            let stack = emulated.memory(base, EMULATED_STACK);
            let mut read = |address: u64| {
                let offset = usize::try_from(address.checked_sub(base)?).ok()?;
                let bytes = stack.get(offset..offset.checked_add(8)?)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            let mut found = Vec::new();
            let chain = unwinder.unwind(&registers, &mut read, &mut found);
            let wanted = emulated.chain();
            compared += 1;
            deepest = deepest.max(wanted.len());
            if !found.starts_with(&wanted) || chain.end != End::Complete {
                differing.push(format!(
                    "step {step} at {:?}: {chain:?}\n found {:?}\n calls {:?}",
                    named(&[registers.ip]),
                    named(&found),
                    named(&wanted)
                ));
            }
        }
        if !emulated.step() {
            break;
        }
    }
    assert!(compared * stride > 1000, "only {compared} chains");
    assert!(deepest >= 8, "{deepest} calls within each other");
    assert!(
        differing.is_empty(),
        "{flags}: {} of {compared} chains differ, such as\n{}",
        differing.len(),
        differing[..differing.len().min(12)].join("\n")
    );
}

#[test]
fn on_aarch64_at_every_instruction() {
    check_aarch64("-O2", 1);
}

#[test]
fn on_aarch64_with_frame_pointers() {
    check_aarch64("-O0", 7);
}

#[test]
fn on_aarch64_with_signed_return_addresses() {
    check_aarch64("-O2 -mbranch-protection=standard", 3);
}
