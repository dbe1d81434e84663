//! Assigns the roles in a harvest: which scavengers have time slices, which run as ordinary processes, and
//! which programs are profiled meanwhile.

use std::sync::Arc;

use membound_types::{HarvestRole, PlanSource};

use super::copies::Member;
use super::learning::{Observation, ObservationTask, PROFILING_BUDGET_SHARE, Profiling, Subject};
use super::ordinary::{ObservationResult, Ordinary, Processes};
use super::roles;
use crate::error::one_line;
use crate::kept_plans::{self, CacheEntry, PlanMaker, PlanRequest, PlanWithOrigin, Timed};
use crate::named_programs::{Program, texts};

/// Reason in the report: a program without a plan that is profiled in this run.
const IS_LEARNED: &str = "it was profiled in this run, for time slices in the next one";
/// Reason in the report: a program that is only timed in this run.
const IS_TIMED: &str = "it was only timed in this run; a later run profiles it if that pays";
/// Reason for the other copies of a program that is profiled.
const COPY_IS_LEARNED: &str = "another copy of it was profiled in this run";
/// Reason for the other copies where the profiled copy ended without a plan.
const NOT_LEARNED: &str = "another copy of it ended without a plan";
/// Reason where no plan can be made.
const UNMEASURED: &str = "it has no plan, and none can be made before `membound measure` has measured \
                          this machine once";
/// Reason for a scavenger alongside a command that has no plan.
const COMMAND_IS_LEARNED: &str = "the command was profiled in this run";
/// Reason for a copy that did not wait for the plan.
const FREE_PROCESSOR: &str = "a processor was free before there was a plan";

/// The roles of all scavengers.
pub(super) struct RoleAssignment {
    maker: Arc<PlanMaker>,
    /// Whether scavengers run alongside a command.
    beside_command: bool,
    /// The plans that this harvest follows.
    pub(super) followed: Vec<PlanWithOrigin>,
    /// Scavengers that have time slices.
    pub(super) harvested: Vec<Member>,
    /// Scavengers that run as ordinary processes.
    pub(super) ordinary: Vec<Ordinary>,
    /// Copies that wait for a plan from another copy.
    pub(super) held: Vec<Member>,
    /// What profiling may still cost, in seconds.
    profiling_budget_s: f64,
}

impl RoleAssignment {
    /// Begins with the plans that the user gave.
    pub(super) fn new(
        maker: Arc<PlanMaker>,
        given: Vec<PlanWithOrigin>,
        beside_command: bool,
    ) -> Self {
        Self {
            maker,
            beside_command,
            followed: given,
            harvested: Vec::new(),
            ordinary: Vec::new(),
            held: Vec::new(),
            profiling_budget_s: 0.0,
        }
    }

    /// Adds the plan of the command to those that are followed, if there is one; otherwise returns how the
    /// command is to be profiled while it runs, if it can be.
    pub(super) fn command(
        &mut self,
        command: &Program,
        rehearses: bool,
    ) -> Option<ObservationTask> {
        let why = match self.find(HarvestRole::Primary, command, rehearses) {
            CacheEntry::Plan(followed) => {
                self.followed.push(*followed);
                return None;
            }
            CacheEntry::Refused(why) => why,
            CacheEntry::Nothing | CacheEntry::Timed(_) => {
                match self.task(HarvestRole::Primary, command) {
                    Some(task) => return Some(task),
                    None => UNMEASURED.to_owned(),
                }
            }
        };
        let name = command.path.display();
        self.maker
            .environment
            .complain(&format!("{name} runs without yields of its own: {why}"));
        None
    }

    /// Increases the profiling budget by a share of the CPU time that `copies` of this scavenger are expected to take.
    /// An earlier run measured that time; without one, and beside a command, the budget stays as it is.
    pub(super) fn expect(&mut self, scavenger: &Program, copies: u32) {
        if self.beside_command {
            return;
        }
        let timed = self
            .maker
            .timed(&plan_request(HarvestRole::Scavenger, scavenger));
        let cpu_s = timed.map_or(0.0, |timed| timed.cpu_s);
        self.profiling_budget_s += PROFILING_BUDGET_SHARE * cpu_s * f64::from(copies);
    }

