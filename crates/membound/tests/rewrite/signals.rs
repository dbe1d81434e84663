//! Signals: where they arrive, and what handlers see and do.

use crate::build::{Compiler, build};
use crate::case::{Case, cases};

cases! { build(Compiler::Gcc, "faults.c", "-O2");
    a_fault_is_left_by_siglongjmp: "fault-longjmp";
    a_fault_is_stepped_over: "fault-advance";
    a_fault_is_mended_and_tried_again: "fault-retry";
    flags_survive_a_fault: "fault-flags";
    a_division_by_zero_is_stepped_over: "fpe";
    an_illegal_instruction_is_stepped_over: "ill";
    a_fault_is_handled_on_another_stack: "altstack";
    a_stack_overflows: "overflow";
    handlers_are_nested: "nested";
    a_handler_is_for_once: "resethand".killed_by(libc::SIGUSR1);
    handlers_are_read_back: "readback";
    vectors_survive_a_storm: "storm";
    a_timer_finds_the_program_in_its_own_text: "timer-ip";
    a_timer_finds_allocations_at_their_entry_or_behind_them: "timer-malloc";
    queued_signals_keep_their_values: "realtime";
    calls_are_interrupted_and_restarted: "interrupted";
    a_handler_changes_registers: "context";
}

cases! { build(Compiler::Gcc, "masks.c", "-O2 -pthread");
    masks_are_read_back_as_written: "read-back";
    a_blocked_trap_waits: "trap".restless();
    a_blocked_signal_of_the_agent_s_waits: "call".restless();
    a_thread_that_waits_for_all_signals_gets_its_own: "waits".restless();
    threads_that_sleep_with_all_signals_blocked_keep_them_blocked: "sleepers".restless();
    children_inherit_the_mask: "children".restless();
}

#[test]
fn faults_unoptimised() {
    let Some(program) = build(Compiler::Gcc, "faults.c", "-O0") else {
        return;
    };
    for name in [
        "fault-longjmp",
        "fault-retry",
        "overflow",
        "readback",
        "timer-ip",
    ] {
        Case::new(&program, name).check();
    }
}
