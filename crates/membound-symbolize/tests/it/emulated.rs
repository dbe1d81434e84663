//! A program for aarch64 under qemu's user emulation, followed through its gdb stub.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use membound_symbolize::Registers;

/// Emulates a processor with everything that qemu knows, pointer authentication included.
const EMULATOR: &str = "qemu-aarch64";
/// Registers at the head of the answer to `g`: x0 to x30, sp, pc.
const REGISTERS: usize = 33;

/// A program stopped before an instruction.
pub(crate) struct Emulated {
    child: Child,
    stub: UnixStream,
    /// Instructions by their addresses: text does not change.
    words: HashMap<u64, u32>,
    /// Return addresses of the calls that were seen, outermost first.
    calls: Vec<u64>,
}

impl Drop for Emulated {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Emulated {
    /// Starts a statically linked program, stopped before its first instruction. `None`, with a message, if
    /// there is no emulator. The socket of the stub is made beside the program.
    pub(crate) fn start(program: &Path) -> Option<Self> {
        if Command::new(EMULATOR).arg("-version").output().is_err() {
            membound_testkit::skipped(format!("no {EMULATOR} (Debian package qemu-user)"));
            return None;
        }
        let socket = program.with_extension("gdb");
        let mut child = Command::new(EMULATOR)
            .arg("-g")
            .arg(&socket)
            .arg(program)
            .stdin(Stdio::null())
            .spawn()
            .expect("the emulator was found");
        let stub = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            UnixStream::connect(&socket).ok()
        });
        let Some(stub) = stub else {
            let _ = child.kill();
            panic!("{EMULATOR} does not listen at {}", socket.display());
        };
        let mut emulated = Self {
            child,
            stub,
            words: HashMap::new(),
            calls: Vec::new(),
        };
        emulated.ask("?");
        Some(emulated)
    }

    /// Runs it until it is at `address`; from there on, its calls are recorded. The first of them is the one
    /// that the function at `address` returns from.
    pub(crate) fn run_to(&mut self, address: u64) {
        assert_eq!(self.ask(&format!("Z0,{address:x},4")), "OK");
        assert!(self.ask("c").starts_with("T05"), "it comes there");
        assert_eq!(self.ask(&format!("z0,{address:x},4")), "OK");
        let registers = self.registers();
        assert_eq!(registers.ip, address);
        self.calls.push(registers.general[30]);
    }

    /// Executes one instruction. `false` if the function that [`Self::run_to`] reached has returned.
    pub(crate) fn step(&mut self) -> bool {
        let ip = self.registers().ip;
        let word = self.word(ip);
        assert!(self.ask("s").starts_with("T05"), "it goes on");
        // bl, blr, and blr with a signed address; ret, and ret with one.
        let calls = word >> 26 == 0b10_0101 || word & 0xfeff_f000 == 0xd63f_0000;
        let returns = word & 0xffff_f000 == 0xd65f_0000;
        if calls {
            self.calls.push(ip + 4);
        } else if returns {
            self.calls.pop();
        }
        !self.calls.is_empty()
    }

    /// Where it will come back to, innermost first.
    pub(crate) fn chain(&self) -> Vec<u64> {
        self.calls.iter().rev().copied().collect()
    }

    pub(crate) fn registers(&mut self) -> Registers {
        let bytes = bytes_of(&self.ask("g"));
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        let mut registers = Registers {
            ip: words[REGISTERS - 1],
            ..Registers::default()
        };
        registers.general.copy_from_slice(&words[..REGISTERS - 1]);
        registers
    }

    /// Memory, as far as it can be read, in pieces for which a packet has room.
    pub(crate) fn memory(&mut self, address: u64, length: usize) -> Vec<u8> {
        const PIECE: usize = 1024;
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let (at, most) = (address + bytes.len() as u64, length - bytes.len());
            // A piece that ends outside of memory would be refused as a whole.
            let piece = most.min(PIECE - (at % PIECE as u64) as usize);
            let read = bytes_of(&self.ask(&format!("m{at:x},{piece:x}")));
            if read.is_empty() {
                break;
            }
            bytes.extend(read);
        }
        bytes
    }

    fn word(&mut self, address: u64) -> u32 {
        if let Some(word) = self.words.get(&address) {
            return *word;
        }
        let bytes = self.memory(address, 4);
        let word = u32::from_le_bytes(bytes.try_into().expect("text can be read"));
        self.words.insert(address, word);
        word
    }

    /// Sends a packet and returns the answer to it.
    fn ask(&mut self, packet: &str) -> String {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.stub, "${packet}#{sum:02x}").expect("the stub listens");
        // What comes first is a plus sign: it was understood.
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let read = self.stub.read(&mut piece).expect("the stub answers");
            assert!(read > 0, "the emulator ended at {packet}");
            answer.extend(&piece[..read]);
            if answer.len() >= 3 && answer[answer.len() - 3] == b'#' {
                break;
            }
        }
        self.stub.write_all(b"+").expect("the stub listens");
        let begin = answer
            .iter()
            .position(|byte| *byte == b'$')
            .expect("a packet")
            + 1;
        let end = answer.len() - 3;
        String::from_utf8(answer[begin..end].to_vec()).expect("packets are text")
    }
}

/// Bytes of hexadecimal digits; none of an error.
fn bytes_of(digits: &str) -> Vec<u8> {
    if digits.starts_with('E') {
        return Vec::new();
    }
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs
        .map_while(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
