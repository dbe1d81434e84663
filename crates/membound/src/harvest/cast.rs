//! Who does what in a harvest: which scavengers take turns, which run as ordinary processes, and of which programs
//! plans are made while they run.

use std::sync::Arc;

use membound_types::{HarvestRole, PlanSource};

use super::copies::Member;
use super::learning::{Learned, Lesson, Subject, file_bytes, is_worth_profiling};
use super::ordinary::{Lessons, Ordinary, Processes};
use super::plans::{self, Followed, Known, Maker, Took, Wish};
use super::programs::{Wanted, texts};
use super::roles;
use crate::output;

/// Why a program of which there is no plan takes no turns.
const IS_LEARNED: &str = "it was profiled meanwhile, to take turns the next time";
/// Why one that was not profiled takes none.
const IS_TIMED: &str = "it was only timed: where it takes long in all, it is profiled another time";
/// The same of other copies of it.
const COPY_IS_LEARNED: &str = "its plan was made meanwhile, of another copy";
/// The same where the other copy ended without one.
const NOT_LEARNED: &str = "another copy of it ended and no plan was made";
/// The same where nothing can be learned.
const UNMEASURED: &str = "there is no plan of it, and none can be made before `membound measure` has measured \
                          this machine once";
/// Why a program takes no turns beside a command of which there is no plan.
const COMMAND_IS_LEARNED: &str = "the command was profiled in this run";
/// Why a program did not wait for its plan.
const FREE_PROCESSOR: &str = "a processor was free before its plan was made";

/// Who does what.
pub(super) struct Cast {
    maker: Arc<Maker>,
    /// Whether scavengers run beside a command.
    beside_command: bool,
    /// The plans that are followed.
    pub(super) followed: Vec<Followed>,
    /// Scavengers that take turns.
    pub(super) turns: Vec<Member>,
    /// Those that run as ordinary processes.
    pub(super) ordinary: Vec<Ordinary>,
    /// Those that wait for the plan of another copy.
    pub(super) held: Vec<Member>,
}

