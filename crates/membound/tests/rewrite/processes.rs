//! New processes, new programs, environments, ends of programs, input and output.

use std::path::PathBuf;

use crate::build::{Compiler, build};
use crate::case::{Case, Expected, cases};
use crate::run::{Ending, module};

fn processes() -> Option<PathBuf> {
    build(Compiler::Gcc, "processes.c", "-O2")
}

cases! { processes();
    children_are_forked: "forks";
    children_are_vforked: "vforks";
    children_are_spawned: "spawns";
    shells_are_called: "shells";
    the_environment_is_the_programs_own: "environment".env("OWN", "1").env("AND", "x=y");
    programs_follow_each_other: "chain 9".env("KEPT", "all the way");
    a_program_gets_no_environment: "empty-environment";
    failing_executions_change_nothing: "failing-exec";
    functions_run_at_exit: "at-exit";
    a_program_aborts: "aborts".killed_by(libc::SIGABRT);
    a_program_reads_nowhere: "segfault".killed_by(libc::SIGSEGV);
    a_program_kills_its_group: "kill-group".killed_by(libc::SIGTERM).expected(Expected::Anything);
    input_is_copied: "copy".stdin("lines\nand bytes \0\u{1}\u{fffd}\n".repeat(3000));
    both_streams_are_kept_apart: "both-streams";
    arguments_are_as_given: "arguments one --json two -- three --body";
    children_are_stopped_and_continued: "groups";
    the_map_is_well_formed: "own-map";
}

#[test]
fn every_exit_code_comes_through() {
    let Some(program) = processes() else { return };
    // All exit codes.
    for code in (0..=255)
        .step_by(15)
        .chain([1, 2, 99, 124, 127, 128, 129, 254])
    {
        for name in ["code", "code-at-once"] {
            let case = Case::new(&program, &format!("{name} {code}"));
            let (outcome, report) = case.patched(&["--body", "count"]);
            assert_eq!(outcome.ending, Ending::Exited(code), "{outcome:?}");
            let report = report.expect("there is a report");
            assert!(report.patched && report.exit_code == Some(code));
        }
    }
}

#[test]
fn every_deadly_signal_comes_through() {
    let Some(program) = processes() else { return };
    for signal in [
        libc::SIGTERM,
        libc::SIGKILL,
        libc::SIGABRT,
        libc::SIGSEGV,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGHUP,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGUSR1,
        libc::SIGRTMIN(),
    ] {
        Case::new(&program, &format!("die {signal}"))
            .killed_by(signal)
            .check();
    }
}

/// A preloaded object of the user's stays first, and the program sees its variable unchanged.
#[test]
fn a_preloaded_object_stays() {
    let (Some(object), Some(program)) = (
        build(Compiler::Gcc, "interposer.c", "-O2 -fPIC -shared"),
        build(Compiler::Gcc, "interposed.c", "-O2 -fno-builtin"),
    ) else {
        return;
    };
    for args in ["", "again"] {
        let case = Case::new(&program, args)
            .env("LD_PRELOAD", &object)
            .also("interposer");
        let plain = case.plain().stdout();
        assert!(plain.contains("interposed 3 even"), "{plain}");
        case.check();
    }
}

/// Every program of a pipeline under a shell is followed.
#[test]
fn a_pipeline_is_followed() {
    let case = Case::new("/bin/sh", "-c").arg(
        "printf 'b\\na\\nc\\n' | sort -r | tr abc xyz; echo $?; ls / >/dev/null && echo listed; \
         exit 4",
    );
    let plain = case.plain();
    assert_eq!(plain.stdout(), "z\ny\nx\n0\nlisted\n");
    let case = case.exits(4);
    case.check();
    let (_, report) = case.patched(&["--body", "count"]);
    let report = report.expect("there is a report");
    for name in ["sort", "tr", "ls", "libc.so"] {
        let module = module(&report, name);
        assert!(
            module.is_some_and(|module| module.counts.patched > 0),
            "{name} was not followed"
        );
    }
}

#[test]
fn a_script_is_run() {
    let room = crate::run::RunDirectory::new();
    let script = room.path().join("script");
    std::fs::write(
        &script,
        "#!/bin/sh -e\necho \"$0\" | sed 's|.*/||'\necho \"$@\"\n",
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let case = Case::new(&script, "a b c").expected(Expected::Anything);
    assert_eq!(case.plain().stdout(), "script\na b c\n");
    case.check();
}

#[test]
fn a_missing_program_is_named() {
    let (outcome, _) = Case::new("/nonexistent/program", "").patched(&["--body", "count"]);
    assert_eq!(outcome.stdout(), "");
    assert!(
        outcome.stderr().contains("/nonexistent/program"),
        "{outcome:?}"
    );
    assert!(matches!(outcome.ending, Ending::Exited(code) if code != 0));
}
