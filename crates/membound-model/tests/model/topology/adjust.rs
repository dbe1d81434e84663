//! Sizes, TLB and page-table term that the caller gives.

use membound_model::hierarchy::{
    PageTableChoice, TopologyError, bundled, missing_sizes, validate, with_page_table, with_sizes,
    with_tlb,
};
use membound_types::{Topology, TopologyLevel};

use super::{GIB, KIB, MIB, origin, sound};

/// Asserts the sizes after `--sizes` with these numbers of MiB.
#[track_caller]
fn check_sizes(topology: &Topology, given: &[u64], all: &[Option<u64>]) {
    let given: Vec<u64> = given.iter().map(|size| size * MIB).collect();
    let (sized, _) = with_sizes(topology, &given).expect("sizes that fit");
    let mebibytes = |level: &TopologyLevel| level.size_bytes.map(|size| size / MIB);
    assert_eq!(sized.levels.iter().map(mebibytes).collect::<Vec<_>>(), all);
}

#[test]
fn sizes_go_to_open_levels_or_to_all() {
    let origin = origin();
    let (a, b, c) = (Some(1024), Some(6144), Some(2048));
    let all = [Some(0), Some(4), a, a, b, b, c];
    check_sizes(&origin, &[1024, 1024, 6144, 6144, 2048], &all);
    check_sizes(
        &origin,
        &[1024, 1024, 6144, 6144],
        &[Some(0), Some(4), a, a, b, b, None],
    );
    check_sizes(
        &origin,
        &[1, 8, 1024, 1024, 6144, 6144, 2048],
        &[Some(1), Some(8), a, a, b, b, c],
    );
    check_sizes(
        &origin,
        &[1, 8, 1024, 1024, 6144, 6144],
        &[Some(1), Some(8), a, a, b, b, None],
    );
    let generic = bundled("generic").unwrap();
    check_sizes(
        &generic,
        &[1, 2, 3, 4],
        &[Some(1), Some(2), Some(3), Some(4), None],
    );
    check_sizes(
        &generic,
        &[1, 2, 3, 4, 5],
        &[Some(1), Some(2), Some(3), Some(4), Some(5)],
    );
    check_sizes(&sound(), &[], &[Some(0), Some(4), Some(1536), None]);
}

#[test]
fn equal_nodes_give_a_warning_and_caches_an_error() {
    let own = [1, 1, 6, 6, 2].map(|nodes| nodes * GIB);
    let (sized, warnings) = with_sizes(&origin(), &own).unwrap();
    assert_eq!(missing_sizes(&sized), Vec::<usize>::new());
    assert_eq!(
        warnings,
        [
            "level 7 `spatial diagonal` (2 GiB) is smaller than level 6 `next but one corner` \
          before it (6 GiB); used unchanged, since a section of memory may have any size"
        ]
    );
    let mut swapped = [4 * MIB, 32 * KIB, GIB, GIB, GIB, GIB];
    let error = with_sizes(&origin(), &swapped).unwrap_err().to_string();
    assert_eq!(
        error,
        "level 2 `SL cache` (32 KiB) is smaller than level 1 `on-chip cache` before it (4 MiB)"
    );
    swapped = [32 * KIB, 4 * MIB, GIB, MIB, GIB, GIB];
    let error = with_sizes(&origin(), &swapped).unwrap_err().to_string();
    assert_eq!(
        error,
        "level 4 `same corner` (1 MiB) is smaller than level 2 `SL cache` before it (4 MiB)"
    );
    let error = with_sizes(&origin(), &[GIB, 0, GIB, GIB])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the size of level 4 `same corner` is 0: it has to be at least 1 byte"
    );
}

