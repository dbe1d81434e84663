//! Scripts for shells, as the shells themselves take them.

use std::fs;
use std::process::Command;

use membound_testkit::{is_there, skipped};

use crate::command::Membound;

/// Subcommands that a user sees.
pub(crate) const VISIBLE: [&str; 13] = [
    "doctor",
    "measure",
    "lat_mem_rd",
    "model",
    "profile",
    "import",
    "report",
    "compare",
    "rewrite",
    "harvest",
    "tour",
    "completions",
    "man",
];

fn script(shell: &str) -> String {
    Membound::new()
        .run(&format!("completions {shell}"))
        .printed()
}

/// The completions that bash offers for the last of `words`, which begin with the command's name.
fn offered(words: &[&str]) -> Vec<String> {
    let place = tempfile::tempdir().expect("there is room for a directory");
    let path = place.path().join("membound");
    fs::write(&path, script("bash")).expect("the directory is ours");
    let run = r#"source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _membound "$1" "${@: -1}" "${@: -2:1}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", run]).arg(&path).args(words);
    let output = bash.output().expect("bash starts");
    let text = String::from_utf8(output.stdout).expect("words are UTF-8");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn scripts_of_every_shell_have_all_visible_commands_and_no_other() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        for name in VISIBLE {
            assert!(script.contains(name), "{shell}: no {name}");
        }
        for option in ["max-slowdown", "prefetch-settings", "page-random"] {
            assert!(script.contains(option), "{shell}: no {option}");
        }
        for hidden in ["churn", "non-temporal"] {
            assert!(
                !script.contains(hidden),
                "{shell}: {hidden} is of a hidden option"
            );
        }
        for hidden in ["__restore", "run-object", "harvest-host", "contend"] {
            assert!(!script.contains(hidden), "{shell}: {hidden} is hidden");
        }
    }
}

#[test]
fn every_shell_that_is_here_reads_its_script() {
    for shell in ["bash", "zsh", "fish"] {
        if !is_there(shell) {
            skipped(format_args!("no {shell}"));
            continue;
        }
        let place = tempfile::tempdir().expect("there is room for a directory");
        let path = place.path().join("script");
        fs::write(&path, script(shell)).expect("the directory is ours");
        let read = Command::new(shell).arg("-n").arg(&path).output();
        let read = read.expect("the shell starts");
        assert!(read.status.success(), "{shell}: {read:?}");
        assert_eq!(String::from_utf8_lossy(&read.stderr), "", "{shell}");
    }
}

#[test]
fn bash_offers_values_commands_and_files() {
    if !is_there("bash") {
        return skipped("no bash");
    }
    let check = |words: &[&str], expected: &[&str]| assert_eq!(offered(words), expected);
    check(&["membound", "com"], &["compare", "completions"]);
    check(&["membound", "harvest", "r"], &["run"]);
    check(
        &["membound", "measure", "--page", ""],
        &["4k", "thp", "2m", "1g"],
    );
    check(&["membound", "measure", "--spread", "s"], &["siblings"]);
    check(
        &["membound", "harvest", "plan", "--role", ""],
        &["primary", "scavenger"],
    );
    check(&["membound", "completions", "f"], &["fish"]);
}

#[test]
fn a_shell_that_is_not_known_is_one_line() {
    let refused = Membound::new().run("completions tcsh");
    refused.complains(2, &["tcsh", "elvish", "powershell"]);
}
