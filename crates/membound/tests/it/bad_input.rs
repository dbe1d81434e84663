//! Wrong arguments, paths that cannot be written, and machines that deny things: one line, the right exit
//! code, and nothing lost.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use membound_testkit::skipped;

use crate::command::{Finished, Membound, busy};

#[test]
fn usage_errors_are_one_line_and_code_2() {
    let membound = Membound::new();
    for (line, part) in [
        ("measure nonsense", "nonsense"),
        ("measure latency --sizes 5Q", "`5Q`"),
        ("measure latency --sizes 0", "`0`"),
        ("measure latency --pattern zigzag", "zigzag"),
        ("measure latency --page 3m", "3m"),
        ("measure latency --node west", "west"),
        ("measure latency --cpu one", "`one`"),
        ("measure latency --quick --thorough", "--thorough"),
        ("measure latency --cond novalue", "`novalue`"),
        ("measure loaded --mix 0:0", "`0:0`"),
        ("measure mlp --filler sand", "sand"),
        ("measure latency --html -", "--html needs a file"),
        ("compare a b --html -", "--html needs a file"),
        ("compare Cargo.toml", "cannot be read"),
        ("report a.run --html -", "--html needs a file"),
        ("model fit a --fix t_m=1,t_m=2", "two values"),
        ("rewrite plan --exact --body displace /bin/true", "--exact"),
        ("harvest plan --bound-ns 100 a.run", "--role scavenger"),
    ] {
        let code = if line == "compare Cargo.toml" { 1 } else { 2 };
        membound.run(line).complains(code, &[part]);
    }
}

#[test]
fn a_command_that_needs_a_subcommand_shows_its_help() {
    let membound = Membound::new();
    for (line, part) in [
        ("", "measure"),
        ("model", "predict"),
        ("harvest", "plan"),
        ("rewrite", "check"),
    ] {
        let finished = membound.run(line);
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
        assert_eq!(finished.stderr, "", "{line}");
        assert!(finished.stdout.contains("Usage: membound"), "{finished:?}");
        assert!(finished.stdout.contains(part), "{line}: {finished:?}");
    }
}

#[test]
fn an_undelivered_result_is_a_failure() {
    let membound = Membound::new();
    for line in [
        "model show origin2000",
        "model show generic --json",
        "--help",
    ] {
        let full = fs::File::options().write(true).open("/dev/full");
        let _busy = busy();
        let output = membound
            .command(line.split_whitespace())
            .stdout(full.unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("stdout"), "{line}: {stderr}");
    }
}

#[test]
fn options_that_mean_nothing_to_the_part_are_refused() {
    let membound = Membound::new();
    membound
        .run("measure mlp --strides 64")
        .complains(2, &["--strides"]);
    membound
        .run("measure c2c --sizes 1M")
        .complains(2, &["--sizes"]);
    membound
        .run("measure mlp --format lat_mem_rd")
        .complains(2, &["latency"]);
    membound
        .run("measure c2c --format csv")
        .complains(2, &["latency"]);
}

