//! Under a filter that denies counters and placement, everything has a reason and a remedy.

use std::process::Command;

#[test]
fn refusals_of_a_filter_are_reasons_with_remedies() {
    let output = Command::new(env!("CARGO_BIN_EXE_membound-platform-helper"))
        .arg("denied")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = String::from_utf8(output.stdout).unwrap();
    if let Some(reason) = output.strip_prefix("skipped|") {
        eprintln!("skipped: {reason}");
        return;
    }
    let lines: Vec<Vec<&str>> = output
        .lines()
        .map(|line| line.split('|').collect())
        .collect();
    let names: Vec<&str> = lines.iter().map(|line| line[0]).collect();
    assert_eq!(
        names,
        [
            "counters",
            "clock",
            "watchpoints",
            "policy",
            "place",
            "share"
        ]
    );
    for line in &lines {
        let [name, reason, remedy] = line.as_slice() else {
            panic!("{line:?}");
        };
        let expected = match *name {
            "place" => "mbind is denied",
            "share" => "move_pages is denied",
            "policy" => "get_mempolicy is denied",
            _ => "may not be counted",
        };
        assert!(reason.contains(expected), "{name}: {reason}");
        assert!(!remedy.is_empty(), "{name}: {reason}");
    }
}
