//! Patches programs: modules, the calls by which signal handlers are installed, and the loader's
//! announcements. The server decides when, and in which conversation.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use membound_rewrite::patch::{HookState, HookView, Plan, Refusal};
use membound_wire::{Protection, TextMode};

use crate::area::{self, Area, Bar, Common, NotInstalled, Text};
use crate::conversation::{Conversation, Failure};
use crate::hook;
use crate::maps::Mapping;
use crate::modules::Loaded;
use crate::program::Unpatched;
use crate::records::Records;
use crate::server::Server;
use crate::settling::Refused;

/// What happened to a module.
pub(crate) enum Outcome {
    Patched(Arc<Area>),
    LeftAlone(String),
}

impl Server {
    fn common(&self, conversation: &Conversation) -> Common {
        Common {
            entries: conversation.hello.entries,
            period: self.period,
            burst: self.records.as_ref().map_or(0, Records::burst),
            // perf reads names only for code without a file, even a nameless one.
            code: match self.perf_maps {
                Some(_) => Protection::READ_EXECUTE | Protection::FILLED,
                None => Protection::READ_EXECUTE,
            },
        }
    }

    /// Patches the modules that install signal handlers, and wraps handlers that are already installed. If
    /// that fails, everything is as before.
    pub(crate) fn hook_signals(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        signals: &[Loaded],
        path: &Path,
    ) -> Result<Result<(), Unpatched>, NotInstalled> {
        let mut installed = Vec::new();
        let mut unpatched = None;
        // A program that loads the agent itself is a process of membound's own, which installs no signal
        // handler after that. If it is linked statically and stripped, its calls of `rt_sigaction` cannot
        // be hooked.
        let hooked = if self.loads_itself { &[] } else { signals };
        for module in hooked {
            let Ok(plan) = &module.module.plan else {
                continue;
            };
            let name = module.module.path.display().to_string();
            if plan
                .hooks()
                .any(|hook| is_signal_hook(&hook) && hook.state != HookState::Hooked)
            {
                unpatched = Some(Unpatched::NoSignalHook(name));
                break;
            }
            match self.patch(
                conversation,
                maps,
                module,
                TextMode::Quiet,
                Refused::GivenUp,
            )? {
                Outcome::Patched(area) => {
                    let hooks = plan.hooks().filter(is_signal_hook);
                    if !area.holds(hooks.map(|hook| hook.address)) {
                        unpatched = Some(Unpatched::NoSignalHook(name));
                    }
                    installed.push(area);
                }
                Outcome::LeftAlone(reason) => {
                    unpatched = Some(Unpatched::Refused {
                        path: module.module.path.clone(),
                        reason,
                    });
                }
            }
            if unpatched.is_some() {
                break;
            }
        }
        if signals.is_empty() && !self.loads_itself {
            unpatched = Some(Unpatched::NoSignalHook(path.display().to_string()));
        }
        if unpatched.is_none() {
            match conversation.adopt_signals() {
                Ok(()) => return Ok(Ok(())),
                Err(gone @ Failure::Gone(_)) => return Err(gone.into()),
                Err(refused) => unpatched = Some(Unpatched::Agent(refused.to_string())),
            }
        }
        for area in installed {
            self.take_back(conversation, &area)?;
        }
        Ok(match unpatched {
            Some(unpatched) => Err(unpatched),
            None => Ok(()),
        })
    }