#[test]
fn impossible_values_are_named_before_anything_is_measured() {
    let membound = Membound::new();
    let started = Instant::now();
    // Code 2 for requests that make sense on no machine, 1 for what this machine lacks; with several parts,
    // the error is found before the first one is measured.
    for (code, line, part) in [
        (2, "measure latency --strides 4 --sizes 16K", "4 bytes"),
        (
            2,
            "measure latency --strides 8 --access dirty --sizes 16K",
            "8 bytes",
        ),
        (
            2,
            "measure latency --strides 1M --sizes 16K",
            "smaller than the stride",
        ),
        (1, "measure latency --sizes 1000T", "are available"),
        (
            1,
            "measure latency --cpu 100000 --sizes 16K",
            "cpu 100000 does not exist",
        ),
        (2, "measure latency --threads 0 --sizes 16K", "0 copies"),
        (
            1,
            "measure latency --threads 100000 --sizes 16K",
            "100000 copies",
        ),
        (
            1,
            "measure latency --node 4000 --sizes 16K",
            "node 4000 does not exist",
        ),
        (2, "measure mlp --loads 0", "0 loads"),
        (2, "measure mlp --fillers 1000000", "1000000 fillers"),
        (2, "measure latency window --windows 100", "100 bytes"),
        (2, "measure latency mlp --loads 0", "0 loads"),
        (2, "measure --loads 0", "0 loads"),
        (
            2,
            "measure latency bandwidth --kernel read --sizes 128",
            "128 bytes",
        ),
        (
            1,
            "measure latency window --init-cpu 100000",
            "cpu 100000 does not exist",
        ),
    ] {
        membound.run(line).complains(code, &[part]);
    }
    // None of these refusals measured anything.
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn siblings_are_refused_where_no_cpus_share_a_core() {
    let shared = membound_platform::cpu::smt_siblings(
        &membound_platform::Root::system(),
        &membound_platform::affinity::allowed().unwrap(),
    );
    if !shared.is_empty() {
        skipped("CPUs of this machine share cores");
        return;
    }
    Membound::new()
        .run("measure latency --quick --sizes 16K --threads 1 --spread siblings")
        .complains(1, &["--spread siblings", "share a core"]);
}

#[test]
fn a_file_that_cannot_be_made_names_the_cause() {
    let membound = Membound::new();
    for line in [
        "measure --json /proc/x.json",
        "profile -o /proc/x.run -- /bin/true",
        "model show generic --json /proc/x.json",
    ] {
        membound.run(line).complains(
            1,
            &["cannot write /proc/x.", "no file can be made in /proc"],
        );
    }
}

#[test]
fn text_is_as_wide_as_it_is_asked_to_be() {
    let membound = Membound::new();
    let widest = |columns: Option<&str>| {
        let _busy = busy();
        let mut command = membound.command(["doctor"]);
        if let Some(columns) = columns {
            command.env("COLUMNS", columns);
        }
        let finished = Finished::of(&command.output().unwrap());
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let columns = finished.stdout.lines().map(|line| line.chars().count());
        columns.max().unwrap()
    };
    let usual = widest(None);
    assert!(usual <= 80, "{usual}");
    let narrow = widest(Some("60"));
    assert!(narrow <= 60, "{narrow}");
    // Lines of some hundred letters use the available width.
    let wide = widest(Some("120"));
    assert!(80 < wide && wide <= 120, "{wide}");
}

#[test]
fn pages_that_are_not_there_are_named_with_a_remedy() {
    let pool = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if pool.is_ok_and(|free| free.trim() != "0") {
        skipped("this machine has huge pages in its pool");
        return;
    }
    let finished = Membound::new().run("measure latency --page 2m --sizes 16K");
    finished.complains(1, &["2m", "nr_hugepages"]);
}

#[test]
fn unwritable_outputs_are_found_before_measuring() {
    let membound = Membound::new();
    let started = Instant::now();
    membound
        .run("measure --json no/such/directory/x.json")
        .complains(1, &["no/such/directory"]);
    membound
        .run("measure --html .")
        .complains(1, &["directory"]);
    membound
        .run("measure --json /proc/version")
        .complains(1, &["/proc/version"]);
    membound
        .run("tour --html no/such/directory/x.html")
        .complains(1, &["no/such/directory"]);
    // A measurement of everything takes far longer than this.
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_full_disk_costs_one_file_and_not_the_result() {
    let membound = Membound::new();
    let finished = membound.run("measure latency --quick --sizes 16K --page 4k --json /dev/full");
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("/dev/full"), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(
        finished.stdout.contains("16 KiB"),
        "the text is still shown: {}",
        finished.stdout
    );
}

#[test]
fn an_old_document_stays_when_the_new_one_cannot_be_measured() {
    let membound = Membound::new();
    let path = membound.home.path().join("old.json");
    fs::write(&path, "old").unwrap();
    membound
        .run("measure latency --sizes 1000T --json old.json")
        .complains(1, &["are available"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(
        fs::read_dir(membound.home.path()).unwrap().count(),
        1,
        "nothing is left over"
    );
}

#[test]
fn paths_need_not_be_utf_8() {
    let _busy = busy();
    let membound = Membound::new();
    let name = OsString::from_vec(b"pro\xfffile.json".to_vec());
    let mut args: Vec<OsString> = "measure latency --quick --sizes 16K --page 4k --json"
        .split(' ')
        .map(Into::into)
        .collect();
    args.push(name.clone());
    let output = membound.command(args).output().unwrap();
    assert_eq!(Finished::of(&output).code, Some(0));
    let text = fs::read_to_string(membound.home.path().join(name)).unwrap();
    assert!(text.contains("\"kind\": \"latency\""));
}

#[test]
fn without_a_writable_home_the_profile_is_not_kept_and_a_warning_is_printed() {
    let _busy = busy();
    let membound = Membound::new();
    let output = membound
        .command("measure --quick c2c numa --json out.json".split(' '))
        .env("XDG_DATA_HOME", "/proc/no/such/place")
        .output()
        .unwrap();
    let finished = Finished::of(&output);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("will not be kept"),
        "{}",
        finished.stderr
    );
    assert!(membound.home.path().join("out.json").exists());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let _busy = busy();
    let membound = Membound::new();
    let mut child = membound
        .command("measure latency --quick --sizes 16K --page 4k".split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty());
}

/// A filter that answers EPERM to performance events and memory policies, as containers do.
fn deny_perf_and_policies() -> std::io::Result<()> {
    const DENIED: [libc::c_long; 4] = [
        libc::SYS_perf_event_open,
        libc::SYS_mbind,
        libc::SYS_set_mempolicy,
        libc::SYS_move_pages,
    ];
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (index, number) in DENIED.iter().enumerate() {
        filter.push(libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: (DENIED.len() - index) as u8,
            jf: 0,
            k: *number as u32,
        });
    }
    filter.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
    filter.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    ));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the call takes four numbers.
    let no_new = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program points to a filter that is alive during the call.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    if no_new == 0 && set == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_container_that_denies_perf_and_policies_still_gets_figures() {
    let _busy = busy();
    let membound = Membound::new();
    let line = "measure mlp --quick --loads 1,2 --fillers 0 --page 4k --areas 64M --json -";
    let mut command = membound.command(line.split(' '));
    // SAFETY: the function only makes system calls and allocates before the filter stands;
    // the child has one thread.
    unsafe { command.pre_exec(deny_perf_and_policies) };
    let json = Finished::of(&command.output().unwrap()).json();
    let cell = &json["cells"][0];
    assert!(
        cell["cycles"].as_f64().is_some_and(|cycles| cycles > 0.0),
        "{cell}"
    );
    let reason = cell["misses"]["not_measured"]["reason"].as_str().unwrap();
    assert!(!reason.is_empty());
}
