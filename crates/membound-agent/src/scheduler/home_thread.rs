//! A scavenger's home thread in a process with run queues: it runs the scavenger up to a yield, offers it
//! to run queues, and runs its system calls when it comes back.
//!
//! While no run queue has room for the scavenger, the idle policy decides: with [`Idle::Harvest`] the home
//! thread runs it in idle time, otherwise it waits. A scavenger that is wanted on another hardware thread
//! of the primary's core runs here while scavengers are admitted, whether a run queue has room or not.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_sync::handover::AWAY;
use membound_wire::{Idle, RunQueue, ScavengerProcessState, ScavengerRequest};

use super::handover::{HomeThread, PendingRequest};
use super::page::{has_peers, has_run_queues, idle};
use super::policy::{SCHED_IDLE, SCHED_OTHER, schedule};
use super::ring::{ROOM_EVENTS, has_yielded};
use super::thread_slot::{Context, ROUNDING_AT_FIRST, Use, slots, take_slot};
use super::{admission, ending, finish, leave, overdue};
use crate::scavenger::end;
use crate::scavenger::table::Scavenger;
use crate::signal_frame::Registers;
use crate::sys::{self, Errno};

/// Credit of a scavenger that runs on its home thread: it comes back to its home thread after about 50 µs of
/// counted run time.
const IDLE_TIME_CREDIT: i32 = 50_000 * membound_wire::CREDIT_UNITS_PER_NS;
/// Longest wait for room, in nanoseconds, before the home thread tries again.
const ROOM_TIMEOUT_NS: u64 = 100_000_000;
/// Longest wait, in nanoseconds, for a thread whose run queue has room to come to a yield.
const TAKE_TIMEOUT_NS: u64 = 5_000_000;
/// Waits for room after which the scavenger runs on its home thread although no thread of the program has
/// yielded yet.
const MAX_WAITS_FOR_FIRST_YIELD: u32 = 10;

global_asm!(
    ".pushsection .text.membound_home_thread, \"ax\", @progbits",
    // rdi: the context; rsi: the address of its signal frame, from which it resumes, 0 if it is parked.
    // Returns when the context yields.
    ".globl membound_run_queue_run",
    ".hidden membound_run_queue_run",
    "membound_run_queue_run:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov gs:[{stack}], rsp",
    "stmxcsr gs:[{rounding}]",
    "fnstcw gs:[{rounding} + 4]",
    "lea rax, [rip + 2f]",
    "mov gs:[{resume}], rax",
    "mov gs:[{current}], rdi",
    "mov byte ptr gs:[{selector}], 1",
    "test rsi, rsi",
    "jnz 3f",
    "mov rdx, [rdi + {context_resume}]",
    "mov rsp, [rdi + {context_stack}]",
    "ldmxcsr [rdi + {context_rounding}]",
    "fldcw [rdi + {context_rounding} + 4]",
    "mov qword ptr [rdi + {context_resume}], 0",
    "jmp rdx",
    "3:",
    "mov rsp, rsi",
    "jmp membound_run_queue_return",
    "2:",
    "mov byte ptr gs:[{selector}], 0",
    "mov qword ptr gs:[{current}], 0",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".popsection",
    stack = const offset_of!(RunQueue, stack),
    resume = const offset_of!(RunQueue, resume),
    current = const offset_of!(RunQueue, current),
    selector = const offset_of!(RunQueue, selector),
    context_resume = const offset_of!(membound_wire::Context, resume),
    context_stack = const offset_of!(membound_wire::Context, stack),
    rounding = const offset_of!(RunQueue, rounding),
    context_rounding = const offset_of!(membound_wire::Context, rounding),
);

unsafe extern "C" {
    fn membound_run_queue_run(context: &Context, frame: u64);
}

