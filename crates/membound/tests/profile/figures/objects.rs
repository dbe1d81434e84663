//! Six objects with known shares of the stalls, allocated through two layers of wrappers.

use membound_testkit::in_two_of_three;

use crate::suite::{alone, fixture, line_of, profile, text};

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn six_objects_are_ranked_by_their_stalls_with_the_line_that_allocated_each() {
    let Some(program) = fixture("objects.c", "-O2") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&[], &program, ["3000"]);
        // object 0 line 40 ns 123
        let mut truth: Vec<(u32, f64)> = text(&run.output.stdout)
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                (words[3].parse().unwrap(), words[5].parse().unwrap())
            })
            .collect();
        assert_eq!(truth.len(), 6);
        let total: f64 = truth.iter().map(|(_, ns)| ns).sum();
        truth.sort_by(|a, b| b.1.total_cmp(&a.1));

        // What each object costs in the chase; the program's setup stalls on them as well.
        let mut found: Vec<(u32, f64)> = Vec::new();
        for (line, _) in &truth {
            let row = run.profile.objects.iter().find(|row| {
                let frames = &row.alloc_stack;
                frames
                    .iter()
                    .any(|frame| frame.line == Some(*line) && frame.function == "main")
            });
            let row = row.unwrap_or_else(|| panic!("nothing allocated at {line}\n{}", run.show()));
            let names: Vec<(&str, Option<u32>)> = row
                .alloc_stack
                .iter()
                .map(|frame| (frame.function.as_str(), frame.line))
                .collect();
            assert_eq!(names[0], ("take", Some(line_of("objects.c", "INNER"))));
            assert_eq!(names[1], ("make", Some(line_of("objects.c", "OUTER"))));
            assert_eq!(names[2], ("main", Some(*line)));
            assert_eq!(row.size_bytes, 64 << 20);
            let chase = row
                .code
                .iter()
                .filter(|code| code.name.contains("objects.c"));
            assert!(chase.count() > 0, "{row:?}");
            found.push((*line, row.share.stall_fraction));
        }
        let sum: f64 = found.iter().map(|(_, stall)| stall).sum();
        for ((line, ns), (_, stall)) in truth.iter().zip(&found) {
            let (expected, reported) = (ns / total, stall / sum);
            assert!(
                (expected - reported).abs() <= 0.05,
                "line {line}: {reported:.3}, by the program's clock {expected:.3}\n{}",
                run.show()
            );
        }
        // The first four have different shares; the last two are equal.
        let mut ranked = found.clone();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let order = |list: &[(u32, f64)]| list.iter().take(4).map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(order(&ranked), order(&truth), "{}", run.show());
    });
}
