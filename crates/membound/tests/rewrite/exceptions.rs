//! Unwinding through patched functions: C++ exceptions, Rust panics, call stacks, jumps.

use std::path::PathBuf;

use crate::build::{Compiler, build};
use crate::case::{Case, cases};

/// `exceptions.cpp` with its library beside it.
fn exceptions(level: &str) -> Option<PathBuf> {
    let library = build(Compiler::Gxx, "thrower.cpp", "-O2 -fPIC -shared")?;
    let library = library.file_name()?.to_string_lossy().into_owned();
    build(
        Compiler::Gxx,
        "exceptions.cpp",
        &format!("{level} -L. -l:{library} -Wl,-rpath,$ORIGIN"),
    )
}

cases! { exceptions("-O2");
    exceptions_go_through_hundreds_of_frames: "deep".also("libstdc++").also("libgcc_s");
    exceptions_are_nested: "nested";
    exceptions_are_thrown_again: "rethrow";
    function_try_blocks_catch: "function-try";
    constructors_throw: "constructors";
    destructors_throw: "destructors";
    floating_state_survives_a_throw: "vectors";
    exceptions_cross_libraries: "across".also("thrower");
    exceptions_are_thrown_in_threads: "threads".restless();
    streams_and_locales_throw: "streams";
    regular_expressions_throw: "expressions";
    leaving_noexcept_terminates: "noexcept".killed_by(libc::SIGABRT);
    nobody_catches: "uncaught".killed_by(libc::SIGABRT);
}

#[test]
fn exceptions_unoptimised() {
    let Some(program) = exceptions("-O0") else {
        return;
    };
    for name in [
        "deep",
        "nested",
        "rethrow",
        "function-try",
        "constructors",
        "across",
    ] {
        Case::new(&program, name).check();
    }
}

#[test]
fn exceptions_for_size() {
    let Some(program) = exceptions("-Os") else {
        return;
    };
    for name in ["deep", "destructors", "vectors", "across", "threads"] {
        Case::new(&program, name).check();
    }
}

cases! { build(Compiler::Gcc, "unwind.c", "-O2 -rdynamic");
    stacks_are_whole: "plain";
    stacks_are_whole_in_a_handler: "handler";
    stacks_go_through_the_library: "library";
    stacks_are_whole_at_any_moment: "timer";
}

#[test]
fn stacks_are_complete_without_optimisation() {
    let Some(program) = build(Compiler::Gcc, "unwind.c", "-O0 -rdynamic") else {
        return;
    };
    for name in ["plain", "handler", "timer"] {
        Case::new(&program, name).check();
    }
}

cases! { build(Compiler::Gcc, "jumps.c", "-O2");
    longjmp_leaves_functions: "longjumps";
    contexts_are_swapped: "coroutines";
}

cases! { build(Compiler::Rustc, "panics.rs", "-O");
    panics_are_caught: "caught";
    checks_panic: "checks";
    panics_are_resumed: "resumed";
    threads_panic: "threads".restless();
    a_pool_has_jobs_that_panic: "pool".restless();
    collections_are_filled: "collections";
    overflows_are_refused: "overflow";
    a_panic_ends_the_program: "uncaught".exits(101);
    a_backtrace_names_main: "backtrace";
}

#[test]
fn panics_unoptimised() {
    let Some(program) = build(Compiler::Rustc, "panics.rs", "-C opt-level=0") else {
        return;
    };
    for name in [
        "caught",
        "checks",
        "resumed",
        "threads",
        "pool",
        "collections",
    ] {
        Case::new(&program, name).check();
    }
}

#[test]
fn a_panic_aborts() {
    let Some(program) = build(Compiler::Rustc, "panics.rs", "-O -C panic=abort") else {
        return;
    };
    Case::new(program, "uncaught")
        .killed_by(libc::SIGABRT)
        .check();
}