#[test]
fn another_number_of_sizes_is_refused_with_the_possible_ones() {
    let origin_takes = "5 (for `home memory`, `same corner`, `neighbour corner`, \
         `next but one corner` and `spatial diagonal`), 4 (the last of these without end), \
         7 (for every level) or 6 (for every level but the last)";
    let generic_takes = "5 (for `L1`, `L2`, `L3`, `DRAM` and `remote`) \
         or 4 (the last of these without end)";
    let closed = with_sizes(&sound(), &[GIB])
        .map(|(topology, _)| topology)
        .unwrap_or_else(|_| sound());
    for (topology, count, message) in [
        (
            origin(),
            3,
            format!("3 sizes given, but topology `origin2000` takes {origin_takes}"),
        ),
        (
            origin(),
            0,
            format!("no sizes given, but topology `origin2000` takes {origin_takes}"),
        ),
        (
            origin(),
            8,
            format!("8 sizes given, but topology `origin2000` takes {origin_takes}"),
        ),
        (
            bundled("generic").unwrap(),
            1,
            format!("1 size given, but topology `generic` takes {generic_takes}"),
        ),
        (
            closed,
            2,
            "2 sizes given, but topology `bench` takes 4 (for every level) \
             or 3 (for every level but the last)"
                .to_owned(),
        ),
        (
            sound(),
            2,
            "2 sizes given, but topology `bench` takes 1 (for `remote`), \
             4 (for every level) or 3 (for every level but the last)"
                .to_owned(),
        ),
    ] {
        let error = with_sizes(&topology, &vec![GIB; count]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn the_page_table_term_can_be_set() {
    let constants = |topology: &Topology, choice| {
        let changed = with_page_table(topology, choice);
        assert_eq!(validate(&changed), Ok(Vec::new()));
        let term = changed.page_table?;
        Some((
            term.symbol,
            term.start_bytes,
            term.reference_bytes,
            term.factor_ns,
        ))
    };
    let own = PageTableChoice::At {
        start_bytes: GIB,
        reference_bytes: GIB,
    };
    let generic = bundled("generic").unwrap();
    assert_eq!(constants(&origin(), PageTableChoice::Off), None);
    assert_eq!(
        constants(&origin(), own),
        Some(("t_pt".to_owned(), GIB, GIB, Some(8356.0)))
    );
    assert_eq!(
        constants(&generic, PageTableChoice::Paper),
        Some(("t_pt".to_owned(), 1 << 28, 1 << 26, None))
    );
    let mut expected = generic;
    expected.components[1].symbol = "t_pt".to_owned();
    for level in &mut expected.levels[1..] {
        let times = level.path.remove("t_l2").unwrap();
        level.path.insert("t_pt".to_owned(), times);
    }
    assert_eq!(
        constants(&expected, PageTableChoice::Paper),
        Some(("t_pt_".to_owned(), 1 << 28, 1 << 26, None))
    );
}

#[test]
fn the_tlb_can_be_set() {
    let generic = bundled("generic").unwrap();
    let first = |topology: &Topology, entries, page| {
        let changed = with_tlb(topology, entries, page)?;
        let term = changed.tlb.first();
        Ok::<_, TopologyError>(
            term.map(|term| (term.symbol.clone(), term.entries, term.page_bytes)),
        )
    };
    let named = |entries, page| Ok(Some(("t_tlb".to_owned(), entries, page)));
    assert_eq!(first(&origin(), None, None), named(64, 16 * KIB));
    assert_eq!(first(&origin(), Some(128), None), named(128, 16 * KIB));
    assert_eq!(first(&origin(), None, Some(2 * MIB)), named(64, 2 * MIB));
    assert_eq!(first(&generic, Some(96), Some(4 * KIB)), named(96, 4 * KIB));
    assert_eq!(first(&generic, None, None), Ok(None));
    for (topology, entries, page, message) in [
        (
            &generic,
            Some(96),
            None,
            "topology `generic` has no TLB term: give its entries and its page size, not only one",
        ),
        (
            &generic,
            None,
            Some(4 * KIB),
            "topology `generic` has no TLB term: give its entries and its page size, not only one",
        ),
        (
            &origin(),
            Some(0),
            None,
            "the number of entries of TLB `t_tlb` is 0: it has to be at least 1",
        ),
    ] {
        assert_eq!(
            first(topology, entries, page).unwrap_err().to_string(),
            message
        );
    }
}
