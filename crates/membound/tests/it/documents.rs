//! Every command of `docs/documents.md` and `docs/documents/001.md`, in a short form: it ends well, and shows the
//! table that its row promises. Figures are not checked. `cargo xtask` commands are only parsed.

mod page;
mod promises;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use membound_rewrite::patch::sampler_identity;
use membound_testkit::{Compiler, Fixtures, skipped};
use membound_types::{BandwidthKernel, Outcome};
use serde_json::Value;

use self::page::{Part, cells, commands, part_of, short};
use crate::command::{Finished, Membound, busy};
use crate::synthetic;

/// Message of a machine whose prefetchers cannot be switched.
const NO_SWITCHES: &str = "prefetchers cannot be set: ";

static PROBLEMS: LazyLock<Fixtures> = LazyLock::new(|| fixtures("problems"));
static HARVEST: LazyLock<Fixtures> = LazyLock::new(|| fixtures("harvest"));

/// The programs of a directory below `bench`.
fn fixtures(name: &str) -> Fixtures {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documents");
    Fixtures::new(bench.join(name), built.join(name))
}

/// Programs of the page, by the names that it gives them.
const PROGRAMS: [(&str, &LazyLock<Fixtures>, &str, &str); 11] = [
    ("program", &PROBLEMS, "triad.c", "-O2"),
    ("regression-before", &PROBLEMS, "regression.c", "-O1"),
    ("regression-after", &PROBLEMS, "regression.c", "-O1 -DAFTER"),
    ("triad-before", &PROBLEMS, "triad.c", "-O2"),
    ("triad-after", &PROBLEMS, "triad.c", "-O2 -DAFTER"),
    ("two_nodes", &PROBLEMS, "two_nodes.c", "-O2"),
    ("without", &PROBLEMS, "triad.c", "-O3"),
    ("with", &PROBLEMS, "triad.c", "-O3 -fprefetch-loop-arrays"),
    ("server", &HARVEST, "server.c", "-O2 -lm"),
    ("scan", &HARVEST, "scan.c", "-O2"),
    ("schase", &HARVEST, "schase.c", "-O2"),
];

/// Copies the page's programs into the directory of `membound`, with a synthetic machine profile, so that nothing
/// measures the machine first. Returns `None`, and reports a skip, without a compiler.
fn with_programs(membound: &Membound) -> Option<()> {
    let home = membound.home.path();
    for (name, fixtures, source, words) in PROGRAMS {
        let built = fixtures.build(Compiler::Gcc, source, words)?;
        fs::copy(built, home.join(name)).expect("there is room for a program");
    }
    write_machine(membound);
    Some(())
}

fn write_machine(membound: &Membound) {
    let kernels = [
        (BandwidthKernel::Read, 10.0),
        (BandwidthKernel::Triad, 10.0),
    ];
    let mut machine = synthetic::machine_that_moves(&kernels);
    if let Outcome::Known(calibration) = &mut machine.calibration {
        // As if this build had calibrated: with another identity, latencies of recorded accesses are not used.
        calibration.patch = sampler_identity();
    }
    let text = serde_json::to_string(&machine).expect("a profile can be written");
    fs::write(membound.home.path().join("machine.json"), text).expect("the directory is ours");
}

fn run(membound: &Membound, line: &str) -> Finished {
    let _busy = busy();
    let mut command = membound.command(line.split_whitespace());
    command
        .env("XDG_CACHE_HOME", membound.home.path().join("cache"))
        // Wide enough that no heading is shortened and no column left out.
        .env("COLUMNS", "160");
    Finished::of(&command.output().expect("the command starts"))
}

/// Runs the page's commands of one part, in the order of the page.
#[track_caller]
fn check(membound: &Membound, part: Part) {
    let allowed = membound_platform::affinity::allowed().expect("the kernel says it");
    let commands = commands();
    let chosen = commands.iter().filter(|command| part_of(command) == part);
    for command in chosen {
        let needs_two = [
            "--cpu 0,1",
            "-P 2",
            "--threads 1,2",
            "two_nodes",
            "two-nodes",
        ];
        if allowed.len() < 2 && needs_two.iter().any(|words| command.contains(words)) {
            skipped("there is one CPU");
            continue;
        }
        let line = short(command);
        let finished = run(membound, &line);
        if finished.code == Some(1) && finished.stderr.contains(NO_SWITCHES) {
            let reason = finished.stderr.trim();
            skipped(reason.strip_prefix("membound: ").unwrap_or(reason));
            continue;
        }
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
        // `profile` and `harvest run` leave stdout to the program.
        let output = format!("{}\n{}", finished.stdout, finished.stderr);
        promises::check(command, &line, &output, membound.home.path());
        for relabelled in &RELABELLED {
            if command.ends_with(relabelled.measured) && !command.starts_with("compare") {
                relabel(membound.home.path(), relabelled);
            }
        }
    }
}

/// A measured document that stands for others of the page's comparisons, which differ from it by one label. The
/// page has its reader measure each of them.
struct Relabelled {
    measured: &'static str,
    label: &'static str,
    /// File names, each with its value of the label.
    others: &'static [(&'static str, &'static str)],
}

const RELABELLED: [Relabelled; 2] = [
    Relabelled {
        measured: "h0g1.json",
        label: "guest-thp",
        others: &[("h0g0.json", "on")],
    },
    Relabelled {
        measured: "own-cpus.json",
        label: "placement",
        others: &[("free.json", "free"), ("one-cpu.json", "one-cpu")],
    },
];

