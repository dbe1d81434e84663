//! A program that is followed instruction by instruction, and the calls that it made.

use std::ffi::c_int;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use membound_symbolize::Registers;

/// A program stopped before an instruction.
pub(crate) struct Stepped {
    child: Child,
    pid: libc::pid_t,
    /// Where return addresses lie on the stack, and what they are, outermost first.
    calls: Vec<(u64, u64)>,
    /// Signals that are to be delivered with the next step.
    signal: c_int,
}

/// A mapping of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) executable: bool,
    pub(crate) path: PathBuf,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It stands before the next instruction.
    Standing,
    /// It ended with this code.
    Exited(i32),
}

impl Stepped {
    /// Starts a program, stopped before the first instruction of its loader. `None`, with a message, if this
    /// machine does not permit tracing.
    pub(crate) fn start(program: &Path) -> Option<Self> {
        let mut command = Command::new(program);
        // SAFETY: between fork and exec only this system call is made.
        unsafe {
            command.pre_exec(trace_me);
        }
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                membound_testkit::skipped(format!("no ptrace: {error}"));
                return None;
            }
            Err(error) => panic!("{} cannot be started: {error}", program.display()),
        };
        let pid = libc::pid_t::try_from(child.id()).expect("process numbers are small");
        let mut stepped = Self {
            child,
            pid,
            calls: Vec::new(),
            signal: 0,
        };
        let status = stepped.wait();
        assert!(libc::WIFSTOPPED(status), "it stops behind exec");
        Some(stepped)
    }

    /// Executes one instruction.
    pub(crate) fn step(&mut self) -> After {
        let before = self.registers();
        let (length, call) = self.instruction(before.ip);
        self.request(libc::PTRACE_SINGLESTEP, self.signal);
        let delivered = std::mem::take(&mut self.signal);
        let status = self.wait();
        if libc::WIFEXITED(status) {
            return After::Exited(libc::WEXITSTATUS(status));
        }
        assert!(libc::WIFSTOPPED(status), "status {status:#x}");
        let stopped = libc::WSTOPSIG(status);
        if stopped != libc::SIGTRAP {
            self.signal = stopped;
        }
        let after = self.registers();
        let sp = after.general[4];
        if delivered != 0 {
            // The kernel has pushed a frame: its return address, and what it interrupted.
            self.calls.push((u64::MAX, before.ip + 1));
            self.calls
                .push((sp, self.word(sp).expect("the stack is mapped")));
            return After::Standing;
        }
        self.returned(&before, &after);
        if call && after.ip != before.ip {
            let pushed = self.word(sp).expect("the stack is mapped");
            assert_eq!(pushed, before.ip + length);
            self.calls.push((sp, pushed));
        }
        After::Standing
    }

    /// Return addresses, innermost first. Interrupted instructions are among them, as the address after their
    /// first byte.
    pub(crate) fn chain(&self) -> Vec<u64> {
        self.calls
            .iter()
            .rev()
            .map(|(_, address)| *address)
            .collect()
    }

    /// Removes the calls that have returned: those whose slot was popped, and signals whose interrupted code
    /// continues.
    fn returned(&mut self, before: &Registers, after: &Registers) {
        let interrupted = self.calls.iter().rposition(|(slot, _)| *slot == u64::MAX);
        // A handler that came back pops its restorer, and the restorer calls the kernel.
        if let Some(at) = interrupted
            && self.calls.len() == at + 1
            && after.ip.wrapping_add(1) == self.calls[at].1
            && after.general[4] != before.general[4]
        {
            self.calls.truncate(at);
        }
        while let Some((slot, _)) = self.calls.last()
            && *slot != u64::MAX
            && *slot < after.general[4]
        {
            self.calls.pop();
        }
    }

    pub(crate) fn registers(&self) -> Registers {
        // SAFETY: registers are plain numbers, of which all zeros is a value.
        let mut found: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the tracee is stopped, and `found` is what this request fills.
        let result =
            unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0_usize, &raw mut found) };
        assert_eq!(result, 0, "a stopped tracee has registers");
        let mut registers = Registers {
            ip: found.rip,
            ..Registers::default()
        };
        registers.general[..16].copy_from_slice(&[
            found.rax, found.rcx, found.rdx, found.rbx, found.rsp, found.rbp, found.rsi, found.rdi,
            found.r8, found.r9, found.r10, found.r11, found.r12, found.r13, found.r14, found.r15,
        ]);
        registers
    }

    /// Bytes of its memory, as many as there are up to the length of `into`.
    pub(crate) fn memory(&self, address: u64, into: &mut [u8]) -> usize {
        let here = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let there = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize),
            iov_len: into.len(),
        };
        // SAFETY: `here` is `into`; the other side is checked by the kernel.
        let read =
            unsafe { libc::process_vm_readv(self.pid, &raw const here, 1, &raw const there, 1, 0) };
        usize::try_from(read).unwrap_or(0)
    }

    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.memory(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        let text = fs::read_to_string(format!("/proc/{}/maps", self.pid))
            .expect("a stopped tracee has maps");
        text.lines().filter_map(mapping).collect()
    }

    /// Length of the instruction at `address`, and whether it is a call.
    fn instruction(&self, address: u64) -> (u64, bool) {
        let mut bytes = [0; 15];
        let read = self.memory(address, &mut bytes);
        let mut decoder = Decoder::with_ip(64, &bytes[..read], address, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let call = matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) && !matches!(
            instruction.mnemonic(),
            iced_x86::Mnemonic::Syscall | iced_x86::Mnemonic::Sysenter
        );
        (instruction.len() as u64, call)
    }

    fn request(&self, request: libc::c_uint, data: c_int) {
        // SAFETY: this request of a stopped tracee takes a number and no address.
        let result = unsafe { libc::ptrace(request, self.pid, 0_usize, data as usize) };
        assert_eq!(result, 0, "a stopped tracee can be continued");
    }

    fn wait(&mut self) -> c_int {
        let mut status = 0;
        // SAFETY: the child is this process's own, and `status` outlives the call.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(pid, self.pid, "it is waited for nowhere else");
        status
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        // A test that fails leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trace_me() -> std::io::Result<()> {
    // SAFETY: this request takes no addresses.
    match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0_usize, 0_usize) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        offset: number(offset)?,
        executable: permissions.contains('x'),
        path: fields.nth(2)?.into(),
    })
}
