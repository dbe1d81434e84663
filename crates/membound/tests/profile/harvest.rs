//! Plans of programs whose loads are known to miss or to hit.

use std::process::Output;
use std::sync::LazyLock;

use membound_types::{
    GapReason, HarvestPlan, HarvestRole, HarvestSite, Kind, YieldKind, YieldReason,
};

use crate::machine_profile::measured;
use crate::suite::{
    Profiled, alone, fixture, kept, membound, profile, profile_in, profile_on, text, unmeasured,
};

/// Size of a table far larger than the caches, in bytes.
const FAR_BYTES: &str = "268435456";
/// Size of a table that fits into the second-level cache, in bytes.
const NEAR_BYTES: &str = "262144";

fn plan<const N: usize>(run: &Profiled, words: [&str; N]) -> Output {
    let mut command = membound(&run.home);
    command.args(["harvest", "plan"]).arg(&run.run).args(words);
    command.output().expect("the command starts")
}

fn document<const N: usize>(run: &Profiled, words: [&str; N]) -> HarvestPlan {
    let mut command = membound(&run.home);
    command.args(["harvest", "plan"]).arg(&run.run).args(words);
    let output = command.arg("--json").output().expect("the command starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is a plan")
}

fn of_function<'a>(plan: &'a HarvestPlan, symbol: &str) -> Vec<&'a HarvestSite> {
    let sites = plan.sites.iter();
    sites
        .filter(|site| site.symbol == symbol && site.kind == YieldKind::Primary)
        .collect()
}

fn share(area: &str, percent: &str) -> Option<Profiled> {
    let program = fixture("share.c", "-O2")?;
    Some(profile(&[], &program, [area, percent, "2500"]))
}

/// A run whose chase takes three fifths of the time in memory, recorded once for all tests that plan from it,
/// since none depends on which run it is.
fn far() -> Option<&'static Profiled> {
    static FAR: LazyLock<Option<Profiled>> = LazyLock::new(|| {
        let program = fixture("share.c", "-O2")?;
        let words = [FAR_BYTES, "60", "4000"];
        Some(profile_in(
            &kept("far"),
            &measured().0,
            &[],
            &program,
            words,
        ))
    });
    let _alone = alone();
    FAR.as_ref()
}

#[test]
fn loads_that_miss_yield_and_loads_that_hit_do_not() {
    let Some(run) = far() else {
        return;
    };
    let plan = document(run, ["--max-overhead", "10%"]);
    let context = format!("{plan:#?}\n{}", run.show());
    assert_eq!(plan.kind, Kind::HarvestPlan, "{context}");
    let chase = of_function(&plan, "chase");
    let stalled: f64 = chase.iter().map(|site| site.stall_fraction).sum();
    let chosen = || chase.iter().filter(|site| site.chosen);
    let chosen_stall: f64 = chosen().map(|site| site.stall_fraction).sum();
    assert!(chosen_stall > 0.9 * stalled && stalled > 0.3, "{context}");
    for site in chosen() {
        assert_eq!(site.reason, YieldReason::Pays, "{context}");
        assert!(
            site.likelihood.is_some_and(|it| it.value > 0.5),
            "{context}"
        );
        assert!(site.predicted_gain > 0.0, "{context}");
    }
    let work = of_function(&plan, "work");
    assert!(!work.is_empty(), "{context}");
    for site in work {
        assert!(!site.chosen, "{context}");
        let hits = [
            YieldReason::LittleStall,
            YieldReason::Hits,
            YieldReason::NotCounted,
            YieldReason::NotTimed,
        ];
        assert!(hits.contains(&site.reason), "{context}");
    }
    let totals = plan.totals;
    assert!(totals.gain_fraction > 0.25, "{context}");
    assert!(totals.gain_fraction < totals.stall_fraction, "{context}");
    assert!(totals.hit_cost_fraction <= 0.1, "{context}");
}

#[test]
fn a_chase_through_a_near_cache_is_refused_since_it_hits() {
    let _alone = alone();
    let Some(run) = share(NEAR_BYTES, "80") else {
        return;
    };
    let plan = document(&run, []);
    let context = format!("{plan:#?}\n{}", run.show());
    let chase = of_function(&plan, "chase");
    assert!(!chase.is_empty(), "{context}");
    for site in chase {
        assert!(!site.chosen, "{context}");
    }
    let refused = plan.sites.iter().any(|site| {
        site.symbol == "chase"
            && matches!(site.reason, YieldReason::Hits | YieldReason::LittleStall)
    });
    assert!(refused, "{context}");
}

/// Reads files as the command does.
struct Files;

impl membound_harvest::Binaries for Files {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        std::fs::read(path)
    }
}

#[test]
fn the_choice_is_the_same_with_a_tenth_of_the_samples() {
    let Some(run) = far() else {
        return;
    };
    let mut data = membound_run::RunData::open(&run.run).expect("it was written");
    let options = membound_harvest::Options::new(HarvestRole::Primary);
    let chosen = |data: &membound_run::RunData| -> Vec<u64> {
        let plan = membound_harvest::plan(data, None, &Files, None, &options);
        let plan = plan.expect("it can be planned");
        let mut chosen: Vec<u64> = plan
            .sites
            .iter()
            .filter(|site| site.chosen)
            .map(|site| site.offset)
            .collect();
        chosen.sort_unstable();
        chosen
    };
    let of_all = chosen(&data);
    let mut number = 0;
    data.samples.retain_mut(|sample| {
        sample.weight_ns *= 10;
        number += 1;
        number % 10 == 0
    });
    assert!(!of_all.is_empty(), "{}", run.show());
    assert_eq!(chosen(&data), of_all, "{}", run.show());
}

