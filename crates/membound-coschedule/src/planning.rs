//! Plans of harvests from runs: of `membound harvest plan`, and what all plans share.

use std::io;
use std::path::{Path, PathBuf};

use membound_harvest::distance::{Limits, Rule};
use membound_harvest::{Binaries, Options};
use membound_input::OtherDocument;
use membound_types::{DistanceRule, HarvestPlan, HarvestRole, Kind, MachineProfile};

use crate::document_file;
use crate::error::Error;

/// Default bound on the time between two yields of a scavenger, in nanoseconds: about the latency of a miss,
/// so that the primary's data have arrived when it runs again.
pub(crate) const USUAL_BOUND_NS: f64 = 200.0;

/// What `membound harvest plan` is asked to plan.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    /// Path of the run file.
    pub run: PathBuf,
    /// Role of the program.
    pub role: HarvestRole,
    /// The machine profile with levels and latencies; `None`: the run's own.
    pub machine: Option<MachineProfile>,
    /// Maximum share of CPU time that yields may cost where their loads hit.
    pub max_overhead: f64,
    /// Longest time between two yields of a scavenger, in nanoseconds.
    pub bound_ns: Option<f64>,
    /// How the time between yields is estimated.
    pub distance: Option<DistanceRule>,
    /// Path of an earlier plan, whose decisions are kept where the figures allow both.
    pub previous: Option<PathBuf>,
}

/// Plans a run.
///
/// # Errors
/// [`Error::Usage`] if an option does not belong to the role; if a file cannot be read, or there is no plan.
pub fn plan(config: &PlanConfig) -> Result<HarvestPlan, Error> {
    let options = options(config).map_err(Error::Usage)?;
    let former = config.previous.as_deref().map(read).transpose()?;
    let run = membound_run::RunData::open(&config.run)?;
    let machine = config.machine.as_ref();
    let plan = membound_harvest::plan(&run, machine, &Files, former.as_ref(), &options)?;
    Ok(plan)
}

/// Reads the earlier plan of `--previous`.
fn read(path: &Path) -> Result<HarvestPlan, Error> {
    const WHAT: &str = "plan of `membound harvest plan --json`";
    document_file::read(path, Kind::HarvestPlan, WHAT)?.map_err(|other| {
        let path = path.display();
        Error::Refused(match other {
            OtherDocument::Kind(_) => format!("{path} is no {WHAT}"),
            OtherDocument::Version(_) => format!("{path} {other} (plan again)"),
        })
    })
}

fn options(config: &PlanConfig) -> Result<Options, String> {
    let mut options = Options::new(config.role);
    options.max_overhead = config.max_overhead;
    match config.role {
        HarvestRole::Primary => {
            for (option, given) in [
                ("--bound-ns", config.bound_ns.is_some()),
                ("--distance", config.distance.is_some()),
            ] {
                if given {
                    return Err(format!("{option} is for `--role scavenger`"));
                }
            }
        }
        HarvestRole::Scavenger => {
            options.limits = Some(Limits {
                bound_ns: config.bound_ns.unwrap_or(USUAL_BOUND_NS),
                rule: match config.distance.unwrap_or_default() {
                    DistanceRule::Max => Rule::Max,
                    DistanceRule::Expected => Rule::Expected,
                },
            });
        }
    }
    Ok(options)
}

/// Reads binaries at the paths that the run recorded.
pub(crate) struct Files;

impl Binaries for Files {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let found = std::fs::metadata(path)?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        std::fs::read(path)
    }
}
