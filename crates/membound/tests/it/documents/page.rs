//! The tables of `docs/documents.md` and of `docs/documents/001.md`, and the short form of their commands.

/// The pages, in the order in which a reader meets them.
const PAGES: [&str; 2] = [
    include_str!("../../../../../docs/documents/001.md"),
    include_str!("../../../../../docs/documents.md"),
];

/// Test that runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Parallel loads under named conditions, and their comparison.
    Conditions,
    /// Parallel loads with other numbers of loads, placements and areas.
    Parallelism,
    /// Parallel loads on other pages and nodes.
    Places,
    /// Several processors, one after the other.
    Processors,
    /// Measurements that switch prefetchers.
    Prefetchers,
    /// All other measurements, and models.
    Curves,
    /// Recorded programs.
    Profile,
    /// Planned and running harvests.
    Harvest,
    /// Settings of a harvest, compared.
    Exploration,
}

/// All code spans in the columns "command" of the pages' tables, each once.
pub(super) fn cells() -> Vec<String> {
    let mut cells: Vec<String> = Vec::new();
    let mut column = None;
    for line in PAGES.iter().flat_map(|page| page.lines()) {
        if !line.starts_with('|') {
            column = None;
            continue;
        }
        let texts: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(at) = column else {
            column = texts.iter().position(|text| *text == "command");
            assert!(
                column.is_some(),
                "a table without a column \"command\": {line}"
            );
            continue;
        };
        for span in texts[at].split('`').skip(1).step_by(2) {
            if !cells.iter().any(|known| known == span) {
                cells.push(span.to_owned());
            }
        }
    }
    cells
}

/// The arguments of `membound` in the pages' tables. A command that another one repeats with a label and a file
/// to write is left out: the other keeps the promises of both.
pub(super) fn commands() -> Vec<String> {
    let cells = cells();
    let all: Vec<&str> = (cells.iter())
        .filter_map(|cell| cell.strip_prefix("membound "))
        .collect();
    let is_repeated = |command: &&&str| {
        let more = all.iter().filter_map(|other| other.strip_prefix(*command));
        let mut more = more.map(str::trim_start);
        more.any(|words| words.starts_with("--json ") || words.starts_with("--cond "))
    };
    let kept = all.iter().filter(|command| !is_repeated(command));
    kept.map(|command| (*command).to_owned()).collect()
}

/// The test that runs `command`.
///
/// # Panics
/// For a command that belongs to no test.
pub(super) fn part_of(command: &str) -> Part {
    let begins = |words: &[&str]| words.iter().any(|word| command.starts_with(word));
    let has = |words: &[&str]| words.iter().any(|word| command.contains(word));
    match () {
        () if begins(&["harvest explore"]) => Part::Exploration,
        () if begins(&["harvest ", "profile -o s", "report server.run"]) => Part::Harvest,
        () if begins(&["profile ", "report "]) || has(&[".run "]) => Part::Profile,
        () if begins(&["compare "]) || has(&["--cond"]) => Part::Conditions,
        () if has(&["--cpu"]) => Part::Processors,
        () if has(&[" mlp"]) && has(&["--node", "--page"]) => Part::Places,
        () if has(&[" mlp"]) => Part::Parallelism,
        () if has(&["--prefetch-settings"]) => Part::Prefetchers,
        () if begins(&["measure ", "lat_mem_rd ", "model ", "doctor"]) => Part::Curves,
        () => panic!("`{command}` belongs to no test"),
    }
}

/// The command with options that make it measure less, and with arguments for its programs.
pub(super) fn short(command: &str) -> String {
    let mut line = command
        .replace(" 2000 ", " 1 ")
        .replace(" 5000 ", " 400 ")
        .replace("./schase 16M 5000000", "./schase 4M 1000000")
        .replace("./program", "./program 2 60")
        .replace("./server", "./server both 32M 1024 3000 1400")
        .replace("-- ./scan", "-- ./scan 20000");
    for (program, arguments) in [
        ("./regression-", " 2 20000"),
        ("./triad-", " 2 30"),
        ("./with", " 2 20"),
    ] {
        if line.contains(program) {
            line.push_str(arguments);
        }
    }
    for (words, options) in [
        ("lat_mem_rd", " -N 2"),
        ("profile", " --machine machine.json"),
        ("harvest run", " --machine machine.json --profile-s 0.3"),
        (
            "harvest explore",
            " --pairs 1 --bounds 200 --profile-s 0.2 --machine machine.json --json explored.json",
        ),
    ] {
        if let Some(rest) = line.strip_prefix(words) {
            return format!("{words}{options}{rest}");
        }
    }
    if line.starts_with("measure") {
        shorten_measurement(&mut line);
    }
    line
}

fn shorten_measurement(line: &mut String) {
    line.push_str(" --quick");
    for (part, options) in [
        ("latency", &[" --max 1M", " --page 4k"] as &[&str]),
        ("mlp", &[" --areas 4M", " --loads 1,2,4,8,12", " --page 4k"]),
        (
            "window",
            &[
                " --areas 16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M",
                " --windows 1K,4K",
            ],
        ),
        ("prefetch", &[" --page 4k"]),
        ("tlb", &[" --page 4k"]),
    ] {
        let is_measured = line.split(' ').any(|word| word == part);
        for option in options {
            let name = option.split(' ').nth(1).expect("an option has a name");
            if is_measured && !line.contains(name) {
                line.push_str(option);
            }
        }
    }
    *line = line.replace("--placements 10", "--placements 2");
}
