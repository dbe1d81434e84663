//! cargo-deny: bans, licences and sources. The advisories need an external database that changes
//! independently of commits, so they are not part of the checks.

use anyhow::Result;

use crate::run::{program, succeed};
use crate::tools::Tool;

/// Takes a minute or two to build on two cores.
const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    options: &[],
};

/// Runs cargo-deny.
pub(crate) fn check() -> Result<()> {
    succeed(
        program(CARGO_DENY.path()?)
            .args("--locked --all-features check --show-stats bans licenses sources".split(' ')),
    )
}