impl Cast {
    /// With the plans that were given.
    pub(super) fn new(maker: Arc<Maker>, given: Vec<Followed>, beside_command: bool) -> Self {
        Self {
            maker,
            beside_command,
            followed: given,
            turns: Vec::new(),
            ordinary: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Has a plan of the command among those that are followed, if there is one; else says how it is to be
    /// profiled while it runs, where it can be.
    pub(super) fn command(&mut self, command: &Wanted, rehearses: bool) -> Option<Lesson> {
        let why = match self.find(HarvestRole::Primary, command, rehearses) {
            Known::Plan(followed) => {
                self.followed.push(*followed);
                return None;
            }
            Known::Refused(why) => why,
            Known::Nothing | Known::Took(_) => match self.lesson(HarvestRole::Primary, command) {
                Some(lesson) => return Some(lesson),
                None => UNMEASURED.to_owned(),
            },
        };
        let name = command.path.display();
        output::complain(&format!("{name} runs without yields of its own: {why}"));
        None
    }

    /// Puts the copies of a scavenger where they belong; `alike` programs of these words are to run in all.
    pub(super) fn scavenger(
        &mut self,
        scavenger: &Wanted,
        copies: Vec<Member>,
        alike: usize,
        rehearses: bool,
    ) {
        if let Some(why) = &scavenger.no_guest {
            return self.run_ordinary(copies, why);
        }
        // Another scavenger of the same words may be profiled already.
        let words = &scavenger.words;
        if self
            .ordinary
            .iter()
            .any(|it| it.lesson.is_some() && it.guest.arguments == *words)
        {
            return self.hold(copies);
        }
        match self.find(HarvestRole::Scavenger, scavenger, rehearses) {
            Known::Plan(followed) => {
                let why = roles::takes_no_turns(&followed.plan, self.beside_command);
                self.followed.push(*followed);
                match why {
                    None => self.turns.extend(copies),
                    Some(why) => self.run_ordinary(copies, &why),
                }
            }
            Known::Refused(why) => self.run_ordinary(copies, &why),
            Known::Nothing => self.learn(scavenger, copies, None, alike),
            Known::Took(took) => self.learn(scavenger, copies, Some(took), alike),
        }
    }

    /// Runs the first copy as an ordinary process and learns from it; the other copies wait for the result. `took`
    /// is its CPU time where that is known. What is beside a command has only what the command leaves, and is
    /// profiled at once.
    fn learn(&mut self, scavenger: &Wanted, copies: Vec<Member>, took: Option<Took>, alike: usize) {
        let Some(mut lesson) = self.lesson(HarvestRole::Scavenger, scavenger) else {
            return self.run_ordinary(copies, UNMEASURED);
        };
        if !self.beside_command {
            let bytes = file_bytes(&scavenger.path);
            lesson.before_s = took.map_or(0.0, |took| took.sum_s);
            match took {
                Some(took) if is_worth_profiling(took, bytes, alike) => {}
                // It is timed again: what it took in all decides.
                Some(_) | None => lesson.subject = Subject::CpuTime,
            }
        }
        let mut copies = copies.into_iter();
        let first = copies.next().map(|member| first(member, lesson));
        self.ordinary.extend(first);
        self.hold(copies.collect());
    }

    /// Has copies wait for the plan of another one; beside a command they run at once, since what they take is
    /// only what the command leaves.
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

    /// A plan of the program that is followed already, or is kept.
    fn find(&mut self, role: HarvestRole, program: &Wanted, rehearses: bool) -> Known {
        if let Some(at) = self.position(role, program) {
            return Known::Plan(Box::new(self.followed.remove(at)));
        }
        let wish = wish(role, program);
        match self.maker.known(&wish) {
            Known::Nothing | Known::Took(_) if rehearses => match self.maker.rehearse(&wish) {
                Ok(followed) => Known::Plan(Box::new(followed)),
                Err(error) => Known::Refused(output::one_line(&error)),
            },
            known => known,
        }
    }

    /// Where a plan that was given for this program stands, or one that is kept of it with these arguments.
    fn position(&self, role: HarvestRole, program: &Wanted) -> Option<usize> {
        let words = texts(&program.words);
        let is_of_it = |it: &Followed| {
            let has_these_arguments = it.plan.command.get(1..) == words.get(1..);
            it.plan.role == role
                && (it.from.source == PlanSource::Given || has_these_arguments)
                && plans::is_for(&it.plan, &program.code).unwrap_or(false)
        };
        self.followed.iter().position(is_of_it)
    }

    /// How the program is profiled while it runs; without the machine's levels nothing can be learned.
    fn lesson(&self, role: HarvestRole, program: &Wanted) -> Option<Lesson> {
        self.maker.machine.as_ref()?;
        Some(Lesson {
            maker: Arc::clone(&self.maker),
            wish: wish(role, program),
            subject: Subject::Plan,
            before_s: 0.0,
        })
    }

    /// All scavengers as ordinary processes, beside a command that is profiled itself.
    pub(super) fn all_ordinary(&mut self) -> Vec<Ordinary> {
        let turns = std::mem::take(&mut self.turns).into_iter();
        let held = std::mem::take(&mut self.held).into_iter();
        let others = turns
            .chain(held)
            .map(|member| ordinary(member, COMMAND_IS_LEARNED));
        others.chain(std::mem::take(&mut self.ordinary)).collect()
    }

    /// Runs ordinary processes until nobody waits for a plan any more.
    pub(super) fn learn_all(&mut self, processes: &mut Processes) {
        while !self.held.is_empty() {
            processes.look();
            for lesson in processes.take_learned() {
                self.decide(lesson, processes);
            }
            if processes.count() == 0 && !processes.is_learning() {
                // What is not known by now will not be.
                let held = std::mem::take(&mut self.held);
                held.into_iter()
                    .for_each(|member| processes.add(ordinary(member, NOT_LEARNED)));
            } else if processes.has_room() && !self.held.is_empty() && processes.running() > 0 {
                processes.add(ordinary(self.held.remove(0), FREE_PROCESSOR));
            }
            processes.wait();
        }
    }

    /// Puts the copies that waited for this plan where they belong.
    fn decide(&mut self, lesson: Lessons, processes: &mut Processes) {
        let Lessons {
            mut lesson,
            learned,
        } = lesson;
        let held = std::mem::take(&mut self.held);
        let (mut these, others): (Vec<Member>, Vec<Member>) = held
            .into_iter()
            .partition(|(guest, _)| guest.arguments == lesson.wish.words);
        self.held = others;
        let why = match learned {
            Learned::Took(took)
                if is_worth_profiling(took, file_bytes(&lesson.wish.path), these.len()) =>
            {
                lesson.subject = Subject::Plan;
                processes.add(first(these.remove(0), lesson));
                self.held.extend(these);
                return;
            }
            Learned::Took(took) => Some(too_short(took.cpu_s)),
            Learned::NoPlan(why) => Some(why),
            Learned::Plan(followed) => {
                let why = roles::takes_no_turns(&followed.plan, self.beside_command);
                self.followed.push(*followed);
                why
            }
        };
        match why {
            None => self.turns.extend(these),
            Some(why) => these
                .into_iter()
                .for_each(|member| processes.add(ordinary(member, &why))),
        }
    }
}

/// A copy of which something is learned.
fn first((guest, asked): Member, lesson: Lesson) -> Ordinary {
    let why = match lesson.subject {
        Subject::CpuTime => IS_TIMED,
        Subject::Plan => IS_LEARNED,
    };
    Ordinary {
        guest,
        asked,
        why: why.to_owned(),
        lesson: Some(lesson),
    }
}

fn too_short(cpu_s: f64) -> String {
    format!("it takes {cpu_s:.2} s of CPU time, which is too short for a plan to pay")
}

/// A scavenger as an ordinary process, for this reason.
pub(super) fn ordinary((guest, asked): Member, why: &str) -> Ordinary {
    Ordinary {
        guest,
        asked,
        why: why.to_owned(),
        lesson: None,
    }
}

fn wish(role: HarvestRole, program: &Wanted) -> Wish {
    Wish {
        role,
        path: program.path.clone(),
        code: program.code.clone(),
        words: program.words.clone(),
    }
}
