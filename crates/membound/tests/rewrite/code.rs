//! Code of many kinds: state that no compiler keeps, control flow that is hard to follow,
//! optimisation levels, compilers, and text that changes.

use crate::build::{Compiler, build};
use crate::case::{Case, cases};

cases! { build(Compiler::Gcc, "state.c", "-O2 -frounding-math -lm");
    flags_live_across_accesses: "flags";
    carries_live_across_iterations: "carries";
    the_red_zone_is_kept: "red-zone";
    all_registers_are_kept: "registers";
    functions_have_conventions_of_their_own: "conventions";
    x87_state_is_kept: "x87";
    mmx_state_is_kept: "mmx";
    rounding_modes_are_kept: "rounding";
    the_direction_flag_is_kept: "direction";
    string_instructions_are_whole: "strings";
    wide_vectors_are_kept: "avx";
    masks_and_wider_vectors_are_kept: "avx512";
    arrays_of_any_size_lie_on_the_stack: "stack-arrays";
}

cases! { build(Compiler::Gcc, "control.c", "-O2");
    interpreters_agree: "interpreters";
    switches_are_right: "switches";
    callers_know_what_callees_leave_alone: "ipa-ra";
    tail_calls_are_right: "tail-calls";
    recursion_is_right: "recursion";
}

const CONTROL: [&str; 5] = [
    "interpreters",
    "switches",
    "ipa-ra",
    "tail-calls",
    "recursion",
];
const STATE: [&str; 8] = [
    "flags",
    "carries",
    "conventions",
    "x87",
    "rounding",
    "avx",
    "avx512",
    "stack-arrays",
];

/// All of `cases` of one build.
fn all(compiler: Compiler, source: &str, words: &str, cases: &[&str]) {
    if let Some(program) = build(compiler, source, words) {
        for name in cases {
            Case::new(&program, name).check();
        }
    }
}

macro_rules! builds {
    ($($name:ident: $compiler:ident $source:literal $words:literal $cases:ident;)+) => {
        $(
            #[test]
            fn $name() {
                all(Compiler::$compiler, $source, $words, &$cases);
            }
        )+
    };
}

builds! {
    control_without_optimisation: Gcc "control.c" "-O0" CONTROL;
    control_at_o1: Gcc "control.c" "-O1" CONTROL;
    control_at_o3: Gcc "control.c" "-O3" CONTROL;
    control_for_size: Gcc "control.c" "-Os" CONTROL;
    control_for_this_machine: Gcc "control.c" "-O3 -march=native" CONTROL;
    control_with_landing_marks: Gcc "control.c" "-O2 -fcf-protection" CONTROL;
    control_at_a_fixed_address: Gcc "control.c" "-O2 -no-pie -fno-pie" CONTROL;
    control_with_frame_pointers: Gcc "control.c" "-O2 -fno-omit-frame-pointer" CONTROL;
    control_with_shared_registers: Gcc "control.c" "-O2 -fipa-ra -fno-inline" CONTROL;
    control_in_sections: Gcc "control.c" "-O2 -ffunction-sections -falign-functions=1" CONTROL;
    control_stripped: Gcc "control.c" "-O2 -s" CONTROL;
    control_by_clang: Clang "control.c" "-O2 -Wno-unknown-attributes" CONTROL;
    control_by_clang_unoptimised: Clang "control.c" "-O0 -Wno-unknown-attributes" CONTROL;
    control_by_clang_for_size: Clang "control.c" "-Os -Wno-unknown-attributes" CONTROL;
    control_with_musl: Musl "control.c" "-O2" CONTROL;
    state_without_optimisation: Gcc "state.c" "-O0 -frounding-math -lm" STATE;
    state_at_o3: Gcc "state.c" "-O3 -march=native -frounding-math -lm" STATE;
    state_by_clang: Clang "state.c" "-O2 -frounding-math -lm" STATE;
}

cases! { build(Compiler::Gcc, "changing.c", "-O2");
    a_program_rewrites_an_operand: "immediate";
    a_program_reads_its_own_text: "reads";
    a_program_replaces_a_function: "replaces";
    a_program_maps_over_its_text: "maps-over";
    a_program_makes_code: "makes-code";
}
