//! Any bytes as a plan, which may come from a damaged cache: placed, or refused in one line,
//! and never read beyond their end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use membound_rewrite::patch::{Placement, Plan};

fuzz_target!(|bytes: &[u8]| {
    let plan = match Plan::from_bytes(bytes.to_vec()) {
        Ok(plan) => plan,
        Err(error) => {
            one_line(&error);
            return;
        }
    };
    let span = plan.span();
    let _ = (
        plan.layout(),
        plan.island_pages().count(),
        plan.hooks().count(),
    );
    let _ = (plan.functions().count(), plan.sites().count());
    for site in 0..plan.numbered_sites().min(64) {
        let _ = plan.data_words(site);
    }
    let bias = 0x7f00_0000_0000_u64.wrapping_sub(span.start);
    for area in [
        0x7f00_0000_0000 + (span.end - span.start).next_multiple_of(4096),
        0x7f00_8000_0000,
        0,
    ] {
        match plan.place(&Placement { bias, area }) {
            Ok(placed) => {
                assert!(placed.code.len() as u64 <= plan.layout().code_bytes);
                assert!(placed.tables.len() as u64 <= plan.layout().tables_bytes);
                assert_eq!(placed.sites.len(), placed.edits.len());
            }
            Err(error) => one_line(&error),
        }
    }
});

fn one_line(error: &impl ToString) {
    let message = error.to_string();
    assert!(!message.contains(['\n', '\r']), "{message:?}");
}
