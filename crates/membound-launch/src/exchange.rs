//! Patches that are chosen while programs run.
//!
//! They are added to the session's own plan: a file may have several plans, each with an area of its own.
//! If two want the same bytes, the first has them: a new area leaves those sites out, and one that is
//! installed again stays out there. An area whose plan is no longer chosen keeps its memory, since a thread
//! may be inside; it is used again when the plan is chosen again.

use std::ops::Range;
use std::sync::Arc;

use membound_rewrite::patch::{self, Refusal};
use membound_wire::TextMode;

use crate::area::{self, Area, NotInstalled};
use crate::choice::{Choice, Pace, Paced};
use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::modules::{Loaded, ModulePlan};
use crate::process_key::ProcessKey;
use crate::server::Server;
use crate::settling::Refused;
use crate::texts::{Change, Edits};

impl Loaded {
    /// True if a choice is for this file.
    fn is_of(&self, choice: &Choice) -> bool {
        self.module.identity() == Some(&choice.file)
    }
}

/// Whether something is left to do: choices for a module that are not planned yet, or patches that are no longer
/// chosen and could not be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    Some,
}

/// Number of executions of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Address in the file.
    pub address: u64,
    /// Executions so far, over all programs.
    pub executions: u64,
}

/// Choices whose paces are remembered for programs that get them later.
const MAX_PACED: usize = 256;

/// Sets the paces of an area's sites.
fn pace(area: &Area, paces: &[(u64, Pace)]) {
    let Ok(plan) = &area.loaded.module.plan else {
        return;
    };
    for site in plan.sites() {
        let known = paces.binary_search_by_key(&site.address, |(address, _)| *address);
        let words = site.number.ok().and_then(|it| plan.data_words(it));
        if let (Ok(at), Some(words)) = (known, words) {
            // The memory is the launcher's own, so writing cannot fail.
            let _ = area.arm(words.start, paces[at].1);
        }
    }
}

/// The areas of a choice.
fn areas_of<'a>(areas: &'a [Arc<Area>], choice: &Choice) -> Vec<&'a Arc<Area>> {
    let is_chosen = |area: &&Arc<Area>| {
        let module = &area.loaded.module;
        module.is_chosen(&choice.file, &choice.options)
    };
    areas.iter().filter(is_chosen).collect()
}

/// Sites whose patches are in none of some areas: most would cross those of another plan, which threads may still
/// execute.
struct LeftOut(Vec<Vec<Range<u32>>>);

impl LeftOut {
    fn of(areas: &[&Arc<Area>]) -> Self {
        Self(areas.iter().map(|area| area.left_out()).collect())
    }

    /// True if the site of this number is one of them.
    fn has(&self, number: u32) -> bool {
        let holds = |out: &Vec<Range<u32>>| !out.iter().any(|sites| sites.contains(&number));
        !self.0.is_empty() && !self.0.iter().any(holds)
    }
}

impl Server {
    /// Makes `choices` the complete set of choices, and wakes live programs. Returns a number for
    /// [`Self::settled`].
    pub(crate) fn exchange(&self, choices: Vec<Choice>) -> u64 {
        let choices: Vec<Choice> = choices.into_iter().map(Choice::plain).collect();
        *self.choices() = Arc::new(choices);
        let number = self.settling.begin();
        self.doorbells.ring();
        number
    }

    /// True if every live program has done the exchange of this number, or a later one.
    pub(crate) fn settled(&self, exchange: u64) -> bool {
        self.settling.is_settled(exchange)
    }

