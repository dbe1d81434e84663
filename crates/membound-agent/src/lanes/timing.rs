//! Timed time slices, and slices in which no scavenger runs: the code between the program's yields and its
//! contexts, and what is recorded of it.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use membound_wire::{Board, Context as WireContext, Lane, time_class};

use super::block::{Block, Context, ROUNDING_AT_FIRST};
use super::{ns_of, tell, told};

/// Slices before those that are recorded: entering the kernel has left predictors and caches cold.
const WARMING: u32 = 128;
/// Consecutive slices that are recorded.
const RECORDED: u32 = 256;

// rax: the context that the yield has entered. Each label is the code of the `Block` context of that name.
global_asm!(
    ".pushsection .text.membound_lanes, \"ax\", @progbits",
    ".globl membound_lanes_begin",
    ".hidden membound_lanes_begin",
    "membound_lanes_begin:",
    ".globl membound_lane_stopwatch",
    ".hidden membound_lane_stopwatch",
    "membound_lane_stopwatch:",
    // Not before the thread's earlier loads have completed: the processor runs ahead, and would count their
    // latency as time of the slice.
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov gs:[{begun}], rax",
    "mov rax, gs:[{resume}]",
    "mov gs:[{timed_resume}], rax",
    "lea rax, [rip + membound_lane_timed]",
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
    ".globl membound_lane_timed",
    ".hidden membound_lane_timed",
    "membound_lane_timed:",
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
    ".globl membound_lane_nobody",
    ".hidden membound_lane_nobody",
    "membound_lane_nobody:",
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
    ".globl membound_lanes_end",
    ".hidden membound_lanes_end",
    "membound_lanes_end:",
    ".popsection",
    begun = const offset_of!(Lane, begun),
    resume = const offset_of!(Lane, resume),
    timed_resume = const offset_of!(Lane, timed_resume),
    current = const offset_of!(Lane, current),
    selector = const offset_of!(Lane, selector),
    first = const offset_of!(Lane, first),
    next = const offset_of!(Lane, next),
    stack = const offset_of!(Lane, stack),
    context_next = const offset_of!(WireContext, next),
    context_resume = const offset_of!(WireContext, resume),
    context_rounding = const offset_of!(WireContext, rounding),
    rounding = const offset_of!(Lane, rounding),
    own_bits = const offset_of!(Lane, own_bits),
    context_stack = const offset_of!(WireContext, stack),
    timed = sym timed,
);

unsafe extern "C" {
    fn membound_lanes_begin();
    fn membound_lanes_end();
    fn membound_lane_stopwatch();
    fn membound_lane_timed();
    fn membound_lane_nobody();
}

/// True if `ip` is in the code between the program's yields and its contexts.
pub(super) fn between(ip: u64) -> bool {
    let [begin, end] = [membound_lanes_begin, membound_lanes_end]
        .map(|mark: unsafe extern "C" fn()| mark as *const () as u64);
    (begin..end).contains(&ip)
}

/// Records a slice of `ticks` of the time stamp counter.
extern "C" fn timed(ticks: u64) {
    let Some(block) = Block::of_thread() else {
        return;
    };
    let left = block.to_time.load(Ordering::Relaxed).saturating_sub(1);
    block.to_time.store(left, Ordering::Relaxed);
    if left > 0 {
        // The next slice is timed without entering the kernel first.
        block.change_next(|| {
            let next = block.next.load(Ordering::Relaxed);
            if block.is_member(next) {
                block.begin_with(&block.stopwatch, next);
            }
        });
    }
    if left >= RECORDED {
        return;
    }
    if block.begun.load(Ordering::Relaxed) == 0 {
        return tell(offset_of!(Board, skipped), 1);
    }
    let ns = ns_of(ticks);
    tell(offset_of!(Board, timed), 1);
    tell(offset_of!(Board, timed_ns), ns);
    tell(offset_of!(Board, times) + 8 * time_class(ns), 1);
    if let Some(longest) = told(offset_of!(Board, longest_ns)) {
        longest.fetch_max(ns, Ordering::Relaxed);
    }
}

impl Block {
    /// The address at which the thread goes on, without the code that ends a timed slice.
    pub(super) fn untimed_resume(&self) -> u64 {
        let resume = self.resume.load(Ordering::Relaxed);
        if resume == membound_lane_timed as *const () as u64 {
            self.timed_resume.load(Ordering::Relaxed)
        } else {
            resume
        }
    }

    /// Makes the next slice begin with one of the slot's own contexts, followed by the one at `next`.
    pub(super) fn begin_with(&self, own: &Context, next: u64) {
        let code: unsafe extern "C" fn() = if own.address() == self.nobody.address() {
            membound_lane_nobody
        } else {
            membound_lane_stopwatch
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
        self.next.store(own.address(), Ordering::Release);
    }

    /// Starts timing some of the slices to come.
    pub(super) fn time(&self) {
        self.to_time.store(WARMING + RECORDED, Ordering::Relaxed);
        self.ask();
    }
}
