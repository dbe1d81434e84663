//! A command whose slowdown is limited: yields with little worth are removed, and installed again.

use membound_types::{HarvestRole, HarvestRun, SiteState};

use crate::suite::{Harvest, fixture, scavenger};

/// Runs the fixture called with `words` with a scavenger in `mode`.
fn run(words: &str, mode: &str, options: &str) -> Option<HarvestRun> {
    let (program, scavenger) = (fixture("costs.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, words)
        .with(&scavenger, mode)
        .options("--idle stop")
        .options(options);
    // The fixture checks itself: alone, its text does not change.
    let harvested = harvest.run();
    assert_eq!(harvested.left.stdout, "costs: 0 wrong\n", "{harvested:#?}");
    assert_eq!(harvested.left.end, Ok(0), "{harvested:#?}");
    Some(harvested.document)
}

/// The states of the yield that always hits and of the one that always misses.
fn states(document: &HarvestRun) -> [SiteState; 2] {
    let state = |gains: bool| {
        let mut sites = document.sites.iter();
        let of_command = sites.find(|site| {
            site.side == HarvestRole::Primary && site.predicted_gain.is_some() == gains
        });
        of_command.expect("it was planned").state
    };
    [state(false), state(true)]
}

#[test]
fn a_yield_that_only_costs_goes_before_scavengers_are_let_in_less() {
    let Some(document) = run("6", "waste", "--max-slowdown 1%") else {
        return;
    };
    let context = format!("{document:#?}");
    assert_eq!(
        states(&document),
        [SiteState::Out, SiteState::In],
        "{context}"
    );
    let guard = document.guard.expect("there is a guard");
    assert_eq!((guard.yields_taken_out, guard.yields_put_back), (1, 0));
    assert_eq!(guard.yields_out, 1);
    // The other yield is as slow, and stays.
    assert!(guard.steps_out > 0 && guard.final_share < 0.5, "{guard:?}");
    let out = document.sites.iter().find(|it| it.state == SiteState::Out);
    assert!(out.is_some_and(|it| it.reason.is_some()), "{context}");
}

#[test]
fn it_comes_back_when_scavengers_waste_no_more_time() {
    // It runs as long as needed: removal and reinstallation are two changes of its text.
    let Some(document) = run("50 2", "waste 3", "--max-slowdown 100%") else {
        return;
    };
    let context = format!("{document:#?}");
    assert_eq!(states(&document), [SiteState::In; 2], "{context}");
    let guard = document.guard.expect("there is a guard");
    assert!(guard.yields_taken_out > 0, "{guard:?}");
    assert_eq!(guard.yields_put_back, guard.yields_taken_out);
}

#[test]
fn without_a_bound_all_stand() {
    let Some(document) = run("1", "waste", "") else {
        return;
    };
    assert_eq!(states(&document), [SiteState::In; 2], "{document:#?}");
    assert_eq!(document.guard, None);
}
