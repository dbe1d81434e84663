//! Runs programs one instruction at a time: every step that the processor takes must be an edge of the
//! decoded functions.

use std::collections::HashMap;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use membound_rewrite::code::{BlockEnd, Function, ImageFacts, Tables};
use membound_rewrite::image::Image;
use membound_testkit::skipped;

/// Number of steps after which a fixture counts as stuck.
const MAX_STEPS: u64 = 20_000_000;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/code/fixtures")
        .join(name)
}

/// Compiles a fixture; `None` if the compiler is missing or lacks an option.
pub(super) fn compile(directory: &Path, command: &[&str], source: &str) -> Option<PathBuf> {
    let output = directory.join("program");
    let status = Command::new(command[0])
        .args(&command[1..])
        .arg(fixture(source))
        .arg("-o")
        .arg(&output)
        .output();
    match status {
        Ok(status) if status.status.success() => Some(output),
        Ok(status) => {
            let errors = String::from_utf8_lossy(&status.stderr);
            skipped(format!("{command:?} cannot compile {source}: {errors}"));
            None
        }
        Err(error) => {
            skipped(format!("no {}: {error}", command[0]));
            None
        }
    }
}

/// A mapped file, with the functions that have been executed so far.
struct ExecutedModule {
    image: Image<'static>,
    knowledge: ImageFacts,
    functions: HashMap<usize, Function>,
}

/// Every module used by a test of this thread; libc is the same in all of them.
#[derive(Default)]
struct Modules {
    by_path: HashMap<PathBuf, Option<ExecutedModule>>,
}

impl Modules {
    fn get(&mut self, path: &Path) -> Option<&mut ExecutedModule> {
        let module = self.by_path.entry(path.to_owned()).or_insert_with(|| {
            let data: &'static [u8] = std::fs::read(path).ok()?.leak();
            let image = Image::parse(data).ok()?;
            let knowledge = ImageFacts::gather(&image, Tables::Resolve);
            Some(ExecutedModule {
                image,
                knowledge,
                functions: HashMap::new(),
            })
        });
        module.as_mut()
    }
}

/// The file, and the address in it, of an address of the process.
#[derive(Clone, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// Bias to subtract from an address to obtain the file's address.
    bias: u64,
    path: PathBuf,
}

fn mappings(pid: i32, modules: &mut Modules) -> Vec<Mapping> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut found = Vec::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, permissions, offset, _, _, path] = fields[..] else {
            continue;
        };
        if !permissions.contains('x') || !path.starts_with('/') {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end, offset) = (number(start), number(end), number(offset));
        let path = PathBuf::from(path);
        let Some(module) = modules.get(&path) else {
            continue;
        };
        // The executable segment that begins on the page mapped from this offset.
        let data = std::fs::read(&path).unwrap();
        let address = program_header_at(&data, offset);
        let Some(address) = address.filter(|&address| {
            module.image.is_text(address | 0xfff)
                || module
                    .image
                    .text()
                    .iter()
                    .any(|text| text.start & !0xfff == address)
        }) else {
            continue;
        };
        found.push(Mapping {
            start,
            end,
            bias: start.wrapping_sub(address),
            path,
        });
    }
    found
}

/// The page-aligned address of the executable segment mapped from a file offset.
fn program_header_at(data: &[u8], offset: u64) -> Option<u64> {
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(data[at..at + 2].try_into().unwrap());
    let headers = usize::try_from(word(0x20)).ok()?;
    (0..usize::from(half(0x38)))
        .map(|index| headers + index * 56)
        .filter(|&at| data[at] == 1 && data[at + 4] & 1 != 0)
        .find(|&at| word(at + 8) & !0xfff == offset)
        .map(|at| word(at + 16) & !0xfff)
}

/// An address in relation to the block that contains it.
struct Spot {
    function: usize,
    block: usize,
    is_start: bool,
    is_entered: bool,
    is_string: bool,
    next: u64,
    is_last: bool,
}

impl ExecutedModule {
    fn function(&mut self, index: usize) -> &Function {
        let (image, knowledge) = (&self.image, &self.knowledge);
        self.functions
            .entry(index)
            .or_insert_with(|| Function::decode(image, knowledge, index))
    }

    /// `Err` if no block contains the address.
    fn spot(&mut self, address: u64) -> Result<Option<Spot>, String> {
        let Some(index) = self.image.function_at(address) else {
            return Err(format!("no function holds {address:#x}"));
        };
        let function = self.function(index);
        if function.unresolved.is_some() {
            return Ok(None);
        }
        let Ok(at) = function
            .instructions
            .binary_search_by(|instruction| instruction.ip().cmp(&address))
        else {
            return Err(format!("{address:#x} was not decoded"));
        };
        let block = function
            .blocks
            .partition_point(|block| block.end as usize <= at);
        let instruction = &function.instructions[at];
        Ok(Some(Spot {
            function: index,
            block,
            is_start: function.blocks[block].first as usize == at,
            is_entered: function.blocks[block].entered_from_outside,
            is_string: instruction.is_string_instruction(),
            next: instruction.next_ip(),
            is_last: function.blocks[block].end as usize == at + 1,
        }))
    }
}

