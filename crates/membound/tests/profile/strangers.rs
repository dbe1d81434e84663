//! Foreign programs and processes: filters on system calls, other users, preloaded objects, programs that end
//! before recording begins, and debug information of another program.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use membound_testkit::skipped;
use membound_types::Profile;

use crate::suite::{Profiled, alone, fixture, line_of, membound, profile_on, text, unmeasured};
use crate::unharmed::complains;

/// The user ID of an account that owns nothing, on every system.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: the call has no conditions.
    unsafe { libc::geteuid() == 0 }
}

/// The reason for which `table` is missing.
fn gap<'a>(profile: &'a Profile, table: &str) -> Option<&'a str> {
    let gap = profile.missing.iter().find(|it| it.table == table)?;
    Some(&gap.why.reason)
}

/// Runs a fixture that installs a filter, alone and with each sampler.
#[track_caller]
fn check_barred(mode: &str) {
    let Some(program) = fixture("barred.c", "-O2 -pthread") else {
        return;
    };
    let _alone = alone();
    let plain = Command::new(&program)
        .arg(mode)
        .output()
        .expect("it starts");
    if plain.status.code() == Some(3) {
        skipped("this kernel has no filters on system calls");
        return;
    }
    for sampler in ["auto", "agent"] {
        let run = profile_on(
            unmeasured(),
            &["--quiet", "--sampler", sampler],
            &program,
            [mode],
        );
        let context = format!("{sampler}: {:?}\n{}", run.output.status, run.show());
        assert_eq!(text(&run.output.stdout), text(&plain.stdout), "{context}");
        assert_eq!(run.output.status.code(), Some(7), "{context}");
        assert!(run.profile.run.samples >= 20, "{context}");
        assert!(!run.profile.incomplete, "{context}");
        let why = gap(&run.profile, "processes");
        assert!(why.is_some_and(|why| why.contains("seccomp")), "{context}");
    }
}

#[test]
fn a_program_behind_its_own_filter_is_not_killed_by_what_we_do_in_it() {
    check_barred("filter");
}

#[test]
fn a_program_that_forbids_sigreturn_survives() {
    check_barred("tight");
}

#[test]
fn a_program_whose_other_calls_fail_sees_none_of_ours_fail() {
    check_barred("refused");
}

#[test]
fn a_program_in_strict_seccomp_mode_survives() {
    check_barred("strict");
}

#[test]
fn threads_that_are_started_behind_a_filter_live() {
    check_barred("starts");
}

/// Programs that end before there is anything to record.
#[test]
fn programs_that_exit_at_once_leave_complete_runs() {
    let _alone = alone();
    for (program, code) in [("/bin/true", 0), ("/bin/false", 1)] {
        for sampler in ["auto", "agent"] {
            let none: [&str; 0] = [];
            let run = profile_on(
                unmeasured(),
                &["--sampler", sampler],
                Path::new(program),
                none,
            );
            assert_eq!(run.output.status.code(), Some(code), "{}", run.show());
            assert_eq!(run.profile.run.exit_code, Some(code));
            assert!(!run.profile.incomplete, "{}", run.show());
            // The summary of an empty run says that it is empty, and shows no shares.
            let shown = text(&run.report::<[&str; 0]>([]).stdout);
            let mut words = shown.split(|letter: char| !letter.is_alphanumeric());
            assert!(
                !shown.contains("NaN") && words.all(|word| word != "inf"),
                "{shown}"
            );
            assert!(!shown.is_empty());
        }
    }
}

/// Copies a program to where every user may execute it.
fn copied_for_all(program: &Path, place: &Path) -> PathBuf {
    let copy = place.join("program");
    std::fs::copy(program, &copy).expect("it can be copied");
    for path in [copy.as_path(), place] {
        set_mode(path, 0o755);
    }
    copy
}

/// The same, for a program that becomes another user when it starts.
fn copied_as_setuid(program: &Path, place: &Path) -> PathBuf {
    let copy = copied_for_all(program, place);
    std::os::unix::fs::chown(&copy, Some(NOBODY), Some(NOBODY)).expect("root may");
    set_mode(&copy, 0o4755);
    copy
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("root may");
}

