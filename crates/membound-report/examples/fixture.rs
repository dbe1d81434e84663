//! Writes the tests' synthetic profile as JSON, for looking at the page without measuring:
//!
//! ```text
//! cargo run -p membound-report --example fixture -- thorough > profile.json
//! ```
//!
//! The argument is `quick`, `thorough`, `nodes` (two nodes, 32 CPUs) or `nothing`.

use std::io::Write as _;
use std::process::ExitCode;

#[path = "../tests/it/fixture/mod.rs"]
mod fixture;

fn main() -> ExitCode {
    let profile = match std::env::args().nth(1).as_deref() {
        Some("quick") | None => fixture::profile(fixture::Extent::Quick),
        Some("thorough") => fixture::profile(fixture::Extent::Thorough),
        Some("nodes") => fixture::two_nodes(32),
        Some("nothing") => fixture::nothing_measured(),
        Some(_) => return ExitCode::from(2),
    };
    let written = serde_json::to_string(&profile)
        .map_err(std::io::Error::from)
        .and_then(|text| writeln!(std::io::stdout(), "{text}"));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
