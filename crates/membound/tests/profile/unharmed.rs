//! Programs behave under a profile as they do without it, however they end, and what was recorded is kept.
//! The suite `rewrite` profiles programs that check themselves in many more ways.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use membound_testkit::{Compiler, skipped};
use membound_types::ObjectRow;

use crate::suite::{FIXTURES, alone, fixture, membound, profile_in, profile_on, text, unmeasured};

fn mishaps() -> Option<PathBuf> {
    fixture("mishaps.c", "-O2 -pthread")
}

/// Runs `mode` alone and with each sampler: output and end must be the same.
#[track_caller]
fn check(mode: &str, samples: u64) {
    check_with(&["auto", "agent"], mode, samples);
}

/// The same with some samplers only.
#[track_caller]
fn check_with(samplers: &[&str], mode: &str, samples: u64) {
    let Some(program) = mishaps() else { return };
    compare(&program, samplers, mode, samples);
}

/// The same with another program.
#[track_caller]
fn compare(program: &Path, samplers: &[&str], mode: &str, samples: u64) {
    let _alone = alone();
    let plain = Command::new(program).arg(mode).output().expect("it starts");
    for sampler in samplers {
        let run = profile_on(
            unmeasured(),
            &["--quiet", "--sampler", sampler],
            program,
            [mode],
        );
        let context = format!("{sampler}: {:?}\n{}", run.output.status, run.show());
        assert_eq!(text(&run.output.stdout), text(&plain.stdout), "{context}");
        assert_eq!(run.output.status.code(), plain.status.code(), "{context}");
        assert_eq!(
            run.output.status.signal(),
            plain.status.signal(),
            "{context}"
        );
        let info = &run.profile.run;
        assert_eq!(info.exit_code, plain.status.code(), "{context}");
        assert_eq!(info.signal, plain.status.signal(), "{context}");
        assert!(info.samples >= samples, "{context}");
        assert!(!run.profile.incomplete, "{context}");
    }
}

#[test]
fn a_program_that_crashes_keeps_its_samples_and_its_signal() {
    check("crash", 30);
}

#[test]
fn a_program_that_kills_itself_keeps_its_samples() {
    check("kills", 30);
}

#[test]
fn a_thousand_children_end_as_they_would() {
    check("forks", 0);
}

#[test]
fn a_program_that_closes_every_descriptor_is_sampled_on() {
    check("closes", 40);
}

#[test]
fn a_program_that_blocks_every_signal_sees_none_of_ours() {
    check("blocks", 50);
}

#[test]
fn calls_that_wait_are_not_interrupted_by_timers() {
    check_with(&["agent"], "sleeps", 50);
}

#[test]
fn calls_that_wait_are_not_interrupted_by_changes_of_text() {
    check_with(&["auto"], "sleeps", 50);
}

#[test]
fn a_program_gets_the_memory_that_its_limits_permit() {
    check("limited", 20);
}

#[test]
fn a_program_that_may_queue_no_signals_is_not_killed_by_ours() {
    check_with(&["auto"], "unqueued", 50);
}

#[test]
fn a_coroutine_on_a_page_of_stack_has_room_for_our_signals() {
    check("coroutine", 60);
}

#[test]
fn threads_that_nearly_fill_small_stacks_have_room_for_our_signals() {
    check("threads", 100);
}

#[test]
fn detached_threads_of_musl_end_without_a_stack() {
    let built = FIXTURES.build(Compiler::Musl, "detached.c", "-O2");
    let Some(program) = built else { return };
    compare(&program, &["auto"], "", 50);
    compare(&program, &["agent"], "", 0);
}

#[test]
fn a_program_sees_the_alternate_stacks_that_it_has_set() {
    check("stacks", 60);
}

#[test]
fn a_program_keeps_its_own_profiling_timer() {
    check("timer", 60);
}

#[test]
fn a_program_without_its_file_is_sampled_on() {
    let Some(program) = mishaps() else { return };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room");
    let copy = place.path().join("vanishing");
    std::fs::copy(&program, &copy).expect("it can be copied");
    let run = profile_on(unmeasured(), &["--quiet"], &copy, ["vanishes"]);
    assert_eq!(run.output.status.code(), Some(3), "{}", run.show());
    assert_eq!(text(&run.output.stdout), "still here\n");
    assert!(!copy.exists());
    assert!(run.profile.run.samples > 50, "{}", run.show());
}

