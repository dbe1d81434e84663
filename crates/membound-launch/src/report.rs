//! The results of a session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use membound_rewrite::flow::Direction;
use membound_rewrite::image::FunctionBounds;
use membound_rewrite::patch::{Plan, Refusal};

use crate::ledger::{Program, Totals};
use crate::modules::ModulePlan;
use crate::perf_map::PerfMap;
use crate::program::Unpatched;
use crate::records::{OfModule, RecordTotals, Records};
use crate::samples::Samples;
use crate::server::Server;
use crate::stops::Stops;

/// All results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Programs in the order of their starts.
    pub programs: Vec<Program>,
    /// Why the command itself was not patched; `None`: it was.
    pub unpatched: Option<String>,
    /// Files with code that could be patched.
    pub modules: Vec<ModuleReport>,
    /// Observations that were not completed, with reasons.
    pub missed: Vec<String>,
    /// Totals of recorded accesses; `None` if programs do not record.
    pub records: Option<RecordTotals>,
    /// Files with names for perf, if they were requested.
    pub perf_maps: Vec<PerfMap>,
    /// How long live changes of text stopped threads.
    pub stops: Stops,
    /// Total time for which programs were held at their start and when they loaded modules, in nanoseconds.
    pub held_ns: u64,
}

/// One file over all programs, with one plan: a file with chosen plans has an entry for each plan.
#[derive(Clone, Debug)]
pub struct ModuleReport {
    /// Path of the file, as the first program that used it names it.
    pub path: PathBuf,
    /// What was patched, or why it was not.
    pub outcome: Result<Patched, String>,
}

/// What was patched in a file.
#[derive(Clone, Debug)]
pub struct Patched {
    module: Arc<ModulePlan>,
    /// Its access instructions, sorted by address.
    pub sites: Vec<SiteReport>,
    /// Accesses refused when they were placed, by reason; their sites are `Ok` in `sites`, since they may
    /// be there in another placement.
    pub lost: BTreeMap<Refusal, u64>,
    /// True if executions were counted.
    pub counted: bool,
    /// Sums of its recorded accesses; `None` if programs do not record.
    pub samples: Option<Samples>,
    /// Distinct cache lines among them; `None` also if there were too many to distinguish.
    pub lines: Option<u64>,
    /// Number of address spaces in which it was patched.
    pub placements: u64,
}

impl Patched {
    /// The file's functions, found again: names are not part of a plan.
    #[must_use]
    pub fn functions(&self) -> Vec<FunctionBounds> {
        self.module.functions()
    }
}

/// One access instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteReport {
    /// Address in the file.
    pub address: u64,
    /// Whether it loads or stores.
    pub direction: Direction,
    /// Number of executions (0 if they are not counted), or why it has no patch.
    pub patch: Result<u64, Refusal>,
    /// Sums of its recorded accesses; `None` if programs do not record.
    pub samples: Option<Samples>,
}

impl Report {
    pub(crate) fn of(server: &Server, pid: u32, path: &Path, obstacle: Option<Unpatched>) -> Self {
        let mut ledger = server.ledger();
        let totals = ledger.totals().to_vec();
        let mut modules: Vec<ModuleReport> = totals
            .iter()
            .filter_map(|totals| module(totals, server))
            .collect();
        for (path, reason) in ledger.left_alone() {
            modules.push(ModuleReport {
                path: path.clone(),
                outcome: Err(reason.clone()),
            });
        }
        let mut own = ledger.programs.iter().filter(|it| it.pid == pid).peekable();
        let unpatched = if own.peek().is_none() {
            let unpatched = obstacle.unwrap_or_else(|| Unpatched::Silent(path.to_owned()));
            Some(unpatched.to_string())
        } else {
            own.find_map(|program| program.unpatched.clone())
        };
        Self {
            programs: ledger.programs.clone(),
            unpatched,
            modules,
            records: server.records.as_ref().map(Records::totals),
            missed: ledger.missed.iter().cloned().collect(),
            perf_maps: server.perf_maps(),
            stops: server.stops.so_far(),
            held_ns: server.held_ns(),
        }
    }
}

fn module(totals: &Totals, server: &Server) -> Option<ModuleReport> {
    if totals.module.is_piece() {
        return None;
    }
    let plan = totals.module.plan.as_ref().ok()?;
    let records = server.records.as_ref();
    let recorded = records.map(|records| records.of(&totals.module).unwrap_or_default());
    Some(ModuleReport {
        path: totals.module.path.clone(),
        outcome: Ok(Patched {
            module: Arc::clone(&totals.module),
            sites: sites(plan, totals.executions.as_deref(), recorded.as_ref()),
            lines: recorded.as_ref().and_then(|it| it.recorded.lines()),
            samples: recorded.map(|it| it.recorded.all),
            lost: totals.lost.clone(),
            counted: totals.executions.is_some(),
            placements: totals.placements,
        }),
    })
}

fn sites(plan: &Plan, executions: Option<&[u64]>, recorded: Option<&OfModule>) -> Vec<SiteReport> {
    plan.sites()
        .map(|site| SiteReport {
            address: site.address,
            direction: site.direction,
            samples: recorded.and_then(|it| Some(it.site(site.number.ok()?))),
            patch: site.number.map(|number| {
                let executions = executions.and_then(|all| all.get(number as usize));
                executions.copied().unwrap_or(0)
            }),
        })
        .collect()
}