/// Statistics of a run.
#[derive(Debug, Default)]
struct Run {
    steps: u64,
    tables: u64,
    unresolved: u64,
    output: String,
    exit: Option<i32>,
    wrong: Vec<String>,
}

/// Runs a program and checks each of its steps in known files.
fn run(program: &Path, modules: &mut Modules) -> Option<Run> {
    let mut command = Command::new(program);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: what runs in the child is async-signal-safe.
    unsafe { command.pre_exec(be_traced) };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            skipped(format!("no ptrace: {error}"));
            return None;
        }
    };
    let pid = i32::try_from(child.id()).unwrap();
    let mut run = Run::default();
    let mut status = wait(pid);
    let mut known = mappings(pid, modules);
    let mut before: Option<(PathBuf, u64, Option<Spot>)> = None;
    while libc::WIFSTOPPED(status) && run.steps < MAX_STEPS {
        run.steps += 1;
        let address = instruction_pointer(pid);
        let find = |known: &[Mapping]| {
            known
                .iter()
                .find(|mapping| (mapping.start..mapping.end).contains(&address))
                .cloned()
        };
        let mapping = find(&known).or_else(|| {
            // The loader maps more files as the program runs.
            if before.is_some() {
                known = mappings(pid, modules);
            }
            find(&known)
        });
        before = mapping.and_then(|mapping| {
            let module = modules.get(&mapping.path)?;
            let here = address.wrapping_sub(mapping.bias);
            let spot = match module.spot(here) {
                Ok(spot) => spot,
                Err(error) => {
                    run.wrong
                        .push(format!("{}: {error}", mapping.path.display()));
                    None
                }
            };
            match &spot {
                None => run.unresolved += 1,
                Some(spot) => {
                    let from = before.as_ref().filter(|(path, ..)| *path == mapping.path);
                    let from = from.map(|(_, address, spot)| (*address, spot.as_ref()));
                    if let Err(error) = step(module, from, here, spot, &mut run.tables) {
                        run.wrong
                            .push(format!("{}: {error}", mapping.path.display()));
                    }
                }
            }
            Some((mapping.path, here, spot))
        });
        // SAFETY: the child is stopped; no pointers are passed.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) };
        status = wait(pid);
    }
    if libc::WIFEXITED(status) {
        run.exit = Some(libc::WEXITSTATUS(status));
    } else {
        child.kill().unwrap();
    }
    let mut output = child.stdout.take().unwrap();
    output.read_to_string(&mut run.output).unwrap();
    Some(run)
}

/// Checks one step to `here` against the blocks.
fn step(
    module: &mut ExecutedModule,
    from: Option<(u64, Option<&Spot>)>,
    here: u64,
    spot: &Spot,
    tables: &mut u64,
) -> Result<(), String> {
    let Some((was, Some(before))) = from else {
        // From unknown code: by a call, a return, or an action of the kernel or loader.
        return if spot.is_start {
            Ok(())
        } else {
            Err(format!("{here:#x} is entered and begins no block"))
        };
    };
    if was == here && before.is_string {
        return Ok(());
    }
    if before.next == here && !before.is_last {
        return if before.block == spot.block {
            Ok(())
        } else {
            Err(format!("{was:#x} and {here:#x} are not in one block"))
        };
    }
    if !spot.is_start {
        return Err(format!(
            "{was:#x} leads to {here:#x}, which begins no block"
        ));
    }
    let function = module.function(before.function);
    let block = &function.blocks[before.block];
    if !before.is_last {
        return Err(format!("{was:#x} leads to {here:#x} and ends no block"));
    }
    let is_successor = spot.function == before.function
        && block
            .successors
            .iter()
            .any(|successor| successor.index() == spot.block);
    let is_known = match block.leaves_by {
        BlockEnd::FallsThrough | BlockEnd::Jump => is_successor,
        BlockEnd::Table => {
            *tables += 1;
            is_successor
        }
        BlockEnd::Leaves { target, .. } => {
            is_successor || target == here || block.successors.len() > 1
        }
        BlockEnd::Call { target, .. } => target.is_none_or(|target| target == here),
        // To another function; or to the next instruction, for the resolver, while a slot is not filled.
        BlockEnd::TailCall => spot.is_entered || spot.function != before.function,
        BlockEnd::Return => returns(module, spot, here),
        BlockEnd::Unresolved => true,
        BlockEnd::Stops => false,
    };
    if is_known {
        Ok(())
    } else {
        let end = module.function(before.function).blocks[before.block].leaves_by;
        Err(format!("{was:#x} ({end:x?}) leads to {here:#x}"))
    }
}

