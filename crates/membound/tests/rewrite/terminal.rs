//! Job control: a shell on a terminal of its own stops and continues a patched program.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::build::{Compiler, build};
use crate::run::{RunDirectory, clean};

/// A pseudoterminal: the controlling side, and the side of the shell.
fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: both numbers are written; a null name, mode and size are permitted.
    let done = unsafe {
        libc::openpty(
            &raw mut ours,
            &raw mut theirs,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(done, 0, "there are terminals");
    // SAFETY: the descriptor was just opened and has no other owner.
    let ours = unsafe { File::from_raw_fd(ours) };
    // SAFETY: as above.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
    (ours, theirs)
}

/// Another descriptor of the same terminal.
fn again(terminal: &OwnedFd) -> OwnedFd {
    terminal.try_clone().expect("there are descriptors")
}

/// A shell on a terminal, and its output so far.
struct Shell {
    child: Child,
    ours: File,
    lines: Receiver<Vec<u8>>,
    pending: String,
}

impl Shell {
    fn start(room: &RunDirectory) -> Self {
        let (ours, theirs) = terminal();
        let mut command = Command::new("/bin/bash");
        clean(&mut command, room);
        command
            .args(["--norc", "--noprofile", "--noediting", "-i"])
            .env("PS1", "ready> ")
            .env("TERM", "dumb")
            .stdin(again(&theirs))
            .stdout(again(&theirs))
            .stderr(theirs);
        let lead = || {
            // SAFETY: nothing but system calls between fork and exec.
            if unsafe { libc::setsid() } < 0 {
                return Err(std::io::Error::last_os_error());
            }
            // SAFETY: standard input is the terminal.
            if unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        };
        // SAFETY: `lead` calls nothing that is not permitted after fork.
        unsafe { command.pre_exec(lead) };
        let child = command.spawn().expect("bash starts");
        let (sender, lines) = channel();
        let mut reader = ours.try_clone().expect("there are descriptors");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = reader.read(&mut bytes) {
                if length == 0 || sender.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            ours,
            lines,
            pending: String::new(),
        }
    }

    fn write(&mut self, text: &str) {
        self.ours
            .write_all(text.as_bytes())
            .expect("the shell is there");
    }

    /// Reads until `text` has appeared, and discards the output up to its end.
    fn until(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            if let Some(at) = self.pending.find(text) {
                self.pending.drain(..at + text.len());
                return;
            }
            let left = Duration::from_secs(60).saturating_sub(started.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(bytes) => self.pending.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("`{text}` does not come; there is: {}", self.pending),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Ctrl-Z stops the job, `fg` continues it, Ctrl-C ends it, as it does unpatched.
#[test]
fn a_job_is_stopped_continued_and_interrupted() {
    if !std::path::Path::new("/bin/bash").exists() {
        membound_testkit::skipped("no bash");
        return;
    }
    let Some(program) = build(Compiler::Gcc, "waits.c", "-O2") else {
        return;
    };
    let room = RunDirectory::new();
    let membound = env!("CARGO_BIN_EXE_membound");
    let stop = room.path().join("stop");
    for prefix in [String::new(), format!("{membound} rewrite check -- ")] {
        File::create(&stop).unwrap();
        let mut shell = Shell::start(&room);
        shell.until("ready> ");
        shell.write(&format!("{prefix}{} stop\n", program.display()));
        shell.until("working\r\n");
        shell.write("\x1a");
        shell.until("Stopped");
        shell.until("ready> ");
        shell.write("jobs -l; echo counted $(jobs -s | wc -l)\n");
        shell.until("counted 1");
        shell.write("fg\n");
        std::thread::sleep(Duration::from_millis(200));
        shell.write("\x1a");
        shell.until("Stopped");
        shell.write("bg; rm stop; wait; echo done with $?\n");
        shell.until("worked");
        shell.until("done with 0");
        // And one that is interrupted.
        File::create(&stop).unwrap();
        shell.write(&format!("{prefix}{} stop\n", program.display()));
        shell.until("working\r\n");
        shell.write("\x03");
        shell.until("ready> ");
        shell.write("echo interrupted with $?\n");
        shell.until("interrupted with 130");
        shell.write("exit\n");
    }
}
