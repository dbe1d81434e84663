//! Threads of a patched program that are stopped and inspected from outside.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use membound_launch::{Registers, Remote, Standing};
use membound_platform::{Root, threads};
use membound_rewrite::patch::{self, Body};

use crate::fixture::{Fixture, busy, could_be_patched};

/// A thread that this one has seized.
struct Seized(i32);

impl Seized {
    fn seize(thread: i32) -> Option<Self> {
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: it touches no memory of this process.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) };
        (result == 0).then_some(Self(thread))
    }

    /// Stops it, and returns what `look` computes from its registers; `None` if it has ended.
    fn stopped<T>(&self, look: impl FnOnce(&libc::user_regs_struct) -> T) -> Option<T> {
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: as above.
        let result = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.0, none, none) };
        if result != 0 {
            return None;
        }
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes one word.
            let found = unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) };
            if found != self.0 || !libc::WIFSTOPPED(status) {
                return None;
            }
            let interrupted = status >> 16 == libc::PTRACE_EVENT_STOP;
            if !interrupted {
                // A signal of the program's own: it gets it.
                let signal = ptr::without_provenance_mut::<libc::c_void>(
                    usize::try_from(libc::WSTOPSIG(status)).expect("signals are positive"),
                );
                // SAFETY: it touches no memory of this process.
                unsafe { libc::ptrace(libc::PTRACE_CONT, self.0, none, signal) };
                continue;
            }
            // SAFETY: a structure of numbers.
            let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel fills the structure.
            let got =
                unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.0, none, &raw mut registers) };
            assert_eq!(got, 0);
            let seen = look(&registers);
            // SAFETY: as above.
            unsafe { libc::ptrace(libc::PTRACE_CONT, self.0, none, none) };
            return Some(seen);
        }
    }
}

fn original(
    remote: &Remote,
    pid: u32,
    memory: &File,
    found: &libc::user_regs_struct,
) -> (Standing, Registers) {
    let mut registers = Registers {
        ip: found.rip,
        ..Registers::from([
            found.rax, found.rcx, found.rdx, found.rbx, found.rsp, found.rbp, found.rsi, found.rdi,
            found.r8, found.r9, found.r10, found.r11, found.r12, found.r13, found.r14, found.r15,
        ])
    };
    let read = |address: u64| {
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, address).ok()?;
        Some(u64::from_ne_bytes(word))
    };
    let standing = remote.standing(pid, &mut registers, &read);
    (standing, registers)
}

#[test]
fn registers_are_put_back_wherever_a_thread_is_stopped() {
    let Some(fixture) = Fixture::build("ticked.c") else {
        return;
    };
    let _busy = busy();
    // Enters the agent every few accesses.
    let mut options = fixture.options(patch::Options::new(Body::Sample));
    options.period = 3;
    options.recording = Some(membound_launch::Recording::default());
    let (session, out) = fixture.start(options, &["burn", "1500", "1"]);
    let (pid, remote) = (session.pid(), session.remote());
    let begun = Instant::now();
    // One thread does all the work; neither the first nor the agent's does any.
    let worker = loop {
        let mut threads = threads::of(&Root::system(), pid).into_iter();
        let worker = threads.find(|it| it.id != pid && it.ticks >= 2);
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "it begins");
        match worker {
            Some(worker) => break worker.id.cast_signed(),
            None if fs::metadata(format!("/proc/{pid}")).is_err() => return,
            None => sleep(Duration::from_millis(5)),
        }
    };
    let memory = File::open(format!("/proc/{pid}/mem"));
    let (Some(seized), Ok(memory)) = (Seized::seize(worker), memory) else {
        membound_testkit::skipped("threads cannot be traced");
        return;
    };
    let ruled = fixture.function("ruled").range;
    // From its first instruction of the loop to its last.
    let inside = ruled.start + 39..ruled.end - 8;
    let page = inside.start & !0xfff;
    let text = membound_launch::maps_of(pid)
        .unwrap_or_default()
        .into_iter()
        .find(|map| map.executable && map.name == fixture.program.as_os_str())
        .map_or(0..0, |map| map.range);
    let mut seen = [0_u32; 5];
    let mut in_loop = 0;
    while let Some((standing, registers)) =
        seized.stopped(|found| original(&remote, pid, &memory, found))
    {
        seen[match standing {
            Standing::Program => 0,
            Standing::Trampoline => 1,
            Standing::Called => 2,
            Standing::Agent => 3,
            Standing::Body => 4,
        }] += 1;
        if standing != Standing::Agent
            && text.contains(&registers.ip)
            && inside.contains(&(page + (registers.ip & 0xfff)))
        {
            let [rbx, r12, r13, r14] = [3, 12, 13, 14].map(|it| registers.general[it]);
            let rule = rbx == 0x0123_4567 && r12 == 2 * rbx && r13 == !rbx && r14 == 0x5a5a_5a5a;
            assert!(rule, "{standing:?} {registers:x?}");
            in_loop += 1;
        }
        sleep(Duration::from_micros(500));
    }
    let ended = session.wait();
    let out = fs::read_to_string(out).unwrap();
    let report = session.finish();
    assert!(out.ends_with("failures 0\n"), "{ended:?} {out}");
    if could_be_patched(&report) {
        let [program, trampoline, called, agent, body] = seen;
        let all: u32 = seen.iter().sum();
        assert!(in_loop * 2 > all && all > 50, "{in_loop} {seen:?}");
        assert!(called > 0 && body > 0, "{seen:?}");
        // The loader and conversations, not calls of trampolines. Whether stops hit a trampoline's own
        // instructions depends on the processor: some take interrupts only behind instructions that wait.
        assert!(agent * 10 <= all, "{seen:?} {program} {trampoline}");
    }
}