/// Gets the calling home thread a slot, so that the scavenger's system calls are dispatched to the agent.
/// Returns `false` in a process without run queues.
pub(crate) fn settle(home_thread: &'static HomeThread) -> Result<bool, Errno> {
    if !has_run_queues() {
        return Ok(false);
    }
    let slot = take_slot(Use::FreeHome).ok_or(Errno::ENOSPC)?;
    slot.settle(sys::thread(), 0)?;
    // The state and the slot may have been another scavenger's.
    home_thread
        .counted_loads
        .store(home_thread.loads(slot), Ordering::Relaxed);
    home_thread.backs_off_until_ns.store(0, Ordering::Relaxed);
    home_thread.slot.store(slot.address(), Ordering::Relaxed);
    slot.used.store(Use::Home as u32, Ordering::Release);
    Ok(true)
}

/// Runs the scavenger, which begins at `resume` with this stack pointer, until it ends. `make_call` makes the
/// system call in registers for it.
pub(crate) fn live(
    scavenger: &'static Scavenger,
    stack: u64,
    resume: u64,
    make_call: impl Fn(&'static Scavenger, &mut Registers),
) -> ! {
    let home_thread = scavenger.home_thread();
    let context = &home_thread.context;
    context.stack.store(stack, Ordering::Relaxed);
    context.rounding.store(ROUNDING_AT_FIRST, Ordering::Relaxed);
    context.resume.store(resume, Ordering::Relaxed);
    let mut in_idle_time = false;
    let mut runs_on_home_thread = false;
    let mut back_offs = BackOffs::default();
    loop {
        if ending::is_requested() {
            end::leave(scavenger);
        }
        let (frame, pending_request) = home_thread.handover().take_request();
        let pending_request = PendingRequest::of_word(pending_request);
        match pending_request {
            PendingRequest::Run => {}
            PendingRequest::Call => {
                // In `SCHED_IDLE` the call would wait long for a busy processor.
                schedule(0, SCHED_OTHER);
                leave::in_frame(frame, |registers| {
                    make_call(scavenger, registers);
                });
            }
            PendingRequest::BackOff | PendingRequest::ShortBackOff => {
                home_thread.back_off(&mut back_offs, pending_request);
                schedule(0, SCHED_IDLE);
                in_idle_time = idle() == Idle::Harvest;
            }
            PendingRequest::Die(signal) => {
                end::die(scavenger, ScavengerProcessState::Killed, signal)
            }
        }
        scavenger.wait_while_held();
        if let Some(slot) = home_thread.slot() {
            let credit = if in_idle_time { IDLE_TIME_CREDIT } else { 0 };
            slot.credit.store(credit, Ordering::Relaxed);
            // The monitor thread clears `alone` and the credit to call the scavenger to a yield. One that
            // runs on another hardware thread of the primary's core returns by itself, to ask whether it
            // may continue.
            let alone = in_idle_time && (has_peers() || !scavenger.runs_on_home_thread());
            slot.alone.store(u8::from(alone), Ordering::Relaxed);
            // A ring of one: at a miss the scavenger itself continues, as long as it has credit.
            context.next.store(context.address(), Ordering::Relaxed);
            slot.first.store(0, Ordering::Relaxed);
        }
        // SAFETY: the context is parked or has its frame, and belongs to this thread alone.
        unsafe { membound_run_queue_run(context, frame) };
        scavenger.count(offset_of!(ScavengerRequest, parks));
        let before = sys::monotonic_ns();
        let left_ns = home_thread.back_off_left_ns(before);
        home_thread.in_idle_time.store(0, Ordering::Relaxed);
        let ran_on_home_thread = runs_on_home_thread;
        runs_on_home_thread = scavenger.runs_on_home_thread();
        if runs_on_home_thread {
            if !ran_on_home_thread {
                schedule(0, SCHED_OTHER);
            }
            admission::await_admission();
            in_idle_time = true;
            continue;
        }
        if scavenger.is_held() {
            in_idle_time = true;
            continue;
        }
        if home_thread.is_kept() {
            schedule(0, SCHED_IDLE);
            in_idle_time = true;
            continue;
        }
        if left_ns > 0 && idle() == Idle::Harvest {
            in_idle_time = true;
            continue;
        }
        if left_ns > 0 {
            sys::nap(left_ns);
        }
        let before = before + left_ns;
        in_idle_time = !find_run_queue(home_thread, in_idle_time);
        if !in_idle_time {
            let away_ns = sys::monotonic_ns().saturating_sub(before);
            scavenger.add(offset_of!(ScavengerRequest, away_ns), away_ns);
        }
        if in_idle_time {
            schedule(0, SCHED_IDLE);
            home_thread.in_idle_time.store(1, Ordering::Relaxed);
        }
    }
}

/// Number of recent back-offs, for slices that did not end.
#[derive(Debug, Default)]
struct BackOffs {
    times: u32,
}

impl BackOffs {
    /// Nanoseconds without a back-off after which the count starts again.
    const FORGOTTEN_NS: u64 = 60_000_000_000;

    /// Length of the next back-off in nanoseconds, `since_ns` after the last one ended. An
    /// [`PendingRequest::ShortBackOff`] is not the scavenger's fault: it lasts as long as a first back-off
    /// and is not counted.
    fn next_ns(&mut self, since_ns: u64, pending_request: PendingRequest) -> u64 {
        if since_ns > Self::FORGOTTEN_NS {
            self.times = 0;
        }
        if pending_request == PendingRequest::ShortBackOff {
            return overdue::back_off_ns(0);
        }
        self.times = self.times.saturating_add(1);
        overdue::back_off_ns(self.times - 1)
    }
}

/// Offers the scavenger to run queues and waits until it is back; `false` if it is to continue on its home
/// thread.
///
/// Run queues take scavengers instead of being given them: on a busy processor this thread would not be
/// scheduled in time to hand its scavenger over when a run queue has room.
fn find_run_queue(home_thread: &'static HomeThread, in_idle_time: bool) -> bool {
    if finish::has_program_ended() {
        // No thread is left that could yield to it.
        return false;
    }
    let mut waits = 0;
    loop {
        // If a run queue gets room after the offer, the wait below returns at once.
        let room = home_thread.handover().offer(&ROOM_EVENTS);
        let mut takers = 0;
        for slot in slots() {
            takers += u32::from(slot.ask_to_take());
        }
        let harvests = idle() == Idle::Harvest;
        if takers > 0 || !(harvests && (in_idle_time || has_peers())) {
            let patience = if takers > 0 {
                TAKE_TIMEOUT_NS
            } else {
                ROOM_TIMEOUT_NS
            };
            sys::wait_while(&ROOM_EVENTS, room, patience);
            waits += 1;
        }
        if !home_thread.take_back() {
            home_thread.await_return();
            return true;
        }
        // A program that has not come to a yield in all these waits may never come to one.
        let runs = in_idle_time
            || has_peers()
            || home_thread.is_kept()
            || has_yielded()
            || waits > MAX_WAITS_FOR_FIRST_YIELD;
        if harvests && runs {
            return false;
        }
    }
}

impl HomeThread {
    fn await_return(&self) {
        while !self.handover().is_home() {
            sys::wait_while(&self.state, AWAY, ROOM_TIMEOUT_NS);
        }
    }

    /// Starts a back-off, whose length `back_offs` determines.
    fn back_off(&self, back_offs: &mut BackOffs, pending_request: PendingRequest) {
        let now_ns = sys::monotonic_ns();
        let last_ns = self.backs_off_until_ns.load(Ordering::Relaxed);
        let back_off_ns = back_offs.next_ns(now_ns.saturating_sub(last_ns), pending_request);
        self.backs_off_until_ns
            .store(now_ns.saturating_add(back_off_ns), Ordering::Relaxed);
    }
}
