//! The victim ends in every way there is; the registers of its tree must be as before.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const HELPER: &str = env!("CARGO_BIN_EXE_membound-platform-helper");
const REGISTER: u64 = 0x1a4;
/// A bit that membound does not own, and one prefetcher that was off before.
const BEFORE: [u64; 2] = [1 << 5, 1 << 5 | 0b0100];
const OFF: [u64; 2] = [1 << 5 | 0b1111, 1 << 5 | 0b1111];

/// A tree with the register files of two CPUs.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for (cpu, value) in BEFORE.iter().enumerate() {
            let path = machine.register_file(cpu);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = File::create(path).unwrap();
            file.write_all_at(&value.to_le_bytes(), REGISTER).unwrap();
        }
        machine
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn register_file(&self, cpu: usize) -> PathBuf {
        self.path().join(format!("dev/cpu/{cpu}/msr"))
    }

    fn registers(&self) -> [u64; 2] {
        [0, 1].map(|cpu| {
            let mut bytes = [0; 8];
            let file = File::open(self.register_file(cpu)).unwrap();
            file.read_exact_at(&mut bytes, REGISTER).unwrap();
            u64::from_le_bytes(bytes)
        })
    }

    /// Waits until the registers have these values: the guard of a killed process writes
    /// them in its own time.
    fn come_to(&self, expected: [u64; 2]) {
        eventually(|| self.registers(), expected);
    }
}

/// Waits for at most half a minute until `get` gives `expected`.
fn eventually<T: PartialEq + std::fmt::Debug>(get: impl Fn() -> T, expected: T) {
    for _ in 0..3000 {
        if get() == expected {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    assert_eq!(get(), expected);
}

/// A victim that has switched everything off, or reported why it did not.
struct Victim {
    child: Child,
    output: String,
}

impl Victim {
    fn start(root: &Path, architecture: &str, way: &str) -> Self {
        let mut child = Command::new(HELPER)
            .args(["victim", root.to_str().unwrap(), architecture, way])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut output = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut output).unwrap();
        Self {
            child,
            output: output.trim_end().to_owned(),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn end(mut self) {
        self.child.stdin = None;
        self.child.wait().unwrap();
    }
}

fn waiting(machine: &Machine) -> Victim {
    let victim = Victim::start(machine.path(), "x86_64", "wait");
    assert_eq!(victim.output, "changed");
    assert_eq!(machine.registers(), OFF);
    victim
}

#[test]
fn an_ordinary_end_puts_registers_back() {
    let machine = Machine::new();
    waiting(&machine).end();
    assert_eq!(machine.registers(), BEFORE);
}

#[test]
fn kill_9_puts_registers_back() {
    let machine = Machine::new();
    let victim = waiting(&machine);
    kill_process(victim.pid(), Signal::KILL).unwrap();
    victim.end();
    machine.come_to(BEFORE);
}

#[test]
fn signals_that_end_a_process_put_registers_back() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let machine = Machine::new();
        let victim = waiting(&machine);
        // To the whole group, as a terminal does it: the guard must not be in it.
        kill_process_group(victim.pid(), signal).unwrap();
        victim.end();
        machine.come_to(BEFORE);
    }
}

#[test]
fn panics_aborts_and_exits_put_registers_back() {
    for way in ["panic", "abort", "exit", "forget"] {
        let machine = Machine::new();
        let victim = Victim::start(machine.path(), "x86_64", way);
        assert_eq!(victim.output, "changed", "{way}");
        victim.end();
        machine.come_to(BEFORE);
    }
}

#[test]
fn without_its_guard_the_process_still_puts_registers_back() {
    let machine = Machine::new();
    let victim = waiting(&machine);
    let guards = children(victim.pid());
    assert_eq!(guards.len(), 1);
    for guard in guards {
        kill_process(guard, Signal::KILL).unwrap();
    }
    victim.end();
    assert_eq!(machine.registers(), BEFORE);
}

#[test]
fn a_bit_changed_by_another_meanwhile_stays() {
    let machine = Machine::new();
    let victim = waiting(&machine);
    let others = OFF[0] | 1 << 8;
    File::options()
        .write(true)
        .open(machine.register_file(0))
        .unwrap()
        .write_all_at(&others.to_le_bytes(), REGISTER)
        .unwrap();
    victim.end();
    assert_eq!(machine.registers(), [BEFORE[0] | 1 << 8, BEFORE[1]]);
}

#[test]
fn a_register_that_ignores_writes_is_found_out() {
    let machine = Machine::new();
    fs::remove_file(machine.register_file(1)).unwrap();
    // Reads as zero and swallows what is written, as a hypervisor may.
    symlink("/dev/zero", machine.register_file(1)).unwrap();
    let victim = Victim::start(machine.path(), "x86_64", "wait");
    assert!(
        victim.output.contains("does not keep 0xf: it reads 0x0"),
        "{}",
        victim.output
    );
    victim.end();
    // CPU 0 had been changed before CPU 1 was tried.
    machine.come_to([BEFORE[0], 0]);
}

#[test]
fn the_data_stream_control_register_of_power_comes_back() {
    let machine = tempfile::tempdir().unwrap();
    let dir = machine.path().join("sys/devices/system/cpu");
    let file = |cpu: u32| dir.join(format!("cpu{cpu}/dscr"));
    for cpu in 0..2 {
        fs::create_dir_all(file(cpu).parent().unwrap()).unwrap();
        fs::write(file(cpu), "18\n").unwrap();
    }
    let values = || [0, 1].map(|cpu| fs::read_to_string(file(cpu)).unwrap());
    let victim = Victim::start(machine.path(), "powerpc64", "wait");
    assert_eq!(victim.output, "changed");
    assert_eq!(values(), ["1\n", "1\n"]);
    kill_process(victim.pid(), Signal::KILL).unwrap();
    victim.end();
    eventually(values, ["18\n", "18\n"].map(str::to_owned));
}

/// The processes whose parent is `of`: the fourth field of `/proc/PID/stat`, two after the
/// name in parentheses.
fn children(of: Pid) -> Vec<Pid> {
    let parent = of.as_raw_nonzero().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let dir = entry.ok()?;
            let pid = Pid::from_raw(dir.file_name().to_str()?.parse().ok()?)?;
            let stat = fs::read_to_string(dir.path().join("stat")).ok()?;
            let (_, after) = stat.rsplit_once(')')?;
            (after.split_whitespace().nth(1)? == parent).then_some(pid)
        })
        .collect()
}
