//! Scavengers that end in every way, and their actions before.

use std::path::Path;

use membound_testkit::skipped;
use membound_types::ScavengerState;

use crate::suite::{Harvest, Harvested, fixture, output_of, scavenger};

/// Runs a program until its scavengers in `mode` have ended, alongside one that works.
fn outlasted(mode: &str, options: &str) -> Option<Harvested> {
    let (program, scavenger) = (fixture("ends.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, "outlast")
        .with(&scavenger, mode)
        .with(&scavenger, "work")
        .options("--per-thread 2 --idle steal")
        .options(options);
    let harvested = harvest.check();
    harvested.wrote(1, &output_of(&scavenger, "work"));
    Some(harvested)
}

/// A scavenger that crashes, wherever it runs.
#[track_caller]
fn crashes(mode: &str, signal: i32) {
    if let Some(harvested) = outlasted(mode, "") {
        harvested.ended(0, ScavengerState::Crashed, Some(Err(signal)));
    }
}

/// A scavenger whose output is compared with its output alone.
#[track_caller]
fn works(mode: &str) {
    if let Some(harvested) = outlasted(mode, "")
        && let Some(scavenger) = scavenger()
    {
        harvested.wrote(0, &output_of(&scavenger, mode));
    }
}

#[test]
fn what_it_maps_may_have_huge_pages_where_it_has_room_for_one() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return skipped("this kernel has no huge pages for anonymous memory");
    }
    let Some(scavenger) = scavenger() else { return };
    let alone = output_of(&scavenger, "map");
    let huge = alone.replace("8388608: 0", "8388608: 1");
    assert_ne!(alone, huge, "it does not ask for them itself");
    for (options, output) in [("", huge), ("--without huge-pages", alone)] {
        if let Some(harvested) = outlasted("map", options) {
            harvested.wrote(0, &output);
        }
    }
}

#[test]
fn it_ends_with_a_code() {
    if let Some(harvested) = outlasted("exit", "") {
        harvested.ended(0, ScavengerState::Finished, Some(Ok(7)));
    }
}

#[test]
fn it_aborts() {
    crashes("abort", libc::SIGABRT);
}

#[test]
fn it_faults() {
    crashes("fault", libc::SIGSEGV);
}

#[test]
fn it_faults_at_the_load_that_yields() {
    crashes("yielding-fault", libc::SIGSEGV);
}

#[test]
fn it_divides_by_zero() {
    crashes("divide", libc::SIGFPE);
}

#[test]
fn it_executes_invalid_instructions() {
    crashes("illegal", libc::SIGILL);
}

#[test]
fn it_executes_a_breakpoint() {
    crashes("breakpoint", libc::SIGTRAP);
}

#[test]
fn its_stack_overflows() {
    crashes("overflow", libc::SIGSEGV);
}

#[test]
fn it_computes() {
    works("work");
}

#[test]
fn its_thread_local_variables_and_errno_are_its_own() {
    works("tls");
}

#[test]
fn it_calls_and_writes_in_bursts() {
    works("calls");
}

#[test]
fn its_vectors_are_alive_over_yields() {
    works("vectors");
}

#[test]
fn it_has_its_own_rounding_mode() {
    works("rounding");
}

#[test]
fn it_loads_libraries() {
    works("load");
}

/// A scavenger that computes endlessly and never reaches a yield, alongside one that works.
#[track_caller]
fn never_yields(program: &str, mode: &str, options: &str) {
    let (Some(program), Some(scavenger)) = (fixture(program, "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "stubborn")
        .with(&scavenger, "work")
        .options(options);
    let harvested = harvest.check();
    harvested.ended(0, ScavengerState::Unfinished, None);
}

#[test]
fn it_has_the_priority_of_the_program_once_that_has_ended() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "work")
        .with(&scavenger, "niceness")
        .options("--finish");
    let harvested = harvest.check();
    harvested.ended(0, ScavengerState::Finished, Some(Ok(0)));
    if rustix::process::geteuid().is_root() {
        harvested.wrote(0, &output_of(&scavenger, "niceness"));
    } else {
        // The kernel lets only privileged threads raise their priority.
        assert!(
            harvested.outputs[0].starts_with("niceness 19\n"),
            "{harvested:#?}"
        );
    }
}

#[test]
fn it_never_yields_again() {
    never_yields("ends.c", "exit", "--idle steal");
}

#[test]
fn it_never_yields_again_in_idle_time() {
    never_yields("ends.c", "exit", "--idle harvest");
}

#[test]
fn it_never_yields_again_while_threads_come_and_go() {
    never_yields(
        "threads.c",
        "churn",
        "--idle steal --copies 2 --per-thread 2",
    );
}

#[test]
fn it_takes_memory_while_there_is_some() {
    if let Some(harvested) = outlasted("hunger", "--memory 128M") {
        harvested.ended(0, ScavengerState::Finished, Some(Ok(0)));
        let expected = "had 64 MiB at least, then Cannot allocate memory\nset aside 1, opened -1\n";
        assert!(harvested.outputs[0].starts_with(expected), "{harvested:#?}");
    }
}

#[test]
fn two_take_memory_from_each_other() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "outlast")
        .with(&scavenger, "hunger")
        .options("--copies 3 --memory 300M --idle steal");
    let harvested = harvest.check();
    for index in 0..3 {
        harvested.ended(index, ScavengerState::Finished, Some(Ok(0)));
    }
}

#[test]
fn small_scavengers_find_memory_while_others_take_all() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "outlast")
        .with(&scavenger, "hunger")
        .with(&scavenger, "modest")
        .options("--copies 2 --memory 300M --idle harvest");
    let harvested = harvest.check();
    let alone = output_of(&scavenger, "modest");
    assert!(alone.starts_with("had some: 1\n"), "{alone}");
    for index in 2..4 {
        harvested.wrote(index, &alone);
    }
}

/// A scavenger that is linked differently, alongside one that works.
#[track_caller]
fn is_linked(words: &str) {
    let (Some(program), Some(linked)) = (
        fixture("ends.c", "-O2"),
        fixture("scavenger.c", &format!("-O2 {words}")),
    ) else {
        return;
    };
    for mode in ["work", "calls", "vectors"] {
        let harvest = Harvest::of(&program, "outlast")
            .with(&linked, mode)
            .options("--idle steal");
        harvest.check().wrote(0, &output_of(&linked, mode));
    }
}

#[test]
fn it_is_statically_linked() {
    is_linked("-static");
}

#[test]
fn it_is_statically_linked_for_any_address() {
    is_linked("-static-pie");
}

#[test]
fn it_is_linked_for_fixed_addresses() {
    is_linked("-no-pie");
}
