//! Checks what the agent's object file must and must not contain.

use std::process::Command;

use object::{Object as _, ObjectSymbol as _};

use crate::harness;

#[test]
fn the_object_stands_alone() {
    let output = Command::new("readelf")
        .args(["-W", "-l", "-d"])
        .arg(harness::agent())
        .output()
        .unwrap();
    let listing = String::from_utf8(output.stdout).unwrap();
    for absent in ["NEEDED", " TLS ", "RWE", "TEXTREL"] {
        assert!(!listing.contains(absent), "{absent} in {listing}");
    }
    for present in ["INITFIRST", "NODELETE", "GNU_STACK", "GNU_EH_FRAME"] {
        assert!(listing.contains(present), "no {present} in {listing}");
    }
}

#[test]
fn it_takes_no_symbols_place_and_needs_none() {
    let bytes = std::fs::read(harness::agent()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    for symbol in file.dynamic_symbols() {
        let name = symbol.name().unwrap();
        assert!(!symbol.is_definition(), "{name} is defined for everybody");
        assert!(symbol.is_weak(), "{name} must be there");
    }
}

#[test]
fn nothing_in_it_can_panic() {
    let bytes = std::fs::read(harness::agent()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let names: Vec<_> = file
        .symbols()
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    assert!(
        names.iter().any(|name| name.contains("control")),
        "the symbols are gone"
    );
    let panicking: Vec<_> = names.iter().filter(|name| name.contains("panic")).collect();
    assert!(panicking.is_empty(), "{panicking:?}");
}
