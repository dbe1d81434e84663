//! The reorder buffer against the published figure for the processor, and the sizes found for L1d
//! and L2 against the declared ones. The tool finds them from curves alone; only the bench reads
//! what the machine declares.

use std::path::Path;

use anyhow::Result;
use membound_types::{CacheKind, MachineProfile};
use serde_json::json;

use super::common::{document, measure, size, verdict};
use crate::results::Kept;
use crate::run::{note, say};

const ROB_TARGET: f64 = 0.02;
const SIZE_TARGET: f64 = 0.12;
/// Minimum number of kinds of fillers that must find the same reorder buffer.
const AGREEING: usize = 4;

/// Arguments of `bench windows`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Times to measure.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    let mut profiles: Vec<MachineProfile> = Vec::new();
    let mut rows = Vec::new();
    say("what        found      truth      difference  target");
    for run in 0..args.runs {
        note(format_args!("run {run}"));
        let profile: MachineProfile = document(&mut measure(membound, &["--quick"]))?;
        let agreeing = agreeing(&profile);
        say(format_args!(
            "kinds of fillers that agree on it: {agreeing}, of at least {AGREEING} {}",
            verdict(agreeing >= AGREEING)
        ));
        rows.push(
            json!({ "run": run, "what": "agreeing fillers", "found": agreeing, "least": AGREEING }),
        );
        for compared in [rob(&profile), cache(&profile, 1), cache(&profile, 2)] {
            say(compared.line());
            rows.push(json!({
                "run": run, "what": compared.what, "found": compared.found,
                "truth": compared.truth, "target": compared.target,
            }));
        }
        profiles.push(profile);
    }
    Kept::of_profiles("windows", rows, &profiles)
}

/// A found value, and the true one.
#[derive(Debug)]
struct Compared {
    what: String,
    found: Option<f64>,
    truth: Option<f64>,
    target: f64,
}

impl Compared {
    fn line(&self) -> String {
        let number = |value: Option<f64>| {
            value.map_or_else(|| "unknown".to_owned(), |value| format!("{value:.0}"))
        };
        let judged = match (self.found, self.truth) {
            (Some(found), Some(truth)) => {
                let difference = found / truth - 1.0;
                format!(
                    "{:>+8.1} %  {:.0} % {}",
                    difference * 100.0,
                    self.target * 100.0,
                    verdict(difference.abs() <= self.target)
                )
            }
            _ => "       not judged".to_owned(),
        };
        format!(
            "{:<12}{:<11}{:<11}{judged}",
            self.what,
            number(self.found),
            number(self.truth)
        )
    }
}

fn rob(profile: &MachineProfile) -> Compared {
    Compared {
        what: "ROB entries".to_owned(),
        found: profile
            .mlp
            .known()
            .and_then(|mlp| mlp.rob_size.known().copied()),
        truth: profile.machine.cpu.published_rob.map(f64::from),
        target: ROB_TARGET,
    }
}

/// Kinds of fillers, and mixes of them, that found the same reorder buffer.
fn agreeing(profile: &MachineProfile) -> usize {
    let evidence = (profile.mlp.known()).and_then(|mlp| mlp.reorder_evidence.known());
    evidence.map_or(0, |evidence| evidence.agreeing.len())
}

fn cache(profile: &MachineProfile, level: u32) -> Compared {
    let name = format!("L{level}");
    let declared = profile
        .machine
        .caches
        .iter()
        .find(|cache| cache.level == level && cache.kind != CacheKind::Instruction);
    #[expect(
        clippy::cast_precision_loss,
        reason = "a cache is far below 2^53 bytes"
    )]
    let bytes = |bytes: u64| bytes as f64;
    Compared {
        what: declared.map_or_else(
            || format!("{name} bytes"),
            |cache| format!("{name} {}", size(cache.size_bytes)),
        ),
        found: profile
            .levels
            .iter()
            .find(|found| found.name == name)
            .and_then(|found| found.size_bytes)
            .map(bytes),
        truth: declared.map(|cache| bytes(cache.size_bytes)),
        target: SIZE_TARGET,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_judges_only_what_is_known() {
        let compared = |found, truth| Compared {
            what: "ROB entries".to_owned(),
            found,
            truth,
            target: ROB_TARGET,
        };
        assert!(compared(Some(445.0), Some(448.0)).line().ends_with("met"));
        assert!(
            compared(Some(430.0), Some(448.0))
                .line()
                .ends_with("MISSED")
        );
        assert!(compared(Some(430.0), None).line().ends_with("not judged"));
    }
}
