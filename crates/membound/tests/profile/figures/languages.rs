//! C++ and Rust: templates, inlining, demangled names, nodes that are allocated one by one.

use membound_testkit::in_two_of_three;

use crate::suite::{alone, fixture, line_of, profile};

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn nodes_of_cpp_lists_are_two_objects_by_the_lists_that_they_were_made_for() {
    let Some(program) = fixture("lists.cc", "-O2") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        // All blocks, however many: they are made in less than 100 ms, which may be too much for the
        // overhead that is permitted.
        let run = profile(&["--object-size", "1"], &program, ["2500"]);
        let (orders, visits) = (run.told("orders"), run.told("visits"));
        let truth = orders / (orders + visits);
        let found = |kind: &str, mark: &str| {
            let line = line_of("lists.cc", mark);
            let row = run.profile.objects.iter().find(|row| {
                row.alloc_stack.iter().any(|frame| {
                    frame
                        .function
                        .starts_with(&format!("shop::{kind}* shop::make_list<"))
                        || frame
                            .function
                            .starts_with(&format!("make_list<shop::{kind}>"))
                        || frame.function.contains(&format!("make_list<shop::{kind}>"))
                }) && row.alloc_stack.iter().any(|frame| frame.line == Some(line))
            });
            row.unwrap_or_else(|| panic!("no {kind}\n{}", run.show()))
        };
        let (order, visit) = (found("Order", "// ORDERS"), found("Visit", "// VISITS"));
        assert_eq!((order.size_bytes, visit.size_bytes), (128, 64));
        assert!(
            (order.blocks, visit.blocks) == (300_000, 600_000),
            "{order:?} {visit:?}"
        );
        let new = line_of("lists.cc", "// NEW");
        assert!(
            order
                .alloc_stack
                .iter()
                .any(|frame| frame.line == Some(new)),
            "{order:?}"
        );
        // Stalls of the walks alone: making the lists stalls as well.
        let walk = format!("lists.cc:{}", line_of("lists.cc", "// WALK"));
        let stall = |row: &membound_types::ObjectRow| {
            let code = row.code.iter().find(|code| code.name.ends_with(&walk));
            code.map_or(0.0, |code| code.fraction)
        };
        let reported = stall(order) / (stall(order) + stall(visit));
        assert!(
            (reported - truth).abs() <= 0.05,
            "{reported:.3} {truth:.3}\n{}",
            run.show()
        );
        let field = order.offsets.first().unwrap_or_else(|| panic!("{order:?}"));
        assert_eq!(
            field.offset, 0,
            "`next` is what is read: {:?}",
            order.offsets
        );
        let top = &run.profile.lines[0];
        assert_eq!(top.line, Some(line_of("lists.cc", "// WALK")), "{top:?}");
        assert!(top.function.contains("shop::walk<shop::Order>"), "{top:?}");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn boxes_of_rust_are_found_with_their_line() {
    let Some(program) = fixture("boxes.rs", "-O") else {
        return;
    };
    let _alone = alone();
    in_two_of_three(|| {
        let run = profile(&[], &program, ["2000"]);
        let boxed = line_of("boxes.rs", "// BOX");
        let row = run
            .profile
            .objects
            .first()
            .unwrap_or_else(|| panic!("{}", run.show()));
        assert_eq!(row.size_bytes, 128, "{row:?}");
        assert!(
            row.alloc_stack
                .iter()
                .any(|frame| frame.line == Some(boxed)),
            "{row:?}"
        );
        assert!(
            row.alloc_stack
                .iter()
                .any(|frame| frame.function.contains("store::boxes")),
            "{row:?}"
        );
        let top = &run.profile.lines[0];
        assert_eq!(
            top.line,
            Some(line_of("boxes.rs", "// WALK")),
            "{}",
            run.show()
        );
        assert!(top.function.ends_with("walk"), "{top:?}");
    });
}
