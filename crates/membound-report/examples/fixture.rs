//! Writes the tests' synthetic profile as JSON, for looking at the page without measuring:
//!
//! ```text
//! cargo run -p membound-report --example fixture -- thorough > profile.json
//! ```
//!
//! The argument is `quick`, `thorough`, `nodes` (two nodes, 32 CPUs) or `nothing`; or a
//! model: `origin`, `guest` or `curve`; or `prediction`.

use std::io::Write as _;
use std::process::ExitCode;

#[path = "../tests/it/fixture/mod.rs"]
mod fixture;

fn main() -> ExitCode {
    let document = match std::env::args().nth(1).as_deref() {
        Some("quick") | None => serde_json::to_string(&fixture::profile(fixture::Extent::Quick)),
        Some("thorough") => serde_json::to_string(&fixture::profile(fixture::Extent::Thorough)),
        Some("nodes") => serde_json::to_string(&fixture::two_nodes(32)),
        Some("nothing") => serde_json::to_string(&fixture::nothing_measured()),
        Some("origin") => serde_json::to_string(&fixture::model::origin()),
        Some("guest") => serde_json::to_string(&fixture::model::guest()),
        Some("curve") => serde_json::to_string(&fixture::model::latency_curve()),
        Some("prediction") => serde_json::to_string(&fixture::model::prediction()),
        Some(_) => return ExitCode::from(2),
    };
    let written = document
        .map_err(std::io::Error::from)
        .and_then(|text| writeln!(std::io::stdout(), "{text}"));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
