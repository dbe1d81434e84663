//! Loads on the primary (`--loads`): the numbers, and the placeholder in its arguments that each replaces.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use membound_types::ExploreSweep;

use super::explore_config::ExploreConfig;
use super::load::Load;
use crate::named_programs::Program;

/// Text in the command's arguments that a load replaces.
const PLACEHOLDER: &str = "{load}";

/// The loads of the request in ascending order; none without sweep `load`.
///
/// # Errors
/// If loads and sweeps contradict each other, or the command has no place for a load.
pub(super) fn of_request(
    config: &ExploreConfig,
    sweeps: &[ExploreSweep],
) -> Result<Vec<Load>, String> {
    if !sweeps.contains(&ExploreSweep::Load) {
        return match config.loads.is_empty() {
            true => Ok(Vec::new()),
            false => Err("--loads needs --sweep load, which varies the load".to_owned()),
        };
    }
    if sweeps.len() > 1 {
        return Err(
            "--sweep load changes the command itself, so that no other sweep goes with it"
                .to_owned(),
        );
    }
    if config.loads.is_empty() {
        return Err("--sweep load needs --loads, such as --loads 1000,2000,5000".to_owned());
    }
    let mut arguments = config.command.iter().skip(1);
    if !arguments.any(|word| replaced(word, "") != *word) {
        return Err(format!(
            "no argument of the command has {PLACEHOLDER}, which --sweep load replaces by each load"
        ));
    }
    if config.scavenger.is_empty() {
        return Err(
            "--sweep load needs --scavenger, a program that does not depend on the load".to_owned(),
        );
    }
    let mut loads = config.loads.clone();
    loads.sort_by(|a, b| a.value.total_cmp(&b.value));
    match loads.windows(2).find(|pair| pair[0].value == pair[1].value) {
        Some(pair) => Err(format!("--loads has {} twice", pair[1].text)),
        None => Ok(loads),
    }
}

/// The primary with the load in its arguments.
pub(super) fn with_load(primary: &Program, load: &Load) -> Program {
    let mut primary = primary.clone();
    for word in primary.words.iter_mut().skip(1) {
        *word = replaced(word, &load.text);
    }
    primary
}

/// A word with every placeholder replaced.
fn replaced(word: &OsStr, load: &str) -> OsString {
    let mut left = word.as_bytes();
    let mut out = Vec::with_capacity(left.len());
    while !left.is_empty() {
        if let Some(after) = left.strip_prefix(PLACEHOLDER.as_bytes()) {
            out.extend_from_slice(load.as_bytes());
            left = after;
        } else {
            out.push(left[0]);
            left = &left[1..];
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_a_word_is_replaced() {
        let of = |word: &str| replaced(OsStr::new(word), "50");
        assert_eq!(of("{load}"), "50");
        assert_eq!(
            of("serve & generate --rate={load} {load}"),
            "serve & generate --rate=50 50"
        );
        assert_eq!(of("{loa{load}"), "{loa50");
        assert_eq!(of("{LOAD}"), "{LOAD}");
        let bytes = replaced(OsStr::from_bytes(b"\xff{load}"), "7");
        assert_eq!(bytes.as_bytes(), b"\xff7");
    }
}