    /// Assigns the copies of one scavenger.
    pub(super) fn scavenger(&mut self, scavenger: &Program, copies: Vec<Member>, rehearses: bool) {
        if let Some(why) = &scavenger.no_scavenger {
            return self.run_ordinary(copies, why);
        }
        match self.find(HarvestRole::Scavenger, scavenger, rehearses) {
            CacheEntry::Plan(followed) => {
                let why = roles::why_without_slices(&followed.plan, self.beside_command);
                self.followed.push(*followed);
                match why {
                    None => self.harvested.extend(copies),
                    Some(why) => self.run_ordinary(copies, &why),
                }
            }
            CacheEntry::Refused(why) => self.run_ordinary(copies, &why),
            CacheEntry::Nothing => self.learn(scavenger, copies, None),
            CacheEntry::Timed(timed) => self.learn(scavenger, copies, Some(timed)),
        }
    }

    /// Runs the first copy as an ordinary process and profiles or times it; the other copies wait for the
    /// result, unless it is known that no plan will come of it. `timed` is what is known of it.
    /// A scavenger alongside a command uses only time that the command leaves, so it is always profiled.
    fn learn(&mut self, scavenger: &Program, mut copies: Vec<Member>, timed: Option<Timed>) {
        let Some(mut task) = self.task(HarvestRole::Scavenger, scavenger) else {
            return self.run_ordinary(copies, UNMEASURED);
        };
        // Another scavenger with the same words may be observed already.
        let observed = self.ordinary.iter().find_map(|it| {
            let task = it.task.as_ref()?;
            (it.scavenger.arguments == scavenger.words).then_some(task.subject)
        });
        let is_affordable = match (observed, timed) {
            (Some(subject), _) => subject == Subject::Plan,
            (None, Some(timed)) => self.beside_command || self.afford(&mut task, timed),
            (None, None) => self.beside_command,
        };
        if observed.is_none() && !copies.is_empty() {
            if !is_affordable {
                task.subject = Subject::CpuTime;
            }
            self.ordinary.push(first(copies.remove(0), task));
        }
        let no_plan = timed.filter(|_| !is_affordable);
        let no_plan = no_plan.map(|timed| too_expensive(timed.cpu_s));
        match no_plan {
            Some(why) => self.run_ordinary(copies, &why),
            None => self.hold(copies),
        }
    }

    /// Takes the cost of profiling this program from the budget, if that suffices.
    fn afford(&mut self, task: &mut ObservationTask, timed: Timed) -> bool {
        let budget_s = self.profiling_budget_s;
        let Some(profiling) = Profiling::within(budget_s, timed, self.maker.duration) else {
            return false;
        };
        self.profiling_budget_s -= profiling.cost_s;
        task.duration = profiling.duration;
        true
    }

    /// Has copies wait for the plan of another one. Beside a command they run at once, since they use only
    /// time that the command leaves.
    fn hold(&mut self, copies: Vec<Member>) {
        if self.beside_command {
            self.run_ordinary(copies, COPY_IS_LEARNED);
        } else {
            self.held.extend(copies);
        }
    }

    fn run_ordinary(&mut self, copies: Vec<Member>, why: &str) {
        let all = copies.into_iter().map(|member| ordinary(member, why));
        self.ordinary.extend(all);
    }

    /// The plan of the program: one that is already followed, is kept, or is made by a rehearsal.
    fn find(&mut self, role: HarvestRole, program: &Program, rehearses: bool) -> CacheEntry {
        if let Some(at) = self.position(role, program) {
            return CacheEntry::Plan(Box::new(self.followed.remove(at)));
        }
        let plan_request = plan_request(role, program);
        match self.maker.known(&plan_request) {
            CacheEntry::Nothing | CacheEntry::Timed(_) if rehearses => {
                match self.maker.rehearse(&plan_request) {
                    Ok(followed) => CacheEntry::Plan(Box::new(followed)),
                    Err(error) => CacheEntry::Refused(one_line(&error)),
                }
            }
            known => known,
        }
    }

    /// Index of a followed plan that was given for this program, or was made of it with the same arguments.
    fn position(&self, role: HarvestRole, program: &Program) -> Option<usize> {
        let words = texts(&program.words);
        let is_of_it = |it: &PlanWithOrigin| {
            let has_these_arguments = it.plan.command.get(1..) == words.get(1..);
            it.plan.role == role
                && (it.from.source == PlanSource::Given || has_these_arguments)
                && kept_plans::is_for(&it.plan, &program.code).unwrap_or(false)
        };
        self.followed.iter().position(is_of_it)
    }