/// Writes the measured document again with the other values of its label.
fn relabel(home: &Path, relabelled: &Relabelled) {
    let Relabelled {
        measured,
        label,
        others,
    } = relabelled;
    let text = fs::read_to_string(home.join(measured)).expect("it was measured");
    let mut document: Value = serde_json::from_str(&text).expect("it is a document");
    for (name, value) in *others {
        let known = &mut document["machine"]["conditions"]["labels"][*label];
        assert!(known.is_string(), "{measured} has no label {label}");
        *known = Value::from(*value);
        fs::write(home.join(name), document.to_string()).expect("the directory is ours");
    }
}

// Several tests, so that they run beside each other.

#[test]
fn commands_of_the_page_compare_conditions() {
    check(&Membound::new(), Part::Conditions);
}

#[test]
fn commands_of_the_page_measure_parallelism() {
    check(&Membound::new(), Part::Parallelism);
}

#[test]
fn commands_of_the_page_measure_parallelism_of_several_places() {
    check(&Membound::new(), Part::Places);
}

#[test]
fn commands_of_the_page_measure_several_processors() {
    check(&Membound::new(), Part::Processors);
}

#[test]
fn commands_of_the_page_switch_prefetchers() {
    check(&Membound::new(), Part::Prefetchers);
}

#[test]
fn commands_of_the_page_measure_curves() {
    let membound = Membound::new();
    let windows = run(&membound, &short("measure window --json windows.json"));
    assert_eq!(windows.code, Some(0), "{windows:?}");
    check(&membound, Part::Curves);
}

#[test]
fn commands_of_the_page_profile_programs() {
    let membound = Membound::new();
    if with_programs(&membound).is_some() {
        // The page compares runs of these two builds.
        for build in ["without", "with"] {
            let line = short(&format!("profile -o {build}.run -- ./{build}"));
            let recorded = run(&membound, &line);
            assert_eq!(recorded.code, Some(0), "{line}: {recorded:?}");
        }
        check(&membound, Part::Profile);
    }
}

#[test]
fn commands_of_the_page_plan_and_run_harvests() {
    let membound = Membound::new();
    if with_programs(&membound).is_some() {
        // The page's scavenger is profiled like its server.
        let scan = run(&membound, &short("profile -o scan.run -- ./scan"));
        assert_eq!(scan.code, Some(0), "{scan:?}");
        check(&membound, Part::Harvest);
    }
}

#[test]
fn the_pages_have_commands_of_every_part_and_nothing_else() {
    let commands = commands();
    for part in [
        Part::Conditions,
        Part::Parallelism,
        Part::Places,
        Part::Processors,
        Part::Prefetchers,
        Part::Curves,
        Part::Profile,
        Part::Harvest,
        Part::Exploration,
    ] {
        let count = commands.iter().filter(|it| part_of(it) == part).count();
        assert!(count >= 2, "{part:?}: {count} of {commands:?}");
    }
    let xtask = include_str!("../../../../xtask/src/main.rs").to_lowercase();
    for cell in cells() {
        if cell.starts_with("membound ") {
            continue;
        }
        let words = cell.strip_prefix("cargo xtask ");
        let words = words.unwrap_or_else(|| panic!("`{cell}` is no command of the project"));
        let subcommand = words.split(' ').next().unwrap_or_default();
        assert!(
            xtask.contains(subcommand),
            "`{cell}`: xtask has no such command"
        );
    }
}

#[test]
fn every_exploration_of_the_page_has_its_tables() {
    use membound_types::HarvestExplore;
    let membound = Membound::new();
    write_machine(&membound);
    let commands = commands();
    for command in commands
        .iter()
        .filter(|it| part_of(it) == Part::Exploration)
    {
        // These tables are about settings, not about a program: one that ends at once gives them all.
        let programs = ["./program", "./server", "./schase", "./scan"];
        let ends_at_once = |line: String, name: &&str| line.replace(*name, "true");
        let line = short(&programs.iter().fold(command.clone(), ends_at_once));
        let finished = run(&membound, &line);
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
        promises::check_files(&line, membound.home.path());
        let text = fs::read_to_string(membound.home.path().join("explored.json")).unwrap();
        let document: HarvestExplore = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> = document.sweeps.iter().map(|it| it.sweep.name()).collect();
        let asked = command.split_once("--sweep ").unwrap().1;
        let asked = asked.split_once(' ').unwrap().0;
        assert_eq!(names.join(","), asked, "{line}");
        for sweep in &document.sweeps {
            assert_eq!(sweep.rows.is_empty(), sweep.missing.is_some(), "{line}");
        }
    }
}

#[test]
fn copies_of_the_pages_program_run_at_once() {
    let membound = Membound::new();
    if with_programs(&membound).is_none() {
        return;
    }
    let commands = commands();
    let command = commands.iter().find(|it| it.contains("--sweep chases"));
    let line = short(command.expect("the page has it"));
    let finished = run(&membound, &line);
    assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
    let text = fs::read_to_string(membound.home.path().join("explored.json")).unwrap();
    let document: membound_types::HarvestExplore = serde_json::from_str(&text).unwrap();
    let rows = document.sweeps.iter().flat_map(|sweep| &sweep.rows);
    let failed: Vec<_> = rows.filter(|row| row.failed.is_some()).collect();
    assert!(failed.is_empty(), "{line}: {failed:#?}");
}
