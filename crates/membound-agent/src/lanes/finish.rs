//! The end of a program whose scavengers are to finish: its threads end, its descriptors are closed,
//! and the process stays until its last guest has ended, or a signal asks it to end.

use core::sync::atomic::{AtomicBool, Ordering};

use super::{IDLE_WISH, board, here, is_agents, warden};
use crate::handlers::{self, Disposition};
use crate::sys::{self, Quiet, call, number};
use crate::{guest, own_thread, threads, trap};

/// Between two looks whether threads, and guests, are still there.
const LOOK_NS: u64 = 1_000_000;
/// Looks after which threads that do not end are left alone.
const PATIENCE: u32 = 1000;
/// Signals by which somebody ends a program: `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM`.
const ENDING: [u64; 4] = [HANGUP, 2, 3, 15];
const HANGUP: u64 = 1;

/// Set when the program has ended.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether a thread of the program's that is called is to end.
pub(crate) fn is_over() -> bool {
    ENDED.load(Ordering::Acquire)
}

/// The program is about to end its process with this code. Returns where nobody is to finish.
///
/// Others end it here: back in the program, with a lane that may be another thread's by now, all of its
/// handlers' yields would come to the agent, and timers that are as fast would keep it from its end.
pub(crate) fn program_ends(code: u64) {
    if here() {
        warden::account_for_all();
    }
    let wished = board().is_some_and(|board| board.finish != 0) && here();
    if !wished || guest::none_left() || ENDED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _quiet = Quiet::new();
    super::thread_ends();
    IDLE_WISH.store(1, Ordering::Release);
    end_others();
    // Whoever waits for the end of what the program writes is not to wait for its guests.
    let _ = own_thread::close_from(0);
    while !guest::none_left() && !is_asked_to_end() {
        sys::nap(LOOK_NS);
    }
    // SAFETY: it ends the process, as the program has asked for.
    let _ = unsafe { call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
}

/// Whether a signal has come since the program has ended by which somebody ends programs. None of those
/// that it ignores, nor a `SIGHUP` that it has a handler for, which seldom means that.
fn is_asked_to_end() -> bool {
    let mut pending = 0_u64;
    // SAFETY: the kernel writes one word.
    let found = unsafe {
        call(
            number::RT_SIGPENDING,
            [(&raw mut pending) as usize, 8, 0, 0, 0, 0],
        )
    };
    let came = |signal: &u64| pending & trap::mask(&[*signal]) != 0;
    found == 0
        && ENDING.into_iter().filter(came).any(|signal| {
            handlers::disposition(signal, None).is_some_and(|it| {
                !it.is_ignored() && (signal != HANGUP || it.handler == Disposition::DEFAULT.handler)
            })
        })
}

/// Has every other thread of the program's end itself.
fn end_others() {
    let own = sys::thread();
    let process = sys::process();
    let Ok(mut room) = threads::room_for_threads() else {
        return;
    };
    for _ in 0..PATIENCE {
        let mut left = false;
        let seen = threads::each(&mut room, |thread| {
            if thread != own && !is_agents(thread) && !threads::has_ended(thread) {
                left = true;
                sys::send_signal(process, thread, trap::CALL as u32);
            }
            Ok(())
        });
        if seen.is_err() || !left {
            return;
        }
        sys::nap(LOOK_NS);
    }
}
