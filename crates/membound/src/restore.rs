//! The guard process: waits for its parent to end, and restores the settings that are still changed.

use std::process::ExitCode;

use membound_platform::prefetcher::guard;

/// Reads the plan on stdin; see `membound_platform::prefetcher::guard`.
pub(crate) fn run() -> ExitCode {
    let code = guard::restore_main(std::io::stdin().lock(), std::io::stdout().lock());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
