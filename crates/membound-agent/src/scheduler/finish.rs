//! Lets scavengers finish after the program has ended: the program's threads end, its descriptors are
//! closed, and the process stays until its last scavenger has ended or a signal asks it to end.

use core::sync::atomic::{AtomicBool, Ordering};

use super::page::{IDLE_HARVEST_FORCED, control_page, has_run_queues};
use super::{home_threads, is_agents, monitor};
use crate::disposition::{Disposition, disposition};
use crate::scavenger::table;
use crate::sys::{self, Quiet, call, number};
use crate::{own_signals, own_thread, threads};

/// Nanoseconds between two polls whether threads, and scavengers, are still there.
const POLL_INTERVAL_NS: u64 = 1_000_000;
/// Polls after which threads that do not end are left alone.
const MAX_POLLS: u32 = 1000;
/// Signals by which users end programs: `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM`.
const ENDING: [u64; 4] = [HANGUP, 2, 3, 15];
const HANGUP: u64 = 1;

/// Set when the program has ended.
static ENDED: AtomicBool = AtomicBool::new(false);

/// True if a thread of the program that gets [`own_signals::CALL`] is to end.
pub(crate) fn has_program_ended() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// The program is about to end its process with this code. Returns if no scavenger is to finish.
///
/// The program's other threads end in the agent: back in the program, with a run queue that may be another
/// thread's by now, all yields of their handlers would enter the agent, and frequent timers would keep them
/// from ending.
pub(crate) fn program_ends(code: u64) {
    if has_run_queues() {
        monitor::account_for_all();
    }
    let scavengers_finish =
        control_page().is_some_and(|control_page| control_page.finish != 0) && has_run_queues();
    if !scavengers_finish || table::all_ended() || ENDED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _quiet = Quiet::new();
    super::thread_ends();
    IDLE_HARVEST_FORCED.store(1, Ordering::Release);
    end_other_threads();
    // A reader of the program's output that waits for end of file must not wait for its scavengers.
    let _ = own_thread::close_from(0);
    while !table::all_ended() && !has_end_signal() {
        // Again and again, because a home thread that has not noticed the end may lower itself.
        home_threads::raise_priorities();
        sys::nap(POLL_INTERVAL_NS);
    }
    // SAFETY: it ends the process, as the program has asked for.
    let _ = unsafe { call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
}

/// True if, since the program has ended, a signal is pending by which users end programs. A signal that the
/// program ignores does not count, nor a `SIGHUP` with a handler, which seldom means that.
fn has_end_signal() -> bool {
    let mut pending = 0_u64;
    // SAFETY: the kernel writes one word.
    let found = unsafe {
        call(
            number::RT_SIGPENDING,
            [(&raw mut pending) as usize, 8, 0, 0, 0, 0],
        )
    };
    let is_pending = |signal: &u64| pending & own_signals::mask(&[*signal]) != 0;
    found == 0
        && ENDING.into_iter().filter(is_pending).any(|signal| {
            disposition(signal, None).is_some_and(|it| {
                !it.is_ignored() && (signal != HANGUP || it.handler == Disposition::DEFAULT.handler)
            })
        })
}

/// Makes every other thread of the program end itself.
fn end_other_threads() {
    let own = sys::thread();
    let process = sys::process();
    let Ok(mut room) = threads::room_for_threads() else {
        return;
    };
    for _ in 0..MAX_POLLS {
        let mut any_left = false;
        let visited = threads::each(&mut room, |thread| {
            if thread != own && !is_agents(thread) && !threads::has_ended(thread) {
                any_left = true;
                sys::send_signal(process, thread, own_signals::CALL as u32);
            }
            Ok(())
        });
        if visited.is_err() || !any_left {
            return;
        }
        sys::nap(POLL_INTERVAL_NS);
    }
}
