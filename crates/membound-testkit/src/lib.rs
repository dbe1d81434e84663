//! Helpers that the tests of every crate share. Only for `[dev-dependencies]`.
//!
//! A test that this machine cannot run reports the reason through [`skipped`] and returns. `cargo
//! xtask test` finds these lines in the test's captured output, takes the test out of the
//! count of those that passed, and shows the reasons at the end.

#![forbid(unsafe_code)]

mod fixtures;
pub mod perf_data;
mod random;

use std::fmt::Display;
use std::process::Output;

pub use fixtures::{Compiler, Fixtures, is_there};
pub use random::Random;

/// Reports that the calling test, or a part of it, is skipped because of `reason`: a lower-case
/// fragment that names what the machine lacks.
///
/// ```
/// membound_testkit::skipped("no hugetlb pages of 1 GiB");
/// ```
#[expect(
    clippy::print_stdout,
    reason = "libtest captures what println! writes and nothing else, and the captured line \
              is what cargo xtask test counts"
)]
pub fn skipped(reason: impl Display) {
    println!("skipped: {reason}");
}

/// Reports that the calling test is inconclusive because of `reason`: a probe, which ran before or
/// beside the measurement and does not know its result, found the machine perturbed. `cargo xtask
/// test` permits a few of these.
///
/// ```
/// membound_testkit::inconclusive("others had the processors for 5 % of the time");
/// ```
#[expect(
    clippy::print_stdout,
    reason = "as in `skipped`: the captured line is what cargo xtask test counts"
)]
pub fn inconclusive(reason: impl Display) {
    println!("inconclusive: {reason}");
}

/// Whether `membound report` wrote a report. For a run without samples it writes one and exits with
/// 1.
#[must_use]
pub fn is_reported(report: &Output) -> bool {
    let stderr = String::from_utf8_lossy(&report.stderr);
    report.status.success()
        || (report.status.code() == Some(1) && stderr.contains("no sample was taken"))
}