/// While it runs, the program has another user's rights, and the loader ignores preloaded objects.
#[test]
fn a_setuid_program_runs_with_its_rights_and_it_is_said_what_is_missing() {
    if !is_root() {
        skipped("root is needed to make a setuid program");
        return;
    }
    let Some(program) = fixture("mishaps.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room");
    let copy = copied_as_setuid(&program, place.path());
    let run = profile_on(unmeasured(), &[], &copy, ["spins", "400"]);
    assert_eq!(text(&run.output.stdout), "done\n", "{}", run.show());
    assert_eq!(run.output.status.code(), Some(0), "{}", run.show());
    for table in ["objects", "latency"] {
        let why = gap(&run.profile, table);
        assert!(
            why.is_some_and(|why| why.contains("with other rights")),
            "{table}: {why:?}\n{}",
            run.show()
        );
    }
}

/// Servers are started so: by root, as an account of their own.
#[test]
fn a_program_that_root_starts_as_another_user_is_patched() {
    if !is_root() {
        skipped("root is needed to start a program as another user");
        return;
    }
    let Some(program) = fixture("objects.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room");
    let copy = copied_for_all(&program, place.path());
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(OsString::from);
    let words = words.into_iter().chain([copy.into(), "4000".into()]);
    let run = profile_on(unmeasured(), &["--quiet"], Path::new("setpriv"), words);
    assert_eq!(run.output.status.code(), Some(0), "{}", run.show());
    assert_eq!(text(&run.output.stderr), "", "{}", run.show());
    assert!(run.profile.run.timed_accesses > 0, "{}", run.show());
}

/// The shell becomes a program that cannot have the agent, and exchanges of patches do not wait for it.
#[test]
fn a_process_that_loses_its_agent_does_not_keep_others_from_being_patched() {
    if !is_root() {
        skipped("root is needed to make a setuid program");
        return;
    }
    let (Some(program), Some(spins)) = (fixture("objects.c", "-O2"), fixture("mishaps.c", "-O2"))
    else {
        return;
    };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room");
    let copy = copied_as_setuid(&spins, place.path());
    let script = format!(
        "'{}' 4000 & exec '{}' spins 5000",
        program.display(),
        copy.display()
    );
    let run = profile_on(unmeasured(), &["--quiet"], Path::new("sh"), ["-c", &script]);
    assert_eq!(run.output.status.code(), Some(0), "{}", run.show());
    assert!(run.profile.run.timed_accesses > 0, "{}", run.show());
}

#[test]
fn an_object_that_was_preloaded_stays_preloaded() {
    let (Some(object), Some(program)) = (
        fixture("preloaded.c", "-O2 -fPIC -shared"),
        fixture("preloads.c", "-O2 -fno-builtin"),
    ) else {
        return;
    };
    let _alone = alone();
    let plain = Command::new(&program)
        .env("LD_PRELOAD", &object)
        .output()
        .expect("it starts");
    let stdout = text(&plain.stdout);
    assert!(stdout.contains("getppid -1"), "{stdout}");
    assert!(stdout.contains(&object.display().to_string()), "{stdout}");
    for sampler in ["auto", "agent"] {
        let home = tempfile::tempdir().expect("there is room for a directory");
        let output = membound(home.path())
            .env("LD_PRELOAD", &object)
            .args(["profile", "--sampler", sampler, "--machine"])
            .arg(unmeasured())
            .arg("--")
            .arg(&program)
            .output()
            .expect("the command starts");
        assert_eq!(text(&output.stdout), stdout, "{}", text(&output.stderr));
        assert_eq!(output.status.code(), plain.status.code());
    }
}

/// A process to attach to.
fn spinning(program: &Path, ms: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["spins", ms]).stdout(Stdio::piped());
    command
}

