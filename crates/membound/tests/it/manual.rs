//! Pages of the manual.

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};

use membound_testkit::{is_there, skipped};

use crate::command::Membound;
use crate::completions::VISIBLE;

const NESTED: [&str; 11] = [
    "model fit",
    "model show",
    "model predict",
    "rewrite plan",
    "rewrite check",
    "rewrite gdb-script",
    "harvest plan",
    "harvest run",
    "harvest explore",
    "harvest batch",
    "harvest stop",
];

fn page(name: &str) -> String {
    Membound::new().run(&format!("man {name}")).printed()
}

/// The names of all commands that have a page; the first is membound's own.
fn names() -> impl Iterator<Item = &'static str> {
    [""].into_iter().chain(VISIBLE).chain(NESTED)
}

/// Long options that the help of a command names where it explains them.
fn options(name: &str) -> Vec<String> {
    let help = Membound::new().run(&format!("{name} --help")).stdout;
    let first = |line: &str| {
        let words = line.trim_start().split([' ', ',', '=', '[']);
        let mut dashed = words.take_while(|word| word.is_empty() || word.starts_with('-'));
        dashed
            .find(|word| word.starts_with("--"))
            .map(str::to_owned)
    };
    help.lines()
        .filter(|line| line.trim_start().starts_with('-'))
        .filter_map(first)
        .collect()
}

#[test]
fn every_command_has_a_page_that_names_its_options() {
    let mut pages = 0;
    for name in names() {
        let page = page(name);
        assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{name}");
        let full = format!("membound {name}");
        let full = full.trim().replace(' ', "-");
        let title = page.lines().find(|line| line.starts_with(".TH"));
        let title = title.expect("a page has a title").replace('\\', "");
        assert!(title.starts_with(&format!(".TH {full} 1 ")), "{title}");
        for option in options(name) {
            let escaped = option.replace('-', "\\-");
            assert!(page.contains(&escaped), "{name}: no {option}");
            pages += 1;
        }
    }
    assert!(pages > 100, "only {pages} options");
}

#[test]
fn the_first_page_names_every_visible_command() {
    let page = page("");
    for name in VISIBLE {
        let escaped = format!("membound\\-{}", name.replace('-', "\\-"));
        assert!(page.contains(&escaped), "no {name}");
    }
    for hidden in ["restore", "contend", "host"] {
        assert!(!page.contains(&format!("\\_{hidden}")), "{hidden}");
        assert!(!page.contains(&format!("_{hidden}")), "{hidden}");
    }
}

#[test]
fn what_has_no_page_is_one_line() {
    let membound = Membound::new();
    for line in [
        "man nothing",
        "man harvest walk",
        "man __restore",
        "man help",
    ] {
        let last = line.rsplit(' ').next().unwrap_or_default();
        membound.run(line).complains(2, &["no subcommand", last]);
    }
}

#[test]
fn formatters_have_nothing_to_say_against_a_page() {
    let tools = [
        ("groff", &["-man", "-Tutf8", "-ww", "-z"][..]),
        ("mandoc", &["-Tlint", "-Werror"]),
    ];
    for (tool, words) in tools {
        if !is_there(tool) {
            skipped(format_args!("no {tool}"));
            continue;
        }
        for name in names() {
            let mut command = Command::new(tool);
            command.args(words).stdin(Stdio::piped());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut formatter = command.spawn().expect("the formatter starts");
            let mut stdin = formatter.stdin.take().expect("stdin is piped");
            let written = stdin.write_all(page(name).as_bytes());
            written.expect("the formatter reads");
            drop(stdin);
            let output = formatter.wait_with_output().expect("it ends");
            let texts = [output.stdout, output.stderr].concat();
            assert_eq!(String::from_utf8_lossy(&texts), "", "{tool}: {name}");
        }
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
    let membound = Membound::new();
    for line in ["man harvest run", "completions zsh"] {
        let words = line.split(' ');
        let mut command = membound.command(words.clone());
        let (reader, writer) = std::io::pipe().expect("there are pipes");
        drop(reader);
        let gone = command.stdout(writer).output().expect("membound starts");
        assert_eq!(gone.status.code(), Some(0), "{line}: {gone:?}");
        assert_eq!(String::from_utf8_lossy(&gone.stderr), "", "{line}");
        let full = File::options().write(true).open("/dev/full");
        let mut command = membound.command(words);
        command.stdout(full.expect("every Linux has /dev/full"));
        let full = command.output().expect("membound starts");
        assert_eq!(full.status.code(), Some(1), "{line}: {full:?}");
    }
}

#[test]
fn all_pages_have_the_file_names_that_man_expects() {
    let membound = Membound::new();
    let done = membound.run("man --all .");
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""), "{done:?}");
    for name in names() {
        let full = format!("membound {name}");
        let file = format!("{}.1", full.trim().replace(' ', "-"));
        let written = std::fs::read_to_string(membound.home.path().join(&file));
        assert_eq!(written.expect(&file), page(name));
    }
    let pages = std::fs::read_dir(membound.home.path()).expect("the directory is ours");
    assert_eq!(pages.count(), names().count());
    membound.run("man --all no/such").complains(1, &["no/such"]);
}