/// `membound WORDS`, in a directory of its own.
fn run(words: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("there is room for a directory");
    membound(home.path())
        .args(words)
        .output()
        .expect("the command starts")
}

/// One line on stderr that holds every part.
#[track_caller]
pub(crate) fn complains(output: &Output, code: i32, parts: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "`{part}` is not in: {stderr}");
    }
}

#[test]
fn missing_programs_are_named() {
    complains(
        &run(&["profile", "--", "./no-such-program"]),
        127,
        &["no-such-program"],
    );
    complains(&run(&["profile"]), 2, &["CMD"]);
    complains(
        &run(&["profile", "--pid", "1", "--", "true"]),
        2,
        &["--pid"],
    );
    complains(
        &run(&["profile", "-o", "/no/such/run", "--", "true"]),
        1,
        &["/no/such"],
    );
    complains(&run(&["report", "no-such.run"]), 1, &["no-such.run"]);
    let machine = unmeasured().to_str().expect("its name is text");
    // Above the kernel's largest process ID.
    let output = run(&["profile", "--machine", machine, "--pid", "4999999"]);
    complains(&output, 1, &["4999999"]);
    complains(&run(&["report", machine]), 1, &["unmeasured.json"]);
    let output = run(&["profile", "--machine", "/etc/passwd", "--", "true"]);
    complains(&output, 1, &["/etc/passwd"]);
}

#[test]
fn a_static_program_runs_and_missing_parts_are_reported() {
    let Some(program) = fixture("mishaps.c", "-O2 -static") else {
        return;
    };
    let _alone = alone();
    let run = profile_on(unmeasured(), &[], &program, ["spins", "300"]);
    assert_eq!(text(&run.output.stdout), "done\n");
    assert!(run.profile.run.samples > 30, "{}", run.show());
    let tables: Vec<&str> = run
        .profile
        .missing
        .iter()
        .map(|it| it.table.as_str())
        .collect();
    assert!(
        tables.contains(&"objects") && tables.contains(&"latency"),
        "{tables:?}"
    );
    let run = profile_on(
        unmeasured(),
        &["--sampler", "agent"],
        &program,
        ["spins", "300"],
    );
    assert_eq!(text(&run.output.stdout), "done\n");
    let gap = run.profile.missing.iter().find(|it| it.table == "samples");
    assert!(
        gap.is_some_and(|it| it.why.reason.contains("static")),
        "{:?}",
        run.profile.missing
    );
}

#[test]
fn a_stripped_program_is_reported_by_addresses() {
    let Some(program) = fixture("mishaps.c", "-O2 -s -g0") else {
        return;
    };
    let _alone = alone();
    let run = profile_on(unmeasured(), &[], &program, ["spins", "600"]);
    // The rows are sorted by stall; one sample in the C library may have more of that than all of the loop.
    let functions = run.profile.functions.iter();
    let top = functions
        .max_by(|a, b| a.share.time_s.total_cmp(&b.share.time_s))
        .unwrap_or_else(|| panic!("{}", run.show()));
    assert!(top.address.is_some() && !top.name.is_empty(), "{top:?}");
    assert!(top.module.contains("mishaps"), "{top:?}");
}

/// Seconds of CPU time that a process has taken.
fn cpu_time(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    // The fields behind the name, which may hold any characters: state, eleven others, user time.
    let (_, rest) = stat.rsplit_once(')').expect("the name is in brackets");
    let user = rest.split_whitespace().nth(11).expect("there are many");
    let ticks: f64 = user.parse().expect("it is a number");
    ticks / rustix::param::clock_ticks_per_second() as f64
}

