//! Other C libraries and languages: code that can be patched is patched; for the rest the reason is reported,
//! and it runs.

use std::path::Path;

use crate::build::{Compiler, build, is_there};
use crate::case::{Case, Expected};

#[test]
fn a_musl_program_is_patched() {
    if let Some(program) = build(Compiler::Musl, "plain.c", "-O2") {
        Case::new(program, "12").exits(12).check();
    }
}

#[test]
fn a_musl_program_handles_signals() {
    let Some(program) = build(Compiler::Musl, "signals.c", "-O2") else {
        return;
    };
    Case::new(program, "").check();
}

#[test]
fn a_static_program_runs_unpatched() {
    if let Some(program) = build(Compiler::Gcc, "plain.c", "-O2 -static") {
        Case::new(program, "13")
            .exits(13)
            .expected(Expected::Unpatched)
            .check();
    }
}

#[test]
fn a_static_program_of_no_fixed_address_runs_unpatched() {
    if let Some(program) = build(Compiler::Gcc, "plain.c", "-O2 -static-pie") {
        Case::new(program, "14")
            .exits(14)
            .expected(Expected::Unpatched)
            .check();
    }
}

#[test]
fn a_static_musl_program_runs_unpatched() {
    if let Some(program) = build(Compiler::Musl, "plain.c", "-O2 -static") {
        Case::new(program, "15")
            .exits(15)
            .expected(Expected::Unpatched)
            .check();
    }
}

#[test]
fn a_go_program_runs_unpatched() {
    if let Some(program) = build(Compiler::Go, "plain.go", "") {
        Case::new(program, "").expected(Expected::Unpatched).check();
    }
}

#[test]
fn a_stripped_program_is_patched() {
    if let Some(program) = build(Compiler::Gcc, "plain.c", "-O2 -s") {
        Case::new(program, "16").exits(16).check();
    }
}

/// The runtime of AddressSanitizer ends a program in which another object precedes it.
#[test]
fn a_program_with_address_sanitizer_runs() {
    let Some(program) = build(Compiler::Gcc, "processes.c", "-O1 -fsanitize=address") else {
        return;
    };
    // As the command, and as what another program executes.
    for case in ["code 9", "environment", "spawns", "shells"] {
        let code = if case == "code 9" { 9 } else { 0 };
        Case::new(&program, case).exits(code).check();
    }
    Case::new("/bin/sh", "-c")
        .arg(format!("{} code 9", program.display()))
        .exits(9)
        .check();
}

/// A program that has another user's rights while it runs.
#[test]
fn a_setuid_program_runs() {
    // SAFETY: the call has no conditions.
    if unsafe { libc::geteuid() } != 0 {
        membound_testkit::skipped("root is needed to make a setuid program");
        return;
    }
    let Some(program) = build(Compiler::Gcc, "plain.c", "-O1") else {
        return;
    };
    let room = crate::run::RunDirectory::new();
    let copy = room.path().join("setuid");
    std::fs::copy(program, &copy).unwrap();
    std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&copy, mode).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(room.path(), open).unwrap();
    Case::new(&copy, "17")
        .exits(17)
        .expected(Expected::Unpatched)
        .check();
}

/// Programs of the system, of all kinds.
#[test]
fn programs_of_the_system_are_patched() {
    for (program, args) in [
        ("/bin/ls", "-la /usr/include"),
        ("/usr/bin/sort", "-r /etc/passwd"),
        ("/usr/bin/awk", "-F: {print$1,NR*3.5} /etc/passwd"),
        ("/bin/sed", "s/:/;/g /etc/passwd"),
        ("/usr/bin/sha256sum", "/usr/bin/perl"),
        ("/usr/bin/perl", "-le print(join(',',map{$_*$_}1..200))"),
        ("/usr/bin/find", "/etc/apt /etc/security -type f"),
    ] {
        if Path::new(program).exists() {
            Case::new(program, args).also("libc.so").check();
        } else {
            membound_testkit::skipped(format_args!("no {program}"));
        }
    }
}

/// A program under valgrind has the agent in it, but valgrind executes a translation of its text.
#[test]
fn a_program_in_valgrind_runs() {
    if !is_there("valgrind") {
        membound_testkit::skipped("no valgrind");
        return;
    }
    let Some(program) = build(Compiler::Gcc, "plain.c", "-O2") else {
        return;
    };
    Case::new("valgrind", "-q")
        .arg(program)
        .arg("17")
        .exits(17)
        .expected(Expected::Anything)
        .check();
}