#[test]
fn no_overhead_means_no_yield_that_could_hit() {
    let Some(run) = far() else {
        return;
    };
    let plan = document(run, ["--max-overhead", "0%"]);
    for site in plan.sites.iter().filter(|site| site.chosen) {
        assert!(site.hit_cost <= 0.0, "{site:?}");
    }
}

#[test]
fn a_scavenger_yields_within_the_bound() {
    let Some(run) = far() else {
        return;
    };
    for (rule, bound) in [("max", "200"), ("max", "50"), ("expected", "100")] {
        let plan = document(
            run,
            [
                "--role",
                "scavenger",
                "--bound-ns",
                bound,
                "--distance",
                rule,
            ],
        );
        let bound_ns: f64 = bound.parse().expect("it is a number");
        let context = format!("{rule} {bound}: {plan:#?}\n{}", run.show());
        assert_eq!(plan.options.bound_ns, Some(bound_ns), "{context}");
        for symbol in ["chase", "work"] {
            let function = plan.functions.iter().find(|it| it.symbol == symbol);
            let function = function.unwrap_or_else(|| panic!("no {symbol} in {context}"));
            assert!(function.profiled, "{context}");
            let bounded = function.distance_ns.is_some_and(|ns| ns <= bound_ns + 0.01);
            let excused = function
                .gaps
                .iter()
                .any(|gap| gap.why != GapReason::UnknownCall);
            assert!(bounded || excused, "{context}");
        }
        // The loop of this function has no load that yields.
        let in_work = plan.sites.iter().any(|site| {
            site.symbol == "work" && site.kind == YieldKind::Scavenger && site.every > 1
        });
        assert!(in_work, "{context}");
    }
}

#[test]
fn a_changed_binary_is_refused() {
    let (Some(one), Some(other)) = (fixture("share.c", "-O2"), fixture("share.c", "-O1")) else {
        return;
    };
    let _alone = alone();
    let place = tempfile::tempdir().expect("there is room for a directory");
    let program = place.path().join("program");
    std::fs::copy(one, &program).expect("it can be copied");
    let run = profile_on(
        unmeasured(),
        &["--quiet"],
        &program,
        [NEAR_BYTES, "50", "400"],
    );
    assert!(plan(&run, []).status.success(), "{}", run.show());
    std::fs::remove_file(&program).expect("it is ours");
    std::fs::copy(other, &program).expect("it can be copied");
    let refused = plan(&run, []);
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for word in [
        &program.display().to_string(),
        "is not the file that was profiled",
        "membound profile -- ",
    ] {
        assert!(stderr.contains(word), "{word} in {stderr}");
    }
    // Without the file nothing can be patched, and the plan says so.
    std::fs::remove_file(&program).expect("it is ours");
    let gone = plan(&run, []);
    assert!(gone.status.success(), "{}", text(&gone.stderr));
    assert!(
        text(&gone.stdout).contains("cannot be read any more"),
        "{}",
        text(&gone.stdout)
    );
}

#[test]
fn missing_parts_of_a_run_are_reported_with_remedies() {
    let Some(program) = fixture("share.c", "-O2") else {
        return;
    };
    let _alone = alone();
    let run = profile_on(
        unmeasured(),
        &["--quiet", "--no-latencies"],
        &program,
        [NEAR_BYTES, "50", "400"],
    );
    let output = plan(&run, ["--role", "scavenger"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for words in [
        "--no-latencies",
        "no basic block was counted",
        "No load yields.",
    ] {
        assert!(stdout.contains(words), "{words} in {stdout}");
    }
    assert!(
        stdout.lines().all(|line| line.chars().count() <= 80),
        "{stdout}"
    );
}

#[test]
fn bad_arguments_are_one_line() {
    let home = tempfile::tempdir().expect("there is room for a directory");
    let check = |words: &[&str], code: i32, part: &str| {
        let mut command = membound(home.path());
        let output = command.args(["harvest", "plan"]).args(words).output();
        let output = output.expect("the command starts");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{words:?}: {stderr}");
        assert!(stderr.contains(part), "{words:?}: {stderr}");
    };
    check(&["no.run"], 1, "no.run");
    check(&[], 2, "RUN");
    check(&["a.run", "--role", "host"], 2, "primary, scavenger");
    check(&["a.run", "--max-overhead", "200%"], 2, "200%");
    check(&["a.run", "--bound-ns", "100"], 2, "--role scavenger");
    check(
        &["a.run", "--role", "scavenger", "--bound-ns", "0"],
        2,
        "nanoseconds",
    );
    check(&["a.run", "--machine", "none.json"], 1, "none.json");
    check(&["a.run", "--previous", "none.json"], 1, "none.json");
    let other = home.path().join("other.json");
    std::fs::write(&other, r#"{"schema_version": 1, "kind": "machine"}"#).expect("there is room");
    let other = other.display().to_string();
    check(&["a.run", "--previous", &other], 1, "harvest plan --json");
}