    /// Sites of a choice that cannot be patched, with reasons, or whose patches were left out of all programs; `None`
    /// if the choice was not placed in any program yet.
    pub(crate) fn refused(&self, choice: &Choice) -> Option<Vec<(u64, Refusal)>> {
        let choice = choice.clone().plain();
        let ledger = self.ledger();
        let module = ledger.module(|module| module.is_chosen(&choice.file, &choice.options))?;
        let plan = module.plan.as_ref().ok()?;
        let left_out = LeftOut::of(&areas_of(&ledger.areas, &choice));
        let refused = plan.sites().filter_map(|site| {
            let refusal = match site.number {
                Err(refusal) => refusal,
                Ok(number) if left_out.has(number) => Refusal::NoRoom,
                Ok(_) => return None,
            };
            Some((site.address, refusal))
        });
        Some(refused.collect())
    }

    /// Sets how often sites of a choice are sampled, and how many times, in areas that exist and in later
    /// ones. `paces` is sorted by address. The choice must not be in use at the time.
    pub(crate) fn arm(&self, choice: &Choice, paces: &[(u64, Pace)]) {
        let choice = choice.clone().plain();
        let areas = self.ledger().areas.clone();
        for area in areas_of(&areas, &choice) {
            pace(area, paces);
        }
        let mut known = self.paces();
        known.retain(|it| it.choice != choice);
        known.push_back(Paced {
            choice,
            paces: paces.to_vec(),
        });
        if known.len() > MAX_PACED {
            known.pop_front();
        }
    }

    /// As [`Self::arm`], for an area that was just placed.
    fn arm_new(&self, maps: &[Mapping], chosen: &Loaded) {
        let paces = {
            let known = self.paces();
            let is_meant = |it: &&Paced| {
                let Choice { file, options } = &it.choice;
                chosen.module.is_chosen(file, options)
            };
            known.iter().find(is_meant).map(|it| it.paces.clone())
        };
        let Some(paces) = paces else { return };
        let areas = self.ledger().areas.clone();
        let here = area::inherited(maps, &areas).into_iter().filter(|area| {
            Arc::ptr_eq(&area.loaded.module, &chosen.module) && area.loaded.bias == chosen.bias
        });
        for area in here {
            pace(&area, &paces);
        }
    }

    /// Executions of a choice's sites, in programs that run and that have ended, without those whose patches were left
    /// out of all programs; `None` if it was placed nowhere yet, or does not count.
    pub(crate) fn executed(&self, choice: &Choice) -> Option<Vec<Executed>> {
        let choice = choice.clone().plain();
        let ledger = self.ledger();
        let sums = ledger.executions_of(|it| it.is_chosen(&choice.file, &choice.options))?;
        let left_out = LeftOut::of(&areas_of(&ledger.areas, &choice));
        let (module, sums) = sums;
        let plan = module.plan.as_ref().ok()?;
        let sites = plan.sites().filter_map(|site| {
            let number = site.number.ok().filter(|number| !left_out.has(*number))?;
            let executions = *sums.get(number as usize)?;
            Some(Executed {
                address: site.address,
                executions,
            })
        });
        Some(sites.collect())
    }

    /// Installs the chosen patches into a module that was just loaded, as far as they are planned: a
    /// program that waits must not wait for plans. Its control thread installs the rest later. A program that
    /// may be short-lived gets none.
    pub(crate) fn add_chosen(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        loaded: &Loaded,
    ) -> Result<Left, NotInstalled> {
        let mut left = Left::Nothing;
        if self.may_be_short_lived(conversation) {
            return Ok(left);
        }
        let choices = Arc::clone(&self.choices());
        for choice in choices.iter().filter(|it| loaded.is_of(it)) {
            let planned = self.plans().derived_before(&loaded.module, &choice.options);
            let Some(module) = planned else {
                left = Left::Some;
                continue;
            };
            let chosen = Loaded {
                module,
                bias: loaded.bias,
            };
            self.patch(
                conversation,
                maps,
                &chosen,
                TextMode::Quiet,
                Refused::GivenUp,
            )?;
        }
        Ok(left)
    }