    /// How the program is profiled while it runs; `None` without a machine profile, since plans need the
    /// machine's levels.
    fn task(&self, role: HarvestRole, program: &Program) -> Option<ObservationTask> {
        self.maker.machine.as_ref()?;
        Some(ObservationTask {
            maker: Arc::clone(&self.maker),
            plan_request: plan_request(role, program),
            subject: Subject::Plan,
            duration: self.maker.duration,
        })
    }

    /// Takes all scavengers as ordinary processes, alongside a command that is itself profiled.
    pub(super) fn all_ordinary(&mut self) -> Vec<Ordinary> {
        let harvested = std::mem::take(&mut self.harvested).into_iter();
        let waiting = std::mem::take(&mut self.held).into_iter();
        let others = harvested
            .chain(waiting)
            .map(|member| ordinary(member, COMMAND_IS_LEARNED));
        others.chain(std::mem::take(&mut self.ordinary)).collect()
    }

    /// Runs ordinary processes until no copy waits for a plan.
    pub(super) fn learn_all(&mut self, processes: &mut Processes) {
        while !self.held.is_empty() {
            processes.poll();
            for task in processes.take_learned() {
                self.decide(task, processes);
            }
            if processes.count() == 0 && !processes.is_learning() {
                // No program is left from which a plan could come.
                let waiting = std::mem::take(&mut self.held);
                waiting
                    .into_iter()
                    .for_each(|member| processes.add(ordinary(member, NOT_LEARNED)));
            } else if processes.has_free_processor()
                && !self.held.is_empty()
                && processes.running() > 0
            {
                processes.add(ordinary(self.held.remove(0), FREE_PROCESSOR));
            }
            processes.wait();
        }
    }

    /// Assigns the copies that waited for this result.
    fn decide(&mut self, task: ObservationResult, processes: &mut Processes) {
        let ObservationResult { mut task, learned } = task;
        let waiting = std::mem::take(&mut self.held);
        let (mut these, others): (Vec<Member>, Vec<Member>) = waiting
            .into_iter()
            .partition(|(scavenger, _)| scavenger.arguments == task.plan_request.words);
        self.held = others;
        let why = match learned {
            Observation::Timed(timed) => {
                // Copies wait only where nothing was known: their time was not expected before.
                if !these.is_empty() {
                    self.profiling_budget_s +=
                        PROFILING_BUDGET_SHARE * timed.cpu_s * (these.len() + 1) as f64;
                    if self.afford(&mut task, timed) {
                        task.subject = Subject::Plan;
                        processes.add(first(these.remove(0), task));
                        self.held.extend(these);
                        return;
                    }
                }
                Some(too_expensive(timed.cpu_s))
            }
            Observation::NoPlan(why) => Some(why),
            Observation::Plan(followed) => {
                let why = roles::why_without_slices(&followed.plan, self.beside_command);
                self.followed.push(*followed);
                why
            }
        };
        match why {
            None => self.harvested.extend(these),
            Some(why) => these
                .into_iter()
                .for_each(|member| processes.add(ordinary(member, &why))),
        }
    }
}

/// The copy that is timed or profiled.
fn first((scavenger, copy_request): Member, task: ObservationTask) -> Ordinary {
    let why = match task.subject {
        Subject::CpuTime => IS_TIMED,
        Subject::Plan => IS_LEARNED,
    };
    Ordinary {
        scavenger,
        copy_request,
        why: why.to_owned(),
        task: Some(task),
    }
}

fn too_expensive(cpu_s: f64) -> String {
    format!(
        "it takes {cpu_s:.2} s of CPU time, and profiling it would cost more than {:.0} % of the harvest's",
        PROFILING_BUDGET_SHARE * 100.0
    )
}

/// A scavenger as an ordinary process, for the reason given.
pub(super) fn ordinary((scavenger, copy_request): Member, why: &str) -> Ordinary {
    Ordinary {
        scavenger,
        copy_request,
        why: why.to_owned(),
        task: None,
    }
}

fn plan_request(role: HarvestRole, program: &Program) -> PlanRequest {
    PlanRequest {
        role,
        path: program.path.clone(),
        code: program.code.clone(),
        words: program.words.clone(),
    }
}
