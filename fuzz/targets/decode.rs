//! Any bytes as the code of a function: blocks that keep their promises.

#![no_main]

use libfuzzer_sys::fuzz_target;
use membound_rewrite::code::Function;
use membound_rewrite::flow::{Analyst, Conventions, Liveness, Summaries};
use membound_rewrite::image::Convention;

mod code;

fuzz_target!(|bytes: &[u8]| {
    let function = Function::from_code(bytes, 0x40_1000);
    code::check_function(&function);
    let summaries = Summaries::default();
    let mut analyst = Analyst::new();
    for convention in [Convention::SystemV, Convention::Unknown] {
        let conventions = Conventions {
            convention,
            summaries: &summaries,
        };
        let live = Liveness::of(&function, &conventions, &mut analyst);
        for index in 0..function.instructions.len() {
            let _ = live.before(index);
        }
    }
});
