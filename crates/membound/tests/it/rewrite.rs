//! `rewrite plan` and `rewrite check` from outside: known counts, ends of programs, unpatched programs, bad
//! input. Programs of every kind are tested in `tests/rewrite`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use membound_testkit::skipped;
use serde_json::Value;

use crate::command::{Finished, Membound, busy};

/// Loads and stores that no compiler may omit or merge.
const REPEAT: &str = r#"
#include <stdlib.h>
volatile long cells[64];
__attribute__((noinline)) long repeat(long times) {
    long sum = 0;
    for (long i = 0; i < times; i++) {
        sum += cells[0];
        sum ^= cells[9];
        cells[18] = sum;
    }
    return sum;
}
int main(int count, char **words) {
    return (int)repeat(count > 1 ? atol(words[1]) : 1);
}
"#;

/// Compiles `source`; prints why and returns `None` without a compiler.
fn compile(membound: &Membound, name: &str, source: &str, options: &[&str]) -> Option<PathBuf> {
    let code = membound.home.path().join(format!("{name}.c"));
    let program = membound.home.path().join(name);
    fs::write(&code, source).expect("the directory can be written");
    let built = Command::new("gcc")
        .args(["-O2", "-o"])
        .args([&program, &code])
        .args(options)
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            skipped(String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            skipped(format_args!("gcc: {error}"));
            None
        }
    }
}

/// Runs `check` with `words`; returns its output and the document.
fn check(membound: &Membound, options: &[&str], words: &[&str]) -> (Finished, Value) {
    let _busy = busy();
    let document = membound.home.path().join("check.json");
    let output = membound
        .command(["rewrite", "check", "--json"])
        .arg(&document)
        .args(options)
        .arg("--")
        .args(words)
        .output()
        .expect("the command starts");
    let finished = Finished::of(&output);
    let text = fs::read_to_string(&document)
        .unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
    let document = serde_json::from_str(&text).expect("the document is JSON");
    (finished, document)
}

/// Whether programs can be patched here at all.
fn patched(document: &Value) -> bool {
    if document["patched"] == true {
        return true;
    }
    let reason = document["reason"].as_str().unwrap_or_default();
    let cannot = [
        "Operation not permitted",
        "Permission denied",
        "no agent for",
    ];
    assert!(
        cannot.iter().any(|what| reason.contains(what)),
        "not patched: {reason}"
    );
    skipped(reason);
    false
}

