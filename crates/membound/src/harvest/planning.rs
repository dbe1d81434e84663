//! `membound harvest plan`: computes where a profiled program would yield.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use membound_harvest::distance::{Limits, Rule};
use membound_harvest::{Binaries, Options};
use membound_types::{DistanceRule, HarvestPlan, HarvestRole, Kind};

use super::args::PlanArgs;
use crate::documents::{self, Other};
use crate::output::{self, Target, Usage};
use crate::profile::machine;

/// Default bound on the time between two yields of a scavenger, in nanoseconds: about the latency of a miss,
/// so that the primary's data have arrived when it runs again.
pub(super) const USUAL_BOUND_NS: f64 = 200.0;

/// Plans a run and prints the plan.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let options = options(args).map_err(Usage)?;
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let machine = args.machine.as_deref().map(machine::read).transpose()?;
    let former = args.previous.as_deref().map(read).transpose()?;
    let run = membound_run::RunData::open(&args.run)?;
    let plan = membound_harvest::plan(&run, machine.as_ref(), &Files, former.as_ref(), &options)?;
    if !json.as_ref().is_some_and(Target::is_stdout) {
        output::print(&membound_report::text::harvest_plan(&plan, output::style()));
    }
    if let Some(target) = &mut json {
        target.write(&output::json(&plan)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the earlier plan of `--previous`.
fn read(path: &Path) -> anyhow::Result<HarvestPlan> {
    const WHAT: &str = "plan of `membound harvest plan --json`";
    match documents::read(path, Kind::HarvestPlan, WHAT)? {
        Ok(plan) => Ok(plan),
        Err(Other::Kind(_)) => bail!("{} is no {WHAT}", path.display()),
        Err(other @ Other::Version(_)) => bail!("{} {other} (plan again)", path.display()),
    }
}

fn options(args: &PlanArgs) -> Result<Options, String> {
    let mut options = Options::new(args.role);
    options.max_overhead = args.max_overhead;
    match args.role {
        HarvestRole::Primary => {
            for (option, given) in [
                ("--bound-ns", args.bound_ns.is_some()),
                ("--distance", args.distance.is_some()),
            ] {
                if given {
                    return Err(format!("{option} is for `--role scavenger`"));
                }
            }
        }
        HarvestRole::Scavenger => {
            options.limits = Some(Limits {
                bound_ns: args.bound_ns.unwrap_or(USUAL_BOUND_NS),
                rule: match args.distance.unwrap_or_default() {
                    DistanceRule::Max => Rule::Max,
                    DistanceRule::Expected => Rule::Expected,
                },
            });
        }
    }
    Ok(options)
}

/// Reads binaries at the paths that the run recorded.
pub(super) struct Files;

impl Binaries for Files {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let found = std::fs::metadata(path)?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        std::fs::read(path)
    }
}
