//! Each kind of refusal by the kernel has its own error.

use std::io;

use membound_platform::Root;
use membound_record::nodes::{self, Nodes};
use membound_record::perf::{Config, Error, Kernel, Sampler};
use membound_record::watch::{Point, Watchpoints};
use membound_testkit::skipped;

use crate::fixture::{Fixture, busy};
use crate::perf::{others_may_run, unprivileged};

/// Makes calls fail with EPERM in this thread from here on, as a container's filter does.
fn deny(calls: &[libc::c_long]) -> io::Result<()> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    // The number of the call is the first word of what the filter sees.
    let mut filter = vec![step(LOAD_WORD, 0, 0)];
    for (before, &call) in calls.iter().enumerate() {
        let to_refusal = u8::try_from(calls.len() - before).expect("there are few calls");
        let call = u32::try_from(call).expect("calls have small numbers");
        filter.push(step(JUMP_EQUAL, to_refusal, call));
    }
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    filter.push(step(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(RETURN, 0, refusal));
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("the filter is short"),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: without privileges to gain by exec this thread may filter its own calls.
    let bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which outlives the call; it is for this thread alone.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    if filtered != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[test]
fn a_filter_of_system_calls_is_said_to_be_one() {
    let own = std::process::id();
    let found = std::thread::spawn(move || {
        deny(&[libc::SYS_perf_event_open, libc::SYS_move_pages])?;
        let point = Point {
            address: 0x1000,
            bytes: 8,
        };
        io::Result::Ok((
            Sampler::attach(own, &Config::default()).map(drop),
            Watchpoints::set(own, &[own], &[point]).map(drop),
            Nodes::read(&Root::system()).of_pages(own, &[0x1000], &mut Vec::new()),
        ))
    });
    match found.join().unwrap() {
        Ok((sampled, watched, asked)) => {
            assert!(matches!(sampled, Err(Error::Filtered)), "{sampled:?}");
            assert!(matches!(watched, Err(Error::Filtered)), "{watched:?}");
            // With one node there is nothing to ask.
            let denied = matches!(asked, Err(nodes::Error::Denied { pid }) if pid == own);
            let one_node = Nodes::read(&Root::system()).count() == 1;
            assert!(denied || one_node && asked.is_ok(), "{asked:?}");
        }
        Err(error) => skipped(format_args!("no filter: {error}")),
    }
}

#[test]
fn locked_memory_that_runs_out_makes_rings_smaller_and_is_said_in_the_end() {
    let _alone = busy();
    let Some(fixture) = Fixture::build("spin.c") else {
        return;
    };
    others_may_run(&fixture);
    let own = fixture.start_as(&["spin", "10"], &mut crate::perf::as_nobody);
    let config = Config {
        ring_bytes: 4 << 20,
        ..Config::default()
    };
    let found = unprivileged(|| {
        let mut held = Vec::new();
        // As many as it takes, and not more than a machine without a limit would give.
        while held.len() < 200 {
            match Sampler::attach(own.pid(), &config) {
                Ok(sampler) => held.push(sampler),
                Err(error) => return (held.len(), held.first().map(Sampler::kernel), Some(error)),
            }
        }
        (held.len(), held.first().map(Sampler::kernel), None)
    });
    match found {
        None => {}
        Some((_, Some(Kernel::Sampled), _) | (200, _, _)) => {
            skipped("this kernel sets no limit on the memory of perf events");
        }
        Some((held, _, Some(Error::Locked))) => assert!(held > 0),
        Some((_, _, Some(error @ (Error::NotPermitted { .. } | Error::Filtered)))) => {
            skipped(error);
        }
        Some(other) => panic!("{other:?}"),
    }
}
