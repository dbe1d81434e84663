//! The agent: executes, inside a program, what the launcher has decided.
//!
//! It is preloaded into glibc and musl programs alike and therefore depends on neither: no libc, no
//! standard library, no thread-local storage, no allocation but mappings of its own, no panic, and no lock
//! that a signal handler or a forked child could find held for ever. The launcher makes all decisions;
//! `membound-wire` defines the protocol.
//!
//! - `start`: runs before the program's first instruction, finds the launcher, hides the agent; `settings`
//!   keeps what it has found.
//! - `control`: one conversation, over the socket of `conversation`; `text` and `live` replace text in it.
//! - `areas`: the registered trampolines and how threads leave them.
//! - `entry` (and `vectors`): entry points of trampolines; `handlers`, `exec`, `modules`, `sample` serve
//!   them, with the program's `saved_registers`. `inside` finds out by which one a thread entered.
//! - `filters`: ends the agent's work before the program filters its system calls, as `syscall_filter`
//!   records.
//! - `threads` and `trap`: how threads are stopped while text is changed live; `own_signals` defines the
//!   signals for it, and `trap_handler` handles them.
//! - `signal_frame`, `disposition`, `signal_stubs`, `original_state`: what all signal handlers use.
//! - `wrap`, `allocations`, `countdown`, `reported_blocks`, `allocation_rings`, `chains`: allocations by
//!   wrapped functions.
//! - `requests`: durations from receive to send, or from mark to mark.
//! - `unwind` and `stack`: call chains. `thread_table`: state of each thread.
//! - `listen`: the thread that waits for the launcher in live sessions; `control` has its main function.
//! - `scavenger`: scavengers, other programs inside this one; `scheduler`: their time slices at the yields of
//!   its threads.
//! - `timers` and `tick`: samples of threads, by timers on their CPU time; `masks` (with `beliefs`) and
//!   `children` hide them from the program and give children timers too.
//!
//! Outside the profile `agent` the crate is only checked and unit-tested: then the standard
//! library is linked, whose panic handler would collide with the one here.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![no_std]

#[cfg(panic = "unwind")]
extern crate std as _;

mod allocation_rings;
mod allocations;
mod alternate;
mod areas;
mod assembly;
mod auxiliary;
mod beliefs;
mod chains;
mod children;
mod control;
mod conversation;
mod countdown;
mod disposition;
mod entry;
mod exec;
mod failure;
mod filters;
mod handlers;
mod inside;
mod listen;
mod live;
mod loader;
mod locked;
mod masks;
mod memory;
mod memory_limits;
mod modules;
mod original_state;
mod own_signals;
mod own_thread;
mod quiesce;
mod reported_blocks;
mod requests;
mod sample;
mod sample_rings;
mod saved_registers;
mod scavenger;
mod scheduler;
mod settings;
mod sigaltstack;
mod signal_frame;
mod signal_stubs;
mod single_thread;
mod stack;
mod start;
mod sys;
mod syscall_filter;
mod text;
mod thread_table;
mod threads;
mod tick;
mod timers;
mod trap;
mod trap_handler;
mod trial;
mod unwind;
mod vectors;
mod walked;
mod words;
mod wrap;

#[cfg(not(panic = "unwind"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Not reached: the code is written so that nothing can panic, and a test searches the object for
    // panicking symbols.
    assembly::trap()
}
