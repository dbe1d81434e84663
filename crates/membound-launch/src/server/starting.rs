//! Handles a new program before it runs: patches everything in it, or nothing.

use std::fs;
use std::path::Path;
use std::time::Instant;

use membound_platform::{Root, memory};
use membound_wire::TextMode;

use super::{Live, Server};
use crate::area::NotInstalled;
use crate::conversation::{Conversation, Failure};
use crate::exchange::Left;
use crate::maps::{self, Mapping};
use crate::modules::Loaded;
use crate::orders::NewModules;
use crate::patching::sets_signal_handlers;
use crate::perf_map::Moment;
use crate::process_key::ProcessKey;
use crate::program::{self, Unpatched};
use crate::settling::{self, Refused};

/// Areas whose memory stays open although their process may have ended: children that it has forked may
/// still count in them.
const OPEN_AREAS: usize = 256;

impl Server {
    /// Handles the start of a program: patches everything in it, or nothing.
    pub(super) fn start(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
    ) -> Result<(), NotInstalled> {
        let begun = Instant::now();
        let path = fs::read_link(format!("/proc/{}/exe", key.pid)).unwrap_or_default();
        self.sweep();
        self.ledger().begin(key, path.clone());
        self.texts().forget(key);
        // The previous program of the process is gone, and the new one may have no control thread.
        self.settling.forget(key);
        self.spaces
            .begin(key.pid, key.started, conversation.agent());
        if let Some(unsuited) = self.unsuited(&path, key, begun) {
            self.ledger().settle(key, Some(unsuited.to_string()));
            return Ok(());
        }
        let exchanged = self.settling.number();
        let mut maps = maps::of(key.pid)?;
        let loaded = self.loaded(conversation, &maps);
        if let Some(tainted) = loaded.iter().find_map(taint) {
            self.ledger().settle(key, Some(tainted.to_string()));
            return Ok(());
        }
        self.begin_records(conversation, &mut maps, key)?;
        if let Some(unwinding) = &self.unwinding {
            let done = unwinding.begin(&self.plans, conversation, &mut maps, key, &loaded);
            self.pass(key.pid, done.map_err(Into::into))?;
        }
        if let Some(following) = &self.following {
            let done = following.begin(conversation, &mut maps, key);
            self.pass(key.pid, done.map_err(Into::into))?;
        }
        let (signals, others): (Vec<Loaded>, Vec<Loaded>) =
            loaded.into_iter().partition(sets_signal_handlers);
        if let Err(unpatched) = self.hook_signals(conversation, &mut maps, &signals, &path)? {
            self.ledger().settle(key, Some(unpatched.to_string()));
            return Ok(());
        }
        for module in &others {
            self.patch(
                conversation,
                &mut maps,
                module,
                TextMode::Quiet,
                Refused::GivenUp,
            )?;
        }
        let mut left = Left::Nothing;
        for module in signals.iter().chain(&others) {
            if self.add_chosen(conversation, &mut maps, module)? == Left::Some {
                left = Left::Some;
            }
        }
        self.hook_loader(conversation, &mut maps);
        self.remember_late(key, &others);
        let all: Vec<&Loaded> = signals.iter().chain(&others).collect();
        self.begin_harvest(conversation, &mut maps, key, &path, &all)?;
        if let Some(ticks) = &self.ticks {
            ticks.begin(conversation, &mut maps, key)?;
        }
        if self.live == Live::On || self.ticks.is_some() {
            self.listen(conversation, &mut maps)?;
            // Otherwise its control thread asks for the choices as soon as it runs.
            let done = if left == Left::Nothing { exchanged } else { 0 };
            self.settling.done(key, done);
        }
        self.ledger().settle(key, None);
        self.name_trampolines(conversation, Moment::Start)?;
        self.draw.note_patching(&path, begun.elapsed());
        Ok(())
    }

    /// Why a program is not patched, as far as is known before its mappings are read. Notes the start of the others
    /// for the draw among short-lived processes.
    fn unsuited(&self, path: &Path, key: ProcessKey, begun: Instant) -> Option<Unpatched> {
        let emulator = program::emulator(path).filter(|_| !self.loads_itself);
        emulator.or_else(|| self.limited(path, key)).or_else(|| {
            let below = self.draw.leaves_out(path, key, begun, settling::runs)?;
            Some(Unpatched::ShortLived {
                path: path.to_owned(),
                below,
            })
        })
    }

    /// Why a process that may use little memory is not patched. Patches alone take little.
    fn limited(&self, path: &Path, key: ProcessKey) -> Option<Unpatched> {
        const OF_RECORDS: u64 = 130 << 20;
        const OF_FOLLOWING: u64 = 260 << 20;
        const DATA_OF_FOLLOWING: u64 = 20 << 20;
        let records = self.records.as_ref().map_or(0, |_| OF_RECORDS);
        let following = self.following.as_ref().map_or(0, |_| OF_FOLLOWING);
        let agents = memory::Limits {
            address_space: Some(records + following),
            data: self.following.as_ref().map(|_| DATA_OF_FOLLOWING),
        };
        let of_process = memory::Limits::of(&Root::system(), key.pid)?;
        program::limited(path, of_process, agents)
    }

    /// Gives a new program rings. If that fails it runs without them, and its records are missing.
    fn begin_records(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
    ) -> Result<(), NotInstalled> {
        let Some(records) = &self.records else {
            return Ok(());
        };
        match records.begin(conversation, maps, key) {
            Err(gone @ Failure::Gone(_)) => Err(gone.into()),
            Err(refused) => {
                let missed = format!("records of process {}: {refused}", key.pid);
                self.ledger().missed.insert(missed);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn listen(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), NotInstalled> {
        let modules = if self.plans.is_deferring() {
            NewModules::Later
        } else {
            NewModules::HoldProgram
        };
        self.doorbells.hang(conversation, maps, modules)?;
        Ok(())
    }

    /// Releases memory to which no process writes any more, if there is much of it.
    fn sweep(&self) {
        let mut ledger = self.ledger();
        if ledger.areas.len() <= OPEN_AREAS {
            return;
        }
        self.texts().retain(settling::runs);
        let used = maps::used_inodes();
        ledger.close(|area| used.contains(&area.inode));
    }
}

fn taint(loaded: &Loaded) -> Option<Unpatched> {
    let refused = loaded.module.plan.as_ref().err()?;
    refused.taints.then(|| Unpatched::Refused {
        path: loaded.module.path.clone(),
        reason: refused.reason.clone(),
    })
}
