//! Threads, and sequences that the kernel restarts.

use crate::build::{Compiler, build};
use crate::case::cases;

cases! { build(Compiler::Gcc, "threads.c", "-O2 -mcx16");
    threads_come_and_go: "churn".restless();
    detached_threads_come_and_go: "detached".restless();
    threads_are_cancelled: "cancel-deferred";
    threads_are_cancelled_at_any_moment: "cancel-asynchronous";
    threads_leave_from_deep_inside: "exits";
    threads_wait_for_conditions: "conditions".restless();
    atomic_totals_are_right: "atomics".restless();
    threads_have_their_own_data: "locals".restless();
    threads_get_signals: "kills".restless();
    a_process_with_threads_forks: "forks".restless();
    main_leaves_before_the_last_thread: "main-leaves";
    a_thread_executes_a_program: "exec".exits(6);
}

cases! { build(Compiler::Gcc, "sequences.c", "-O2");
    restartable_sequences_lose_nothing: "".restless();
}
