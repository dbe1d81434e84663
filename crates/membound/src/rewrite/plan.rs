//! `membound rewrite plan`: what can be patched in a binary.

use std::process::ExitCode;

use super::args::PlanArgs;

pub(super) fn run(_args: &PlanArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("later")
}
