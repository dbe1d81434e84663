//! The other processes of the integration tests: the guard, and a victim that switches prefetchers
//! of a tree off and then ends in the given way.
//!
//! `helper guard` is the guard. `helper victim ROOT ARCHITECTURE WAY [SETTING]` prints `changed`
//! when the prefetchers are set, to `off` without SETTING. `helper denied` installs a filter that
//! denies what a container denies, and prints how the library reports each refusal.

mod denied;

use std::io::{self, Read, Write};
use std::process::ExitCode;

use membound_platform::Root;
use membound_platform::prefetcher::Controls;
use membound_platform::prefetcher::guard::{GuardCommand, restore_main};
use membound_types::{Cpu, CpuId, Outcome, PrefetchState};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["guard"] => {
            let code = restore_main(io::stdin().lock(), io::stdout().lock());
            ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
        }
        ["denied"] => denied::main(),
        ["victim", root, architecture, way] => victim(root, architecture, way, "off"),
        ["victim", root, architecture, way, setting] => victim(root, architecture, way, setting),
        _ => ExitCode::from(2),
    }
}

fn victim(root: &str, architecture: &str, way: &str, setting: &str) -> ExitCode {
    let cpu = Cpu {
        architecture: architecture.to_owned(),
        vendor: if architecture == "x86_64" {
            "GenuineIntel"
        } else {
            "IBM"
        }
        .to_owned(),
        family: Some(6),
        model: Some(0x6a),
        online: vec![CpuId(0), CpuId(1)],
        ..Cpu::default()
    };
    let controls = match Controls::detect(&Root::at(root), &cpu) {
        Outcome::Known(controls) => controls,
        Outcome::Missing { not_measured } => return print_line(&not_measured.reason, 3),
    };
    let program = std::env::current_exe().expect("a program on Linux knows its own path");
    let guard = GuardCommand::new(program, ["guard"]);
    let setting = PrefetchState::of_name(setting);
    let restore = match controls.set(&setting, &cpu.online, &guard) {
        Ok(restore) => restore,
        Err(error) => return print_line(&error.to_string(), 4),
    };
    print_line("changed", 0);
    match way {
        "wait" => {
            let _ = io::stdin().read(&mut [0]);
            drop(restore);
        }
        "panic" => panic!("as the test asked"),
        "abort" => std::process::abort(),
        // Runs no destructor.
        "exit" => std::process::exit(0),
        "forget" => std::mem::forget(restore),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn print_line(line: &str, code: u8) -> ExitCode {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    ExitCode::from(if written.is_ok() { code } else { 5 })
}