#[test]
fn processes_that_run_already_are_sampled_and_live_on() {
    let Some(program) = mishaps() else { return };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let mut child = Command::new(&program)
        .args(["spins", "60000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let start = Instant::now();
    let output = membound(home.path())
        .args([
            "profile",
            "--duration",
            "1",
            "-o",
            "attached.run",
            "--machine",
        ])
        .arg(unmeasured())
        .args(["--pid", &child.id().to_string()])
        .output()
        .expect("the command starts");
    let share = cpu_time(&child) / start.elapsed().as_secs_f64();
    let stderr = text(&output.stderr);
    if !output.status.success() && stderr.contains("perf") {
        let _ = child.kill();
        let _ = child.wait();
        skipped(stderr.trim());
        return;
    }
    assert!(output.status.success(), "{stderr}");
    assert!(
        child.try_wait().expect("it is ours").is_none(),
        "it runs on"
    );
    // SAFETY: a call without memory; the child was not waited for, so that the number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    let status = child.wait().expect("it is ours");
    assert!(status.success());
    let report = membound(home.path())
        .args(["report", "attached.run", "--format", "json"])
        .output()
        .expect("the command starts");
    let profile: membound_types::Profile =
        serde_json::from_slice(&report.stdout).expect("it is the report's document");
    // A second of CPU time, less if the program did not have a processor for all of it, and at least 200
    // samples a second.
    assert!(
        profile.time.cpu_s > 0.5 * share && profile.run.samples as f64 > 100.0 * share,
        "{} s in {} samples of {share} s",
        profile.time.cpu_s,
        profile.run.samples
    );
    assert_eq!(profile.functions[0].name, "work");
    let tables: Vec<&str> = profile.missing.iter().map(|it| it.table.as_str()).collect();
    assert!(
        tables.contains(&"objects") && tables.contains(&"latency"),
        "{tables:?}"
    );
}

#[test]
fn a_killed_recording_leaves_an_incomplete_run() {
    let Some(program) = mishaps() else { return };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let mut command = membound(home.path());
    command
        .args(["profile", "-o", "killed.run", "--machine"])
        .arg(unmeasured())
        .arg("--")
        .arg(&program)
        .args(["spins", "3000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command.spawn().expect("the command starts");
    std::thread::sleep(Duration::from_millis(2000));
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    let report = membound(home.path())
        .args(["report", "killed.run", "--format", "json"])
        .output()
        .expect("the command starts");
    assert!(report.status.success(), "{}", text(&report.stderr));
    let profile: membound_types::Profile =
        serde_json::from_slice(&report.stdout).expect("it is the report's document");
    assert!(profile.incomplete);
    assert!(profile.run.samples > 100, "{}", profile.run.samples);
    let shown = membound(home.path())
        .args(["report", "killed.run"])
        .output()
        .expect("it starts");
    assert!(
        text(&shown.stdout).contains("incomplete"),
        "{}",
        text(&shown.stdout)
    );
}

#[test]
fn damaged_runs_are_a_one_line_error() {
    let Some(program) = mishaps() else { return };
    let _alone = alone();
    let run = profile_on(unmeasured(), &["--quiet"], &program, ["spins", "300"]);
    let whole = std::fs::read(&run.run).expect("it was written");
    let place = |name: &str, bytes: &[u8]| {
        let path = run.home.join(name);
        std::fs::write(&path, bytes).expect("there is room");
        path
    };
    for (name, bytes) in [
        ("empty", &whole[..0]),
        ("header", &whole[..100]),
        ("text", b"size,ns\n1,2\n"),
    ] {
        let path = place(name, bytes);
        let output = membound(&run.home)
            .arg("report")
            .arg(path)
            .output()
            .expect("it starts");
        complains(&output, 1, &[name]);
    }
    // Cut in the middle: what is readable is shown and marked, or one line says why nothing is.
    let path = place("half", &whole[..whole.len() / 2]);
    let output = membound(&run.home)
        .arg("report")
        .arg(path)
        .output()
        .expect("it starts");
    let (shown, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        shown.contains("incomplete") || (stderr.lines().count() == 1 && stderr.contains("half")),
        "{shown}{stderr}"
    );
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let Some(program) = mishaps() else { return };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let profile = |run: &str, ms: &str| {
        let mut command = membound(home.path());
        command.args(["profile", "--quiet", "-o", run, "--machine"]);
        command.arg(unmeasured()).arg("--").arg(&program);
        command.args(["spins", ms]);
        command
    };
    // How much is written before the program starts, and how many accesses are timed, depends on the machine. The
    // samples of three seconds alone take more room than a short run has.
    let short = profile("short.run", "1").status().expect("it starts");
    assert!(short.success());
    let written = std::fs::metadata(home.path().join("short.run")).expect("it is written");
    let most_bytes = written.len();
    let mut command = profile("full.run", "3000");
    let limit = move || {
        // A file size limit simulates a full disk. It leaves room for what is written before the program
        // starts; without that, the program would not be started.
        let most = libc::rlimit {
            rlim_cur: most_bytes,
            rlim_max: most_bytes,
        };
        // SAFETY: the limit is a valid structure; ignoring a signal has no conditions.
        let result = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most) };
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        if result == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: the limit makes system calls only; the child has one thread.
    unsafe { command.pre_exec(limit) };
    let output = command.output().expect("the command starts");
    let stderr = text(&output.stderr);
    assert_eq!(text(&output.stdout), "done\n", "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("full.run"), "{stderr}");
}

#[test]
fn a_sanitizers_report_names_who_allocated() {
    let Some(program) = fixture("freed.c", "-O1 -g -fsanitize=address") else {
        return;
    };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let output = membound(home.path())
        .args(["profile", "--quiet", "-o", "freed.run", "--machine"])
        .arg(unmeasured())
        .arg("--")
        .arg(&program)
        .output()
        .expect("the command starts");
    let stderr = text(&output.stderr);
    let is_caller = |line: &&str| line.trim_start().starts_with("#1");
    let callers: Vec<&str> = stderr.lines().filter(is_caller).collect();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(callers.iter().any(|it| it.contains("allocate")), "{stderr}");
    assert!(
        !callers.iter().any(|it| it.contains("agent.so")),
        "{stderr}"
    );
}

#[test]
fn nothing_is_started_where_a_recording_would_be_aborted() {
    let home = tempfile::tempdir().expect("there is room for a directory");
    let membound = membound(home.path());
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -v 500000; exec \"$@\"", "sh"])
        .arg(membound.get_program())
        .args(["profile", "-o", "limited.run", "--", "echo", "started"])
        .current_dir(home.path());
    let output = limited.output().expect("the shell starts");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("ulimit -v") && stderr.contains("488 MiB"),
        "{stderr}"
    );
    assert_eq!(text(&output.stdout), "");
}

/// The unwind table of a large executable is made while its first run goes on.
#[test]
fn a_large_executable_s_first_blocks_have_whole_call_chains_in_its_second_run() {
    let Some(program) = fixture("large.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let home = tempfile::tempdir().expect("there is room for a directory");
    let run = || profile_in(home.path(), unmeasured(), &["--quiet"], &program, ["2000"]);
    run();
    let second = run();
    let is_whole = |row: &&ObjectRow| {
        let mut chain = row.alloc_stack.iter().map(|it| it.function.as_str());
        row.size_bytes == 64 << 20
            && ["take", "make", "main"]
                .iter()
                .all(|name| chain.any(|it| it == *name))
    };
    let whole = second.profile.objects.iter().filter(is_whole);
    assert_eq!(whole.count(), 6, "{}", second.show());
}

#[test]
fn hundreds_of_megabytes_of_another_allocator_are_followed_too() {
    let _alone = alone();
    for (package, library) in [
        ("jemalloc", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
        ("mimalloc", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0"),
    ] {
        let Some(program) = fixture("objects.c", "-O2") else {
            return;
        };
        if !Path::new(library).exists() {
            skipped(format_args!("no {package}"));
            continue;
        }
        let home = tempfile::tempdir().expect("there is room for a directory");
        let output = membound(home.path())
            .env("LD_PRELOAD", library)
            .args(["profile", "--quiet", "-o", "other.run", "--machine"])
            .arg(unmeasured())
            .arg("--")
            .arg(&program)
            .arg("800")
            .output()
            .expect("the command starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report = membound(home.path())
            .args(["report", "other.run", "--format", "json"])
            .output()
            .expect("the command starts");
        let profile: membound_types::Profile =
            serde_json::from_slice(&report.stdout).expect("it is the report's document");
        let followed = profile.objects.iter().filter(|row| {
            row.size_bytes == 64 << 20
                && row.alloc_stack.iter().any(|frame| frame.function == "make")
        });
        assert_eq!(followed.count(), 6, "{package}: {:?}", profile.objects);
    }
}