    /// Installs and removes patches until running text has what is chosen. Text without any stays so while its
    /// program may be short-lived. Returns whether patches stayed in it that are no longer chosen.
    pub(crate) fn apply_chosen(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        maps: &mut Vec<Mapping>,
        refused: Refused,
    ) -> Result<Left, NotInstalled> {
        let choices = Arc::clone(&self.choices());
        let areas: Vec<Arc<Area>> = area::inherited(maps, &self.ledger().areas)
            .into_iter()
            .filter(|area| area.loaded.module.origin().is_some())
            // A harvest's yields are not exchanged.
            .filter(|area| {
                let harvesting = self.harvesting.as_ref();
                !harvesting.is_some_and(|it| it.owns(&area.loaded.module))
            })
            .collect();
        let none_wanted = choices.is_empty() || self.may_be_short_lived(conversation);
        if none_wanted && areas.is_empty() {
            return Ok(Left::Nothing);
        }
        let mut out = Change::new(key, Edits::Out);
        {
            let texts = self.texts();
            for area in &areas {
                let module = &area.loaded.module;
                let mut choices = choices.iter();
                if !choices.any(|choice| module.is_chosen(&choice.file, &choice.options)) {
                    out.add(&texts, area);
                }
            }
        }
        let taken_out = self.change(conversation, out, Refused::Again);
        let left = match &taken_out {
            Err(error) if error.is_passing() => Left::Some,
            _ => Left::Nothing,
        };
        self.pass_or(conversation.pid, taken_out, refused)?;
        if choices.is_empty() {
            return Ok(left);
        }
        let mut back = Change::new(key, Edits::In);
        let mut new = Vec::new();
        let is_exchanged = |loaded: &Loaded| {
            let harvesting = self.harvesting.as_ref();
            !harvesting.is_some_and(|it| it.is_scavengers(loaded))
        };
        let loaded = self.loaded_of(conversation, maps, &choices);
        for loaded in loaded.into_iter().filter(is_exchanged) {
            for chosen in self.chosen(&choices, &loaded) {
                let here = |area: &&Arc<Area>| {
                    Arc::ptr_eq(&area.loaded.module, &chosen.module)
                        && area.loaded.bias == chosen.bias
                };
                match areas.iter().find(here) {
                    Some(area) => back.add(&self.texts(), area),
                    None => new.push(chosen),
                }
            }
        }
        self.change(conversation, back, refused)?;
        for chosen in new {
            let placed = self.patch(conversation, maps, &chosen, TextMode::Live, refused);
            // A few executions of the first moment may be counted wrong.
            self.arm_new(maps, &chosen);
            self.pass_or(conversation.pid, placed.map(drop), refused)?;
        }
        Ok(left)
    }

    /// Whether the program of this conversation may be a short-lived one.
    fn may_be_short_lived(&self, conversation: &Conversation) -> bool {
        let begun = self.ledger().begun(conversation.key);
        begun.is_some_and(|begun| self.draw.may_be_short_lived(begun))
    }

    /// Makes a change of running text, as far as possible.
    pub(crate) fn change(
        &self,
        conversation: &Conversation,
        change: Change,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let done = change.make(conversation).and_then(|made| {
            let is_final = made.is_final;
            self.texts().note(made);
            match is_final {
                true => Ok(()),
                false => Err(Failure::left_out()),
            }
        });
        self.pass_or(conversation.pid, done.map_err(Into::into), refused)
    }

    pub(crate) fn chosen(&self, choices: &[Choice], loaded: &Loaded) -> Vec<Loaded> {
        choices
            .iter()
            .filter(|choice| loaded.is_of(choice))
            .map(|choice| Loaded {
                module: self.planned(&loaded.module, &choice.options),
                bias: loaded.bias,
            })
            .collect()
    }

    /// The same file with the plan for `options`, which is made once.
    fn planned(&self, module: &Arc<ModulePlan>, options: &patch::Options) -> Arc<ModulePlan> {
        self.plans().derived(module, options)
    }
}
