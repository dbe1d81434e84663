//! Objects that are opened and closed: their trampolines are unmapped, their counts stay.

use membound_rewrite::patch::{self, Body};

use crate::fixture::{Fixture, busy, could_be_patched};

#[test]
fn what_is_closed_is_unmapped_and_stays_counted() {
    let (Some(fixture), Some(object)) = (
        Fixture::build("opener.c"),
        Fixture::build_with("opened.c", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let _busy = busy();
    let options = fixture.options(patch::Options::new(Body::Count { exact: false }));
    let (report, out) = fixture.run(options, &[object.program.to_str().unwrap()]);
    if !could_be_patched(&report) {
        return;
    }
    assert_eq!(out, "126000 1 0\n");
    let patched = object.patched(&report);
    assert_eq!(patched.placements, 3);
    let twice = object.function("twice").range;
    let executions: Vec<_> = patched
        .sites
        .iter()
        .filter(|site| twice.contains(&site.address))
        .map(|site| site.patch)
        .collect();
    assert_eq!(executions, [Ok(3000)]);
}
