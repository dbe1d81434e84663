//! A process under a seccomp filter as containers have it.

use std::process::ExitCode;

use membound_platform::counters::{CounterGroup, Event, breakpoints, software_clock};
use membound_platform::numa::{self, Node, Topology};
use membound_types::{NodeId, NodePolicy, NotMeasured};

use super::print_line;

/// Prints one line `NAME|REASON|REMEDY` for each refusal.
pub(crate) fn main() -> ExitCode {
    if let Err(error) = deny(&[
        libc::SYS_perf_event_open,
        libc::SYS_mbind,
        libc::SYS_get_mempolicy,
        libc::SYS_move_pages,
    ]) {
        return print_line(&format!("skipped|cannot install a filter: {error}|"), 0);
    }
    let node = |id| Node {
        id: NodeId(id),
        cpus: Vec::new(),
        memory_bytes: 1 << 30,
        free_bytes: 1 << 30,
        distances: Vec::new(),
    };
    let topology = Topology {
        nodes: vec![node(0), node(1)],
    };
    let mut byte = 0u8;
    let policy = NodePolicy::Node(NodeId(0));
    let placed = numa::place(&raw mut byte, 1, policy, NodeId(0), &topology);
    let share = numa::placed_share(&raw const byte, 1, 4096, &[NodeId(0)]).map(drop);
    report(
        "counters",
        CounterGroup::open(&[Event::PageFaults]).map(drop),
    );
    report("clock", software_clock());
    report("watchpoints", breakpoints().map(drop));
    report("policy", numa::permitted().map_err(NotMeasured::from));
    report("place", placed.map_err(NotMeasured::from));
    report("share", share.map_err(NotMeasured::from));
    ExitCode::SUCCESS
}

fn report(name: &str, outcome: Result<(), NotMeasured>) {
    let line = match outcome {
        Ok(()) => format!("{name}|permitted|"),
        Err(missing) => format!(
            "{name}|{}|{}",
            missing.reason,
            missing.remedy.unwrap_or_default()
        ),
    };
    print_line(&line, 0);
}

/// Makes `calls` fail with EPERM from here on.
fn deny(calls: &[libc::c_long]) -> std::io::Result<()> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The number of the call is the first word of what the filter sees.
    let mut filter = vec![step(LOAD_WORD, 0, 0, 0)];
    for (index, &call) in calls.iter().enumerate() {
        let to_refusal = u8::try_from(calls.len() - index).unwrap_or(u8::MAX);
        filter.push(step(
            JUMP_EQUAL,
            to_refusal,
            0,
            u32::try_from(call).unwrap_or(u32::MAX),
        ));
    }
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(
        RETURN,
        0,
        0,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    ));
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: this only gives up privileges of this process.
    let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if given_up != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, whose length is in it, before it returns.
    let installed = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            std::ptr::from_ref(&program),
        )
    };
    if installed != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