/// True if a return may lead here: not after a call that never returns.
fn returns(module: &mut ExecutedModule, spot: &Spot, here: u64) -> bool {
    let function = module.function(spot.function);
    let behind = spot
        .block
        .checked_sub(1)
        .map(|block| &function.blocks[block]);
    behind.is_none_or(|block| {
        let last = function.instructions[block.end as usize - 1];
        last.next_ip() != here || !matches!(block.leaves_by, BlockEnd::Call { returns: false, .. })
    })
}

fn be_traced() -> std::io::Result<()> {
    // SAFETY: no pointers are passed.
    match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is valid for a write.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

fn instruction_pointer(pid: i32) -> u64 {
    let offset = std::mem::offset_of!(libc::user_regs_struct, rip);
    // SAFETY: the child is stopped; the offset lies in its `struct user`.
    let rip = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, pid, offset, 0) };
    rip.cast_unsigned()
}

/// Most steps of a static program in unresolved functions before its `main`: the C library determines what
/// the processor can do. Their share of all steps depends on the processor and the environment.
const START_UP_STEPS: u64 = 3000;

/// Compiles a fixture in several ways and runs it; all must print the same, and every step must be a known
/// edge.
fn check(source: &str, commands: &[&[&str]], fewest_tables: u64) {
    let mut modules = Modules::default();
    let mut printed: Option<String> = None;
    for command in commands {
        let directory = tempfile::tempdir().unwrap();
        let Some(program) = compile(directory.path(), command, source) else {
            continue;
        };
        let Some(run) = run(&program, &mut modules) else {
            return;
        };
        // Program names are reused.
        modules.by_path.remove(&program);
        assert!(
            run.wrong.is_empty(),
            "{command:?}: {} of {} steps: {:#?}",
            run.wrong.len(),
            run.steps,
            &run.wrong[..run.wrong.len().min(10)]
        );
        assert_eq!(run.exit, Some(0), "{command:?}");
        assert!(
            run.tables >= fewest_tables,
            "{command:?}: {} tables",
            run.tables
        );
        let unresolved = run.unresolved.saturating_sub(START_UP_STEPS);
        assert!(
            unresolved * 20 < run.steps,
            "{command:?}: {} of {} steps in functions that are not resolved",
            run.unresolved,
            run.steps
        );
        let expected = printed.get_or_insert_with(|| run.output.clone());
        assert_eq!(*expected, run.output, "{command:?}");
    }
}

#[test]
fn switches_by_gcc() {
    check(
        "switches.c",
        &[
            &["gcc", "-O0"],
            &["gcc", "-O1", "-fcf-protection=full"],
            &["gcc", "-O2"],
            &["gcc", "-O3", "-fcf-protection=full"],
            &["gcc", "-Os"],
            &["gcc", "-O2", "-fno-pie", "-no-pie"],
            &["gcc", "-O0", "-fno-pie", "-no-pie"],
            &["gcc", "-O2", "-static"],
            &["gcc", "-O2", "-s", "-fno-plt", "-Wl,-z,now"],
        ],
        20,
    );
}

#[test]
fn switches_by_clang() {
    check(
        "switches.c",
        &[
            &["clang", "-O0"],
            &["clang", "-O1"],
            &["clang", "-O2"],
            &["clang", "-O3", "-fcf-protection=full"],
            &["clang", "-Os"],
            &["clang", "-Oz"],
            &["clang", "-O2", "-fno-pie", "-no-pie"],
            &["clang", "-O0", "-fno-pie", "-no-pie"],
        ],
        20,
    );
}

#[test]
fn exceptions() {
    check(
        "exceptions.cpp",
        &[
            // Linked statically and with an index of unwind information; otherwise the loader and the
            // unwinder would take millions of steps for preparation.
            &["g++", "-O0", "-static-pie"],
            &["g++", "-O2", "-static-pie", "-s"],
            &["clang++", "-O2", "-static-pie"],
        ],
        5,
    );
}

#[test]
fn rust_programs() {
    check(
        "matches.rs",
        &[
            &["rustc", "--edition=2021", "-Copt-level=0"],
            &["rustc", "--edition=2021", "-Copt-level=3"],
            &[
                "rustc",
                "--edition=2021",
                "-Copt-level=s",
                "-Cstrip=symbols",
            ],
        ],
        5,
    );
}