    /// Patches one module, or returns why it is not patched. An error if the program has ended, or if it is
    /// to be tried again.
    pub(crate) fn patch(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        loaded: &Loaded,
        mode: TextMode,
        refused: Refused,
    ) -> Result<Outcome, NotInstalled> {
        let path = &loaded.module.path;
        let plan = match &loaded.module.plan {
            Ok(plan) => plan,
            Err(refused) => {
                let reason = refused.reason.clone();
                self.ledger().leave_alone(path.clone(), reason.clone());
                return Ok(Outcome::LeftAlone(reason));
            }
        };
        if plan.is_empty() {
            return Ok(Outcome::LeftAlone(
                "there is nothing to patch in it".to_owned(),
            ));
        }
        let common = self.common(conversation);
        let records = self.records.as_ref();
        let number = records.map_or(0, |records| records.number(maps, &loaded.module));
        // Only where text changes live may threads be in trampolines of other plans.
        let others = match mode {
            TextMode::Live => {
                let areas = self.ledger().areas.clone();
                area::inherited(maps, &areas)
            }
            _ => Vec::new(),
        };
        let text = Text {
            mode,
            others: &others,
        };
        match Area::install(conversation, maps, loaded, plan, common, number, text) {
            Ok((area, is_final)) => {
                let area = self.keep(conversation, area, is_final);
                self.ledger().missed.extend(unwrapped(plan, &area));
                match is_final || refused == Refused::GivenUp {
                    true => Ok(Outcome::Patched(area)),
                    // The area exists now; its missing edits are installed like those of any other area.
                    false => Err(Failure::left_out().into()),
                }
            }
            Err(gone) if gone.is_gone() => Err(gone),
            Err(error) if error.is_passing() && refused == Refused::Again => Err(error),
            Err(error) => {
                let reason = error.to_string();
                self.ledger().leave_alone(path.clone(), reason.clone());
                Ok(Outcome::LeftAlone(reason))
            }
        }
    }

    /// Adds a new area to the ledger. If all its edits stand that may (`is_final`), the program is not asked
    /// for them again.
    fn keep(&self, conversation: &Conversation, area: Area, is_final: bool) -> Arc<Area> {
        let area = Arc::new(area);
        self.ledger().areas.push(Arc::clone(&area));
        if is_final {
            self.texts().note_installed(conversation.key, &area);
        }
        area
    }

    /// Restores the text of an area, and unmaps the area.
    pub(crate) fn take_back(
        &self,
        conversation: &Conversation,
        area: &Area,
    ) -> Result<(), NotInstalled> {
        if let Ok(plan) = &area.loaded.module.plan {
            let everywhere = 0..u64::MAX;
            area.remove(
                conversation,
                plan,
                &everywhere,
                TextMode::Quiet,
                Bar::Forever,
            )?;
        }
        area.unmap(conversation)?;
        Ok(())
    }

    /// Patches the loader so that it announces new objects to the agent. If that fails, modules that are
    /// opened later run unpatched.
    pub(crate) fn hook_loader(&self, conversation: &Conversation, maps: &mut Vec<Mapping>) {
        let common = self.common(conversation);
        match hook::loader(conversation, maps, common) {
            Ok(area) => drop(self.keep(conversation, area, true)),
            Err(error) if error.is_gone() => {}
            Err(error) => self.ledger().leave_alone(
                PathBuf::from("what is opened while the program runs"),
                error.to_string(),
            ),
        }
    }
}

/// True if system calls in it install signal handlers.
pub(crate) fn sets_signal_handlers(loaded: &Loaded) -> bool {
    let plan = loaded.module.plan.as_ref();
    plan.is_ok_and(|plan| plan.hooks().any(|hook| is_signal_hook(&hook)))
}

/// Allocation functions of a module that cannot be followed, in words.
fn unwrapped<'a>(plan: &'a Plan, area: &'a Area) -> impl Iterator<Item = String> + 'a {
    let path = area.loaded.module.path.display();
    plan.wraps().filter_map(move |wrap| {
        let reason = match wrap.state {
            HookState::Refused(refusal) => refusal,
            _ if area.holds(std::iter::once(wrap.address)) => return None,
            _ => Refusal::TextDiffers,
        };
        let at = wrap.address;
        Some(format!(
            "blocks of the allocating function at {at:#x} of {path}: {reason}"
        ))
    })
}

/// True if a system call is known to be `rt_sigaction`.
fn is_signal_hook(hook: &HookView) -> bool {
    const RT_SIGACTION: u32 = 13;
    hook.number == Some(RT_SIGACTION)
}
