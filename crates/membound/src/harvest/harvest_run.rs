//! `membound harvest run`: runs a program, and scavengers in the time that it waits for memory.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use membound_harvest::Options;
use membound_harvest::distance::{Limits, Rule};
use membound_types::{HarvestRole, HarvestRun, MachineProfile};

use super::args::RunArgs;
use super::cast::RoleAssignment;
use super::copies::{copies, prepare_outputs};
use super::off_switch::Switch;
use super::plans::{self, PlanMaker, PlanWithOrigin};
use super::programs;
use super::slots;
use super::stage::Stage;
use super::timing::Timing;
use crate::job;
use crate::output::{self, Target, Usage};
use crate::profile::machine;

/// Runs the harvest, prints and writes its document, and returns the command's exit code.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    // Caught from the beginning: otherwise SIGUSR2 would kill the process before the follower listens for it.
    let _caught = Switch::listen().context("cannot listen for SIGUSR2")?;
    let outputs = Outputs {
        json: args.json.as_deref().map(Target::open).transpose()?,
        html: args.html.as_deref().map(Target::page).transpose()?,
    };
    let command = match programs::primary(args) {
        Ok(command) => command,
        Err(refused) => {
            output::complain(&refused.to_string());
            return Ok(ExitCode::from(refused.code()));
        }
    };
    let scavengers = programs::scavengers(&args.scavenger).map_err(Usage)?;
    if let Some(complaint) = contradiction(args) {
        return Err(Usage(complaint).into());
    }
    let given = given_plans(args)?;
    let planned = scavengers.iter().filter(|it| it.no_scavenger.is_none());
    for program in std::iter::once(&command).chain(planned) {
        // A plan of a file that has changed since is refused before anything runs.
        for known in &given {
            plans::is_for(&known.plan, &program.code)?;
        }
    }
    prepare_outputs(args, scavengers.len())?;
    let profile = if args.rehearse {
        machine::profile(args.machine.as_deref())?
    } else {
        machine::at_hand(args.machine.as_deref())?
    };
    let timing = Timing::of(args.bound_ns, profile.as_ref());
    let maker = Arc::new(maker(args, &timing, profile));
    let mut assignment = RoleAssignment::new(Arc::clone(&maker), given, !args.no_primary);
    let task = if args.no_primary {
        None
    } else {
        assignment.command(&command, args.rehearse)
    };
    for scavenger in &scavengers {
        assignment.expect(scavenger, args.copies);
    }
    for scavenger in &scavengers {
        assignment.scavenger(scavenger, copies(args, scavenger)?, args.rehearse);
    }
    let stage = Stage::new(args, maker, timing);
    let done = match task {
        Some(task) => stage.first_run(command, assignment, task)?,
        None if args.no_primary => stage.without_command(command, assignment)?,
        None => stage.harvest(command, assignment, None, None)?,
    };
    match done {
        Ok((document, end)) => conclude(args, outputs, &document, end),
        Err(code) => Ok(code),
    }
}

/// Where the document goes.
struct Outputs {
    json: Option<Target>,
    html: Option<Target>,
}

/// Prints and writes the document, and returns the command's exit code.
fn conclude(
    args: &RunArgs,
    outputs: Outputs,
    document: &HarvestRun,
    end: job::End,
) -> anyhow::Result<ExitCode> {
    let Outputs { mut json, mut html } = outputs;
    if !args.quiet && !json.as_ref().is_some_and(Target::is_stdout) {
        let style = output::error_style();
        output::write_stderr(&membound_report::text::harvest_run(document, style));
    }
    let mut failed = None;
    if let Some(target) = &mut json {
        let written = output::json(document).and_then(|text| target.write(&text));
        failed = failed.or(written.err());
    }
    if let Some(target) = &mut html {
        let written = target.write(&membound_report::page::harvest_run(document));
        failed = failed.or(written.err());
    }
    if let Some(error) = failed {
        let code = output::fail(&error);
        // The exit code of a program that failed takes precedence over ours.
        if end == job::End::Exited(0) {
            return Ok(code);
        }
    }
    Ok(job::end_like(end))
}

/// Reads the user's plans. If no command waits for the ends of time slices, removes the yields that only bound
/// their length.
fn given_plans(args: &RunArgs) -> anyhow::Result<Vec<PlanWithOrigin>> {
    let needs_bounds = !args.no_primary || asks_for_latency(args);
    let read = |path: &PathBuf| {
        let mut given = plans::read(path)?;
        if !needs_bounds {
            given.plan = given.plan.without_bound();
        }
        Ok(given)
    };
    args.plan.iter().map(read).collect()
}

/// Which options contradict each other, if any.
fn contradiction(args: &RunArgs) -> Option<String> {
    if args.slo_p95.is_some() && args.requests.is_none() {
        return Some("--slo-p95 needs --requests, which says what a request is".to_owned());
    }
    if args.requests.is_some() && args.no_primary {
        let message = "--requests describes the command, and --no-primary has no command";
        return Some(message.to_owned());
    }
    slots::complaint(args)
}

/// Options for making plans.
fn maker(args: &RunArgs, timing: &Timing, machine: Option<MachineProfile>) -> PlanMaker {
    let mut primary = Options::new(HarvestRole::Primary);
    primary.max_overhead = args.max_overhead;
    let mut scavenger = Options::new(HarvestRole::Scavenger);
    scavenger.max_overhead = args.max_overhead;
    scavenger.limits = asks_for_latency(args).then_some(Limits {
        bound_ns: timing.distance_ns,
        rule: Rule::Max,
    });
    PlanMaker {
        machine,
        machine_path: args.machine.clone(),
        duration: args.profile_s,
        primary,
        scavenger,
        quiet: args.quiet,
    }
}

/// Whether the command's latency is to be kept low: then scavengers get bound yields.
const fn asks_for_latency(args: &RunArgs) -> bool {
    args.bound_ns.is_some() || args.slo_p95.is_some() || args.max_slowdown.is_some()
}
