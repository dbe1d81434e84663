//! All cases, as data: what runs, what is read, and the tolerance.

mod counts;
mod found;
mod shares;

use membound_types::MachineProfile;

use super::case::Case;

/// Programs that the tests profile as well.
const FIXTURES: &str = "crates/membound/tests/profile/fixtures";

/// Directory of headers for the programs.
pub(super) const INCLUDED: &str = FIXTURES;

/// The cases for a machine, and those that it cannot run, with the reason.
pub(super) fn all(machine: &MachineProfile) -> (Vec<Case>, Vec<(String, String)>) {
    let (mut cases, absent) = shares::cases(machine);
    cases.extend(counts::cases());
    cases.extend(found::cases());
    (cases, absent)
}

#[cfg(test)]
mod tests {
    use membound_types::MachineInfo;

    use super::*;
    use crate::run::root;

    #[test]
    fn every_case_has_a_name_of_its_own_a_source_and_a_figure() {
        let machine = MachineProfile::unmeasured(MachineInfo::default());
        let (cases, _) = all(&machine);
        let mut names: Vec<_> = cases.iter().map(|case| case.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.len());
        for case in &cases {
            assert!(root().join(case.program.source).is_file(), "{}", case.name);
            assert!(!case.figures.is_empty(), "{}", case.name);
        }
    }

    #[test]
    fn a_machine_whose_third_cache_was_not_seen_has_no_case_for_it() {
        let machine = MachineProfile::unmeasured(MachineInfo::default());
        let (cases, absent) = all(&machine);
        assert!(
            cases
                .iter()
                .all(|case| !case.name.starts_with("shares/L3/"))
        );
        assert!(absent.iter().any(|(name, _)| name == "shares/L3"));
    }
}
