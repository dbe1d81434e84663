//! Machines with less than this one: no executable memory, little address space, no threads. Each is
//! simulated by a limit that the command inherits.

use std::fs;
use std::os::unix::process::CommandExt;

use membound_testkit::skipped;

use crate::command::{Finished, Membound, busy, number};

/// Runs `line` with `limit` applied to the process.
fn run_under(
    membound: &Membound,
    line: &str,
    limit: fn() -> std::io::Result<()>,
) -> std::io::Result<Finished> {
    let _busy = busy();
    let mut command = membound.command(line.split(' '));
    // SAFETY: the limits make system calls only; the child has one thread.
    unsafe { command.pre_exec(limit) };
    Ok(Finished::of(&command.output()?))
}

fn result_of(result: libc::c_int) -> std::io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Memory never becomes executable, as under SELinux without execmem.
fn no_executable_memory() -> std::io::Result<()> {
    const PR_SET_MDWE: libc::c_int = 65;
    const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;
    // SAFETY: the call takes numbers only.
    result_of(unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) })
}

fn little_address_space() -> std::io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: 400 << 20,
        rlim_max: 400 << 20,
    };
    // SAFETY: the limit is alive during the call.
    result_of(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) })
}

/// A filter that answers EAGAIN to the creation of threads, as a full pids controller does.
fn no_threads() -> std::io::Result<()> {
    let statement = |code: u32, k: u32, jt: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(equal, libc::SYS_clone3 as u32, 2),
        statement(equal, libc::SYS_clone as u32, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32,
            0,
        ),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the call takes four numbers.
    result_of(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the program points to a filter that is alive during the call.
    result_of(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    })
}

#[cfg(target_arch = "x86_64")]
#[test]
fn without_executable_memory_portable_kernels_measure_and_are_reported() {
    let membound = Membound::new();
    let line = "measure latency --quick --sizes 16K,64K --page 4k --json -";
    let Ok(finished) = run_under(&membound, line, no_executable_memory) else {
        skipped("this kernel cannot refuse executable memory to a process");
        return;
    };
    let json = finished.json();
    let kernels = json["machine"]["conditions"]["labels"]["kernels"].as_str();
    assert!(
        kernels.is_some_and(|it| it.starts_with("portable")),
        "{kernels:?}"
    );
    assert!(finished.stderr.contains("portable"), "{}", finished.stderr);
    for point in json["points"].as_array().unwrap() {
        assert!(number(&point["ns"]) > 0.0);
    }
    let mlp = run_under(
        &membound,
        "measure mlp --quick --page 4k",
        no_executable_memory,
    );
    let mlp = mlp.unwrap();
    assert_eq!(mlp.code, Some(1));
    assert!(
        mlp.stderr.contains("forbids executable memory"),
        "{}",
        mlp.stderr
    );
}

#[test]
fn little_address_space_is_measured_in_and_more_is_refused() {
    let membound = Membound::new();
    let line = "measure latency --quick --sizes 16K,1M --page 4k --json -";
    let json = run_under(&membound, line, little_address_space)
        .unwrap()
        .json();
    assert_eq!(json["points"].as_array().unwrap().len(), 2);
    run_under(
        &membound,
        "measure latency --quick --sizes 1G --page 4k",
        little_address_space,
    )
    .unwrap()
    .complains(1, &["are available"]);
}

#[test]
fn copies_without_threads_end_in_an_error_and_not_in_waiting() {
    let cpus = fs::read_to_string("/proc/self/status").unwrap();
    let one = cpus
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .is_some_and(|list| !list.contains(['-', ',']));
    if one {
        skipped("one CPU");
        return;
    }
    let membound = Membound::new();
    let line = "measure latency --quick --threads 2 --sizes 16K --page 4k";
    match run_under(&membound, line, no_threads) {
        Ok(finished) => finished.complains(1, &["no thread"]),
        Err(error) => skipped(format!("no filter can be installed here: {error}")),
    }
}
