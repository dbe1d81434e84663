//! Programs that allocate faster than every block can be recorded.

use std::process::Command;

use crate::suite::{alone, fixture, line_of, profile_on, text, unmeasured};

#[test]
fn twenty_million_blocks_are_sampled_and_their_numbers_lie_in_the_intervals() {
    let Some(program) = fixture("flood.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let plain = Command::new(&program).output().expect("it starts");
    let no_arguments: [&str; 0] = [];
    let run = profile_on(unmeasured(), &["--quiet"], &program, no_arguments);
    assert_eq!(text(&run.output.stdout), text(&plain.stdout));
    assert_eq!(run.output.status, plain.status);
    for (mark, truth) in [("OFTEN", 15_000_000_u64), ("SELDOM", 5_000_000)] {
        let line = line_of("flood.c", mark);
        let row = run.profile.objects.iter().find(|row| {
            let first = row.alloc_stack.first();
            first.is_some_and(|frame| frame.line == Some(line))
        });
        let row = row.unwrap_or_else(|| panic!("nothing allocated at {line}\n{}", run.show()));
        let (Some(low), Some(high)) = (row.blocks_low, row.blocks_high) else {
            // Every block was recorded.
            assert_eq!(row.blocks, truth, "{mark}\n{}", run.show());
            continue;
        };
        // Twice the interval: a check that fails by chance one time in twenty proves nothing.
        let margin = (high - low) / 2;
        assert!(
            (low - margin..=high + margin).contains(&truth),
            "{mark}: {} in {low} to {high}, not {truth}\n{}",
            row.blocks,
            run.show()
        );
        assert!(high - low < truth / 2, "{mark}: {low} to {high}");
    }
    assert_eq!(run.profile.overhead.lost_allocations, 0, "{}", run.show());
}