#[test]
fn a_process_that_ends_while_it_is_sampled_leaves_a_whole_run() {
    let Some(program) = fixture("mishaps.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let mut child = spinning(&program, "1500").spawn().expect("it starts");
    let reaped = std::thread::spawn({
        let pid = child.id().to_string();
        let mut command = membound(home.path());
        command
            .args(["profile", "-o", "ended.run", "--machine"])
            .arg(unmeasured())
            .args(["--pid", &pid]);
        move || command.output().expect("the command starts")
    });
    let status = child.wait().expect("it is ours");
    assert!(status.success());
    let output = reaped.join().expect("the command is waited for");
    let stderr = text(&output.stderr);
    if !output.status.success() && stderr.contains("perf") {
        skipped(stderr.trim());
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let profile = document(home.path(), "ended.run");
    assert!(!profile.incomplete, "{stderr}");
    assert!(profile.run.samples > 50, "{}", profile.run.samples);
}

/// The document of a run in `home`.
#[track_caller]
fn document(home: &Path, run: &str) -> Profile {
    let report = membound(home)
        .args(["report", run, "--format", "json"])
        .output()
        .expect("the command starts");
    assert!(report.status.success(), "{}", text(&report.stderr));
    serde_json::from_slice(&report.stdout).expect("it is the report's document")
}

#[test]
fn a_process_of_another_user_is_refused_in_one_line_with_the_remedy() {
    if !is_root() {
        skipped("root is needed to be two users");
        return;
    }
    let Some(program) = fixture("mishaps.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room");
    // Copies that another user may run and read, in a place that he can reach.
    let mut copies = [
        (
            PathBuf::from(env!("CARGO_BIN_EXE_membound")),
            place.path().join("membound"),
        ),
        (
            unmeasured().to_owned(),
            place.path().join("unmeasured.json"),
        ),
    ];
    for (from, to) in &mut copies {
        std::fs::copy(from, &*to).expect("there is room");
    }
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.path(), mode).expect("root may");
    let mut child = spinning(&program, "3000").spawn().expect("it starts");
    let pid = child.id().to_string();
    let output = Command::new(&copies[0].1)
        .current_dir(place.path())
        .env("HOME", place.path())
        .args(["profile", "--machine"])
        .arg(&copies[1].1)
        .args(["--pid", &pid])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("the command starts");
    assert!(
        child.try_wait().expect("it is ours").is_none(),
        "it runs on"
    );
    complains(&output, 1, &[&pid, "user"]);
    assert!(
        !place.path().join("membound.run").exists(),
        "nothing was recorded"
    );
    assert!(child.wait().expect("it is ours").success());
}

/// Debug information of another program is not used, even beside the program, and the report says so.
#[test]
fn debug_information_of_another_build_is_not_believed() {
    if !membound_testkit::is_there("objcopy") {
        skipped("no objcopy");
        return;
    }
    let (Some(program), Some(other)) = (
        fixture("mishaps.c", "-O2 -g"),
        fixture("objects.c", "-O2 -g"),
    ) else {
        return;
    };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room");
    let stripped = place.path().join("stripped");
    let objcopy = |words: &[&str]| {
        let done = Command::new("objcopy")
            .current_dir(place.path())
            .args(words)
            .output()
            .expect("it starts");
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    let (program, other) = (
        program.to_str().expect("its name is text"),
        other.to_str().expect("its name is text"),
    );
    let spins = |expected: &str| -> Profiled {
        let run = profile_on(unmeasured(), &[], &stripped, ["spins", "500"]);
        assert_eq!(text(&run.output.stdout), "done\n");
        let top = &run.profile.functions[0];
        assert!(top.name.starts_with(expected), "{top:?}\n{}", run.show());
        run
    };
    objcopy(&["--only-keep-debug", program, "names"]);
    objcopy(&[
        "--strip-all",
        "--add-gnu-debuglink=names",
        program,
        "stripped",
    ]);
    spins("work");
    // The same name with another program's lines and functions.
    objcopy(&["--only-keep-debug", other, "names"]);
    let run = spins("function at 0x");
    let why = gap(&run.profile, "functions");
    assert!(
        why.is_some_and(|why| why.contains("is not used")),
        "{:?}",
        run.profile.missing
    );
    // And with none at all.
    std::fs::write(place.path().join("names"), b"not an object").expect("there is room");
    spins("function at 0x");
}

#[test]
fn a_program_that_is_killed_from_outside_keeps_its_samples_and_its_signal() {
    let Some(program) = fixture("mishaps.c", "-O2") else {
        return;
    };
    let _alone = alone();
    for sampler in ["auto", "agent"] {
        let home = tempfile::tempdir().expect("there is room for a directory");
        // The shell prints its process ID, and then executes the program.
        let script = format!("echo $$ > pid; exec '{}' spins 60000", program.display());
        let mut child = membound(home.path())
            .args([
                "profile",
                "--quiet",
                "--sampler",
                sampler,
                "-o",
                "killed.run",
            ])
            .arg("--machine")
            .arg(unmeasured())
            .args(["--", "/bin/sh", "-c", &script])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        std::thread::sleep(Duration::from_millis(2500));
        let pid = std::fs::read_to_string(home.path().join("pid")).expect("it was written");
        let pid: i32 = pid.trim().parse().expect("it is a number");
        // SAFETY: the number is that of a process which was started here and does not end by
        // itself.
        let sent = unsafe { libc::kill(pid, libc::SIGKILL) };
        assert_eq!(sent, 0);
        let status = child.wait().expect("it is ours");
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status:?}");
        let profile = document(home.path(), "killed.run");
        assert_eq!(profile.run.signal, Some(libc::SIGKILL));
        assert!(!profile.incomplete);
        assert!(profile.run.samples > 100, "{}", profile.run.samples);
    }
}

/// A disk that fills up while something else grows on it too.
#[test]
fn a_disk_that_is_full_keeps_what_there_was_room_for() {
    if !is_root() {
        skipped("root is needed to mount a small disk");
        return;
    }
    let Some(program) = fixture("mishaps.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let disk = home.path().join("disk");
    std::fs::create_dir(&disk).expect("there is room");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=320k", "none"])
        .arg(&disk)
        .output();
    if !mounted.is_ok_and(|it| it.status.success()) {
        skipped("mounting is not permitted here");
        return;
    }
    let output = membound(home.path())
        .args(["profile", "--quiet", "-o", "disk/full.run", "--machine"])
        .arg(unmeasured())
        .arg("--")
        .arg(&program)
        .args(["spins", "4000"])
        .output();
    let report = membound(home.path())
        .args(["report", "disk/full.run", "--format", "json"])
        .output();
    let unmounted = Command::new("umount").arg("-l").arg(&disk).status();
    assert!(unmounted.is_ok_and(|it| it.success()));
    let output = output.expect("the command starts");
    let stderr = text(&output.stderr);
    assert_eq!(text(&output.stdout), "done\n", "{stderr}");
    complains(&output, 1, &["full.run"]);
    let report = report.expect("the command starts");
    assert!(
        membound_testkit::is_reported(&report),
        "{}",
        text(&report.stderr)
    );
    let profile: Profile =
        serde_json::from_slice(&report.stdout).expect("it is the report's document");
    assert!(profile.incomplete);
}

/// Checks that a summary does not steer the reader away from memory.
#[track_caller]
fn is_open(run: &Profiled) {
    let bound = &run.profile.memory_bound;
    assert!(bound.high > 0.6, "{bound:?}\n{}", run.show());
    assert!(bound.low <= bound.fraction, "{bound:?}");
    for finding in &run.profile.findings {
        assert!(!finding.advice.contains("algorithms"), "{}", run.show());
    }
    assert!(!run.show().contains("hot enough"), "{}", run.show());
}

/// Go's code is not patched, but its samples can be distinguished.
#[test]
fn a_go_program_that_waits_for_memory_is_not_said_to_compute() {
    let Some(program) = fixture("chase.go", "") else {
        return;
    };
    let _alone = alone();
    let none: [&str; 0] = [];
    let run = profile_on(unmeasured(), &[], &program, none);
    assert_eq!(text(&run.output.stdout), "true\n", "{}", run.show());
    is_open(&run);
    assert!(run.profile.memory_bound.unseen < 0.2, "{}", run.show());
    let walk = line_of("chase.go", "// WALK");
    let row = run.profile.lines.first();
    assert!(
        row.is_some_and(|row| row.line == Some(walk)),
        "{row:?}\n{}",
        run.show()
    );
}

/// 32-bit code is not decoded: whether it waits is not known, and the report says so.
#[test]
fn a_32_bit_program_that_waits_for_memory_is_not_reported_as_computing() {
    let words = "-O1 -m32 -nostdlib -ffreestanding -static -fno-pie -no-pie -fno-stack-protector";
    let Some(program) = fixture("old32.c", words) else {
        return;
    };
    let runs = Command::new(&program).status();
    if !runs.is_ok_and(|status| status.success()) {
        skipped("this kernel runs no 32-bit programs");
        return;
    }
    let _alone = alone();
    let none: [&str; 0] = [];
    let run = profile_on(unmeasured(), &[], &program, none);
    is_open(&run);
    let missing_parts = &run.profile.unseen;
    assert!(
        missing_parts
            .first()
            .is_some_and(|it| it.reason.contains("32-bit code")),
        "{missing_parts:?}\n{}",
        run.show()
    );
    assert!(run.profile.memory_bound.unseen > 0.6, "{}", run.show());
}
