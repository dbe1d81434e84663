//! Every command of `docs/documents.md`, in a short form.

use crate::command::Membound;

const PAGE: &str = include_str!("../../../../docs/documents.md");

/// The commands of the page's tables.
fn commands() -> Vec<&'static str> {
    PAGE.lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(|line| line.split('|').nth(2)?.trim().strip_prefix("`membound "))
        .filter_map(|cell| Some(cell.split_once('`')?.0))
        .collect()
}

/// The command with options that make it measure less.
fn short(command: &str) -> String {
    let mut line = command.replace(" 2000 ", " 1 ");
    if let Some(rest) = line.strip_prefix("lat_mem_rd") {
        return format!("lat_mem_rd -N 2{rest}");
    }
    if !line.starts_with("measure") {
        return line;
    }
    line.push_str(" --quick");
    for (part, options) in [
        ("latency", [" --max 1M", " --page 4k"]),
        ("mlp", [" --areas 64M", " --loads 1,2,4,8,12"]),
        (
            "window",
            [
                " --areas 16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M",
                " --windows 1K,4K",
            ],
        ),
        ("prefetch", [" --page 4k", ""]),
    ] {
        let measured = line.split(' ').any(|word| word == part);
        for option in options {
            let name = option.split(' ').nth(1).unwrap_or("--quick");
            if measured && !line.contains(name) {
                line.push_str(option);
            }
        }
    }
    line
}

/// Words that the output of a command must contain.
fn expected(command: &str) -> &'static [&'static str] {
    match command {
        _ if command.starts_with("lat_mem_rd") => &["\"stride="],
        _ if command.starts_with("compare") => &[
            "parallel loads by condition",
            "T(N): loads at once",
            "T(n): loads in sequence",
        ],
        _ if command.contains("--placements") => &["placement noise"],
        _ if command.contains("--cpu 0,1") => &["cpu=0", "cpu=1"],
        _ if command.contains("latency mlp") => &["latency", "memory-level parallelism"],
        _ if command.contains(" mlp") => &[
            "N loads, K fillers",
            "loads in sequence: T(n) = n·M + C",
            "area sweep",
        ],
        _ if command.starts_with("model fit") => &["window points"],
        _ if command.contains("window") => &["MFLOPS", "area"],
        "model show origin2000" => &["75.5", "20.3", "14.5", "13.6", "12.9", "12.2", "t_tlb"],
        _ if command.contains("prefetch") => &["prefetch"],
        _ if command.contains("latency") => &["latency"],
        _ => panic!("{command}: nobody has said what it shows"),
    }
}

/// Runs the commands that `is_meant` selects, after `before`, which writes their input files.
#[track_caller]
fn check(before: &[&str], is_meant: impl Fn(&str) -> bool) {
    let allowed = membound_platform::affinity::allowed().expect("the kernel says it");
    let membound = Membound::new();
    for line in before {
        let finished = membound.run(&short(line));
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
    }
    let chosen: Vec<_> = (commands().into_iter())
        .filter(|command| is_meant(command))
        .collect();
    assert!(chosen.len() >= 3, "{chosen:?}");
    for command in chosen {
        let needs_two = command.contains("--cpu 0,1") || command.contains("-P 2");
        if needs_two && allowed.len() < 2 {
            membound_testkit::skipped("there is one CPU");
            continue;
        }
        let line = short(command);
        let finished = membound.run(&line);
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
        for part in expected(command) {
            assert!(
                finished.stdout.contains(part),
                "{line}: no `{part}` in\n{}",
                finished.stdout
            );
        }
    }
}

/// Conditions that are compared, and the placements, which take longest.
fn is_compared(command: &str) -> bool {
    command.contains("--cond") || command.starts_with("compare h0")
}

fn is_mlp(command: &str) -> bool {
    command.starts_with("measure") && command.contains(" mlp") && !is_compared(command)
}

// Several tests, since one would run all commands one after the other and take longer than all other tests
// together.

#[test]
fn commands_of_the_page_compare_conditions() {
    let first = "measure mlp --cond host-thp=on --cond guest-thp=on --json h0g0.json";
    check(&[first], is_compared);
}

#[test]
fn commands_of_the_page_measure_parallelism() {
    check(&[], |command| is_mlp(command) && !needs_long(command));
}

#[test]
fn commands_of_the_page_measure_parallelism_of_several_places() {
    check(&[], |command| is_mlp(command) && needs_long(command));
}

/// Measures more than once.
fn needs_long(command: &str) -> bool {
    ["--placements", "--node", "--cpu", "--page"]
        .iter()
        .any(|option| command.contains(option))
}

#[test]
fn other_commands_of_the_page_show_what_they_are_there_for() {
    check(&["measure window --json windows.json"], |command| {
        !is_mlp(command) && !is_compared(command)
    });
}

#[test]
fn the_page_has_its_commands() {
    let commands = commands();
    assert!(commands.len() >= 20, "{commands:?}");
}

/// The explorations of the page, of a program that ends at once.
fn explorations() -> Vec<String> {
    PAGE.lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(|line| {
            line.split('|')
                .nth(3)?
                .trim()
                .strip_prefix("`membound harvest ")
        })
        .filter(|cell| cell.starts_with("explore "))
        .filter_map(|cell| Some(cell.split_once('`')?.0))
        .map(|command| {
            let programs = ["./program", "./server", "./chase", "./scan"];
            let of_true = |line: String, name: &str| line.replace(name, "true");
            programs.iter().copied().fold(command.to_owned(), of_true)
        })
        .collect()
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn every_exploration_of_the_page_has_its_tables() {
    use membound_types::{HarvestExplore, MachineInfo, MachineProfile};
    let membound = Membound::new();
    // These tests do not check figures, so the machine profile has no measurements.
    let machine = MachineProfile::unmeasured(MachineInfo::default());
    let machine = serde_json::to_string(&machine).unwrap();
    std::fs::write(membound.home.path().join("machine.json"), machine).unwrap();
    let explorations = explorations();
    assert!(explorations.len() >= 8, "{explorations:?}");
    for command in explorations {
        let words =
            "explore --pairs 1 --bounds 200 --profile-s 0.2 --machine machine.json --json f.json";
        let line = format!("harvest {}", command.replacen("explore", words, 1));
        let finished = membound.run(&line);
        assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
        let text = std::fs::read_to_string(membound.home.path().join("f.json")).unwrap();
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