#[test]
fn every_access_of_a_loop_is_counted_as_often_as_it_ran() {
    let membound = Membound::new();
    let Some(program) = compile(&membound, "repeat", REPEAT, &[]) else {
        return;
    };
    let program = program.to_str().unwrap();
    for (exact, body) in [(false, "count"), (true, "count"), (false, "sample")] {
        let mut options = vec!["--body", body, "--function", "repeat"];
        if exact {
            options.push("--exact");
        }
        let (finished, document) = check(&membound, &options, &[program, "12345"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        assert_eq!(finished.stdout, "");
        if !patched(&document) {
            return;
        }
        let modules = document["modules"].as_array().unwrap();
        let module = modules.iter().find(|it| it["path"] == program).unwrap();
        let sites = module["sites"].as_array().unwrap();
        let of = |kind: &str| sites.iter().filter(|it| it["access"] == kind).count();
        assert_eq!((of("load"), of("store")), (2, 1), "{sites:#?}");
        for site in sites {
            assert_eq!(site["executions"], 12345, "{site:#?}");
            if body == "sample" {
                let samples = &site["samples"];
                // One of the first executions, and one in a thousand from then on.
                let sampled = samples["timed"].as_u64().unwrap();
                let untimed = samples["untimed"].as_u64().unwrap();
                let lost = document["records"]["lost"].as_u64().unwrap();
                assert!(
                    (1..60).contains(&(sampled + untimed + lost)),
                    "{samples:#?}"
                );
                // A store is timed by a load of where it stores.
                assert_eq!(samples["median_ticks"].is_u64(), sampled > 0);
            } else {
                assert_eq!(site["samples"], Value::Null);
            }
            assert_eq!(site["function"], "repeat");
        }
        assert_eq!(document["kind"], "rewrite-check");
        assert_eq!(document["exact"], exact);
        assert_eq!(document["incomplete"], false);
        for module in modules {
            let number = |field: &str| module[field].as_u64().unwrap();
            let refused = module["refused"].as_object().unwrap().values();
            let refused: u64 = refused.map(|it| it.as_u64().unwrap()).sum();
            assert_eq!(
                number("patched") + refused,
                number("accesses"),
                "{module:#?}"
            );
        }
    }
}

#[test]
fn counts_go_to_stderr_and_the_programs_output_stays_its_own() {
    let membound = Membound::new();
    let (finished, document) = check(&membound, &[], &["sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(finished.stdout, "out\n");
    assert!(finished.stderr.starts_with("err\n"), "{}", finished.stderr);
    if patched(&document) {
        assert!(finished.stderr.contains("libc.so"), "{}", finished.stderr);
        for line in finished.stderr.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn the_environment_is_the_same_as_without_membound() {
    let membound = Membound::new();
    for preload in [None, Some(""), Some("libm.so.6")] {
        let run = |mut command: Command| {
            match preload {
                Some(value) => command.env("LD_PRELOAD", value),
                None => command.env_remove("LD_PRELOAD"),
            };
            let output = command.output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let words = ["rewrite", "check", "--", "env", "-0"];
        // The standard library sorts the environment of programs that it starts; a shell in between gives
        // both programs the same order, another one.
        let backwards = |mut command: Command, program: &OsStr, words: &[&str]| {
            let mut shell = Command::new("env");
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            shell
                .args(["ZZ=1", "MM=2", "AA=3"])
                .arg(program)
                .args(words);
            command = shell;
            command.current_dir(membound.home.path());
            run(command)
        };
        let patched = membound.command(words);
        let program = patched.get_program().to_owned();
        let patched = backwards(patched, &program, &words);
        let plain = backwards(membound.command(words), "env".as_ref(), &["-0"]);
        assert!(plain.contains("AA=3"));
        assert_eq!(plain, patched, "{preload:?}");
    }
}

#[test]
fn a_program_ignores_what_membounds_caller_ignores() {
    let membound = Membound::new();
    for ignored in ["", "trap '' PIPE; ", "trap '' PIPE HUP INT; "] {
        let run = |start: &str| {
            let script = format!("{ignored}exec {start} grep -E '^Sig(Blk|Ign)' /proc/self/status");
            let output = Command::new("sh")
                .args(["-c", &script])
                .current_dir(membound.home.path())
                .env("HOME", membound.home.path())
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let patched = format!("{} rewrite check --", env!("CARGO_BIN_EXE_membound"));
        let plain = run("");
        assert_eq!(plain.lines().count(), 2);
        assert_eq!(plain, run(&patched), "{ignored}");
    }
}

#[test]
fn exit_codes_and_signals_are_passed_on() {
    let membound = Membound::new();
    for code in [0, 1, 7, 255] {
        let (finished, document) = check(&membound, &[], &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(finished.code, Some(code));
        assert_eq!(document["exit_code"], code);
        assert_eq!(document["signal"], Value::Null);
    }
    for (name, signal) in [("KILL", libc::SIGKILL), ("SEGV", libc::SIGSEGV)] {
        let document = membound.home.path().join("signal.json");
        let _busy = busy();
        let status = membound
            .command(["rewrite", "check", "--json"])
            .arg(&document)
            .args(["--", "sh", "-c", &format!("kill -{name} $$")])
            .output()
            .unwrap()
            .status;
        assert_eq!(status.signal(), Some(signal), "{name}");
        let text = fs::read_to_string(&document).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["signal"], signal);
        assert_eq!(document["exit_code"], Value::Null);
    }
}

#[test]
fn signals_to_membound_alone_reach_the_program() {
    let membound = Membound::new();
    let _busy = busy();
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = membound
        .command(["rewrite", "check", "--", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: the child has not been waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    line.clear();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "caught\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_program_survives_a_killed_launcher() {
    let membound = Membound::new();
    let _busy = busy();
    let done = membound.home.path().join("done");
    let script = format!(
        "echo ready; read line; sleep 0.2; ls / >/dev/null && echo fine > {}",
        done.display()
    );
    let mut child = membound
        .command(["rewrite", "check", "--", "sh", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The program inherited the other end of the pipe.
    drop(child);
    let started = std::time::Instant::now();
    while fs::read_to_string(&done).ok().as_deref() != Some("fine\n") {
        assert!(
            started.elapsed().as_secs() < 60,
            "the program did not end well"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_static_program_runs_unpatched_and_is_reported() {
    let membound = Membound::new();
    let source = "int main(void) { return 5; }";
    let Some(program) = compile(&membound, "still", source, &["-static"]) else {
        return;
    };
    let (finished, document) = check(&membound, &[], &[program.to_str().unwrap()]);
    assert_eq!(finished.code, Some(5));
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("statically linked"),
        "{}",
        finished.stderr
    );
    assert_eq!(document["patched"], false);
    assert!(document["reason"].as_str().unwrap().contains("static"));
}

#[test]
fn a_program_with_other_rights_runs_as_it_is_and_is_told() {
    let membound = Membound::new();
    // SAFETY: it has no conditions.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root can give a program to another user");
    }
    let program = membound.home.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let (finished, document) = check(&membound, &[], &[program.to_str().unwrap(), "-u"]);
    if finished.stdout == "0\n" {
        return skipped("the file system ignores the set-user-ID bit");
    }
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (Some(0), "65534\n")
    );
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(
        document["reason"]
            .as_str()
            .unwrap()
            .contains("other rights")
    );
}

#[test]
fn scripts_are_patched_as_their_interpreters() {
    let membound = Membound::new();
    let script = membound.home.path().join("script");
    fs::write(&script, "#!/bin/sh\nexit 4\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (finished, document) = check(&membound, &[], &[script.to_str().unwrap()]);
    assert_eq!(finished.code, Some(4));
    if patched(&document) {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(document["processes"][0]["path"], shell.to_str().unwrap());
    }
}

#[test]
fn what_cannot_be_run_is_one_line() {
    let membound = Membound::new();
    let here = membound.home.path();
    fs::write(here.join("text"), "nothing\n").unwrap();
    membound
        .run("rewrite check -- no-such-command-anywhere")
        .complains(127, &["no-such-command-anywhere", "not found"]);
    membound
        .run("rewrite check -- ./text")
        .complains(126, &["./text", "not executable"]);
    membound
        .run("rewrite check -- /")
        .complains(126, &["cannot run /", "directory"]);
    membound.run("rewrite check").complains(2, &["<CMD>"]);
    membound
        .run("rewrite check --body nothing -- true")
        .complains(2, &["`nothing`", "displace, count, rubbish"]);
    membound
        .run("rewrite check --body rubbish --exact -- true")
        .complains(2, &["--exact", "rubbish"]);
    membound
        .run("rewrite check --json no/such/place -- touch ran")
        .complains(1, &["no/such/place"]);
    assert!(
        !here.join("ran").exists(),
        "nothing is run before the target is there"
    );
}

#[test]
fn a_plan_accounts_for_every_access() {
    let membound = Membound::new();
    let Some(program) = compile(&membound, "repeat", REPEAT, &[]) else {
        return;
    };
    let plan = membound
        .run(&format!("rewrite plan {} --json -", program.display()))
        .json();
    assert_eq!(plan["kind"], "rewrite-plan");
    let functions = plan["functions"].as_array().unwrap();
    for field in ["accesses", "loads", "stores", "patched"] {
        let sum: u64 = functions.iter().map(|it| it[field].as_u64().unwrap()).sum();
        assert_eq!(plan[field], sum, "{field}");
    }
    let repeat = functions.iter().find(|it| it["name"] == "repeat").unwrap();
    assert_eq!(
        (&repeat["loads"], &repeat["stores"]),
        (&2.into(), &1.into())
    );
    assert_eq!(repeat["patched"], 3);
    let line = format!(
        "rewrite plan {} --function repeat --json -",
        program.display()
    );
    let listed = membound.run(&line).json();
    let listed = listed["functions"].as_array().unwrap();
    assert_eq!(listed.len(), 1);
    let instructions = listed[0]["instructions"].as_array().unwrap();
    let patched = instructions.iter().filter(|it| it["patched"] == true);
    assert_eq!(patched.count(), 3);
    // The loop's counter and sum are live wherever it loads.
    let load = instructions
        .iter()
        .find(|it| it["access"] == "load")
        .unwrap();
    assert!(load["live"].as_str().unwrap().len() > 3, "{load:#?}");
    let text = membound.run(&format!(
        "rewrite plan {} --function repeat",
        program.display()
    ));
    assert_eq!(text.code, Some(0));
    assert!(text.stdout.contains(" P mov "), "{}", text.stdout);
    for line in text.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_kept_plan_is_the_same_as_a_new_one() {
    let membound = Membound::new();
    let Some(program) = compile(&membound, "repeat", REPEAT, &[]) else {
        return;
    };
    let plan = |options: &str| {
        let line = format!("rewrite plan {} {options} --json -", program.display());
        membound.run(&line).json()
    };
    let kept = || {
        let directory = membound.home.path().join(".cache/membound/plans");
        fs::read_dir(directory).map_or(0, Iterator::count)
    };
    let unkept = plan("--no-cache");
    assert_eq!(kept(), 0);
    let cold = plan("");
    assert_eq!(kept(), 1);
    assert_eq!(cold, unkept);
    assert_eq!(plan(""), cold);
    assert_eq!(kept(), 1);
    // Other options give another plan.
    plan("--body displace");
    assert_eq!(kept(), 2);
    let directory = membound.home.path().join(".cache/membound/plans");
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(plan(""), cold, "damaged plans are made anew");
    let with_kept = plan("--body displace");
    assert_eq!(with_kept, plan("--body displace --no-cache"));
}

#[test]
fn files_that_are_no_binary_are_a_one_line_error() {
    let membound = Membound::new();
    let here = membound.home.path();
    fs::write(here.join("empty"), "").unwrap();
    fs::write(
        here.join("text"),
        "some text that is long enough for a header\n",
    )
    .unwrap();
    let mut cut = fs::read("/bin/sh").unwrap();
    cut.truncate(3000);
    fs::write(here.join("cut"), &cut).unwrap();
    for (line, parts) in [
        ("rewrite plan nowhere", &["nowhere", "No such file"][..]),
        ("rewrite plan .", &["directory"]),
        ("rewrite plan empty", &["empty"]),
        ("rewrite plan text", &["text", "not an ELF file"]),
        ("rewrite plan cut", &["cut"]),
    ] {
        membound.run(line).complains(1, parts);
    }
    if let Some(program) = compile(&membound, "repeat", REPEAT, &[]) {
        let program = program.display();
        membound
            .run(&format!("rewrite plan {program} --function repaet"))
            .complains(1, &["`repaet`", "repeat"]);
        membound
            .run(&format!("rewrite plan {program} --function 0x1"))
            .complains(1, &["0x1"]);
    }
}
