//! Runs a program, and scavengers in the time that it waits for memory (`membound harvest run`).

mod choices;
mod control_trace;
mod copies;
mod ended;
mod first_run;
mod follower;
mod idle_processors;
mod in_place;
mod learning;
mod off_switch;
mod ordinary;
mod request_report;
mod role_assignment;
mod roles;
mod run_config;
mod run_document;
mod running;
mod sibling_binding;
mod slots;
mod stage;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;

use membound_harvest::Options;
use membound_harvest::distance::{Limits, Rule};
use membound_types::{HarvestRole, HarvestRun, MachineProfile};

pub use off_switch::OffSwitch;
pub use run_config::{Core, RunConfig};

use crate::environment::Environment;
use crate::error::Error;
use crate::kept_plans::{self, PlanMaker, PlanWithOrigin};
use crate::named_programs::{self, Program};
use crate::slice_timing::Timing;
use copies::{copies, prepare_outputs};
use role_assignment::RoleAssignment;
use stage::Stage;

/// A checked request. No program was started yet.
#[derive(Debug)]
pub struct CheckedRun {
    config: RunConfig,
    environment: Environment,
    command: Program,
    scavengers: Vec<Program>,
    given: Vec<PlanWithOrigin>,
}

impl CheckedRun {
    /// Finds the programs and reads the plans of a request, and makes the directory of outputs.
    ///
    /// # Errors
    /// [`Error::CannotRun`] if the command is not found, [`Error::Usage`] if options contradict each other; if a
    /// plan or an output cannot be used.
    pub fn new(config: RunConfig, environment: Environment) -> Result<Self, Error> {
        let search = environment.search.as_deref();
        let command = match config.no_primary {
            true => named_programs::host(),
            false => named_programs::command(&config.command, search)?,
        };
        let scavengers =
            named_programs::scavengers(&config.scavenger, search).map_err(Error::Usage)?;
        if let Some(complaint) = contradiction(&config) {
            return Err(Error::Usage(complaint));
        }
        let given = given_plans(&config)?;
        let planned = scavengers.iter().filter(|it| it.no_scavenger.is_none());
        for program in std::iter::once(&command).chain(planned) {
            // A plan of a file that has changed since is refused before anything runs.
            for known in &given {
                kept_plans::is_for(&known.plan, &program.code)?;
            }
        }
        prepare_outputs(&config, scavengers.len())?;
        Ok(Self {
            config,
            environment,
            command,
            scavengers,
            given,
        })
    }

    /// Runs the programs until the command has ended, until `off` is operated for the harvest. `machine` is the
    /// profile of this machine, without which no plan can be made. Returns the document, and how the command ended.
    ///
    /// # Errors
    /// If a program cannot be started or waited for.
    pub fn run(
        self,
        machine: Option<MachineProfile>,
        off: &OffSwitch,
    ) -> Result<(HarvestRun, ExitStatus), Error> {
        let Self {
            config,
            environment,
            command,
            scavengers,
            given,
        } = self;
        let timing = Timing::of(config.bound_ns, machine.as_ref());
        let maker = Arc::new(maker(&config, environment, &timing, machine));
        let mut assignment = RoleAssignment::new(Arc::clone(&maker), given, !config.no_primary);
        let task = if config.no_primary {
            None
        } else {
            assignment.command(&command, config.rehearse)
        };
        for scavenger in &scavengers {
            assignment.expect(scavenger, config.copies);
        }
        for scavenger in &scavengers {
            assignment.scavenger(scavenger, copies(&config, scavenger)?, config.rehearse);
        }
        let stage = Stage::new(&config, maker, timing, off);
        match task {
            Some(task) => stage.first_run(command, assignment, task),
            None if config.no_primary => stage.without_command(command, assignment),
            None => stage.harvest(command, assignment, None, None),
        }
    }
}

/// Reads the user's plans. If no command waits for the ends of time slices, removes the yields that only bound
/// their length.
fn given_plans(config: &RunConfig) -> Result<Vec<PlanWithOrigin>, Error> {
    let needs_bounds = !config.no_primary || asks_for_latency(config);
    let read = |path: &PathBuf| {
        let mut given = kept_plans::read(path)?;
        if !needs_bounds {
            given.plan = given.plan.without_bound();
        }
        Ok(given)
    };
    config.plan.iter().map(read).collect()
}

/// Which options contradict each other, if any.
fn contradiction(config: &RunConfig) -> Option<String> {
    if config.slo_p95_ns.is_some() && config.requests.is_none() {
        return Some("--slo-p95 needs --requests, which says what a request is".to_owned());
    }
    if config.requests.is_some() && config.no_primary {
        let message = "--requests describes the command, and --no-primary has no command";
        return Some(message.to_owned());
    }
    slots::complaint(config)
}

/// Options for making plans.
fn maker(
    config: &RunConfig,
    environment: Environment,
    timing: &Timing,
    machine: Option<MachineProfile>,
) -> PlanMaker {
    let mut primary = Options::new(HarvestRole::Primary);
    primary.max_overhead = config.max_overhead;
    let mut scavenger = Options::new(HarvestRole::Scavenger);
    scavenger.max_overhead = config.max_overhead;
    scavenger.limits = asks_for_latency(config).then_some(Limits {
        bound_ns: timing.distance_ns,
        rule: Rule::Max,
    });
    PlanMaker {
        environment,
        machine,
        machine_path: config.machine_path.clone(),
        duration: config.profile_time,
        primary,
        scavenger,
        quiet: config.quiet,
    }
}

/// Whether the command's latency is to be kept low: then scavengers get bound yields.
const fn asks_for_latency(config: &RunConfig) -> bool {
    config.bound_ns.is_some() || config.slo_p95_ns.is_some() || config.max_slowdown.is_some()
}
