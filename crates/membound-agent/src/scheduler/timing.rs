//! Timed time slices, and slices in which no scavenger runs: the code between the program's yields and its
//! contexts, and the recorded durations.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{Context as WireContext, ControlPage, RunQueue, time_class};

use super::page::{add_to_counter, counter, ns_of};
use super::thread_slot::{Context, ROUNDING_AT_FIRST, ThreadSlot};

/// Unrecorded slices before the recorded ones: after an entry into the kernel, branch predictors and caches
/// are cold, and these slices warm them up.
const WARMING: u32 = 128;
/// Consecutive slices that are recorded.
const RECORDED: u32 = 256;

// rax: the context that the yield has entered. Each label is the code of the `ThreadSlot` context of that
// name.
global_asm!(
    ".pushsection .text.membound_run_queue, \"ax\", @progbits",
    ".globl membound_run_queue_begin",
    ".hidden membound_run_queue_begin",
    "membound_run_queue_begin:",
    ".globl membound_run_queue_stopwatch",
    ".hidden membound_run_queue_stopwatch",
    "membound_run_queue_stopwatch:",
    // Not before the thread's earlier loads have completed: the processor runs ahead, and would count their
    // latency as time of the slice.
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov gs:[{begun}], rax",
    "mov rax, gs:[{resume}]",
    "mov gs:[{timed_resume}], rax",
    "lea rax, [rip + membound_run_queue_timed]",
    "mov gs:[{resume}], rax",
    "mov rax, gs:[{current}]",
    "mov rcx, [rax + {context_next}]",
    "mov gs:[{first}], rcx",
    "mov gs:[{next}], rcx",
    "mov gs:[{current}], rcx",
    "mov rdx, [rcx + {context_resume}]",
    "mov rsp, [rcx + {context_stack}]",
    "ldmxcsr [rcx + {context_rounding}]",
    "fldcw [rcx + {context_rounding} + 4]",
    "mov qword ptr [rcx + {context_resume}], 0",
    "jmp rdx",
    // Back in the thread after a timed slice. All that it needs is on its stack.
    ".globl membound_run_queue_timed",
    ".hidden membound_run_queue_timed",
    "membound_run_queue_timed:",
    "mov r12, gs:[{timed_resume}]",
    "mov byte ptr gs:[{selector}], 0",
    "mov qword ptr gs:[{current}], 0",
    "mov rbx, rsp",
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, gs:[{begun}]",
    "mov rdi, rax",
    "xor ebp, ebp",
    "and rsp, -16",
    "cld",
    "call {timed}",
    "mov rsp, rbx",
    "jmp r12",
    ".globl membound_run_queue_empty_slice",
    ".hidden membound_run_queue_empty_slice",
    "membound_run_queue_empty_slice:",
    "mov rsp, gs:[{stack}]",
    // Compared and restored as yields do it: slices without a scavenger are the baseline for those.
    "mov rcx, [rax + {context_rounding}]",
    "xor rcx, gs:[{rounding}]",
    "test rcx, gs:[{own_bits}]",
    "jz 4f",
    "ldmxcsr gs:[{rounding}]",
    "fldcw gs:[{rounding} + 4]",
    "4:",
    "mov qword ptr [rax + {context_resume}], rdx",
    "jmp gs:[{resume}]",
    ".globl membound_run_queue_end",
    ".hidden membound_run_queue_end",
    "membound_run_queue_end:",
    ".popsection",
    begun = const offset_of!(RunQueue, begun),
    resume = const offset_of!(RunQueue, resume),
    timed_resume = const offset_of!(RunQueue, timed_resume),
    current = const offset_of!(RunQueue, current),
    selector = const offset_of!(RunQueue, selector),
    first = const offset_of!(RunQueue, first),
    next = const offset_of!(RunQueue, next),
    stack = const offset_of!(RunQueue, stack),
    context_next = const offset_of!(WireContext, next),
    context_resume = const offset_of!(WireContext, resume),
    context_rounding = const offset_of!(WireContext, rounding),
    rounding = const offset_of!(RunQueue, rounding),
    own_bits = const offset_of!(RunQueue, own_bits),
    context_stack = const offset_of!(WireContext, stack),
    timed = sym timed,
);

unsafe extern "C" {
    fn membound_run_queue_begin();
    fn membound_run_queue_end();
    fn membound_run_queue_stopwatch();
    fn membound_run_queue_timed();
    fn membound_run_queue_empty_slice();
}

/// True if `ip` is in the code between the program's yields and its contexts.
pub(super) fn between(ip: u64) -> bool {
    let [begin, end] = [membound_run_queue_begin, membound_run_queue_end]
        .map(|mark: unsafe extern "C" fn()| mark as *const () as u64);
    (begin..end).contains(&ip)
}

/// Records a slice of `ticks` of the time stamp counter.
extern "C" fn timed(ticks: u64) {
    let Some(slot) = ThreadSlot::of_thread() else {
        return;
    };
    let slices_left = slot.to_time.load(Ordering::Relaxed).saturating_sub(1);
    slot.to_time.store(slices_left, Ordering::Relaxed);
    if slices_left > 0 {
        // The next slice is timed without entering the kernel first.
        slot.change_next(|| {
            let next = slot.next.load(Ordering::Relaxed);
            if slot.is_member(next) {
                slot.begin_with(&slot.stopwatch, next);
            }
        });
    }
    if slices_left >= RECORDED {
        return;
    }
    if slot.begun.load(Ordering::Relaxed) == 0 {
        return add_to_counter(offset_of!(ControlPage, skipped), 1);
    }
    let ns = ns_of(ticks);
    add_to_counter(offset_of!(ControlPage, timed), 1);
    add_to_counter(offset_of!(ControlPage, timed_ns), ns);
    add_to_counter(offset_of!(ControlPage, times) + 8 * time_class(ns), 1);
    if let Some(longest) = counter(offset_of!(ControlPage, longest_ns)) {
        longest.fetch_max(ns, Ordering::Relaxed);
    }
}

impl ThreadSlot {
    /// The address at which the thread continues, without the code that ends a timed slice.
    pub(super) fn untimed_resume(&self) -> u64 {
        let resume = self.resume.load(Ordering::Relaxed);
        if resume == membound_run_queue_timed as *const () as u64 {
            self.timed_resume.load(Ordering::Relaxed)
        } else {
            resume
        }
    }

    /// Makes the next slice begin with one of the slot's own contexts, followed by the one at `next`.
    pub(super) fn begin_with(&self, own: &Context, next: u64) {
        let code: unsafe extern "C" fn() = if own.address() == self.empty_slice.address() {
            membound_run_queue_empty_slice
        } else {
            membound_run_queue_stopwatch
        };
        // Its own code needs no stack; a signal that comes before it switches uses the one of `next`.
        let stack = Context::at(next).stack.load(Ordering::Relaxed);
        own.stack.store(stack, Ordering::Relaxed);
        // The thread's own rounding at its last yield, so that the yield has nothing to load.
        let rounding = match self.rounding.load(Ordering::Relaxed) {
            0 => ROUNDING_AT_FIRST,
            rounding => rounding,
        };
        own.rounding.store(rounding, Ordering::Relaxed);
        own.next.store(next, Ordering::Relaxed);
        own.resume
            .store(code as *const () as u64, Ordering::Relaxed);
        // Last: a yield in a signal handler may use `own` from here on.
        self.queue().begin(own.address());
    }

    /// Starts timing some of the slices to come.
    pub(super) fn time(&self) {
        self.to_time.store(WARMING + RECORDED, Ordering::Relaxed);
        self.ask();
    }
}
